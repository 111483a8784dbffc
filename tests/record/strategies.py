"""Random records and batches, for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec

TIMESTAMPS = st.one_of(st.none(), st.integers(0, 2**42), st.sampled_from([0, 2**62]))
MAYBE_BYTES = st.one_of(st.none(), st.binary(max_size=40))
HEADERS = st.lists(st.tuples(st.binary(max_size=6), MAYBE_BYTES), max_size=4).map(tuple)
NEW_RECORDS = st.builds(NewRecord, MAYBE_BYTES, MAYBE_BYTES, TIMESTAMPS, HEADERS)
CODECS = st.sampled_from(list(Codec))


@st.composite
def batch_arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `build_batch`, records included, gaps between them possible."""
    records = draw(st.lists(NEW_RECORDS, min_size=1, max_size=12))
    steps = draw(st.lists(st.integers(1, 1000), min_size=len(records), max_size=len(records)))
    deltas = [sum(steps[: i + 1]) - 1 for i in range(len(steps))]
    return {
        "records": records,
        "base_offset": draw(st.integers(0, 2**62)),
        "codec": draw(CODECS),
        "log_append_time_ms": draw(st.one_of(st.none(), st.integers(0, 2**42))),
        "producer_id": draw(st.integers(-1, 2**63 - 1)),
        "producer_epoch": draw(st.integers(-1, 2**15 - 1)),
        "base_sequence": draw(st.one_of(st.just(-1), st.integers(0, 2**31 - 1))),
        "transactional": draw(st.booleans()),
        "control": draw(st.booleans()),
        "leader_epoch": draw(st.integers(-1, 2**31 - 1)),
        "delete_horizon_ms": draw(st.one_of(st.none(), st.integers(0, 2**42))),
        "offset_deltas": deltas,
        "last_offset_delta": deltas[-1] + draw(st.integers(0, 1000)),
    }
