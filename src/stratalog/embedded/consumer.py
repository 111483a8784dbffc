"""A consumer: reads on from where it is, or from where its group stopped, as Kafka's do.

    assign / subscribe ─► poll ─► records, position moves ─► commit ─► (restart) ─► poll

A consumer reads a partition in stretches. A stretch sees one moment (`sight`): the files of the log
and, with `read_compacted`, one ledger, pinned. At its end the next one begins there, with whatever
ledger there is by then. So a ledger that is switched in between loses nothing and repeats nothing:
what the new one holds from there on is the latest of its key, and what lies before has been read.

Invariants
- C1  Offsets that a partition is read at increase, but for a seek.
- C2  An offset that was compacted away stands for the next that is there; one that lies outside of
      the log is settled by `auto_offset_reset`.
- C3  A stretch ends when the topic is deleted: one of its name that is made then is read anew, as
      by a group that has committed nothing. What was committed of the old one does not count.
- C4  `position` is the offset that is read next: behind the last record that `poll` has answered,
      and behind what was there to be passed over at the end of a stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

from stratalog.base.clock import Clock
from stratalog.base.errors import OffsetOutOfRangeError, UnknownPartitionError, UsageError
from stratalog.embedded import words
from stratalog.embedded.assigned import Assigned, Stretch
from stratalog.embedded.offsets import Committed, OffsetsFile
from stratalog.embedded.records import Record, RecordForm
from stratalog.embedded.sight import Sight, View, records_in
from stratalog.embedded.topic import Topic
from stratalog.pipeline.as_of import AsOf
from stratalog.segment.names import MAX_OFFSET, MAX_TOPIC_CHARACTERS, TopicPartition

_LOOK_AGAIN_MS = 5
_MOST_RECORDS = 1 << 31


class ResetPolicy(Enum):
    """Where to begin where nothing is committed, or the offset is gone."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What a consumer was asked for."""

    reset: ResetPolicy
    is_committed: bool
    read_compacted: bool
    as_of: AsOf | None

    @property
    def view(self) -> View:
        return View.COMPACTED if self.read_compacted else View.RAW


