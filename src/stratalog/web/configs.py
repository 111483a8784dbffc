"""Settings of a topic, of a prefix of topic names, of the broker."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from stratalog.admin.desk import Desk, Document, EntityType
from stratalog.web import bodies, documents
from stratalog.web.answers import answer
from stratalog.web.routing import Prefix, TheDesk, TopicName, documented

router = APIRouter(tags=["settings"])
All = Annotated[bodies.AllConfigs, Query()]
Change = Annotated[bodies.Change, Query()]


def _changed(
    desk: Desk, kind: EntityType, name: str | None, body: bodies.ConfigChange, query: bodies.Change
) -> Document:
    return desk.alter_configs(
        kind, name, body.set, body.delete, dry_run=query.dry_run, confirm=query.confirm
    )


@router.get("/topics/{topic}/configs", **documented(documents.Configs))
def topic_configs(desk: TheDesk, topic: TopicName, query: All) -> Response:
    """Settings in force at a topic, with the level that each comes from."""
    return answer(desk.describe_configs("topic", topic, all=query.all))


@router.patch("/topics/{topic}/configs", **documented(documents.ChangedConfigs))
def change_topic(
    desk: TheDesk, topic: TopicName, body: bodies.ConfigChange, query: Change
) -> Response:
    """Set and unset settings of a topic. Needs `confirm=true` where a topic leaves ledger mode and
    its ledgers alone have records."""
    return answer(_changed(desk, "topic", topic, body, query))


@router.get("/prefixes/{prefix:path}/configs", **documented(documents.Configs))
def prefix_configs(desk: TheDesk, prefix: Prefix, query: All) -> Response:
    """Settings of all topics whose names begin with a prefix."""
    return answer(desk.describe_configs("prefix", prefix, all=query.all))


@router.patch("/prefixes/{prefix:path}/configs", **documented(documents.ChangedConfigs))
def change_prefix(
    desk: TheDesk, prefix: Prefix, body: bodies.ConfigChange, query: Change
) -> Response:
    """Set and unset settings of a prefix of topic names."""
    return answer(_changed(desk, "prefix", prefix, body, query))


@router.get("/broker/configs", **documented(documents.Configs))
def broker_configs(desk: TheDesk, query: All) -> Response:
    """Settings of the broker, which are the defaults of all topics."""
    return answer(desk.describe_configs("broker", None, all=query.all))


@router.patch("/broker/configs", **documented(documents.ChangedConfigs))
def change_broker(desk: TheDesk, body: bodies.ConfigChange, query: Change) -> Response:
    """Set and unset settings of the broker, as far as they can change while it runs."""
    return answer(_changed(desk, "broker", None, body, query))
