"""Ledgers by both engines: byte for byte the same, also of runs that build upon others; and what
such a run leaves is what one from scratch leaves, but for tombstones and their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.job import Order
from stratalog.clean.local_engine import LocalEngine
from stratalog.ledger.manifest import LedgerSegment, generation_path
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.segment.names import SEGMENT_KINDS
from stratalog.segment.segment import segment_path
from stratalog.spark import cutting
from stratalog.spark.cutting import Piece
from stratalog.spark.engine import SparkEngine
from tests.clean.services import NOW
from tests.clean.test_properties import seeds
from tests.ledger.running import LOG, TOPIC, Life, living
from tests.spark.test_tasks import stand_in

pytestmark = [
    pytest.mark.usefixtures("hasty_disk"),
    pytest.mark.requirement("LDG-1", "SPK-1", "SPK-2"),
]
Files = dict[tuple[int, int, str], bytes]
KEYS = [b"k%d" % number for number in range(40)]


def append(life: Life, random: Random, batches: int) -> None:
    """Batches of every kind: packed, with tombstones, without keys, of transactions that end well,
    badly, or across the run's end."""
    open_producers: list[int] = []
    for _ in range(batches):
        made = [
            NewRecord(
                random.choice(KEYS) if random.random() < 0.97 else None,
                None if random.random() < 0.2 else random.randbytes(random.randrange(60)),
                NOW + random.randrange(1000),
            )
            for _ in range(random.randint(1, 6))
        ]
        codec = random.choice(list(Codec)) if random.random() < 0.3 else Codec.NONE
        producer = random.randrange(1 << 20)
        if random.random() < 0.3:
            data = build_batch(
                made,
                codec=codec,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            open_producers.append(producer)
        else:
            data = build_batch(made, codec=codec)
        life.log.append(data)
        while open_producers and random.random() < 0.5:
            kind = random.choice([ControlType.ABORT, ControlType.COMMIT])
            life.log.append_marker(kind, producer_id=open_producers.pop(), producer_epoch=0)
    for producer in open_producers:
        life.log.append_marker(ControlType.COMMIT, producer_id=producer, producer_epoch=0)


def files_of(life: Life) -> tuple[Files, list[tuple[LedgerSegment, ...]]]:
    """All files of the generations that count, and what the manifest says of them."""
    generations = life.ledgers.manifest(life.key).generations
    found: Files = {}
    for generation in generations:
        for part in generation.segments:
            directory = generation_path(life.log.path, part.generation)
            for kind in SEGMENT_KINDS:
                path = Path(segment_path(directory, part.base_offset, kind))
                if path.exists():
                    found[part.generation, part.base_offset, kind.value] = path.read_bytes()
    return found, [
        tuple(replace(part, modified_ms=0) for part in generation.segments)
        for generation in generations
    ]


def lives(
    path: Path, seed: int, engine: Engine | None
) -> list[tuple[Files, list[tuple[LedgerSegment, ...]]]]:
    """The same story, told to an engine: what lies there after each of its runs."""
    random = Random(seed)
    order = Order.TIMESTAMP if seed % 3 == 2 else Order.OFFSET
    topic = replace(TOPIC, segment_bytes=random.choice([1500, 6000]), order=order)
    log_settings = replace(LOG, segment_bytes=random.choice([900, 5000]), index_interval_bytes=100)

    def engine_of(_job: object, disk: object) -> tuple[str, Engine]:
        return ("local", LocalEngine(disk, threads=2)) if engine is None else ("spark", engine)  # type: ignore[arg-type]

    found = []
    clock = FixedClock(NOW)
    with living(
        LocalFileSystem(),
        topic=topic,
        log_settings=log_settings,
        clock=clock,
        engine_of=engine_of,
        path=str(path),
    ) as life:
        for batches in (60, 4, 25):
            append(life, random, batches)
            life.ask()
            assert life.current is not None
            assert life.current.distinct_keys == len({record.key for record in life.ledger()})
            found.append(files_of(life))
            clock.sleep_ms(random.choice([1, 2000]))
    return found


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole segments", "cut inside segments"])
def test_both_engines_make_the_same_ledgers(
    is_cut: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[str, int], None],
) -> None:
    if is_cut:
        monkeypatch.setattr(cutting, "LEAST_SHARE_BYTES", 1)
        monkeypatch.setattr(cutting, "MOST_SHARE_BYTES", 400)
    pieces: list[Piece] = []
    real = cutting.cut

    def cut(*arguments: object) -> list[Piece]:
        found = real(*arguments)  # type: ignore[arg-type]
        pieces.extend(found)
        return found

    monkeypatch.setattr(cutting, "cut", cut)
    for seed in seeds(6):
        engine, _ = stand_in(seed, monkeypatch)
        mine = lives(tmp_path / f"{seed}-local", seed, None)
        theirs = lives(tmp_path / f"{seed}-spark", seed, engine)
        assert mine == theirs
    assert any(piece.segment.start > 0 and piece.is_whole is not is_cut for piece in pieces)
    assert any(not piece.segment.may_stay for piece in pieces)
    count_cases("ledgers, Spark's plan = local engine", 3 * len(seeds(6)))


def test_a_run_upon_others_leaves_what_one_from_scratch_does(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """Record for record; tombstones follow the run that saw them first."""
    for seed in seeds(6):
        random = Random(seed)
        order = Order.TIMESTAMP if seed % 3 == 2 else Order.OFFSET
        topic = replace(TOPIC, order=order, delete_retention_ms=1 << 40)
        where = {"topic": topic, "log_settings": LOG}
        with living(LocalFileSystem(), path=str(tmp_path / f"{seed}"), **where) as life:
            for batches in (40, 3, 20, 1):
                append(life, random, batches)
                life.ask()
            stepwise = life.ledger()
            assert life.ledgers.drop(life.key)
            entry = life.ask()
            assert entry.first_dirty == 0
            assert life.ledger() == stepwise
            # Where their time is over, tombstones are all that differs.
            life.configure(delete_retention_ms=0)
            append(life, random, 1)
            life.ask()
            life.clock.sleep_ms(1)
            append(life, random, 1)
            life.ask()
            upon = [record for record in life.ledger() if record.value is not None]
            life.ledgers.drop(life.key)
            life.ask()
            assert [record for record in life.ledger() if record.value is not None] == upon
    count_cases("ledgers made step by step = from scratch", len(seeds(6)))


@pytest.mark.slow
@pytest.mark.sweep
def test_a_real_session_makes_the_same_ledger(spark: SparkSession, tmp_path: Path) -> None:
    mine = lives(tmp_path / "local", 1, None)
    assert lives(tmp_path / "spark", 1, SparkEngine(spark)) == mine
