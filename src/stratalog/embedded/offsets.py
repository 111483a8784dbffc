"""Where the consumers of a group stopped: one plain file at the root of the first log directory.

`stratalog-offsets-GROUP` has the form of Kafka's checkpoints with our checksum in it
(`log/checkpoint`). It is replaced atomically and durably; Kafka passes over files that lie there.

Invariants
- I1  What `commit` has answered is there after a crash; what it has not is there wholly or not.
- I2  A damaged file is an error: it is never read as if nobody had read anything.
- I3  Groups of one process take turns (`_LOCK`); the directory's lock keeps others away.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.embedded.words import short
from stratalog.log.checkpoint import is_sealed, parse, render
from stratalog.segment.names import TopicPartition

PREFIX = "stratalog-offsets-"
_GROUP = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class OffsetsFile:
    """The offsets of one group in the log directory `log_dir`."""

    filesystem: FileSystem
    log_dir: str
    group: str

    def __post_init__(self) -> None:
        """Raises `UsageError` for a name that cannot be a file's."""
        if not _is_group(self.group):
            raise UsageError(
                f"{short(self.group)} is no name of a group: letters, digits, '.', '_' and '-', "
                "at most 200, not .tmp at its end"
            )

    @property
    def path(self) -> str:
        return os.path.join(self.log_dir, PREFIX + self.group)

    def read(self) -> dict[TopicPartition, int]:
        """The committed offsets; no file means none. Raises `CorruptionError`, `StorageIOError`."""
        try:
            content = read_file(self.filesystem, self.path, MAX_CHECKPOINT_BYTES)
        except FileNotFoundError:
            return {}
        try:
            offsets = parse(content)
            if not (is_sealed(content) or content == render({})):
                raise CorruptionError("the committed offsets have no checksum")
            return offsets
        except CorruptionError as error:
            mended = f"without the file, group {self.group} begins anew"
            raise CorruptionError(f"{error.reason}; {mended}", file=self.path) from None

    def commit(self, changes: Mapping[TopicPartition, int]) -> None:
        """Let these count, beside those of other partitions; durable when it returns."""
        self._change(lambda offsets: offsets.update(changes))

    def forget(self, topic: str) -> None:
        """Nothing is said of a topic any more: one of the same name may come."""

        def without(offsets: dict[TopicPartition, int]) -> None:
            for key in [key for key in offsets if key.topic == topic]:
                del offsets[key]

        self._change(without)

    def _change(self, change: Callable[[dict[TopicPartition, int]], None]) -> None:
        with _LOCK:
            before = self.read()
            after = dict(before)
            change(after)
            if after != before:
                write_file_atomically(self.filesystem, self.path, render(after))


def groups_in(filesystem: FileSystem, log_dir: str) -> list[str]:
    """The groups that have committed something."""
    names = (n for n in filesystem.list_directory(log_dir) if n.startswith(PREFIX))
    return [name[len(PREFIX) :] for name in names if _is_group(name[len(PREFIX) :])]


def _is_group(name: object) -> bool:
    # What is written aside has .tmp at its end.
    is_name = isinstance(name, str) and _GROUP.fullmatch(name) is not None
    return is_name and not str(name).endswith(".tmp")
