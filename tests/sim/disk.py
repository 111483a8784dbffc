"""A disk in memory whose power can be cut: `FileSystem` and `File` as the product knows them.

What it holds twice:
- a file (inode) has its content as programs see it, and the content that the last fsync made
  durable;
- a directory has its entries as programs see them, the durable ones, and the operations on names
  that lie between the two, in order. `fsync_directory` makes those of that directory durable and
  no others; a file's fsync never makes its name durable. A directory is there after a cut only if
  its own name is durable in its parent.

`tests.sim.cuts` makes from this every disk that may be found after a cut.

Invariants
- I1  Nodes and their parts are never changed in place, so `fork` copies one small dict.
- I2  Results and errors are those of `LocalFileSystem` (test_disk.py compares them), with two
      exceptions: `..` and renames from one directory to another are not modelled.
- I3  Each change counts as one operation and is announced to `hook` before it happens; one that
      fails for its own reasons counts too.
- I4  After a failed fsync the disk keeps what it had: a later fsync succeeds and still makes
      nothing durable, until the file is cut off below what was lost (Linux marks the pages clean).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping

from stratalog.base.clock import Clock
from stratalog.base.errors import LogLockedError, StorageIOError
from stratalog.base.filesystem import FileStat, OpenMode
from tests.sim.file import SimFile
from tests.sim.nodes import (
    EPOCH_MS,
    ROOT,
    Call,
    DirectoryNode,
    FileNode,
    Hook,
    NameOperation,
    Node,
    PartialWrite,
    PowerCut,
    clean_file,
    os_error,
    parts_of,
    synced,
    written,
)


class SimDisk:
    """See the module. `operations` counts the changes since it was made or forked, `trace` has
    them; `hook` is called before every call; `allowed` operations happen, then the power is cut."""

    def __init__(self, clock: Clock | None = None):
        self.clock = clock
        self.hook: Hook | None = None
        self.allowed: int | None = None
        self.operations = 0
        self.trace: list[Call] = []
        self.nodes: dict[int, Node] = {ROOT: DirectoryNode({}, {}, (), EPOCH_MS)}
        self.next_node = ROOT + 1
        self._time = 0
        self._is_off = False
        self._locks: dict[str, list[bool]] = {}
        self._mutex = threading.RLock()

    @classmethod
    def of(cls, nodes: dict[int, Node], origin: SimDisk) -> SimDisk:
        """A disk with these nodes, as the next process finds it: no open files, no locks."""
        disk = cls.__new__(cls)
        disk.clock = origin.clock
        disk.hook = None
        disk.allowed = None
        disk.operations = 0
        disk.trace = []
        disk.nodes = nodes
        disk.next_node = origin.next_node
        disk._time = origin._time
        disk._is_off = False
        disk._locks = {}
        disk._mutex = threading.RLock()
        return disk

    def fork(self) -> SimDisk:
        """A copy that goes its own way, unsynced state included, without open files and locks."""
        return SimDisk.of(self.nodes.copy(), self)

    def sync_all(self) -> SimDisk:
        """Make everything durable, without counting; for laying a scene. Answers itself."""
        for number, node in self.nodes.items():
            if isinstance(node, FileNode):
                node = node._replace(lost_from=None)
            self.nodes[number] = synced(node)
        return self

    # -- what the methods share --------------------------------------------------------------------

    def before(self, kind: str, path: str, changes: bool, *arguments: object) -> None:
        """Announce a call, and count it if it changes something (I3)."""
        if self._is_off or (changes and self.operations == self.allowed):
            self._is_off = True
            raise PowerCut(f"{kind} {path}")
        call = Call(kind, path, changes, arguments)
        if self.hook is not None:
            try:
                self.hook(call)
            except PartialWrite:
                self._count(call)
                raise
        if changes:
            self._count(call)

    def _count(self, call: Call) -> None:
        self.operations += 1
        self.trace.append(call)

    def now_ms(self) -> int:
        if self.clock is not None:
            return self.clock.now_ms()
        return EPOCH_MS + self._time

    def _find(self, path: str) -> int:
        number = ROOT
        for part in parts_of(path):
            number = self._entries(number, path).get(part, 0)
            if number == 0:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return number

    def _entries(self, number: int, path: str) -> Mapping[str, int]:
        node = self.nodes[number]
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return node.entries

    def _find_parent(self, path: str) -> tuple[int, str, int]:
        """The directory of a path, the name in it, and what has the name (0: nothing)."""
        parts = parts_of(path)
        if not parts:
            raise os_error(errno.EBUSY, path)
        parent = self._find("/".join(parts[:-1]))
        return parent, parts[-1], self._entries(parent, path).get(parts[-1], 0)

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _change_names(
        self, directory: int, kind: str, removed: str | None, added: str | None, node: int
    ) -> None:
        self._time += 1
        operation = NameOperation(self._time, directory, kind, removed, added, node)
        old = self.nodes[directory]
        assert isinstance(old, DirectoryNode)
        entries = dict(old.entries)
        operation.apply(entries)
        pending = (*old.pending, operation)
        self.nodes[directory] = DirectoryNode(entries, old.durable, pending, self.now_ms())

    def _add(self, directory: int, kind: str, name: str, node: Node) -> int:
        number = self.next_node
        self.next_node += 1
        self.nodes[number] = node
        self._change_names(directory, kind, None, name, number)
        return number

    # -- FileSystem --------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> SimFile:
        with self._mutex:
            if mode == "create":
                self.before("create", path, True)
                return SimFile(self, path, self._create(path), is_writable=True)
            self.before("open", path, False, mode)
            number = self._find(path)
            if mode == "update" and isinstance(self.nodes[number], DirectoryNode):
                raise os_error(errno.EISDIR, path)
            return SimFile(self, path, number, is_writable=mode == "update")

    def _create(self, path: str) -> int:
        if not parts_of(path):
            raise os_error(errno.EISDIR, path)
        parent, name, number = self._find_parent(path)
        if number == 0:
            return self._add(parent, "create", name, clean_file(b"", self.now_ms()))
        if isinstance(self.nodes[number], DirectoryNode):
            raise os_error(errno.EISDIR, path)
        self.set_content(number, b"", 0)
        return number

    def set_content(self, number: int, content: bytes, changed_from: int) -> None:
        """A program wrote a file: bytes below `changed_from` are as before."""
        node = self.nodes[number]
        assert isinstance(node, FileNode)
        self._time += 1
        self.nodes[number] = written(node, content, changed_from, self.now_ms())

    def list_directory(self, path: str) -> list[str]:
        with self._mutex:
            self.before("list", path, False)
            return sorted(self._entries(self._find(path), path))

    def stat(self, path: str) -> FileStat:
        with self._mutex:
            self.before("stat", path, False)
            number = self._find(path)
            node = self.nodes[number]
            size_bytes = len(node.content) if isinstance(node, FileNode) else 4096
            return FileStat(size_bytes, node.modified_ms, number)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self.before("exists", path, False)
            return self._node_at(path) is not None

    def is_directory(self, path: str) -> bool:
        with self._mutex:
            self.before("is_directory", path, False)
            return isinstance(self._node_at(path), DirectoryNode)

    def _node_at(self, path: str) -> Node | None:
        try:
            return self.nodes[self._find(path)]
        except (FileNotFoundError, StorageIOError):
            return None  # nothing of that name, or below a file

    def make_directory(self, path: str) -> None:
        with self._mutex:
            number, made, walked = ROOT, False, ""
            for part in parts_of(path):
                walked += "/" + part
                found = self._entries(number, path).get(part, 0)
                if found == 0:
                    # Each is an operation of its own: the power may go between two of them.
                    self.before("make_directory", walked, True)
                    new = DirectoryNode({}, {}, (), self.now_ms())
                    found, made = self._add(number, "mkdir", part, new), True
                number = found
            if not made:
                self.before("make_directory", path, False)
                if isinstance(self.nodes[number], FileNode):
                    raise os_error(errno.EEXIST, path)

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            self.before("remove_directory", path, True)
            parent, name, number = self._find_parent(path)
            if number == 0:
                raise self._missing(path)
            if self._entries(number, path):
                raise os_error(errno.ENOTEMPTY, path)
            self._change_names(parent, "rmdir", name, None, number)

    def rename(self, old_path: str, new_path: str) -> None:
        with self._mutex:
            self.before("rename", old_path, True, new_path)
            parent, old, number = self._find_parent(old_path)
            new_parent, new, target = self._find_parent(new_path)
            if number == 0:
                raise self._missing(old_path)
            if parent != new_parent:
                raise NotImplementedError(f"{old_path} -> {new_path}: another directory")
            if target == number:
                return
            if target != 0:
                self._check_replacement(number, target, old_path)
            self._change_names(parent, "rename", old, new, number)

    def _check_replacement(self, number: int, target: int, path: str) -> None:
        moved, replaced = self.nodes[number], self.nodes[target]
        if isinstance(replaced, DirectoryNode):
            if isinstance(moved, FileNode):
                raise os_error(errno.EISDIR, path)
            if replaced.entries:
                raise os_error(errno.ENOTEMPTY, path)
        elif isinstance(moved, DirectoryNode):
            raise os_error(errno.ENOTDIR, path)

    def unlink(self, path: str) -> None:
        with self._mutex:
            self.before("unlink", path, True)
            parent, name, number = self._find_parent(path)
            if number == 0:
                raise self._missing(path)
            if isinstance(self.nodes[number], DirectoryNode):
                raise os_error(errno.EISDIR, path)
            self._change_names(parent, "unlink", name, None, number)

    def set_modified(self, path: str, modified_ms: int) -> None:
        with self._mutex:
            self.before("set_modified", path, True, modified_ms)
            number = self._find(path)
            self.nodes[number] = self.nodes[number]._replace(modified_ms=modified_ms)

    def fsync_directory(self, path: str) -> None:
        with self._mutex:
            self.before("fsync_directory", path, True)
            number = self._find(path)
            if isinstance(self.nodes[number], FileNode):
                raise os_error(errno.ENOTDIR, path)
            self.make_durable(number)

    def make_durable(self, number: int) -> None:
        """What an fsync does to a file or a directory."""
        self.nodes[number] = synced(self.nodes[number])

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        with self._mutex:
            self.before("lock", path, exclusive, "exclusive" if exclusive else "shared")
            key = "/".join(parts_of(path))
            held = self._locks.get(key)
            if held is None:
                self._open_lock(path, exclusive)
                held = self._locks[key] = []
            elif exclusive or True in held:
                raise LogLockedError(f"{path}: this process holds the lock already")
            held.append(exclusive)
        released = False

        def release() -> None:
            nonlocal released
            with self._mutex:
                if not released:
                    released = True
                    held.pop()
                    if not held:
                        del self._locks[key]

        return release

    def _open_lock(self, path: str, exclusive: bool) -> None:
        try:
            number = self._find(path)
        except FileNotFoundError:
            if not exclusive:
                raise
            self._create(path)
        else:
            if exclusive and isinstance(self.nodes[number], DirectoryNode):
                raise os_error(errno.EISDIR, path)

    # -- for tests: neither counted nor announced ----------------------------------------------

    def forget_locks(self) -> None:
        """Whoever held them has died."""
        self._locks.clear()

    def content(self, path: str) -> bytes:
        """A file as programs see it."""
        node = self.nodes[self._find(path)]
        assert isinstance(node, FileNode), path
        return node.content

    def tree(self, top: str = "/") -> dict[str, bytes | None]:
        """Everything below `top` as programs see it: path -> content, None for a directory."""
        found: dict[str, bytes | None] = {}
        self._collect(self._find(top), "/".join(("", *parts_of(top))), found)
        return found

    def _collect(self, number: int, path: str, found: dict[str, bytes | None]) -> None:
        node = self.nodes[number]
        if isinstance(node, FileNode):
            found[path] = node.content
            return
        for name, child in sorted(node.entries.items()):
            if isinstance(self.nodes[child], DirectoryNode):
                found[f"{path}/{name}"] = None
            self._collect(child, f"{path}/{name}", found)
