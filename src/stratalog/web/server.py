"""Who answers, that it answers, and what it counts."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from stratalog.metrics import CONTENT_TYPE
from stratalog.web import bodies, documents
from stratalog.web.answers import answer
from stratalog.web.routing import NO_QUERY, TheDesk, documented, documented_text

router = APIRouter(tags=["server"])
metrics_router = APIRouter(tags=["server"])


@router.get("/health", dependencies=NO_QUERY, **documented(documents.Health))
def health(request: Request) -> Response:
    """That the server answers. It asks no log, so a disk that hangs does not keep it."""
    instance = request.app.state.instance
    return answer({"ok": True, "instance": instance, "process_id": os.getpid()})


@router.get("/server", dependencies=NO_QUERY, **documented(documents.ServerInfo))
def server_info(desk: TheDesk) -> Response:
    """What the server owns and runs."""
    return answer(desk.server_info())


@metrics_router.get("/metrics", **documented_text())
def metrics(request: Request, query: Annotated[bodies.Metrics, Query()]) -> Response:
    """What the store and the cleaner count, as Prometheus' text (ADM-3)."""
    text: str = request.app.state.metrics(query.per_partition)
    return Response(text.encode(), media_type=CONTENT_TYPE)
