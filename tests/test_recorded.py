"""What other versions wrote on nodes and pods, today's programs understand, and what the next one will add, they bear.

Agent and extender may be one minor version apart. Each reads what the other writes: the node's GPUs, and the promises
and what became of them on pods. tests/recorded.py says where the recordings are from.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpu_device_plugin.model.contract import keys as wire
from gpu_device_plugin.model.contract.nodegpus import NODE_GPUS_VERSION, read_node_gpus, write_node_gpus
from tests import builders
from tests.node.cluster_harness import NODE, Cluster, cluster
from tests.recorded import FOLDER, HARDWARE, as_text, content_of, newest, record, spec_of, timeless
from tests.scheduler import harness as extender_harness

Writer = Callable[[str, Mapping[str, str]], dict[str, str]]

Json = dict[str, Any]

VERSIONS = sorted(path.name for path in FOLDER.iterdir())

NEXT = {"gpu-device-plugin/of-the-next-version": '{"version":1}'}


def read(version: str, name: str) -> Any:
    return json.loads((FOLDER / version / name).read_text(encoding="utf-8"))


def as_written(_where: str, annotations: Mapping[str, str]) -> dict[str, str]:
    return dict(annotations)


def by_the_next_version(where: str, annotations: Mapping[str, str]) -> dict[str, str]:
    """Return them as a minor version may write them that knows more: new annotations, and new keys where there are any.

    The JSON of a node is of objects, which may get keys. That of a pod is ACK's: numbers by number, and nothing else.
    """
    found = {**annotations, **NEXT}
    if where == "node":
        found[wire.NODE_GPUS] = json.dumps(_with_keys(json.loads(found[wire.NODE_GPUS])))
    return found


def _with_keys(value: Any) -> Any:
    match value:
        case dict():
            return {"aaa": [{"b": None}], **{key: _with_keys(each) for key, each in value.items()}, "zzz": 1.5}
        case list():
            return [_with_keys(each) for each in value]
    return value


every_version = pytest.mark.parametrize("version", VERSIONS)
also_the_next = pytest.mark.parametrize("writer", [as_written, by_the_next_version])


async def test_what_todays_programs_write_is_what_is_recorded_of_them() -> None:
    """So that nobody changes by accident what another version has to read.

    On purpose: `python -m tests.recorded`; and docs/operations.md says what the version before makes of it.
    """
    assert {name: as_text(content) for name, content in (await record()).items()} == content_of(newest())


@every_version
@also_the_next
def test_a_scheduler_knows_the_gpus_of_a_node(version: str, writer: Writer) -> None:
    node = read_node_gpus(writer("node", read(version, "node.json")["annotations"])[wire.NODE_GPUS])
    assert [(gpu.position, gpu.uuid, gpu.model, gpu.shares, gpu.memory_mib, gpu.numa) for gpu in node.gpus] == [
        (0, "GPU-t4-0", "Tesla T4", 14, 15360, 0),
        (1, "GPU-t4-1", "Tesla T4", 14, 15360, 0),
        (2, "GPU-a10-0", "NVIDIA A10", 21, 23028, 1),
        (3, "GPU-a10-1", "NVIDIA A10", 21, 23028, 1),
    ]
    assert [bool(gpu.unhealthy) for gpu in node.gpus] == [False, False, False, True]
    by_default = "binpack" if version in {"before-0.1.0", "0.1.0"} else "fit"
    assert (node.share_mib, node.policy, node.driver, node.away) == (1024, by_default, "580.65.06", False)
    assert read_node_gpus(write_node_gpus(node)) == node


async def _extender_beside(version: str, writer: Writer, stage: str, names: set[str]) -> list[int]:
    """Start today's extender in a cluster as it was recorded; return the free shares of each GPU in its ledger."""
    node, pods = read(version, "node.json"), read(version, "pods.json")
    sizes = [gpu["shares"] for gpu in json.loads(node["annotations"][wire.NODE_GPUS])["gpus"]]
    async with extender_harness.world() as world:
        labels = {**node["labels"], "gpushare": "true", **dict.fromkeys(NEXT, "x")}
        written = writer("node", node["annotations"])
        world.api.add(builders.node(NODE, mem=sum(sizes), count=len(sizes), labels=labels, annotations=written))
        for pod in (pod for pod in pods if pod["name"] in names):
            world.api.add(body_of(pod, writer("pod", pod[stage])))
            world.run(pod["name"])
        running = await world.start()
        return running.free(NODE)


def body_of(pod: Json, annotations: Mapping[str, str]) -> Json:
    """Return a recorded pod as the API has it once it is bound."""
    made = {
        each["name"]: builders.container(
            each["name"],
            limits={resource: str(amount) for resource, amount in each["limits"].items()},
            sidecar=each["kind"] == "SIDECAR",
        )
        for each in pod["containers"]
    }
    init = tuple(made[each["name"]] for each in pod["containers"] if each["kind"] != "APP")
    app = [made[each["name"]] for each in pod["containers"] if each["kind"] == "APP"]
    return builders.pod(
        pod["name"], *app, init=init, node=NODE, annotations=annotations, labels=pod["labels"], phase="Pending"
    )


