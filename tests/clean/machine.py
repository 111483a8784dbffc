"""A store with its cleaner on a simulated disk, as the state machine drives it, and its settings.

`Service` opens the parts by the settings of each topic (`Config`), and looks at what the files of a
log hold. `tests.clean.machine_steps` has what is done to it and what must hold after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.engine import Engine, OnProgress
from stratalog.clean.job import CleanedPartition, CleaningJob, Order
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.manager import CleanerManager
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition
from stratalog.segment.segment import Segment
from tests.clean.machine_model import LogModel, Seen, SeenSegment, foreign
from tests.clean.machine_rules import Rules
from tests.naive.records import parse_log
from tests.sim.disk import SimDisk

NOW = 1_700_000_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
DIR = "/data"
HEADER = "version"
STORE = StoreSettings(recovery_threads=1)
EXPIRATION_MS = 5 * DAY
KEYS = [b"%c" % (97 + i) for i in range(9)]


class Wrong(AssertionError):  # noqa: N818  (of the product, not an error of the test)
    """An invariant does not hold."""


@dataclass(frozen=True)
class Config:
    """A topic's settings, of which both the log's and the cleaner's are made."""

    policy: tuple[str, ...] = ("compact",)
    order: Order = Order.OFFSET
    min_lag_ms: int = 0
    max_lag_ms: int = INT64_MAX
    delete_retention_ms: int = DAY
    ratio: float = 0.3
    by_segment: bool = False
    retain_keyless: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    segment_bytes: int = 700

    def of_log(self) -> LogSettings:
        return LogSettings(
            cleanup_policy=self.policy,
            segment_bytes=self.segment_bytes,
            index_interval_bytes=200,
            message_timestamp_after_max_ms=INT64_MAX,
            max_compaction_lag_ms=self.max_lag_ms,
            producer_expiration_ms=EXPIRATION_MS,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
        )

    def of_cleaner(self) -> TopicCleaning:
        return TopicCleaning(
            "compact" in self.policy,
            "delete" in self.policy,
            self.ratio,
            self.min_lag_ms,
            self.max_lag_ms,
            self.delete_retention_ms,
            self.segment_bytes,
            index_interval_bytes=200,
            retain_keyless=self.retain_keyless,
            order=self.order,
            version_header=HEADER if self.order is Order.HEADER else "",
            by_segment=self.by_segment,
        )

    def rules(self, now_ms: int) -> Rules:
        versions = {
            "compaction.strategy": self.order.value,
            "compaction.strategy.header": HEADER,
        }
        return Rules(
            now_ms,
            frozenset(self.policy),
            versions,
            self.min_lag_ms,
            self.delete_retention_ms,
            self.by_segment,
            self.retain_keyless,
            self.retention_ms,
            self.retention_bytes,
        )


CHOICES: dict[str, list[Any]] = {
    "policy": [("compact",), ("compact", "delete"), ("delete",), ("compact",)],
    "order": [Order.OFFSET, Order.TIMESTAMP, Order.HEADER],
    "min_lag_ms": [0, HOUR, DAY, 0],
    "max_lag_ms": [INT64_MAX, HOUR, DAY],
    "delete_retention_ms": [0, HOUR, DAY, MINUTE],
    "ratio": [0.0, 0.1, 0.3, 0.5, 0.9],
    "by_segment": [False, True, False],
    "retain_keyless": [False, True],
    "retention_ms": [-1, HOUR, DAY, 7 * DAY],
    "retention_bytes": [-1, 0, 1500, 4000],
    "segment_bytes": [700, 400, 1 << 20],
}
JUMPS = [1, MINUTE, HOUR, HOUR + 1, DAY, DAY + 1, 3 * DAY, 6 * DAY, -MINUTE, -HOUR, -2 * DAY]
SKEWS = [0, 0, 0, 0, -1, -HOUR, -DAY, HOUR]


class Injected(CorruptionError):  # noqa: N818
    """A round that fails because a test wants it to."""


