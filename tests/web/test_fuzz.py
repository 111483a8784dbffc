"""REST against requests that schemathesis makes of its own description: no 500, and no answer that
the description does not allow."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks as openapi_checks

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import SystemClock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.table import BROKER_NAMES, TOPIC_NAMES
from stratalog.segment.names import TopicPartition
from stratalog.server.listener import Listener, bind, url_of
from stratalog.web.app import create_app
from stratalog.web.scraping import metrics_of
from tests.clean.services import put
from tests.sim.sweeps import IS_SWEEP
from tests.web.calling import API, Caller

SEED = 20261122
EXAMPLES = 60 if IS_SWEEP else 3
CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
PATIENT = settings(
    deadline=None,
    database=None,
    max_examples=EXAMPLES,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class SmallDesk:
    """An `OwnDesk` that makes no thousands of directories because somebody asks for them."""

    def __init__(self, desk: OwnDesk):
        self._desk = desk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, **told: bool
    ) -> Any:
        if partitions > 3 or len(self._desk.topic_names()) > 50:
            raise UsageError("too many for a test")
        return self._desk.create_topic(name, partitions, configs, **told)

    def add_partitions(self, name: str, count: int, *, dry_run: bool = False) -> Any:
        if count > 5:
            raise UsageError("too many for a test")
        return self._desk.add_partitions(name, count, dry_run=dry_run)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, hasty_disk: None) -> Iterator[OwnDesk]:
    """One that cleans by itself."""
    data = tmp_path_factory.mktemp("fuzz")
    with open_desk([str(data)], LocalFileSystem(), SystemClock(), starts=True) as found:
        yield found


@pytest.fixture(scope="module")
def app(desk: OwnDesk) -> Any:
    metrics = metrics_of(desk.service, SystemClock())
    return create_app(SmallDesk(desk), instance="it", metrics=metrics)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def url(app: Any) -> Iterator[str]:
    """Where `desk` is served, by real HTTP."""
    bound: socket.socket = bind("127.0.0.1", 0)
    found = url_of(bound)
    listener = Listener(app, bound, grace_seconds=1)
    listener.start()
    yield found
    listener.stop()


def with_records(desk: OwnDesk) -> None:
    """`stocks` is there, with something to clean."""
    if "stocks" not in desk.topic_names():
        desk.create_topic("stocks", 2, {"cleanup.policy": "compact"})
        put(desk.service.store.get(TopicPartition("stocks", 0)), ("a", "1"), ("a", "2"))


def can_be_wrong(operation: Any) -> bool:
    """Whether a request can be against the description: a path of any text is none."""
    parts = [found["in"] for found in operation.get("parameters", ())]
    return "query" in parts or "requestBody" in operation


def test_requests_made_of_the_description(
    url: str, desk: OwnDesk, count_cases: Callable[[str, int], None]
) -> None:
    schema = schemathesis.openapi.from_url(f"{url}{API}/openapi.json")
    statuses: Counter[int] = Counter()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 25
    with requests.Session() as session:
        for operation in operations:
            for mode in MODES:
                for parameters in (None, {"topic": "stocks"}):
                    if parameters and "{topic}" not in operation.path:
                        continue
                    if mode is MODES[1] and not can_be_wrong(operation.definition.raw):
                        continue

                    @seed(SEED)
                    @PATIENT
                    @given(case=operation.as_strategy(mode, path_parameters=parameters))
                    def asks(case: schemathesis.Case) -> None:
                        with_records(desk)
                        case.headers.clear()
                        response = case.call(base_url=url, session=session, timeout=30)
                        statuses[response.status_code] += 1
                        case.validate_response(response, checks=CHECKS)

                    asks()
    count_cases("requests made of the description of REST", sum(statuses.values()))
    assert {200, 400, 404} <= statuses.keys()
    assert all(status < 500 or status == 501 for status in statuses), statuses


TEXTS = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "1", "true", "compact", "compact,delete", "delete", "none", "1e9", "inf"]
    ),
    st.sampled_from(["NaN", "99999999999999999999", "0x10", " 5 ", "5\n", "\u0665", "[a,b]", "\0"]),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
)


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize("entity", ["/topics/stocks", "/prefixes/st", "/broker"])
def test_settings_of_any_text(
    app: Any, desk: OwnDesk, entity: str, count_cases: Callable[[str, int], None]
) -> None:
    """Each is set, or refused with a sentence; what is in force is always told."""
    call = Caller(app)
    names = sorted(BROKER_NAMES if entity == "/broker" else TOPIC_NAMES)
    examples = 2000 if IS_SWEEP else 60

    @seed(SEED)
    @settings(PATIENT, max_examples=examples)
    @given(name=st.sampled_from(names), text=TEXTS, dry_run=st.booleans())
    def sets(name: str, text: str, dry_run: bool) -> None:
        with_records(desk)
        target = f"{API}{entity}/configs" + ("?dry_run=true" if dry_run else "")
        answer = call("PATCH", target, {"set": {name: text}})
        assert answer.status in (200, 400), answer.body
        if answer.status == 400:
            assert answer.code in ("invalid_config", "usage")
            return
        assert answer.json["applied"] is not dry_run
        assert [item["name"] for item in answer.json["changes"]] == [name]
        answer = call("PATCH", f"{API}{entity}/configs", {"delete": [name]})
        assert answer.status == 200, answer.body

    sets()
    count_cases("settings of any text by REST", examples)
