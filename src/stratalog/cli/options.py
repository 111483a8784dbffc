"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stratalog.base.clock import Clock, StoppedClock, SystemClock
from stratalog.base.errors import UsageError
from stratalog.base.limits import LATEST_MS
from stratalog.cli.output import print_note
from stratalog.cli.properties import read_book_file, read_config_file

if TYPE_CHECKING:
    from stratalog.admin.retention import SettingsOf
    from stratalog.config.book import SettingsBook
    from stratalog.config.kinds import Value
    from stratalog.config.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

TEXT, JSON, TSV = "text", "json", "tsv"
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
        help="One of Kafka's topic or broker properties, see stratalog settings; may be repeated.",
    )(command)


def config_file_option(command: Command) -> Command:
    """`--config-file FILE`, as `config_file`."""
    return click.option(
        "--config-file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="A broker's server.properties; --config wins over it.",
    )(command)


def topic_config_option(command: Command) -> Command:
    """`--topic-config FILE`, as `topic_config`."""
    return click.option(
        "--topic-config",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Properties of topics: sections [topic NAME] and [prefix START]; --config wins.",
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
    """Checked settings of every partition. Raises `click.BadParameter` with the reason."""
    return book_of(config, defaults, config_file).of_broker()


def book_of(
    config: tuple[str, ...],
    defaults: Mapping[str, Value] | None = None,
    config_file: str | None = None,
    topic_config: str | None = None,
    directories: Sequence[str] = (),
    named: Sequence[str] = (),
) -> SettingsBook:
    """Checked settings, topic by topic: `--config` over what is known of the topics in
    `directories` over `--topic-config` over `--config-file`.

    What has no effect is told, log.dirs beside other directories than `directories` and `named`
    among it. Raises `click.BadParameter` with the reason and the option;
    `CorruptionError` if what is known of a directory's topics is damaged.
    """
    from stratalog.config.book import SettingsBook
    from stratalog.config.book_file import BookFile
    from stratalog.config.settings import parse_pairs, resolve

    with _blamed("--config"):
        given = parse_pairs(config)
        resolve(given, defaults)
    broker, said = {}, BookFile()
    if config_file is not None:
        with _blamed("--config-file", config_file):
            broker = read_config_file(config_file)
            SettingsBook(broker, defaults=defaults or {})
    if topic_config is not None:
        with _blamed("--topic-config", topic_config):
            said = read_book_file(topic_config)
            SettingsBook(broker, said.namespaces, said.topics, defaults=defaults or {})
    with _blamed("--config"):
        book = SettingsBook(
            broker, said.namespaces, said.topics, overrides=given, defaults=defaults or {}
        )
    for note in book.notes(config_file or "", (*directories, *named)):
        print_note(f"note: {note}")
    return with_known(book, directories) if directories else book


def with_known(book: SettingsBook, directories: Sequence[str]) -> SettingsBook:
    """The book with what the directories' registries say of their topics, if they have one: a
    directory is a log directory or a partition's. Raises `CorruptionError`, `UsageError`."""
    from stratalog.base.filesystem import LocalFileSystem

    found = [os.path.abspath(path) for path in directories if "://" not in path]
    homes = dict.fromkeys([*found, *map(os.path.dirname, found)])
    if not any(os.path.exists(os.path.join(home, "stratalog-topics")) for home in homes):
        return book

    from stratalog.admin.desk.registry import REGISTRY_FILE, read_registry

    for home in homes:
        if os.path.exists(os.path.join(home, REGISTRY_FILE)):
            book = read_registry([home], LocalFileSystem())[1].book(book)
    return book


def told_of(
    config: tuple[str, ...], config_file: str | None, directories: Sequence[str]
) -> Settings | SettingsOf:
    """What commands on directories go by: what is given, for all partitions alike; where topics
    were made here, what is known of them, too. Raises as `book_of`."""
    book = book_of(config, None, config_file, named=directories)
    known = with_known(book, directories)
    if known is book:
        return book.of_broker()

    from stratalog.admin.desk.bare import told_by_book

    return told_by_book(known)


@contextmanager
def _blamed(option: str, path: str = "") -> Iterator[None]:
    """Says which option an error comes from, and of which file it is."""
    try:
        yield
    except (UsageError, OSError) as error:
        message = f"{path}: {error}" if path else str(error)
        raise click.BadParameter(message, param_hint=option) from error


def clock_of(now_ms: int | None) -> Clock:
    """The machine's clock, or one that stands still."""
    return SystemClock() if now_ms is None else StoppedClock(now_ms)
