"""Cleaning thousands of little logs."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power between these tests' steps, so they need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
