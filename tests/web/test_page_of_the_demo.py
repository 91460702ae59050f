"""The page shows each scene of the demo while it is played: the real agents, the page's server, a real browser."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

from gpu_device_plugin.programs.demo.demo_program import play
from gpu_device_plugin.programs.demo.scenes import DEFAULT_GPUS, WITH_PAGE
from gpu_device_plugin.programs.demo.stage import DemoStage
from tests.patience import eventually, patience
from tests.web.browser import Browser

# What is seen, after each change of the document. The browser keeps it, so that the demo waits for no test.
RECORDER = """
window.seen = [];
const texts = (selector) => [...document.querySelectorAll(selector)].map((each) => each.innerText);
const labels = (selector) => [...document.querySelectorAll(selector)].map((each) => each.getAttribute("aria-label"));
const look = () => {
  const hidden = (id) => document.getElementById(id)?.hidden ?? true;
  const now = JSON.stringify({
    nodes: Object.fromEntries([...document.querySelectorAll("#cards > *")].map((card) => [
      card.dataset.node, [...card.querySelectorAll("[data-pod]")].map((part) => part.dataset.pod).sort(),
    ])),
    sums: document.getElementById("sums")?.innerText ?? "",
    over: labels(".part-over"),
    whole: labels(".part-whole"),
    bad: texts(".note-bad").filter(Boolean),
    waits: hidden("waiting") ? [] : texts("#waits > *"),
    banner: hidden("notes") ? "" : document.getElementById("notes").innerText,
    lost: !hidden("lost"),
  });
  if (window.seen.at(-1) !== now) window.seen.push(now);
};
addEventListener("DOMContentLoaded", () => {
  const all = { subtree: true, childList: true, attributes: true, characterData: true };
  new MutationObserver(look).observe(document, all);
});
"""

Seen = dict[str, Any]


class Output(io.StringIO):
    """What the demo prints."""

    @property
    def address(self) -> str:
        """Where the page is; empty: that is not printed yet."""
        return next((line for line in self.getvalue().splitlines() if line.startswith("http://")), "")


def services(seen: Seen) -> int:
    return sum("web-" in pod for pod in seen["nodes"].get("node-1", ()))


def over_its_limit(seen: Seen, gib: str) -> bool:
    said = f"web-7 is over its limit: it uses {gib} GiB of 1 GiB"
    return any(said in note for note in seen["bad"]) and len(seen["over"]) == 1


SCENES: list[tuple[str, Callable[[Seen], bool]]] = [
    ("The agent finds the GPUs", lambda seen: seen["nodes"] == {"node-1": []} and "of 49 GiB" in seen["sums"]),
    ("Services share a GPU", lambda seen: services(seen) == 7 and not seen["over"]),
    (
        "A service uses more than it was granted",
        lambda seen: (
            any("web-7 is over its limit: it uses 1.4 GiB of 1 GiB" in note for note in seen["bad"])
            and len(seen["over"]) == 1
        ),
    ),
    (
        "Memory runs short",
        lambda seen: (
            any("web-7 is over its limit: it uses 4.4 GiB of 1 GiB" in note for note in seen["bad"])
            and len(seen["over"]) == 1
        ),
    ),
    ("the service is evicted", lambda seen: services(seen) == 6 and not seen["over"] and not seen["bad"]),
    ("A pod gets a whole GPU", lambda seen: any("training" in label for label in seen["whole"])),
    (
        "A pod is refused, with a reason",
        lambda seen: any("research/large" in wait and "no GPU has 8 GiB free" in wait for wait in seen["waits"]),
    ),
    ("A GPU fails", lambda seen: any("XID 48" in note for note in seen["bad"])),
    ("The GPU recovers", lambda seen: not seen["bad"] and services(seen) == 6),
    ("A GPU in MIG mode", lambda seen: "serving/chat-2" in seen["nodes"].get("node-2", ())),
    ("are merged", lambda seen: any("the MIG instance no longer exists" in note for note in seen["bad"])),
    (
        "where the pod that was refused has room",
        lambda seen: "research/large" in seen["nodes"].get("node-2", ()) and not seen["waits"],
    ),
    (
        "A full cluster with problems",
        lambda seen: (
            any("XID 95" in note for note in seen["bad"])
            and any("research/notebook-1 is over its limit: it uses" in note for note in seen["bad"])
            and any("training/pretrain" in wait and "2 whole GPUs" in wait for wait in seen["waits"])
        ),
    ),
]


async def test_the_page_shows_each_scene_while_it_is_played_and_stays_after_the_last(browser: Browser) -> None:
    out = Output()
    async with browser.tab() as tab:

        async def frames(_seconds: float) -> None:
            """Let the browser draw some frames, each of which goes on with what the one before has begun."""
            frame = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
            await tab.run(f"(async () => {{ for (let n = 0; n < 5; n += 1) await {frame}; }})()")

        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=RECORDER)
        stage = DemoStage(out, live=False, colour=False, pause=frames)
        playing = asyncio.create_task(play(DEFAULT_GPUS, stage, page=True))
        try:
            await eventually(lambda: out.address or playing.done(), "the address of the page")
            assert "1/12" not in out.getvalue(), "the scenes begin when somebody looks"
            await tab.open(out.address)
            await eventually(
                lambda: "The page stays open until Ctrl-C" in out.getvalue() or playing.done(),
                "the last scene",
                quiet_s=120,
            )
            assert not playing.done(), out.getvalue()
            seen: list[Seen] = [json.loads(each) for each in await tab.run("window.seen")]
            await tab.call(
                "Page.navigate", url="about:blank"
            )  # what it complains of when the server has ended is right
        finally:
            playing.cancel()
            async with patience("the demo ends", out):
                (code,) = await asyncio.gather(playing, return_exceptions=True)
    printed = out.getvalue()
    assert code == 0, printed
    assert printed.count("ok  The page shows it.") == len(WITH_PAGE), printed
    assert_seen_in_order(seen)
    assert {each["banner"] for each in seen} == {""}, "nothing has to be said of figures that are fresh"
    assert not any(each["lost"] for each in seen)
    last = seen[-1]
    assert last["nodes"].keys() == {"node-1", "node-2"}
    assert len(last["over"]) == 1


def assert_seen_in_order(seen: list[Seen]) -> None:
    at = 0
    for scene, shows in SCENES:
        found = next((n for n in range(at, len(seen)) if shows(seen[n])), None)
        assert found is not None, f"{scene}: not seen after {at} of {len(seen)} views: {seen[at:][:40]}"
        at = found
