"""A real standalone cluster on the loopback address: one master, workers of one core each.

pyspark carries the classes; the Java is the one that sessions find. Everything that was started is
stopped at the end, executors too, and all ports are free ones.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from stratalog.spark.java import find_java, prepare_java_home

_HOME = Path(pyspark.__file__).parent
_START_SECONDS = 120
_STOP_SECONDS = 20
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
"""For a driver: executors must find it where it listens."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java that ends in seconds: six of them start on two cores."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`master`: its URL; `worker_logs`: what each worker says."""

    master: str
    worker_logs: tuple[Path, ...]


@contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and workers of one core and 1 GiB each, ready for applications."""
    with ExitStack() as stack:
        log = directory / "master.log"
        options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        stack.enter_context(_process("master.Master", options, directory, log))
        master = _said(log, r"Starting Spark master at (spark://\S+)")
        logs = []
        for number in range(workers):
            log = directory / f"worker-{number}.log"
            options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            options += ("--cores", "1", "--memory", "1g")
            options += ("--work-dir", str(directory / f"work-{number}"), master)
            stack.enter_context(_process("worker.Worker", options, directory, log))
            logs.append(log)
        for log in logs:
            _said(log, "(Successfully registered with master)")
        yield Cluster(master, tuple(logs))


@contextmanager
def _process(name: str, options: tuple[str, ...], directory: Path, log: Path) -> Iterator[None]:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SPARK_")},
        **LOOPBACK,
        "SPARK_HOME": str(_HOME),
        "JAVA_HOME": prepare_java_home(find_java()),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_NO_DAEMONIZE": "1",
    }
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()  # a worker ends its executors
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"{log.name} never said {pattern!r}:\n{log.read_text(errors='replace')}")
