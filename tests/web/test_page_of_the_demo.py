"""The scenes of the demo come up on the page: the real agent, the real server of the page, a real browser."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from gpu_device_plugin.programs.demo.program import Stage, play
from gpu_device_plugin.programs.demo.scenes import DEFAULT_GPUS, SCENES

if TYPE_CHECKING:
    from gpu_device_plugin.programs.demo.story import Story
    from tests.web.browser import Browser, Tab


class Output(io.StringIO):
    """What the demo prints."""

    @property
    def address(self) -> str:
        """Where the page is."""
        return next(line for line in self.getvalue().splitlines() if line.startswith("http://"))


async def test_the_page_follows_the_demo(browser: Browser) -> None:
    out = Output()
    seen: list[str] = []
    async with browser.tab() as tab:

        async def look(_story: Story) -> None:
            await tab.open(out.address)
            await text_has(tab, "Tesla P4")
            seen.append("opened")

        async def over(_story: Story) -> None:
            await tab.until("document.querySelector('.part-over')?.getAttribute('aria-label').includes('web-7')")
            await text_has(tab, "web-7 uses")
            seen.append("over-use in red")

        async def gone(_story: Story) -> None:
            await tab.until("!document.querySelector('[data-pod=\"default/web-7\"]')")
            await tab.until("!!document.querySelector('[data-pod=\"default/web-1\"]')")
            seen.append("evicted")

        async def whole(_story: Story) -> None:
            await tab.until("!!document.querySelector('.part-whole')")
            seen.append("whole")

        async def failed(_story: Story) -> None:
            await tab.until("!!document.querySelector('.bar-bad')")
            await text_has(tab, "XID 48")
            seen.append("failed")
            await tab.call("Page.navigate", url="about:blank")  # the demo ends, and its server with it

        titles = list(SCENES)
        after = {2: look, 3: over, 4: gone, 5: whole, 7: failed}
        scenes = {}
        for number, title in enumerate(titles[:7], 1):
            scenes[title] = SCENES[title]
            if number in after:
                scenes[f"(looked at after {title})"] = after[number]
        code = await play(DEFAULT_GPUS, Stage(out, live=False, colour=False), scenes, page=True)
    assert code == 0, out.getvalue()
    assert seen == ["opened", "over-use in red", "evicted", "whole", "failed"]


async def text_has(tab: Tab, text: str) -> None:
    """Wait until the page shows a text."""
    await tab.until(f"document.body.innerText.includes({text!r})")
