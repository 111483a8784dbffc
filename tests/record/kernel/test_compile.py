"""How kernels come to be: compiled once a machine, one signature each, or plain Python (K1)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stratalog.record.kernel import compile as kernel_compile
from stratalog.record.kernel.compile import JIT, warm_up

ROOT = Path(__file__).resolve().parents[3]

PLAIN_PYTHON = ("record/kernel", "clean/test_oracle.py", "clean/test_damage.py")
needs_jit = pytest.mark.skipif(not JIT, reason="nothing is compiled under NUMBA_DISABLE_JIT=1")

CLEAN_ALL = """
import importlib, pkgutil, sys, tempfile
from pathlib import Path

import stratalog.record.kernel
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.kernel import warmup
from stratalog.record.kernel.compile import Kernel, compiled
from stratalog.record.validate import ProduceRules, validate
from tests.clean.driving import FS, case_of, clean_case
from tests.oracle import golden_rounds

def kernels():
    for module in pkgutil.iter_modules(stratalog.record.kernel.__path__):
        imported = importlib.import_module("stratalog.record.kernel." + module.name)
        for name, value in vars(imported).items():
            if isinstance(value, Kernel):
                yield f"{value.plain.__module__}.{name}", compiled(value)

found = dict(kernels())
lines = []
assert warmup.ensure_warm(lines.append) and len(lines) == 1, lines
assert not warmup.ensure_warm(lines.append) and len(lines) == 1, lines
cold = [name for name, kernel in found.items() if len(kernel.signatures) != 1]
with tempfile.TemporaryDirectory() as directory:
    for number, kafka in enumerate(golden_rounds()):
        for limited in (True, False):
            case = case_of(kafka, Path(directory, f"{number}-{limited}"))
            changes = {} if limited else {"max_keys": None, "memory_bytes": 1 << 10}
            clean_case(LocalEngine(FS, threads=2), case, chunk_bytes=5000, **changes)
for codec in Codec:
    batch = build_batch([NewRecord(b"k", b"v", 5)], codec=codec)
    for buffer in (batch, bytearray(batch), memoryview(batch)):
        for append_time in (True, False):
            validate(buffer, ProduceRules(is_log_append_time=append_time, requires_key=True), 5)
again = [f"{name}: {kernel.signatures}" for name, kernel in found.items()
         if len(kernel.signatures) > 1]
print(len(found), "kernels; not warmed up:", cold, "; more than one signature:", again)
sys.exit(bool(cold or again) or len(found) < 12)
"""


def run_python(
    arguments: list[str], directory: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A new interpreter that sees this project as this one does."""
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@needs_jit
def test_warming_up_compiles_each_kernel_for_the_only_types_it_meets(tmp_path: Path) -> None:
    """In an empty cache; afterwards neither a clean nor an append compiles anything."""
    done = run_python(["-c", CLEAN_ALL], tmp_path, STRATALOG_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_jit
def test_kernels_are_tested_as_plain_python_too(tmp_path: Path) -> None:
    """K1: the tests of kernels, and a few of whole cleans, without the compiler."""
    selection = "kernel or plain-none or transactions or idempotent or tombstones-none or map-full"
    selection += " or fuzz or hostile_batches"
    done = run_python(
        [
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("-k", f"({selection}) and not test_compile"),
            *(f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'plain'}"),
            *(str(ROOT / "tests" / place) for place in PLAIN_PYTHON),
        ],
        ROOT,
        NUMBA_DISABLE_JIT="1",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


@needs_jit
def test_two_that_start_at_once_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_compile, "cache_directory", lambda: tmp_path / "kernels")
    said: list[str] = []
    compiled: list[bool] = []
    inside = threading.Event()
    may_end = threading.Event()

    def exercise() -> None:
        inside.set()
        assert may_end.wait(10)

    def start() -> None:
        compiled.append(warm_up(exercise, said.append))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert sorted(compiled) == [False, True]
    assert len(said) == 1
    assert not warm_up(exercise, said.append)


@needs_jit
def test_a_failed_warm_up_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compile, "cache_directory", lambda: tmp_path)

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_up(fail, lambda _: None)
    assert warm_up(lambda: None, lambda _: None)


def test_the_cache_is_named_by_every_source_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel_compile._sources_digest()
    assert kernel_compile.cache_directory().name == before
    monkeypatch.setattr("numba.__version__", "0.0")
    assert kernel_compile._sources_digest() != before
    monkeypatch.undo()
    real = Path.read_bytes

    def changed(path: Path) -> bytes:
        return real(path) + (b"#" if path.name == "retain.py" else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    assert kernel_compile._sources_digest() != before
