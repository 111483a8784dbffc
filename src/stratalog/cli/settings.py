"""`stratalog settings`: every property that counts here, or all about one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.base.errors import UsageError
from stratalog.cli.options import JSON, format_option
from stratalog.cli.output import print_json
from stratalog.cli.tables import facts

if TYPE_CHECKING:
    from stratalog.config.row import Setting


@click.command(short_help="List the properties that --config takes, or explain one.")
@click.argument("name", required=False)
@format_option
def settings(name: str | None, output: str) -> None:
    """List the properties of topics and brokers, with defaults; or explain NAME, under any name.

    Names, defaults and rules are Kafka's, but for those marked ours.
    """
    from stratalog.config.docs import fields
    from stratalog.config.table import SECTIONS, rows_of

    if name is None:
        if output == JSON:
            print_json({"settings": [fields(row) for rows in SECTIONS.values() for row in rows]})
        else:
            click.echo("\n\n".join(_listing(title, rows) for title, rows in SECTIONS.items()))
        return
    try:
        rows = rows_of(name)
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    if output == JSON:
        print_json({"settings": [fields(row) for row in rows]})
    else:
        click.echo("\n\n".join(_explanation(row) for row in rows))


def _listing(title: str, rows: tuple[Setting, ...]) -> str:
    from stratalog.config.docs import default_of

    pairs = [(f"  {row.name}", default_of(row) + ("  ours" * row.is_ours)) for row in rows]
    return f"{title}\n{facts(pairs)}"


def _explanation(row: Setting) -> str:
    from stratalog.config.docs import default_of, run_time_of, synonyms_of, type_of

    pairs = [
        ("type", type_of(row)),
        ("default", default_of(row)),
        ("levels", "topic, namespace, broker" if row.is_topics else "broker"),
    ]
    if row.synonyms:
        pairs.append(("broker's names" if row.is_topics else "older names", synonyms_of(row)))
    pairs += [("at run time", run_time_of(row)), ("takes effect", row.effect.value)]
    return f"{row.name}{' (ours)' * row.is_ours}\n{row.doc}\n\n{facts(pairs)}"
