"""What people may write where bytes, times, views and numbers are meant; the rest is refused.

Plain functions from what was given to a value, or `UsageError` in one line. They are the border:
whatever a program hands in goes through here first, so that nothing of a wrong type gets deeper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, TypeVar

from stratalog.base.errors import UsageError
from stratalog.base.limits import LATEST_MS
from stratalog.pipeline.as_of import AsOf, read_as_of
from stratalog.record.builder import NewRecord
from stratalog.segment.names import MAX_PARTITION, TopicPartition

Data = bytes | str | None
"""Text stands for its UTF-8."""

Time = int | datetime
"""ms since 1970 UTC, or a datetime (without a zone: UTC)."""

GivenHeaders = Sequence[tuple[str | bytes, Data]]
GivenRecord = (
    tuple[Data, Data]
    | tuple[Data, Data, Time | None]
    | tuple[Data, Data, Time | None, GivenHeaders]
)
"""Key, value, time (None: now), headers."""

ViewName = Literal["raw", "compacted", "latest"]
Isolation = Literal["read_uncommitted", "read_committed"]
Reset = Literal["earliest", "latest", "none"]
E = TypeVar("E", bound=Enum)
_LONGEST_SECONDS = 1_000_000_000
_LONGEST_MOMENT = 100
"""Characters: more than any way to write a time."""


def data_of(given: object, name: str) -> bytes | None:
    """A key or value as bytes."""
    if given is None or isinstance(given, bytes):
        return given
    try:
        if isinstance(given, str):
            return given.encode()
        if isinstance(given, (bytearray, memoryview)):
            return bytes(given)
    except ValueError as error:  # half a surrogate; a view that was released
        raise UsageError(f"a {name} cannot be {short(given)}: {one_line(error)}") from None
    raise UsageError(f"a {name} is bytes, str or None, not {type(given).__name__}")


def time_ms_of(given: object) -> int | None:
    """A time in ms since 1970."""
    if given is None:
        return None
    if isinstance(given, datetime):
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        time_ms = round(moment.timestamp() * 1000)
    elif isinstance(given, int) and not isinstance(given, bool):
        time_ms = given
    else:
        raise UsageError(f"a timestamp is ms since 1970 or a datetime, not {short(given)}")
    if not 0 <= time_ms <= LATEST_MS:
        raise UsageError(f"{short(given)} is no time that a record can have")
    return time_ms


def moment_of(given: object) -> AsOf | None:
    """What `as_of` asks for."""
    if given is None:
        return None
    is_long = isinstance(given, str) and len(given) > _LONGEST_MOMENT
    if isinstance(given, (AsOf, int, str, datetime)) and not is_long:
        try:
            return read_as_of(given)
        except ValueError:  # a number that cannot be written
            pass
    raise UsageError(f"as_of is {short(given)}; it must be a ledger, an offset or a time")


def record_of(
    key: Data, value: Data, timestamp: Time | None = None, headers: GivenHeaders = ()
) -> NewRecord:
    """A record to be appended."""
    return NewRecord(
        data_of(key, "key"),
        data_of(value, "value"),
        time_ms_of(timestamp),
        _headers_of(headers),
    )


def _headers_of(given: object) -> tuple[tuple[bytes, bytes | None], ...]:
    if type(given) is tuple and not given:
        return ()  # as nearly always, and this is done for each record
    return tuple(map(_header, each_of(given, "headers are a list")))


def _header(given: object) -> tuple[bytes, bytes | None]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UsageError(f"a header is (name, value), not {short(given)}")
    name = data_of(given[0], "header's name")
    if name is None:
        raise UsageError("a header has a name")
    return name, data_of(given[1], "header's value")


def given_record(given: object) -> NewRecord:
    """One of many."""
    if type(given) is tuple and len(given) == 2:
        key, value = given
        if type(key) is bytes and type(value) is bytes:
            return NewRecord(key, value)  # as it mostly is
    if not isinstance(given, (tuple, list)) or not 2 <= len(given) <= 4:
        raise UsageError(f"a record is (key, value[, timestamp[, headers]]), not {short(given)}")
    return record_of(*given)


def word_of(name: str, given: object, kind: type[E]) -> E:
    """One of an enum's words."""
    words = [str(member.value) for member in kind]
    if not isinstance(given, str) or given not in words:
        raise UsageError(f"{name} is {short(given)}; it must be {' or '.join(words)}")
    return kind(given)


