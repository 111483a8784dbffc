"""A topic that leaves ledger mode by REST: what only its ledger has wants to be confirmed."""

from __future__ import annotations

import pytest

from stratalog.admin.desk import OwnDesk
from stratalog.segment.names import TopicPartition
from stratalog.web import documents
from tests.web.calling import API, Caller
from tests.web.test_documents import check

BOOK = TopicPartition("book", 0)
INPLACE = {"set": {"compaction.mode": "inplace"}}
TARGET = "/topics/book/configs"


@pytest.mark.requirement("LDG-1", "ADM-1")
def test_it_wants_to_be_confirmed(desk: OwnDesk, call: Caller) -> None:
    desk.service.compact(BOOK)
    desk.service.store.delete_records(BOOK, 2)
    refused = call("PATCH", API + TARGET, INPLACE)
    assert (refused.status, refused.code) == (400, "confirmation_needed")
    told = refused.json["error"]
    assert told["message"].startswith("book-0: offsets 0 to 1 are only in its ledger: confirm")
    assert told["type"] == "ConfirmationNeededError"
    row = {"topic": "book", "partition": 0, "ledger": 1, "start_offset": 0, "end_offset": 2}
    shown = check(call, "PATCH", TARGET + "?dry_run=true", INPLACE, documents.ChangedConfigs)
    assert (shown["given_up"], shown["applied"]) == ([row], False)
    assert desk.service.ledgers.manifest(BOOK).current is not None
    done = check(call, "PATCH", TARGET + "?confirm=true", INPLACE, documents.ChangedConfigs)
    assert (done["given_up"], done["applied"]) == ([row], True)
    assert desk.service.ledgers.manifest(BOOK).current is None
