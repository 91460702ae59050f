"""Each feature can be taken from what people read: of the commands, the doctor and the page only its own is missing."""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu_device_plugin.features.report_features import REPORT, REPORT_FEATURES, ReportParts, together
from gpu_device_plugin.features.terminal_features import TERMINAL, TERMINAL_FEATURES, TerminalParts
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, OVER_USE
from gpu_device_plugin.model.contract.nodegpus import write_node_gpus
from gpu_device_plugin.programs.doctor.rules import node_checks
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.report.rules.extension import placed
from tests.claim_values import claim_json, part_json, serving
from tests.cluster_double.api_server import ApiServer
from tests.programs.inspect.test_claim_reading import claiming
from tests.programs.inspect.test_inspect_program import asking_mig, gpu, node, parted, pod
from tests.programs.inspect.test_why_slow import Agent, AgentWorld, fresh
from tests.programs.web.harness import served
from tests.reports import SINCE, part, written
from tests.slow_pods import CAUSES, on

PODS = ("waits", "train", "over", "grown", "claims", "mig", "other")
HOSTS = ("overview", "top", "why", "web", "doctor", "uninstall")
"""The commands that are of no feature."""
NOT_HERE = "There is nothing at this address."


class Seen(NamedTuple):
    """What people read of one cluster."""

    commands: AbstractSet[str] = frozenset()
    """With the flags of those of no feature."""
    checks: AbstractSet[str] = frozenset()
    """Of a cluster, with the codes of their findings, and of a node."""
    keys: AbstractSet[str] = frozenset()
    """Of ``-o json`` and of the page's first event, with those above them, and the states of nodes, GPUs and pods."""
    routes: AbstractSet[str] = frozenset()
    """Of the page."""
    told: AbstractSet[str] = frozenset()
    """Of pods, in sentences."""
    page: AbstractSet[str] = frozenset()
    """The same on the page."""
    instead: AbstractSet[str] = frozenset()
    """What is told otherwise without the feature."""


NEITHER = "default/{} asks for neither aliyun.com/gpu-mem nor aliyun.com/gpu-count"
OTHERWISE = f"{NEITHER}, so it is not waiting for GPUs."

OWN: Mapping[str, Seen] = {
    "conflicts": Seen(
        checks={"other plugins: no-other-plugin", "node: other plugins"},
        told={
            "Its annotation gpu-fraction is KAI's",
            "It asks for volcano.sh/vgpu-number",
            NEITHER.format("other") + ".",
        },
        instead={OTHERWISE.format("other")},
    ),
    "claims": Seen(
        checks={
            "ResourceClaims: claims-pending",
            "ResourceClaims: kubelet-remembers-plugin",
            "ResourceClaims: no-device-class",
            "ResourceClaims: no-slices",
        },
        keys={
            *(".nodes is claims", "page.nodes.node-c is claims"),
            *(f".nodes.gpus.pods.{each}" for each in ("claims", "pods")),
            *(f"page.nodes.node-c.{each}" for each in ("gpus.pods", "gpus.usedShares", "usedShares", "sums.givenMiB")),
            *(f"page.nodes.node-c.gpus.pods.{each}" for each in ("claims", "name", "namespace", "pods", "shares")),
        },
        told={
            "default/claims waits for 9 GiB of one GPU, through ResourceClaims.",
            "ResourceClaim c is not allocated yet",
            "node-a: its GPUs are allocated through limits of pods",
            "node-c: the largest GPU has only 8 GiB",
            "node-m: its GPUs are allocated through limits of pods",
            "  1    11a2b3c4  Tesla T4  11 GiB of 15 GiB  has room",
            "  0    1b2c3d4e  H200   4 GiB of 8 GiB",
        },
        instead={OTHERWISE.format("claims"), "  0    1b2c3d4e  H200   8 GiB of 8 GiB  too small     -"},
    ),
    "mig": Seen(
        checks={"node: MIG"},
        told={
            "1 node offers nvidia.com/mig-1g.10gb, and none has enough free.",
            "  node-m: 1/1 in use: default/has (1:0)",
        },
    ),
    "elastic": Seen(
        commands={"resize"},
        checks={"memory requests: resize-waits"},
        told={"Container 'main' is guaranteed 2 GiB and requests 3 GiB"},
    ),
    "over_use": Seen(
        keys={".nodes.gpus.pods is over", "page.nodes.node-a.gpus.pods is over"},
        told={"It uses more GPU memory than it was granted: main uses 3 GiB of GPU 1."},
    ),
    "use": Seen(
        checks={"memory use: over-use", "node: memory use"},
        told={"Container 'main' uses 9,000 MiB of GPU 0", "Container 'main' uses 1 MiB of GPU 1"},
    ),
    "history": Seen(
        commands={"incident", "top --history"},
        checks={"GPU condition: no-history", "node: GPU condition"},
        routes={"history/", "incidents/"},
        told={"GPU 0 is slowed by heat", "Its node's agent has no figures that tell whether it is slow."},
    ),
    "limits": Seen(checks={"memory limits: limits-soft", "node: memory limits", "node: limits held"}),
    "mps": Seen(checks={"node: MPS"}),
    "preemption": Seen(
        told={
            "  There would be room if this pod ended: default/grown",
            "  Even if all its pods ended, there would be no room.",
        }
    ),
    "capacity": Seen(commands={"plan"}, routes={"plans/"}),
    "cordon": Seen(commands={"cordon", "uncordon"}),
    "idle": Seen(commands={"wake"}),
    "learning": Seen(commands={"prices"}),
}
"""What is a feature's own; sentences by their beginnings."""


