"""A compaction into a bucket whose driver dies at any of its requests that change something.

The tasks run in this process, on a stand-in for Spark that repeats some of them. Dying means that
no request is made any more, also none that would clean up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.admin.location_manifest import MANIFEST, decode
from stratalog.base.clock import FixedClock
from stratalog.pipeline import object_store
from stratalog.pipeline.options import Choice
from stratalog.pipeline.places import find_places, opened_view
from stratalog.pipeline.remote import compact_to
from tests.log.helpers import NOW, open_log, records
from tests.pipeline.object_server import ObjectServer, object_server, stand_in_session
from tests.sim.sweeps import IS_SWEEP

pytestmark = [pytest.mark.requirement("SPK-9", "SPK-3"), pytest.mark.usefixtures("hasty_disk")]
Count = Callable[[str, int], None]
CLOCK = FixedClock(NOW + 10**9)


class Killed(BaseException):
    """The driver is gone."""


class MortalClient:
    """Counts the requests that change something; from the `last` one on, none is made."""

    def __init__(self, client: Any, last: int | None):
        self._client = client
        self._last = last
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def change(self) -> None:
        if self._last is not None and self.changes >= self._last:
            raise Killed
        self.changes += 1

    def open_output_stream(self, path: str) -> MortalStream:
        return MortalStream(self, path)

    def delete_dir(self, path: str) -> None:
        self.change()
        self._client.delete_dir(path)


class MortalStream:
    """An upload, which is one change: it is there when it is closed, or not at all."""

    def __init__(self, owner: MortalClient, path: str):
        self._owner, self._path, self._content = owner, path, b""

    def write(self, data: Any) -> None:
        self._content += bytes(data)

    def close(self) -> None:
        self._owner.change()
        with self._owner._client.open_output_stream(self._path) as out:
            out.write(self._content)


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


def run(
    server: ObjectServer,
    logs: Path,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    last: int | None = None,
    seed: int = 0,
) -> int:
    """Compact until the driver dies; how many changes were made."""
    mortal = MortalClient(server.store.client(), last)
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "_client", lambda _: mortal)
        try:
            compact_to(
                stand_in_session(seed),
                [str(logs)],
                target,
                store=server.store,
                clock=CLOCK,
            )
        except Killed:
            assert last is not None
    return mortal.changes


def seen(server: ObjectServer, target: str) -> dict[str, int]:
    """What a reader of the location finds: each partition, and how many records it holds."""
    found = {}
    for place in find_places([target], Choice(), server.store):
        with opened_view(place) as view:
            batches = [batch for segment in view.segments for batch in segment.batches()]
        assert all(batch.crc_ok() for batch in batches)
        found[place.name] = sum(len(list(batch.records())) for batch in batches)
    return found


def test_a_driver_may_die_at_any_request(
    s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Count
) -> None:
    logs, target = tmp_path / "logs", s3.uri("crash", "target")
    for name in ("orders-0", "users-0"):
        with open_log(logs / name) as log:
            log.append_records([*records(10), *records(10, timestamp=NOW + 1)])
    old = {"orders-0": 10, "users-0": 10}
    changes = run(s3, logs, target, monkeypatch)
    assert seen(s3, target) == old
    with open_log(logs / "users-0") as log:
        log.append_records(records(3, key="new"))
    new = {"orders-0": 10, "users-0": 13}
    random, outcomes = Random(7), set()
    # Of a second and later runs, which also remove what came before.
    chosen = {*range(0, changes + 4, 1 if IS_SWEEP else 4), *range(changes - 2, changes + 4)}
    # At last, one that dies while it writes beside two generations that are named.
    for last in [*sorted(chosen), 4]:
        before = s3.contents("crash", "target")[MANIFEST]
        expected = seen(s3, target)
        run(s3, logs, target, monkeypatch, last=last, seed=random.randrange(1 << 30))
        after = s3.contents("crash", "target")
        switched = after[MANIFEST] != before
        assert seen(s3, target) == (new if switched else expected), last
        manifest = decode(after[MANIFEST], MANIFEST)
        there = {name.split("/", 1)[0] for name in after} - {MANIFEST}
        assert {manifest.directory, *manifest.kept} <= there
        outcomes.add((switched, len(there)))
    assert {switched for switched, _ in outcomes} == {False, True}
    assert (False, 3) in outcomes
    run(s3, logs, target, monkeypatch)
    run(s3, logs, target, monkeypatch)
    found = s3.contents("crash", "target")
    manifest = decode(found.pop(MANIFEST), MANIFEST)
    assert {name.split("/", 1)[0] for name in found} == {manifest.directory, *manifest.kept}
    count_cases("drivers that died while a bucket was written", len(chosen) + 1)
