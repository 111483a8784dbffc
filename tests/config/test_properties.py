"""Java's .properties format, against what Java's own reader answered, and back and forth."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.base.errors import UsageError
from stratalog.config.properties import (
    decode,
    format_properties,
    logical_lines,
    pair_of,
    parse_properties,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    "\\=:#! \t\n\r\fu0041é", max_size=12
)
BLANKS = st.sampled_from(["", " ", "\t", "\f ", "  "])


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\rb=2\r\nc=3\nd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a = 1 \n b: 2\nc 3\nd\ne=\nf:=4\ng  =  =5",
         {"a": "1 ", "b": "2", "c": "3", "d": "", "e": "", "f": "=4", "g": "=5"}),
        ("# a=1\n ! b=2\n\f#c=3\nd=#4", {"d": "#4"}),
        ("a=1\\\n  2\\\r\n\t3", {"a": "123"}),
        ("# a comment is not continued\\\na=1", {"a": "1"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("\\\n#comment\n\\\n\n a=1", {"a": "1"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\ b\\=c\\:d=\\ e ", {"a b=c:d": " e "}),
        ("a=\\t\\n\\r\\f\\q\\\"\\'\\8", {"a": "\t\n\r\fq\"'8"}),
        ("\\u0061=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\x0b2\nb=1\u20282\nc\x85d\xa0=3", {"a": "1\x0b2", "b": "1\u20282", "c\x85d\xa0": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("=1", {"": "1"}),
        ("", {}),
    ],
)  # fmt: skip
def test_it_is_read_as_java_reads_it(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


@pytest.mark.parametrize("text", ["a=1\n\nb=\\u00g1", "# x\n\nb=1\\\n2\\u12", "\n\n\\u=1"])
def test_what_stands_for_no_character_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^line 3: Malformed \\uxxxx encoding\.$"):
        parse_properties(text)


def test_half_a_character_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^line 2: .* half a character"):
        parse_properties("a=1\nb=\\ud83d!")


def test_a_line_has_the_number_that_it_begins_at() -> None:
    text = "# a\na=1\\\n  2\n\n\nb=\\\n\\\n3\nc"
    assert [line.number for line in logical_lines(text)] == [2, 6, 9]
    assert [pair_of(line) for line in logical_lines(text)] == [("a", "12"), ("b", "3"), ("c", "")]


def test_a_file_that_is_not_utf_8_is_latin_1() -> None:
    assert decode("a=é".encode()) == "a=é"
    assert decode("a=é".encode("latin-1")) == "a=é"
    assert decode(b"\xef\xbb\xbfa=1") == "a=1"


@pytest.mark.requirement("CFG-1")
@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
@example({"": "", " ": "  ", "\\": "\\", "#": "!", "a\n": "\r\n"})
def test_a_mapping_in_javas_escapes_is_read_back(pairs: dict[str, str]) -> None:
    text = format_properties(pairs)
    assert text.isascii()
    assert parse_properties(text) == pairs
    # Comments and empty lines between say nothing, and a line may be cut before any character.
    lines = [line for pair in text.splitlines() for line in (pair, "", "# x=y\\", "\t!")]
    assert parse_properties("\r".join(lines)) == pairs


@pytest.mark.requirement("CFG-1")
@settings(max_examples=200, deadline=None)
@given(
    st.text(st.sampled_from("abc.é"), min_size=1, max_size=5),
    st.text(st.sampled_from("xyz=:#! "), max_size=8).map(str.lstrip),
    BLANKS, BLANKS, st.sampled_from(["=", ":"]), BLANKS, st.sampled_from(["\n", "\r", "\r\n"]),
)  # fmt: skip
def test_blanks_and_line_ends_do_not_count(
    name: str, value: str, before: str, between: str, sign: str, after: str, end: str
) -> None:
    line = f"{before}{name}{between}{sign}{after}{value}{end}"
    assert parse_properties(f"#{end}{line}{end}") == {name: value}
    cut = f"{before}{name}{between}{sign}{after}\\{end}{before}{value}{end}"
    assert parse_properties(cut) == {name: value}
