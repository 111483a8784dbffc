"""A `Desk` that asks a server: the same operations, documents and errors as in this process.

    server = find_server("data", LocalFileSystem())
    if server is not None:
        server.compact("stocks")

An answer that is not what the server would say (another program has the port, a proxy, half an
answer) is `RemoteProtocolError`; a server that is gone is `StorageIOError`. Both are one line.

Invariants
- I1  Nothing is asked twice: whoever loses an answer is told so, and cannot know what was done.
- I2  An answer is bounded in size, and each wait for the server in time.
- I3  Importing this costs the standard library's HTTP client and nothing else.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from stratalog.base import errors
from stratalog.base.errors import (
    LogLockedError,
    RemoteProtocolError,
    StorageIOError,
    StratalogError,
)
from stratalog.log.locking import lock_directory
from stratalog.server.address import read_address

if TYPE_CHECKING:
    from stratalog.admin.desk.protocol import Document, EntityType
    from stratalog.base.filesystem import FileSystem

API = "/api/v1"
TIMEOUT_SECONDS = 60.0
"""For each wait: deleting a topic waits for a round to be aborted, a listing reads many headers."""
_HEALTH_TIMEOUT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 256 << 20
"""Half a million segments of `describe_storage`."""

_Query = Mapping[str, bool | int | str | Sequence[int] | Sequence[str] | None]


class RemoteDesk:
    """The desk of the server at `url`, e.g. `http://127.0.0.1:9750`. Any thread may use it; each
    call has a connection of its own."""

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS):
        """Asks nothing yet. Raises `UsageError` for what is no URL of a server."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # an address in half a bracket, a port out of all bounds
            parts, host, port = urlsplit(""), None, None
        if parts.scheme != "http" or not host or parts.path.strip("/") or parts.query:
            raise errors.UsageError(f"{url!r} is no server's address like http://127.0.0.1:9750")
        self.url = url.rstrip("/")
        self._host, self._port = host, port
        self._timeout_seconds = timeout_seconds

    @property
    def place(self) -> str:
        """Where it works, for people."""
        return f"by the server at {self.url}"

    # -- topics -----------------------------------------------------------------------------------

    def list_topics(self) -> Document:
        return self._ask("GET", "/topics")

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
    ) -> Document:
        body = {"name": name, "partitions": partitions, "configs": dict(configs or {})}
        query = {"if_not_exists": if_not_exists, "dry_run": dry_run}
        return self._ask("POST", "/topics", query, body)

    def describe_topic(self, name: str) -> Document:
        return self._ask("GET", _topic(name))

    def describe_storage(self, name: str, partitions: Sequence[int] | None = None) -> Document:
        return self._ask("GET", _topic(name) + "/storage", {"partition": partitions})

    def delete_topic(
        self, name: str, *, if_exists: bool = False, dry_run: bool = False
    ) -> Document:
        query = {"if_exists": if_exists, "dry_run": dry_run, "confirm": True}
        return self._ask("DELETE", _topic(name), query)

    def add_partitions(self, name: str, count: int, *, dry_run: bool = False) -> Document:
        path = _topic(name) + "/partitions"
        return self._ask("POST", path, {"dry_run": dry_run}, {"count": count})

    # -- settings ---------------------------------------------------------------------------------

    def describe_configs(
        self,
        entity_type: EntityType,
        name: str | None = None,
        *,
        all: bool = False,  # noqa: A002
    ) -> Document:
        return self._ask("GET", _configs(entity_type, name), {"all": all})

    def alter_configs(
        self,
        entity_type: EntityType,
        name: str | None,
        set: Mapping[str, str] | None = None,  # noqa: A002
        delete: Sequence[str] = (),
        *,
        dry_run: bool = False,
        confirm: bool = False,
    ) -> Document:
        body = {"set": dict(set or {}), "delete": list(delete)}
        query = {"dry_run": dry_run, "confirm": confirm}
        return self._ask("PATCH", _configs(entity_type, name), query, body)

    # -- records and directories ------------------------------------------------------------------

    def delete_records(
        self, offsets: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Document:
        body = {"offsets": [dict(item) for item in offsets]}
        return self._ask("POST", "/records/delete", {"dry_run": dry_run, "confirm": True}, body)

    def describe_log_dirs(self, topics: Sequence[str] | None = None) -> Document:
        return self._ask("GET", "/log-dirs", {"topic": topics})

    # -- compaction -------------------------------------------------------------------------------

    def compact(self, topic: str, partition: int | None = None) -> Document:
        return self._ask("POST", _topic(topic) + "/compaction", {"partition": partition})

    def cancel(self, topic: str, partition: int | None = None) -> Document:
        return self._ask("POST", _topic(topic) + "/compaction/cancel", {"partition": partition})

    def compaction_status(self, topic: str | None = None, partition: int | None = None) -> Document:
        return self._ask("GET", "/compaction", {"topic": topic, "partition": partition})

    def explain(self, topic: str | None = None, partition: int | None = None) -> Document:
        return self._ask("GET", "/compaction/explain", {"topic": topic, "partition": partition})

    def history(
        self, topic: str | None = None, partition: int | None = None, limit: int | None = None
    ) -> Document:
        query = {"topic": topic, "partition": partition, "limit": limit}
        return self._ask("GET", "/compaction/history", query)

    def pause(self, topic: str, partition: int | None = None) -> Document:
        return self._ask("POST", _topic(topic) + "/compaction/pause", {"partition": partition})

    def resume(self, topic: str, partition: int | None = None) -> Document:
        return self._ask("POST", _topic(topic) + "/compaction/resume", {"partition": partition})

    def retry(self, topic: str | None = None, partition: int | None = None) -> Document:
        return self._ask("POST", "/cleaner/retry", {"topic": topic, "partition": partition})

    def cleaner_status(self) -> Document:
        return self._ask("GET", "/cleaner")

    def server_info(self) -> Document:
        return self._ask("GET", "/server")

    def health(self) -> Document:
        """That the server answers, and its `instance`."""
        return self._ask("GET", "/health")

    # -- asking -----------------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, query: _Query | None = None, body: object = None
    ) -> Document:
        target = API + path + _encoded(query or {})
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Connection": "close"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=self._timeout_seconds
        )
        with closing(connection):
            try:
                connection.request(method, target, content, headers)
                response = connection.getresponse()
                received = response.read(_MAX_ANSWER_BYTES + 1)
                if response.length and len(received) <= _MAX_ANSWER_BYTES:
                    self._gone("its answer broke off")
            except TimeoutError:
                self._gone(f"no answer within {self._timeout_seconds:g} s")
            except OSError as error:
                self._gone(error.strerror or str(error))
            except http.client.HTTPException as error:
                raise self._strange(type(error).__name__) from error
        if len(received) > _MAX_ANSWER_BYTES:
            raise self._strange(f"more than {_MAX_ANSWER_BYTES} bytes")
        document = self._decoded(received)
        if 200 <= response.status < 300:
            return document
        raise self._error_of(response.status, document)

    def _decoded(self, content: bytes) -> Document:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            raise self._strange("no JSON") from None
        if not isinstance(document, dict):
            raise self._strange("no JSON object")
        return document

    def _error_of(self, status: int, document: Document) -> StratalogError:
        found = document.get("error")
        if not isinstance(found, dict):
            return self._strange(f"status {status}")
        kind = getattr(errors, str(found.get("type")), None)
        if not (isinstance(kind, type) and issubclass(kind, StratalogError)):
            kind = StratalogError
        return kind(" ".join(str(found.get("message")).splitlines()))

    def _gone(self, cause: str) -> NoReturn:
        raise StorageIOError(f"the server at {self.url} does not answer: {cause}") from None

    def _strange(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.url} is not a Stratalog server: it answers {what}")


