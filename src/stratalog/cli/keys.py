"""Keys on the command line: `KEY` with `--key-format utf8|hex|base64`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

UTF8, HEX, BASE64 = "utf8", "hex", "base64"


def key_format_option(command: Command) -> Command:
    """`--key-format utf8|hex|base64`, as `key_format`."""
    return click.option(
        "--key-format",
        type=click.Choice([UTF8, HEX, BASE64]),
        default=UTF8,
        show_default=True,
        help="How KEY is written.",
    )(command)


def key_of(text: str, key_format: str, option: str) -> bytes:
    """The key's bytes. Raises `click.BadParameter` for `option` if it is not written like that."""
    try:
        if key_format == HEX:
            return bytes.fromhex(text)
        if key_format == BASE64:
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        message = f"{text!r} is not {'hexadecimal' if key_format == HEX else key_format}"
        raise click.BadParameter(message, param_hint=option) from None
    # What the shell handed over that is no UTF-8 comes back as it was.
    return text.encode(errors="surrogateescape")
