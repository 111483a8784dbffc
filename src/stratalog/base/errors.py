"""Every error that Stratalog raises on purpose, in one tree, split by whose fault it is.

    StratalogError
    ├── UsageError                  the caller asked for something that cannot be done
    │   ├── InvalidRecordError      a record that this log must refuse
    │   │   └── InvalidTimestampError   its timestamp is too far from now, or no timestamp
    │   ├── RecordTooLargeError     a batch over max.message.bytes
    │   ├── OffsetOutOfRangeError   a read below the log start or past the log end
    │   ├── OutOfOrderSequenceError a producer's sequence number does not follow its last one
    │   ├── ProducerFencedError     a producer's epoch is older than one already seen
    │   ├── LogLockedError          the directory belongs to a live process
    │   ├── UnknownPartitionError   there is no such partition here
    │   ├── PartitionExistsError    there is one already
    │   ├── IllegalStepError        a partition's state does not allow it now
    │   ├── InvalidConfigError      a setting that cannot be, by name or by value
    │   ├── PolicyViolationError    the topic's cleanup policy does not allow it
    │   ├── ConfirmationNeededError what it takes away does not come back, and nobody confirmed it
    │   └── MissingExtraError       an optional part is not installed; names the extra
    ├── CorruptionError             what lies on disk is not what was written
    ├── RemoteProtocolError         a peer broke the protocol
    ├── LogOfflineError             the log takes no writes: quarantined, or its disk has failed
    ├── RoundAbortedError           a round of cleaning was told to stop, and has
    ├── LogChangedError             a log changed under a reader of another process: try again
    └── StorageIOError              the environment failed: the disk, the operating system
        └── StorageFullError        no space, or a quota is used up
            └── TooManyFilesError   the process or the machine may open no more files

Invariants: each class maps to exactly one Kafka error code (`kafka_code`), so that the
server never guesses; a decoder raises nothing outside this tree; `str(error)` is one line.
"""

from __future__ import annotations


class StratalogError(Exception):
    """Base of the tree. `kafka_code` is the protocol's number for it (-1: unknown)."""

    kafka_code = -1


class UsageError(StratalogError):
    """The caller asked for something that cannot be done; nothing was changed."""

    kafka_code = 42  # INVALID_REQUEST


class InvalidRecordError(UsageError):
    """A record that this log must refuse, e.g. one without a key on a compacted topic (CMP-10)."""

    kafka_code = 87  # INVALID_RECORD


class InvalidTimestampError(InvalidRecordError):
    """A timestamp out of `message.timestamp.before.max.ms` or `.after.max.ms` (KIP-937)."""

    kafka_code = 32  # INVALID_TIMESTAMP


class RecordTooLargeError(UsageError):
    """A batch over `max.message.bytes` (LOG-9)."""

    kafka_code = 10  # MESSAGE_TOO_LARGE


class OffsetOutOfRangeError(UsageError):
    """A read below the log start or beyond the log end (LOG-10)."""

    kafka_code = 1  # OFFSET_OUT_OF_RANGE


class OutOfOrderSequenceError(UsageError):
    """A producer's sequence number does not follow its last one."""

    kafka_code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerFencedError(UsageError):
    """A producer's epoch is older than one already seen."""

    kafka_code = 47  # INVALID_PRODUCER_EPOCH


class LogLockedError(UsageError):
    """The directory holds the `.lock` of a live process."""

    kafka_code = 57  # LOG_DIR_NOT_FOUND


class UnknownPartitionError(UsageError):
    """There is no such partition in these log directories."""

    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class PartitionExistsError(UsageError):
    """A partition of that name is there already."""

    kafka_code = 36  # TOPIC_ALREADY_EXISTS


class IllegalStepError(UsageError):
    """A step that a partition's state does not allow; the state is as it was (CLN-4)."""


class InvalidConfigError(UsageError):
    """A setting whose name nobody knows, or whose value breaks a rule (CFG-2)."""

    kafka_code = 40  # INVALID_CONFIG


class PolicyViolationError(UsageError):
    """The topic's cleanup policy does not allow it."""

    kafka_code = 44  # POLICY_VIOLATION


class ConfirmationNeededError(UsageError):
    """What it takes away does not come back, and nobody has confirmed that it may go."""


class MissingExtraError(UsageError):
    """An optional part is not installed; the message names the extra to install."""


class CorruptionError(StratalogError):
    """What lies on disk is not what was written.

    `reason` says what is wrong; `file` and `position` (bytes from the file's start) say where,
    as far as the raiser knows: a decoder that sees only bytes leaves `file` to its caller, who
    completes the error with `located`.
    """

    kafka_code = 2  # CORRUPT_MESSAGE

    def __init__(self, reason: str, *, file: str | None = None, position: int | None = None):
        self.reason = reason
        self.file = file
        self.position = position
        where = "" if file is None else f"{file}: "
        where += "" if position is None else f"position {position}: "
        super().__init__(where + reason)

    def located(self, file: str, base_position: int = 0) -> CorruptionError:
        """The same damage, named by `file`; a known position is moved by `base_position` bytes."""
        position = None if self.position is None else self.position + base_position
        return type(self)(self.reason, file=self.file or file, position=position)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Spark); keyword arguments do not survive by default.
        return (_corruption_error, (type(self), self.reason, self.file, self.position))


def _corruption_error(
    kind: type[CorruptionError], reason: str, file: str | None, position: int | None
) -> CorruptionError:
    return kind(reason, file=file, position=position)


class RemoteProtocolError(StratalogError):
    """A peer sent bytes that are not the protocol."""

    kafka_code = 42  # INVALID_REQUEST


class LogOfflineError(StratalogError):
    """The log takes no writes: it is quarantined (RCV-7), or its disk has failed (LOG-7).

    What is whole in it can still be read. The message says what brings it back.
    """

    kafka_code = 56  # KAFKA_STORAGE_ERROR


class RoundAbortedError(StratalogError):
    """A round of cleaning was told to stop, and has; the log is as it was (CLN-4)."""


class LogChangedError(StratalogError):
    """A log of another process changed while it was being read; opening it again helps (LOG-12)."""

    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER, which clients answer by trying again


class StorageIOError(StratalogError):
    """The disk or the operating system failed."""

    kafka_code = 56  # KAFKA_STORAGE_ERROR


class StorageFullError(StorageIOError):
    """No space left, or a quota is used up."""


class TooManyFilesError(StorageFullError):
    """The process (EMFILE) or the machine (ENFILE) may open no more files; the disk works.

    Like a full disk nobody's damage: what was to be opened was not, nothing was changed, and it
    goes on when some files are closed. The message ends with what mends it, e.g. `ulimit -n`.
    """
