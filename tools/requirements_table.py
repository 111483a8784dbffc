"""Prints which tests prove which requirement, and fails on a requirement that is due and unproven.

How it works
    The ids come from docs/REQUIREMENTS.md. The tests are read, not imported: every
    `pytest.mark.requirement("LOG-3", ...)` in tests/ counts for the test function it decorates; on
    a class, in `pytestmark` or in a parameter, for the class, the file or the function around it.
    An id is due unless `PLANNED` names the part of the project that it belongs to.

Needs nothing but Python, so it also runs before set-up. Exit code 1 when an id that is due has no
test, when a test names an id that there is not, or when `PLANNED` does.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PLANNED: Mapping[str, str] = {
    "ADM-2": "the web page",
    "CFG-2": "Kafka's admin API and the web page; library, command line and REST are there",
    "LDG-3": "the topic for Kafka clients; the rest is there",
    "BRK-1 BRK-2 BRK-3 BRK-4": "Kafka's protocol",
}
"""Ids of parts that are not built yet, and the part. Finish a part: remove its line."""

_ID = re.compile(r"^- ([A-Z]+-\d+)\b", re.MULTILINE)


def required_ids(text: str) -> list[str]:
    """The ids of the requirements, in the document's order."""
    return _ID.findall(text)


def planned_ids() -> dict[str, str]:
    """id -> the part that it waits for."""
    return {name: part for names, part in PLANNED.items() for name in names.split()}


def proofs(source: str) -> Iterator[tuple[str, str]]:
    """(id, name of what the mark stands on) for each mark in a test file; "" is the whole file."""
    yield from _walk(ast.parse(source), "")


def _walk(node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}::{node.name}"
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "requirement"
    ):
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value, scope
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, scope)


def main() -> int:
    required = required_ids((ROOT / "docs" / "REQUIREMENTS.md").read_text(encoding="utf-8"))
    planned = planned_ids()
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, scope in proofs(path.read_text(encoding="utf-8")):
            where = f"{path.relative_to(ROOT).as_posix()}{scope}"
            if where not in tests[name]:
                tests[name].append(where)

    unproven = [name for name in required if name not in planned and not tests.get(name)]
    for name in required:
        if name in unproven:
            rows = ["NO TEST"]
        else:
            rows = list(tests.get(name, ()))
            if name in planned:
                rows.insert(0, f"planned: {planned[name]}")
        for column, row in zip([name] + [""] * len(rows), rows, strict=False):
            print(f"{column:<7} {row}")

    due = [name for name in required if name not in planned]
    print(
        f"\n{len(required)} requirements: {len(due)} due, {len(due) - len(unproven)} of them proven"
    )
    complaints = [f"no test names {name}" for name in unproven]
    complaints += [
        f"{name} is no requirement, but {where} names it"
        for name in tests
        if name not in required
        for where in tests[name]
    ]
    complaints += [
        f"PLANNED names {name}, which is no requirement" for name in planned.keys() - set(required)
    ]
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
