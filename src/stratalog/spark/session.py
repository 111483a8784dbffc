"""A Spark session that is ready for the log's jobs: one call, no Java to install, quiet.

How it works
    A session that is there already is used as it is: on a cluster's notebook Spark belongs to the
    platform. Otherwise one is made, by default inside this process (`local[*,4]`): the Java comes
    from `stratalog.spark.java`, the workers run this very interpreter, the heap is sized from the
    machine, and nothing listens on anything but the loopback address. Under `spark-submit` the Java
    runs already, and its master and properties are those of the command. Each setting stands in
    `session_settings` with its reason; what spark-submit and then `conf` give wins.

Invariants
- S1  A local session survives the death of a Python worker: its master allows retries.
- S2  What the call sets in the process's environment for Spark's start, it puts back.
- S3  A missing Spark or Java is a `MissingExtraError` of one line that names the extra to install.
- S4  A standalone master that nobody listens for is refused at once, not after Spark's minute.
- S5  Who interrupts the start has no Java left that would complain later, and may start again.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.base.errors import MissingExtraError, UsageError
from stratalog.base.limits import SHUFFLE_BLOCK_BYTES
from stratalog.spark.java import INSTALL_HINT, find_java, prepare_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*,4]"
"""Every core of this machine; a task is tried up to four times, as a cluster does."""

_LOCAL = re.compile(r"local(?:\[(?P<threads>\*|\d+)\])?")
_MIN_HEAP_BYTES = 1 << 30
_MAX_HEAP_BYTES = 8 << 30
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_STANDALONE = re.compile(r"spark://(?P<addresses>.+)")
_MASTER = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?$|local-cluster\[[\d, ]+\]$|spark://|yarn$|k8s://"
)
_CONNECT_SECONDS = 5.0
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Where spark-submit's Java listens, for the Python that it starts."""
_LOGGING = Path(__file__).with_name("log4j2.properties")


def is_running() -> bool:
    """Whether this process has a Spark already, which is then whoever's who began it."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def is_submitted() -> bool:
    """Whether spark-submit started this process, and so says where Spark runs."""
    return _GATEWAY in os.environ


def spark_session(
    master: str | None = None,
    app_name: str = "stratalog",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one on `master`.

    None: spark-submit's master, or without one this machine (`LOCAL_MASTER`). `conf` holds Spark's
    own properties; they win over ours. A session that is running already is returned as it is, and
    all three arguments are without effect.

    Raises `MissingExtraError` without pyspark, pyarrow, pandas or a Java; `UsageError` if Spark
    does not start (the reason is on standard error).
    """
    try:
        import pandas  # noqa: F401  mapInArrow asks for it, late and inside a worker
        import pyarrow  # noqa: F401
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError(f"Spark is not installed ({error}); {INSTALL_HINT}") from error

    # `getActiveSession` knows only the session of this thread; a context is the process's.
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()

    submitted = _submitted_settings() if is_submitted() else {}
    master = with_retries(master or submitted.get("spark.master", LOCAL_MASTER))
    _check_reachable(master)
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**session_settings(master), **submitted, **(conf or {})}.items():
        builder = builder.config(name, value)
    builder = builder.master(master)
    with _environment(_variables(master)), _no_java_left():
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"Spark did not start on {master}: {reason}") from error


@contextmanager
def _no_java_left() -> Iterator[None]:
    """End the Java that is being started if somebody interrupts that (S5). It has been told to pass
    over Ctrl-C, and finds out that nobody waits for it by pages of traces."""
    from pyspark import SparkContext
    from pyspark import java_gateway as module

    java_gateway: Any = module
    started: list[Any] = []
    popen = java_gateway.Popen

    def remembered(*given: Any, **named: Any) -> Any:
        started.append(popen(*given, **named))
        return started[-1]

    java_gateway.Popen = remembered
    try:
        yield
    except KeyboardInterrupt:
        for process in started:
            process.kill()
            process.wait()
        if started:
            SparkContext._gateway = SparkContext._jvm = None
            SparkContext._active_spark_context = None
        raise
    finally:
        java_gateway.Popen = popen


def _submitted_settings() -> dict[str, str]:
    """What spark-submit was given, by its command line and its properties file."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to the Java that is there
    return dict(SparkConf().getAll())


def _check_reachable(master: str) -> None:
    """Raise `UsageError` if it is no master, or none of a standalone cluster's takes a connection
    (S4): Spark tells either by a page of Java."""
    if _MASTER.match(master) is None:
        raise UsageError(
            f"{master}: is no master; Spark knows local[N], spark://HOST:PORT, yarn, k8s://..."
        )
    found = _STANDALONE.fullmatch(master)
    if found is None:
        return
    reasons = []
    for address in found["addresses"].split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"{master}: a master is spark://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            return
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise UsageError(f"{master}: no master of a cluster answers ({'; '.join(reasons)})")


def with_retries(master: str) -> str:
    """`local`, `local[N]`, `local[*]` give up at the first lost worker: allow three more (S1)."""
    found = _LOCAL.fullmatch(master)
    return master if found is None else f"local[{found['threads'] or 1},4]"


def is_local(master: str) -> bool:
    """Whether the workers run on this machine, with this machine's files and interpreter."""
    return master.startswith("local")


def session_settings(master: str) -> dict[str, str]:
    """Spark's properties for a new session on `master`, each with its reason."""
    settings = {
        # A command of a few minutes needs no web page, and no progress bar beside its own.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"',
        # Rows are binary blocks of up to SHUFFLE_BLOCK_BYTES: bound a batch by bytes, not by count.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(SHUFFLE_BLOCK_BYTES),
        # Timestamps in a log are UTC; the machine's zone must not change what is shown.
        "spark.sql.session.timeZone": "UTC",
    }
    if is_local(master):
        scratch = tempfile.gettempdir()
        settings |= {
            # Without these Spark binds to, and asks the name service for, the machine's address.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": f"{heap_bytes(_machine_memory_bytes()) >> 20}m",
            # A task's hand-over to its worker takes 16 ms instead of 40 (40 empty tasks, 2 cores).
            "spark.python.unix.domain.socket.enabled": "true",
            # Hashes do not shrink, and a local shuffle goes through the page cache.
            "spark.shuffle.compress": "false",
            # TMPDIR counts (Java alone does not look at it); the current directory stays clean.
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": Path(scratch, "stratalog-warehouse").as_uri(),
        }
    return settings


def heap_bytes(memory_bytes: int) -> int:
    """The driver's heap for a machine with `memory_bytes`: a quarter, between 1 and 8 GiB.

    Blocks pass through the heap, but maps and files are worked on by Python processes and lie in
    the page cache, which need the rest.
    """
    return max(_MIN_HEAP_BYTES, min(memory_bytes // 4, _MAX_HEAP_BYTES))


def _machine_memory_bytes() -> int:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        # A container's limit; the word "max" means that there is none.
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return memory_bytes
    return min(memory_bytes, int(limit)) if limit.isdigit() else memory_bytes


def _variables(master: str) -> dict[str, str]:
    # Under spark-submit the Java that counts is the one that runs.
    variables = {} if is_submitted() else {"JAVA_HOME": prepare_java_home(find_java())}
    # On a cluster the interpreter's path is the cluster's business.
    if is_local(master) or "PYSPARK_PYTHON" not in os.environ:
        variables["PYSPARK_PYTHON"] = sys.executable
    if is_local(master) and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
