"""What holds for every test."""

import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.patience import stretched

# A test says what holds, not how quickly: the machine that runs it may be busy with something else.
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
# The command that a newcomer runs tries the same examples each time, so that more of them find little more.
# `make explore` tries new ones, twice as many.
settings.register_profile("repeatable", _ANY_MACHINE, derandomize=True, max_examples=50)
# Where CI is set Hypothesis' own default is to derandomize; exploring says for itself that it does not.
settings.register_profile("explore", _ANY_MACHINE, derandomize=False)
settings.load_profile("repeatable")

_LOGGERS = ("", "gpu_device_plugin", "asyncio", "watchdog")


def pytest_configure() -> None:
    """Let Ctrl-C end the programs that are started here, also where a shell started us in the background without it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> object:
    """Give a test more time on a busy machine, before pytest-timeout ends it."""
    longer = settings._replace(timeout=settings.timeout and stretched(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, longer)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test of chance its seeds: always the same, or others with `--hypothesis-seed`, as `make explore` does."""
    if "chance_seed" in metafunc.fixturenames:
        first = int(metafunc.config.getoption("--hypothesis-seed") or 0)
        metafunc.parametrize("chance_seed", range(first, first + 6))


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