class Meddling:
    """An engine that does something before it begins, or after a while."""

    def __init__(self, engine: Engine, before: Callable[[], None]):
        self._engine = engine
        self._before = before

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        self._before()
        return self._engine.clean(jobs, writes=writes, on_progress=on_progress)


class Service:
    """See the module. `keys` are its partitions; `meddling` is done in the next round."""

    def __init__(self, partitions: int = 1, max_keys: int | None = None):
        self.clock = FixedClock(NOW)
        self.disk = SimDisk(self.clock)
        self.disk.make_directory(DIR)
        self.disk.sync_all()
        self.keys = [TopicPartition(f"topic{number}", 0) for number in range(partitions)]
        self.configs = {key: Config() for key in self.keys}
        self.models = {key: LogModel() for key in self.keys}
        self.settings = CleanerSettings(
            max_keys=max_keys, dedupe_buffer_bytes=1 << 20, io_buffer_bytes=1 << 16
        )
        self.meddling: Callable[[], None] | None = None
        self.seen: dict[TopicPartition, Seen] = {}
        self._topics: dict[TopicPartition, tuple[Config, TopicCleaning]] = {}
        self._parsed: dict[TopicPartition, dict[object, SeenSegment]] = {}
        self.open()
        for key in self.keys:
            self.store.create(key)
            self.seen[key] = self.look(key)

    # -- the service ------------------------------------------------------------------------------

    def open(self) -> None:
        self._parsed.clear()
        self.store = LogStore.open(
            [DIR], lambda key: self.configs[key].of_log(), self.disk, self.clock, STORE
        )
        self.manager = CleanerManager(
            self.store, self._topic_of, self.disk, self.clock, self.settings
        )
        self.store.attach(self.manager)
        self.cleaner = Cleaner(
            self.store,
            self.manager,
            self._topic_of,
            self.disk,
            self.clock,
            self.settings,
            self._engine_of,
        )

    def _topic_of(self, key: TopicPartition) -> TopicCleaning:
        """The same object as long as nothing changes."""
        config = self.configs[key]
        known = self._topics.get(key)
        if known is None or known[0] is not config:
            known = self._topics[key] = config, config.of_cleaner()
        return known[1]

    def _engine_of(self, _: CleaningJob, filesystem: FileSystem) -> tuple[str, Engine]:
        engine: Engine = LocalEngine(filesystem, threads=1)
        meddling, self.meddling = self.meddling, None
        return "local", engine if meddling is None else Meddling(engine, meddling)

    def log(self, key: TopicPartition) -> PartitionLog:
        return self.store.get(key)

    def rules(self, key: TopicPartition) -> Rules:
        return self.configs[key].rules(self.clock.now_ms())

    # -- looking ----------------------------------------------------------------------------------

    def look(self, key: TopicPartition) -> Seen:
        """What the log holds now. A file is parsed again when it may have changed."""
        view = self.log(key).view
        known = self._parsed.get(key, {})
        parsed: dict[object, SeenSegment] = {}
        for segment in view.segments:
            mark = (segment.log, segment.size_bytes, segment.modified_ms)
            parsed[mark] = known.get(mark) or self._parse(key, segment)
        self._parsed[key] = parsed
        return Seen(
            tuple(parsed.values()),
            view.log_start_offset,
            view.log_end_offset,
            view.last_stable_offset,
            self.store.cleaner_point(key),
        )

    def _parse(self, key: TopicPartition, segment: Segment) -> SeenSegment:
        content = self.disk.content(segment.log.path)[: segment.size_bytes]
        batches = tuple(parse_log(content))
        size_bytes = sum(len(batch.raw) for batch in batches)
        self.require(size_bytes == segment.size_bytes, f"{segment.log.path} ends in a batch")
        problem = foreign(self.models[key], batches)
        self.require(problem is None, f"{key}: {problem}")
        return SeenSegment(segment.base_offset, size_bytes, segment.modified_ms, batches)

    @staticmethod
    def require(holds: bool, problem: str) -> None:
        if not holds:
            raise Wrong(problem)
