"""The `stratalog` command: thin click commands over `admin`.

    app.py        the command group and the one place where errors become exit codes
    options.py    options that several commands share
    output.py     text for people, or exactly one JSON object
    tables.py     aligned columns, sizes and times for people
    progress.py   the bar on a terminal's stderr, and stopping at Ctrl-C
    engines.py    which engine runs
    properties.py a broker's server.properties
    compact.py, retention.py, log.py, repair.py, import_.py, warmup.py   commands on directories

    desks.py      which desk: that of the server, or the directory's own
    targets.py    what an argument names: a topic or a directory
    listing.py    a desk's documents as text, lines of tabs, JSON; asking before what destroys
    topic.py, topic_storage.py, config.py, log_dirs.py      commands at a desk
    records.py, compaction.py, cleaner.py                   at a desk, or on directories
      compaction_topics.py, steering.py                     what those share
    server.py     the process that owns directories

Invariants
- I1  Exit codes: 0 done, 1 failed (or, for `log verify` and `log repair`, problems found), 2 wrong
      usage, 130 interrupted, 141 broken pipe. No traceback for an expected error.
- I2  With `--format json` stdout holds exactly one JSON object: for errors and dry runs too.
- I3  Whatever is not the result (notes, progress) goes to stderr; bars only to a terminal.
- I4  A command that destroys shows its plan and asks; where nobody can be asked it wants
      --no-confirm.
- I5  `--help` loads neither numba nor Spark: commands import what they need when they run.
"""

from __future__ import annotations

from stratalog.cli.app import main

__all__ = ["main"]
