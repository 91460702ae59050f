"""What agents remember, in a real browser: the last hour, the condition of a GPU, incidents."""

# ruff: noqa: E501 - a script for the page is read more easily on one line

import json
import re

import pytest

from tests.histories import GAP
from tests.patience import eventually
from tests.web.browser import Browser, Tab
from tests.web.scenes import remembering, small
from tests.web.test_page import CONTRASTS, opened, wide

DRAWN = "document.querySelector('.past .spark')"
INCIDENT = ".incident:first-of-type"


async def alternatives(tab: Tab) -> list[str]:
    """Return what drawings say to somebody who does not see them."""
    return list(
        await tab.run("[...document.querySelectorAll('.spark')].map((each) => each.getAttribute('aria-label'))")
    )


async def facts(tab: Tab) -> dict[str, str]:
    """Return the facts of a GPU's condition."""
    told = await tab.run(
        "[...document.querySelectorAll('.past .facts dt')].map((each) => [each.innerText, each.nextElementSibling.innerText])"
    )
    return dict(told)


async def test_a_click_on_a_gpu_shows_its_last_hour_and_its_condition(browser: Browser) -> None:
    async with opened(browser, remembering()) as (tab, server):
        await tab.click("[data-node=t4-1] .gpu-i")
        await tab.until(DRAWN)
        assert await tab.text("#side-panel-title") == "t4-1, GPU 0"
        assert "panel=t4-1/0" in await tab.run("location.search")
        assert await tab.texts(".past > section:first-child .spark-label") == [
            *("Memory", "Processors", "Power", "Temperature", "Slowed down")
        ]
        assert await tab.texts(".past > section:first-child .spark-value") == [
            *("13.5 GiB\nof 15 GiB", "97 %\nof 100 %", "68 W\nof 70 W", "91 °C\nof 93 °C"),
            "10 min: heat, hardware slowdown",
        ]
        assert (await tab.text(".past .spark-time")).split("\n") == ["\N{MINUS SIGN}60 min", "now"]
        assert "For older data, use Prometheus." in await tab.text(".past")
        told = await facts(tab)
        assert told["Temperature"] == "91 °C, slows down at 93 °C"
        assert told["Power"] == "68 W of 70 W"
        assert told["Processor clock"] == "810 MHz of 1,590 MHz"
        assert told["PCIe"] == "generation 3 of 3, 8 of 16 lanes"
        assert told["Memory errors (ECC)"] == "12 corrected, 0 uncorrected"
        assert (told["Memory rows"], told["GPU links"], told["Persistence mode"]) == ("1 replaced", "0 errors", "on")
        assert await tab.texts(".past .facts .note-warn") == [
            *("heat", "generation 3 of 3, 8 of 16 lanes", "waits for a reset of the GPU")
        ]
        await tab.click(".spark-of .link")
        await tab.until("document.querySelector('#side-panel-title').innerText === 'web-0'")
        await eventually(lambda: server.asked.count("/api/v1/history/t4-1") == 2)


async def test_where_an_administrator_has_set_one_the_page_links_to_a_dashboard(browser: Browser) -> None:
    scene = remembering()
    scene.session["dashboard"] = "https://grafana.example/d/gpushare"
    async with opened(browser, scene) as (tab, _):
        await tab.click("[data-node=t4-1] .gpu-i")
        await tab.until(DRAWN)
        link = "document.querySelector('.past section a')"
        assert await tab.run(f"[{link}.href, {link}.rel, {link}.innerText]") == [
            *("https://grafana.example/d/gpushare", "noopener noreferrer", "Older data")
        ]


