"""Makes the picture of the page that heads the README: `python -m tests.web.picture FILE.png [--dark]`."""

import argparse
import asyncio
from pathlib import Path

from tests.web.browser import started
from tests.web.page_server import PageServer
from tests.web.scenes import small


async def picture(path: Path, *, dark: bool, width: int, height: int) -> None:
    """Write a picture of the small cluster, PNG, at twice the size in pixels, so that it is sharp on any screen."""
    server = PageServer(small())
    async with started() as browser, server.serving(), browser.tab() as tab:
        await tab.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=False
        )
        await tab.prefer(color_scheme="dark" if dark else "light")
        await tab.open(server.url())
        drawn = "document.querySelector('.card .fill') && document.querySelector('#empty').hidden"
        await tab.until(f"{drawn} && document.querySelector('.status-live')")
        await tab.picture(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=900)
    given = parser.parse_args()
    asyncio.run(picture(given.file, dark=given.dark, width=given.width, height=given.height))
