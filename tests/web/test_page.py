"""The page in a real browser."""

# ruff: noqa: E501 - a script for the page is read more easily on one line

import contextlib
import copy
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_device_plugin.features.capacity.report import stays
from gpu_device_plugin.kubernetes.client.errors import Call
from gpu_device_plugin.model.contract.nodegpus import AWAY
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.programs.web.watched import missing_right
from gpu_device_plugin.report.rules.finding import note
from gpu_device_plugin.report.rules.node_answers import explain
from gpu_device_plugin.report.rules.pod_causes import Kept
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.settings.common import ResourceSettings
from tests.patience import eventually
from tests.reporting import answers
from tests.views import node_view, pod_on
from tests.web import scenes
from tests.web.browser import Browser, Tab
from tests.web.page_server import TOKEN, PageServer
from tests.web.scenes import HOSTILE, T4, Scene, cluster, gpu, lending, many, node, part, parted, small, summed

RESOURCES = ResourceSettings().offered
WEB_0 = '.part[data-pod="default/web-0"]'


@contextlib.asynccontextmanager
async def opened(
    browser: Browser, scene: Scene, query: str = "", *, clock: bool = True
) -> AsyncIterator[tuple[Tab, PageServer]]:
    """Open the page of a scene, and wait until it shows it; without a `clock` no age on it changes."""
    server = PageServer(copy.deepcopy(scene))
    async with server.serving(), browser.tab() as tab:
        if not clock:
            await tab.stop_clock()
        await tab.open(server.url(query))
        await tab.until("performance.getEntriesByName('gpushare:show').length > 0")
        yield tab, server


async def sums(tab: Tab) -> dict[str, str]:
    """Return the figures at the head of the page."""
    return dict(
        await tab.run(
            "[...document.querySelectorAll('[data-sum]')].map((each) => [each.dataset.sum, each.querySelector('.sum-value').innerText])"
        )
    )


async def wide(tab: Tab) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(await tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


async def test_a_small_cluster_is_shown_whole(browser: Browser) -> None:
    """Given: 98 + 179 + 44 + 17 GiB. Free: 6 + 16, 11 + 47 + 79, 5 + 8; not l40s-1, which is cordoned."""
    async with opened(browser, small()) as (tab, _):
        shown = await sums(tab)
        assert shown["given"] == "338 GiB"
        assert shown["free"] == "172 GiB"
        assert shown["largest"] == "79 GiB"
        assert shown["whole"] == "1"
        assert shown["waiting"] == "2"
        assert await tab.texts(".card .node-name") == ["a100-1", "h100-1", "l40s-1", "t4-1"]
        assert "on h100-1, GPU 3, 79.6 GiB physically free" in await tab.text("[data-sum=largest]")
        cards = await tab.text("#cards")
        assert "Xid 79: GPU has fallen off the bus" in cards
        assert "default/web-0 is over its limit: it uses 8.8 GiB of 5 GiB, for 7 min" in cards
        assert "research/stray uses 2 GiB of this GPU, which is not assigned to it" in cards
        assert "312 MiB used by no pod" in cards
        assert "speech/tts-0: driver limit 12 GiB, granted 10 GiB" in cards
        assert "cordoned" in cards
        assert "limits: advisory" in cards
        waiting = await tab.text("#waits")
        assert "training/finetune-70b" in waiting
        assert "There would be room on h100-1 if this pod ended: research/diffusion-xl" in waiting
        assert "prod-eu" in await tab.text("#where")


async def test_a_gpu_that_is_put_aside_says_who_when_and_why(browser: Browser) -> None:
    """Seven minutes ago; in Chinese too."""
    scene = copy.deepcopy(small())
    at = (scenes.NOW - timedelta(minutes=7)).strftime("%Y-%m-%dT%H:%M:%SZ")
    scene.cluster["nodes"][0]["gpus"][0] |= {"cordon": {"by": "alice", "at": at, "why": "a fan is loud"}}
    async with opened(browser, scene, clock=False) as (tab, server):
        says = "cordoned by alice 7 min ago: a fan is loud"
        assert says in await tab.text("#cards")
        bar = await tab.run("document.querySelector('.bar-cordoned').getAttribute('aria-label')")
        assert says in bar
        await tab.open(server.url("?lang=zh"))
        await tab.until("document.querySelector('#cards')?.innerText.includes('alice')")
        assert "alice 于" in await tab.text("#cards")


async def test_instances_are_bars_below_the_name_of_their_gpu(browser: Browser) -> None:
    """Free memory is that of GPU 0 and of the shared instances: 63 + 7 + 9 GiB. Of three whole instances one is free."""
    async with opened(browser, parted()) as (tab, _):
        shown = await sums(tab)
        assert (shown["free"], shown["largest"], shown["whole"]) == ("79 GiB", "63 GiB", "0")
        assert "of 2 GPUs, 1 of 3 MIG instances" in await tab.text("[data-sum=whole]")
        assert await tab.texts(".gpus > li:is(.gpu-head)") == ["GPU 1 in MIG mode"]
        assert await tab.run("[...document.querySelectorAll('.gpus > li')].map((each) => each.className)") == [
            "gpu",
            "gpu-head",
            *["gpu gpu-mig"] * 4,
            "gpu gpu-mig gpu-bad",
        ]
        assert await tab.texts(".gpu-mig .gpu-i") == ["1:0\n2g.20gb", *(f"1:{n}\n1g.10gb" for n in range(1, 5))]
        named = await tab.run("[...document.querySelectorAll('.bar')].map((each) => each.getAttribute('aria-label'))")
        assert named[1].startswith(
            "GPU 1 (MIG 1:0 2g.20gb), NVIDIA H100 80GB HBM3 MIG 2g.20gb: 12 GiB of 19 GiB allocated"
        )
        assert ", allocated whole," in named[3]
        whole = await tab.run("document.querySelector('.part-whole').getAttribute('aria-label')")
        assert whole.startswith("training/tune-0, the whole MIG instance")
        cards = await tab.text("#cards")
        assert "1 MIG instance in use cannot be told apart yet" in cards
        assert "unhealthy: XID 94" in cards
        # Arrow keys pass the name of the GPU.
        await tab.run("document.querySelector('.part[data-pod=\"research/llm-eval-0\"]').focus()")
        await tab.press("ArrowDown")
        assert await tab.run("document.activeElement.dataset.pod") == "serving/ranker-0"


async def test_a_part_is_as_wide_as_its_shares_and_filled_as_it_is_used(browser: Browser) -> None:
    """llm-eval-0 has 16 of 40 GiB of its GPU, and uses 14,920 of its 16,384 MiB."""
    async with opened(browser, small()) as (tab, _):
        width, fill = await tab.run(
            "(() => { const part = document.querySelector('[data-pod=\"research/llm-eval-0\"]'); const width = (each) => each.getBoundingClientRect().width;"
            "return [width(part) / width(part.closest('.bar')), width(part.querySelector('.fill')) / width(part)]; })()"
        )
        assert width == pytest.approx(16 / 40, abs=0.02)
        assert fill == pytest.approx(14920 / 16384, abs=0.01)


async def test_borrowed_memory_is_hatched_up_to_the_limit_and_who_needs_it_is_told(browser: Browser) -> None:
    """The meter ends at the limit of 8 GiB: 4 GiB are guaranteed, 3 are borrowed."""
    async with opened(browser, lending()) as (tab, _):
        part, seen = '[data-pod="research/nb-2"]', "each.getBoundingClientRect()"
        meter, fill, borrowed, most = await tab.run(
            f"[...document.querySelectorAll('{part} .meter, {part} .meter > :not(.excess)')].map((each) => [{seen}.left, {seen}.right])"
        )
        width = meter[1] - meter[0]
        assert [(fill[1] - meter[0]) / width, (borrowed[0] - meter[0]) / width] == pytest.approx([0.5, 0.5], abs=0.02)
        assert [(borrowed[1] - meter[0]) / width, (most[1] - meter[0]) / width] == pytest.approx([7 / 8, 1], abs=0.02)
        assert await tab.run(f"document.querySelector('{part} .excess').hidden")
        assert "part-asked" in await tab.run(f"document.querySelector('{part}').className")
        assert "may use 8 GiB, borrows 3 GiB" in await tab.run(
            f"document.querySelector('{part}').getAttribute('aria-label')"
        )
        cards = await tab.text("#cards")
        assert "research/nb-2: borrows 3 GiB, asked 12 s ago to return it, evicted in 4" in cards
        assert "s otherwise, training/train-0 needs it" in cards
        assert "nb-1:" not in cards


async def test_a_namespace_has_the_same_look_on_every_page(browser: Browser) -> None:
    """It depends on its name only. Not by colour alone: three in four have a pattern on their edge, and all have names."""
    async with opened(browser, small()) as (tab, _):
        looks = await tab.run(
            "import('./colours.js').then((it) => ['default', 'training', 'research', 'default'].map(it.lookOf))"
        )
        assert looks == ["look-c8 p0", "look-c2 p1", "look-c4 p0", "look-c8 p0"]
        assert "look-c8 p0" in await tab.run(f"document.querySelector('{WEB_0}').className")


async def test_filters_are_in_the_address_and_going_back_undoes_them(browser: Browser) -> None:
    """What is typed at one go is one step back."""
    async with opened(browser, small()) as (tab, _):
        await tab.choose("#f-ns", "serving")
        await tab.until("document.querySelectorAll('.card').length === 2")
        assert (await sums(tab))["given"] == "82 GiB"
        assert await tab.run("location.search") == "?ns=serving"
        await tab.until("document.querySelectorAll('.part-dim').length === 6")
        await tab.click("#f-q")
        await tab.type("rank")
        await tab.until("document.querySelectorAll('.card').length === 1 && location.search.includes('q=rank')")
        await tab.type("er-1")
        await tab.until("location.search.includes('q=ranker-1')")
        says = "1 of 4 nodes: the filters narrow everything below"
        assert [await tab.text("#shown"), await tab.text("#said")] == [says, says]
        await tab.run("history.back()")
        await tab.until("document.querySelectorAll('.card').length === 2 && location.search === '?ns=serving'")
        assert await tab.run("document.querySelector('#f-q').value") == ""
        await tab.run("history.back()")
        await tab.until("document.querySelectorAll('.card').length === 4")
        await tab.run("history.forward()")
        await tab.until(
            "document.querySelectorAll('.card').length === 2 && document.querySelector('#f-ns').value === 'serving'"
        )
        await tab.click("#clear")
        await tab.until("document.querySelectorAll('.card').length === 4 && location.search === ''")


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ("?node=t4-1", ["t4-1"]),
        ("?node=100", ["a100-1", "h100-1"]),
        ("?model=NVIDIA+L40S", ["l40s-1"]),
        ("?q=fallen+off", ["a100-1"]),
        ("?ns=default", ["t4-1"]),
        ("?ns=serving&node=h100-1", ["h100-1"]),
        ("?trouble=1", ["a100-1", "l40s-1", "t4-1"]),
        ("?ns=nowhere", []),
    ],
)
async def test_an_address_with_filters_can_be_sent_to_somebody(browser: Browser, query: str, nodes: list[str]) -> None:
    async with opened(browser, small(), query) as (tab, _):
        assert await tab.texts(".card .node-name") == nodes
        assert bool(await tab.text("#empty")) == (not nodes)


