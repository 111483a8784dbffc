"""The output contract: text for people, or exactly one JSON object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import click

from stratalog.base.errors import CorruptionError

_MOST_OF_A_MESSAGE = 2000


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON; needed where they could not be parsed."""
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def print_json(content: Any) -> None:
    """The one object of a command's output."""
    click.echo(_json(content))


def _json(content: Any) -> str:
    """In escapes where stdout cannot show what was given: names on a command line are bytes."""
    text = json.dumps(content, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(content)
    return text


def print_json_list(head: dict[str, Any], name: str, rows: Iterable[Any]) -> BaseException | None:
    """One object with a list too long for memory, row by row.

    An error on the way becomes the object's last member, `error`, so that what is printed is whole;
    it is returned.
    """
    opening = _json({**head, name: []})
    click.echo(opening.removesuffix("]}"), nl=False)
    failure: BaseException | None = None
    separator = "\n"
    try:
        for row in rows:
            click.echo(separator + _json(row), nl=False)
            separator = ",\n"
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  told in the object, then raised by the caller
        failure = error
    told = "" if failure is None else f', "error": {json.dumps(error_fields(failure))}'
    click.echo(f"]{told}", nl=False)
    click.echo("}")
    return failure


def print_error(error: BaseException, *, as_json: bool) -> None:
    """An error in one line on stderr, or as the one object on stdout."""
    if as_json:
        print_json({"error": error_fields(error)})
    else:
        print_note(f"error: {_message(error)}")


def print_note(text: str) -> None:
    """A line that is not the result: to stderr."""
    click.echo(printable(text), err=True)


def printable(text: str) -> str:
    """With escapes for what a terminal would obey or cannot show."""
    return "".join(
        char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text
    )


def cleaned(message: str) -> str:
    """An error's text: printable, and without the middle of what somebody gave by the megabyte."""
    most = _MOST_OF_A_MESSAGE // 2
    if len(message) > 2 * most:
        left_out = len(message) - 2 * most
        message = f"{message[:most]} [{left_out:,} more characters] {message[-most:]}"
    return printable(message)


def _message(error: BaseException) -> str:
    return cleaned(_text(error))


def _text(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__  # what was given may have lines


def error_fields(error: BaseException) -> dict[str, Any]:
    """An error as JSON has it."""
    fields: dict[str, Any] = {"type": type(error).__name__, "message": _message(error)}
    if isinstance(error, CorruptionError):
        fields |= {"file": error.file, "position": error.position, "reason": error.reason}
    return fields


def is_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()
