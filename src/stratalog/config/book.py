"""All settings of a process: its broker's, its namespaces', its topics'. `of(topic)` answers.

    broker       server.properties, and what was changed of it at run time
    namespaces   prefixes of topic names; all that fit are stacked, a longer one over a shorter one
    topics       one topic each
    overrides    the command line, over everything

A book does not change: `with_topic`, `with_namespace` and `with_broker` answer a new one, or refuse
the change with the rule that it breaks. So whoever holds a book sees one state, and a change is
whole or not there (CFG-2).

Invariants
- I1  Every topic that could be named has valid settings: the broker's, each prefix's with those
      below it, and each topic's keep all rules, also those between settings.
- I2  `of` answers the same object as long as nothing that it depends on is changed; topics without
      words of their own share one. What a topic costs is what is said of it.
- I3  The cache is only ever filled with what anybody else would fill in, so that threads share it.

Source: CFG-1, CFG-2; Kafka's DynamicBrokerConfig and ConfigHelper.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from stratalog.base.errors import InvalidConfigError
from stratalog.config.kinds import Value
from stratalog.config.levels import Given, Source, idle_hint
from stratalog.config.settings import Settings, over, unset
from stratalog.config.table import BROKER_NAMES, DYNAMIC_BROKER_NAMES, WITHOUT_EFFECT
from stratalog.config.together import check_broker, check_change, check_together

Words = Mapping[str, str]
"""name -> text."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_Key = tuple[tuple[str, ...], str | None, bool]
"""The namespaces that a topic lies in, the topic itself if it has words of its own, and whether it
goes by the table's defaults although the book has others."""


