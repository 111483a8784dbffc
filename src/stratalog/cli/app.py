"""The command group, and the one place where errors become messages and exit codes."""

from __future__ import annotations

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
from stratalog.cli.output import print_error, wants_json
from stratalog.cli.records import records
from stratalog.cli.retention import retention
from stratalog.cli.server import server
from stratalog.cli.settings import settings
from stratalog.cli.snapshot import snapshot
from stratalog.cli.stats import stats
from stratalog.cli.topic import topic
from stratalog.cli.warmup import warmup

FAILED, USAGE, INTERRUPTED = 1, 2, 130


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
    if sys.stdout is None:  # closed by the shell
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    as_json = wants_json(given)
    try:
        code = stratalog.main(given, prog_name="stratalog", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        if as_json:
            print_error(error, as_json=True)
        else:
            error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        print_error(KeyboardInterrupt("interrupted"), as_json=as_json)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        _discard_output()
        return FAILED
    except (StratalogError, click.ClickException, OSError, MemoryError) as error:
        try:
            print_error(error, as_json=as_json)
            sys.stdout.flush()
        except OSError:  # there is no room for what went wrong, either
            _discard_output()
            print_error(error, as_json=False)
        return FAILED


def _discard_output() -> None:
    """What is left in stdout's buffer goes nowhere; Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
