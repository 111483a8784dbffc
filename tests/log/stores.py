"""What the tests of the log store share: stores on a simulated disk, and what lies on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import FileSystem
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from tests.log.helpers import NOW
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call, DirectoryNode, Node, clean_file

A, B, C, D = (TopicPartition("orders", partition) for partition in range(4))
MARKER = ".kafka_cleanshutdown"
STARTS = "log-start-offset-checkpoint"
POINTS = "recovery-point-offset-checkpoint"
ENDS = "replication-offset-checkpoint"
_DEFAULTS = StoreSettings()


def open_store(
    filesystem: FileSystem,
    dirs: Sequence[str] = ("/data",),
    clock: FixedClock | None = None,
    *,
    store: StoreSettings = _DEFAULTS,
    on_progress: Callable[[Any], None] = lambda _: None,
    **changes: Any,
) -> LogStore:
    """A store whose logs all have the settings `changes`."""
    settings = LogSettings(**changes)
    return LogStore.open(
        dirs, lambda _: settings, filesystem, clock or FixedClock(NOW), store, on_progress
    )


def put(log: PartitionLog, *values: str, timestamp: int = NOW) -> None:
    """Append a batch of one record for each value."""
    for value in values:
        log.append_records([NewRecord(value.encode(), b"v", timestamp)])


def keys(log: PartitionLog) -> list[str]:
    """What `put` appended, as far as it can be read."""
    return [(record.key or b"").decode() for record in log.read_records(log.log_start_offset)]


def after_cut(disk: SimDisk) -> SimDisk:
    """The disk after a power cut that left nothing but what had been synced."""
    nodes: dict[int, Node] = {}
    for number, node in disk.nodes.items():
        if isinstance(node, DirectoryNode):
            nodes[number] = DirectoryNode(dict(node.durable), dict(node.durable), (), NOW)
        else:
            nodes[number] = clean_file(node.durable, node.modified_ms)
    return SimDisk.of(nodes, disk)


def there(disk: SimDisk, top: str = "/") -> list[str]:
    """The paths of all files below `top`."""
    return [path for path, content in disk.tree(top).items() if content is not None]


def entries(content: bytes) -> str:
    """A checkpoint's text without the blanks that trail a line (they are our checksum)."""
    return "".join(line.rstrip() + "\n" for line in content.decode().splitlines())


def changes(disk: SimDisk, since: int = 0) -> list[str]:
    """The calls that changed something, "kind path", from the `since`th on."""
    return [f"{call.kind} {call.path}" for call in disk.trace[since:]]


def failing(wanted: Callable[[Call], bool], error: Exception) -> Callable[[Call], None]:
    """A hook of a `SimDisk`: the calls that are `wanted` raise."""

    def hook(call: Call) -> None:
        if wanted(call):
            raise error

    return hook


def rewrite(disk: SimDisk, path: str, content: bytes) -> None:
    """Replace a file's content behind the product's back."""
    file = disk.open(path, "create")
    file.pwrite(content, 0)
    file.fsync()
    file.close()
