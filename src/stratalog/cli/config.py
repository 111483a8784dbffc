"""`stratalog config describe|alter`: settings with their sources, and changes at run time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stratalog.cli.desks import Where, desk_at, list_format_option, where_options
from stratalog.cli.listing import (
    Column,
    Item,
    confirm_loss,
    plain,
    show,
    text_table,
)

if TYPE_CHECKING:
    from stratalog.admin.desk.protocol import Desk, EntityType

Command = TypeVar("Command", bound=Callable[..., Any])

_TYPES = {
    **dict.fromkeys(("topic", "topics"), "topic"),
    **dict.fromkeys(("prefix", "prefixes"), "prefix"),
    **dict.fromkeys(("broker", "brokers"), "broker"),
}
_COMMA = re.compile(r",(?=[^\]]*(?:\[|$))")
_FORM = (
    "Invalid entity config: all configs to be added must be in the format 'key=val' or "
    "'key=[val1,val2]' to group values which contain commas."
)


def _synonyms(value: Any) -> str:
    """`{DYNAMIC_TOPIC_CONFIG:retention.ms=5, ...}`, as kafka-configs has it."""
    words = [
        f"{it['source']}{'(' + it['place'] + ')' if it['place'] else ''}:{it['name']}={it['value']}"
        for it in value
    ]
    return f"{{{', '.join(words)}}}"


DESCRIBED = (
    Column("name", "name"),
    Column("value", "value"),
    Column("default", "default"),
    Column("source", "source"),
    Column("set here", "is_set"),
    Column("takes effect", "effect"),
)
CHANGED = (
    Column("name", "name"),
    Column("before", "before"),
    Column("after", "after"),
    Column("source", "source"),
    Column("takes effect", "effect"),
)


@dataclass(frozen=True, slots=True)
class Entity:
    """Whose settings. `name` None: the broker's."""

    kind: EntityType
    name: str | None

    @property
    def title(self) -> str:
        return "the broker" if self.name is None else f"{self.kind} {self.name}"


@click.group(short_help="Settings of topics, prefixes and the broker.")
def config() -> None:
    """Settings in force, with their sources, and changes of them.

    Of TOPIC, of all topics whose names begin with --prefix, or of the --broker; or in the words of
    kafka-configs: --entity-type topics --entity-name TOPIC.
    """


def entity_options(command: Command) -> Command:
    """Whose settings, as `entity`."""

    @wraps(command)
    def with_entity(*arguments: Any, **named: Any) -> Any:
        names = ("topic", "topic_option", "prefix", "broker")
        kafka = ("entity_type", "entity_name", "entity_default")
        given = [named.pop(name) for name in names]
        words = [named.pop(name) for name in kafka]
        return command(*arguments, entity=_entity(*given, *words), **named)

    options = [
        click.argument("topic", metavar="[TOPIC]", required=False),
        click.option("--topic", "topic_option", hidden=True),
        click.option("--prefix", metavar="START", help="Of topics whose names begin so."),
        click.option("--broker", is_flag=True, help="The broker's."),
        click.option(
            "--entity-type", type=click.Choice(sorted(_TYPES)), help="As in kafka-configs."
        ),
        click.option("--entity-name", metavar="NAME", help="As in kafka-configs."),
        click.option("--entity-default", is_flag=True, help="As in kafka-configs: the broker's."),
    ]
    wrapped = cast("Command", with_entity)
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _entity(
    topic: str | None,
    topic_option: str | None,
    prefix: str | None,
    broker: bool,
    entity_type: str | None,
    entity_name: str | None,
    entity_default: bool,
) -> Entity:
    """Raises `click.UsageError` unless exactly one is meant."""
    found: list[Entity] = []
    found += [Entity("topic", name) for name in (topic, topic_option) if name is not None]
    found += [Entity("prefix", prefix)] if prefix is not None else []
    found += [Entity("broker", None)] if broker else []
    if entity_type is not None:
        kind = cast("EntityType", _TYPES[entity_type])
        if kind != "broker" and (entity_name is None or entity_default):
            raise click.UsageError(f"--entity-type {entity_type} needs --entity-name.")
        found.append(Entity(kind, None if kind == "broker" else entity_name))
    elif entity_name is not None or entity_default:
        raise click.UsageError("--entity-name and --entity-default need --entity-type.")
    if len(found) != 1:
        raise click.UsageError("Say whose settings, once: TOPIC, --prefix START or --broker.")
    return found[0]


@config.command(short_help="Values, defaults and sources.")
@entity_options
@click.option("--all", "shows_all", is_flag=True, help="Also what is not set there.")
@click.option("--describe", "_is_describe", is_flag=True, hidden=True)
@where_options
@list_format_option
def describe(
    where: Where, entity: Entity, shows_all: bool, _is_describe: bool, output: str
) -> None:
    """Say what is set there: the value in force, the default, all sources, the strongest first, and
    when a change takes effect."""
    with desk_at(where) as desk:
        document = desk.describe_configs(entity.kind, entity.name, all=shows_all)
    configs = document["configs"]
    if shows_all:
        text = text_table(DESCRIBED, configs)
    else:
        head = (
            f"Configs for {entity.title} are:" if configs else f"Nothing is set at {entity.title}."
        )
        text = "\n".join([head, *map(_described, configs)])
    columns = (*DESCRIBED, Column("synonyms", "synonyms", _synonyms))
    tabbed = [{**it, "synonyms": _synonyms(it["synonyms"]), "error": None} for it in configs]
    show(document, output, columns, tabbed, text=text)


