"""Settings described with their sources, and changes of them checked (CFG-1, CFG-2).

    entity    names            what is set there
    topic     the topic's      the registry's entry of the topic
    prefix    the topic's      the registry's words of that prefix of topic names
    broker    the broker's     server.properties, and what was changed at run time

Source: Kafka's ConfigHelper (which names, sources and synonyms are told) and ConfigCommand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratalog.admin.desk.describing import topic_names, unknown_topic
from stratalog.admin.desk.looking import Looker
from stratalog.admin.desk.protocol import ENTITY_TYPES, Document, EntityType
from stratalog.admin.desk.registry import Entry, Registry
from stratalog.admin.topics import Topics
from stratalog.base.errors import InvalidConfigError, StratalogError, UsageError
from stratalog.clean.ledger_plan import order_name
from stratalog.config.book import SettingsBook
from stratalog.config.kinds import Value, written
from stratalog.config.levels import Origin, Source, idle_hint, refused_name
from stratalog.config.row import Setting, Synonym
from stratalog.config.settings import Settings
from stratalog.config.table import BROKER_NAMES, TABLE, TOPIC_NAMES, rows_of, unknown
from stratalog.ledger.manifest import held_alone, read_manifest

_SOURCES = {
    "topic": (Source.TOPIC,),
    "prefix": (Source.NAMESPACE,),
    "broker": (Source.DYNAMIC_BROKER, Source.BROKER),
}


def check_entity(looker: Looker, entity_type: str, name: str | None) -> None:
    """Whether there can be settings of it. Raises `UsageError`, `UnknownPartitionError`."""
    if entity_type not in ENTITY_TYPES:
        raise UsageError(f"{entity_type!r} is none of {', '.join(ENTITY_TYPES)}")
    if (name is None) != (entity_type == "broker"):
        raise UsageError(
            "the broker has no name here: there is one"
            if entity_type == "broker"
            else f"which {entity_type}?"
        )
    if entity_type == "topic" and name not in topic_names(looker):
        raise unknown_topic(str(name))


def settings_at(looker: Looker, entity_type: str, name: str | None) -> Settings:
    """The settings in force at an entity that `check_entity` lets pass."""
    if entity_type == "topic":
        return looker.settings(str(name))
    book = looker.book
    return book.of_broker() if entity_type == "broker" else book.of_prefix(str(name))


def describe_configs(
    looker: Looker, entity_type: EntityType, name: str | None, shows_all: bool
) -> Document:
    """See `Desk.describe_configs`."""
    check_entity(looker, entity_type, name)
    settings = settings_at(looker, entity_type, name)
    configs = []
    for row in TABLE:
        synonym = _name_at(row, entity_type)
        if synonym is None:
            continue
        found = _config(settings, row, synonym, entity_type, name)
        if shows_all or found["is_set"]:
            configs.append(found)
    return {
        "ok": True,
        "entity_type": entity_type,
        "name": name,
        "configs": sorted(configs, key=lambda config: str(config["name"])),
    }


def _name_at(row: Setting, entity_type: str) -> Synonym | None:
    """By what name an entity has a setting."""
    if entity_type != "broker":
        return Synonym(row.name) if row.is_topics else None
    return row.at_broker[0] if row.at_broker else None


def _config(
    settings: Settings, row: Setting, synonym: Synonym, entity_type: str, place: str | None
) -> Document:
    origins = settings.origins(row.name)
    origin = origins[0] if origins else Origin(Source.DEFAULT, row.name, "")
    own = [it for it in origins if it.source in _SOURCES[entity_type]]
    if entity_type == "prefix":
        own = [it for it in own if it.place == place]
    value, default = settings.values[row.name], row.default
    return {
        "name": synonym.name,
        "value": None if value is None else written(_in_unit(value, synonym)),
        "default": None if default is None else written(_in_unit(default, synonym)),
        "type": row.kind.value,
        "rule": row.rule.text or None,
        "doc": row.doc,
        "effect": row.effect.value,
        "source": origin.source.value,
        "place": origin.place if origin.source is Source.NAMESPACE else None,
        "is_set": bool(own),
        "is_dynamic": entity_type != "broker" or row.dynamic_name == synonym.name,
        "has_effect": not row.is_idle,
        "ours": row.is_ours,
        "synonyms": [
            {
                "source": it.source.value,
                "name": it.name,
                "value": it.text,
                "place": it.place if it.source is Source.NAMESPACE else None,
            }
            for it in origins
        ],
    }


def _in_unit(value: Value, synonym: Synonym) -> Value:
    if synonym.factor != 1 and isinstance(value, int) and value > 0:
        return value // synonym.factor
    return value


# ---------------------------------------------------------------- changes


def changed_book(
    book: SettingsBook,
    entity_type: EntityType,
    name: str | None,
    words: Mapping[str, str],
    delete: Sequence[str],
) -> SettingsBook:
    """The book with the change. Raises `InvalidConfigError` with Kafka's reason."""
    _check_names(entity_type, [*words, *delete])
    if entity_type == "broker":
        return book.with_broker(words, delete)
    assert name is not None
    if entity_type == "topic":
        return book.with_topic(name, words, delete)
    return book.with_namespace(name, words, delete)


