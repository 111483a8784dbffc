"""Whose records may be deleted: a bare directory does not know its topics' policies.

What is not said is Kafka's default, `delete`. But the topics in which Kafka keeps its own state are
compacted, and stay so whatever anybody says: old records there are the newest of their keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratalog.admin.floors import log_settings
from stratalog.config.settings import Settings
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition

COMPACTED_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Kafka's internal topics (`Topic.java`), all made with cleanup.policy=compact."""


def settings_by_topic(settings: Settings) -> Callable[[TopicPartition], LogSettings]:
    """What each log is told, with a delay of 0 for deleted files: the process ends soon, and nobody
    waits for `file.delete.delay.ms`."""
    told = replace(log_settings(settings), file_delete_delay_ms=0)
    compacted = replace(told, cleanup_policy=("compact",))

    def settings_of(topic_partition: TopicPartition) -> LogSettings:
        return compacted if topic_partition.topic in COMPACTED_TOPICS else told

    return settings_of
