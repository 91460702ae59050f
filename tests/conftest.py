"""What holds for every test."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGERS = ("", "gpu_device_plugin", "asyncio", "watchdog")


def pytest_configure() -> None:
    """Let Ctrl-C end the programs that are started here, also where a shell started us in the background without it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """Programs that are run in this process set levels and handlers for themselves, not for the tests after them."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, list(logger.handlers), list(logger.filters)) for logger in loggers]
    yield
    for logger, (level, handlers, filters) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.filters[:] = filters