def _check_names(entity_type: str, names: Sequence[str]) -> None:
    """Unknown ones would pass where they are unset, and at a broker, whose file may say anything.
    Raises `InvalidConfigError`."""
    for name in names:
        if entity_type == "broker":
            if name in TOPIC_NAMES and name not in BROKER_NAMES:
                hint = idle_hint(name).removeprefix(name).strip(" ()")
                raise InvalidConfigError(f"{name} is a topic's name; the broker's is {hint}")
            if name not in BROKER_NAMES:
                raise InvalidConfigError(unknown(name))
        elif name not in TOPIC_NAMES:
            raise InvalidConfigError(refused_name(name, _SOURCES[entity_type][0]))


def changed_registry(
    registry: Registry,
    entity_type: EntityType,
    name: str | None,
    words: Mapping[str, str],
    delete: Sequence[str],
) -> Registry:
    """The registry with the change, which a book has accepted."""

    def changed(old: Mapping[str, str]) -> dict[str, str]:
        return {**{key: it for key, it in old.items() if key not in delete}, **words}

    if entity_type == "broker":
        return replace(registry, broker=changed(registry.broker))
    assert name is not None
    if entity_type == "topic":
        entry = registry.topics.get(name, Entry())
        entry = replace(entry, configs=changed(entry.configs))
        return (
            registry.without_topic(name) if entry == Entry() else registry.with_topic(name, entry)
        )
    prefixes = {**registry.prefixes, name: changed(registry.prefixes.get(name, {}))}
    return replace(registry, prefixes={key: it for key, it in prefixes.items() if it})


def changes(
    entity_type: EntityType, names: Sequence[str], before: Settings, after: Settings
) -> list[Document]:
    """What a change does, a row for each name."""
    found = []
    for name in sorted({*names}):
        row, synonym = _row_of(entity_type, name)
        origin = after.origin(row.name)
        old, new = before.values[row.name], after.values[row.name]
        found.append(
            {
                "name": name,
                "before": None if old is None else written(_in_unit(old, synonym)),
                "after": None if new is None else written(_in_unit(new, synonym)),
                "source": origin.source.value,
                "effect": row.effect.value,
            }
        )
    return found


def _row_of(entity_type: str, name: str) -> tuple[Setting, Synonym]:
    for row in rows_of(name):
        if entity_type != "broker" and row.name == name:
            return row, Synonym(name)
        if entity_type == "broker":
            for synonym in row.at_broker:
                if synonym.name == name:
                    return row, synonym
    raise InvalidConfigError(unknown(name))


def idle_warnings(entity_type: EntityType, names: Sequence[str]) -> list[str]:
    """What is set and nothing obeys."""
    return [
        f"{name} has no effect here"
        for name in sorted({*names})
        if _row_of(entity_type, name)[0].is_idle
    ]


def order_warnings(
    looker: Looker, names: Sequence[str], before: SettingsBook, after: SettingsBook
) -> list[str]:
    """What a change of the order of versions does not do to ledgers that hold what their logs have
    lost (CMP-17)."""
    if not any("compaction." in name for name in names):
        return []
    old_topics, new_topics = Topics(before), Topics(after)
    found = []
    for place in looker.places():
        key = place.topic_partition
        old, new = old_topics.cleaning(key), new_topics.cleaning(key)
        if (old.order, old.version_header) == (new.order, new.version_header):
            continue
        if not new.uses_ledger:
            continue
        try:
            current = read_manifest(looker.filesystem, place.path).current
            with looker.opened(place) as view:
                alone = held_alone(current, view.log_start_offset)
        except (StratalogError, FileNotFoundError):
            continue  # whoever uses it is told what is wrong with it
        if current is None or alone is None:
            continue
        if current.order != order_name(new.order, new.version_header):
            found.append(
                f"{key}: offsets {alone[0]} to {alone[1] - 1} are only in its ledger, which was "
                f"made by compaction.strategy={current.order}: what it holds stays as it was chosen"
            )
    return found
