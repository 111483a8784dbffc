"""Writes what is made from the list of metrics: docs/METRICS.md, and examples/monitoring/ with
alert rules and a dashboard; `--check` only says whether they are up to date.

Exit code 1 if they are not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stratalog.metrics.docs import dashboard, markdown
from stratalog.metrics.rules import rules_yaml

ROOT = Path(__file__).resolve().parent.parent
MADE = {
    ROOT / "docs" / "METRICS.md": markdown,
    ROOT / "examples" / "monitoring" / "rules.yml": rules_yaml,
    ROOT / "examples" / "monitoring" / "dashboard.json": dashboard,
}


def main(arguments: list[str]) -> int:
    """The exit code."""
    code = 0
    for path, make in MADE.items():
        text = make()
        if arguments != ["--check"]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.name} is not up to date: run tools/metrics_docs.py")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