async def test_a_click_on_a_namespace_shows_only_it_and_another_all(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        await tab.click("#keys li:nth-child(2) .key")
        await tab.until("location.search === '?ns=serving' && document.querySelector('.key[aria-pressed=true]')")
        await tab.click(".key[aria-pressed=true]")
        await tab.until("location.search === ''")


async def test_the_side_panel_of_a_pod_opens_and_closes_by_the_keyboard(browser: Browser) -> None:
    """Escape gives the focus back to the part that was opened."""
    async with opened(browser, small()) as (tab, server):
        await tab.run(f"document.querySelector('{WEB_0}').focus()")
        await tab.press("ArrowRight", "ArrowLeft", "Enter")
        await tab.until("document.querySelector('#side-panel:not([hidden]) .events')")
        assert await tab.run("location.search") == "?pod=default/web-0"
        assert await tab.run("document.activeElement.id") == "side-panel-title"
        said = await tab.text("#side-panel")
        for expected in (
            "web-0", "Running", "t4-1", "gpu-mem: 5", "8.8 GiB of 5 GiB", "limit not verified", "over its limit for 7 min", "NVIDIA_VISIBLE_DEVICES",
            "GPU-6f1c2f4e", "default/web-0 runs on t4-1, on GPU 0.", "GPUMemoryOverUse", "3 times", "sidecar",
        ):  # fmt: skip
            assert expected in said
        assert "/api/v1/pods/default/web-0" in server.asked
        await tab.press("Escape")
        await tab.until("document.querySelector('#side-panel').hidden && location.search === ''")
        assert await tab.run("document.activeElement.dataset.pod") == "default/web-0"


async def test_a_pod_that_is_not_there_is_said(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        tab.expected = ("404",)
        await tab.click("#waits .pod-name")
        await tab.until("document.querySelector('#side-panel').innerText.includes('no pod training/finetune-70b')")


WAITS = {
    "namespace": "training",
    "name": "finetune-70b",
    "phase": "Pending",
    "containers": [{"name": "main", "asks": {"aliyun.com/gpu-mem": 16}}],
}
STRAY = [
    {"pod": f"research/x{number:02}", "node": "t4-1", "why": stays("no controller would replace it").message()}
    for number in range(12)
]
PLAN: dict[str, Any] = {
    "version": 1,
    "plans": [{"for": "training/finetune-70b", "found": True, "fewestPossible": 1, "exact": False, "moves": [
        {"pod": "default/web-0", "from": {"node": "t4-1", "gpus": [0]}, "to": {"node": "h100-1", "gpus": {"2": 5}}},
        {"pod": HOSTILE, "from": {"node": "t4-1", "gpus": [0, 1]}, "to": {"node": "gone", "gpus": {"0": 2, "1": 2}}},
    ]}],
    "gpus": [
        {"node": "t4-1", "gpu": 0, "before": {"default/web-0": 5}, "freeBefore": 10, "after": {"training/finetune-70b (new)": 15}, "freeAfter": 0},
        {"node": "gone", "gpu": 1, "before": {}, "freeBefore": 4, "after": {HOSTILE: 0}, "freeAfter": 0},
    ],
    "stays": [*STRAY, {"pod": "default/db-0", "node": "h100-1", "why": stays("its PodDisruptionBudget allows no disruption").message()}],
    "verdict": note("plan-fewer", "2 moves make room for {pod}. There may be a plan with fewer.", pod="training/finetune-70b", n=2).message(),
    "notes": [
        note("budgets-unread", "{right}: the API server may refuse evictions that the plan counts on.",
            right=missing_right(Call("list", "poddisruptionbudgets", "policy"))).message(capital=True),
    ],
}  # fmt: skip
PLANNED = "document.querySelector('.plan > p').innerText.length > 0 && !document.querySelector('.plan > p').innerText.endsWith('…')"


async def test_a_plan_for_a_waiting_pod_is_shown_when_it_is_asked_for(browser: Browser) -> None:
    """It stays while the cluster changes, whatever has the focus."""
    pod = ("training", "finetune-70b")
    scene = replace(small(), pods={pod: WAITS, ("default", "web-0"): scenes.web_0()}, plans={pod: PLAN})
    async with opened(browser, scene) as (tab, server):
        await tab.click("#waits .pod-name")
        await tab.until("document.querySelector('.plan button')")
        assert not any("plans" in path for path in server.asked)
        await tab.run("document.querySelector('.plan button').focus()")
        await tab.press("Enter")
        await tab.until(PLANNED)
        assert server.asked[-1] == "/api/v1/plans/training/finetune-70b"
        assert await tab.text(".plan > p[role=status]") == PLAN["verdict"]["text"]
        assert (await tab.text(".plan-moves")).split("\n")[0] == "default/web-0: from t4-1, GPU 0 to h100-1, GPU 2"
        assert await tab.run("document.querySelectorAll('.plan-moves li').length") == 2
        rows = "[...document.querySelectorAll('.plan-gpus tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
        first, second = await tab.run(rows)
        assert first == [
            "t4-1, GPU 0",
            "default/web-0 (5 GiB)\n10 GiB free",
            "training/finetune-70b (15 GiB)\nnothing free",
        ]
        assert second[:2] == ["gone, GPU 1", "4 shares free"]
        assert "(the whole GPU)" in second[2]
        said = await tab.text(".plan-rest")
        assert "no controller would replace it: research/x00" in said
        assert "research/x09, 2 more" in said
        assert "its PodDisruptionBudget allows no disruption: default/db-0" in said
        await tab.run("document.activeElement.blur()")
        server.change(waiting=[*scene.cluster["waiting"]])
        server.change(node("marker", gpu(0, "marker", T4)))
        await tab.until("document.querySelector('[data-node=marker]')")
        await tab.run("new Promise((done) => setTimeout(done, 1200))")
        assert await tab.text(".plan > p[role=status]") == PLAN["verdict"]["text"]
    async with opened(browser, scene, "?lang=zh&pod=training/finetune-70b") as (tab, _):
        await tab.until("document.querySelector('.plan button')")
        await tab.click(".plan button")
        await tab.until(PLANNED)
        said = await tab.text(".plan")
        for expected in (
            "移动 2 次可为 training/finetune-70b 腾出空间",
            "GPU 0 移到 h100-1",
            "没有控制器会重建它",
            "可能拒绝方案所依赖的驱逐",
        ):
            assert expected in said


async def test_why_there_is_no_plan_is_said(browser: Browser) -> None:
    scene = replace(small(), pods={("training", "finetune-70b"): WAITS, ("default", "web-0"): scenes.web_0()})
    async with opened(browser, scene, "?pod=training/finetune-70b") as (tab, _):
        tab.expected = ("403",)
        await tab.until("document.querySelector('.plan button')")
        await tab.click(".plan button")
        await tab.until(PLANNED)
        assert "the right to get pods in the whole cluster is missing" in await tab.text(".plan")
    async with opened(browser, scene, "?pod=default/web-0") as (tab, _):
        await tab.until("document.querySelector('#side-panel:not([hidden]) .events')")
        assert await tab.run("document.querySelector('.plan')") is None


async def test_the_panel_of_a_node_follows_it(browser: Browser) -> None:
    async with opened(browser, small(), "?panel=t4-1") as (tab, server):
        await tab.until("document.querySelector('#side-panel:not([hidden]) .gpu')")
        said = await tab.text("#side-panel")
        for expected in ("2 \u00d7 Tesla T4", "17 GiB of 30 GiB", "binpack", "580.65.06", "10.0.0.7", "default/web-1"):
            assert expected in said
        server.change(node("t4-1", gpu(0, "t4-1", T4, part("default/newcomer", 2, 100))))
        await tab.until("document.querySelector('#side-panel').innerText.includes('default/newcomer')")
        await tab.click("#side-panel details summary")
        await tab.until("document.querySelector('#side-panel pre').innerText.includes('\"name\": \"t4-1\"')")


async def test_the_panel_says_what_keeps_pods_from_a_node(browser: Browser) -> None:
    async with opened(browser, small(), "?panel=l40s-1") as (tab, _):
        await tab.until("document.querySelector('#side-panel:not([hidden]) .facts')")
        assert (await tab.text("#side-panel .facts")).split("\n")[:2] == ["State", "cordoned"]


async def test_claims_are_shown_by_their_pods_and_a_shared_one_opens_the_first(browser: Browser) -> None:
    shared = part("default/web-0+web-1", 4, 100, claims=["both"], pods=["web-0", "web-1"])
    # A list that is empty is a fact here: no pod uses the claim.
    free = {**part("default/claim:spare", 2, claims=["spare"]), "pods": []}
    serves = node("dra", gpu(0, "dra", T4, shared, free), claims=True)
    async with opened(browser, replace(small(), cluster=scenes.cluster(serves))) as (tab, server):
        await tab.until("document.querySelector('.card .badge-claims')")
        assert await tab.text(".card .badge-claims") == "claims (DRA)"
        assert await tab.run("document.querySelectorAll('.part[aria-disabled=true]').length") == 1
        await tab.click('.part[data-pod="default/web-0+web-1"]')
        await tab.until("document.querySelector('#side-panel:not([hidden]) .events')")
        assert await tab.run("location.search.includes('web-0') && !location.search.includes('web-1')")
        # A change of the node is one of the pod that is open.
        server.scene.pods["default", "web-0"]["phase"] = "Succeeded"
        server.change(node("dra", gpu(0, "dra", T4, shared), claims=True))
        await tab.until("document.querySelector('#side-panel').innerText.includes('Succeeded')")


async def test_arrow_keys_move_along_a_bar_and_between_bars(browser: Browser) -> None:
    """Each card is three stops of the Tab key: its name, the badge that explains its limits, and its bars."""
    async with opened(browser, small()) as (tab, _):
        await tab.run("document.querySelector('.card .node-name').focus()")
        await tab.press("Tab")
        assert await tab.text(":focus") == "limits: driver"
        await tab.press("Tab")
        focused = "document.activeElement.dataset.pod"
        assert await tab.run(focused) == "research/llm-eval-0"
        await tab.press("ArrowRight")
        assert await tab.run(focused) == "research/notebook-mara"
        await tab.press("End")
        assert await tab.run(focused) == "serving/embedder-5d9c"
        await tab.press("ArrowDown")
        assert await tab.run(focused) == "training/finetune-7b"
        await tab.press("Tab")
        assert await tab.text(":focus") == "h100-1"


async def test_over_use_turns_red_and_only_its_card_is_written(browser: Browser) -> None:
    """The focus stays on a part that changes, and what is not another node's is left alone."""
    async with opened(browser, small(), clock=False) as (tab, server):
        part_of = '[data-pod="serving/ranker-0"]'
        await tab.run(
            f"document.querySelector('{part_of}').focus(); window.written = new Set();"
            "new MutationObserver((all) => { for (const each of all) window.written.add(each.target.closest?.('.card')?.dataset.node ?? each.target.parentElement?.closest('.card')?.dataset.node); })"
            ".observe(document.querySelector('#cards'), {subtree: true, childList: true, attributes: true, characterData: true})"
        )
        changed = copy.deepcopy(server.scene.node("a100-1"))
        changed["gpus"][2]["pods"][0] |= {"usedMiB": 16000, "overSince": scenes.before(minutes=1)}
        server.change(changed)
        await tab.until(f"document.querySelector('{part_of}').classList.contains('part-over')")
        assert await tab.run("[...window.written]") == ["a100-1"]
        assert await tab.run("document.activeElement.dataset.pod") == "serving/ranker-0"
        assert "over its limit for 60 s" in await tab.run(
            f"document.querySelector('{part_of}').getAttribute('aria-label')"
        )
        assert "2 pods over their limits" in await tab.text("[data-sum=attention]")
        red, green, blue = await tab.run(
            f"getComputedStyle(document.querySelector('{part_of} .excess')).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        )
        assert red > 2 * max(green, blue)


async def test_nodes_come_and_go(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, server):
        server.change(node("b200-1", gpu(0, "b200-1", T4)), gone=("h100-1",), waiting=[])
        await tab.until(
            "document.querySelectorAll('.card').length === 4 && document.querySelector('#cards').innerText.includes('b200-1')"
        )
        assert await tab.texts(".card .node-name") == ["a100-1", "b200-1", "l40s-1", "t4-1"]
        assert await tab.run("document.querySelector('#waiting').hidden")


async def test_a_lost_connection_is_said_and_recovers(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, server):
        tab.expected = ("502",)
        assert (await tab.text("#status")).startswith("live")
        server.refused = 502
        server.cut()
        await tab.until("document.querySelector('#lost-text').innerText.includes('the API server does not answer')")
        assert await tab.text("#said") == "The connection is lost: the server ended the stream."
        assert await tab.texts(".card .node-name") == ["a100-1", "h100-1", "l40s-1", "t4-1"]
        server.refused = 0
        server.change(gone=("t4-1",))
        await tab.click("#lost-now")
        await tab.until("document.querySelector('#lost').hidden && document.querySelectorAll('.card').length === 3")
        assert await tab.text("#said") == "The connection is back."
        assert (await tab.text("#status")).startswith("live")


async def test_an_event_that_is_no_json_ends_the_stream_and_the_next_begins_anew(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, server):
        tab.expected = ("is not valid JSON",)
        server.tell_nonsense()
        await tab.until("!document.querySelector('#lost').hidden")
        server.change(gone=("t4-1",))
        await tab.until("document.querySelector('#lost').hidden && document.querySelectorAll('.card').length === 3")


async def test_a_server_that_is_gone_is_said(browser: Browser) -> None:
    server = PageServer(small())
    async with browser.tab() as tab:
        tab.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
        async with server.serving():
            await tab.open(server.url())
            await tab.until("document.querySelector('.card')")
        await tab.until("document.querySelector('#lost-text').innerText.includes('the server does not answer')")
        assert "old" in await tab.text("#status")
        assert len(await tab.texts(".card")) == 4


async def test_a_stream_that_says_nothing_any_more_counts_as_lost(browser: Browser) -> None:
    """Of its own, with a shorter silence than the page's 10 s."""
    async with opened(browser, small()) as (tab, server):
        why = await tab.run(
            "import('./live.js').then(({Live}) => new Promise((resolve) => {"
            "const live = new Live({event() {}, lost(why) { live.stop(); resolve(why); }, login() {}}, {silenceMs: 200}); live.start(); }))"
        )
        assert why == "silent"
        assert server.streams >= 1


async def test_the_stream_may_be_cut_into_any_pieces(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        text = 'event: a\ndata: {"x": "é"}\n\n: a comment\n\nevent: b\r\ndata: 1\r\ndata: 2\r\n\r\nevent: unfinished\ndata: 3\n'
        found = await tab.run(
            "import('./live.js').then(async ({events}) => { const bytes = new TextEncoder().encode("
            + json.dumps(text)
            + ");"
            "const all = []; for (const size of [1, 2, 3, 7, 1000]) { const got = [];"
            "const stream = new ReadableStream({start(to) { for (let n = 0; n < bytes.length; n += size) to.enqueue(bytes.slice(n, n + size)); to.close(); }});"
            "for await (const each of events(stream)) got.push(each); all.push(JSON.stringify(got)); } return all; })"
        )
        assert set(found) == {
            json.dumps([["a", '{"x": "é"}'], ["b", "1\n2"]], ensure_ascii=False, separators=(",", ":"))
        }


async def test_data_that_the_server_itself_has_not_heard_of_lately_is_said(browser: Browser) -> None:
    async with opened(browser, small(), clock=False) as (tab, server):
        server.tell("pulse", {"read": scenes.read(live=False, age_s=47, why="the watch of pods ended: 500")})
        server.scene.cluster["read"] = scenes.read(live=False, age_s=47, why="the watch of pods ended: 500")
        await tab.until("document.querySelector('#status').innerText.includes('the watch of pods ended: 500')")
        assert "last answered 47 s ago" in await tab.text("#status")


@pytest.mark.parametrize(("width", "language"), [(1280, "en"), (400, "en"), (400, "zh")])
async def test_hostile_names_stay_text_within_their_bounds(browser: Browser, width: int, language: str) -> None:
    """No element is made of them, no direction turned by them, and nothing is wider than the window."""
    async with opened(browser, scenes.hostile()) as (tab, _):
        await tab.size(width, 900)
        for look in (
            "",
            "?view=map",
            f"?pod=evil/{HOSTILE.replace('<', '%3C').replace('>', '%3E').replace(' ', '+')}",
            "?panel=javascript:alert(1)",
        ):
            path = f"/{look or '?'}&lang={language}"
            await tab.run(f"history.replaceState(null, '', '{path}'); dispatchEvent(new PopStateEvent('popstate'))")
            await tab.until("document.querySelector('.card, .tile')")
            if "pod=" in look:
                await tab.until("document.querySelector('#side-panel:not([hidden]) .events')")
            assert await wide(tab) <= 0
            assert await tab.run("document.querySelectorAll('img, body script, b > b, iframe').length") == 0
            said = "document.body.innerText + [...document.querySelectorAll('[aria-label]')].map((each) => each.getAttribute('aria-label')).join()"
            assert await tab.run(f"({said}).match(/[\\u202a-\\u202e\\u0000\\u200b]/)") is None
        assert HOSTILE in await tab.text("#waits")
        assert "\\u202eroom" in await tab.text("#waits")


async def test_every_value_of_a_template_is_text_of_which_each_character_is_seen(browser: Browser) -> None:
    """In texts, attributes, lists and templates within others; what is not there leaves no attribute, and nothing inline."""
    async with opened(browser, small()) as (tab, _):
        found = await tab.run("""
import('./dom.js').then(({ html, keyed, made, rewrite }) => {
  const evil = '<img src=x onerror="x"> \\u202e&amp;';
  const write = (values, width) => html`<p title=${evil} class=${null} data-x=${false} .style=${`width: ${width}`}>
    ${evil}<b>${values.map((each) => [each, html`<i>${each}</i>`])}</b>
    <u>${keyed(values, (each) => each, (each) => each)}</u></p>`;
  const element = made(write([evil, evil, ''], '3px'));
  const before = element.outerHTML.replaceAll(/<!--.*?-->/gs, '');
  rewrite(element, write(['plain'], '4px'));
  return [before, element.querySelector('b').textContent, element.querySelector('u').textContent, element.style.width];
})""")
        text, attribute = (
            '&lt;img src=x onerror="x"&gt; \\u202e&amp;amp;',
            "&lt;img src=x onerror=&quot;x&quot;&gt; \\u202e&amp;amp;",
        )
        assert found[0] in {
            f'<p title="{each}" style="width: 3px;">{text}<b>{text}<i>{text}</i>{text}<i>{text}</i><i></i></b><u>{text}{text}</u></p>'
            for each in (attribute, attribute.replace("&lt;", "<").replace("&gt;", ">"))
        }
        assert found[1:] == ["plainplain", "plain", "4px"]


async def test_the_watch_for_complaints_sees_what_the_policy_forbids(browser: Browser) -> None:
    """Else the tests that find none would say nothing."""
    async with opened(browser, small()) as (tab, _):
        await tab.run(
            "(() => { const each = document.createElement('div'); each.setAttribute('style', 'color: red'); document.body.append(each); })()"
        )
        await tab.until("true")
        await tab.run("setTimeout(() => { throw new Error('a script fails'); })")
        await eventually(lambda: len(tab.complaints) >= 2, "both are seen")
        assert any("Content Security Policy" in each for each in tab.complaints)
        assert any("a script fails" in each for each in tab.complaints)
        tab.complaints.clear()


async def test_it_speaks_the_language_that_is_asked_for_or_preferred(browser: Browser) -> None:
    async with opened(browser, small(), "?lang=zh") as (tab, server):
        assert await tab.run("document.documentElement.lang") == "zh-Hans"
        assert await tab.text("[data-sum=given] h2") == "已分配"
        assert "超过限制" in await tab.text("[data-sum=attention]")
        assert "若此 Pod 结束\uff0ch100-1 将有余量" in await tab.text("#waits")
        await tab.choose("#lang", "en")
        await tab.until(
            "document.querySelector('[data-sum=given] h2').innerText === 'Allocated' && location.search === '?lang=en'"
        )
        await tab.until("document.querySelector('#cards').innerText.includes('limits: driver')")
        await tab.call("Network.setUserAgentOverride", userAgent="test", acceptLanguage="zh-CN,zh;q=0.9")
        await tab.open(server.url())
        await tab.until("document.querySelector('[data-sum=given] h2').innerText === '已分配'")


async def test_dark_is_as_the_system_says_or_as_chosen(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, server):
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await tab.run(ground)
        await tab.prefer(color_scheme="dark")
        dark = await tab.run(ground)
        assert dark != light
        await tab.choose("#theme", "light")
        await tab.until(f"{ground} === {json.dumps(light)}")
        await tab.open(server.url())
        await tab.until(f"{ground} === {json.dumps(light)} && document.querySelector('#theme').value === 'light'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_can_be_read(browser: Browser, scheme: str) -> None:
    """WCAG's contrast of 4.5 to the ground that a text stands on, in every look that a namespace can have."""
    many_namespaces = tuple(part(f"team-{n}/pod-{n}", 1, 300) for n in range(15))
    crowd = node("crowd", *(gpu(n, "crowd", T4, *many_namespaces) for n in range(1)))
    scene = small()
    scene.cluster["nodes"].append(crowd)
    async with opened(browser, scene) as (tab, _):
        await tab.prefer(color_scheme=scheme)
        found = await tab.run(CONTRASTS)
        assert len(found) > 60
        assert [each for each in found if each[0] < 4.5] == []


CONTRASTS = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const ground = (each) => { for (let up = each; up; up = up.parentElement) { const color = rgba(getComputedStyle(up).backgroundColor); if (color[3] > 250) return color; } return [255, 255, 255, 255]; };
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)).reduce((sum, x, n) => sum + x * [0.2126, 0.7152, 0.0722][n], 0);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const each = text.parentElement;
    if (!text.data.trim() || !each.checkVisibility({visibilityProperty: true}) || each.closest('select, .unseen, .skip, .part-dim, noscript')) continue;
    const [a, b] = [light(rgba(getComputedStyle(each).color)), light(ground(each))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), text.data, each.className]);
  }
  return found;
})()"""


async def test_a_thousand_nodes_with_eight_gpus_are_a_map(browser: Browser) -> None:
    async with opened(browser, many(), clock=False) as (tab, server):
        assert await tab.run(
            "[document.querySelectorAll('.tile').length, document.querySelectorAll('.cell').length]"
        ) == [1000, 8000]
        assert await tab.run(
            "[...document.querySelectorAll('.cell')].every((each) => each.getAttribute('aria-label').startsWith('gpu-'))"
        )
        await tab.run(
            "window.written = new Set(); new MutationObserver((all) => { for (const each of all) window.written.add(each.target.closest('.tile')?.dataset.node); })"
            ".observe(document.querySelector('#map'), {subtree: true, childList: true, attributes: true})"
        )
        changed = copy.deepcopy(server.scene.node("gpu-0003"))
        changed["gpus"][0] = gpu(
            0, "gpu-0003", scenes.H100, part("ads/over", 10, 20000, overSince=scenes.before(minutes=2))
        )
        server.change(changed)
        await tab.until("document.querySelector('[data-node=gpu-0003] .cell').classList.contains('cell-over')")
        assert await tab.run("[...window.written]") == ["gpu-0003"]
        await tab.run("document.querySelector('.cell').focus()")
        await tab.press("ArrowRight")
        assert (await tab.run("document.activeElement.getAttribute('aria-label')")).startswith("gpu-0000, GPU 1: ")
        await tab.press("ArrowDown", "ArrowUp", "Home", "Enter")
        await tab.until(
            "document.querySelector('#side-panel:not([hidden]) .gpu') && location.search === '?panel=gpu-0000'"
        )
        await tab.press("Escape")
        await tab.until("document.activeElement.classList.contains('cell')")
        await tab.run("document.querySelector('#view input[value=cards]').click()")
        await tab.until(
            "document.querySelectorAll('.card').length === 1000 && document.querySelectorAll('.part').length > 10"
        )
        assert await tab.run("document.querySelectorAll('.card .gpu').length") < 8000


@pytest.mark.parametrize("query", ["", "?view=map", "?pod=default/web-0", "?panel=a100-1", "?lang=zh"])
async def test_everything_has_a_name_for_a_screen_reader(browser: Browser, query: str) -> None:
    """The bars, the parts, the cells, and all that one can press or choose."""
    async with opened(browser, small(), query, clock=False) as (tab, _):  # the tree and the names are read one by one
        if "=" in query and "map" not in query and "lang" not in query:
            await tab.until("document.querySelector('#side-panel:not([hidden]) section')")
        drawn = "[...document.querySelectorAll('.bar, .part, .cell')].filter((each) => each.checkVisibility())"
        await tab.until(f"{drawn}.length >= 12")
        tree = await tab.accessible()
        pressed = {"button", "combobox", "searchbox", "textbox", "radio", "checkbox", "dialog", "link", "img", "image"}
        assert [each for each in tree if each[0] in pressed and not each[1]] == []
        names = {name for _, name in tree}
        labels = await tab.run(f"{drawn}.map((each) => each.getAttribute('aria-label'))")
        assert len(labels) >= 12
        assert [label for label in labels if not label or label not in names] == []
        if not query:
            assert any(
                "GPU 0, Tesla T4: 10 GiB of 15 GiB allocated, 13.3 GiB used, 5 GiB free" in label for label in labels
            )


@pytest.mark.parametrize("query", ["", "?view=map", "?pod=default/web-0", "?panel=a100-1"])
async def test_it_fits_a_narrow_screen(browser: Browser, query: str) -> None:
    async with opened(browser, small(), query) as (tab, _):
        await tab.size(400, 800)
        assert await wide(tab) <= 0
        await tab.size(320, 800)
        assert await wide(tab) <= 0


async def test_nothing_moves_for_those_who_want_that(browser: Browser) -> None:
    async with opened(browser, small(), "?pod=default/web-0") as (tab, _):
        moving = "getComputedStyle(document.querySelector('#side-panel')).animationName"
        assert await tab.run(moving) == "slide"
        await tab.prefer(reduced_motion="reduce")
        assert await tab.run(moving) == "none"


async def test_a_token_is_asked_for_where_there_is_none(browser: Browser) -> None:
    server = PageServer(small())
    async with server.serving(), browser.tab() as tab:
        tab.expected = ("401",)
        await tab.open(server.url(token=None))
        await tab.until("!document.querySelector('#login').hidden && document.activeElement.id === 'token'")
        assert "kubectl create token" in await tab.text("#login")
        await tab.type("wrong 令牌")
        await tab.press("Enter")
        # Without being shown it has this text before.
        await tab.until("document.querySelector('#login-why').checkVisibility()")
        assert await tab.text("#login-why") == "This token was not accepted."
        await tab.type(TOKEN)
        await tab.press("Enter")
        await tab.until("document.querySelector('#login').hidden && document.querySelector('.card')")
        assert TOKEN not in await tab.run(
            "location.href + document.body.innerHTML + document.querySelector('#token').value"
        )


async def test_a_page_opened_without_its_token_says_what_to_do(browser: Browser) -> None:
    server = PageServer(small(), login="")
    async with server.serving(), browser.tab() as tab:
        tab.expected = ("401",)
        await tab.open(server.url(token=None))
        await tab.until(
            "document.querySelector('#login-why').innerText.includes('Open the address that the command printed')"
        )
        assert not await tab.run("document.querySelector('#token').checkVisibility()")


async def test_a_new_address_pasted_into_an_old_tab_is_followed(browser: Browser) -> None:
    """Only its fragment is another, so the browser loads nothing."""
    server = PageServer(small(), login="")
    async with server.serving(), browser.tab() as tab:
        tab.expected = ("401",)
        await tab.open(server.url(token=None))
        await tab.until("!document.querySelector('#login').hidden")
        await tab.run(f"location.hash = 'token={TOKEN}'")
        await tab.until("document.querySelector('#login').hidden && document.querySelector('.card')")
        assert await tab.run("location.hash") == ""


async def test_a_person_who_may_not_read_nodes_sees_his_pods(browser: Browser) -> None:
    scene = Scene(scenes.cluster(notes=("nodes cannot be read: forbidden",), source="none"))
    scene.cluster["alone"] = [
        {"namespace": "default", "name": "web-0", "node": "t4-1", "shares": 5, "phase": "Running"},
        {"namespace": "default", "name": "big", "wholeGpus": 2},
        {"namespace": "default", "name": "apart", "instances": {"aliyun.com/mig-1g.10gb": 2}},
    ]
    async with opened(browser, scene) as (tab, _):
        assert "nodes cannot be read: forbidden" in await tab.text("#notes")
        shown = await tab.text("#alones")
        assert "default/web-0" in shown
        assert "5 shares" in shown
        assert "2 \u00d7 whole GPU" in shown
        assert "2 \u00d7 aliyun.com/mig-1g.10gb" in shown
        shown_sums = await sums(tab)
        assert {shown_sums[name] for name in ("given", "free", "largest", "whole", "attention")} == {"\u2013"}
        assert "all is as it should be" not in await tab.text("#sums")


async def test_where_only_allocation_is_known_no_use_is_shown(browser: Browser) -> None:
    """Unknown is not zero."""
    plain: dict[str, Any] = copy.deepcopy(small().cluster)
    for each in plain["nodes"]:
        each.pop("use")
    plain["nodes"] = [summed(each) for each in plain["nodes"]]
    plain["figures"] = {"source": "none", "why": "agents cannot be reached"}
    async with opened(browser, Scene(plain)) as (tab, _):
        assert "Usage is unknown; the page shows allocations only. Agents cannot be reached" in await tab.text("#notes")
        assert (await sums(tab))["used"] == "\u2013"
        assert "usage is unknown" in await tab.text("[data-sum=used]")
        assert await tab.run("[...document.querySelectorAll('.meter')].every((each) => each.hidden)")
        assert " used" not in await tab.text(".gpus")


async def test_a_page_is_told_nothing_of_agents_that_had_no_time_to_answer_yet(browser: Browser) -> None:
    early: dict[str, Any] = copy.deepcopy(small().cluster)
    early["figures"] = {"source": "nodes"}
    scene = Scene(early)
    async with opened(browser, scene) as (tab, server):
        await tab.until("document.querySelector('.card .part')")
        assert await tab.run("document.querySelector('#notes').hidden")
        server.change(figures={"source": "nodes", "why": "no node agent can be read"})
        await tab.until("document.querySelector('#notes').innerText.includes('No node agent can be read')")


async def test_the_sum_of_use_says_of_how_many_gpus_it_is_known(browser: Browser) -> None:
    """A GPU of which it is unknown counts as none, not as an empty one. t4-1 uses 13,633 MiB of GPU 0."""
    scene = small()
    gpus = scene.node("t4-1")["gpus"]
    gpus[1].pop("usedMiB", None)
    scene.cluster["nodes"] = [summed(each) for each in scene.cluster["nodes"]]
    async with opened(browser, scene, "?node=t4-1") as (tab, server):
        used = await tab.text("[data-sum=used]")
        assert "13.3 GiB" in used
        assert f"known for 1 of {len(gpus)} GPUs" in used
        assert "of the allocated memory" not in used
        changed = copy.deepcopy(server.scene.node("t4-1"))
        changed["gpus"][1]["usedMiB"] = 0
        server.change(summed(changed))
        await tab.until("document.querySelector('[data-sum=used]').innerText.includes('of the allocated memory')")
        assert "13.3 GiB" in await tab.text("[data-sum=used]")
        for each in changed["gpus"]:
            each.pop("usedMiB")
        server.change(summed(changed))
        await tab.until("document.querySelector('[data-sum=used] .sum-value').innerText === '\u2013'")
        await tab.choose("#lang", "zh")
        changed["gpus"][0]["usedMiB"] = 2048
        server.change(summed(changed))
        await tab.until("document.querySelector('[data-sum=used]').innerText.includes('2 块 GPU 中已知 1 块')")


async def test_the_use_of_a_namespace_is_summed_where_all_its_pods_are_known(browser: Browser) -> None:
    """5 GiB are given to a/x and 3 to a/y, on a GPU each with b/z, whose use nobody knows."""
    first = gpu(0, "n", T4, part("a/x", 5, 3072), part("b/z", 4))
    second = gpu(1, "n", T4, part("a/y", 3, 1024))
    first["pods"][1].pop("usedMiB")
    async with opened(browser, Scene(scenes.cluster(node("n", first, second))), "?ns=a") as (tab, server):
        assert (await sums(tab))["used"] == "4 GiB"
        assert "50 % of the allocated memory" in await tab.text("[data-sum=used]")
        changed = copy.deepcopy(server.scene.node("n"))
        changed["gpus"][1]["pods"][0].pop("usedMiB")
        server.change(changed)
        await tab.until("document.querySelector('[data-sum=used]').innerText.includes('known for 1 of 2 GPUs')")
        assert (await sums(tab))["used"] == "3 GiB"
        await tab.choose("#f-ns", "b")
        await tab.until("document.querySelector('[data-sum=used]').innerText.includes('usage is unknown')")
        assert (await sums(tab))["used"] == "\u2013"


async def test_a_pod_of_another_namespace_is_shown_without_its_name(browser: Browser) -> None:
    async with opened(browser, small(), "?node=t4-1") as (tab, server):
        label = await tab.run("document.querySelector('.part.look-none').getAttribute('aria-label')")
        assert label.startswith("a pod that you may not see, 4 GiB allocated")
        await tab.click(".part.look-none")
        assert await tab.run("document.querySelector('#side-panel').hidden")
        await tab.click(WEB_0)
        await tab.until("document.querySelector('#side-panel:not([hidden]) .events')")
        assert [path for path in server.asked if "/pods/" in path] == ["/api/v1/pods/default/web-0"]


async def test_the_map_shows_what_is_given_or_what_is_used(browser: Browser) -> None:
    """GPU 0 of t4-1: 10 of 15 GiB given, 13,633 of 15,360 MiB used."""
    async with opened(browser, small(), "?view=map&node=t4-1") as (tab, _):
        height = "document.querySelector('.cell').style.getPropertyValue('--part')"
        assert await tab.run(height) == "67%"
        await tab.run("document.querySelector('#by input[value=used]').click()")
        await tab.until("location.search.includes('by=used')")
        await tab.until(f"{height} === '89%'")


async def test_a_large_event_is_parsed_in_pieces_as_a_whole_one_is(browser: Browser) -> None:
    """Of any size of the pieces; also with texts that look like the beginning of a node, and written in another way."""
    odd = node("},{", gpu(0, "x", T4, part('a},{"name":/b', 3)), problem='},{"name":"no node"}]')
    compact = json.dumps(scenes.cluster(*small().cluster["nodes"], odd), separators=(",", ":"))
    texts = [compact, json.dumps(small().cluster), '{"nodes":[{"name":"a","x":[{"y":1},{"name":2}]}],"gone":[]}']
    async with opened(browser, small()) as (tab, _):
        for text in texts:
            same = await tab.run(
                f"import('./parsing.js').then(async (it) => {{ const text = {json.dumps(text)}; const found = [];"
                "for (const piece of [1, 10, 100, 1000, 5000, 1e6]) found.push(JSON.stringify(await it.parsed(text, piece)) === JSON.stringify(JSON.parse(text)));"
                "return found; })"
            )
            assert same == [True] * 6
        tab.expected = ("JSON",)
        failed = f"import('./parsing.js').then((it) => it.parsed({json.dumps(compact[:-1])}, 10)).then(() => '', (error) => error.name)"
        assert await tab.run(failed) == "SyntaxError"


async def test_work_in_slices_lets_others_have_their_turn_and_is_done_anew_when_asked(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        found = await tab.run("""
import('./slices.js').then(({ Slices }) => new Promise((resolve) => {
  const log = [];
  let passes = 0;
  const busy = (ms) => { const until = performance.now() + ms; while (performance.now() < until); };
  const work = new Slices(function* () {
    const pass = (passes += 1);
    log.push(`pass ${pass}`);
    for (let step = 1; step <= 3; step += 1) { busy(20); log.push(`${pass}.${step}`); yield; }
  }, { done: () => {
    log.push('done');
    if (passes === 3) resolve([log, between]);
  } });
  let between = 0;
  const count = () => { between += 1; if (passes === 1) work.ask(); else if (passes === 2 && log.at(-1) === '2.1') work.restart(); setTimeout(count); };
  work.ask();
  work.ask();
  setTimeout(count);
}))""")
        log, between = found
        assert log == ["pass 1", "1.1", "1.2", "1.3", "done", "pass 2", "2.1", "pass 3", "3.1", "3.2", "3.3", "done"]
        assert between >= 3


async def test_the_newest_state_is_shown_however_changes_come_while_the_page_is_written(browser: Browser) -> None:
    """Of 400 nodes with changes, additions and removals in quick succession every tile ends as its node is, in order."""
    async with opened(browser, many(400, 4)) as (tab, server):
        for n in range(8):
            changed = copy.deepcopy(server.scene.cluster["nodes"][n::3])
            for each in changed:
                last = len(each["gpus"]) - 1
                each["gpus"][last] = gpu(last, each["name"], scenes.H100, part(f"ads/round-{n}", 10 + n, 500))
            server.change(*changed, node(f"gpu-0{n}00-new", gpu(0, "x", T4)), gone=(f"gpu-00{n}5",))
            await tab.run(f"document.querySelector('#view input[value={('cards', 'map')[n % 2]}]').click()")
        names = sorted(each["name"] for each in server.scene.cluster["nodes"])
        await tab.until(f"document.querySelectorAll('#map .tile').length === {len(names)}")
        told = {
            each["name"]: [str(card.get("usedShares", 0)) for card in each["gpus"]]
            for each in server.scene.cluster["nodes"]
        }
        shown = "Object.fromEntries([...document.querySelectorAll('#map .tile')].map((tile) => [tile.dataset.node, [...tile.querySelectorAll('.cell')].map((cell) => cell.getAttribute('aria-label').match(/[:,] ([0-9]+) GiB of/)?.[1])]))"
        await eventually(lambda: _equal(tab, shown, told), "all tiles are as their nodes")
        assert await tab.run("[...document.querySelectorAll('#map .tile')].map((tile) => tile.dataset.node)") == names


async def _equal(tab: Tab, script: str, expected: Any) -> bool:
    return bool(await tab.run(script) == expected)


async def test_what_somebody_types_stays_while_the_cluster_changes(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, server):
        await tab.click("#f-q")
        await tab.run(
            "const field = document.querySelector('#f-q'); window.lost = 0; let typed = '';"
            "window.typing = setInterval(() => { if (field.value !== typed) window.lost += 1; typed = field.value + 'x'; field.value = typed; field.dispatchEvent(new Event('input', {bubbles: true})); }, 20)"
        )
        for _ in range(5):
            await tab.run("performance.clearMeasures('gpushare:show')")
            server.change(server.scene.node("t4-1"))
            await tab.until("performance.getEntriesByName('gpushare:show').length > 0")
        await tab.run("clearInterval(window.typing)")
        assert await tab.run("window.lost") == 0
        await tab.until("location.search.includes('q=xxx')")


@contextlib.asynccontextmanager
async def asking(browser: Browser, scene: Scene, query: str = "") -> AsyncIterator[tuple[Tab, PageServer]]:
    """Open the page of a server that asks what is looked at."""
    server = PageServer(copy.deepcopy(scene))
    server.stream = "stream-1"
    async with server.serving(), browser.tab() as tab:
        await tab.open(server.url(query))
        yield tab, server


async def test_the_page_tells_which_nodes_are_in_the_window(browser: Browser) -> None:
    """Once it has come to rest, and again when something else is in it; nothing is told twice."""
    async with asking(browser, many(400, 4)) as (tab, server):
        # At first the nodes that have come by then, whichever part of all that is.
        await eventually(lambda: server.views and len(server.views[-1]["nodes"]) > 50)
        told = server.views[-1]
        assert told["stream"] == "stream-1"
        names = [each["name"] for each in server.scene.cluster["nodes"]]
        assert told["nodes"] == names[: len(told["nodes"])]
        assert len(told["nodes"]) < 400
        await tab.until("document.querySelectorAll('[data-node]').length >= 400")
        await tab.run("scrollTo(0, document.body.scrollHeight)")
        await eventually(lambda: server.views[-1]["nodes"][-1] == names[-1])
        assert names[0] not in server.views[-1]["nodes"]
        count = len(server.views)
        await tab.run("performance.clearMeasures('gpushare:show')")
        server.change(server.scene.node("gpu-0007"))
        await tab.until("performance.getEntriesByName('gpushare:show').length > 0")
        await tab.run("new Promise((done) => setTimeout(done, 1200))")
        assert len(server.views) == count
        server.stream = "stream-2"
        server.cut()
        await eventually(lambda: server.views[-1]["stream"] == "stream-2")


async def test_what_is_asked_for_counts_as_looked_at(browser: Browser) -> None:
    """What the filters let through, and before all the node of the side panel."""
    async with asking(browser, many(400, 4), "?node=gpu-03&view=cards&panel=gpu-0399") as (tab, server):
        await eventually(lambda: server.views and len(server.views[-1]["nodes"]) == 100)
        assert server.views[-1]["nodes"][:2] == ["gpu-0399", "gpu-0300"]
        await tab.choose("#f-node", "gpu-0007")
        await eventually(lambda: server.views[-1]["nodes"] == ["gpu-0399", "gpu-0007"])


async def test_the_node_of_an_open_pod_counts_as_looked_at(browser: Browser) -> None:
    async with asking(browser, small(), "?pod=default/web-0&node=h100-1") as (_, server):
        await eventually(lambda: server.views and server.views[-1]["nodes"] == ["t4-1", "h100-1"])


async def test_many_nodes_with_long_names_are_told_in_part(browser: Browser) -> None:
    names = [f"{'n' * 200}-{number:03}" for number in range(600)]
    scene = Scene(scenes.cluster(*(node(name, gpu(0, name, T4)) for name in [*names, "other"])))
    async with asking(browser, scene, "?q=nnn") as (_, server):
        await eventually(lambda: server.views and len(server.views[-1]["nodes"]) > 200)
        assert len(server.views[-1]["nodes"]) < 300
        assert len(json.dumps(server.views[-1])) < 50_000


# --- What a person looks for ------------------------------------------------------------------------------------------


async def test_every_filter_narrows_all_that_stands_below_it(browser: Browser) -> None:
    """Tiles, lists, names and nodes alike. web-0 has 5 of the 30 GiB of its node, and its node 13 GiB free."""
    async with opened(browser, small(), "?q=web-0") as (tab, _):
        shown = await sums(tab)
        assert [shown[name] for name in ("given", "used", "free", "waiting", "attention")] == [
            "5 GiB",
            "8.8 GiB",
            "13 GiB",
            "0",
            "1",
        ]
        assert "of 30 GiB" in await tab.text("[data-sum=given]")
        assert await tab.texts("#problems .pod-name") == ["default/web-0"]
        assert await tab.texts(".key-name") == ["default", "research"]
        assert await tab.run("document.querySelector('#waiting').hidden")
        assert await tab.text("#shown") == "1 of 4 nodes: the filters narrow everything below"
    async with opened(browser, small(), "?ns=training") as (tab, _):
        shown = await sums(tab)
        assert (shown["given"], shown["waiting"], shown["attention"]) == ("119 GiB", "1", "0")
        assert await tab.texts("#waits .pod-name") == ["training/finetune-70b"]
    async with opened(browser, small(), "?ns=default&trouble=1") as (tab, _):
        shown = await sums(tab)
        assert (shown["given"], shown["whole"], shown["attention"]) == ("13 GiB", "0", "1")
        assert await tab.texts("#problems .pod-name") == ["default/web-0"]
    async with opened(browser, small(), "?ns=vision&trouble=1") as (tab, _):
        assert await tab.texts(".card .node-name") == [], "what is wrong on its node concerns others"
    async with opened(browser, small(), "?node=h100-1") as (tab, _):
        shown = await sums(tab)
        assert (shown["given"], shown["attention"], shown["waiting"]) == ("179 GiB", "0", "\u2013")
        assert "no problems" in await tab.text("[data-sum=attention]")
        assert "pending pods have no node yet" in await tab.text("[data-sum=waiting]")
        assert await tab.text("#calm") == "no problems, no pod is pending"


async def test_it_begins_calmly_and_alarms_only_after_something_was_there(browser: Browser) -> None:
    """While the cluster is read for the first time nothing is red, and a server that does not answer yet is not lost."""
    scene = Scene(cluster())
    scene.cluster["read"] = scenes.read(live=False, why="") | {
        "why": note("being-read", "the cluster is being read").message()
    }
    server = PageServer(scene)
    async with server.serving(), browser.tab() as tab:
        tab.expected = ("502",)
        server.refused = 502
        await tab.open(server.url())
        await tab.until(
            "document.querySelector('#lost-text').innerText.includes('Not connected yet: the API server does not answer.')"
        )
        red = "document.querySelectorAll('.status-bad, .banner-bad:not([hidden]), .sum-bad').length"
        assert await tab.run(red) == 0
        server.refused = 0
        await tab.click("#lost-now")
        await tab.until("document.querySelector('#lost').hidden")
        await tab.until("document.querySelector('#status').innerText === 'reading the cluster'")
        assert await tab.run(red) == 0
        await tab.until("document.querySelector('#empty').innerText === 'Reading the cluster …'")
        assert set((await sums(tab)).values()) == {"\u2013"}, "not even that nothing is pending is known"
        assert await tab.text("#shown") == ""
        scene.cluster["read"] = scenes.read()
        server.change(node("t4-9", gpu(0, "t4-9", T4)))
        await tab.until("document.querySelector('.status-live') && document.querySelector('.card')")
        scene.cluster["read"] = scenes.read(live=False, age_s=47, why="the watch of pods ended: 500")
        await tab.until("document.querySelector('.status-bad')?.innerText.includes('the watch of pods ended')")


async def test_an_agent_is_missed_only_once_it_has_served(browser: Browser) -> None:
    """Before that its node says that it does not serve yet. That it has gone is a problem, in either language."""
    away = node("t4-9", gpu(0, "t4-9", T4), problem=AWAY)
    async with opened(browser, Scene(cluster(away))) as (tab, server):
        assert "its GPU agent does not serve yet" in await tab.text(".card .note-warn")
        assert (await sums(tab))["attention"] == "0"
        server.change(node("t4-9", gpu(0, "t4-9", T4)))
        await tab.until("!document.querySelector('.card .note')")
        server.change(away)
        await tab.until(
            "document.querySelector('.card .note-bad')?.innerText.includes('has ended, or is being restarted')"
        )
        assert await tab.texts("[data-sum=attention] .link") == ["1 node with a problem"]
        await tab.choose("#lang", "zh")
        await tab.until("document.querySelector('#problems').innerText.includes('正在重启')")


async def test_why_a_pod_is_pending_is_a_row_with_a_bar_for_each_gpu(browser: Browser) -> None:
    """As the server explains it: of 15 shares web holds 8, and the other GPU has failed with 7 in use."""
    web, hidden = pod_on("ml/web", {0: 8, 1: 4}), pod_on("(hidden)/1", {1: 3})
    view = node_view("n0", (15, 15), web, hidden, unhealthy={1: "XID 48"})
    main = Container("main", ContainerKind.APP, 0, {RESOURCES[0].name: 12})
    asked = ask(Pod("u", "training", "finetune-70b", containers=(main,)), RESOURCES)
    assert isinstance(asked, GpuRequest)
    told = explain(answers([(view, asked, Kept())], "binpack", 1), 1)
    pods = {("training", "finetune-70b"): WAITS | {"why": [each.message() for each in told]}}
    async with opened(browser, replace(small(), pods=pods), "?pod=training/finetune-70b") as (tab, server):
        await tab.until("document.querySelector('.why-gpu')")
        assert await tab.run("document.querySelector('#side-panel pre')") is None
        rows = "[...document.querySelectorAll('.why-gpu')].map((row) => [...row.children].filter((each) => each.innerText).map((each) => each.innerText))"
        assert await tab.run(rows) == [
            ["GPU 0 Tesla T4", "7 GiB of 15 GiB free", "too little free, held by ml/web (8 GiB)"],
            [
                "GPU 1 Tesla T4",
                "none of 15 GiB free",
                "unhealthy: XID 48, held by a pod that you may not see (3 GiB), ml/web (4 GiB)",
            ],
        ]
        widths = await tab.run(
            "[...document.querySelectorAll('.why-gpu .bar')].map((bar) => bar.querySelector('.why-part').getBoundingClientRect().width / bar.getBoundingClientRect().width)"
        )
        assert widths == pytest.approx([8 / 15, 3 / 15], abs=0.02)
        assert await tab.run("[...document.querySelectorAll('.why-bad')].length") == 1
        assert await tab.run("document.querySelector('.why-gpu .bar').getAttribute('aria-label')") == (
            "GPU 0: 7 GiB of 15 GiB free, too little free, held by ml/web (8 GiB)"
        )
        assert (await tab.text(".why .wait-room")).startswith("There would be room if this pod ended: ml/web")
        await tab.open(server.url("?lang=zh&pod=training/finetune-70b"))
        await tab.until("document.querySelector('.why-gpu')?.innerText.includes('空闲不足')")
        await tab.until("document.querySelector('.why-bad').innerText.includes('无权查看的 Pod')")


async def test_a_gpu_that_has_failed_looks_so_although_it_is_full(browser: Browser) -> None:
    """On its card and on the map, and its size is not offered as if it were free."""
    full = gpu(0, "t4-9", T4, part("a/x", 15, 3000), reason="XID 48")
    async with opened(browser, Scene(cluster(node("t4-9", full, gpu(1, "t4-9", T4))))) as (tab, _):
        assert (await tab.texts(".gpu-sum"))[0].split("\n") == ["unhealthy", "15 GiB of 15 GiB"]
        edge = "getComputedStyle(document.querySelector('.bar'), '::after')"
        assert await tab.run(f"[{edge}.borderTopStyle, {edge}.borderTopWidth]") == ["solid", "2px"]
        red, green, blue = await tab.run(f"{edge}.borderTopColor.match(/\\d+/g).slice(0, 3).map(Number)")
        assert red > 2 * max(green, blue)
        named = await tab.run("document.querySelector('.bar').getAttribute('aria-label')")
        assert named == "GPU 0, Tesla T4: unhealthy: XID 48, 15 GiB of 15 GiB allocated, 2.9 GiB used"
        await tab.key("m")
        await tab.until("document.querySelector('.cell')")
        looks = await tab.run(
            "[...document.querySelectorAll('.cell')].map((each) => getComputedStyle(each).backgroundImage)"
        )
        assert looks[0].startswith("repeating-linear-gradient")
        assert looks[1].startswith("linear-gradient")


async def test_twelve_nodes_are_a_map_that_fills_the_window_and_keys_change_the_view(browser: Browser) -> None:
    async with opened(browser, many(11, 4)) as (tab, server):
        assert await tab.run("document.querySelectorAll('.card').length") == 11
        server.change(node("new", gpu(0, "new", T4)))
        await tab.until("document.querySelectorAll('.tile').length === 12 && document.querySelector('#cards').hidden")
        bottom, height = await tab.run(
            "[document.querySelector('#map').getBoundingClientRect().bottom + scrollY, innerHeight]"
        )
        assert 0.8 * height < bottom < height
        # What a node has had since the page was opened: a line that grows at its end.
        await tab.until("[...document.querySelectorAll('.trend path')].every((each) => each.getAttribute('d').length)")
        assert (await tab.texts(".tile-sum"))[-1] == "0 %"
        await tab.key("c")
        await tab.until("!document.querySelector('#cards').hidden && location.search === '?view=cards'")
        await tab.key("m")
        await tab.until("!document.querySelector('#map').hidden && location.search === '?view=map'")


async def test_the_line_of_a_node_ends_at_its_newest_value_and_has_gaps(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        found = await tab.run(
            "import('./trends.js').then(({ Trends }) => { const trends = new Trends(); const taken = [];"
            "const node = (usedMiB) => ({ name: 'n', use: { at: 'now' }, sums: { totalMiB: 100, givenMiB: 50, usedMiB } });"
            "for (const [n, used] of [0, 100, undefined, 100].entries()) taken.push(trends.take([node(used)], n * 10_000), trends.take([node(7)], n * 10_000 + 1));"
            "return [taken, trends.path('n', 'used'), trends.path('n', 'given'), trends.path('other', 'used')]; })"
        )
        assert found == [
            [True, False] * 4,
            "M40.0,19.0h-0.1L60.0,1.0M100.0,1.0h-0.1",
            "M40.0,10.0h-0.1L60.0,10.0L80.0,10.0L100.0,10.0",
            "",
        ]


@pytest.mark.parametrize("width", [1440, 1280, 1024, 700, 390])
async def test_nothing_jumps_when_a_filter_or_the_view_changes(browser: Browser, width: int) -> None:
    """Neither the fields and switches, nor the tiles, whatever stands in them."""
    async with opened(browser, small(), clock=False) as (tab, _):
        await tab.size(width, 900)
        places = (
            "[...document.querySelectorAll('#filters select, #filters input:not([type=radio]), #view, .sum')].map((each) => {"
            "const { left, top, width } = each.getBoundingClientRect(); return [left, top + scrollY, width].map(Math.round); })"
        )
        before = await tab.run(places)
        await tab.key("m")
        await tab.until("!document.querySelector('#map').hidden")
        assert await tab.run(places) == before
        await tab.choose("#f-ns", "training")
        await tab.until("document.querySelector('.is-filtered')")
        assert await tab.run(places) == before
        lines = {top for _, top, _ in (await tab.run(places))[:6]}
        assert len(lines) <= 3, lines


async def test_room_that_is_physically_taken_is_said(browser: Browser) -> None:
    """13 shares are free of a GPU of 15, on which pods use 10 of 15 GiB."""
    greedy = gpu(0, "t4-9", T4, part("a/x", 2, 10240, overSince=scenes.before(minutes=1)))
    async with opened(browser, Scene(cluster(node("t4-9", greedy)))) as (tab, _):
        tile = await tab.text("[data-sum=largest]")
        assert "13 GiB" in tile
        assert "on t4-9, GPU 0, 5 GiB physically free" in tile
        assert await tab.run("document.querySelector('[data-sum=largest]').classList.contains('sum-warn')")


async def test_each_problem_leads_to_what_it_is_about(browser: Browser) -> None:
    scene = small()
    scene.cluster["nodes"].append(node("down-1", gpu(0, "down-1", T4), ready=False))
    async with opened(browser, scene) as (tab, _):
        assert await tab.texts("#problems .pod-name") == [
            "default/web-0",
            "research/stray",
            "a100-1, GPU 3",
            "speech/tts-0",
            "down-1",
        ]
        assert await tab.texts("[data-sum=attention] .link") == [
            "1 pod over its limit",
            "1 pod on a GPU not assigned to it",
            "1 GPU unhealthy",
            "1 driver limit not as granted",
            "1 node with a problem",
        ]
        await tab.click("[data-sum=attention] li:nth-child(3) .link")
        assert await tab.run("document.activeElement.innerText") == "a100-1, GPU 3"
        await tab.press("Enter")
        await tab.until("location.search === '?panel=a100-1'")
        await tab.press("Escape")
        await tab.click("#problems [data-kind=over] .pod-name")
        await tab.until("location.search === '?pod=default/web-0'")


async def test_the_title_of_the_tab_says_how_many_problems_there_are(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, server):
        await tab.until("document.title === '(4) GPU shares · prod-eu'")
        server.tell("cluster", cluster(node("t4-9", gpu(0, "t4-9", T4))))
        await tab.until("document.title === 'GPU shares · prod-eu'")


async def test_keys_lead_to_the_search_and_to_the_list_of_keys(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        await tab.key("/")
        assert await tab.run("document.activeElement.id") == "f-q"
        await tab.key("a")
        await tab.key("/")  # in a field it is a letter
        assert await tab.run("document.querySelector('#f-q').value") == "a/"
        await tab.run("document.activeElement.blur()")
        await tab.key("?")
        await tab.until("document.querySelector('#side-panel:not([hidden])')?.innerText.includes('show this list')")
        await tab.press("Escape")
        await tab.until("document.querySelector('#side-panel').hidden")


async def test_nodes_are_sorted_as_it_is_asked(browser: Browser) -> None:
    """Given: a100-1 98 of 160, h100-1 179 of 316, l40s-1 44 of 88, t4-1 17 of 30. Free for pods: 22, 137, 0, 13 GiB."""
    async with opened(browser, small(), "?view=map&sort=full") as (tab, _):
        tiles = "[...document.querySelectorAll('.tile-name')].map((each) => each.textContent)"
        assert await tab.run(tiles) == ["a100-1", "t4-1", "h100-1", "l40s-1"]
        await tab.choose("#f-sort", "free")
        await tab.until(
            "document.querySelector('.tile-name').textContent === 'h100-1' && location.search.includes('sort=free')"
        )
        assert await tab.run(tiles) == ["h100-1", "a100-1", "t4-1", "l40s-1"]
        await tab.choose("#f-sort", "trouble")
        await tab.until("document.querySelector('.tile-name').textContent === 't4-1'")
        assert await tab.run(tiles) == ["t4-1", "a100-1", "l40s-1", "h100-1"]


async def test_the_map_tells_a_cordoned_node_from_one_that_is_not_ready(browser: Browser) -> None:
    """By a line and by a sign, in the legend too, and in words for whoever does not see them."""
    scene = small()
    scene.cluster["nodes"].append(node("down-1", gpu(0, "down-1", T4), ready=False))
    async with opened(browser, scene, "?view=map") as (tab, _):
        look = "getComputedStyle(document.querySelector('[data-node={}] .tile-name'){}).{}"
        assert await tab.run(look.format('"l40s-1"', "", "textDecorationLine")) == "line-through"
        assert await tab.run(look.format('"down-1"', "", "textDecorationLine")) == "none"
        assert "✕" in await tab.run(look.format('"down-1"', ", '::before'", "content"))
        assert await tab.texts(".on-map-only li:is(.sign-cordoned, .sign-down)") == ["cordoned", "not ready"]
        label = "document.querySelector('[data-node=\"{}\"] .cell').getAttribute('aria-label')"
        assert (await tab.run(label.format("l40s-1"))).startswith("l40s-1, GPU 0: cordoned, ")
        assert (await tab.run(label.format("down-1"))).startswith("down-1, GPU 0: not ready, ")


async def test_one_card_is_as_wide_as_there_is_room(browser: Browser) -> None:
    async with opened(browser, Scene(cluster(node("t4-9", gpu(0, "t4-9", T4))))) as (tab, _):
        await tab.size(1800, 700)
        width = "document.querySelector('{}').getBoundingClientRect().width"
        assert await tab.run(width.format(".card")) == await tab.run(width.format("#cards"))


async def test_a_name_that_is_cut_ends_in_an_ellipsis_and_is_told_whole(browser: Browser) -> None:
    """To the pointer and to the keyboard; a name that has room is not told twice."""
    name, long = "ranker-7d9f8b6c5-x2x7k", "gpu-node-of-the-research-group-with-a-long-name-0001"
    parts = (part(f"serving/{name}", 6, 900), part("serving/short", 73, 900))
    nodes = (node(long, gpu(0, long, scenes.H100, *parts)), node("h100-9", gpu(0, "h100-9", scenes.H100)))
    async with opened(browser, Scene(cluster(*nodes))) as (tab, _):
        await tab.size(600, 700)
        cut = (
            "[...document.querySelectorAll('{}')].map((each) => [each.scrollWidth > each.clientWidth,"
            " getComputedStyle(each).textOverflow, getComputedStyle(each).whiteSpace])"
        )
        for names in (".part-name", ".card .node-name"):
            looks = await tab.run(cut.format(names))
            assert looks == [[True, "ellipsis", "nowrap"], [False, "ellipsis", "nowrap"]]
        over = "document.querySelector('{}').dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))"
        await tab.run(over.format(".part"))
        assert (await tab.text(".tip:not([hidden])")).startswith(f"serving/{name}, ")
        await tab.run(over.format("[data-node=h100-9] .node-name"))
        assert await tab.run("document.querySelector('.tip').hidden")
        await tab.press("Tab")  # from now on the focus is the keyboard's
        await tab.run("document.querySelector('.card .node-name').focus()")
        assert await tab.text(".tip:not([hidden])") == long


async def test_the_badge_of_the_limits_explains_itself(browser: Browser) -> None:
    """To the pointer, to the keyboard and to a screen reader."""
    async with opened(browser, small()) as (tab, _):
        badge = "[aria-label='t4-1'] .badge[data-tip]"
        await tab.run(f'document.querySelector("{badge}").focus()')
        assert await tab.run(f"document.querySelector(\"{badge}\").getAttribute('aria-description')") == (
            "Containers are told how much memory they have, and nothing stops one that takes more."
        )
        await tab.run(
            f"document.querySelector(\"{badge}\").dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))"
        )
        assert "nothing stops one that takes more" in await tab.text(".tip:not([hidden])")


async def test_what_is_used_beyond_a_share_is_drawn_past_its_limit(browser: Browser) -> None:
    """web-0 uses 9,011 MiB of its 5,120: the limit stands at 57 % of the bar, and the rest is red."""
    async with opened(browser, small()) as (tab, _):
        begins, width = await tab.run(
            f"(() => {{ const part = document.querySelector('{WEB_0}'); const of = part.getBoundingClientRect();"
            "const it = part.querySelector('.excess').getBoundingClientRect(); return [(it.left - of.left) / of.width, it.width / of.width]; })()"
        )
        assert begins == pytest.approx(5120 / 9011, abs=0.01)
        assert begins + width == pytest.approx(1, abs=0.01)
        within = "document.querySelector('[data-pod=\"default/web-1\"] .excess').hidden"
        assert await tab.run(within)


async def test_processors_are_on_the_bar_and_a_pod_that_uses_none_is_idle(browser: Browser) -> None:
    parts = (part("a/busy", 30, 9000, smPercent=40), part("a/lazy", 30, 9000, smPercent=0), part("a/unknown", 15, 9000))
    async with opened(browser, Scene(cluster(node("h100-9", gpu(0, "h100-9", scenes.H100, *parts))))) as (tab, _):
        await tab.size(1600, 700)
        assert await tab.texts(".part .idle") == ["", "idle", ""]
        share = await tab.run(
            "(() => { const part = document.querySelector('.part'); const width = (each) => each.getBoundingClientRect().width;"
            "return width(part.querySelector('.processors')) / width(part); })()"
        )
        assert share == pytest.approx(0.4, abs=0.01)
        assert "40 %" in await tab.text(".part")
        lazy = await tab.run("document.querySelector('[data-pod=\"a/lazy\"]').getAttribute('aria-label')")
        assert "0 % of the processors" in lazy
        assert "idle: it holds memory and computes nothing" in lazy


async def test_on_a_phone_what_needs_somebody_comes_first(browser: Browser) -> None:
    async with opened(browser, small()) as (tab, _):
        await tab.size(390, 844)
        places = (
            "['[data-sum=attention]', '[data-sum=waiting]', '[data-sum=given]', '#attention', '#cards', '#waiting']"
            ".map((each) => document.querySelector(each).getBoundingClientRect()).map(({left, top}) => [left, top])"
        )
        *before, beside = await tab.run(places)
        tops = [top for _, top in before]
        assert tops == sorted(set(tops))
        assert beside[1] == before[3][1]
        assert beside[0] > before[3][0], "the two lists are one strip"
        filters = await tab.run("document.querySelector('#filters').getBoundingClientRect().bottom")
        assert filters <= tops[0], "they narrow all that follows"
        assert await wide(tab) <= 0


@pytest.mark.parametrize("width", [800, 390])
async def test_on_a_narrow_screen_nodes_keep_their_places_when_problems_come_and_go(
    browser: Browser, width: int
) -> None:
    async with opened(browser, small()) as (tab, server):
        await tab.size(width, 900)
        top = "document.querySelector('#main').getBoundingClientRect().top + scrollY"
        before = await tab.run(top)
        bad = {"a100-1", "l40s-1", "t4-1"}
        server.change(gone=tuple(bad), waiting=[])
        await tab.until("!document.querySelector('#calm').hidden && document.querySelectorAll('.card').length === 1")
        assert await tab.run(top) == before
