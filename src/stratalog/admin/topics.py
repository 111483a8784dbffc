"""The settings that a running process goes by, as each topic's plain values.

The store and the cleaner ask for a topic's values all the time; they are made once of a book and
kept until the book is another. The broker's own settings are the book's, too.

Invariants
- I1  As long as the book is the same, a topic gets the same objects: who remembers something by
      them (the cleaner's manager) sees by `is` that nothing has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.admin.floors import choice_settings, log_settings
from stratalog.admin.policies import COMPACTED_TOPICS, for_system_topics
from stratalog.clean.settings import TopicCleaning
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition


@dataclass(slots=True)
class Topics:
    """`book` is replaced by `change`, in one assignment; any thread may ask."""

    book: SettingsBook
    _known: dict[int, tuple[Settings, LogSettings, TopicCleaning]] = field(default_factory=dict)
    _of_system: SettingsBook = field(init=False)

    def __post_init__(self) -> None:
        self._of_system = for_system_topics(self.book)

    def change(self, book: SettingsBook) -> None:
        """Go by another book from now on."""
        self._of_system = for_system_topics(book)
        self.book, self._known = book, {}

    def settings(self, topic: str) -> Settings:
        """All settings of a topic, with their sources."""
        return (self._of_system if topic in COMPACTED_TOPICS else self.book).of(topic)

    def log_settings(self, topic_partition: TopicPartition) -> LogSettings:
        """What a partition's log is told."""
        return self._of(topic_partition.topic)[1]

    def cleaning(self, topic_partition: TopicPartition) -> TopicCleaning:
        """What the cleaner is told of a partition's topic."""
        return self._of(topic_partition.topic)[2]

    def _of(self, topic: str) -> tuple[Settings, LogSettings, TopicCleaning]:
        settings, known = self.settings(topic), self._known
        found = known.get(id(settings))  # topics without words of their own share one
        if found is None or found[0] is not settings:
            found = (settings, log_settings(settings), choice_settings(settings))
            known[id(settings)] = found
        return found
