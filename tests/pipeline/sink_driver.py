"""A Spark driver and its tasks without Spark: stages batches and commits them, on any file system.

Each record says which batch, attempt, task and place it is of, so that a log tells whether it holds
every row of a batch once, and of one attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stratalog.base.clock import Clock, FixedClock
from stratalog.base.filesystem import FileSystem
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.pipeline import sink_commit
from stratalog.pipeline.sink_commit import Batch, Rules
from stratalog.pipeline.staging import PREFIX, SUFFIX, Staged, StagedWriter, writer_key
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.names import TopicPartition

NOW = 1_700_000_000_000
DIR = "/data"
Counts = Mapping[str, int]
# With a second thread the order of calls would be a matter of luck.
STORE = StoreSettings(recovery_threads=1)


@dataclass
class Driver:
    """One query, or one job, in a directory. `tasks`: of each batch; `batches`: frames a task
    writes to each partition, of `records` records; `old_ms`: how old the rows are."""

    filesystem: FileSystem
    log_dir: str = DIR
    writer: str = "query"
    is_once: bool = False
    tasks: int = 2
    batches: int = 2
    records: int = 2
    old_ms: int = 0
    settings: LogSettings = LogSettings(index_interval_bytes=64)  # noqa: RUF009  (a value)
    clock: Clock = field(default_factory=lambda: FixedClock(NOW))

    @property
    def rules(self) -> Rules:
        return Rules(lambda _: self.settings, STORE)

    def batch(self, version: int) -> Batch:
        return Batch(self.writer, version, self.is_once)

    def stage(self, version: int, counts: Counts, attempt: int = 0) -> list[Staged]:
        """What the tasks of a batch write: rows for every partition of the topics in `counts`."""
        return [self._task(version, counts, attempt, task) for task in range(self.tasks)]

    def _task(self, version: int, counts: Counts, attempt: int, task: int) -> Staged:
        unique = attempt * 100 + task
        name = f"{PREFIX}{writer_key(self.writer)}-{version}-{unique:032x}{SUFFIX}"
        writer = StagedWriter(self.filesystem, self.log_dir, name)
        for number in range(self.batches):
            for topic, partitions in counts.items():
                for partition in range(partitions):
                    rows = [
                        self.row(version, attempt, task, number * self.records + i)
                        for i in range(self.records)
                    ]
                    records = [
                        NewRecord(b"k%d" % (i % 2), row, self.clock.now_ms() - self.old_ms)
                        for i, row in enumerate(rows)
                    ]
                    data = build_batch(records)
                    writer.add(TopicPartition(topic, partition), data, len(records))
        return writer.finish(counts)

    def row(self, version: int, attempt: int, task: int, place: int) -> bytes:
        return f"{self.writer} {version} {attempt} {task} {place}".encode()

    def commit(self, version: int, files: list[Staged]) -> int:
        return sink_commit.commit(
            self.log_dir, self.batch(version), files, self.rules, self.filesystem, self.clock
        )

    def write(self, version: int, counts: Counts, attempt: int = 0) -> int:
        """Stage and commit."""
        return self.commit(version, self.stage(version, counts, attempt))

    def expected(self, version: int, attempt: int) -> list[bytes]:
        """The rows of a batch in each partition, in their order."""
        return [
            self.row(version, attempt, task, place)
            for task in range(self.tasks)
            for place in range(self.batches * self.records)
        ]


def stored_rows(
    filesystem: FileSystem, settings: LogSettings, log_dir: str = DIR
) -> dict[TopicPartition, list[bytes]]:
    """The values of every partition, by its offsets."""
    with LogStore.open([log_dir], lambda _: settings, filesystem, FixedClock(NOW), STORE) as store:
        assert not store.failed, store.failed
        found = {}
        for key in store.partitions():
            log = store.get(key)
            assert log.quarantine is None, log.quarantine
            records = log.read_records(log.log_start_offset)
            found[key] = [record.value or b"" for record in records]
        return found


def attempts_of(rows: Iterable[bytes], driver: Driver, version: int) -> set[int]:
    """The attempts whose rows of a batch are there: each row once, all of one attempt."""
    ours = [row for row in rows if row.decode().split()[:2] == [driver.writer, str(version)]]
    attempts = {int(row.split()[2]) for row in ours}
    if ours:
        assert len(attempts) == 1, f"batch {version} is of the attempts {attempts}"
        wanted = driver.expected(version, min(attempts))
        assert ours == wanted, f"batch {version}: {len(ours)} rows, not {len(wanted)}: {ours}"
    return attempts


def left_over(filesystem: FileSystem, log_dir: str = DIR) -> list[str]:
    """Files of the sink that should not lie there once nothing is under way."""
    names = [name for name in filesystem.list_directory(log_dir) if name.startswith(PREFIX)]
    return [name for name in names if not name.endswith(".state")]
