"""What the README and the page on Python show runs as it stands, and links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README, PYTHON = ROOT / "README.md", ROOT / "docs/PYTHON.md"


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("page", [README, PYTHON], ids=lambda page: page.name)
def test_there_is_something_to_run(page: Path) -> None:
    assert blocks_of(page)


PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors_of(page: Path) -> set[str]:
    """The names that headings get, as on the pages of a code host."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("number", range(len(blocks_of(README))))
def test_a_block_runs_after_those_before_it(number: int, tmp_path: Path) -> None:
    run("\n".join(blocks_of(README)[: number + 1]), tmp_path)


def test_the_page_on_python_prints_what_it_says(tmp_path: Path) -> None:
    program = "\n".join(blocks_of(PYTHON))
    said = re.findall(r"# -> (.*)", program)
    assert len(said) == len(re.findall(r"^\s*print\(", program, re.MULTILINE)) > 10
    assert run(program, tmp_path).splitlines() == said
