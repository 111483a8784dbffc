"""Documents and errors as responses; the one table of which error is which status.

    {"error": {"code": "unknown_partition", "message": "...", "type": "UnknownPartitionError",
               "kafka_code": 3}}

`code` is a word that stays: the error's class, or what HTTP itself refuses (`not_found`, `busy`).
`type` is the class of `base.errors` that a client raises again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from stratalog.admin.desk.protocol import short_message
from stratalog.base import errors

_STATUSES: tuple[tuple[type[errors.StratalogError], int], ...] = (
    (errors.UnknownPartitionError, 404),
    (errors.PartitionExistsError, 409),
    (errors.LogLockedError, 409),
    (errors.IllegalStepError, 409),
    (errors.PolicyViolationError, 403),
    (errors.MissingExtraError, 501),
    (errors.UsageError, 400),
    (errors.RoundAbortedError, 409),
    (errors.LogChangedError, 503),
    (errors.LogOfflineError, 503),
    (errors.StorageFullError, 507),
    (errors.StorageIOError, 503),
)
"""The first that fits counts. What none fits (damage, another server's nonsense) is a 500."""

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What HTTP refuses before a desk is asked. `headers` go with the answer."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] | None = None


class RefusedError(Exception):
    """Carries a refusal out of a route."""

    def __init__(self, refusal: Refusal):
        super().__init__(refusal.message)
        self.refusal = refusal


def answer(
    document: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A document as it is. Only ASCII, so that no text of a log's can be one that UTF-8 has not."""
    content = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    response = Response(content.encode(), status, headers, "application/json")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def refused(refusal: Refusal) -> Response:
    """A refusal of HTTP's own, in the shape of all errors."""
    content = _content(refusal.code, refusal.message, "UsageError", errors.UsageError.kafka_code)
    return answer(content, refusal.status, refusal.headers)


def failed(error: errors.StratalogError) -> Response:
    """An error of a desk's."""
    name = type(error).__name__
    return answer(
        _content(code_of(type(error)), str(error), name, error.kafka_code), status_of(error)
    )


def broken() -> Response:
    """An error that nobody expected; what it was stands in the server's log."""
    message = "an error inside the server; its own messages tell more"
    return answer(_content("internal", message, "StratalogError", -1), 500)


def status_of(error: errors.StratalogError) -> int:
    """The status of HTTP that an error is."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def code_of(kind: type[errors.StratalogError]) -> str:
    """The word for a class of errors: `invalid_config` for `InvalidConfigError`."""
    return _WORD.sub("_", kind.__name__.removesuffix("Error")).lower()


def _content(code: str, message: str, name: str, kafka_code: int) -> dict[str, Any]:
    # A value that is refused may have lines, and stands in the message.
    line = short_message(" ".join(message.splitlines()))
    return {"error": {"code": code, "message": line, "type": name, "kafka_code": kafka_code}}