@dataclass(frozen=True, slots=True)
class SettingsBook:
    """Settings of every level; raises `InvalidConfigError` if they are not valid as a whole.

    `broker`: a broker's file. `dynamic_broker`: what was changed of it at run time, over it.
    `defaults`: those of a command where they differ from the table's; not for the topics in `made`,
    of which all is known that anybody has said of them. The mappings become the book's: whoever
    gives them leaves them alone.
    """

    broker: Words = field(default_factory=dict)
    namespaces: Mapping[str, Words] = field(default_factory=dict)
    topics: Mapping[str, Words] = field(default_factory=dict)
    dynamic_broker: Words = field(default_factory=dict)
    overrides: Words = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    _known: dict[_Key, Settings] = field(default_factory=dict, repr=False, compare=False)
    _base: Settings = field(init=False, repr=False, compare=False)
    _base_of_made: Settings = field(init=False, repr=False, compare=False)
    _lengths: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_once = object.__setattr__  # what is derived from the fields of a frozen value
        set_once(self, "_lengths", tuple(sorted({len(prefix) for prefix in self.namespaces})))
        set_once(self, "_base", self._broker_settings(self.defaults))
        own = self._broker_settings({}) if self.defaults and self.made else self._base
        set_once(self, "_base_of_made", own)
        self._of_namespaces(())
        for prefix in self.namespaces:
            with _titled(f"prefix {prefix}"):
                _check_name(prefix)
                self._of_namespaces(self._prefixes(prefix))
        for topic in self.topics:
            with _titled(f"topic {topic}"):
                self.of(topic)

    def of(self, topic: str) -> Settings:
        """A topic's settings, also those of one that nobody has named here."""
        prefixes, is_made = self._prefixes(topic), self._is_made(topic)
        if topic not in self.topics:
            return self._of_namespaces(prefixes, is_made)
        key = (prefixes, topic, is_made)
        if key not in self._known:
            self._known[key] = self._of_topic(topic, self.topics[topic])
        return self._known[key]

    def of_prefix(self, prefix: str) -> Settings:
        """Those of a topic whose name begins so and of which nobody says more."""
        return self._of_namespaces(self._prefixes(prefix), bool(self.made and self.defaults))

    def of_broker(self) -> Settings:
        """The broker's own settings, and those of a topic that nobody says anything of."""
        return self._of_namespaces(())

    def with_topic(self, topic: str, words: Words, delete: Iterable[str] = ()) -> SettingsBook:
        """The book with `words` set and the names of `delete` unset at a topic.

        Raises `InvalidConfigError` for what cannot be, with the rule; to unset what is not set is
        no error.
        """
        topics = _changed_at(self.topics, topic, words, delete)
        old = self._known.copy().items()  # others may add to it meanwhile
        known = {key: settings for key, settings in old if key[1] != topic}
        if topic in topics:
            key = (self._prefixes(topic), topic, self._is_made(topic))
            known[key] = self._of_topic(topic, topics[topic])
        return replace(self, topics=topics, _known=known)

    def with_overrides(self, words: Words) -> SettingsBook:
        """The book with `words` over everything that is said of any topic; as `with_topic`."""
        return replace(self, overrides={**self.overrides, **words}, _known={})

    def without_topic(self, topic: str) -> SettingsBook:
        """The book after a topic is gone, with nothing said of it."""
        return self.with_topic(topic, {}, tuple(self.topics.get(topic, ()))).without_made(topic)

    def with_made(self, topic: str) -> SettingsBook:
        """The book after a topic was made here: what nobody has said of it, is not said."""
        return self._with_made(topic, self.made | {topic})

    def without_made(self, topic: str) -> SettingsBook:
        """The book after a topic that was made here is gone."""
        return self._with_made(topic, self.made - {topic})

    def _with_made(self, topic: str, made: frozenset[str]) -> SettingsBook:
        if made == self.made:
            return self
        known = {key: value for key, value in self._known.copy().items() if key[1] != topic}
        return replace(self, made=made, _known=known)

    def with_namespace(self, prefix: str, words: Words, delete: Iterable[str] = ()) -> SettingsBook:
        """The book with a change at the topics whose names start with `prefix`; as `with_topic`."""
        namespaces = _changed_at(self.namespaces, prefix, words, delete)
        old = self._known.copy().items()  # others may add to it meanwhile
        known = {key: settings for key, settings in old if not _lies_in(key, prefix)}
        return replace(self, namespaces=namespaces, _known=known)

    def with_broker(self, words: Words, delete: Iterable[str] = ()) -> SettingsBook:
        """The book with a change of the broker at run time; as `with_topic`.

        Refuses what only a start can change, and thread counts that go too far at once.
        """
        delete = tuple(delete)
        static = sorted({*words, *delete} & (BROKER_NAMES - DYNAMIC_BROKER_NAMES))
        if static:
            raise InvalidConfigError(
                f"Cannot update these configs dynamically: Set({', '.join(static)})"
            )
        dynamic = _changed(self.dynamic_broker, words, delete)
        changed = replace(self, dynamic_broker=dynamic, _known={})
        check_change(self._base, changed._base)
        return changed

    def notes(
        self, broker: str = "the broker's properties", directories: Sequence[str] = ()
    ) -> Iterator[str]:
        """What was given and has no effect, and what would have one (CFG-1), a line a place.

        `directories`: those that are worked on; others in log.dirs are passed over.
        """
        for name in ("log.dirs", "log.dir"):
            said = {**self.broker, **self.overrides}.get(name, "")
            paths = {os.path.abspath(path.strip()) for path in said.split(",") if path.strip()}
            used = {os.path.abspath(path) for path in directories}
            if paths and not (used and used | {*map(os.path.dirname, used)} >= paths):
                yield f"{name}={said} is passed over: directories are those that a call names"
        for name in self.overrides:
            if name in WITHOUT_EFFECT:
                yield f"{name} has no effect here"
        idle = {"": set(self._base.without_effect)}
        for title, level in (("prefix", self.namespaces), ("topic", self.topics)):
            for place, words in level.items():
                idle[f"{title} {place}"] = words.keys() & WITHOUT_EFFECT
        for place, names in idle.items():
            if names:
                told = ", ".join(idle_hint(name) if not place else name for name in sorted(names))
                yield f"of {place or broker} these have no effect here: {told}"

    def _prefixes(self, topic: str) -> tuple[str, ...]:
        """The namespaces that a name lies in, the shortest first."""
        heads = (topic[:length] for length in self._lengths if length <= len(topic))
        return tuple(head for head in heads if head in self.namespaces)

    def _is_made(self, topic: str) -> bool:
        return bool(self.defaults) and topic in self.made

    def _of_namespaces(self, prefixes: tuple[str, ...], is_made: bool = False) -> Settings:
        """Of a topic that lies in these namespaces and has no words of its own."""
        key = (prefixes, None, is_made)
        if key not in self._known:
            self._known[key] = self._finished(self._below(prefixes, is_made))
        return self._known[key]

    def _of_topic(self, topic: str, words: Words) -> Settings:
        _check_name(topic)
        below = self._below(self._prefixes(topic), self._is_made(topic))
        return self._finished(over(below, Given(Source.TOPIC, words, topic)))

    def _below(self, prefixes: tuple[str, ...], is_made: bool) -> Settings:
        """The broker's and the namespaces', a topic's and the command line's still missing."""
        settings = self._base_of_made if is_made else self._base
        for prefix in prefixes:
            settings = over(settings, Given(Source.NAMESPACE, self.namespaces[prefix], prefix))
        return settings

    def _broker_settings(self, defaults: Mapping[str, Value]) -> Settings:
        settings = unset(defaults)
        for source, words in (
            (Source.BROKER, self.broker),
            (Source.DYNAMIC_BROKER, self.dynamic_broker),
        ):
            if words:
                settings = over(settings, Given(source, words))
        check_broker(settings)
        return settings

    def _finished(self, settings: Settings) -> Settings:
        if self.overrides:
            settings = over(settings, Given(Source.COMMAND_LINE, self.overrides))
        check_together(settings)
        return settings


@contextmanager
def _titled(title: str) -> Iterator[None]:
    """Says whose settings an error is about."""
    try:
        yield
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{title}: {error}") from error


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidConfigError(
            f"{name!r} is no part of a topic's name: 1 to 249 of ASCII letters, digits, '.', '_' "
            "and '-'"
        )


def _changed(old: Words, words: Words, delete: Iterable[str]) -> dict[str, str]:
    gone = set(delete)
    if not all(isinstance(text, str) for text in words.values()):
        raise InvalidConfigError("values are texts, as in a file: {'retention.ms': '5'}")
    if gone & words.keys():
        raise InvalidConfigError(
            f"set and deleted at once: {', '.join(sorted(gone & words.keys()))}"
        )
    return {**{name: text for name, text in old.items() if name not in gone}, **words}


def _changed_at(
    level: Mapping[str, Words], place: str, words: Words, delete: Iterable[str]
) -> dict[str, Words]:
    changed = {**level, place: _changed(level.get(place, {}), words, delete)}
    if not changed[place]:
        del changed[place]
    return changed


def _lies_in(key: _Key, prefix: str) -> bool:
    prefixes, topic, _ = key
    return any(place.startswith(prefix) for place in (*prefixes, topic or ""))
