"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stratalog.base.clock import Clock, FixedClock, SystemClock
from stratalog.base.errors import UsageError
from stratalog.base.limits import LATEST_MS
from stratalog.cli.output import print_note
from stratalog.cli.properties import read_config_file

if TYPE_CHECKING:
    from stratalog.config.kinds import Value
    from stratalog.config.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

TEXT, JSON = "text", "json"
DIRECTORY = click.Path(exists=True, file_okay=False)


def format_option(command: Command) -> Command:
    """`--format text|json`, as `output`."""
    return click.option(
        "--format",
        "output",
        type=click.Choice([TEXT, JSON]),
        default=TEXT,
        show_default=True,
        help="Text for people, or one JSON object on stdout.",
    )(command)


def config_option(command: Command) -> Command:
    """`--config NAME=VALUE`, any number of times, as `config`."""
    return click.option(
        "--config",
        multiple=True,
        metavar="NAME=VALUE",
        help="One of Kafka's topic or broker properties; may be repeated.",
    )(command)


def config_file_option(command: Command) -> Command:
    """`--config-file FILE`, as `config_file`."""
    return click.option(
        "--config-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="A broker's server.properties; --config wins over it.",
    )(command)


def now_option(command: Command) -> Command:
    """`--now MS`, as `now_ms`."""
    return click.option(
        "--now",
        "now_ms",
        type=click.IntRange(min=0, max=LATEST_MS),
        metavar="MS",
        help="The time to go by, ms since 1970 UTC, so that a run can be repeated.",
    )(command)


def settings_of(
    config: tuple[str, ...],
    defaults: Mapping[str, Value] | None = None,
    config_file: str | None = None,
) -> Settings:
    """Checked settings. Raises `click.BadParameter` with the reason."""
    from stratalog.config.settings import parse_pairs, resolve

    source = "--config"
    try:
        given = parse_pairs(config)
        if config_file is not None:
            resolve(given, defaults)  # so that an error names the source it comes from
            source = "--config-file"
            given = {**read_config_file(config_file, given), **given}
        settings = resolve(given, defaults)
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint=source) from error
    for name in settings.without_effect:
        print_note(f"note: {name} has no effect here")
    return settings


def clock_of(now_ms: int | None) -> Clock:
    """The machine's clock, or one that stands still."""
    return SystemClock() if now_ms is None else FixedClock(now_ms)
