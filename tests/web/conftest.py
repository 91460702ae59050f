"""A browser for all tests of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.web.browser import CHROMIUM, Browser, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium; every test opens a page of its own in it."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on the PATH: install Debian's package chromium")
    async with started() as running:
        yield running
