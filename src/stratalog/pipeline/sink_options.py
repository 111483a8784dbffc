"""The options of the sink, read once into a frozen value; what cannot be is refused in one line.

    path                             the log directory; one that is not there is made
    topic                            of every row, whatever the column says
    txnAppId, txnVersion             who writes and which batch, so that it is appended once
    num.partitions, auto.create.topics.enable         of topics that are not there yet
    configFile, topicConfig          a server.properties; a file of topics' settings
    any of Kafka's topic or broker settings           as `--config` takes them
    kafka.compression.type           how rows are compressed where the topic leaves it to producers

`topic`, and `kafka.` in front of what a client is told, are those of Spark's Kafka sink; `txnAppId`
and `txnVersion` are Delta's, with its rule: a version that is not above the last one of the same
application is passed over. Names that begin with `kafka.` and mean a client are passed over.

Sources: Spark's KafkaSourceProvider; Delta's "Idempotent table writes"; CFG-1; REQUIREMENTS SPK-6.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from stratalog.base.errors import InvalidConfigError, UsageError
from stratalog.config.book import SettingsBook
from stratalog.config.book_file import BookFile, parse_book
from stratalog.config.properties import decode, parse_properties
from stratalog.config.table import ALL_NAMES
from stratalog.pipeline.staging import MAX_VERSION
from stratalog.pipeline.uris import directory
from stratalog.record.codec import Codec
from stratalog.segment.names import MAX_PARTITION, is_topic_name

OPTIONS = (
    *("path", "topic", "txnAppId", "txnVersion", "configFile", "topicConfig"),
    *("num.partitions", "auto.create.topics.enable"),
)
"""Every option of the sink besides settings, as people write it."""
_OF_SPARK = ("checkpointlocation", "queryname", "includeheaders")
"""What Spark's writers pass on, and what a Kafka sink is told in vain."""
_CODECS = {"none": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec}}
_MAX_FILE_BYTES = 16 << 20
_MAX_ID = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was asked for. `app` and `version`: None if they were not given."""

    log_dir: str
    topic: str | None
    app: str | None
    version: int | None
    partitions: int
    creates_topics: bool
    codec: Codec
    book: SettingsBook


def read_sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """The options of a write. Raises `UsageError`."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    topic = options.get("topic")
    if topic is not None and not is_topic_name(topic):
        raise UsageError(
            f"topic is {topic!r}: a name has 1 to 249 letters, digits, dots, dashes and underscores"
        )
    app, version = _transaction(options, is_stream)
    broker = _broker_file(options.get("configfile"))
    said = _topics_file(options.get("topicconfig"))
    settings = {name: text for name, text in options.items() if name in ALL_NAMES}
    try:
        book = SettingsBook(broker, said.namespaces, said.topics, overrides=settings)
    except InvalidConfigError as error:
        raise UsageError(f"of the options: {error}") from error
    of_broker = {**broker, **options}
    return SinkOptions(
        log_dir=_directory(options.get("path")),
        topic=topic,
        app=app,
        version=version,
        partitions=_partitions(of_broker.get("num.partitions")),
        creates_topics=_flag(of_broker, "auto.create.topics.enable"),
        codec=_codec(options.get("kafka.compression.type")),
        book=book,
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in sorted(options):
        if name in known or name in _OF_SPARK or name in ALL_NAMES or name.startswith("kafka."):
            continue
        near = difflib.get_close_matches(name, [*known, *ALL_NAMES], 1)
        meant = known.get(near[0], near[0]) if near else ""
        hint = f"did you mean {meant!r}?" if near else f"there are {', '.join(OPTIONS[1:])}"
        raise UsageError(f"unknown option {name!r}: {hint}")


def _transaction(options: Mapping[str, str], is_stream: bool) -> tuple[str | None, int | None]:
    app, version = options.get("txnappid"), options.get("txnversion")
    if app is not None and not 0 < len(app) <= _MAX_ID:
        raise UsageError(f"txnAppId has 1 to {_MAX_ID} characters")
    if is_stream:
        if version is not None:
            raise UsageError("txnVersion is the number of a stream's batch: leave it out")
        return app, None
    if (app is None) != (version is None):
        raise UsageError("txnAppId and txnVersion go together")
    if version is None:
        return None, None
    if not re.fullmatch("0|[1-9][0-9]{0,18}", version, re.ASCII) or int(version) > MAX_VERSION:
        raise UsageError(f"txnVersion is {version!r}; it must be a whole number from 0 on")
    return app, int(version)


def _directory(path: str | None) -> str:
    if not path:
        raise UsageError("no directory is given: use save(DIR), start(DIR) or option path")
    return directory(path, "log")


def _partitions(text: str | None) -> int:
    if text is None:
        return 1
    is_number = re.fullmatch(r"[0-9]{1,10}", text.strip(), re.ASCII) is not None
    if not is_number or not 1 <= int(text) <= MAX_PARTITION:
        raise UsageError(f"num.partitions is {text!r}; it must be a whole number from 1 on")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} is {options[name]!r}; it must be true or false")
    return text == "true"


def _codec(text: str | None) -> Codec:
    if text is None:
        return Codec.NONE
    if text.strip().lower() not in _CODECS:
        raise UsageError(f"kafka.compression.type is {text!r}; there are {', '.join(_CODECS)}")
    return _CODECS[text.strip().lower()]


def _broker_file(path: str | None) -> Mapping[str, str]:
    return {} if path is None else _parsed("configFile", path, parse_properties)


def _topics_file(path: str | None) -> BookFile:
    return BookFile() if path is None else _parsed("topicConfig", path, parse_book)


def _parsed(option: str, path: str, parse: Callable[[str], T]) -> T:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise UsageError("it is too large")
        return parse(decode(content))
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from error
    except UsageError as error:
        raise UsageError(f"{option}: {path}: {error}") from error
