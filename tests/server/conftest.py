"""The command line's shell, for commands that start nothing."""

from __future__ import annotations

import pytest

from tests.cli.helpers import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs `stratalog` commands inside this process."""
    return Shell(capsys)
