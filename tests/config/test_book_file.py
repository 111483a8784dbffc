"""The file of what is said of topics and namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import UsageError
from stratalog.config.book import SettingsBook
from stratalog.config.book_file import BookFile, format_book, parse_book

TEXT = """\
# what the audit wants
[prefix audit.]
retention.ms = -1

[ topic orders ]
cleanup.policy = compact,\\
    delete
min.compaction.lag.ms: 60000
[topic empty]
"""


@pytest.mark.requirement("CFG-1")
def test_sections() -> None:
    book = parse_book(TEXT)
    assert book.namespaces == {"audit.": {"retention.ms": "-1"}}
    assert book.topics == {
        "orders": {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "60000"},
        "empty": {},
    }
    settings = SettingsBook({}, book.namespaces, book.topics)
    assert settings.of("audit.x").integer("retention.ms") == -1
    assert settings.of("orders").is_compacted
    assert not settings.of("empty").is_given("retention.ms")


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nsegment.ms=1", "line 2: a property before the first section, like [topic NAME]"),
        ("[topics a]", "line 1: [topics a] is neither [topic NAME] nor [prefix START-OF-NAMES]"),
        ("[topic]", "line 1: [topic] is neither [topic NAME] nor [prefix START-OF-NAMES]"),
        ("[topic a]x=1", "line 1: [topic a]x=1 is neither [topic NAME] nor"),
        ("[topic a b]", "line 1: [topic a b] is neither [topic NAME] nor"),
        ("[topic a]\n[prefix a]\n[topic a]", "line 3: a second section [topic a]"),
        ("[topic a]\nsegment.ms=1\n\nsegment.ms=1", "line 4: segment.ms is given twice"),
        (
            "[topic a]\n#\nsegment.ms=1\\\n0x",
            "line 3: Invalid value 10x for configuration segment.ms: Not a number of type LONG",
        ),
        ("[topic a]\nsegment.m=1", "line 2: Unknown topic config name: segment.m; did you mean"),
        (
            "[prefix a]\nlog.retention.ms=1",
            (
                "line 2: Unknown topic config name: log.retention.ms; it is the broker's name of "
                "retention.ms"
            ),
        ),
        ("[topic a]\nsegment.ms=\\u12", "line 2: Malformed \\uxxxx encoding."),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_book(text)
    assert str(refused.value).startswith(message)


PLACES = st.text(st.sampled_from("ab._-9"), min_size=1, max_size=6)
WORDS = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.ms", "delete.retention.ms"]),
    st.integers(1, 1 << 62).map(str),
    min_size=1,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(PLACES, WORDS), st.dictionaries(PLACES, WORDS))
def test_what_is_written_is_read_back(
    namespaces: dict[str, dict[str, str]], topics: dict[str, dict[str, str]]
) -> None:
    book = BookFile(namespaces, topics)
    assert parse_book(format_book(book)) == book
