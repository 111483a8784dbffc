"""`python -m stratalog` is the `stratalog` command."""

from __future__ import annotations

import sys

from stratalog.cli import main

sys.exit(main())
