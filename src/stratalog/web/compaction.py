"""Compaction: started, stopped, watched, explained; the cleaner that does it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from stratalog.web import bodies, documents_compaction
from stratalog.web.answers import answer
from stratalog.web.background import Background
from stratalog.web.routing import NO_QUERY, TheDesk, TopicName, documented

router = APIRouter(tags=["compaction"])
OfTopic = Annotated[bodies.OfTopic, Query()]
Of = Annotated[bodies.Of, Query()]


@router.post("/topics/{topic}/compaction", **documented(documents_compaction.Compaction, 202))
def compact(request: Request, topic: TopicName, query: OfTopic) -> Response:
    """Compact a topic, or one of its partitions, in the background; the answer is the status.

    What is being compacted already goes on, and its status is what is answered.
    """
    background: Background = request.app.state.background
    return answer(background.compact(topic, query.partition), 202)


@router.get("/topics/{topic}/compaction", **documented(documents_compaction.CompactionStatus))
def topic_status(desk: TheDesk, topic: TopicName, query: OfTopic) -> Response:
    """How far the compaction of a topic has come, and what came of the last one."""
    return answer(desk.compaction_status(topic, query.partition))


@router.post("/topics/{topic}/compaction/cancel", **documented(documents_compaction.Changes))
def cancel(desk: TheDesk, topic: TopicName, query: OfTopic) -> Response:
    """Stop what runs and forget what waits; the log stays as it was."""
    return answer(desk.cancel(topic, query.partition))


@router.post("/topics/{topic}/compaction/pause", **documented(documents_compaction.Changes))
def pause(desk: TheDesk, topic: TopicName, query: OfTopic) -> Response:
    """No compaction until `resume`, also after a restart."""
    return answer(desk.pause(topic, query.partition))


@router.post("/topics/{topic}/compaction/resume", **documented(documents_compaction.Changes))
def resume(desk: TheDesk, topic: TopicName, query: OfTopic) -> Response:
    """End a pause."""
    return answer(desk.resume(topic, query.partition))


@router.get("/compaction", **documented(documents_compaction.CompactionStatus))
def status(desk: TheDesk, query: Of) -> Response:
    """The compaction of all partitions, or of some."""
    return answer(desk.compaction_status(query.topic, query.partition))


@router.get("/compaction/explain", **documented(documents_compaction.Explanations))
def explain(desk: TheDesk, query: Of) -> Response:
    """Why partitions are or are not compacted, in a sentence and with what decides."""
    return answer(desk.explain(query.topic, query.partition))


@router.get("/compaction/history", **documented(documents_compaction.Histories))
def history(desk: TheDesk, query: Annotated[bodies.HistoryOf, Query()]) -> Response:
    """The newest rounds of partitions, oldest first."""
    return answer(desk.history(query.topic, query.partition, query.limit))


@router.get("/cleaner", dependencies=NO_QUERY, **documented(documents_compaction.Cleaner))
def cleaner_status(desk: TheDesk) -> Response:
    """What the cleaner does, what waits, what it passes over."""
    return answer(desk.cleaner_status())


@router.post("/cleaner/retry", **documented(documents_compaction.Changes))
def retry(desk: TheDesk, query: Of) -> Response:
    """Do not wait for the back-off of partitions in which cleaning has failed."""
    return answer(desk.retry(query.topic, query.partition))
