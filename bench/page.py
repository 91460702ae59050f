"""Measures the page in a real Chromium: first paint and updates, at 1,000 nodes with 8 GPUs by default."""

# ruff: noqa: E501 - scripts of the page
from __future__ import annotations

import argparse
import asyncio
import copy
import json
import statistics
from typing import Any

from tests.web import scenes
from tests.web.browser import CHROMIUM, Tab, started
from tests.web.page_server import PageServer

# What the page reports of itself: every task of 50 ms and more, and each time that it wrote what changed, from the first
# slice of this work to the last. Loading the page itself, which has nothing to do with the cluster, counts as none.
WATCH = """
window.tasks = []; window.shows = [];
new PerformanceObserver((all) => { const loaded = performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd;
  for (const each of all.getEntries()) if (loaded && each.startTime >= loaded) window.tasks.push(each.duration); }).observe({type: 'longtask', buffered: true});
new PerformanceObserver((all) => { for (const each of all.getEntries()) if (each.name === 'gpushare:show') window.shows.push([each.startTime, each.duration]); })
  .observe({type: 'measure', buffered: true});
"""


async def first_paint(tab: Tab, server: PageServer, query: str) -> dict[str, Any]:
    """Open the page; return milliseconds from navigation on."""
    await tab.open(server.url(query))
    await tab.until("window.shows.length > 0")
    await tab.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return dict(
        await tab.run(
            "({paint: performance.getEntriesByName('first-contentful-paint')[0].startTime,"
            "cluster: window.shows[0][0] + window.shows[0][1], show: window.shows[0][1], tasks: window.tasks})"
        )
    )


async def updates(tab: Tab, server: PageServer, nodes: int, times: int) -> dict[str, Any]:
    """Change so many nodes so many times; return what each cost the page's main thread in all, in milliseconds."""
    costs = []
    await tab.run("window.tasks = []; window.shows = []")
    for n in range(times):
        changed = []
        for each in server.scene.cluster["nodes"][n * 7 : n * 7 + nodes]:
            node = copy.deepcopy(each)
            for gpu in node["gpus"]:
                gpu["usedMiB"] = gpu.get("usedMiB", 0) // 2 + n
                for part in gpu.get("pods", []):
                    part["usedMiB"] = part.get("usedMiB", 0) // 2 + n
            changed.append(node)
        before = await tab.run("window.shows.length")
        begun = await tab.call("Performance.getMetrics")
        server.change(*changed)
        await tab.until(f"window.shows.length > {before}")
        await tab.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        ended = await tab.call("Performance.getMetrics")
        at = [{each["name"]: each["value"] for each in metrics["metrics"]} for metrics in (begun, ended)]
        costs.append(1000 * (at[1]["TaskDuration"] - at[0]["TaskDuration"]))
    tasks = await tab.run("window.tasks")
    return {"median": statistics.median(costs), "worst": max(costs), "tasks": tasks}


def told(tasks: list[float]) -> str:
    """Say how many tasks took 50 ms and more, from which on people notice that the page does not answer."""
    return f"tasks of 50 ms and more: {len(tasks)}" + (f", the longest {max(tasks):.0f}" if tasks else "")


async def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--slower", type=float, default=1, help="pretend that the processor is slower so many times")
    given = parser.parse_args()
    if CHROMIUM is None:
        print("the page: not measured, there is no Chromium on the PATH")
        return
    server = PageServer(scenes.many(given.nodes, given.gpus))
    size = len(json.dumps(server.scene.cluster)) / 1e6
    print(f"The page, {given.nodes} nodes with {given.gpus} GPUs ({size:.1f} MB of JSON), milliseconds")
    async with started() as browser, server.serving():
        for query, name in (("", "map"), ("?view=cards", "cards")):
            async with browser.tab() as tab:
                await tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
                await tab.call("Performance.enable")
                await tab.call("Emulation.setCPUThrottlingRate", rate=given.slower)
                began = await first_paint(tab, server, query)
                print(
                    f"{name:<6} first paint {began['paint']:>6.0f}   all nodes shown {began['cluster']:>6.0f}   of these writing {began['show']:>6.0f}, {told(began['tasks'])}"
                )
                for nodes in (1, 20, 200):
                    cost = await updates(tab, server, nodes, given.rounds)
                    print(
                        f"{name:<6} {nodes:>4} nodes change: main thread {cost['median']:>6.1f} (worst {cost['worst']:.1f}), {told(cost['tasks'])}"
                    )


if __name__ == "__main__":
    asyncio.run(main())
