"""A shell for the tests of the command line."""

from __future__ import annotations

import pytest

from tests.cli.helpers import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs `stratalog` commands inside this process."""
    return Shell(capsys)
