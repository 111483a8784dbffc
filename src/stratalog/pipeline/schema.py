"""The columns of a log as a table: those of Spark's Kafka source, and some that only a log has.

Names, types and nullability are Spark's (`KafkaRecordToRowConverter`), so that a query moves from
`format("kafka")` to `format("stratalog")` unchanged: timestamps are microseconds in UTC; a record
without headers has null, not an empty list; a record without a timestamp has -1 ms.

Spark asks for whole rows of a Python source, whatever the query needs. Hence the option `columns`,
or a schema of the user's: what is not in it is not decoded.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from stratalog.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PLAIN_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Always there, in this order."""
HEADERS_COLUMN = "headers"
"""With `includeHeaders`."""
METADATA_COLUMNS = ("segment", "leaderEpoch", "producerId", "isControl")
"""With `includeMetadata`: the base offset of the segment, -1 for an epoch or producer that is none,
and whether the record is a marker of a transaction."""
ALL_COLUMNS = (*PLAIN_COLUMNS, HEADERS_COLUMN, *METADATA_COLUMNS)


@cache
def _types() -> dict[str, DataType]:
    from pyspark.sql import types

    header = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    return {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
        "headers": types.ArrayType(header),
        "segment": types.LongType(),
        "leaderEpoch": types.IntegerType(),
        "producerId": types.LongType(),
        "isControl": types.BooleanType(),
    }


def column_named(name: str) -> str:
    """The column of this name, whatever its case. Raises `UsageError`, with a near name."""
    for known in ALL_COLUMNS:
        if known.lower() == name.lower():
            return known
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in ALL_COLUMNS], 1)
    meant = next((known for known in ALL_COLUMNS if near and known.lower() == near[0]), None)
    hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(ALL_COLUMNS)}"
    raise UsageError(f"no column {name!r}: {hint}")


def schema_of(columns: Sequence[str]) -> StructType:
    """The columns as Spark's schema, in the order given."""
    from pyspark.sql.types import StructField, StructType

    types = _types()
    return StructType([StructField(name, types[name]) for name in columns])


def check_schema(schema: StructType) -> None:
    """Refuse a user's schema that is no choice of our columns, with `UsageError` (one line)."""
    types = _types()
    for field in schema.fields:
        name = column_named(field.name)
        if name != field.name:
            raise UsageError(f"no column {field.name!r}: did you mean {name!r}?")
        if field.dataType != types[name]:
            raise UsageError(
                f"column {name!r} is {types[name].simpleString()}, "
                f"the schema asks for {field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise UsageError(f"column {name!r} may be null, the schema says that it is not")
    if len({field.name for field in schema.fields}) < len(schema.fields):
        raise UsageError("a column stands in the schema twice")
    if not schema.fields:
        raise UsageError("the schema has no columns")
