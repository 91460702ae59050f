"""The page in a real browser, on its real server."""

# ruff: noqa: E501 - a script for the page is read more easily on one line

from tests.builders import node
from tests.cluster_double.api_server import ApiServer
from tests.patience import eventually
from tests.programs.web.harness import served
from tests.programs.web.test_page_server import FromAgents
from tests.web.browser import Browser

IN_WINDOW = (
    "[...document.querySelectorAll('.tile')].filter((each) => { const {top, bottom} = each.getBoundingClientRect(); return bottom > 0 && top < innerHeight; })"
    ".map((each) => each.dataset.node)"
)


async def test_nodes_in_the_window_come_first(browser: Browser) -> None:
    """Of 90 nodes, which are a map: those of its first rows, then those of its last; none when the page is left."""
    figures = FromAgents()
    names = [f"gpu-{number:02}" for number in range(90)]
    async with ApiServer() as api:
        for name in names:
            api.add(node(name, mem=30, count=2))
        async with served(api, figures=figures, hosts=True) as page, browser.tab() as tab:
            await tab.size(500, 400)
            token = page.headers["Authorization"].removeprefix("Bearer ")
            await tab.open(page.url(f"#token={token}"))
            await tab.until("document.querySelectorAll('.tile').length === 90")
            seen = []
            for block, selector in (("start", "#map"), ("end", ".tile:last-child")):
                await tab.run(f"document.querySelector('{selector}').scrollIntoView({{block: '{block}'}})")
                seen.append(await tab.run(IN_WINDOW))
                await eventually(lambda: list(figures.in_view) == seen[-1], "the server knows what is in the window")
            first, last = seen
            assert first[0] == names[0]
            assert last[-1] == names[-1]
            assert names[-1] not in first
            assert names[0] not in last
            await tab.call("Page.navigate", url="about:blank")
            await eventually(lambda: not figures.in_view)