class Consumer:
    """Use `Store.consumer`. One thread's own; a context manager."""

    def __init__(
        self,
        topic_of: Callable[[str], Topic],
        options: ConsumerOptions,
        offsets: OffsetsFile | None,
        clock: Clock,
    ):
        self._topic_of = topic_of
        self._options = options
        self._offsets = offsets
        self._clock = clock
        self._subscribed: list[Topic] = []
        self._assigned: dict[TopicPartition, Assigned] = {}
        self._turn = 0
        self._is_closed = False

    # -- what is read -----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these (topic, partition), and no others. Raises `UnknownPartitionError`."""
        self._check_open()
        wanted: dict[TopicPartition, Topic] = {}
        for given in words.each_of(partitions, "partitions are a list of (topic, number)"):
            topic, key = self._found(given)
            wanted[key] = topic
        self._subscribed = []
        self._set(wanted)

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read all partitions of these topics, also those that are added later. Raises
        `UnknownPartitionError`."""
        self._check_open()
        found = [self._topic_of(name) for name in words.names_of(topics)]
        self._set(_partitions_of(found))
        self._subscribed = found

    def assignment(self) -> list[tuple[str, int]]:
        """What is read."""
        return [(key.topic, key.partition) for key in self._assigned]

    def _found(self, given: object) -> tuple[Topic, TopicPartition]:
        if not isinstance(given, tuple) or len(given) != 2:
            raise UsageError(f"a partition is (topic, number), not {words.short(given)}")
        topic = self._topic_of(given[0])
        return topic, topic.key(given[1])

    def _set(self, wanted: Mapping[TopicPartition, Topic]) -> None:
        for key, one in self._assigned.items():
            if key not in wanted:
                one.leave()
        before = self._assigned
        self._assigned = {
            key: before.get(key) or Assigned(topic, key) for key, topic in wanted.items()
        }

    def _of(self, topic: str, partition: int) -> Assigned:
        self._check_open()
        key = words.place_of(topic, partition)
        found = self._assigned.get(key)
        if found is None:
            told = f"{words.one_line(topic)[:MAX_TOPIC_CHARACTERS]}-{partition}"
            raise UsageError(f"{told} is not assigned to this consumer")
        return found

    # -- where it is ------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from `offset`; what is not there is settled at the next `poll` (C2)."""
        one = self._of(topic, partition)
        position = words.number_of("offset", offset, 0, MAX_OFFSET)
        one.renew()
        one.leave()
        one.position = position

    def seek_to_beginning(self, topic: str | None = None, partition: int | None = None) -> None:
        """Read everything that is there again; of one partition, or of all that are assigned."""
        for one in self._chosen(topic, partition):
            one.renew()
            with closing(self._look(one)) as sight:
                one.leave()
                one.position = sight.parts.log_start_offset

    def seek_to_end(self, topic: str | None = None, partition: int | None = None) -> None:
        """Read what comes from now on."""
        for one in self._chosen(topic, partition):
            one.renew()
            with closing(self._look(one)) as sight:
                one.leave()
                one.position = sight.end(is_committed=self._options.is_committed)

    def _chosen(self, topic: str | None, partition: int | None) -> list[Assigned]:
        self._check_open()
        if topic is None and partition is None:
            return [*self._assigned.values()]
        if topic is None or partition is None:
            raise UsageError("give a topic and a partition, or neither")
        return [self._of(topic, partition)]

    def position(self, topic: str, partition: int) -> int:
        """The offset that is read next. Raises `OffsetOutOfRangeError` where nothing says it and
        `auto_offset_reset` is none."""
        return self._place(self._of(topic, partition))

    def _place(self, one: Assigned) -> int:
        one.renew()
        if one.position is None:
            with closing(self._look(one)) as sight:
                one.position = self._settled(one, sight)
        return one.position

    # -- reading ----------------------------------------------------------------------------------

    def poll(self, max_records: int = 500, timeout: float = 0.0) -> list[Record]:
        """The next records, in the order of each partition; those that are assigned take turns.

        If there is none, waits up to `timeout` seconds for one. Raises `OffsetOutOfRangeError` (see
        `position`), `CorruptionError`, `UnknownPartitionError` (the topic was deleted).
        """
        self._check_open()
        most = words.number_of("max_records", max_records, 1, _MOST_RECORDS)
        left_ms = words.wait_ms_of("timeout", timeout)
        if not self._assigned:
            raise UsageError("nothing is assigned: call subscribe or assign first")
        while True:
            found = self._taken(most)
            if found or left_ms <= 0:
                return found
            step_ms = min(_LOOK_AGAIN_MS, left_ms)
            self._clock.sleep_ms(step_ms)
            left_ms -= step_ms

    def _taken(self, most: int) -> list[Record]:
        if self._subscribed:
            self._set(_partitions_of(self._subscribed))
        found: list[Record] = []
        assigned = [*self._assigned.values()]
        for one in assigned:
            self._place(one)  # `latest` means now, whoever's turn it is
        first = self._turn % len(assigned)
        for one in assigned[first:] + assigned[:first]:
            found += self._next_of(one, most - len(found))
            if len(found) >= most:
                break
        self._turn += 1
        return found

    def _next_of(self, one: Assigned, most: int) -> list[Record]:
        if most <= 0:
            return []
        taken: list[Record] = []
        if one.stretch is not None and one.topic.log_at(one.key) is not one.stretch.log:
            one.leave()
        if one.stretch is None:
            if one.end is not None and one.position == one.end:
                return []  # the ledger may have gone by now: nobody needs it any more
            is_committed = self._options.is_committed
            if one.position == one.topic.ends_at(one.key, is_committed=is_committed):
                return []  # as nearly always, if it is asked again and again
            one.stretch = self._begun(one)
        stretch = one.stretch
        try:
            while len(taken) < most:
                more = stretch.take(most - len(taken))
                if not more:
                    one.leave()
                    one.position = max(stretch.end_offset, self._place(one))
                    if self._is_fixed(stretch.end_offset):
                        one.end = stretch.end_offset
                    break
                taken += more
                one.position = more[-1].offset + 1
        except BaseException:
            one.leave()
            raise
        return taken

    def _is_fixed(self, end_offset: int) -> bool:
        """Whether nothing comes behind it, whatever is appended."""
        as_of = self._options.as_of
        return as_of is not None and (as_of.ledger is not None or as_of.offset == end_offset)

    def _begun(self, one: Assigned) -> Stretch:
        log = one.topic.log_at(one.key)
        sight = self._look(one)
        try:
            start = one.position = self._settled(one, sight)
            end = sight.end(is_committed=self._options.is_committed)
            rows = records_in(
                sight,
                RecordForm(),
                latest=None,
                is_committed=self._options.is_committed,
                start=start,
            )
            return Stretch(log, sight, rows, end)
        except BaseException:
            sight.close()
            raise

    def _look(self, one: Assigned) -> Sight:
        return one.topic.look(one.key, self._options.view, self._options.as_of)

    def _settled(self, one: Assigned, sight: Sight) -> int:
        """Where to read, given what there is."""
        low, high = sight.parts.log_start_offset, sight.parts.log_end_offset
        wanted = one.position
        if wanted is None and self._offsets is not None:
            committed = self._offsets.read().get(one.key)
            if committed is not None and committed.is_of(one.topic_id):
                wanted = committed.offset
        if wanted is not None and low <= wanted <= high:
            return wanted
        if self._options.reset is ResetPolicy.NONE:
            reason = (
                "nothing is committed"
                if wanted is None
                else f"offset {wanted} lies outside [{low}, {high}]"
            )
            raise OffsetOutOfRangeError(f"{one.key}: {reason}, and auto_offset_reset is none")
        if self._options.reset is ResetPolicy.EARLIEST:
            return low
        return max(low, sight.end(is_committed=self._options.is_committed))

    # -- commit -----------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Let the group go on from `offsets`, (topic, partition) -> the offset to be read next;
        None: from where this consumer is. Durable when it returns.

        Raises `UsageError` without a group, `UnknownPartitionError`, `CorruptionError` (what was
        committed is damaged), `StorageIOError`.
        """
        file = self._committing()
        if offsets is None:
            file.commit(
                {
                    key: Committed(one.position, one.topic_id)
                    for key, one in self._assigned.items()
                    if one.position is not None
                }
            )
            return
        changes = {}
        what = "offsets are a mapping of (topic, partition) to an offset"
        for given, offset in words.mapping_of(offsets, what).items():
            topic, key = self._found(given)
            number = words.number_of("offset", offset, 0, MAX_OFFSET)
            changes[key] = Committed(number, topic.topic_id(key))
        file.commit(changes)

    def committed(self, topic: str, partition: int) -> int | None:
        """What the group has committed of the topic that is there now; None: nothing. Raises as
        `commit`."""
        key = words.place_of(topic, partition)
        found = self._committing().read().get(key)
        try:
            if found is not None and found.is_of(self._topic_of(topic).topic_id(key)):
                return found.offset
        except UnknownPartitionError:
            pass  # nothing of its name is there to go on in
        return None

    def _committing(self) -> OffsetsFile:
        self._check_open()
        if self._offsets is None:
            raise UsageError("this consumer has no group to commit to: consumer(group=...)")
        return self._offsets

    # -- the end ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the consumer is closed")

    def close(self) -> None:
        """Let go of files and ledgers; nothing is committed by that. Closing twice is fine."""
        self._is_closed = True
        for one in self._assigned.values():
            one.leave()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _partitions_of(topics: Iterable[Topic]) -> dict[TopicPartition, Topic]:
    return {TopicPartition(t.name, number): t for t in topics for number in t.partitions}
