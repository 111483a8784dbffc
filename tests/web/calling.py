"""Calls an application of `create_app` without a socket, and says what came back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message

HOST = "127.0.0.1:9750"
API = "/api/v1"


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The word of an error, whose shape is checked."""
        error = self.json["error"]
        assert self.json.keys() == {"error"}
        assert error.keys() == {"code", "message", "type", "kafka_code"}
        assert error["message"]
        assert "\n" not in error["message"]
        assert isinstance(error["code"], str)
        return str(error["code"])


@dataclass(frozen=True)
class Caller:
    """Calls `app` as a client of this machine would."""

    app: ASGIApp

    def __call__(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: Iterable[bytes] | None = None,
        host: str | None = HOST,
    ) -> Answer:
        """`body` is sent as JSON; `raw` as it is, in these pieces, its size undeclared."""
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        pieces = list(raw or [])
        if body is not None:
            pieces = [json.dumps(body).encode()]
            sent.setdefault("content-length", str(len(pieces[0])))
        if pieces:
            sent.setdefault("content-type", "application/json")
            if "content-length" not in sent:
                sent.setdefault("transfer-encoding", "chunked")
        if host is not None:
            sent.setdefault("host", host)
        return asyncio.run(self._call(method, target, sent, pieces))

    async def _call(
        self, method: str, target: str, headers: Mapping[str, str], pieces: list[bytes]
    ) -> Answer:
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(path).decode("utf-8", "replace"),
            "raw_path": path.encode(),
            "query_string": query.encode("latin-1"),
            "root_path": "",
            "headers": [
                (name.encode(), value.encode("latin-1")) for name, value in headers.items()
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 9750),
        }
        waiting = [
            {"type": "http.request", "body": piece, "more_body": slot + 1 < len(pieces)}
            for slot, piece in enumerate(pieces or [b""])
        ]
        told: list[Message] = []

        async def receive() -> Message:
            if waiting:
                return waiting.pop(0)
            await asyncio.Event().wait()  # the client waits for its answer
            raise AssertionError

        async def send(message: Message) -> None:
            told.append(message)

        await self.app(scope, receive, send)
        start, *bodies = told
        assert start["type"] == "http.response.start"
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        content = b"".join(message.get("body", b"") for message in bodies)
        return Answer(start["status"], found, content)
