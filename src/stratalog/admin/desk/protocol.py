"""What can be administered: the operations of `Desk`, their arguments and their documents.

Arguments are plain values, answers are documents: dicts of JSON's values, which `--format json`
prints and REST sends as they are. Refusals are errors of `base.errors`, the same from every desk.

Common to all documents
    ok            false if anything in it has an error
    error         of an item: None, or {"type": "UnknownPartitionError", "kafka_code": 3,
                  "message": "..."}; the others of the list are done or told all the same
    applied       of what changes something: whether it did. False for a dry run, which says the
                  same otherwise, and where `ok` is false
    *_ms          ms since 1970 UTC, or a span of ms; *_bytes: bytes; None: not known, or there is
                  none
    warnings      sentences

Invariants
- I1  A refusal changes nothing; what is acknowledged is durable.
- I2  A dry run refuses what the run would refuse, but for what only wants to be confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from stratalog.base.errors import StratalogError
from stratalog.segment.names import MAX_TOPIC_CHARACTERS

Document = dict[str, Any]
EntityType = Literal["topic", "prefix", "broker"]
ENTITY_TYPES = ("topic", "prefix", "broker")

MAX_PARTITIONS = 10_000
"""Of one call, as in Kafka's controller ("Excessively large number of partitions per request")."""


_SHOWN_CHARACTERS = 200
_MESSAGE_CHARACTERS = 1000
_TAIL_CHARACTERS = 300


def shown(value: object) -> str:
    """A value that was given, for a message: one that is longer than any name is cut to 200
    characters, and its length told."""
    text = str(value)
    if len(text) <= MAX_TOPIC_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


def short_message(text: str) -> str:
    """A message, whatever value stands in it: of one that is longer than 1,000 characters the
    middle is left out, as the reason stands at one of its ends."""
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]} ... {text[-_TAIL_CHARACTERS:]}"


def error_document(error: StratalogError | FileNotFoundError) -> Document:
    """An item's `error`."""
    return {
        "type": type(error).__name__,
        "kafka_code": getattr(error, "kafka_code", -1),
        "message": short_message(str(error)),
    }


