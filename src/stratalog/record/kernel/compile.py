"""How kernels run: as plain Python while there is little to do, then compiled, without the GIL.

Importing numba takes longer than reading a small log. So a kernel starts as the Python function
that it is written as (K1), and each call of it is counted by what it costs that way. When the sum
would pass `PLAIN_MICROSECONDS`, or when a kernel is called that says no cost (its work is never
small), numba is imported and everything from then on is compiled (`switch`). There is no way back.

    kernel      what callers call: plain, then compiled
    inlined     a small function that LLVM folds into the kernels that call it
    stands_for  plain Python for what numba has another form of: an intrinsic, another function

Kernels name one another as Python does, by their modules' globals. The compiled form of a function
is made of a copy whose globals name compiled forms (`_rebound`).

numba's own cache looks only at the file of the function itself, not at its callees. So the
cache directory is named by a hash over all kernel sources and the versions that matter, and the
first compilation on a machine happens under one file lock (DESIGN.md, "Dependencies").

Invariants
- S1  Nobody can tell from an answer how it came about: numbers are Python's own either way.
- S2  A call runs in one form from its beginning to its end; several threads may be in both.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from stratalog.base.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
Cost = Callable[..., int]

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
"""False under NUMBA_DISABLE_JIT=1: kernels then run as plain Python (K1)."""

PLAIN_MICROSECONDS = 150_000
"""Of plain Python before numba is imported, at the most: half of what that import takes."""
PLAIN_CHUNK_BYTES = 64 << 10

_lock = threading.RLock()
_forms: dict[Any, Callable[[], Any]] = {}
"""Plain function -> what makes its compiled form."""


class _Progress:
    """What this process has done in plain Python; `_lock` guards the sum."""

    is_compiled = False
    plain_microseconds = 0


# ---------------------------------------------------------------- plain, or compiled


def runs_plain(microseconds: int) -> bool:
    """Whether work that takes so long in plain Python is to be done so; else all is compiled now.

    Counts the work.
    """
    if not JIT:
        return True
    if _Progress.is_compiled:
        return False
    with _lock:
        if _Progress.plain_microseconds + microseconds <= PLAIN_MICROSECONDS:
            _Progress.plain_microseconds += microseconds
            return not _Progress.is_compiled
    switch()
    return False


def is_plain() -> bool:
    """Whether kernels run as plain Python, as yet or for good."""
    return not (JIT and _Progress.is_compiled)


def chunk_bytes(most: int) -> int:
    """How much to take of a file at once: little while kernels are slow, `most` afterwards."""
    return min(most, PLAIN_CHUNK_BYTES) if JIT and is_plain() else most


def switch() -> None:
    """From now on everything is compiled; for who knows that there is much to do."""
    if JIT and not _Progress.is_compiled:
        cache_directory()  # imports numba
        _Progress.is_compiled = True


class Kernel:
    """A function to call with positional arguments; `run` is the form it has now."""

    __slots__ = ("_cost", "plain", "run")

    def __init__(self, plain: Callable[..., Any], cost: Cost | None):
        self.plain = plain
        self._cost = cost
        self.run = self._decide

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def _decide(self, *arguments: Any) -> Any:
        if self._cost is not None and runs_plain(self._cost(*arguments)):
            with np.errstate(over="ignore"):  # hashes wrap around
                return _as_compiled(self.plain(*arguments))
        self.run = compiled(self.plain)
        return self.run(*arguments)


def _as_compiled(answer: Any) -> Any:
    if isinstance(answer, tuple):
        return tuple(_as_compiled(part) for part in answer)
    return answer.item() if isinstance(answer, np.generic) else answer


# ---------------------------------------------------------------- declaring


def kernel(plain: F | None = None, *, cost: Cost | None = None) -> Any:
    """A kernel, cached in `cache_directory()` once compiled.

    `cost`: of a call's arguments the most microseconds that plain Python takes for it, roughly;
    without it the kernel is only ever compiled.
    """
    if plain is None:
        return functools.partial(kernel, cost=cost)
    if not JIT:
        return plain
    _forms[plain] = functools.partial(_dispatcher, plain)
    return Kernel(plain, cost)


def inlined(function: F) -> F:
    """A small function that LLVM folds into the kernels that call it."""
    _forms[function] = functools.partial(_folded, function)
    return function


def stands_for(make: Callable[[], Any]) -> Callable[[F], F]:
    """For plain Python whose compiled form is what `make` answers."""

    def declare(function: F) -> F:
        _forms[function] = functools.cache(make)
        return function

    return declare


def intrinsic(name: str, *how: Any) -> Callable[[F], F]:
    """`stands_for` the intrinsic that the function `name` of `intrinsics.py` answers."""

    def make() -> Any:
        from stratalog.record.kernel import intrinsics

        return getattr(intrinsics, name)(*how)

    return stands_for(make)


def cached(function: Callable[..., Any]) -> Callable[[], Any]:
    """For `stands_for`: this function compiled like a kernel."""
    return functools.partial(_dispatcher, function)


def compiled(function: Any) -> Any:
    """The compiled form of a kernel, or of a function declared here; itself without a compiler."""
    if not JIT:
        return function
    switch()
    plain = function.plain if isinstance(function, Kernel) else function
    with _lock:
        return _forms[plain]()


@functools.cache
def _dispatcher(function: Callable[..., Any]) -> Any:
    import numba
    from numba.core import config

    # numba picks the cache's place when the dispatcher is made: ours for this one only.
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_directory())
    try:
        return numba.njit(nogil=True, cache=True, boundscheck=False)(_rebound(function))
    finally:
        config.CACHE_DIR = before


@functools.cache
def _folded(function: Callable[..., Any]) -> Any:
    import numba

    return numba.njit(nogil=True, inline="never", boundscheck=False)(_rebound(function))


def _rebound(function: Any) -> FunctionType:
    """A copy of a function that names compiled forms where `function` names plain ones."""
    named = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = named.get(name)
        if isinstance(value, Kernel) or (isinstance(value, FunctionType) and value in _forms):
            named[name] = compiled(value)
    assert function.__closure__ is None
    return FunctionType(function.__code__, named, function.__name__, function.__defaults__)


# ---------------------------------------------------------------- the cache


def _sources_digest() -> str:
    if not Path(__file__).is_file():
        raise UsageError(
            "stratalog is imported from an archive, where its kernels cannot be compiled: "
            "install the wheel, or let Spark unpack it (--archives)"
        )
    import llvmlite
    import numba

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


@functools.cache
def cache_directory() -> Path:
    """Where the compiled kernels of exactly these sources and versions lie; imports numba."""
    return _cache_root() / "kernels" / _sources_digest()


def is_ready() -> bool:
    """Whether this machine has compiled these kernels before; imports numba."""
    return not JIT or (cache_directory() / "ready").exists()


def warm_up(exercise: Callable[[], None], announce: Callable[[str], None]) -> bool:
    """Compile everything that `exercise` calls, once a machine, one process at a time.

    `announce` gets one line before work that takes long. Returns whether this call compiled.
    """
    switch()
    if is_ready():
        return False
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready():
            return False
        announce("compiling the kernels, once on this machine (about ten seconds) ...")
        exercise()
        (directory / "ready").touch()
    return True
