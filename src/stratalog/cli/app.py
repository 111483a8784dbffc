"""The command group, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from stratalog import __version__
from stratalog.base.errors import StratalogError
from stratalog.cli.cleaner import cleaner
from stratalog.cli.compact import compact
from stratalog.cli.compaction import compaction
from stratalog.cli.config import config
from stratalog.cli.forget import forget
from stratalog.cli.import_ import import_
from stratalog.cli.log import log
from stratalog.cli.log_dirs import log_dirs
from stratalog.cli.output import cleaned, print_error, print_note, wants_json
from stratalog.cli.progress import INTERRUPTED_LATE
from stratalog.cli.records import records
from stratalog.cli.retention import retention
from stratalog.cli.server import server
from stratalog.cli.settings import settings
from stratalog.cli.snapshot import snapshot
from stratalog.cli.stats import stats
from stratalog.cli.topic import topic
from stratalog.cli.warmup import warmup

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="stratalog", message="%(prog)s %(version)s")
def stratalog() -> None:
    """A partitioned log in Kafka's format: clean it, shorten it, look into it, mend it, fill it.

    TOPIC is one of the log directory --data DIR (or STRATALOG_DATA): the server that owns it does
    what is asked for, if one runs, else the command opens the directory itself. Elsewhere DIR is a
    partition's directory (orders-0) or a log directory that holds several.
    """


for _command in (
    *(topic, config, log_dirs),
    *(compact, compaction, cleaner, forget, retention, records),
    *(stats, log, import_, settings, snapshot, warmup, server),
):
    stratalog.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    streams = sys.stdout, sys.stderr
    as_json = wants_json(given)
    INTERRUPTED_LATE.clear()
    try:
        code = stratalog.main(given, prog_name="stratalog", standalone_mode=False)
        sys.stdout.flush()
        if INTERRUPTED_LATE.is_set():
            print_note("interrupted, after it was done")
            return INTERRUPTED
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        if as_json:
            print_error(error, as_json=True)
        else:
            text = io.StringIO()
            error.show(text)
            print_note(cleaned(text.getvalue().rstrip()))
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        print_error(KeyboardInterrupt("interrupted"), as_json=as_json)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        _discard_output()
        return BROKEN_PIPE
    except SystemExit as end:
        if sys.stdout is streams[0]:
            raise end
        sys.stdout, sys.stderr = streams  # click has seen it first, and put others there
        _discard_output()
        return BROKEN_PIPE
    except (StratalogError, click.ClickException, OSError, MemoryError) as error:
        _tell(error, as_json=as_json)
        return FAILED


def _tell(error: BaseException, *, as_json: bool) -> None:
    """Once, and to stderr if stdout takes nothing."""
    is_told = False
    try:
        print_error(error, as_json=as_json)
        is_told = not as_json
        sys.stdout.flush()
    except OSError:
        _discard_output()
        if not is_told:
            print_error(error, as_json=False)


def _open_streams() -> None:
    """Streams that the shell has closed (`>&-`) are there, and what is written to stdout fails, as
    it does for other tools. Without that the next file that is opened, which may be a log, would
    have its number, and be the stdout of whatever this process starts."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _discard_output() -> None:
    """What is left in stdout's buffer goes nowhere; Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
