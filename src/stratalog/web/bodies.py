"""What requests carry: bodies and queries. Unknown names and other types are refused, not ignored:
a mistyped `dry_run` must not delete anything.

What values mean is the desk's to judge; here stands only what JSON and a URL can say.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Texts = dict[str, str]
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_FLAGS = {"true": True, "false": False}


def _flag(text: Any) -> Any:
    if isinstance(text, str) and text not in _FLAGS:
        raise ValueError("true or false")
    return _FLAGS.get(text, text)


def _whole(text: Any) -> Any:
    if isinstance(text, str) and not _WHOLE.fullmatch(text):
        raise ValueError("not a whole number of at most 19 digits")
    return text


Flag = Annotated[bool, BeforeValidator(_flag)]
Whole = Annotated[int, BeforeValidator(_whole)]
"""In a query. Pydantic alone would take `yes`, `1`, `1.0` and more for them."""


class Body(BaseModel):
    """The content of a request: of exactly these names and types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """What stands behind the question mark."""

    model_config = ConfigDict(extra="forbid")


class NewTopic(Body):
    """A topic to be made."""

    name: Annotated[str, Field(description="1 to 249 of ASCII letters, digits, '.', '_' and '-'.")]
    partitions: Annotated[int, Field(description="How many, from 1 on.")] = 1
    configs: Annotated[Texts, Field(description="Settings of the topic, as texts.")] = {}


class PartitionCount(Body):
    """How many partitions a topic is to have."""

    count: Annotated[int, Field(description="All of them; more than there are.")]


class ConfigChange(Body):
    """Settings to set and to unset; all of it or nothing."""

    set: Annotated[Texts, Field(description="Name and new value, as text.")] = {}
    delete: Annotated[list[str], Field(description="Names that are to have no value here.")] = []


class OffsetToDelete(Body):
    """Up to where a partition's records go."""

    topic: str
    partition: int
    offset: Annotated[
        int | str,
        Field(description='The first offset that stays; -1 or "end": none does; "@MS": by time.'),
    ]


class RecordsToDelete(Body):
    """Partitions and up to where their records go."""

    offsets: list[OffsetToDelete]


DryRun = Annotated[Flag, Field(description="Answer what would be done, and do nothing.")]
Confirm = Annotated[
    Flag, Field(description="Needed to do it: what this takes away does not come back.")
]
OnePartition = Annotated[
    Whole | None, Field(description="Only this one of the topic's partitions.")
]


class Create(Query):
    dry_run: DryRun = False
    if_not_exists: Annotated[Flag, Field(description="One that is there is no error.")] = False


class Delete(Query):
    dry_run: DryRun = False
    confirm: Confirm = False
    if_exists: Annotated[Flag, Field(description="One that is not there is no error.")] = False


class DeleteRecords(Query):
    dry_run: DryRun = False
    confirm: Confirm = False


class Change(Query):
    dry_run: DryRun = False
    confirm: Annotated[
        Flag, Field(description="What only ledgers have may go with them, where a topic leaves.")
    ] = False


class AllConfigs(Query):
    all: Annotated[Flag, Field(description="Also those that are not set here.")] = False


class SomePartitions(Query):
    partition: Annotated[
        list[Whole] | None, Field(description="Only these; give it once for each.")
    ] = None


class SomeTopics(Query):
    topic: Annotated[list[str] | None, Field(description="Only these; give it once for each.")] = (
        None
    )


class OfTopic(Query):
    partition: OnePartition = None


class Of(Query):
    topic: Annotated[str | None, Field(description="Only this topic.")] = None
    partition: OnePartition = None


class HistoryOf(Of):
    limit: Annotated[Whole | None, Field(description="At most so many of each partition.")] = None


class Metrics(Query):
    per_partition: Annotated[Flag, Field(description="Also what each partition has.")] = True
