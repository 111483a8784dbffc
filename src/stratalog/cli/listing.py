"""A desk's documents as tables: aligned text for people, lines of tabs for programs, or JSON.

A `Column` says which field of an item it shows, and how people see it; the lines of tabs have the
value as it is in the document, `-` where it is empty, and always end with ERROR and MESSAGE (the
type and the text of the item's error). People see those two only where something is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from stratalog.base.errors import StratalogError
from stratalog.cli.options import JSON, TSV
from stratalog.cli.output import print_json, print_note
from stratalog.cli.tables import moment, size, table

FAILED = 1
Item = Mapping[str, Any]


def plain(value: Any) -> str:
    """A value as it is; `-` for none."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(plain, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def count(value: Any) -> str:
    return f"{value:,}"


def percent(value: Any) -> str:
    return f"{value:.1%}"


@dataclass(frozen=True, slots=True)
class Column:
    """`field`: of the item; dots lead into its documents. `human`: how people see what is there."""

    head: str
    field: str
    human: Callable[[Any], str] = plain

    def value(self, item: Item) -> Any:
        found: Any = item
        for name in self.field.split("."):
            if found is None:
                return None
            found = found[name]
        return found

    def cell(self, item: Item) -> str:
        value = self.value(item)
        return plain(None) if value is None else self.human(value)


def bytes_column(head: str, field: str) -> Column:
    return Column(head, field, size)


def time_column(head: str, field: str) -> Column:
    return Column(head, field, moment)


def text_table(columns: Sequence[Column], items: Sequence[Item]) -> str:
    """For people."""
    is_wrong = any(item.get("error") for item in items)
    heads = [column.head for column in columns] + ["error", "message"] * is_wrong
    rows = [
        [column.cell(item) for column in columns] + (_error(item) if is_wrong else [])
        for item in items
    ]
    return table(heads, rows)


def tab_lines(columns: Sequence[Column], items: Sequence[Item]) -> str:
    """For programs: no head, a line an item."""
    return "\n".join(
        "\t".join(
            _one_line(cell)
            for cell in (*(plain(column.value(item)) for column in columns), *_error(item))
        )
        for item in items
    )


def _error(item: Item) -> list[str]:
    error = item.get("error")
    return ["-", "-"] if error is None else [str(error["type"]), str(error["message"])]


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "-"


def show(
    document: dict[str, Any],
    output: str,
    columns: Sequence[Column],
    items: Sequence[Item],
    *,
    text: str | None = None,
) -> None:
    """Print a document; `text`: for people, instead of a table of the items."""
    if output == JSON:
        print_json(document)
        return
    shown = tab_lines(columns, items) if output == TSV else text
    if shown is None:
        shown = text_table(columns, items) if items else ""
    if shown:
        click.echo(shown)
    for warning in document.get("warnings", ()):
        print_note(f"warning: {warning}")


def exit_code(document: dict[str, Any]) -> int:
    return 0 if document["ok"] else FAILED


def check_answerable(*, no_confirm: bool, dry_run: bool = False) -> None:
    """Whether somebody can be asked. Raises `click.UsageError`."""
    if not (dry_run or no_confirm or sys.stdin.isatty()):
        raise click.UsageError("There is nobody to ask: --no-confirm does it without a question.")


def confirm(plan: str, question: str, *, no_confirm: bool) -> None:
    """Show what would be done, and ask. Raises `StratalogError` for a no."""
    if no_confirm:
        return
    print_note(plan)
    if not click.confirm(question, default=False, err=True):
        raise StratalogError("not confirmed: nothing was changed")


def confirm_loss(told: str, *, no_confirm: bool) -> None:
    """Before what only ledgers have goes: say what, and ask. Raises `click.UsageError` if there is
    nobody to ask, `StratalogError` for a no."""
    if not (no_confirm or sys.stdin.isatty()):
        print_note(told)
    check_answerable(no_confirm=no_confirm)
    confirm(told, "Give that up?", no_confirm=no_confirm)
