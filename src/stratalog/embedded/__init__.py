"""The Python API: a store of topics in this process, without a server.

    store      open a directory; create, list and delete topics
    topic      append, read by one of three views, compact, status
    consumer   read on from where somebody stopped, as Kafka's consumers do
    sight      what a read sees of a partition at one moment, with the ledger pinned
    records    what comes out: records, where they went
    offsets    where the consumers of a group stopped, in a file
    words      what people may write for keys, times, views, and how it is refused

`import stratalog` has `open`, `Store`, `Topic`, `Consumer` and `Record`, and loads this package
when one of them is first asked for. Every error is one line, of `stratalog.base.errors`.
"""

from __future__ import annotations

from stratalog.embedded.consumer import Consumer
from stratalog.embedded.records import Appended, Record
from stratalog.embedded.store import Store, open_store
from stratalog.embedded.topic import Topic

__all__ = ["Appended", "Consumer", "Record", "Store", "Topic", "open_store"]
