"""`latest_frame` on a real session: large partitions by a shuffle, the same rows as by one task."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from stratalog.base.errors import CorruptionError, LogChangedError, UsageError
from stratalog.pipeline import latest_frame as module
from stratalog.pipeline.latest_frame import frame_of, latest_frame, planned_parts
from stratalog.pipeline.options import read_options
from stratalog.record.kernel.compile import JIT
from tests.admin.helpers import records, write_log
from tests.clean.driving import batch_of, state_of, write_case
from tests.clean.test_properties import random_case
from tests.clean.test_versions import features_of as versions_of
from tests.naive.random_batches import Features
from tests.oracle import fold, rounds
from tests.pipeline.source_rows import naive_latest
from tests.pipeline.test_source import collected, linked

__all__ = ["linked"]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-4", "LDG-7"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]
Count = Callable[[str, int], None]
INFINITE = 1 << 60
ALL = {"includeHeaders": True, "includeMetadata": True}


def shared_tasks(frame: DataFrame) -> int:
    """How many Spark tasks the frame's query has."""
    return frame.rdd.getNumPartitions()


@pytest.mark.requirement("CMP-18")
def test_every_kafka_directory_by_a_shuffle(
    spark: SparkSession, linked: tuple[Path, dict[str, Path]], count_cases: Count
) -> None:
    root, partitions = linked
    found = collected(latest_frame(spark, root, shuffleBytes=0, **ALL))
    for name, original in partitions.items():
        rows = found.pop(name, [])
        assert {row["key"]: row["value"] for row in rows} == fold(original), name
        kafka = rounds()[int(name[1:-2].removesuffix("before").removesuffix("after"))]
        expected = naive_latest(original, committed_to=kafka.last_stable_offset, name=name)
        assert rows == expected, name
    assert found == {}
    count_cases("latest views of Kafka's directories by a shuffle", len(partitions))


