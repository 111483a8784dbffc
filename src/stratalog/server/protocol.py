"""Uvicorn's HTTP/1.1, but no client is waited for forever.

Uvicorn bounds how long a connection is idle between requests. It waits without end for the first
request, for the rest of a header, and for a client that does not read its answer; each costs a
descriptor, and the last one the memory of the answer.

Invariants
- I1  A connection without a request that is being answered is closed after `HEADER_SECONDS` at the
      latest, however often a byte comes; bodies are the application's to bound.
- I2  A client that takes nothing of its answer for `READ_SECONDS` loses the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stratalog.web.answers import Refusal, refused

HEADER_SECONDS = 10.0
READ_SECONDS = 30.0


class ImpatientProtocol(H11Protocol):
    """One connection."""

    _header: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        # Uvicorn's own refusal of one connection too many has not the shape of all errors.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._served, self.app = self.app, self._bounded

    async def _bounded(self, scope: Any, receive: Any, send: Any) -> None:
        if self._most is not None and len(self.connections) >= self._most:
            message = "too many connections at once; try again"
            refusal = Refusal(503, "busy", message, {"Connection": "close"})
            await refused(refusal)(scope, receive, send)
        else:
            await self._served(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header = self.loop.call_later(HEADER_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header, self._reader):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            if self._header is not None:
                self._header.cancel()
                self._header = None
        elif self._header is None:
            self._header = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's words)
        """What is no HTTP is refused in the shape of all errors."""
        message = "this is no request of HTTP/1.1: whole lines, one Host, some 64 KiB at most"
        response = refused(Refusal(400, "bad_request", message, {"Connection": "close"}))
        head = h11.Response(status_code=400, headers=response.raw_headers, reason=b"Bad Request")
        with suppress(h11.LocalProtocolError):  # an answer to an earlier request is on its way
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
