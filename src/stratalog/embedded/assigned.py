"""A partition that a consumer reads, and the stretch of it that it is in: see `consumer`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stratalog.embedded.records import Record
from stratalog.embedded.sight import Sight
from stratalog.embedded.topic import Topic
from stratalog.segment.names import TopicPartition


@dataclass(slots=True, eq=False)
class Stretch:
    """What is being read, of this log; `waiting` was decoded and comes next, from `at` on."""

    log: object
    sight: Sight
    rows: Iterator[list[Record]]
    end_offset: int
    waiting: list[Record] = field(default_factory=list)
    at: int = 0

    def take(self, most: int) -> list[Record]:
        """The next records, at most that many; none at the end."""
        while self.at >= len(self.waiting):
            found = next(self.rows, None)
            if found is None:
                return []
            self.waiting, self.at = found, 0
        taken = self.waiting[self.at : self.at + most]
        self.at += len(taken)
        return taken


@dataclass(slots=True, eq=False)
class Assigned:
    """A partition that is read. `position` None: not known before somebody asks for it; `end`:
    where everything has been read that there was as of then, if that cannot change. `log` is what
    both speak of, and `topic_id` its topic's."""

    topic: Topic
    key: TopicPartition
    position: int | None = None
    stretch: Stretch | None = None
    end: int | None = None
    log: object = None
    topic_id: str = ""

    def leave(self) -> None:
        stretch, self.stretch = self.stretch, None
        if stretch is not None:
            stretch.sight.close()

    def renew(self) -> None:
        """Begin anew where the topic is another one by now (C3). Raises `UnknownPartitionError`."""
        log = self.topic.log_at(self.key)
        if log is self.log:
            return
        self.leave()
        self.position = self.end = None
        self.log, self.topic_id = log, self.topic.topic_id(self.key)
