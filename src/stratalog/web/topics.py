"""Topics: made, listed, described, deleted, and their partitions and records."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from stratalog.web import bodies, documents, documents_compaction
from stratalog.web.answers import answer
from stratalog.web.routing import NO_QUERY, TheDesk, TopicName, confirmed, documented

router = APIRouter(tags=["topics"])


@router.get("/topics", dependencies=NO_QUERY, **documented(documents.Topics))
def list_topics(desk: TheDesk) -> Response:
    """All topics, by name."""
    return answer(desk.list_topics())


@router.post("/topics", **documented(documents.CreatedTopic, 201, also=(200,)))
def create_topic(
    desk: TheDesk, body: bodies.NewTopic, query: Annotated[bodies.Create, Query()]
) -> Response:
    """Make a topic. 201: it is made; 200: it was there, or this was a dry run."""
    document = desk.create_topic(
        body.name,
        body.partitions,
        body.configs,
        if_not_exists=query.if_not_exists,
        dry_run=query.dry_run,
    )
    return answer(document, 201 if document["applied"] and document["created"] else 200)


@router.get("/topics/{topic}", dependencies=NO_QUERY, **documented(documents.Topic))
def describe_topic(desk: TheDesk, topic: TopicName) -> Response:
    """One topic and its partitions."""
    return answer(desk.describe_topic(topic))


@router.delete("/topics/{topic}", **documented(documents.DeletedTopic))
def delete_topic(
    desk: TheDesk, topic: TopicName, query: Annotated[bodies.Delete, Query()]
) -> Response:
    """Delete a topic with all that it has; needs `confirm=true` or `dry_run=true`."""
    confirmed(query.confirm, query.dry_run)
    document = desk.delete_topic(topic, if_exists=query.if_exists, dry_run=query.dry_run)
    return answer(document)


@router.post("/topics/{topic}/partitions", **documented(documents.AddedPartitions))
def add_partitions(
    desk: TheDesk,
    topic: TopicName,
    body: bodies.PartitionCount,
    query: Annotated[bodies.Change, Query()],
) -> Response:
    """Have `count` partitions from now on."""
    return answer(desk.add_partitions(topic, body.count, dry_run=query.dry_run))


@router.get("/topics/{topic}/storage", **documented(documents_compaction.Storage))
def describe_storage(
    desk: TheDesk, topic: TopicName, query: Annotated[bodies.SomePartitions, Query()]
) -> Response:
    """One topic's segments."""
    return answer(desk.describe_storage(topic, query.partition))


@router.post("/records/delete", **documented(documents.DeletedRecords))
def delete_records(
    desk: TheDesk,
    body: bodies.RecordsToDelete,
    query: Annotated[bodies.DeleteRecords, Query()],
) -> Response:
    """Delete the records below offsets; needs `confirm=true` or `dry_run=true`."""
    confirmed(query.confirm, query.dry_run)
    offsets = [item.model_dump() for item in body.offsets]
    return answer(desk.delete_records(offsets, dry_run=query.dry_run))


@router.get("/log-dirs", **documented(documents.LogDirs))
def describe_log_dirs(desk: TheDesk, query: Annotated[bodies.SomeTopics, Query()]) -> Response:
    """The log directories, their disks, and the partitions that lie there."""
    return answer(desk.describe_log_dirs(query.topic))