def find_server(
    log_dir: str, filesystem: FileSystem, timeout_seconds: float = TIMEOUT_SECONDS
) -> RemoteDesk | None:
    """The desk of the server that owns a data directory; None if no server does.

    Raises `StorageIOError` if there is one that does not answer.
    """
    address = read_address(log_dir, filesystem)
    if address is None:
        return None
    try:
        answered = RemoteDesk(address.url, _HEALTH_TIMEOUT_SECONDS).health()
        if answered.get("instance") == address.instance:
            return RemoteDesk(address.url, timeout_seconds)
    except StratalogError as error:
        if is_locked(log_dir, filesystem):
            raise StorageIOError(
                f"{log_dir} is in use by process {address.process_id}, and {error}"
            ) from error
    return None


def is_locked(log_dir: str, filesystem: FileSystem) -> bool:
    """Whether a live process owns a data directory."""
    try:
        release = lock_directory(log_dir, filesystem, exclusive=False)
    except LogLockedError:
        return True
    if release is not None:
        release()
    return False


def _topic(name: str) -> str:
    if not _is_sendable(name):
        from stratalog.admin.desk.describing import unknown_topic

        raise unknown_topic(name)
    return f"/topics/{_quoted(name)}"


def _configs(entity_type: str, name: str | None) -> str:
    """The path of an entity's settings; what is no entity is refused in a desk's words."""
    if entity_type not in ("topic", "prefix", "broker"):
        raise errors.UsageError(f"{entity_type!r} is none of topic, prefix, broker")
    if entity_type == "broker":
        if name is not None:
            raise errors.UsageError("the broker has no name here: there is one")
        return "/broker/configs"
    if name is None:
        raise errors.UsageError(f"which {entity_type}?")
    if entity_type == "prefix":
        return f"/prefixes/{_quoted(name)}/configs"
    return _topic(name) + "/configs"


def _is_sendable(name: str) -> bool:
    """Whether a name can be one step of a path."""
    return bool(name) and "/" not in name


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="replace")


def _encoded(query: _Query) -> str:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        pairs += [(name, _text(item)) for item in values if item is not None and item is not False]
    return "?" + urlencode(pairs, errors="replace") if pairs else ""


def _text(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
