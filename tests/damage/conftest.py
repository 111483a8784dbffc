"""Tens of thousands of directories are opened here: nothing is told of it, no thread is started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pytest

from stratalog.log import log_store


class Undelayed:
    """In the place of a pool of threads: what is submitted is done at once."""

    def __init__(self, _threads: int):
        pass

    def __enter__(self) -> Undelayed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            done.set_exception(error)
        return done


@pytest.fixture(autouse=True, scope="package")
def _opened_quickly() -> Iterator[None]:
    logger = logging.getLogger("stratalog.log")
    level = logger.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_store, "ThreadPoolExecutor", Undelayed)
        logger.setLevel(logging.CRITICAL + 1)
        yield
        logger.setLevel(level)
