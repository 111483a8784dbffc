"""Files of settings as the command line takes them: `--config-file` and `--topic-config`."""

from __future__ import annotations

import click

from stratalog.base.errors import UsageError
from stratalog.config.book_file import BookFile, parse_book
from stratalog.config.properties import decode, parse_properties

__all__ = ["parse_properties", "read_book_file", "read_config_file"]

_MAX_BYTES = 16 << 20
"""Ten thousand topics with twenty properties each."""


def read_config_file(path: str) -> dict[str, str]:
    """A broker's `server.properties`, as it is (CFG-1). Raises `OSError`, `UsageError`."""
    content = _content(path, "--config-file")
    if any(line.startswith(("[topic ", "[prefix ")) for line in content.splitlines()):
        raise UsageError("it has sections of topics: that goes with --topic-config")
    return parse_properties(content)


def read_book_file(path: str) -> BookFile:
    """What a file says of topics and namespaces. Raises `OSError`, `UsageError`."""
    return parse_book(_content(path, "--topic-config"))


def _content(path: str, option: str) -> str:
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise click.BadParameter(f"{path} is too large", param_hint=option)
    return decode(content)