def number_of(name: str, given: object, least: int, most: int) -> int:
    """A whole number."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(f"{name} is {short(given)}; it must be a whole number")
    if not least <= given <= most:
        raise UsageError(f"{name} is {short(given)}; it must be from {least} to {most}")
    return given


def flag_of(name: str, given: object) -> bool:
    """True or False, and nothing that merely counts as one of them: "no" would be yes."""
    if not isinstance(given, bool):
        raise UsageError(f"{name} is {short(given)}; it must be True or False")
    return given


def settings_of(given: object) -> dict[str, str]:
    """Settings as text: True is `true`, a list `a,b`."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"settings are a mapping of names to values, not {short(given)}")
    found = ((_setting(name), value) for name, value in (given or {}).items())
    return {name: _text(name, value) for name, value in found}


def _setting(name: object) -> str:
    try:
        return _storable(str(name))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"a setting cannot be {short(name)}: {one_line(error)}") from None


def _text(name: str, value: object) -> str:
    try:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (str, int, float)):
            return _storable(str(value))
        if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
            return _storable(",".join(value))
    except ValueError as error:
        raise UsageError(f"{name} cannot be {short(value)}: {one_line(error)}") from None
    raise UsageError(f"{name} is {short(value)}; a setting is text, a number or a bool")


def _storable(text: str) -> str:
    text.encode()  # it is kept in a file of UTF-8
    if len(text.strip().splitlines()) > 1:
        raise ValueError("it is one line")
    return text


def wait_ms_of(name: str, seconds: object) -> int:
    """A time to wait, in ms."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if isinstance(seconds, (int, float)) and is_number and 0 <= seconds <= _LONGEST_SECONDS:
        return round(seconds * 1000)
    raise UsageError(f"{name} is {short(seconds)}; it must be seconds")


def partitions_of(given: object) -> list[object]:
    """One partition, or several, each once; whether they are there is seen later."""
    if isinstance(given, int):
        return [given]
    try:
        return list(dict.fromkeys(each_of(given, "partitions are numbers")))
    except TypeError:  # one that cannot be a key
        raise UsageError(f"partitions are numbers, not {short(given)}") from None


def place_of(topic: object, partition: object) -> TopicPartition:
    """A topic's partition; whether it is there is seen later."""
    return TopicPartition(name_of(topic), number_of("partition", partition, 0, MAX_PARTITION))


def name_of(given: object) -> str:
    """A topic's name; whether it may be one is the desk's to say."""
    if not isinstance(given, str):
        raise UsageError(f"a topic's name is text, not {short(given)}")
    return given


def names_of(given: str | Iterable[str]) -> list[str]:
    """One topic's name, or several."""
    what = "give the name of a topic, or a list of them"
    names = [given] if isinstance(given, str) else list(each_of(given, what))
    if not names:
        raise UsageError(what)
    return list(dict.fromkeys(map(name_of, names)))


def texts_of(given: object, what: str) -> list[str]:
    """A list of text. `what` as for `each_of`."""
    texts = list(each_of(given, what))
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{what}, not {short(texts)}")
    return texts


def paths_of(given: object) -> list[str]:
    """One directory, or several."""
    is_one = isinstance(given, (str, os.PathLike))
    paths = [given] if is_one else list(each_of(given, "give a directory to open, or a list"))
    if not paths:
        raise UsageError("give a directory to open")
    return [_path_of(path) for path in paths]


def _path_of(given: Any) -> str:
    path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise UsageError(f"a directory's name is text or a path, not {short(given)}")
    if not path:
        raise UsageError("the name of a directory is empty")
    try:
        is_name = b"\0" not in os.fsencode(path)
    except ValueError:
        is_name = False
    if not is_name:
        raise UsageError(f"{short(path)} cannot be the name of a directory")
    return path


def mapping_of(given: object, what: str) -> Mapping[Any, Any]:
    """What has keys and values."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{what}, not {short(given)}")
    return given


def each_of(given: object, what: str) -> Iterator[Any]:
    """One after another of what is a list or the like: text and mappings are not meant.

    `what` begins the refusal: it says what was to be given.
    """
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
        raise UsageError(f"{what}, not {short(given)}")
    try:
        return iter(given)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        raise UsageError(f"{what}, not {short(given)}") from None


def short(value: object, most: int = 60) -> str:
    """A value as an error names it: in one line, of at most so many characters."""
    try:
        text = one_line(value if isinstance(value, datetime) else repr(value))
    except (ValueError, RecursionError):  # a number of 5000 digits has a type still
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(value: object) -> str:
    """Its text, whatever breaks of lines it has."""
    return " ".join(str(value).split())
