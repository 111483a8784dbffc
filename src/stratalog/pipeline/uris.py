"""Directories as people write them: a path, `file:` in front or not, or a URI of something else."""

from __future__ import annotations

import os
import re

from stratalog.base.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_FILE = re.compile(r"file:(//)?", re.IGNORECASE)


def scheme_of(path: str) -> str | None:
    """What stands before the colon, in small letters; None for a path."""
    found = _SCHEME.match(path)
    return None if found is None else found[1].lower()


def without_file(path: str) -> str:
    """A path without `file:`; anything else as it is."""
    return _FILE.sub("", path, count=1) if scheme_of(path) == "file" else path


def directory(path: str, what: str) -> str:
    """The absolute path of a directory of this machine's, for `what` is written there.

    Raises `UsageError` for a URI of something else.
    """
    scheme = scheme_of(path)
    if scheme not in (None, "file"):
        raise UsageError(f"{path}: no {what} can be written to {scheme}: give a directory")
    return os.path.abspath(without_file(path))
