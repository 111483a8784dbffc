"""A file of what is said of topics and of namespaces, in the words of a server.properties.

    # a comment
    [prefix audit.]
    retention.ms=-1

    [topic orders]
    cleanup.policy=compact
    min.compaction.lag.ms=60000

A section is a line of its own, `[topic NAME]` or `[prefix START-OF-NAMES]`; what follows are
properties of topics in Java's format. A topic gets what is said of it, over what is said of the
prefixes that its name starts with, a longer one over a shorter one, over the broker's (CFG-1).

Unlike in a server.properties, which is taken as it is, nothing here may be there for nothing: an
unknown name, a name or a section that stands there twice, and a property outside of a section are
refused, all with the number of the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.base.errors import InvalidConfigError
from stratalog.config.levels import Given, Source, check
from stratalog.config.properties import at_line, format_properties, logical_lines, pair_of

_SECTION = re.compile(r"\[\s*(topic|prefix)\s+([^\s\]]+)\s*\][ \t]*")
_SOURCES = {"topic": Source.TOPIC, "prefix": Source.NAMESPACE}


@dataclass(frozen=True, slots=True)
class BookFile:
    """What the file says: topic or prefix -> name -> text."""

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def parse_book(text: str) -> BookFile:
    """A file's sections, each value checked by itself.

    Raises `InvalidConfigError` with the line.
    """
    sections: dict[Source, dict[str, dict[str, str]]] = {Source.NAMESPACE: {}, Source.TOPIC: {}}
    current: tuple[Source, str] | None = None
    for line in logical_lines(text):
        if line.text.startswith("["):
            current = _section(line.number, line.text)
            source, place = current
            if place in sections[source]:
                raise at_line(line.number, f"a second section {line.text.strip()}")
            sections[source][place] = {}
            continue
        if current is None:
            raise at_line(line.number, "a property before the first section, like [topic NAME]")
        source, place = current
        name, value = pair_of(line)
        words = sections[source][place]
        if name in words:
            raise at_line(line.number, f"{name} is given twice")
        try:
            check(Given(source, {name: value}, place))
        except InvalidConfigError as error:
            raise at_line(line.number, error) from error
        words[name] = value
    return BookFile(sections[Source.NAMESPACE], sections[Source.TOPIC])


def format_book(book: BookFile) -> str:
    """The text that `parse_book` reads back, sections and names in order."""
    sections = [(f"[prefix {name}]", words) for name, words in sorted(book.namespaces.items())]
    sections += [(f"[topic {name}]", words) for name, words in sorted(book.topics.items())]
    return "\n".join(
        f"{title}\n{format_properties(dict(sorted(words.items())))}" for title, words in sections
    )


def _section(number: int, text: str) -> tuple[Source, str]:
    match = _SECTION.fullmatch(text)
    if match is None:
        raise at_line(number, f"{text.strip()} is neither [topic NAME] nor [prefix START-OF-NAMES]")
    return _SOURCES[match[1]], match[2]
