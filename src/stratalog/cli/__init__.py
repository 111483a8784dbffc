"""The `stratalog` command: thin click commands over `admin`.

    app.py        the command group and the one place where errors become exit codes
    options.py    options that several commands share
    output.py     text for people, or exactly one JSON object
    tables.py     aligned columns, sizes and times for people
    progress.py   the bar on a terminal's stderr, and stopping at Ctrl-C
    engines.py    which engine runs
    properties.py a broker's server.properties
    compact.py, retention.py, records.py, log.py, repair.py, import_.py, warmup.py   the commands

Invariants
- I1  Exit codes: 0 done, 1 failed (or, for `log verify` and `log repair`, problems found), 2 wrong
      usage, 130 interrupted. No traceback for an expected error.
- I2  With `--format json` stdout holds exactly one JSON object: for errors and dry runs too.
- I3  Whatever is not the result (notes, progress) goes to stderr; bars only to a terminal.
- I4  `--help` loads neither numba nor Spark: commands import what they need when they run.
"""

from __future__ import annotations

from stratalog.cli.app import main

__all__ = ["main"]