def _described(found: Item) -> str:
    lines = [
        f"  {found['name']}={found['value'] or ''} synonyms={_synonyms(found['synonyms'])}",
        f"    {found['doc']}",
        f"    default {plain(found['default'])}; a change takes effect {found['effect']}",
    ]
    return "\n".join(lines)


@config.command(short_help="Set and unset settings, also while a server runs.")
@entity_options
@click.option(
    "--add-config",
    multiple=True,
    metavar="NAME=VALUE,NAME=[A,B]",
    help="Settings to set; brackets hold a value with commas.",
)
@click.option(
    "--add-config-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A file of properties to set.",
)
@click.option("--delete-config", multiple=True, metavar="NAME,NAME", help="Settings to unset.")
@click.option("--alter", "_is_alter", is_flag=True, hidden=True)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would change.")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@where_options
@list_format_option
def alter(
    where: Where,
    entity: Entity,
    add_config: tuple[str, ...],
    add_config_file: str | None,
    delete_config: tuple[str, ...],
    _is_alter: bool,
    dry_run: bool,
    no_confirm: bool,
    output: str,
) -> None:
    """Change settings, all or none. What a change comes to is told, and when it takes effect; a
    clean that runs is aborted if cleanup.policy loses compact. Where a topic leaves ledger mode and
    only its ledger has some records, they go with it: that is asked first."""
    from stratalog.base.errors import InvalidConfigError

    words = _added(add_config, add_config_file)
    delete = [name for text in delete_config for it in text.split(",") if (name := it.strip())]
    if not words and not delete:
        raise click.UsageError(
            "At least one of --add-config, --add-config-file, --delete-config must be given."
        )
    both = sorted(words.keys() & {*delete})
    if both:
        raise InvalidConfigError(f"set and deleted at once: {', '.join(both)}")
    with desk_at(where) as desk:
        if delete:
            # Kafka's tool refuses this; for programs (REST, the library) it is no error.
            there = desk.describe_configs(entity.kind, entity.name)["configs"]
            unset = [name for name in delete if name not in {it["name"] for it in there}]
            if unset:
                raise InvalidConfigError(f"Invalid config(s): {','.join(unset)}")
        # Whoever was not shown anything does not confirm it either.
        gives_up = not dry_run and _gives_up(desk, entity, words, delete, no_confirm)
        document = desk.alter_configs(
            entity.kind, entity.name, words, delete, dry_run=dry_run, confirm=gives_up
        )
    changes = [{**it, "error": None} for it in document["changes"]]
    lines = [text_table(CHANGED, changes)]
    lines += [f"{name}: the clean that ran was aborted." for name in document["aborted"]]
    if dry_run:
        lines.append("A dry run: nothing was changed.")
    else:
        lines.append(f"Completed updating config for {entity.title}.")
    show(document, output, CHANGED, changes, text="\n".join(lines))


def _gives_up(
    desk: Desk, entity: Entity, words: dict[str, str], delete: Sequence[str], no_confirm: bool
) -> bool:
    """Whether a change takes away what only ledgers have, and somebody wants that. Raises
    `click.UsageError` if there is nobody to ask, `StratalogError` for a no."""
    if not any("compaction.mode" in name for name in (*words, *delete)):
        return False
    planned = desk.alter_configs(entity.kind, entity.name, words, delete, dry_run=True)
    if not planned["given_up"]:
        return False
    told = "\n".join(f"warning: {warning}" for warning in planned["warnings"])
    confirm_loss(told, no_confirm=no_confirm)
    return True


def _added(add_config: Sequence[str], add_config_file: str | None) -> dict[str, str]:
    """What is to be set; the command line wins over the file. Raises `click.UsageError`."""
    from stratalog.cli.properties import read_config_file

    words: dict[str, str] = {}
    if add_config_file is not None:
        from stratalog.base.errors import UsageError

        try:
            words |= read_config_file(add_config_file)
        except (UsageError, OSError) as error:
            raise click.BadParameter(str(error), param_hint="--add-config-file") from error
    added: dict[str, str] = {}
    for text in add_config:
        found = parse_added(text)
        _check_once(added.keys() & found.keys())
        added |= found
    return words | added


def _check_once(twice: Iterable[str]) -> None:
    """Of two values nobody knows which is meant. Raises `click.BadParameter`."""
    names = sorted(twice)
    if names:
        raise click.BadParameter(f"given twice: {', '.join(names)}", param_hint="--add-config")


def parse_added(text: str) -> dict[str, str]:
    """`a=1,b=[x,y]`, as Kafka's ConfigCommand reads it. Raises `click.BadParameter`."""
    found: dict[str, str] = {}
    for pair in _COMMA.split(text):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(_FORM, param_hint="--add-config")
        _check_once({name.strip()} & found.keys())
        found[name.strip()] = value.replace("[", "").replace("]", "").strip()
    return found
