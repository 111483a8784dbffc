"""What every request has to pass before anything looks at it.

    host and origin ─► how many at once ─► body: kind, size, time ─► the application

A server on loopback is within reach of every web page that a browser on the machine shows. Two
things keep such pages out. A page of another site that has its name point to 127.0.0.1 (DNS
rebinding) sends that name as `Host`: only names of loopback are served. A page that calls the right
address sends its own `Origin`: only the server's own is served, and no CORS header is ever
answered. Programs send no `Origin`.

A body is read whole before the application begins, so that neither its size nor its slowness costs
more than the bounds of `Limits`.

Invariants
- I1  What is refused has not been parsed beyond its headers, and has changed nothing.
- I2  A request holds one of `Limits.requests` places from its first byte of body to its answer's
      last; one too many is told to come again (503), it does not wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stratalog.web.answers import Refusal, refused
from stratalog.web.hosts import host_of, is_loopback

_BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what a client may ask of the server.

    body_bytes: 10,000 partitions named in a request are under 1 MiB, so 4 MiB. body_seconds: on
    loopback nobody honest takes so long. requests: each holds a thread; more than a few dozen would
    only wait for the same disks.
    """

    body_bytes: int = 4 << 20
    body_seconds: float = 10.0
    requests: int = 32


def refuse_headers(scope: Scope) -> Refusal | None:
    """Why a request is not served, by its `Host` and `Origin`; None if it is."""
    headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    hosts = [value for name, value in headers if name == b"host"]
    host = host_of(hosts[0]) if len(hosts) == 1 else None
    if host is None or not is_loopback(host):
        return Refusal(
            421, "host_refused", "only hosts of the loopback interface are served, like 127.0.0.1"
        )
    own = f"http://{hosts[0]}".lower()
    if any(value.lower() != own for name, value in headers if name == b"origin"):
        return Refusal(403, "origin_refused", "pages of other origins are not served")
    return None


def refuse_body(scope: Scope, limits: Limits) -> Refusal | None:
    """Why a body is not read, by its headers; None if it may be."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    declared = headers.get(b"content-length", "0")
    if not declared.isdecimal() or len(declared) > 20:
        return Refusal(400, "bad_request", "Content-Length is not a number")
    if int(declared) > limits.body_bytes:
        return _too_large(limits)
    has_body = int(declared) > 0 or b"transfer-encoding" in headers
    if not has_body or scope["method"] not in _BODY_METHODS:
        return None
    kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return Refusal(415, "unsupported_media_type", "a body is application/json")
    if headers.get(b"content-encoding", "identity").lower() != "identity":
        return Refusal(415, "unsupported_media_type", "a body is not compressed")
    return None


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self._app = app
        self._limits = limits
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])  # the server speaks nothing else
        refusal = refuse_headers(scope) or refuse_body(scope, self._limits)
        if refusal is None and self._running >= self._limits.requests:
            refusal = Refusal(503, "busy", "too many requests at once; try again")
        if refusal is not None:
            await refused(refusal)(scope, receive, send)
            return
        self._running += 1
        try:
            body = await self._body(receive)
            if isinstance(body, Refusal):
                await refused(body)(scope, receive, send)
            else:
                await self._app(scope, _replayed(body, receive), send)
        except _GoneError:
            return  # nobody is there to be answered
        finally:
            self._running -= 1

    async def _body(self, receive: Receive) -> bytes | Refusal:
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    body += message.get("body", b"")
                    if len(body) > self._limits.body_bytes:
                        return _too_large(self._limits)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            seconds = self._limits.body_seconds
            return Refusal(408, "too_slow", f"the body did not arrive within {seconds:g} s")


class _GoneError(Exception):
    """The client has closed its connection."""


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, "too_large", f"a body has at most {limits.body_bytes} bytes")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one piece; then whatever the connection tells."""
    is_told = False

    async def again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
