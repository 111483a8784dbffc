"""Every document of a desk is what the description of REST says, member by member."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.quarantine import QuarantineNote, write_quarantine
from stratalog.segment.names import TopicPartition
from stratalog.web import documents, documents_compaction
from stratalog.web.app import create_app
from tests.clean.services import NOW
from tests.web.calling import API, Caller

STOCKS, EVENTS = TopicPartition("stocks", 0), TopicPartition("events", 0)
MADE = re.compile("events|book")
UP_TO = {"offsets": [{"topic": "events", "partition": 0, "offset": 1}]}
NOWHERE = {"offsets": [{"topic": "events", "partition": 7, "offset": "end"}]}
RETENTION = {"set": {"retention.ms": "5"}, "delete": ["segment.ms"]}

CALLS: list[tuple[str, str, object, type[BaseModel]]] = [
    ("GET", "/health", None, documents.Health),
    ("GET", "/server", None, documents.ServerInfo),
    ("GET", "/topics", None, documents.Topics),
    ("GET", "/topics/stocks", None, documents.Topic),
    ("GET", "/topics/stocks/storage", None, documents_compaction.Storage),
    ("GET", "/topics/stocks/storage?partition=1&partition=0", None, documents_compaction.Storage),
    ("GET", "/topics/stocks/configs?all=true", None, documents.Configs),
    ("GET", "/prefixes/st/configs", None, documents.Configs),
    ("GET", "/broker/configs?all=true", None, documents.Configs),
    ("GET", "/log-dirs", None, documents.LogDirs),
    ("GET", "/log-dirs?topic=stocks&topic=events", None, documents.LogDirs),
    ("GET", "/compaction", None, documents_compaction.CompactionStatus),
    ("GET", "/compaction?topic=stocks&partition=1", None, documents_compaction.CompactionStatus),
    ("GET", "/topics/stocks/compaction", None, documents_compaction.CompactionStatus),
    ("GET", "/compaction/explain", None, documents_compaction.Explanations),
    ("GET", "/compaction/history?limit=3", None, documents_compaction.Histories),
    ("GET", "/cleaner", None, documents_compaction.Cleaner),
    ("POST", "/topics?dry_run=true", {"name": "other"}, documents.CreatedTopic),
    ("POST", "/topics", {"name": "new", "partitions": 2}, documents.CreatedTopic),
    ("POST", "/topics?if_not_exists=true", {"name": "new"}, documents.CreatedTopic),
    ("POST", "/topics/new/partitions", {"count": 3}, documents.AddedPartitions),
    ("PATCH", "/topics/stocks/configs?dry_run=true", RETENTION, documents.ChangedConfigs),
    ("PATCH", "/topics/stocks/configs", RETENTION, documents.ChangedConfigs),
    ("PATCH", "/prefixes/st/configs", RETENTION, documents.ChangedConfigs),
    (
        "PATCH",
        "/broker/configs",
        {"set": {"log.retention.ms": "6"}},
        documents.ChangedConfigs,
    ),
    ("POST", "/topics/stocks/compaction/pause", None, documents_compaction.Changes),
    ("GET", "/compaction", None, documents_compaction.CompactionStatus),
    ("GET", "/cleaner", None, documents_compaction.Cleaner),
    ("POST", "/topics/stocks/compaction?partition=0", None, documents_compaction.Compaction),
    ("POST", "/topics/stocks/compaction/resume", None, documents_compaction.Changes),
    ("POST", "/topics/stocks/compaction", None, documents_compaction.Compaction),
    ("POST", "/topics/stocks/compaction/cancel", None, documents_compaction.Changes),
    ("POST", "/cleaner/retry", None, documents_compaction.Changes),
    ("POST", "/topics/book/compaction", None, documents_compaction.Compaction),
    ("GET", "/topics/book/compaction", None, documents_compaction.CompactionStatus),
    ("GET", "/topics/book/storage", None, documents_compaction.Storage),
    ("GET", "/compaction", None, documents_compaction.CompactionStatus),
    ("GET", "/compaction/history", None, documents_compaction.Histories),
    ("GET", "/topics/stocks/storage", None, documents_compaction.Storage),
    ("POST", "/records/delete?dry_run=true", UP_TO, documents.DeletedRecords),
    ("POST", "/records/delete?confirm=true", UP_TO, documents.DeletedRecords),
    ("POST", "/records/delete?confirm=true", NOWHERE, documents.DeletedRecords),
    ("DELETE", "/topics/new?dry_run=true", None, documents.DeletedTopic),
    ("DELETE", "/topics/new?confirm=true", None, documents.DeletedTopic),
    ("DELETE", "/topics/new?confirm=true&if_exists=true", None, documents.DeletedTopic),
]
READ_ONLY = [found for found in CALLS if found[0] == "GET" and not MADE.search(found[1])]


def described(app: Any) -> dict[tuple[str, str, str], str]:
    """(method, path, status) -> the name of the schema of the answer."""
    found = {}
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                schema = response["content"].get("application/json", {}).get("schema", {})
                found[method.upper(), path, status] = schema.get("$ref", "").rpartition("/")[2]
    return found


def template_of(app: Any, target: str) -> str:
    path = API + target.partition("?")[0]
    for name in ("stocks", "book", "new", "st"):
        for kind in ("topic", "prefix"):
            template = path.replace(f"/{name}", f"/{{{kind}}}", 1)
            if template in app.openapi()["paths"]:
                return template
    assert path in app.openapi()["paths"], path
    return path


def check(caller: Caller, method: str, target: str, body: object, model: type[BaseModel]) -> Any:
    answer = caller(method, API + target, body)
    assert 200 <= answer.status < 300, (method, target, answer.body)
    model.model_validate_json(answer.body, strict=True)
    app = caller.app._app  # type: ignore[attr-defined]  # below the guard
    key = (method, template_of(app, target), str(answer.status))
    assert described(app)[key] == model.__name__, key
    return answer.json


@pytest.mark.requirement("ADM-1", "CFG-2")
def test_each_document_is_as_described(call: Caller, desk: OwnDesk) -> None:
    for method, target, body, model in CALLS:
        document = check(call, method, target, body, model)
        has_error = target == "/records/delete?confirm=true" and body == NOWHERE
        has_error |= target == "/topics/stocks/compaction?partition=0"  # it is paused
        assert document["ok"] is not has_error, (target, document)
    assert desk.service.store.get(EVENTS).log_start_offset == 1
    [found] = desk.compaction_status("book")["partitions"]
    assert (found["ledger"]["records"], found["ledger"]["horizon"]) == (1, 2)


def test_all_operations_are_called_here(call: Caller) -> None:
    app = call.app._app  # type: ignore[attr-defined]
    called = {(method, template_of(app, target)) for method, target, _, _ in CALLS}
    offered = {(method, path) for method, path, _ in described(app)}
    assert called == offered - {("GET", "/metrics")}


def test_documents_of_what_is_broken(tmp_path: Path, clock: FixedClock) -> None:
    """Quarantined, missing, failing and adopted partitions: none of them breaks a document."""
    data = tmp_path / "data"
    with open_desk([str(data)], LocalFileSystem(), clock) as desk:
        desk.create_topic("stocks", 3, {"cleanup.policy": "compact"})
        desk.service.manager.blame(STOCKS, CorruptionError("a batch is damaged"))
    os.rename(data / "stocks-2", data / "adopted-0")
    note = QuarantineNote("00000000000000000000.log", 61, 3, "nobody knows why", NOW)
    write_quarantine(LocalFileSystem(), str(data / "stocks-1"), note)
    with open_desk([str(data)], LocalFileSystem(), clock) as desk:
        caller = Caller(create_app(desk, instance="it"))
        found = {
            target: check(caller, method, target, body, model)
            for method, target, body, model in READ_ONLY
        }
    states = [item["state"] for item in found["/topics/stocks"]["partitions"]]
    assert states == ["online", "quarantined", "missing"]
    assert found["/topics/stocks"]["ok"] is False
    uncleanable = found["/cleaner"]["uncleanable"]
    assert [item["failure"] is None for item in uncleanable] == [False, True]
    assert [item["quarantine"] is None for item in uncleanable] == [True, False]
    assert [item["name"] for item in found["/topics"]["topics"]] == ["adopted", "stocks"]


def test_documents_of_a_directory_that_is_offline(tmp_path: Path, clock: FixedClock) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    with open_desk(paths, LocalFileSystem(), clock) as desk:
        desk.create_topic("stocks", 2, {"cleanup.policy": "compact"})
        desk.service.manager.blame(STOCKS, StorageIOError("the disk has failed"))
        caller = Caller(create_app(desk, instance="it"))
        found = {
            target: check(caller, method, target, body, model)
            for method, target, body, model in READ_ONLY
        }
        assert [found[target]["ok"] for target in ("/server", "/log-dirs")] == [False, False]
        [(path, reason)] = found["/server"]["offline"].items()
        assert path in paths
        assert "the disk has failed" in reason
        for method, target, body in [
            ("POST", "/topics", {"name": "new"}),
            ("DELETE", "/topics/stocks?confirm=true", None),
        ]:
            answer = caller(method, API + target, body)
            assert (answer.status, answer.code) == (503, "log_offline"), answer.body
            assert "the disk has failed" in answer.json["error"]["message"]
        assert desk.topic_names() == ["stocks"]
