"""The columns of `schema` as Arrow has them, where there is no Spark to say so.

The same as Spark's own translation, so that a batch is the same whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from stratalog.base.errors import UsageError
from stratalog.pipeline.schema import column_named

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "segment": pa.int64(),
    "leaderEpoch": pa.int32(),
    "producerId": pa.int64(),
    "isControl": pa.bool_(),
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """These columns, in this order. Raises `UsageError` for one that there is not, or is twice."""
    if isinstance(columns, str) or not columns:
        raise UsageError("columns must be a list of names")
    names = [column_named(str(name)) for name in columns]
    if len(set(names)) < len(names):
        raise UsageError(f"columns names a column twice: {', '.join(names)}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])