async def test_a_line_has_a_gap_where_nothing_was_read_and_says_so_aloud(browser: Browser) -> None:
    """The agent was away for twenty of 240 steps of 15 s."""
    async with opened(browser, remembering(), "?panel=t4-1/0") as (tab, _):
        await tab.until(DRAWN)
        lines = await tab.run(
            "[...document.querySelector('.spark').querySelectorAll('.spark-line')].map((each) => each.getAttribute('d').match(/[\\d.]+,/g).map(parseFloat))"
        )
        assert [len(each) for each in lines] == [GAP.start, 240 - GAP.stop]
        assert [lines[0][0], lines[1][-1]] == [0, 240]
        assert lines[1][0] - lines[0][-1] == pytest.approx(21 * 240 / 239, abs=0.2)
        told = await alternatives(tab)
        assert told[0] == "Memory: now 13.5 GiB, from 1 GiB to 13.5 GiB, on a scale to 15 GiB, not known for 5 min"
        assert told[4] == "Slowed down: 10 min: heat, hardware slowdown"
        shown = {name for role, name in await tab.accessible() if role in {"img", "image"}}
        assert set(told) <= shown


async def test_an_agent_that_has_read_once_has_one_value_at_the_end(browser: Browser) -> None:
    """What it never read has no line."""
    scene = remembering()
    told = scene.past["history/t4-1?gpu=0"]["gpus"][0]
    told |= {"used_mib": [None, 7680], "sm_percent": [50], "power_w": [None], "temperature_c": [], "throttle": [None]}
    async with opened(browser, scene, "?panel=t4-1/0") as (tab, _):
        await tab.until(DRAWN)
        assert await tab.texts(".past > section:first-child .spark-label") == ["Memory", "Processors"]
        ends = await tab.run(
            "[...document.querySelectorAll('.past > section:first-child .spark-line')].map((each) => each.getAttribute('d').split(',')[0])"
        )
        assert ends == ["M240.0", "M240.0"]


async def test_a_gpu_whose_condition_is_not_read_shows_what_there_is(browser: Browser) -> None:
    async with opened(browser, remembering(), "?panel=t4-1/1") as (tab, _):
        await tab.until(DRAWN)
        assert await tab.texts(".spark-label") == ["Memory", "Processors"]
        assert "The node does not read the condition of this GPU." in await tab.text(".past")
        await tab.open(re.sub(r"t4-1/1", "h100-1/2", await tab.run("location.href")) + "#token=let-me-in")
        await tab.until("document.querySelector('.past')?.innerText === 'Nothing has been recorded.'")
        await tab.run("history.replaceState(null, '', '?panel=h100-1/77'); dispatchEvent(new Event('popstate'))")
        await tab.until("document.querySelector('#side-panel').innerText.includes('No node matches')")


async def test_the_side_panel_of_a_pod_has_its_last_hour_with_its_guarantee(browser: Browser) -> None:
    async with opened(browser, remembering(), "?pod=default/web-0") as (tab, server):
        await tab.until(DRAWN)
        assert await tab.texts(".spark-label") == ["Memory", "Processors", "CPU held back"]
        assert await tab.run("document.querySelectorAll('.spark-mark').length") == 1
        assert "GPU 0 · 4 GiB allocated" in await tab.text(".spark-of")
        assert server.asked.count("/api/v1/history/t4-1") == 1
        # The side panel is filled again when its node changes, and what was read a moment ago is drawn again.
        server.change(server.scene.node("t4-1"))
        await eventually(lambda: len([each for each in server.asked if each.endswith("/pods/default/web-0")]) > 1)
        await tab.until(DRAWN)
        assert server.asked.count("/api/v1/history/t4-1") == 1


async def test_a_namespace_has_its_last_hour_node_by_node(browser: Browser) -> None:
    async with opened(browser, remembering()) as (tab, _):
        assert await tab.run("document.querySelector('#hour').disabled")
        await tab.choose("#f-ns", "research")
        await tab.until("!document.querySelector('#hour').disabled")
        await tab.click("#hour")
        await tab.until(DRAWN)
        assert await tab.text("#side-panel-title") == "The last hour of research"
        assert await tab.texts(".past h3") == ["a100-1", "t4-1"]
        assert [each.strip() for each in await tab.texts(".spark-of p")] == [
            "research/llm-eval-0/main GPU 0 · 4 GiB allocated",
            "research/notebook/main GPU 0 · was not assigned this GPU",
        ]


