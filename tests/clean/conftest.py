"""Cleaning thousands of little logs."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _hasty(hasty_disk: None) -> None:
    """All tests here."""
