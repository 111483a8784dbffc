from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.log import leader_epochs
from stratalog.log.checkpoint import parse, read_checkpoint, render, write_checkpoint
from stratalog.log.leader_epochs import EpochStart, assigned, cut_at_end, cut_at_start
from stratalog.segment.names import TopicPartition
from tests.log.helpers import FS, FailingFileSystem

TOPICS = st.from_regex(r"\A[A-Za-z0-9_-]{1,20}\Z")
ENTRIES = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)
)


def unsealed(content: bytes) -> bytes:
    """The text without our checksum, which Kafka's readers do not see: trailing blanks."""
    return b"".join(line.rstrip() + b"\n" for line in content.splitlines())


@pytest.mark.requirement("RCV-3")
@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_flip_and_cut_of_our_own_text_is_noticed_or_harmless(count: int) -> None:
    offsets = {TopicPartition("orders", number): 10**number for number in range(count)}
    content = render(offsets)
    mutants = [content[:size] for size in range(1, len(content))]
    for bit in range(8 * len(content)):
        mutant = bytearray(content)
        mutant[bit // 8] ^= 1 << bit % 8
        mutants.append(bytes(mutant))
    refused = 0
    for mutant in mutants:
        try:
            assert parse(mutant) == offsets, mutant
        except CorruptionError:
            refused += 1
    assert refused > 0.8 * len(mutants)


@pytest.mark.requirement("RCV-3")
def test_the_text_is_kafkas() -> None:
    offsets = {TopicPartition("orders", 1): 17, TopicPartition("a", 0): 5}
    assert unsealed(render(offsets)) == b"0\n2\na 0 5\norders 1 17\n"
    assert render({}) == b"0\n0\n"
    assert parse(b"") == {}


@given(ENTRIES)
def test_parse_is_the_inverse_of_render(offsets: dict[TopicPartition, int]) -> None:
    assert parse(render(offsets)) == offsets


@pytest.mark.requirement("RCV-3")
def test_every_checkpoint_that_kafka_wrote_reads_and_writes_the_same(
    golden_dir: Path, corpus_dir: Path
) -> None:
    seen = 0
    for root in (golden_dir, corpus_dir):
        for path in root.rglob("*-checkpoint"):
            content = path.read_bytes()
            if path.name == "leader-epoch-checkpoint":
                assert unsealed(leader_epochs.render(leader_epochs.parse(content))) == content
            elif content:
                assert unsealed(render(parse(content))) == content
            else:
                assert parse(content) == {}
            seen += 1
    assert seen > 500


@pytest.mark.parametrize(
    "content",
    [
        b"0",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n2\na 0 5\n",
        b"0\n1\na 0 5\nb 0 5\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 5 6\n",
        b"0\n1\na 0 -5\n",
        b"0\n1\na 0 +5\n",
        b"0\n1\na 0 5_0\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"0\n1\na 2147483648 5\n",
        b"0\n1\n.. 0 5\n",
        b"0\n2\na 0 5\na 0 6\n",
        b"0\n1\na 0 " + b"9" * 10_000 + b"\n",
        b"\xff\xfe\n",
        b"\x00" * 20,
    ],
)
def test_damage_is_never_read_as_fewer_entries(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse(content)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_corruption(content: bytes) -> None:
    for read in (parse, leader_epochs.parse):
        try:
            read(content)
        except CorruptionError as error:
            assert "\n" not in str(error)


@pytest.mark.requirement("RCV-3")
def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    assert read_checkpoint(FS, str(path)) == {}
    old, new = {TopicPartition("a", 0): 1}, {TopicPartition("a", 0): 2}
    write_checkpoint(FS, str(path), old)
    disk = FailingFileSystem()
    write_checkpoint(disk, str(path), old)
    steps = [action for action, _ in disk.actions]
    assert steps == ["create", "pwrite", "fsync", "rename", "fsync_directory"]
    for step in range(len(steps)):
        disk.actions.clear()
        disk.fail = lambda _action, _path, step=step: len(disk.actions) == step + 1  # type: ignore[misc]
        with pytest.raises(StorageIOError, match="on purpose"):
            write_checkpoint(disk, str(path), new)
        assert read_checkpoint(FS, str(path)) == (old if step < 4 else new)
        write_checkpoint(FS, str(path), old)


def test_damage_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_bytes(b"x\n")
    with pytest.raises(CorruptionError) as caught:
        read_checkpoint(FS, str(path))
    assert caught.value.file == str(path)


E = EpochStart


def test_leader_epochs() -> None:
    epochs = (E(0, 0), E(3, 10), E(4, 25))
    assert leader_epochs.parse(b"0\n3\n0 0\n3 10\n4 25\n") == epochs
    assert assigned((), 0, 7) == (E(0, 7),)
    assert assigned(epochs, 4, 90) == epochs
    assert assigned(epochs, 2, 90) == epochs
    assert assigned(epochs, -1, 90) == epochs
    assert assigned(epochs, 9, 90) == (*epochs, E(9, 90))
    assert cut_at_start(epochs, 0) == epochs
    assert cut_at_start(epochs, 9) == (E(0, 9), E(3, 10), E(4, 25))
    assert cut_at_start(epochs, 10) == (E(3, 10), E(4, 25))
    assert cut_at_start(epochs, 99) == (E(4, 99),)
    assert cut_at_end(epochs, 25) == (E(0, 0), E(3, 10))
    assert cut_at_end(epochs, 26) == epochs


@pytest.mark.parametrize("content", [b"0\n2\n3 0\n3 5\n", b"0\n2\n3 9\n4 5\n", b"0\n1\n3\n"])
def test_leader_epochs_out_of_order_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        leader_epochs.parse(content)