async def test_incidents_of_a_node_are_listed_and_one_is_drawn_when_it_is_opened(browser: Browser) -> None:
    async with opened(browser, remembering(), "?panel=t4-1", clock=False) as (tab, server):
        await tab.until("document.querySelector('.incident')")
        assert [each.split("\n")[-1] for each in await tab.texts(".incident summary")] == [
            "GPU 0 reported XID 48: a double-bit memory error",
            "container main ended with exit code 137 (Error)",
            "You may not see all pods, so its text is hidden.",
        ]
        assert (await tab.texts(".incident b"))[:2] == ["XID", "Container died"]
        assert not [each for each in server.asked if "xid-gpu0" in each]
        await tab.click(f"{INCIDENT} summary")
        await tab.until(f"document.querySelector('{INCIDENT} .spark')")
        told = await tab.text(INCIDENT)
        assert "4711 · default/web-0/main · GPU 0 · 5 GiB" in told
        assert "12 · no pod · GPU 0 · 312 MiB" in told
        assert "default/web-0/main · GPU 0 · 5 GiB of 5 GiB · limit held" in told
        assert "the driver reported Xid 48 of GPU 0" in told
        assert await tab.texts(f"{INCIDENT} .spark-ends span:last-child") == ["then", "then"]
        # What somebody reads stays, whatever changes.
        server.change(server.scene.node("t4-1") | {"policy": "spread"})
        await tab.until("document.querySelector('.cards [data-node=t4-1]')")
        assert await tab.run(f"document.querySelector('{INCIDENT}').open")


async def test_a_node_without_incidents_says_so(browser: Browser) -> None:
    async with opened(browser, small(), "?panel=a100-1") as (tab, _):
        await tab.until("document.querySelector('.past section')")
        assert await tab.text(".past") == "Incidents\n\nNone has been recorded."


async def test_the_keyboard_reaches_the_gpus_of_an_open_node(browser: Browser) -> None:
    async with opened(browser, remembering(), "?panel=t4-1") as (tab, _):
        await tab.until("document.querySelector('#side-panel .gpu-i')")
        assert await tab.run("document.querySelector('.cards .gpu-i').tabIndex") == -1
        await tab.run("document.querySelector('#side-panel .gpu-i').focus()")
        await tab.press("Enter")
        await tab.until(DRAWN)
        assert await tab.text("#side-panel-title") == "t4-1, GPU 0"


@pytest.mark.parametrize("query", ["?panel=t4-1/0", "?panel=t4-1", "?panel=/research", "?pod=default/web-0"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_can_be_read_and_fits_a_narrow_screen(browser: Browser, query: str, scheme: str) -> None:
    async with opened(browser, remembering(), query) as (tab, _):
        await tab.prefer(color_scheme=scheme)
        await tab.until("document.querySelector('.past section')")
        assert [each for each in await tab.run(CONTRASTS) if each[0] < 4.5] == []
        for width in (400, 320):
            await tab.size(width, 800)
            assert await wide(tab) <= 0
            assert await tab.run(
                "document.querySelector('.side-panel-body').scrollWidth <= document.querySelector('.side-panel-body').clientWidth"
            )


async def test_it_speaks_chinese(browser: Browser) -> None:
    async with opened(browser, remembering(), "?panel=t4-1/0&lang=zh") as (tab, _):
        await tab.until(DRAWN)
        told = " ".join([*(await alternatives(tab)), await tab.text(".past")])
        assert (
            re.findall(
                r"[a-z]{3,}", re.sub(r"Prometheus|GiB|PCIe|NVLink|ECC|web-0|default|research|notebook|main", "", told)
            )
            == []
        )


async def test_what_an_agent_refuses_is_said_in_the_side_panel(browser: Browser) -> None:
    scene = remembering()
    hostile = "<img src=x onerror=alert(1)>\u202e"
    scene.past["history/t4-1?gpu=0"]["containers"][0]["pod"] = hostile
    async with opened(browser, scene, "?panel=t4-1/0") as (tab, _):
        await tab.until(DRAWN)
        assert "<img src=x" in await tab.text(".spark-of")
        assert "\u202e" not in json.dumps(await tab.texts(".spark-of"), ensure_ascii=False)
