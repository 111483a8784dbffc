"""The ledgers of a store's partitions: pinned by readers, switched by runs, unlinked when unneeded.

    pin ─► a generation stays readable, whatever is switched meanwhile ─► release
    begin ─► a new directory ─► (files, fsynced) ─► switch ─► collect
                                             └ abandon: the directory goes again

What a crash leaves after each step of a run:

    begin, writing      the old manifest; a directory that no manifest names: `sweep` removes it
    switch              the old manifest or the new one, each with all files that it names: those of
                        the new one were synced before, those of the old go only afterwards
    collect             the new manifest; files that nothing needs: the next `collect` removes them

Invariants
- I1  A file goes only if no generation of the durable manifest and none that is pinned needs it.
- I2  What cannot be known (a manifest that was renamed and not synced) removes nothing.
- I3  `_lock` guards the tables and is never held over a call of the disk but the first reading of a
      manifest; a partition's own lock orders begin, switch and collect.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Protocol
from weakref import WeakValueDictionary

from stratalog.base.errors import CorruptionError, StratalogError, UsageError
from stratalog.base.filesystem import FileSystem, make_durable_directory
from stratalog.ledger import manifest as manifests
from stratalog.ledger.manifest import (
    EMPTY,
    MANIFEST_FILE,
    Generation,
    Manifest,
    generation_path,
    ledgers_path,
    parse_generation,
    read_manifest,
    referenced,
    write_manifest,
)
from stratalog.ledger.status import RunState, RunStatus, read_status, write_status
from stratalog.ledger.view import CompactedView, open_generation
from stratalog.log.deletion import remove_tree, unlink_if_there
from stratalog.log.view import LogView
from stratalog.segment.digest import digest_path
from stratalog.segment.names import STATE_DIRECTORY, TopicPartition, parse

_LOG = logging.getLogger("stratalog.ledger")


@dataclass(slots=True, eq=False)
class Pin:
    """A generation that stays readable until `release`; a context manager. Without a ledger both
    `generation` and `view` are None, and there is nothing to release."""

    topic_partition: TopicPartition
    generation: Generation | None = None
    view: LogView | None = None
    _unpin: Callable[[], None] | None = None

    def release(self) -> None:
        """Let go of it; its files may go. Releasing twice is fine."""
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(slots=True, eq=False)
class _Partition:
    """What is known of one. `pins` counts the holders of a generation by its number, `pinned` says
    which it is, as it need not count any more; `making`: the number of the run that goes on.
    `is_in_doubt`: nobody knows which manifest is on the disk; `is_gone`: it has been deleted.
    `lock`: see I3."""

    topic_partition: TopicPartition
    path: str
    manifest: Manifest | None = None
    pins: Counter[int] = field(default_factory=Counter)
    pinned: dict[int, Generation] = field(default_factory=dict)
    views: WeakValueDictionary[int, LogView] = field(default_factory=WeakValueDictionary)
    making: int | None = None
    is_in_doubt: bool = False
    is_gone: bool = False
    lock: AbstractContextManager[bool] = field(default_factory=threading.RLock)


OnEnded = Callable[[str, RunStatus, Generation | None], None]
"""Told of a run that ended with its process: the partition's directory, how it ended, what it has
made."""


class Log(Protocol):
    """An open log, as ledgers see it."""

    @property
    def path(self) -> str: ...

    @property
    def view(self) -> LogView: ...


class Logs(Protocol):
    """A store, as ledgers see it: a `LogStore`, or what a command has opened by itself."""

    def get(self, topic_partition: TopicPartition, /) -> Log:
        """Raises `UnknownPartitionError`, `LogOfflineError`."""
        ...

    def writable_logs(self) -> Iterator[tuple[TopicPartition, Log]]: ...


class Ledgers:
    """One a store; thread-safe."""

    def __init__(self, store: Logs, filesystem: FileSystem):
        self._store = store
        self._filesystem = filesystem
        self._lock = threading.RLock()
        self._partitions: dict[TopicPartition, _Partition] = {}

    # -- readers ----------------------------------------------------------------------------------

    def manifest(self, topic_partition: TopicPartition) -> Manifest:
        """The generations that count. Raises `UnknownPartitionError`, `CorruptionError`."""
        with self._lock:
            return self._manifest_locked(self._of_locked(topic_partition))

    def pin(self, topic_partition: TopicPartition, number: int | None = None) -> Pin:
        """Keep a generation readable: the one in use, or that of `number`.

        Its view's log start is the generation's start, its end and last stable offset the horizon.
        Raises `UsageError` if that number does not count (any more), `UnknownPartitionError`,
        `CorruptionError`.
        """
        with self._lock:
            partition = self._of_locked(topic_partition)
            manifest = self._manifest_locked(partition)
            generation = manifest.current if number is None else manifest.find(number)
            if generation is None and number is not None:
                raise UsageError(_no_such(topic_partition, number, manifest))
            if generation is None:
                return Pin(topic_partition)
            partition.pins[generation.number] += 1
            partition.pinned[generation.number] = generation
        pin = Pin(topic_partition, generation, None, partial(self._unpin, partition, generation))
        try:
            pin.view = self._view(partition, generation)
        except BaseException:
            pin.release()
            raise
        return pin

    def pin_as_of(
        self,
        topic_partition: TopicPartition,
        *,
        offset: int | None = None,
        time_ms: int | None = None,
    ) -> Pin:
        """Pin the newest generation whose horizon is at or below `offset`, or that was there at
        `time_ms` (ms since 1970). Raises `UsageError` if none of those kept is; as `pin`."""
        manifest = self.manifest(topic_partition)
        found = manifests.as_of(manifest, offset=offset, time_ms=time_ms)
        if found is None:
            asked = f"at offset {offset}" if time_ms is None else f"at time {time_ms}"
            raise UsageError(f"{topic_partition}: no ledger of those kept was there {asked}")
        return self.pin(topic_partition, found.number)

    @contextmanager
    def compacted(self, topic_partition: TopicPartition) -> Iterator[CompactedView]:
        """The compacted view as it is now; the ledger in it is pinned inside."""
        with self.pin(topic_partition) as pin:
            yield CompactedView(pin.view, self._store.get(topic_partition).view)

    def log_start(self, topic_partition: TopicPartition) -> int:
        """Where the raw log begins now. Raises as `Logs.get`."""
        return self._store.get(topic_partition).view.log_start_offset

    def pinned(self, topic_partition: TopicPartition) -> list[int]:
        """The numbers of the generations that somebody reads."""
        with self._lock:
            partition = self._partitions.get(topic_partition)
            return [] if partition is None else sorted(partition.pins)

    def _view(self, partition: _Partition, generation: Generation) -> LogView:
        view = partition.views.get(generation.number)
        if view is None:
            try:
                view = open_generation(self._filesystem, partition.path, generation)
            except FileNotFoundError as error:
                raise CorruptionError("the ledger lacks a file", file=error.filename) from error
            partition.views[generation.number] = view
        return view

    def _unpin(self, partition: _Partition, generation: Generation) -> None:
        number = generation.number
        with self._lock:
            partition.pins[number] -= 1
            if partition.pins[number] > 0:
                return
            del partition.pins[number], partition.pinned[number]
            manifest = partition.manifest
        if manifest is None or manifest.find(number) is None:
            try:
                self._collect(partition)
            except (StratalogError, FileNotFoundError) as error:
                _LOG.warning("%s: old ledgers are left: %s", partition.topic_partition, error)

    # -- runs -------------------------------------------------------------------------------------

    def begin(self, topic_partition: TopicPartition) -> tuple[int, str]:
        """The number and the directory, durably there and empty, of a new generation. One run at a
        time: end it by `switch` or `abandon`. Raises as `manifest`, `StorageIOError`."""
        manifest = self.manifest(topic_partition)
        partition = self._of(topic_partition)
        with partition.lock:
            partition.making = None
            self._collect(partition)
            number = manifest.next_number
            partition.making = number
            directory = generation_path(partition.path, number)
            make_durable_directory(self._filesystem, directory)
            return number, directory

    def abandon(self, topic_partition: TopicPartition) -> None:
        """The run has failed: what it has written goes, unless it counts after all (I2)."""
        partition = self._of(topic_partition)
        with partition.lock:
            partition.making = None
            self._collect(partition)

    def switch(self, topic_partition: TopicPartition, new: Generation, retained: int) -> Manifest:
        """Let a generation count whose files are there, durably; of the others the last `retained`
        stay. What nobody needs any more is unlinked. Durable when it returns.

        Raises `StorageIOError`: then the old manifest counts, or the new one.
        """
        partition = self._of(topic_partition)
        with partition.lock:
            before = self.manifest(topic_partition)
            self._write(partition, manifests.switched(before, new, retained))
            partition.making = None
            self._collect(partition)
            return self.manifest(topic_partition)

    def cut_back(self, topic_partition: TopicPartition, end_offset: int) -> None:
        """The log is about to end at `end_offset`: generations that reach past it go, durably."""
        before = self.manifest(topic_partition)
        after = manifests.cut_back(before, end_offset)
        if after != before:
            partition = self._of(topic_partition)
            with partition.lock:
                _LOG.warning(
                    "%s: the log ends at %d: the ledgers behind it go", topic_partition, end_offset
                )
                self._write(partition, after)
                self._collect(partition)

    def drop(self, topic_partition: TopicPartition) -> bool:
        """There is to be no ledger, durably; whether there was one. Files that are pinned stay as
        long as that. Raises `UnknownPartitionError`, `StorageIOError`."""
        partition = self._of(topic_partition)
        with partition.lock:
            try:
                before = self.manifest(topic_partition)
            except CorruptionError:
                before = None  # whatever it said
            if before is not None and before.current is None:
                return False
            if before is None:
                number = max(self._numbers(partition), default=0) + 1
            else:
                number = before.next_number
            self._write(partition, Manifest((), number))
            self._collect(partition)
            return True

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition has been deleted, its directory with it. Who has a pin goes on reading."""
        with self._lock:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                partition.is_gone = True

    # -- files ------------------------------------------------------------------------------------

    def collect(self, topic_partition: TopicPartition) -> None:
        """Unlink what nobody needs (I1). Raises as `manifest`, `StorageIOError`."""
        self.manifest(topic_partition)
        self._collect(self._of(topic_partition))

    def sweep(self, on_ended: OnEnded = lambda *_: None) -> None:
        """At the start of a process: remove what a crash has left of runs. `on_ended` is told how
        they ended, and may be told again. What is wrong with one is logged; it is met again when
        used."""
        for topic_partition, log in self._store.writable_logs():
            if not self._filesystem.exists(ledgers_path(log.path)):
                continue
            try:
                self._settle_status(topic_partition, on_ended)
                self.collect(topic_partition)
            except (StratalogError, FileNotFoundError) as error:
                _LOG.error("%s: its ledgers cannot be put in order: %s", topic_partition, error)

    def _collect(self, partition: _Partition) -> None:
        with partition.lock:
            with self._lock:
                manifest = partition.manifest
                if manifest is None or partition.is_in_doubt or partition.is_gone:
                    return
                needed = referenced([*manifest.generations, *partition.pinned.values()])
                making = partition.making
            for number in self._numbers(partition):
                if number == making:
                    continue
                directory = generation_path(partition.path, number)
                if number not in needed:
                    remove_tree(self._filesystem, directory)
                else:
                    self._thin_out(directory, needed[number])

    def _thin_out(self, directory: str, bases: set[int]) -> None:
        for name in self._filesystem.list_directory(directory):
            parsed = parse(name)
            if parsed is not None and parsed.base_offset not in bases:
                unlink_if_there(self._filesystem, digest_path(directory, parsed.base_offset))
                self._filesystem.unlink(os.path.join(directory, name))
        state_directory = os.path.join(directory, STATE_DIRECTORY)
        if self._filesystem.exists(state_directory):
            for name in self._filesystem.list_directory(state_directory):
                if not any(name.startswith(f"{base:020d}.") for base in bases):
                    self._filesystem.unlink(os.path.join(state_directory, name))

    def _numbers(self, partition: _Partition) -> list[int]:
        """The generations of which a directory is there."""
        path = ledgers_path(partition.path)
        if not self._filesystem.exists(path):
            return []
        found = map(parse_generation, self._filesystem.list_directory(path))
        return sorted(number for number in found if number is not None)

    # -- status -----------------------------------------------------------------------------------

    def status(self, topic_partition: TopicPartition) -> RunStatus:
        """How the last run ended, or that it goes on (LDG-4). Raises as `manifest`."""
        partition = self._of(topic_partition)
        status = read_status(self._filesystem, partition.path)
        if status.state is RunState.RUNNING and partition.making != status.number:
            return status.after_restart(self.manifest(topic_partition))
        return status

    def note(self, topic_partition: TopicPartition, status: RunStatus) -> None:
        """Write down how a run stands. Raises `StorageIOError`."""
        write_status(self._filesystem, self._of(topic_partition).path, status)

    def _settle_status(self, topic_partition: TopicPartition, on_ended: OnEnded) -> None:
        """A run that the last process did not end is told for good as what it is."""
        path = self._of(topic_partition).path
        written, manifest = read_status(self._filesystem, path), self.manifest(topic_partition)
        settled = written.after_restart(manifest)
        if settled != written:
            on_ended(path, settled, manifest.find(settled.number))
            write_status(self._filesystem, path, settled)

    # -- what is known ----------------------------------------------------------------------------

    def _of(self, topic_partition: TopicPartition) -> _Partition:
        with self._lock:
            return self._of_locked(topic_partition)

    def _of_locked(self, topic_partition: TopicPartition) -> _Partition:
        path = self._store.get(topic_partition).path
        found = self._partitions.get(topic_partition)
        if found is None:
            found = self._partitions[topic_partition] = _Partition(topic_partition, path)
        return found

    def _manifest_locked(self, partition: _Partition) -> Manifest:
        if partition.manifest is None:
            partition.manifest = read_manifest(self._filesystem, partition.path)
        return partition.manifest

    def _write(self, partition: _Partition, manifest: Manifest) -> None:
        with self._lock:
            before, partition.manifest = partition.manifest, None
            partition.is_in_doubt = True
        try:
            write_manifest(self._filesystem, partition.path, manifest)
        except BaseException:
            with suppress(StratalogError, FileNotFoundError):
                found = read_manifest(self._filesystem, partition.path)
                with self._lock:
                    partition.manifest = found
                    partition.is_in_doubt = found != before  # else it was not even renamed
            raise
        with self._lock:
            partition.manifest, partition.is_in_doubt = manifest, False


def _no_such(topic_partition: TopicPartition, number: int, manifest: Manifest) -> str:
    kept = ", ".join(str(one.number) for one in manifest.generations) or "none"
    return f"{topic_partition}: there is no ledger {number}; kept: {kept}"


def has_ledgers(filesystem: FileSystem, partition_dir: str) -> bool:
    """Whether there is a manifest: somebody has compacted the partition into a ledger; or ledgers
    that have lost it, which count as damaged ones."""
    if filesystem.exists(os.path.join(ledgers_path(partition_dir), MANIFEST_FILE)):
        return True
    if not filesystem.is_directory(ledgers_path(partition_dir)):
        return False
    try:
        return read_manifest(filesystem, partition_dir) != EMPTY
    except CorruptionError:
        return True


__all__ = ["EMPTY", "Ledgers", "Pin", "has_ledgers"]
