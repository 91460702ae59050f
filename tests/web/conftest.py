"""A browser for all tests of the page."""

from collections.abc import AsyncIterator

import pytest

from tests.web.browser import CHROMIUM, Browser, started


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium; every test opens a page of its own in it."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on the PATH: install Debian's package chromium")
    async with started() as running:
        yield running
