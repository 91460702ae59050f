"""The server's sentences in Chinese, each as the code of the server says it now."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.features.capacity.report import verdict
from gpu_device_plugin.features.capacity.rules.movable import Move, PlannedPod, UnmovableReason
from gpu_device_plugin.features.capacity.rules.plans import Plan
from gpu_device_plugin.features.elastic.report import resizes
from gpu_device_plugin.features.use.report import of_pod
from gpu_device_plugin.kubernetes.agent_reader import agents
from gpu_device_plugin.kubernetes.client.errors import Call
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_LIMIT, MEMORY_PROMISED
from gpu_device_plugin.model.limits import CHOOSABLE
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.programs.web.page_state import ASKING, NO_NODES
from gpu_device_plugin.report.rules.extension import Kept, SchedulingStatus
from gpu_device_plugin.report.rules.finding import note
from gpu_device_plugin.report.rules.node_answers import what_makes_room, why_waits
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.settings.common import ResourceSettings
from tests.reporting import answers
from tests.reports import ASKED, part, report
from tests.views import node_view, pod_on, put_aside
from tests.web.page_server import PageServer
from tests.web.scenes import small

if TYPE_CHECKING:
    from gpu_device_plugin.report.rules.node_answers import NodeAnswer
    from tests.web.browser import Browser

NAMES = re.compile(
    r"\b(GiB|GPU|MIG|Pod|API|ClusterRole|gpushare-\w+|default|list|pods|nodes|node-1|HTTP|XID|x{3,}|Unschedulable|MPS|kubelet|run/gpushare/memory.json|DaemonSet|safe-to-evict|false|emptyDir|hostPath|PodDisruptionBudget|kube-scheduler|ResourceClaim|alice|loud)\b"
)
"""What stays as it is in every language."""
RESOURCES = ResourceSettings().offered
WEB = Pod("u", "default", "web", "a", containers=(Container("xxx", ContainerKind.APP, 0, {RESOURCES[0].name: 4}),))
MOVE = Move(PlannedPod(pod_on("web", {0: 4})), "n1", "n2", ())
STATUS = SchedulingStatus("gpushare-scheduler")


def found(mem: int, *mibs: int, count: int = 0, kept: Kept | None = None) -> list[NodeAnswer]:
    """Return what becomes of a pod on nodes with a GPU each that a pod uses half of."""
    limits = {RESOURCES[0].name: mem} if mem else {RESOURCES[1].name: count}
    pod = Pod("u", "default", "w", containers=(Container("main", ContainerKind.APP, 0, limits),))
    asked = ask(pod, RESOURCES)
    assert isinstance(asked, GpuRequest)
    nodes = [node_view(f"n{number}", (size,), pod_on(f"p{number}", {0: size // 2})) for number, size in enumerate(mibs)]
    return answers([(node, asked, kept if kept and node.name == "n0" else Kept()) for node in nodes], "binpack", 1)


def everybody(_namespace: str) -> bool:
    return True


def sentences() -> list[str]:
    """Return sentences of the server, by the code that says them."""
    many = node_view("n0", (16,), *(pod_on(f"p{n}", {0: 2}) for n in range(8)))
    pod = Pod("u", "default", "w", containers=(Container("main", ContainerKind.APP, 0, {RESOURCES[0].name: 16}),))
    asked = ask(pod, RESOURCES)
    assert isinstance(asked, GpuRequest)
    crowd = answers([(many, asked, Kept())], "binpack", 1)
    cordoned = Kept(excluded=(note("cordoned", "it is cordoned"),))
    aside = answers([(put_aside(node_view("n0", (16,)), "GPU-0"), asked, Kept())], "binpack", 1)
    waits = [
        why_waits(STATUS, (), aside),
        why_waits(STATUS, (), ()),
        why_waits(STATUS, (), found(12, 16)),
        why_waits(STATUS, (), found(12, 16, 16, 14)),
        why_waits(STATUS, (), found(2, 16)),
        why_waits(STATUS, (), found(2, 16, 16)),
        why_waits(STATUS, (), found(40, 16, 16)),
        why_waits(STATUS, (), found(0, 16, 16, count=1)),
        why_waits(STATUS, (), found(0, 16, 16, count=2)),
        why_waits(STATUS, (), found(2, 16, kept=cordoned)),
        why_waits(STATUS, (), found(12, 16, kept=cordoned)),
    ]
    rooms = [
        what_makes_room(found(12, 16), everybody),
        what_makes_room(found(12, 16), lambda _: False),
        what_makes_room(crowd, everybody),
        what_makes_room(crowd, lambda _: False),
        what_makes_room(found(12, 16, kept=cordoned), everybody),
        what_makes_room(found(2, 16, kept=cordoned), everybody),
        what_makes_room(found(40, 16), everybody),
    ]
    elastic, below = {MEMORY_GUARANTEE: "6", MEMORY_LIMIT: "12"}, {MEMORY_GUARANTEE: "2"}
    wishes = [elastic, below, *({**elastic, key: '{"wish":"6","why":"xxx"}'} for key in (MEMORY_PROMISED, MEMORY_HELD))]
    kept = [replace(part("web", enforcement=each), container="xxx") for each in CHOOSABLE]
    lent = report(replace(ASKED, pod="xxx", container="xxx", needed_by="default/web"))
    sizes = [
        str(each)
        for wish in wishes
        for means in kept
        for each in resizes(replace(WEB, annotations=wish), RESOURCES, node_view("a", (16,), report=report(means)))
    ]
    for running in (False, True):
        sizes += map(str, of_pod(replace(WEB, running=running), node_view("a", (16,), report=lent), []))
    rights = [Call("list", "pods").missing_right, Call("list", "nodes", namespace="default").missing_right]
    notes = [f"{right[0].upper()}{right[1:]}, so no pods are shown." for right in rights]
    goal = "make room for default/xxx"
    plans = [verdict(Plan(moves), goal) for moves in (None, (), (MOVE,), (MOVE, MOVE))]
    staying = [
        str(each)
        for each in UnmovableReason
        if each not in {UnmovableReason.ENDING, UnmovableReason.HELD, UnmovableReason.PLANNED, UnmovableReason.MOVED}
    ]
    notes += [f"A plan concerns all nodes and their pods: {rights[0]}."]
    notes += ["1 more pod is not moved.", "2 more pods are not moved."]
    notes += [f"{rights[0]}: the API server may refuse evictions that the plan counts on."]
    notes += ["The pod default/xxx does not wait for GPUs by its limits."]
    notes += [f"A record concerns all pods of a GPU: {rights[0]}."]
    of_node = "The agent of node node-1"
    notes += [f"{of_node} cannot be asked: {why}." for why in (agents(()).why, "no agent that serves HTTP runs there")]
    notes += [f"{of_node} has nothing of it: it is older than this page, records nothing, or has forgotten it."]
    notes += [f"{of_node} does not answer: xxx."]
    notes += [
        f"What {of_node[0].lower()}{of_node[1:]} remembers cannot be understood; upgrade the older of agent and page."
    ]
    # As features/history/flight_recorder.py and its callers write them.
    notes += ["GPU 0 reported XID 48: xxx", "pod default/xxx is evicted: xxx"]
    killed = "was killed for lack of main memory"
    notes += [f"container xxx {killed}, at its memory limit or its node's", f"a process of container xxx {killed}"]
    notes += ["container xxx ended with exit code 1 (xxx)"]
    return [*waits, *rooms, *sizes, *notes, *plans, *staying, ASKING, NO_NODES]


async def test_the_servers_sentences_are_said_in_chinese(browser: Browser) -> None:
    server = PageServer(small())
    async with server.serving(), browser.tab() as tab:
        await tab.open(server.url("?lang=zh"))
        await tab.until("document.documentElement.lang === 'zh-Hans'")
        told = sentences()
        said = await tab.run(
            f"import('./sentences.js').then((it) => {json.dumps(told)}.map((each) => it.serverSaying(each)))"
        )
    left = {
        each: words
        for each, now in zip(told, said, strict=True)
        if (words := re.findall("[a-z]{3,}", NAMES.sub("", now)))
    }
    assert left == {}
    assert all(re.search("[\u4e00-\u9fff]", each) for each in said)
