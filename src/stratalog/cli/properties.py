"""A broker's `server.properties`, as it is (CFG-1): `--config-file`.

Java's format: `name=value`, `name: value` or `name value`, `#` and `!` begin comments, a backslash
at a line's end continues it. Names of parts that do not exist here are accepted, and said.
"""

from __future__ import annotations

import re

import click

from stratalog.cli.output import print_note

_MAX_BYTES = 1 << 20
_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)\s*(?:[=:]\s*)?(.*)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """The pairs; of a name that stands there twice the last, as Java has it. Pure."""
    found = {}
    for line in _logical_lines(text):
        match = _PAIR.fullmatch(line)
        if match is not None:
            found[_plain(match[1])] = _plain(match[2])
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    begun = ""
    for line in text.splitlines():
        line = line.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            begun += line[:-1]
        else:
            lines.append(begun + line)
            begun = ""
    return [*lines, begun] if begun else lines


def _plain(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word[1:], 16)) if len(word) == 5 else _ESCAPES.get(word, word)

    return _ESCAPE.sub(character, text)


def read_config_file(path: str, given: dict[str, str]) -> dict[str, str]:
    """What a file says of settings that something here obeys, and that `given` does not say.

    What has no effect here is told in one note. Raises `click.BadParameter`.
    """
    from stratalog.config.table import TABLE

    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise click.BadParameter(f"{path} is too large", param_hint="--config-file")
        found = parse_properties(content.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--config-file") from error
    groups = [{setting.name, *(name.name for name in setting.synonyms)} for setting in TABLE]
    known = set().union(*groups)
    # The command line wins over the file, whichever of a setting's names either uses.
    decided = set().union(*(group for group in groups if group & given.keys()))
    without_effect = sorted(found.keys() - known)
    if without_effect:
        print_note(f"note: of {path} these have no effect here: {', '.join(without_effect)}")
    return {name: text for name, text in found.items() if name in known - decided}
