"""What a swap of Kafka's left is put in order, and the power goes while that is done (RCV-5).

Kafka has no intent record. Old content as long as a `.cleaned` is there; new once all files of the
new segments are `.swap`, or have their names already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stratalog.segment.names import SEGMENT_KINDS, FileKind, FileState, TopicPartition, file_name
from tests.sim import swapping
from tests.sim.client import Client, Step
from tests.sim.disk import SimDisk
from tests.sim.explore import Depth2, explore
from tests.sim.scenario import Scenario
from tests.sim.scenarios import COMPACTED, SIX_SEGMENTS
from tests.sim.sweeps import budget

KEY = TopicPartition("a", 0)
PATH = "/data/a-0"
CLEANED, SWAP, FINAL = FileState.CLEANED, FileState.SWAP, FileState.FINAL
OPENED: tuple[Step, ...] = (("open",), ("append", "a", 1), ("flush", "a"))


@dataclass(frozen=True)
class Leftovers(Scenario):
    """`states`: of each new segment's log, index and time index (and transaction index);
    `deleted`: how many of the old segments are `.deleted`; `is_new`: which content counts."""

    group: tuple[int, int, int] = (1, 2, 1)
    states: tuple[tuple[FileState, ...], ...] = ((SWAP, SWAP, SWAP, SWAP),)
    deleted: int = 0
    is_new: bool = True

    def laid(self) -> tuple[SimDisk, Client]:
        disk, client = super().laid()
        state, log = client.state[KEY], client.log(KEY)
        group = swapping.group_of(log.segments.bases, state.sent, *self.group)
        contents = swapping.contents_of(log, group, self.settings.index_interval_bytes)
        for base in group.old[: self.deleted]:
            for kind in SEGMENT_KINDS:
                name = f"{PATH}/{file_name(base, kind)}"
                if disk.exists(name):
                    disk.rename(name, f"{PATH}/{file_name(base, kind, FileState.DELETED)}")
        for (base, files), states in zip(sorted(contents.items()), self.states, strict=True):
            for kind, state_of_file in zip(SEGMENT_KINDS, states, strict=True):
                if kind in files:
                    write(disk, base, kind, state_of_file, files[kind])
        write(disk, 2, FileKind.LOG, FileState.OLD_CLEAN, b"of a very old broker")
        write(disk, 3, FileKind.LOG, FileState.DELETED, b"deleted")
        if self.is_new:
            client.state[KEY] = state._replace(sent=swapping.swapped(state.sent, group))
        return disk.sync_all(), client


def write(disk: SimDisk, base: int, kind: FileKind, state: FileState, content: bytes) -> None:
    file = disk.open(f"{PATH}/{file_name(base, kind, state)}", "create")
    file.pwrite(content, 0)
    file.close()


def leftovers(
    name: str,
    group: tuple[int, int, int],
    *states: tuple[FileState, ...],
    deleted: int = 0,
    is_new: bool,
) -> Leftovers:
    before = (*SIX_SEGMENTS, ("flush", "a"), ("checkpoint",), ("stop",))
    # The client must still know the log when the files are laid: it lets go of it afterwards.
    return Leftovers(name, OPENED, COMPACTED, before[:-1], 40, group, states, deleted, is_new)


ALL_CLEANED, ALL_SWAP = (CLEANED,) * 4, (SWAP,) * 4
CASES = (
    leftovers("all cleaned", (1, 2, 1), ALL_CLEANED, is_new=False),
    leftovers("some swap", (1, 2, 1), (SWAP, SWAP, CLEANED, CLEANED), is_new=False),
    leftovers("one for one, cleaned", (0, 0, 1), (SWAP, CLEANED, CLEANED, CLEANED), is_new=False),
    leftovers("the second is swap", (1, 3, 2), ALL_CLEANED, ALL_SWAP, is_new=False),
    leftovers("half of the first", (1, 3, 2), (SWAP, SWAP, SWAP, CLEANED), ALL_SWAP, is_new=False),
    leftovers("all swap", (1, 2, 1), ALL_SWAP, is_new=True),
    leftovers("all swap, for itself", (1, 1, 1), ALL_SWAP, is_new=True),
    leftovers("two are swap", (1, 3, 2), ALL_SWAP, ALL_SWAP, is_new=True),
    leftovers("one is deleted", (1, 3, 1), ALL_SWAP, deleted=1, is_new=True),
    leftovers("all are deleted", (1, 3, 2), ALL_SWAP, ALL_SWAP, deleted=3, is_new=True),
    leftovers("the log has its name", (1, 2, 1), (FINAL, SWAP, SWAP, SWAP), deleted=2, is_new=True),
)


@pytest.mark.sweep
@pytest.mark.requirement("RCV-5", "RCV-6", "CMP-12")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_kafka_left_is_put_in_order_under_every_cut(
    case: Leftovers, count_cases: Callable[[str, int], None]
) -> None:
    states = budget(300)
    stats = explore(
        case.run,
        case.judge,
        seed=1,
        max_states=states,
        start=case.start(),
        depth2=Depth2(case.recover, share=0.03, max_states=states // 3),
        name=case.name,
    ).count(count_cases)
    assert stats.states > 60