@pytest.mark.requirement("CMP-17", "CMP-18")
def test_random_logs_with_tombstones_orders_of_versions_and_ends(
    spark: SparkSession, tmp_path: Path, count_cases: Count
) -> None:
    """One frame a way of asking, over many logs; at a threshold of 0 and without one."""
    cases: dict[str, list[Any]] = {"offset": [], "timestamp": [], "header": []}
    ends: dict[str, int] = {}
    for seed in range(24):
        features = versions_of(seed) if seed % 2 else Features(legacy=seed % 8 == 0)
        case = random_case(seed, tmp_path / f"{seed}", features)
        strategy = case.inputs.settings.get("compaction.strategy", "offset")
        topic = f"t{seed}"
        for path in sorted(case.partition.parent.iterdir()):
            target = tmp_path / strategy
            target.mkdir(exist_ok=True)
            if path.is_dir():
                path.rename(target / f"{topic}-0")
        state = state_of(replace(case, partition=target / f"{topic}-0"))
        start, last = (
            min(state.log_start_offset, state.last_stable_offset),
            state.last_stable_offset,
        )
        ends[topic] = Random(seed).choice([last, start, (start + last) // 2, last])
        cases[strategy].append((target / f"{topic}-0", case, state))
    asked = 0
    for strategy, of_strategy in cases.items():
        options: dict[str, object] = dict(ALL)
        settings: dict[str, str] = {"compaction.strategy": strategy}
        if strategy != "offset":
            options["compaction.strategy"] = strategy
        if strategy == "header":
            options["compaction.strategy.header"] = settings["compaction.strategy.header"] = (
                of_strategy[0][1].inputs.settings["compaction.strategy.header"]
            )
        assert len(of_strategy) >= 3
        bounds = {path.name[:-2]: {"0": ends[path.name[:-2]]} for path, _, _ in of_strategy}
        asks = [("keep", json.dumps(bounds))] + [("drop", None)] * (strategy == "offset")
        for tombstones, ending in asks:
            for shuffle_bytes in (0, INFINITE) if strategy == "header" else (0,):
                frame = latest_frame(
                    spark,
                    tmp_path / strategy,
                    **options,
                    shuffleBytes=shuffle_bytes,
                    tombstones=tombstones,
                    endingOffsets=ending,
                    maxPartitionBytes=2000,
                    failOnDataLoss=False,
                )
                found = collected(frame)
                for path, _, state in of_strategy:
                    expected = naive_latest(
                        path,
                        settings,
                        committed_to=state.last_stable_offset,
                        start=None if ending is None else 0,
                        end=1 << 63 if ending is None else ends[path.name[:-2]],
                        tombstones=tombstones == "keep",
                    )
                    assert found.pop(path.name, []) == expected, (path, tombstones, shuffle_bytes)
                    asked += 1
                assert found == {}
    count_cases("random latest views by a shuffle or a task", asked)


# ---------------------------------------------------------------- how partitions are shared


def test_one_large_partition_among_small_ones_is_not_one_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Ten times the data of others: it is read by several tasks, the little ones share one; the
    session's time zone changes nothing but how times are shown; the query can be run again."""
    for number in range(4):
        segments: dict[int, list[bytes]] = {}
        for first in range(0, 400 if number == 2 else 40, 10):
            pairs = [(b"key-%d" % (n % 23), b"%d" % n) for n in range(first, first + 10)]
            segments.setdefault(first // 100 * 100, []).append(batch_of(first, *pairs))
        case = write_case(tmp_path / f"dir{number}", segments)
        case.partition.rename(tmp_path / f"topic-{number}")
    sizes = {
        number: sum(path.stat().st_size for path in (tmp_path / f"topic-{number}").glob("*.log"))
        for number in range(4)
    }
    assert sizes[2] > 9 * sizes[1]
    options = {"shuffleBytes": sizes[1], "maxPartitionBytes": sizes[2] // 8}
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        frame = latest_frame(spark, tmp_path, **ALL, **options)
        assert shared_tasks(frame) > 4
        assert shared_tasks(latest_frame(spark, tmp_path, **ALL)) == 1
        for _ in range(2):
            found = collected(frame)
            for number in range(4):
                end = 400 if number == 2 else 40
                expected = naive_latest(tmp_path / f"topic-{number}", committed_to=end)
                assert found[f"topic-{number}"] == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_sharing_covers_the_log_once(tmp_path: Path) -> None:
    """Runs and reads each hold every piece once; reads are told in the order of the log."""
    parts = []
    for number in range(3):
        case = random_case(number, tmp_path / f"{number}", Features())
        options = read_options(
            {"path": str(case.partition), "view": "latest", "maxPartitionBytes": "500"}
        )
        parts += planned_parts(options)
    sharing = module._sharing(parts, 700, 2)
    pieces = [piece for part in parts for piece in part.pieces]
    runs = [piece for runs in sharing.runs for _, run in runs for piece in run.pieces]
    reads = [piece for read in sharing.reads for piece in read.pieces]
    assert len(pieces) > 20
    for found in (runs, reads):
        assert sorted(map(repr, found)) == sorted(map(repr, pieces))
    assert len(sharing.bin_of) == len(sharing.reads)
    assert set(sharing.bin_of) == set(range(sharing.bins))
    for number, part in enumerate(parts):
        ends = [end for _, end in sharing.owners[number]]
        assert ends == sorted(set(ends))
        covered = [sharing.reads[read].pieces for read, _ in sharing.owners[number]]
        assert [piece for read in covered for piece in read] == list(part.pieces)


# ---------------------------------------------------------------- logs that change, or are damaged


def rewritten(path: Path, content: bytes | None = None) -> None:
    """Other bytes, or the same, in another file: as a cleaning leaves it."""
    aside = path.with_suffix(".aside")
    aside.write_bytes(path.read_bytes() if content is None else content)
    aside.rename(path)


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    write_log(
        tmp_path / "logs" / "topic-0",
        [[records(["a", "b", "c"])], [records(["a", "d"])], [records(["e"])]],
    )
    for digest in (tmp_path / "logs" / "topic-0").glob(".stratalog/*.digest"):
        digest.unlink()  # files are changed here without those who keep it
    return tmp_path / "logs"


def parts_of(path: Path, **options: str) -> tuple[list[Any], Any]:
    source = read_options({"path": str(path), "view": "latest", **options})
    return planned_parts(source), source


def test_a_log_that_is_replaced_meanwhile(
    spark: SparkSession, changing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = changing / "topic-0" / f"{0:020}.log"
    # Before it is indexed: told at once, and planned anew by `latest_frame`.
    parts, source = parts_of(changing)
    rewritten(log)
    with pytest.raises(LogChangedError, match=r"^topic-0: was cleaned while it was being read"):
        frame_of(spark, parts, source, 0)
    stale, original, asked = parts, module.planned_parts, []

    def first_stale(options: Any) -> Any:
        asked.append(options)
        return stale if len(asked) == 1 else original(options)

    monkeypatch.setattr(module, "planned_parts", first_stale)
    frame = latest_frame(spark, changing, shuffleBytes=0)
    assert len(asked) == 2
    # After: all that was chosen is still there, only in another file.
    rewritten(log)
    expected = {b"a": b"value-0", b"b": b"value-1", b"c": b"value-2"}
    found = {bytes(row.key): bytes(row.value) for row in frame.collect()}
    assert found == {**expected, b"d": b"value-1", b"e": b"value-0"}
    # A record that was chosen has gone: nobody is given fewer keys than there are.
    parts, source = parts_of(changing)
    frame = frame_of(spark, parts, source, 0)
    with_end = replace(source, fail_on_data_loss=False)
    pardoned = frame_of(spark, parts, with_end, 0)
    rewritten(log, batch_of(0, (b"a", b"1"), (b"b", b"2")))
    with pytest.raises(PySparkException, match="LogChangedError: topic-0: was cleaned while it"):
        frame.collect()
    assert pardoned.count() == 4


def test_damage_of_a_shared_partition_is_told_when_the_frame_is_made(
    spark: SparkSession, changing: Path
) -> None:
    log = changing / "topic-0" / f"{3:020}.log"
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptionError) as caught:
        latest_frame(spark, changing, shuffleBytes=0)
    assert str(caught.value) == f"{log}: position 0: CRC-32C does not match"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "raw"}, "view is 'raw'; latest_frame has latest only"),
        ({"shuffleBytes": "many"}, "shuffleBytes is 'many'; it must be a whole number"),
        ({"shufflebytes": -1}, "shuffleBytes is '-1'; it must be a whole number"),
        (
            {"startingOfsets": "earliest"},
            "unknown option 'startingofsets': did you mean 'startingOffsets'?",
        ),
        ({"isolation": "read_uncommitted"}, "view=latest is that of committed data: leave out "),
    ],
)
def test_what_latest_frame_refuses(
    changing: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        latest_frame(None, changing, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "topic-0", [[]])
    frame = latest_frame(spark, [tmp_path], shuffleBytes=0, columns="offset,key")
    assert (frame.columns, frame.collect()) == (["offset", "key"], [])
