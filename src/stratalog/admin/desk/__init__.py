"""One library of administration: what command line, REST and Python API offer of a directory's
topics, settings, records and compaction is a `Desk`'s.

    protocol.py     `Desk`: operations, arguments, documents
    registry.py     the file that topics and settings survive restarts in
    looking.py      what can be looked at: of an open service, or of a directory that is not opened
    describing.py   lists and descriptions
    settings.py     settings described, changes of settings checked
    compacting.py   status, explanations and history of compaction
    leaving.py      topics that leave ledger mode: what has to be confirmed
    topics.py       topics come, go and grow, in steps that a crash may cut
    own.py          `OwnDesk`, of a service in this process; `open_desk`
    bare.py         `BareDesk`, of directories that nobody has open
"""

from __future__ import annotations

from stratalog.admin.desk.bare import BareDesk
from stratalog.admin.desk.own import OwnDesk, open_desk
from stratalog.admin.desk.protocol import (
    ENTITY_TYPES,
    MAX_PARTITIONS,
    Desk,
    Document,
    EntityType,
    error_document,
)

__all__ = [
    "ENTITY_TYPES",
    "MAX_PARTITIONS",
    "BareDesk",
    "Desk",
    "Document",
    "EntityType",
    "OwnDesk",
    "error_document",
    "open_desk",
]
