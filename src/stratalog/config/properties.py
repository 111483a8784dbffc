r"""Java's `.properties` format, as `server.properties` is written in it. Pure: text in, text out.

`name=value`, `name: value` or `name value`; `#` and `!` begin comments; a backslash at a line's end
continues it, and the blanks that the next line begins with do not count; `\t`, `\n`, `\r`, `\f` and
`\uXXXX` stand for characters, a backslash before any other one for that character.

Invariants
- I1  What Java reads is read the same way, line ends and blanks included: lines end at LF, CR or
      CR LF and nowhere else, blanks are space, tab and form feed. (But for a file that ends with a
      line of one backslash: to Java that is a property without a name.)
- I2  `parse_properties(format_properties(pairs))` is `pairs`.
- I3  What cannot be read is refused with the number of its line.

Source: CFG-1; the documentation of java.util.Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stratalog.base.errors import InvalidConfigError

_LINE_END = re.compile(r"\r\n|\n|\r")
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""Control characters that no editor writes (NEL is one that a few do)."""
_BLANKS = " \t\f"
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_BETWEEN = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPED = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_MUST_ESCAPE = {letter: f"\\{name}" for name, letter in _LETTERS.items()} | {
    char: f"\\{char}" for char in "\\=:#!"
}


@dataclass(frozen=True, slots=True)
class Line:
    """A logical line: the number of its first line, from 1 on, and its text without the ends."""

    number: int
    text: str


def at_line(number: int, message: object) -> InvalidConfigError:
    """An error that says where."""
    return InvalidConfigError(f"line {number}: {message}")


def decode(content: bytes) -> str:
    """A file's text: UTF-8, or else Latin-1, which is what Java takes it for.

    The two agree on everything in a server.properties but comments and the names of directories.
    Raises `InvalidConfigError` for what is no text: any bytes at all are Latin-1.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    found = _NO_TEXT.search(text)
    if found is not None:
        number = len(_LINE_END.findall(text, 0, found.start())) + 1
        raise at_line(number, f"no text file: the character 0x{ord(found[0]):02x}")
    return text


def parse_properties(text: str) -> dict[str, str]:
    """The pairs; of a name that stands there twice the last, as Java has it.

    Raises `InvalidConfigError` for an escape that stands for no character.
    """
    return dict(pair_of(line) for line in logical_lines(text))


def logical_lines(text: str) -> Iterator[Line]:
    """The lines that say something, continued ones put together."""
    begun = Line(0, "")
    for number, raw in enumerate(_LINE_END.split(text), 1):
        piece = raw.lstrip(_BLANKS)
        if not begun.text and (not piece or piece[0] in "#!"):
            continue
        backslashes = len(piece) - len(piece.rstrip("\\"))
        is_continued = backslashes % 2 == 1
        begun = Line(
            begun.number if begun.text else number,
            begun.text + (piece[:-1] if is_continued else piece),
        )
        if not is_continued:
            yield begun
            begun = Line(0, "")
    if begun.text:
        yield begun


def pair_of(line: Line) -> tuple[str, str]:
    """A line's name and value. Raises `InvalidConfigError`."""
    key = _KEY.match(line.text)
    assert key is not None, line
    between = _BETWEEN.match(line.text, key.end())
    assert between is not None, line
    return _plain(line, key[0]), _plain(line, line.text[between.end() :])


def _plain(line: Line, text: str) -> str:
    def character(match: re.Match[str]) -> str:
        word = match[1]
        if word == "u":
            raise at_line(line.number, "Malformed \\uxxxx encoding.")
        return chr(int(word[1:], 16)) if len(word) == 5 else _LETTERS.get(word, word)

    if "\\" not in text:
        return text
    try:
        # Java's characters are halves where Unicode goes beyond four hex digits.
        return _ESCAPED.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise at_line(line.number, "a \\uxxxx stands for half a character") from None


def format_properties(pairs: Mapping[str, str]) -> str:
    """A line a pair, in escapes, in ASCII."""
    return "".join(f"{_name(name)}={_value(text)}\n" for name, text in pairs.items())


def _name(text: str) -> str:
    return "".join(map(_escaped, text)).replace(" ", "\\ ")


def _value(text: str) -> str:
    escaped = "".join(map(_escaped, text))
    # Blanks in front would be taken for those between the name and the value.
    kept = escaped.lstrip(" ")
    return "\\ " * (len(escaped) - len(kept)) + kept


def _escaped(char: str) -> str:
    if char in _MUST_ESCAPE:
        return _MUST_ESCAPE[char]
    if " " <= char <= "~":
        return char
    halves = char.encode("utf-16-be")
    return "".join(f"\\u{halves[at : at + 2].hex()}" for at in range(0, len(halves), 2))