class Desk(Protocol):
    """Who administers log directories. `OwnDesk`: of a service in this process; `BareDesk`: of
    directories that are opened for one call; the server's client: by REST."""

    @property
    def place(self) -> str:
        """Where it works, for people: `opened data`, `by the server at http://127.0.0.1:8642`."""
        ...

    # -- topics -----------------------------------------------------------------------------------

    def list_topics(self) -> Document:
        """All topics, by name.

        topics[]: name, partitions (count), internal, state (`ready`; `creating`, `adding`,
        `deleting`: begun and not ended), cleanup_policy[], compaction_mode (`inplace`, `ledger`),
        size_bytes, overrides (settings of its own), failing (partitions that take no writes).
        """
        ...

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
    ) -> Document:
        """Make a topic: topic, created (False: it was there), partitions (count), configs
        (name -> text), warnings[].

        Raises `PartitionExistsError` unless `if_not_exists`, `UsageError` for a name or a number
        that cannot be, `InvalidConfigError`, `StorageIOError`.
        """
        ...

    def describe_topic(self, name: str) -> Document:
        """One topic: topic, internal, state, partition_count, cleanup_policy[], compaction_mode,
        size_bytes, configs (what is set at the topic: name -> text),

        partitions[]: topic, partition, directory, log_start_offset, log_end_offset,
        last_stable_offset, cleaner_checkpoint, segments (count), size_bytes, state (`online`,
        `quarantined`, `offline`, `missing`), error.

        Raises `UnknownPartitionError`.
        """
        ...

    def describe_storage(self, name: str, partitions: Sequence[int] | None = None) -> Document:
        """One topic's segments: topic, size_bytes,

        partitions[]: as in `compaction_status`, and log_start_offset, log_end_offset,
        last_stable_offset, size_bytes, index_bytes,
        segments[]: base_offset, end_offset (exclusive), size_bytes, index_bytes, modified_ms,
        section (`clean`, `cleanable`, `uncleanable`, `active`).

        Raises `UnknownPartitionError`.
        """
        ...

    def delete_topic(
        self, name: str, *, if_exists: bool = False, dry_run: bool = False
    ) -> Document:
        """Delete a topic with all it has: topic, deleted (False: it was not there), freed_bytes,
        delay_ms (after which the files are unlinked: file.delete.delay.ms; None: at once),

        partitions[]: as in `describe_topic`.

        Raises `UnknownPartitionError` unless `if_exists`, `LogOfflineError`, `StorageIOError`.
        """
        ...

    def add_partitions(self, name: str, count: int, *, dry_run: bool = False) -> Document:
        """Have `count` partitions from now on: topic, before, partitions (count), added[]
        (numbers), warnings[].

        Raises `UnknownPartitionError`, `UsageError` (not more than there are), `StorageIOError`.
        """
        ...

    # -- settings ---------------------------------------------------------------------------------

    def describe_configs(
        self,
        entity_type: EntityType,
        name: str | None = None,
        *,
        all: bool = False,  # noqa: A002
    ) -> Document:
        """Settings as they are in force at a topic, at a prefix of topic names, at the broker:
        entity_type, name,

        configs[]: name, value, default (text or None), type, rule, doc, effect (when a change
        counts), source (Kafka's name of the level), place (the prefix, if it is one's), is_set
        (here, at this entity), is_dynamic (can be changed here at run time), has_effect, ours,
        synonyms[]: source, name, value, place; what counts first.

        Without `all` only those that are set at this entity. At the broker, `name` is the broker's
        name of a setting. Raises `UnknownPartitionError`, `UsageError`.
        """
        ...

    def alter_configs(
        self,
        entity_type: EntityType,
        name: str | None,
        set: Mapping[str, str] | None = None,  # noqa: A002
        delete: Sequence[str] = (),
        *,
        dry_run: bool = False,
        confirm: bool = False,
    ) -> Document:
        """Set and unset settings, all or none: entity_type, name,

        changes[]: name, before, after (values in force), source, effect (when it counts); one for
        each name, also where nothing changes,
        aborted[]: `topic-partition` whose running clean was aborted, as `compact` went (CFG-2),
        given_up[]: what goes with the ledgers of topics that leave ledger mode: topic, partition,
        ledger (its number; None: damaged), start_offset, end_offset (exclusive) of what only it has
        (LDG-1),
        warnings[].

        To unset what is not set is no error. Raises `ConfirmationNeededError` where something is
        given up, unless `confirm`, which a dry run shows instead; `InvalidConfigError` with Kafka's
        reason, `UnknownPartitionError`, `UsageError`, `StorageIOError`.
        """
        ...

    # -- records and directories ------------------------------------------------------------------

    def delete_records(
        self, offsets: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Document:
        """Delete the records below offsets. `offsets`: each {"topic", "partition", "offset"}; the
        offset is a number, -1 or "end" (the log end), or "@MS" (the first record from then on).

        partitions[]: topic, partition, directory, log_start_offset (before), log_end_offset,
        offset (the log start after), records (at most), hidden_bytes, freed_bytes (whole segments),
        segments (that go), error,
        totals: records, hidden_bytes, freed_bytes,
        warnings[]: where a ledger goes on showing what is deleted here.

        With an error in the plan nothing is done. Raises `UsageError` for malformed offsets.
        """
        ...

    def describe_log_dirs(self, topics: Sequence[str] | None = None) -> Document:
        """The log directories, with the partitions of `topics` (None: of all).

        log_dirs[]: path, error, total_bytes, usable_bytes (of the disk; None: not known),
        size_bytes (of the partitions listed), partitions[]: topic, partition, size_bytes,
        offset_lag (0), is_future (False).

        Raises `UnknownPartitionError` for a topic that is not there.
        """
        ...

    # -- compaction -------------------------------------------------------------------------------

    def compact(self, topic: str, partition: int | None = None) -> Document:
        """Compact a topic's partitions, whatever their dirty ratio, the active segment included.

        Where a cleaner runs this starts them and answers at once; else they are done when it
        answers. A partition that is being compacted, or waits for it, goes on: what is answered is
        its status. As `compaction_status`, and `request` of each partition: `started`, `running`
        (already), `done`, or None with an error.

        Raises `UnknownPartitionError`.
        """
        ...

    def cancel(self, topic: str, partition: int | None = None) -> Document:
        """Stop rounds that run and withdraw those that wait: partitions[] as of `pause`, `changed`:
        there was one. The log stays as it was. Raises `UnknownPartitionError`."""
        ...

    def compaction_status(self, topic: str | None = None, partition: int | None = None) -> Document:
        """now_ms,

        partitions[]: topic, partition, directory, mode (`inplace`, `ledger`), state (`never`,
        `waiting`, `running`, `succeeded`, `failed`, `aborted`), phase, done_bytes, total_bytes,
        eta_ms (while it runs), started_ms, ended_ms, trigger, cause (of the last or running one),
        is_compacted, checkpoint, first_dirty, first_uncleanable, bytes (clean, cleanable,
        uncleanable, active, total), dirty_ratio, min_dirty_ratio, next_expiry_ms, paused, failure
        (cause, tries, failed_ms, retry_at_ms), quarantine (cause), backlog_bytes, threshold_bytes,
        ledger (number, horizon, start_offset, records, keys (that it holds; None: not known),
        size_bytes, created_ms; None without),
        last_run (as in `history`), error.

        Raises `UnknownPartitionError`.
        """
        ...

    def explain(self, topic: str | None = None, partition: int | None = None) -> Document:
        """Why partitions are or are not compacted: now_ms, partitions[]: topic, partition,
        sentence, reason (why it is chosen, or None), obstacle (why not, or None), place (in the
        queue, from 1 on), values (what decides), error. Raises `UnknownPartitionError`."""
        ...

    def history(
        self, topic: str | None = None, partition: int | None = None, limit: int | None = None
    ) -> Document:
        """The newest rounds: partitions[]: topic, partition, history[] (oldest first; fields of
        `clean.history.Entry`, and bytes_saved), error. Raises `UnknownPartitionError`;
        `UsageError` for a `limit` below 1."""
        ...

    def pause(self, topic: str, partition: int | None = None) -> Document:
        """No compaction of these, until `resume`, also after a restart: partitions[]: topic,
        partition, changed, paused, failing, error. Raises `UnknownPartitionError`."""
        ...

    def resume(self, topic: str, partition: int | None = None) -> Document:
        """End a pause; as `pause`."""
        ...

    def retry(self, topic: str | None = None, partition: int | None = None) -> Document:
        """Do not wait for the back-off of partitions in which cleaning has failed; as `pause`."""
        ...

    def cleaner_status(self) -> Document:
        """The cleaner: now_ms, running, threads (count),

        activities[]: thread, topic, partition, trigger, started_ms, phase, done_bytes, total_bytes,
        eta_ms,
        queue[]: topic, partition, reason, place, dirty_ratio, sentence,
        uncleanable[]: topic, partition, failure, quarantine,
        paused[]: topic, partition,
        errors[]: topic, partition, error,
        totals: partitions, uncleanable_partitions, uncleanable_bytes, max_dirty_ratio, bytes.
        """
        ...

    def server_info(self) -> Document:
        """Who answers: kind (`service`, `directory`), version, process_id, log_dirs[] (paths),
        topics, partitions (counts), offline (path -> reason), cleaner (running, threads), and what
        a server adds."""
        ...