def cluster() -> list[Any]:
    """Nodes that share, that serve claims and that give MIG instances; pods of each kind."""
    sharing = node("node-a", gpu(0), gpu(1))
    meta = sharing["metadata"]
    meta["labels"] = {"gpushare": "true"}
    meta["annotations"] |= written(
        part("train", used=9000, over_since=SINCE),
        part("over", 1, granted=2048, used=1),
        part("grown", 1, granted=2048, used=1, limit_mib=4096),
    )
    dra = node("node-c", gpu(0))
    dra["metadata"]["annotations"]["gpu-device-plugin/gpus"] = write_node_gpus(serving(8, 8))
    grown, over, other = pod("grown", 2, on="node-a", idx=1), pod("over", 2, on="node-a", idx=1), pod("other", 30)
    grown["metadata"]["annotations"][MEMORY_GUARANTEE] = "3"
    over["metadata"]["annotations"][OVER_USE] = "main uses 3 GiB of GPU 1"
    other["metadata"]["annotations"]["gpu-fraction"] = "0.5"
    other["spec"]["containers"][0]["resources"]["limits"] = {"volcano.sh/vgpu-number": "1"}
    waits = pod("waits", 12)
    waits["spec"]["priority"] = 100
    claims = claiming("claims", made="c")
    held = [claim_json("c", memory="9Gi"), claim_json("d", part_json(0, "4Gi", "node-c"), pods=("web",))]
    mig = [parted("node-m", number=1), asking_mig("mig"), asking_mig("has", on="node-m", uuid="MIG-0")]
    return [sharing, dra, grown, over, other, waits, claims, *held, *mig]


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    world = AgentWorld(tmp_path, agent=Agent([fresh(on(0, next(iter(CAUSES.values()))[0]))]))
    names = {each["metadata"]["name"] for each in cluster()}
    rest = [each for each in world.script["objects"] if each["metadata"]["name"] not in names]
    world.has(*cluster(), objects=rest, groups=["resource.k8s.io"])
    world.has(*cluster())
    return world


def printed(world: AgentWorld, parts: ReportParts, terminal: TerminalParts, *words: str) -> str:
    """Return what a command prints, whatever its exit code is."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()), suppress(SystemExit):
        main(words, kubectl=str(world.kubectl), environ={}, parts=parts, terminal=terminal)
    return out.getvalue()


def paths(value: Any, above: str = "") -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key == "states":
            yield from (f"{above} is {each['code']}" for each in inner)
            continue
        yield f"{above}.{key}"
        yield from paths(inner, f"{above}.{key}")
    for inner in value if isinstance(value, list) else ():
        yield from paths(inner, above)


async def page_of(objects: Iterable[Any], parts: ReportParts) -> tuple[Any, set[str], set[str]]:
    """Return the first event of the page, the routes of features that it has, and what it tells of pods."""
    async with ApiServer() as api:
        for each in objects:
            api.add(each)
        async with served(api, parts=parts) as page, page.live() as stream:
            event = await stream.until(lambda known: known["nodes"] and known["waiting"])
            assert (await page.get("api/v1/session"))[0] == 200
            pods = [(await page.get(f"api/v1/pods/default/{name}"))[1]["why"] for name in PODS]
            routes = {path for path in REPORT.routes if (await page.get(f"api/v1/{path}x"))[1]["error"] != NOT_HERE}
    return {key: value for key, value in event.items() if key != "read"}, routes, {*chain.from_iterable(pods)}


def seen(world: AgentWorld, parts: ReportParts, terminal: TerminalParts) -> Seen:
    """Return what people read with these parts of features."""
    names = re.findall(
        r"^    (\w+) ", printed(world, parts, terminal, "--help").partition("commands:")[2], re.MULTILINE
    )
    flags = {
        f"{name} {flag}"
        for name in HOSTS
        for flag in re.findall(r"--[a-z-]+", printed(world, parts, terminal, name, "--help"))
    }
    findings = json.loads(printed(world, parts, terminal, "doctor", "--json"))["findings"]
    on_node = {f"node: {name}" for name in placed(node_checks.OWN, parts.node_checks)}
    event, routes, page = asyncio.run(page_of(world.script["objects"], parts))
    return Seen(
        {*names, *flags},
        {f"{each['check']}: {each['code']}" for each in findings} | on_node,
        {*paths(event, "page"), *paths(json.loads(printed(world, parts, terminal, "-o", "json")))},
        routes,
        {line for name in PODS for line in printed(world, parts, terminal, "why", name).splitlines()},
        page,
    )


@pytest.mark.parametrize("gone", [*([name] for name in OWN), [*OWN]], ids=" ".join)
def test_without_a_feature_programs_lack_nothing_but_what_is_its_own(world: AgentWorld, gone: list[str]) -> None:
    shown = [parts for name, parts in REPORT_FEATURES.items() if name not in gone]
    done = [parts for name, parts in TERMINAL_FEATURES.items() if name not in gone]
    kept = seen(world, together(ReportParts, shown), together(TerminalParts, done))
    found = seen(world, REPORT, TERMINAL)
    own = Seen(*(frozenset(chain.from_iterable(each)) for each in zip(*(OWN[name] for name in gone), strict=True)))
    for which in ("commands", "checks", "keys", "routes"):
        assert getattr(found, which) - getattr(kept, which) == getattr(own, which)
        assert getattr(kept, which) <= getattr(found, which)
    lost = found.told - kept.told
    assert {line for line in lost if not line.startswith(tuple(own.told))} == set()
    assert {each for each in own.told if not any(line.startswith(each) for line in lost)} == set()
    assert found.page - kept.page == lost & found.page
    assert (kept.told - found.told, kept.page - found.page) == (own.instead, own.instead)


def test_each_feature_that_people_read_of_is_taken_away() -> None:
    assert OWN.keys() == REPORT_FEATURES.keys() | TERMINAL_FEATURES.keys()
