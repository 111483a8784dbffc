"""What is made from the list of metrics is up to date, and names no metric that is not in it."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from stratalog.metrics import TABLE, Kind
from stratalog.metrics.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "examples" / "monitoring"
_NAME = re.compile(r"\b(?:kafka|stratalog)_\w+")


def sample_names() -> set[str]:
    names = {metric.name for metric in TABLE if metric.kind is not Kind.HISTOGRAM}
    for metric in TABLE:
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{part}" for part in ("bucket", "count", "sum")}
    return names


def test_made_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    module = runpy.run_path(str(ROOT / "tools" / "metrics_docs.py"))
    assert module["main"](["--check"]) == 0, capsys.readouterr().out


def test_each_metric_is_explained() -> None:
    text = (ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8")
    titles = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert titles == [metric.name for metric in TABLE]
    assert len(set(titles)) == len(titles)


def test_names_follow_the_conventions() -> None:
    for metric in TABLE:
        assert _NAME.fullmatch(metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.help.endswith(".")
        assert ({"topic", "partition"} <= set(metric.labels)) == metric.per_partition


@pytest.mark.requirement("ADM-3")
def test_names_of_kafkas_dashboards_are_there() -> None:
    wanted = """
        kafka_log_logcleaner_cleaner_recopy_percent kafka_log_logcleaner_max_clean_time_secs
        kafka_log_logcleaner_max_buffer_utilization_percent
        kafka_log_logcleaner_max_compaction_delay_secs kafka_log_logcleaner_deadthreadcount
        kafka_log_logcleanermanager_max_dirty_percent
        kafka_log_logcleanermanager_time_since_last_run_ms
        kafka_log_logcleanermanager_uncleanable_bytes
        kafka_log_logcleanermanager_uncleanable_partitions_count
        kafka_log_log_size kafka_log_log_numlogsegments kafka_log_log_logstartoffset
        kafka_log_log_logendoffset kafka_log_logmanager_offlinelogdirectorycount
        kafka_log_logmanager_logdirectoryoffline
    """
    assert set(wanted.split()) == {m.name for m in TABLE if m.name.startswith("kafka_")}


@pytest.mark.requirement("ADM-3")
def test_rules_name_metrics_and_labels_that_exist() -> None:
    text = (MONITORING / "rules.yml").read_text(encoding="utf-8")
    expressions = re.findall(r"^ +expr: (.*)$", text, re.MULTILINE)
    assert [json.loads(line) for line in expressions] == [rule.expression for rule in RULES]
    by_name = {metric.name: metric for metric in TABLE}
    for rule in RULES:
        named = _NAME.findall(rule.expression)
        assert named
        assert set(named) <= sample_names(), rule.name
        assert rule.per_partition == any(by_name[name].per_partition for name in named)
        for name, labels in re.findall(r"(\w+)\{(\w+)=", rule.expression):
            assert labels in by_name[name].labels, rule.name


@pytest.mark.requirement("ADM-3")
def test_the_dashboard_shows_each_metric() -> None:
    content = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    expressions = [panel["targets"][0]["expr"] for panel in content["panels"]]
    named = [name for text in expressions for name in _NAME.findall(text)]
    assert set(named) <= sample_names()
    assert len(named) == len(TABLE)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in content["panels"]}
    assert len(places) == len(TABLE), "panels lie on one another"
