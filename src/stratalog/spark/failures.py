"""What made Spark give a job up, as an error of ours in one line.

Spark tries a task again when it fails, on another worker if it can: a full disk or a lost machine
there is no reason to stop. When it gives up, it raises pages of Java. The line that matters is the
last one of the Python traceback in it, or, where no Python was involved, the reason of the stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.base import errors
from stratalog.base.errors import StorageIOError, StratalogError

_STACK = re.compile(r"\n\s+at |\n\s*Driver stacktrace:|\nCaused by: ")
_PYTHON = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_RECENT = re.compile(r"most recent failure: (?:Lost task [^\n]*?\): )?(?P<text>[^\n]+)")
_JAVA_NAME = re.compile(r"^(?:[a-z]\w*\.)+(?P<name>\w+): ")
_MOST_CHARACTERS = 300


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Raise what Spark raises as `StratalogError`s: ours if a task raised one, which Spark has
    tried again in vain; `StorageIOError` for anything else that the cluster met."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise failure_of(str(error)) from error


def failure_of(text: str) -> StratalogError:
    """The error in what Spark says of a job that failed."""
    _, is_python, traceback = text.partition("Traceback (most recent call last)")
    if is_python:
        lines = _STACK.split(traceback, maxsplit=1)[0].strip().splitlines()
        # A message may have several lines; a frame is indented.
        for line in reversed(lines):
            found = _PYTHON.match(line)
            if found is not None:
                return _of_python(found["name"], found["text"] or "")
    recent = _RECENT.search(text)
    reason = recent["text"] if recent is not None else text.strip().partition("\n")[0]
    reason = _JAVA_NAME.sub(_without_package, reason.strip())
    return StorageIOError(f"Spark gave up: {_short(reason) or 'it does not say why'}")


def _without_package(found: re.Match[str]) -> str:
    name = found["name"]
    return "" if name == "SparkException" else f"{name}: "


def _of_python(name: str, text: str) -> StratalogError:
    module, _, last = name.rpartition(".")
    kind = getattr(errors, last, None) if module == errors.__name__ else None
    if kind is not None and issubclass(kind, StratalogError):
        try:
            return kind(_short(text))  # type: ignore[no-any-return]
        except TypeError:  # it wants more than a text
            return StratalogError(_short(text))
    told = f"{last}: {text}" if text else last
    return StorageIOError(f"Spark gave up: {_short(told)}")


def _short(text: str) -> str:
    # What Spark advises is for whoever writes the code of its tasks.
    text = " ".join(text.split()).partition(". Consider setting")[0]
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
