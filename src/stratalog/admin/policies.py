"""Whose records may be deleted: a bare directory does not know its topics' policies.

What is not said is Kafka's default, `delete`. But the topics in which Kafka keeps its own state are
compacted, and stay so whatever anybody says: old records there are the newest of their keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratalog.admin.floors import log_settings
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition

COMPACTED_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Kafka's internal topics (`Topic.java`), all made with cleanup.policy=compact."""


_SYSTEM_WORDS = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""With which Kafka makes these topics: small segments, so that little waits to be cleaned."""


def with_system_topics(book: SettingsBook) -> SettingsBook:
    """The book, in which Kafka's own compacted topics are compacted (CLN-12), unless it says
    something else of them by name."""
    for topic in COMPACTED_TOPICS:
        said = book.topics.get(topic, {})
        missing = {name: text for name, text in _SYSTEM_WORDS.items() if name not in said}
        if missing:
            book = book.with_topic(topic, missing)
    return book


def for_system_topics(book: SettingsBook) -> SettingsBook:
    """What holds for Kafka's own topics: a policy that the command line gives to all is not meant
    for them; one that is said of them by name is."""
    names = ("cleanup.policy", "log.cleanup.policy")
    rest = {name: text for name, text in book.overrides.items() if name not in names}
    return with_system_topics(replace(book, overrides=rest, _known={}))


def settings_by_topic(settings: Settings) -> Callable[[TopicPartition], LogSettings]:
    """What each log is told, with a delay of 0 for deleted files: the process ends soon, and nobody
    waits for `file.delete.delay.ms`."""
    told = replace(log_settings(settings), file_delete_delay_ms=0)
    compacted = replace(told, cleanup_policy=("compact",))

    def settings_of(topic_partition: TopicPartition) -> LogSettings:
        return compacted if topic_partition.topic in COMPACTED_TOPICS else told

    return settings_of
