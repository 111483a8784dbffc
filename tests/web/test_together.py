"""Many clients at once, who make, change, compact, describe and delete the same few topics."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import SystemClock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.segment.names import TopicPartition
from stratalog.server.listener import Listener, bind
from stratalog.web.app import create_app
from stratalog.web.scraping import metrics_of
from tests.clean.services import put
from tests.sim.sweeps import budget
from tests.web.calling import API

TOPICS = ("a", "b", "c")
SEED = 7


def a_request(chance: random.Random) -> tuple[str, str, Any]:
    topic = chance.choice(TOPICS)
    mode = chance.choice(["inplace", "ledger"])
    made = {"name": topic, "partitions": 2, "configs": {"cleanup.policy": "compact"}}
    if mode == "ledger":
        made["configs"] = {"compaction.mode": "ledger"}
    policy = chance.choice(["compact", "delete", "compact,delete"])
    up_to = {"offsets": [{"topic": topic, "partition": 0, "offset": "end"}]}
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/topics", made),
        ("POST", "/topics?if_not_exists=true", made),
        ("DELETE", f"/topics/{topic}?confirm=true", None),
        ("POST", f"/topics/{topic}/partitions", {"count": chance.randint(2, 5)}),
        ("PATCH", f"/topics/{topic}/configs", {"set": {"cleanup.policy": policy}}),
        ("PATCH", f"/prefixes/{topic}/configs", {"set": {"retention.ms": "1000000"}}),
        ("PATCH", "/broker/configs", {"set": {"log.cleaner.threads": str(chance.randint(1, 2))}}),
        ("POST", f"/topics/{topic}/compaction", None),
        ("POST", f"/topics/{topic}/compaction", None),
        ("POST", f"/topics/{topic}/compaction/cancel", None),
        ("POST", f"/topics/{topic}/compaction/pause?partition=0", None),
        ("POST", f"/topics/{topic}/compaction/resume", None),
        ("POST", "/cleaner/retry", None),
        ("POST", "/records/delete?confirm=true", up_to),
    ]
    looks = ["/topics", f"/topics/{topic}", f"/topics/{topic}/storage", "/log-dirs", "/cleaner"]
    looks += ["/compaction", "/compaction/explain", "/compaction/history", "/server"]
    looks += [f"/topics/{topic}/configs?all=true"]
    return chance.choice([*requests, *(("GET", look, None) for look in looks)])


class Clients:
    """Threads that ask, and one that appends."""

    def __init__(self, port: int, desk: OwnDesk):
        self._port, self._desk = port, desk
        self.statuses: Counter[int] = Counter()
        self.wrong: list[Any] = []
        self.over = threading.Event()
        self._lock = threading.Lock()

    def ask(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        for _ in range(count):
            method, target, body = a_request(chance)
            content = None if body is None else json.dumps(body)
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, API + target, content, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            with self._lock:
                self.statuses[response.status] += 1
                is_odd = method == "GET" and not answer.get("ok", True) and "error" not in answer
                if response.status >= 500 or is_odd:  # nothing of these is damaged or lost
                    self.wrong.append((method, target, body, answer))
        connection.close()

    def append(self) -> None:
        number = 0
        while not self.over.wait(0.002):
            number += 1
            try:
                for key, log in self._desk.service.store.logs():
                    put(log, (f"{key.topic}{number % 7}", str(number)))
                    if number % 20 == 0:
                        log.roll()
            except StratalogError:
                continue  # deleted meanwhile


@pytest.mark.requirement("ADM-1", "CFG-2")
def test_many_clients(
    tmp_path: Path, hasty_disk: None, count_cases: Callable[[str, int], None]
) -> None:
    data, clock = tmp_path / "data", SystemClock()
    with open_desk([str(data)], LocalFileSystem(), clock, starts=True) as desk:
        bound = bind("127.0.0.1", 0)
        port = bound.getsockname()[1]
        metrics = metrics_of(desk.service, clock)
        listener = Listener(create_app(desk, instance="x", metrics=metrics), bound)
        listener.start()
        clients, asked = Clients(port, desk), budget(50)
        writer = threading.Thread(target=clients.append)
        threads = [
            threading.Thread(target=clients.ask, args=(SEED * 100 + number, asked))
            for number in range(6)
        ]
        for thread in (writer, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        clients.over.set()
        writer.join()
        listener.stop()
        assert clients.wrong == []
        assert clients.statuses.total() == 6 * asked
        assert {200, 201, 202, 404, 409} <= clients.statuses.keys()
        count_cases("requests of clients at once", clients.statuses.total())
        before = desk.list_topics()
        offsets = {key: log.log_end_offset for key, log in desk.service.store.logs()}
    with open_desk([str(data)], LocalFileSystem(), clock) as desk:
        assert desk.list_topics()["ok"]
        names = [item["name"] for item in before["topics"]]
        assert [item["name"] for item in desk.list_topics()["topics"]] == names
        for key, log in desk.service.store.logs():
            assert log.log_end_offset == offsets[TopicPartition(key.topic, key.partition)]