@every_version
@also_the_next
async def test_an_extender_knows_what_an_agent_has_given(version: str, writer: Writer) -> None:
    """As many shares are free as the agent of then knew to be."""
    everybody = {pod["name"] for pod in read(version, "pods.json")}
    assert await _extender_beside(version, writer, "assigned", everybody) == read(version, "node.json")["free"]


@every_version
@also_the_next
async def test_an_extender_knows_what_another_has_promised(version: str, writer: Writer) -> None:
    """Whether the agent has kept the promise already or is about to. Where it could not, it has more to say."""
    places = {wire.IDX, wire.ALLOCATION, wire.INIT_ALLOCATION}
    kept = {
        pod["name"]
        for pod in read(version, "pods.json")
        if all(pod["promised"].get(key) == pod["assigned"].get(key) for key in places)
    }
    assert len(kept) == 6
    promised, assigned = [await _extender_beside(version, writer, stage, kept) for stage in ("promised", "assigned")]
    assert promised == assigned


async def test_what_a_pod_wishes_of_the_next_version_keeps_it_off_no_node() -> None:
    node = read(newest().name, "node.json")
    async with extender_harness.world() as world:
        world.api.add(
            builders.node(NODE, mem=70, count=4, annotations=by_the_next_version("node", node["annotations"]))
        )
        await world.start()
        world.pod("a", mem=1, annotations=NEXT, labels=dict.fromkeys(NEXT, "x"))
        assert (await world.schedule())["a"].node == NODE


@every_version
async def test_an_extender_sends_no_pod_to_a_node_whose_agent_is_being_replaced(version: str) -> None:
    """A recording without a word of it is of a version that said none."""
    said = json.loads(read(version, "node-ended.json")["annotations"][wire.NODE_GPUS])
    assert read_node_gpus(json.dumps(said)).away == said.get("away", False)
    assert said["gpus"] == json.loads(read(version, "node.json")["annotations"][wire.NODE_GPUS])["gpus"]


async def test_a_node_of_a_format_that_is_not_known_is_left_alone() -> None:
    """Only a major change gives the format another number; to guess what it means could give a GPU away twice."""
    node = read(newest().name, "node.json")
    said = json.dumps({**json.loads(node["annotations"][wire.NODE_GPUS]), "version": NODE_GPUS_VERSION + 1})
    async with extender_harness.world() as world:
        world.api.add(builders.node(NODE, mem=70, count=4, annotations={wire.NODE_GPUS: said}))
        await world.start()
        world.pod("a", mem=1)
        message = (await world.schedule())["a"].message
        assert "is of another version than 1; upgrade the older of agent and scheduler" in message
    async with cluster(HARDWARE["gpus"]) as there:
        there.api.patch("nodes", NODE, {"metadata": {"annotations": {wire.NODE_GPUS: said}}})
        await there.start_agent()
        await there.node.until(lambda: there.said_of_node()["version"] == NODE_GPUS_VERSION)


@every_version
@also_the_next
async def test_an_agent_keeps_the_promises(version: str, writer: Writer) -> None:
    """Every pod gets what it got then, the agent writes on it what it wrote then, and leaves the rest as it is."""
    async with cluster(HARDWARE["gpus"], node_labels={"gpushare": "true"}) as there:
        await _start(there)
        for recorded in read(version, "pods.json"):
            spec, promised = spec_of(recorded), writer("pod", recorded["promised"])
            made = await there.run(spec, promised)
            got = {
                each["name"]: {
                    resource: {str(at): n for at, n in there.positions(made, each["name"], resource).items()}
                    for resource in each["limits"]
                }
                for each in recorded["containers"]
            }
            assert got == recorded["got"], recorded["name"]
            await there.assigned(spec.name)
            assert timeless(there.annotations(spec.name)) == writer("pod", recorded["assigned"])


async def _start(there: Cluster) -> None:
    there.node.hardware(**HARDWARE)
    await there.start_agent()
    await there.node.until(
        lambda: [gpu["healthy"] for gpu in there.said_of_node()["gpus"]] == [True, True, True, False]
    )


@pytest.mark.parametrize("version", [version for version in VERSIONS if not version.startswith("before")])
@also_the_next
async def test_a_gpu_keeps_the_position_that_another_version_gave_it(version: str, writer: Writer) -> None:
    """Positions are what promises speak of, and the driver may list the GPUs in another order after a reboot."""
    turned = [*reversed(HARDWARE["gpus"])]
    async with cluster(turned) as there:
        written = writer("node", read(version, "node.json")["annotations"])
        there.api.patch("nodes", NODE, {"metadata": {"annotations": written}})
        await there.start_agent()
        assert there.node.uuids == ["GPU-t4-0", "GPU-t4-1", "GPU-a10-0", "GPU-a10-1"]
