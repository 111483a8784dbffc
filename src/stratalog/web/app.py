"""The application: REST under /api/v1, its description, and /metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from stratalog import __version__
from stratalog.admin.desk import Desk
from stratalog.admin.desk.protocol import shown
from stratalog.base.errors import MissingExtraError, StratalogError
from stratalog.web import answers, compaction, configs, server, topics
from stratalog.web.answers import Refusal, RefusedError
from stratalog.web.background import PATIENCE_SECONDS, Background
from stratalog.web.guard import Guard, Limits
from stratalog.web.routing import NO_QUERY, ONCE

PREFIX = "/api/v1"
_LOG = logging.getLogger("stratalog.web")
_SHOWN_MISTAKES = 3
_PARTS = (topics, configs, compaction, server)
_DESCRIPTION = """Administration of a Stratalog server.

Every answer is one JSON object; every error is `{"error": {...}}`. What takes something away needs
`confirm=true`, or shows with `dry_run=true` what it would do. Compaction runs in the background.
"""


def create_app(
    desk: Desk,
    *,
    instance: str,
    metrics: Callable[[bool], str] | None = None,
    limits: Limits = Limits(),  # noqa: B008  (a value)
    patience_seconds: float = PATIENCE_SECONDS,
) -> ASGIApp:
    """REST over a desk.

    `instance` names this run of the server; `metrics` answers Prometheus' text, with each
    partition's or without. `patience_seconds`: how long a request for a compaction waits for a desk
    that compacts by itself. The desk's operations are called from several threads at once.
    """
    app = FastAPI(
        title="Stratalog",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,  # it has a route of its own below, with the checks of all
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        dependencies=ONCE,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.desk = desk
    app.state.background = Background(desk, patience_seconds)
    app.state.instance = instance
    app.state.metrics = metrics or _no_metrics
    for part in _PARTS:
        app.include_router(part.router, prefix=PREFIX)

    @app.get(f"{PREFIX}/openapi.json", include_in_schema=False, dependencies=NO_QUERY)
    def description() -> Response:
        return answers.answer(_described(app))

    app.include_router(server.metrics_router)
    app.add_exception_handler(StratalogError, _on_error)
    app.add_exception_handler(RefusedError, _on_refusal)
    app.add_exception_handler(RequestValidationError, _on_mistake)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_surprise)
    return Guard(app, limits)


def _described(app: FastAPI) -> dict[str, Any]:
    """The description. The framework adds what it would answer itself to a mistake: here mistakes
    are answered as all errors are (`_on_mistake`)."""
    document = app.openapi()
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    return document


def _no_metrics(_per_partition: bool) -> str:
    raise MissingExtraError("this server counts nothing")


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, StratalogError)
    if answers.status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # A text of a client's may have halves of characters, which no log can take.
        _LOG.warning("%s: %a", type(error).__name__, str(error))
    return answers.failed(error)


async def _on_refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return answers.refused(error.refusal)


async def _on_mistake(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answers.refused(Refusal(400, "bad_request", _sentence(error.errors())))


def _sentence(mistakes: Sequence[Mapping[str, Any]]) -> str:
    """The first mistakes of a request, each with its place. What was sent is not repeated."""
    told = []
    for mistake in mistakes[:_SHOWN_MISTAKES]:
        if mistake["type"] == "json_invalid":
            reason, at = mistake["ctx"]["error"], mistake["loc"][-1]
            told.append(f"body: it is no JSON: {reason}, at character {at}")
            continue
        place = ".".join(str(part)[:100] for part in mistake["loc"])
        told.append(f"{place}: {mistake['msg']}")
    more = len(mistakes) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


async def _on_http(request: Request, error: Exception) -> Response:
    """What the framework refuses: a path, a method, a body that is no JSON."""
    assert isinstance(error, HTTPException)
    code, headers = HTTPStatus(error.status_code).name.lower(), error.headers
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"there is nothing at this path; {PREFIX}/openapi.json lists what there is"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{shown(request.method)} is not what this path is for"
        headers = {"Allow": ", ".join(_methods_of(request.scope["path"]))}
    else:
        message = str(error.detail)
    return answers.refused(Refusal(error.status_code, code, message, headers))


def _methods_of(path: str) -> list[str]:
    """What may be asked of a path. A route has one method; the framework knows of the first."""
    routes = [(path.removeprefix(PREFIX), route) for part in _PARTS for route in part.router.routes]
    routes += [(path, route) for route in server.metrics_router.routes]
    found = {
        method
        for own, route in routes
        if isinstance(route, APIRoute) and route.path_regex.match(own)
        for method in route.methods or ()
    }
    return sorted(found) or ["GET"]


async def _on_surprise(_request: Request, _error: Exception) -> Response:
    return answers.broken()  # the framework raises it again, so that the server logs it
