"""What the programs write on nodes and pods, as tests/data/recorded keeps it for each version.

    python -m tests.recorded

runs today's agent and extender beside each other, on doubles of everything else. Where they left something else in the
API than those of the last version, it is written down in the folder `unreleased`, which a release names after its
version. A version that is out is never recorded anew: its recording is what its nodes and pods carry.

`before-0.1.0` is of commit 8ca6db0: the agent before there was an extender of ours, beside that of gpushare.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_device_plugin.model.contract.keys import NODE_LABELS, NODE_USE
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.pod_specs import ContainerSpec, PodSpec
from tests import builders
from tests.names import COUNT, MEM
from tests.node import harness
from tests.node.cluster_harness import NODE, Cluster, promise
from tests.scheduler import harness as extender_harness

Json = dict[str, Any]

FOLDER = Path(__file__).parent / "data" / "recorded"
UNRELEASED = FOLDER / "unreleased"

HARDWARE: Json = {
    "gpus": [
        *({"model": "T4", "uuid": f"GPU-t4-{at}", "pci": f"0000:3{at}:00.0", "numa": 0} for at in range(2)),
        *({"model": "A10", "uuid": f"GPU-a10-{at}", "pci": f"0000:8{at}:00.0", "numa": 1} for at in range(2)),
    ],
    "links": [{"gpus": [0, 1], "closeness": "switch"}, {"gpus": [2, 3], "closeness": "nvlink"}],
    "events": [{"at": "0s", "gpu": 3, "recovery_action": "gpu-reset"}],
}
"""Two T4 of 14 shares and two A10 of 21, of which the last one is out of service."""

ASSUMED_AT = "1795169580643598847"
"""Stands for every moment of a promise, in nanoseconds since the epoch."""


@dataclass(frozen=True)
class Written:
    """A pod that is to be recorded."""

    spec: PodSpec
    annotations: Mapping[str, str] | None = None
    """What its owner wishes."""
    labels: Mapping[str, str] | None = None
    bound_with: Mapping[str, str] | None = None
    """Not placed by our extender: what its scheduler wrote."""


PODS = (
    Written(harness.pod("whole", count=1), annotations={"gpu-device-plugin/avoid-model": "T4"}),
    Written(harness.pod("split", mem=6), labels={"aliyun.com/gpu-count": "2"}),
    Written(PodSpec("two-containers", (harness.container("a", mem=2), harness.container("b", mem=3)))),
    Written(harness.pod("one", mem=4)),
    Written(
        PodSpec(
            "with-init",
            (
                harness.container("prepare", kind=ContainerKind.INIT, mem=7),
                harness.container("proxy", kind=ContainerKind.SIDECAR, mem=1),
                harness.container("main", mem=2),
            ),
        )
    ),
    Written(
        harness.pod("wishing", mem=2),
        annotations={"gpu-device-plugin/use-model": "T4", "gpu-device-plugin/gpu-policy": "spread"},
    ),
    Written(harness.pod("of-another-scheduler", mem=1), bound_with={}),
    # That GPU is in whole use: the agent gives of another one, and corrects the promise.
    Written(harness.pod("promised-in-vain", mem=1), bound_with=promise(2, 1)),
)


@asynccontextmanager
async def node_and_extender() -> AsyncIterator[tuple[Cluster, extender_harness.ExtenderWorld]]:
    """Make a node with an agent, and an extender that knows it."""
    async with extender_harness.world(allowed=None) as extender, harness.world(HARDWARE["gpus"]) as node:
        node.hardware(**HARDWARE)
        node.settings |= {"api": extender.api.url, "node_name": NODE}
        extender.api.add(builders.node(NODE, labels={"gpushare": "true"}))
        there = Cluster(node, extender.api)
        await there.start_agent()
        await node.until(lambda: [gpu["healthy"] for gpu in there.said_of_node()["gpus"]] == [True, True, True, False])
        await node.until(there.takes_pods)
        offer(there)
        await extender.start()
        yield there, extender


def offer(there: Cluster) -> None:
    """Let the kubelet say what its node has to give."""
    amounts = there.node.kubelet.amounts
    said = {
        name: {resource: str(getattr(amount, name)) for resource, amount in amounts.items()}
        for name in ("capacity", "allocatable")
    }
    there.api.patch("nodes", NODE, {"status": said}, subresource="status")


async def record() -> dict[str, Any]:
    """Return the recording of today's version: the content of each file, by its name."""
    async with node_and_extender() as (there, extender):
        node = of_node(there)
        pods = [await _recorded(written, there, extender) for written in PODS]
        await there.node.confirmed()
        agent = there.node.agent
        assert agent is not None
        free = [0 if room.whole else room.free for room in agent.state.node.rooms()]
        await there.cluster.published.announce_shutdown()
        await there.node.stop_agent()
        return {"node.json": {**node, "free": free}, "node-ended.json": of_node(there), "pods.json": pods}


def of_node(there: Cluster) -> Json:
    """Return what the agent has written on its node, but for the figures of use, which depend on time and machine."""
    metadata = there.api.get("nodes", NODE)["metadata"]
    return {
        kind: {key: metadata[kind][key] for key in metadata[kind].keys() - {NODE_USE} if key.startswith(NODE_LABELS)}
        for kind in ("annotations", "labels")
    }


async def _recorded(written: Written, there: Cluster, extender: extender_harness.ExtenderWorld) -> Json:
    name = written.spec.name
    there.create(written.spec, annotations=written.annotations)
    if written.labels:
        there.api.patch("pods", name, {"metadata": {"labels": dict(written.labels)}})
    if written.bound_with is None:
        offer(there)
        await extender.schedule()
    else:
        there.api.bind(name, NODE, written.bound_with)
    assert extender.where(name) == NODE, name
    promised = there.annotations(name)
    await there.seen(name)
    made = await there.admit(there.known(written.spec))
    assert made.phase == "Running", made
    await there.assigned(name)
    return {
        "name": name,
        "labels": dict(written.labels or {}),
        "containers": [
            {"name": each.name, "kind": each.kind.name, "limits": dict(each.limits)} for each in written.spec.containers
        ],
        "wished": dict(written.annotations or {}),
        "promised": timeless(promised),
        "assigned": timeless(there.annotations(name)),
        "got": {
            each.name: {
                resource: {str(at): n for at, n in sorted(there.positions(made, each.name, resource).items())}
                for resource in (MEM, COUNT)
                if resource in each.limits
            }
            for each in written.spec.containers
        },
    }


def timeless(annotations: Mapping[str, str]) -> dict[str, str]:
    return {
        key: ASSUMED_AT if key.endswith("_ASSUME_TIME") and re.fullmatch(r"1[0-9]{18}", value) else value
        for key, value in sorted(annotations.items())
    }


def spec_of(recorded: Json) -> PodSpec:
    """Return a recorded pod as a kubelet is given it."""
    return PodSpec(
        recorded["name"],
        tuple(
            ContainerSpec(each["name"], each["limits"], ContainerKind[each["kind"]]) for each in recorded["containers"]
        ),
    )


def as_text(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def newest() -> Path:
    """Return the folder with what today's programs write. A version that wrote nothing new has no folder of its own."""
    if UNRELEASED.exists():
        return UNRELEASED
    versions = [path for path in FOLDER.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    return max(versions, key=lambda path: [int(number) for number in path.name.split(".")])


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def main() -> None:
    found = {name: as_text(content) for name, content in asyncio.run(record()).items()}
    if found != content_of(newest()):
        UNRELEASED.mkdir(exist_ok=True)
        for name, text in found.items():
            (UNRELEASED / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
