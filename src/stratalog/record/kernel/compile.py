"""The kernel decorator: numba without the GIL, with a cache that notices every changed source.

numba's own cache looks only at the file of the function itself, not at its callees. So the
cache directory is named by a hash over all kernel sources and the versions that matter, and the
first compilation on a machine happens under one file lock (DESIGN.md, "Dependencies").
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
from numba.core import config

from stratalog.base.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

JIT = not config.DISABLE_JIT
"""False under NUMBA_DISABLE_JIT=1: kernels then run as plain Python (K1)."""


def _sources_digest() -> str:
    if not Path(__file__).is_file():
        raise UsageError(
            "stratalog is imported from an archive, where its kernels cannot be compiled: "
            "install the wheel, or let Spark unpack it (--archives)"
        )
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    versions = (numba.__version__, llvmlite.__version__, sys.version, platform.machine())
    digest.update(repr(versions).encode())
    return digest.hexdigest()[:16]


def _cache_root() -> Path:
    named = os.environ.get("STRATALOG_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stratalog"


CACHE_DIRECTORY = _cache_root() / "kernels" / _sources_digest()
"""Where the compiled kernels of exactly these sources and versions lie."""

_READY = CACHE_DIRECTORY / "ready"


def kernel(function: F) -> F:
    """Compile `function` on first use, without the GIL, cached in `CACHE_DIRECTORY`."""
    if not JIT:
        return function
    # numba picks the cache's place when the dispatcher is made: ours for this one only.
    before = config.CACHE_DIR
    config.CACHE_DIR = str(CACHE_DIRECTORY)
    try:
        compiled: F = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    finally:
        config.CACHE_DIR = before
    return compiled


def inlined(function: F) -> F:
    """A small function that LLVM folds into the kernels that call it."""
    if not JIT:
        return function
    compiled: F = numba.njit(nogil=True, inline="never", boundscheck=False)(function)
    return compiled


def is_ready() -> bool:
    """Whether this machine has compiled these kernels before."""
    return not JIT or _READY.exists()


def warm_up(exercise: Callable[[], None], announce: Callable[[str], None]) -> bool:
    """Compile everything that `exercise` calls, once a machine, one process at a time.

    `announce` gets one line before work that takes long. Returns whether this call compiled.
    """
    if is_ready():
        return False
    CACHE_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with open(CACHE_DIRECTORY / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready():
            return False
        announce("compiling the kernels, once on this machine (about ten seconds) ...")
        exercise()
        _READY.touch()
    return True
