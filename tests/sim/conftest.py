"""A log store opens its logs one after another here: thousands of stores, each of a log or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from stratalog.log import log_store


class Inline:
    """A `ThreadPoolExecutor` without threads."""

    def __init__(self, _threads: int):
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def _no_threads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_store, "ThreadPoolExecutor", Inline)
        yield
