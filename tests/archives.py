"""Unpacks the golden archives once per machine and content, whatever the number of test workers.

Invariants
- A1  A directory that exists under its final name is complete: unpacking happens in a private
      directory beside it, and one rename publishes it.
- A2  File times are those of the archive, because the times of `.log` files decide.
- A3  What is unpacked is shared by every test run: tests copy a state before they change it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

ARCHIVES = Path(__file__).parent / "golden"


def _cache_root() -> Path:
    root = Path(tempfile.gettempdir()) / f"stratalog-tests-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise RuntimeError(f"{root} belongs to somebody else")
    return root


@cache
def unpacked(archive_name: str) -> Path:
    """The directory that holds the contents of `tests/golden/<archive_name>`."""
    archive = ARCHIVES / archive_name
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    final = _cache_root() / f"{archive_name.partition('.')[0]}-{digest}"
    if final.is_dir():
        return final
    aside = Path(tempfile.mkdtemp(prefix=f"{final.name}.", dir=final.parent))
    with tarfile.open(archive) as tar:
        tar.extractall(aside, filter="data")
    try:
        aside.rename(final)
    except OSError:
        # Another worker was first; a directory is only ever replaced by an empty one.
        shutil.rmtree(aside)
        if not final.is_dir():
            raise
    return final


def golden_path() -> Path:
    """`<fixture>/<state>/golden-0/...` and `<fixture>/HOW.txt`."""
    return unpacked("golden.tar.xz")


def corpus_path() -> Path:
    """`log-NNN/spec.json` and `log-NNN/rR-before|after/...`."""
    return unpacked("corpus-dev.tar.xz") / "corpus-dev"
