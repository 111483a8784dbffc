"""What the routes share: the desk, names in paths, what the description says of each."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Path, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from stratalog.admin.desk import Desk
from stratalog.admin.desk.protocol import shown
from stratalog.web.answers import Refusal, RefusedError
from stratalog.web.documents import Error

_ERRORS = (400, 403, 404, 405, 408, 409, 413, 415, 421, 500, 501, 503, 507)


async def _desk(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


_LISTS = {"/storage": "partition", "/log-dirs": "topic"}
"""End of a path, and what may stand in its query more than once."""


async def _once(request: Request) -> None:
    """Of `dry_run=true&dry_run=false` the framework would take the last."""
    names = [name for name, _ in request.query_params.multi_items()]
    may = {name for end, name in _LISTS.items() if request.url.path.endswith(end)}
    twice = sorted({name for name in names if names.count(name) > 1} - may)
    if twice:
        raise RefusedError(Refusal(400, "bad_request", f"given more than once: {shown(twice[0])}"))


async def _body(request: Request) -> None:
    """No body where none is taken, and no name twice where one is: of `{"name": "a", "name": "b"}`
    the framework would take the last."""
    content = await request.body()
    if not content:
        return
    if getattr(request.scope["route"], "body_field", None) is None:
        raise RefusedError(Refusal(400, "bad_request", "a body is nothing that this takes"))
    with suppress(ValueError, RecursionError):  # the framework has its own words for these
        json.loads(content, object_pairs_hook=_told_once)


def _told_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        told = f"given more than once: {shown(twice)}"
        raise RefusedError(Refusal(400, "bad_request", told))
    return found


async def _no_query(request: Request) -> None:
    if request.query_params:
        names = shown(", ".join(sorted(request.query_params)))
        raise RefusedError(Refusal(400, "bad_request", f"nothing is known here of: {names}"))


ONCE = [Depends(_once), Depends(_body)]
"""Dependencies of all routes."""
NO_QUERY = [Depends(_no_query)]
"""Dependencies of a route that takes nothing behind the question mark."""
TheDesk = Annotated[Desk, Depends(_desk)]
TopicName = Annotated[str, Path(description="A topic's name.", min_length=1)]
Prefix = Annotated[str, Path(description="The beginning of topic names.")]


def confirmed(confirm: bool, dry_run: bool) -> None:
    """Raises `RefusedError` unless what takes something away is confirmed, or only tried."""
    if not confirm and not dry_run:
        message = "what this takes away does not come back: confirm=true does it, dry_run=true "
        raise RefusedError(Refusal(400, "confirmation_needed", message + "shows it"))


def documented(
    model: type[BaseModel], status: int = 200, *, also: tuple[int, ...] = ()
) -> dict[str, Any]:
    """What the description says of a route's answers.

    Answers are not made by the model: documents go out as the desk made them.
    """
    models = {**dict.fromkeys(_ERRORS, Error), **dict.fromkeys(also, model)}
    described = {
        code: {"model": found, "description": HTTPStatus(code).phrase}
        for code, found in models.items()
    }
    return {"response_model": model, "status_code": status, "responses": described}


def documented_text() -> dict[str, Any]:
    """The same of a route that answers plain text, and errors as all others."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Error.__name__}"}}}
    described: dict[int, dict[str, Any]] = {
        code: {"description": HTTPStatus(code).phrase, "content": content} for code in _ERRORS
    }
    return {"response_class": PlainTextResponse, "responses": described}
