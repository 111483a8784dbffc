"""Writes docs/SETTINGS.md from the table of settings; `--check` only says whether it is up to date.

Exit code 1 if it is not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stratalog.config.docs import markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "SETTINGS.md"


def main(arguments: list[str]) -> int:
    """The exit code."""
    text = markdown()
    if arguments == ["--check"]:
        is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name} is up to date" if is_current else "run tools/settings_docs.py")
        return 0 if is_current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
