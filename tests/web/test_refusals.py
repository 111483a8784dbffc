"""What REST refuses, with which status and word, and that nothing was done then."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stratalog.admin.desk import OwnDesk
from stratalog.base import errors
from stratalog.base.errors import StratalogError
from stratalog.web.answers import code_of, status_of
from stratalog.web.app import create_app
from stratalog.web.guard import Limits
from stratalog.web.hosts import host_of, is_loopback
from tests.web.calling import API, HOST, Caller
from tests.web.conftest import LIMITS

ONE = [{"topic": "stocks", "partition": 0, "offset": 1}]
LONE = b'{"name": "\\ud800"}'
DEEP = b"[" * 2000

# method, target, body, status, code, part of the message
REFUSED: list[tuple[str, str, object, int, str, str]] = [
    # not there
    ("GET", "/topics/nope", None, 404, "unknown_partition", "Topic 'nope' does not exist"),
    ("GET", "/topics/nope/storage", None, 404, "unknown_partition", "'nope'"),
    ("GET", "/topics/stocks/storage?partition=9", None, 404, "unknown_partition", "9"),
    ("DELETE", "/topics/nope?confirm=true", None, 404, "unknown_partition", "'nope'"),
    ("POST", "/topics/nope/compaction", None, 404, "unknown_partition", "'nope'"),
    ("POST", "/topics/stocks/compaction?partition=9", None, 404, "unknown_partition", "9"),
    ("GET", "/topics/nope/configs", None, 404, "unknown_partition", "'nope'"),
    ("POST", "/topics/nope/partitions", {"count": 3}, 404, "unknown_partition", "'nope'"),
    ("GET", "/log-dirs?topic=nope", None, 404, "unknown_partition", "'nope'"),
    ("GET", "/compaction?topic=nope", None, 404, "unknown_partition", "'nope'"),
    ("GET", "/nowhere", None, 404, "not_found", "openapi.json"),
    ("GET", "/topics/", None, 404, "not_found", "nothing"),
    ("GET", "/topics/a/b/c", None, 404, "not_found", "nothing"),
    # names that are paths
    ("GET", "/topics/..%2F..%2Fetc", None, 404, "not_found", "nothing"),
    ("GET", "/topics/..", None, 404, "unknown_partition", "'..'"),
    ("GET", "/topics/%00", None, 404, "unknown_partition", "topic name"),
    ("DELETE", "/topics/..?confirm=true", None, 404, "unknown_partition", "'..'"),
    ("POST", "/topics", {"name": "../up"}, 400, "usage", "invalid"),
    ("POST", "/topics", {"name": "a/b"}, 400, "usage", "invalid"),
    ("POST", "/topics", {"name": "a\u0000"}, 400, "usage", "invalid"),
    ("POST", "/topics", {"name": ""}, 400, "usage", "empty string"),
    ("POST", "/topics", {"name": "x" * 250}, 400, "usage", "249"),
    # there already
    ("POST", "/topics", {"name": "stocks"}, 409, "partition_exists", "already exists"),
    # bad values, with Kafka's reasons
    (
        *("PATCH", "/topics/stocks/configs", {"set": {"retention.ms": "soon"}}, 400),
        *("invalid_config", "Not a number of type LONG"),
    ),
    (
        *("PATCH", "/topics/stocks/configs", {"set": {"retention.mss": "1"}}, 400),
        *("invalid_config", "retention.mss"),
    ),
    (
        *("PATCH", "/broker/configs", {"set": {"log.dirs": "/x"}}, 400),
        *("invalid_config", "Cannot update these configs dynamically"),
    ),
    ("PATCH", "/prefixes//configs", {"set": {"retention.ms": "1"}}, 400, "invalid_config", "name"),
    ("PATCH", "/topics/stocks/configs", {}, 400, "usage", "nothing"),
    ("POST", "/topics", {"name": "n", "partitions": 0}, 400, "usage", "larger than 0"),
    ("POST", "/topics", {"name": "n", "partitions": 10**9}, 400, "usage", "Excessively large"),
    ("POST", "/topics", {"name": "n", "configs": {"a": "b"}}, 400, "invalid_config", "a"),
    ("POST", "/topics/stocks/partitions", {"count": 1}, 400, "usage", "higher than"),
    ("POST", "/records/delete?confirm=true", {"offsets": []}, 400, "usage", "no partition"),
    (
        *("PATCH", "/topics/stocks/configs", {"set": {"retention.ms": "1\n2"}}, 400),
        *("invalid_config", "1 2"),
    ),
    # no confirmation
    ("DELETE", "/topics/stocks", None, 400, "confirmation_needed", "confirm=true"),
    ("DELETE", "/topics/stocks?confirm=false", None, 400, "confirmation_needed", "dry_run=true"),
    ("POST", "/records/delete", {"offsets": ONE}, 400, "confirmation_needed", "confirm=true"),
    # not what the description says
    ("POST", "/topics", {"name": 5}, 400, "bad_request", "body.name"),
    ("POST", "/topics", {}, 400, "bad_request", "body.name: Field required"),
    ("POST", "/topics", [], 400, "bad_request", "body"),
    ("POST", "/topics", None, 400, "bad_request", "body"),
    ("POST", "/topics", {"name": "n", "partitions": "2"}, 400, "bad_request", "integer"),
    ("POST", "/topics", {"name": "n", "partitions": True}, 400, "bad_request", "integer"),
    ("POST", "/topics", {"name": "n", "partitions": 1.5}, 400, "bad_request", "integer"),
    ("POST", "/topics", {"name": "n", "parts": 2}, 400, "bad_request", "body.parts"),
    ("POST", "/topics", {"name": "n", "configs": {"a": 1}}, 400, "bad_request", "string"),
    ("DELETE", "/topics/stocks?confirm=true&dryrun=true", None, 400, "bad_request", "dryrun"),
    ("DELETE", "/topics/stocks?confirm=1", None, 400, "bad_request", "true or false"),
    (
        *("DELETE", "/topics/stocks?confirm=true&confirm=false", None, 400),
        *("bad_request", "more than once"),
    ),
    ("GET", "/compaction?topic=stocks&topic=events", None, 400, "bad_request", "more than once"),
    ("GET", "/topics?all=true", None, 400, "bad_request", "all"),
    ("GET", "/compaction/history?limit=many", None, 400, "bad_request", "query.limit"),
    ("GET", "/compaction/history?limit=1.0", None, 400, "bad_request", "whole number"),
    ("GET", "/compaction?partition=" + "9" * 5000, None, 400, "bad_request", "whole number"),
    ("GET", "/compaction/history?limit=0", None, 400, "usage", "1 or more"),
    ("GET", "/compaction/history?limit=-1", None, 400, "usage", "1 or more"),
    ("GET", "/openapi.json?x=1", None, 400, "bad_request", "x"),
    ("GET", "/prefixes/%2F/configs", None, 400, "invalid_config", "no part of a topic's name"),
    ("GET", "/prefixes//configs", None, 400, "invalid_config", "no part of a topic's name"),
    # a body where none is taken
    ("DELETE", "/topics/stocks?confirm=true", {"dry_run": True}, 400, "bad_request", "a body"),
    ("GET", "/topics", {"topic": "stocks"}, 400, "bad_request", "a body"),
    ("POST", "/topics/stocks/compaction", {"partition": 0}, 400, "bad_request", "a body"),
    ("GET", "/openapi.json", {}, 400, "bad_request", "a body"),
    ("PUT", "/topics", {"name": "n"}, 405, "method_not_allowed", "PUT"),
    ("TRACE", "/topics", None, 405, "method_not_allowed", "TRACE"),
]


class _Saying:
    """A desk that always says the same, or fails in the same way."""

    def __init__(self, said: Any):
        self._said = said

    def list_topics(self) -> Any:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


def saying(said: Any) -> Caller:
    """REST over a desk without a disk."""
    return Caller(create_app(_Saying(said), instance="x", limits=LIMITS))  # type: ignore[arg-type]


quiet = saying({"ok": True, "topics": []})


def state_of(desk: OwnDesk) -> Any:
    return [desk.list_topics(), desk.describe_configs("topic", "stocks"), desk.compaction_status()]


@pytest.mark.requirement("ADM-1")
@pytest.mark.parametrize(
    "content",
    [
        b'{"name": "x", "name": "y"}',
        b'{"name": "x", "configs": {"retention.ms": "1", "retention.ms": "2"}}',
        b'{"name": "x", "partitions": 1, "partitions": "two"}',
        b'{"name": "x", "\\u006eame": "y"}',
    ],
)
def test_a_name_stands_once_in_a_body(call: Caller, desk: OwnDesk, content: bytes) -> None:
    answer = call("POST", f"{API}/topics", raw=[content])
    assert (answer.status, answer.code) == (400, "bad_request")
    assert "more than once" in answer.json["error"]["message"]
    assert desk.topic_names() == ["book", "events", "stocks"]


def test_the_description_has_the_one_shape_of_errors_only() -> None:
    document = quiet("GET", f"{API}/openapi.json").json
    operations = [it for methods in document["paths"].values() for it in methods.values()]
    assert len(operations) > 20
    for operation in operations:
        assert "400" in operation["responses"]
        assert "422" not in operation["responses"]
    assert "ValidationError" not in json.dumps(document)


def test_no_json_is_told_in_a_sentence() -> None:
    answer = quiet("POST", f"{API}/topics", raw=[b'{"name": }'])
    assert (answer.status, answer.code) == (400, "bad_request")
    told = answer.json["error"]["message"]
    assert told == "body: it is no JSON: Expecting value, at character 9"


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("PUT", f"{API}/topics", "GET, POST"),
        ("PATCH", f"{API}/topics/stocks", "DELETE, GET"),
        ("DELETE", f"{API}/prefixes/a/configs", "GET, PATCH"),
        ("POST", "/metrics", "GET"),
        ("POST", f"{API}/openapi.json", "GET"),
    ],
)
def test_what_a_path_is_for_is_told(method: str, target: str, allowed: str) -> None:
    answer = quiet(method, target)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/topics", {"name": "x" * 3000}),
        ("POST", "/topics", {"name": "x/" * 1500}),
        ("POST", "/topics", {"name": "n", "configs": {"retention.ms": "9" * 3000}}),
        ("POST", "/topics", {"name": "n", "configs": {"y" * 3000: "9"}}),
        ("PATCH", "/topics/stocks/configs", {"delete": ["y" * 3000]}),
        ("GET", "/topics/" + "x" * 3000, None),
        ("GET", "/topics?" + "x" * 3000, None),
        ("GET", "/prefixes/" + "x" * 3000 + "/configs", None),
        ("X" * 3000, "/topics", None),
        (
            "POST",
            "/records/delete?confirm=true",
            {"offsets": [{"topic": "stocks", "partition": 0, "offset": "@" + "1" * 3000}]},
        ),
    ],
)
def test_what_was_sent_is_not_sent_back_in_full(
    call: Caller, method: str, target: str, body: object
) -> None:
    answer = call(method, API + target, body)
    assert 400 <= answer.status < 500
    assert len(answer.body) < 1500
    assert answer.code


@pytest.mark.requirement("ADM-1", "CFG-2")
def test_what_is_refused(call: Caller, desk: OwnDesk) -> None:
    before = state_of(desk)
    for method, target, body, status, code, said in REFUSED:
        answer = call(method, API + target, body)
        assert (answer.status, answer.code) == (status, code), (method, target, answer.body)
        assert said in answer.json["error"]["message"], (method, target, answer.body)
    assert state_of(desk) == before


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"nul", LONE, DEEP, b'{"name": ' + b"9" * 3000),
        *(b'{"name": "n", "partitions": 1e400}', b'{"name": "n", "partitions": NaN}'),
    ],
)
def test_bodies_that_are_no_json_of_ours(call: Caller, desk: OwnDesk, content: bytes) -> None:
    answer = call("POST", f"{API}/topics", raw=[content] if content else [b"", b""])
    # Half a surrogate is a text of JSON's, and no name of a topic.
    assert (answer.status, answer.code) == (400, "usage" if content == LONE else "bad_request")
    assert desk.topic_names() == ["book", "events", "stocks"]


def test_a_wrong_method_says_which_is_right() -> None:
    answer = quiet("PUT", f"{API}/records/delete", {})
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-length": "5000"}, 413, "too_large"),
        ({"content-length": "99999999999999999999999"}, 400, "bad_request"),
        ({"content-length": "-1"}, 400, "bad_request"),
        ({"content-length": "\u00b2"}, 400, "bad_request"),
        ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"content-encoding": "gzip"}, 415, "unsupported_media_type"),
    ],
)
def test_bodies_are_refused_by_their_headers(
    headers: dict[str, str], status: int, code: str
) -> None:
    answer = quiet("POST", f"{API}/topics", {"name": "n"}, headers=headers)
    assert (answer.status, answer.code) == (status, code)


def test_a_body_of_many_pieces_has_a_bound(call: Caller) -> None:
    """Nobody declares its size; the last piece is never asked for."""
    endless = [b" " * 1000] * 6
    answer = call("POST", f"{API}/topics", raw=endless)
    assert (answer.status, answer.code) == (413, "too_large")
    whole = b'{"name": "pieces"}'
    answer = call("POST", f"{API}/topics?dry_run=true", raw=[whole[:5], whole[5:]])
    assert answer.json["topic"] == "pieces"


def run(app: Any, receive: Any, headers: list[tuple[bytes, bytes]], method: str = "POST") -> Any:
    """One request whose body is what `receive` tells; what was answered."""
    told: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": f"{API}/topics",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", HOST.encode()), *headers],
    }

    async def send(message: Any) -> None:
        told.append(message)

    return app(scope, receive, send), told


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    coroutine, told = run(quiet.app, never, [(b"content-length", b"5"), *JSON])
    asyncio.run(asyncio.wait_for(coroutine, 10))
    assert told[0]["status"] == 408
    assert json.loads(told[1]["body"])["error"]["code"] == "too_slow"


def test_a_client_that_goes_is_not_answered() -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    coroutine, told = run(quiet.app, gone, [(b"content-length", b"5"), *JSON])
    asyncio.run(coroutine)
    assert told == []
    assert quiet("GET", f"{API}/topics").status == 200, "its place is free again"


JSON = [(b"content-type", b"application/json")]


def test_too_many_at_once_are_told_to_come_again() -> None:
    app = create_app(_Saying({}), instance="x", limits=Limits(requests=2, body_seconds=60))  # type: ignore[arg-type]

    async def meet() -> list[int]:
        come = asyncio.Event()

        async def slow() -> Any:
            await come.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        async def at_once() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        waiting = [run(app, slow, [], "GET") for _ in range(2)]
        tasks = [asyncio.create_task(coroutine) for coroutine, _ in waiting]
        await asyncio.sleep(0)
        third, refused = run(app, at_once, [], "GET")
        await third
        come.set()
        await asyncio.gather(*tasks)
        fourth, served = run(app, at_once, [], "GET")
        await fourth
        return [told[0]["status"] for told in (refused, waiting[0][1], waiting[1][1], served)]

    assert asyncio.run(meet()) == [503, 200, 200, 200]


# -- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:9750", None, 200),
        ("localhost:9750", None, 200),
        ("LocalHost", None, 200),
        ("[::1]:9750", None, 200),
        ("127.8.9.1", None, 200),
        (None, None, 421),
        ("", None, 421),
        ("rebound.example:9750", None, 421),
        ("127.0.0.1.rebound.example", None, 421),
        ("localhost.rebound.example", None, 421),
        ("rebound.example@127.0.0.1", None, 421),
        ("127.0.0.1@rebound.example", None, 421),
        ("127.0.0.1/rebound", None, 421),
        ("127.0.0.1:port", None, 421),
        ("192.168.1.2", None, 421),
        ("0.0.0.0:9750", None, 421),
        ("2130706433", None, 421),
        ("[::1", None, 421),
        ("a" * 5000, None, 421),
        ("127.0.0.1:9750", "http://127.0.0.1:9750", 200),
        ("127.0.0.1:9750", "HTTP://127.0.0.1:9750", 200),
        ("127.0.0.1:9750", "http://127.0.0.1:8000", 403),
        ("127.0.0.1:9750", "http://localhost:9750", 403),
        ("127.0.0.1:9750", "https://127.0.0.1:9750", 403),
        ("127.0.0.1:9750", "http://rebound.example", 403),
        ("127.0.0.1:9750", "null", 403),
        ("127.0.0.1:9750", "", 403),
    ],
)
def test_hosts_and_origins(host: str | None, origin: str | None, status: int) -> None:
    """A page of another site is not served, whatever name it has (DNS rebinding)."""
    headers = {} if origin is None else {"origin": origin}
    answer = quiet("GET", f"{API}/topics", headers=headers, host=host)
    assert answer.status == status
    if status != 200:
        assert answer.code == {421: "host_refused", 403: "origin_refused"}[status]
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_two_hosts_are_none() -> None:
    async def empty() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    coroutine, told = run(quiet.app, empty, [(b"Host", b"rebound.example")], "GET")
    asyncio.run(coroutine)
    assert told[0]["status"] == 421


def test_preflights_are_not_answered() -> None:
    headers = {"origin": "http://rebound.example", "access-control-request-method": "DELETE"}
    assert quiet("OPTIONS", f"{API}/topics/stocks", headers=headers).status == 403


def test_hosts_are_taken_apart() -> None:
    assert host_of("LOCALHOST:1") == "localhost"
    assert host_of("[::1]:80") == "::1"
    assert [host_of(text) for text in ("", "a b@c", "[", "a:99999999")] == [None] * 4
    assert is_loopback("::1")
    assert not is_loopback("::ffff:8.8.8.8")


# -- errors ---------------------------------------------------------------------------------------


def all_errors(kind: type[StratalogError] = StratalogError) -> list[type[StratalogError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in all_errors(below))]


def test_each_error_has_its_own_word_and_a_status() -> None:
    kinds = [kind for kind in all_errors() if kind.__module__ == errors.__name__]
    assert len({code_of(kind) for kind in kinds}) == len(kinds) > 20
    for kind in kinds:
        assert 400 <= status_of(kind("it")) < 600
    assert status_of(errors.CorruptionError("it")) == 500
    assert status_of(errors.StorageFullError("it")) == 507
    assert status_of(errors.LogOfflineError("it")) == 503
    assert status_of(errors.PolicyViolationError("it")) == 403
    assert status_of(errors.IllegalStepError("it")) == 409


def test_an_unexpected_error_tells_nothing_of_itself() -> None:
    app = saying(KeyError("/secret/path")).app

    async def empty() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    coroutine, told = run(app, empty, [], "GET")
    with pytest.raises(KeyError):  # for the server's log
        asyncio.run(coroutine)
    assert told[0]["status"] == 500
    content = json.loads(told[1]["body"])["error"]
    assert content["code"] == "internal"
    assert "secret" not in content["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.CorruptionError("bad", file="f", position=3), 500, "corruption"),
        (errors.LogOfflineError("its disk has failed"), 503, "log_offline"),
        (errors.LogLockedError("in use"), 409, "log_locked"),
        (errors.MissingExtraError("pip install"), 501, "missing_extra"),
        (errors.StorageFullError("no \ud800 room"), 507, "storage_full"),
        (errors.StratalogError("?"), 500, "stratalog"),
    ],
)
def test_errors_of_a_desk(error: StratalogError, status: int, code: str) -> None:
    answer = saying(error)("GET", f"{API}/topics")
    assert (answer.status, answer.code) == (status, code)
    assert answer.json["error"]["type"] == type(error).__name__
    assert answer.json["error"]["kafka_code"] == error.kafka_code


@pytest.mark.requirement("ADM-3")
def test_metrics(call: Caller) -> None:
    answer = call("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    each = 'kafka_log_log_logendoffset{partition="0",topic="stocks"} 3.0'
    assert each in answer.body.decode().replace('topic="stocks",partition="0"', each[29:57])
    few = call("GET", "/metrics?per_partition=false").body.decode()
    assert "kafka_log_log_logendoffset{" not in few
    assert "kafka_log_logcleanermanager_max_dirty_percent" in few
    assert call("GET", "/metrics?per_partition=no").code == "bad_request"


def test_nothing_of_a_page_is_stored_or_guessed() -> None:
    headers = quiet("GET", f"{API}/topics").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
