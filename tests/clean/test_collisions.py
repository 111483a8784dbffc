"""Keys that were built to collide (CMP-6)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from stratalog.clean.index import hash_keys
from stratalog.clean.local_engine import LocalEngine
from tests.clean.driving import FS, batch_of, clean_case, surviving, write_case

# The pair that Wang, Feng, Lai and Yu published in 2004 (with the corrected initial value).
_ONE = (
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89"
    "55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b"
    "d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
_OTHER = (
    "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f89"
    "55ad340609f4b30283e4888325f1415a085125e8f7cdc99fd91dbd7280373c5b"
    "d8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70"
)
PAIR = bytes.fromhex(_ONE), bytes.fromhex(_OTHER)


@pytest.mark.requirement("CMP-6")
@pytest.mark.parametrize("max_keys", [None, 1000])
def test_an_md5_collision_costs_no_key(tmp_path: Path, max_keys: int | None) -> None:
    one, other = PAIR
    assert one != other
    assert len(one) == len(other) == 128
    digests = {hashlib.md5(key, usedforsecurity=False).hexdigest() for key in PAIR}
    assert digests == {"79054025255fb1a26e4bc422aef54eb4"}

    records = [(one, b"first"), (other, b"second"), (b"third", b"third")]
    case = write_case(tmp_path / "log", {0: [batch_of(0, *records)], 3: []})
    cleaned = clean_case(LocalEngine(FS, threads=1), case, max_keys=max_keys)
    assert cleaned is not None
    assert cleaned.keys == 3
    assert surviving(case.partition) == dict(enumerate(records))


@pytest.mark.requirement("CMP-6")
def test_hashes_under_two_secrets_have_nothing_in_common() -> None:
    """Nobody who does not know the secret can look for keys that collide under it."""
    keys = [b"key-%d" % number for number in range(200)]
    made = [
        hash_keys(keys, (np.uint64(first), np.uint64(second)))
        for first, second in ((1, 2), (1, 3), (2, 2))
    ]
    words = np.concatenate([hashes.ravel() for hashes in made])
    assert len(set(words.tolist())) == len(words)
