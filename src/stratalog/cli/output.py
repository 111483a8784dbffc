"""The output contract: text for people, or exactly one JSON object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import click

from stratalog.base.errors import CorruptionError


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON; needed where they could not be parsed."""
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def print_json(content: Any) -> None:
    """The one object of a command's output."""
    click.echo(json.dumps(content, ensure_ascii=False))


def print_json_list(head: dict[str, Any], name: str, rows: Iterable[Any]) -> BaseException | None:
    """One object with a list too long for memory, row by row.

    An error on the way becomes the object's last member, `error`, so that what is printed is whole;
    it is returned.
    """
    opening = json.dumps({**head, name: []}, ensure_ascii=False)
    click.echo(opening.removesuffix("]}"), nl=False)
    failure: BaseException | None = None
    separator = "\n"
    try:
        for row in rows:
            click.echo(separator + json.dumps(row, ensure_ascii=False), nl=False)
            separator = ",\n"
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  told in the object, then raised by the caller
        failure = error
    click.echo("]" if failure is None else f'], "error": {json.dumps(_fields(failure))}', nl=False)
    click.echo("}")
    return failure


def print_error(error: BaseException, *, as_json: bool) -> None:
    """An error in one line on stderr, or as the one object on stdout."""
    if as_json:
        print_json({"error": _fields(error)})
    else:
        print_note(f"error: {_message(error)}")


def print_note(text: str) -> None:
    """A line that is not the result: to stderr."""
    click.echo(text, err=True)


def _message(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__  # what was given may have lines


def _fields(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": type(error).__name__, "message": _message(error)}
    if isinstance(error, CorruptionError):
        fields |= {"file": error.file, "position": error.position, "reason": error.reason}
    return fields


def is_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()
