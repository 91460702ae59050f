"""A node with GPUs in MIG mode: what its kubelet is shown, what pods get, and what becomes of them when it changes."""

import json
import random
from typing import Any

import pytest

from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.hardware.fake.description import read
from gpu_device_plugin.hardware.monitor import MonitorTimings
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.configuration import ListFullError
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod, PodSpec
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, cluster
from tests.node.harness import NodeWorld, envs_of, gpus_of, pod, world

ONE_G, TWO_G, THREE_G = (f"aliyun.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb"))
T4 = {"model": "T4"}


def h100(mig: object) -> dict[str, Any]:
    return {"model": "H100", "mig": mig}


def asking(name: str, resource: str, amount: int = 1) -> PodSpec:
    return PodSpec(name, (ContainerSpec("main", {resource: amount}),))


def uuids(*gpus: dict[str, Any], tmp: NodeWorld) -> list[list[str]]:
    """Return the UUIDs of the instances of each GPU."""
    path = tmp.folder / "other.json"
    path.write_text(json.dumps({"gpus": list(gpus)}))
    found = read(str(path)).gpus
    return [[each["uuid"] for each in gpu["instances"]] for gpu in found]


def shown(node: NodeWorld, resource: str) -> dict[str, bool]:
    """Return the devices of a resource as the kubelet knows them, with whether they are healthy."""
    return dict(node.kubelet.health.get(resource, {}))


async def offered(node: NodeWorld, **amounts: int) -> None:
    names = {"one": ONE_G, "two": TWO_G, "three": THREE_G, "mem": MEM, "count": COUNT}
    for name, amount in amounts.items():
        await node.healthy_is(names[name], amount)


def change(node: NodeWorld, **changed: str) -> None:
    """Have the agent read changed settings."""
    assert node.agent is not None
    node.settings |= changed
    node.agent.reload(Sources(NODE_SETTINGS, flags=node.settings, environ={}).read())


# --- Both ways --------------------------------------------------------------------------------------------------------


async def test_instances_are_given_whole_by_a_resource_for_each_profile() -> None:
    async with world([h100("3g.40gb/1g.10gb*2"), T4], mig="whole") as node:
        await node.start_agent()
        await offered(node, one=2, three=1, mem=14, count=1)
        made = await node.kubelet.admit(asking("one", ONE_G))
        (uuid,) = gpus_of(made, ONE_G)
        assert envs_of(made) == {"NVIDIA_VISIBLE_DEVICES": uuid, "GPUSHARE_MEMORY_LIMIT_BY": "partition"}
        assert uuid in uuids(h100("3g.40gb/1g.10gb*2"), tmp=node)[0][1:]
        two = await node.kubelet.admit(asking("two", ONE_G, 2))
        assert (two.phase, two.reason) == ("Failed", "UnexpectedAdmissionError")
        assert (await node.kubelet.admit(asking("other", ONE_G))).phase == "Running"
        assert (await node.kubelet.admit(asking("large", THREE_G))).phase == "Running"
        assert node.healthy(COUNT) == 1, "gpu-count is of whole GPUs"


async def test_instances_are_shared_by_memory_and_no_container_gets_two() -> None:
    async with world([h100("1g.10gb*3"), T4], mig="share") as node:
        await node.start_agent()
        await offered(node, mem=3 * 9 + 14, count=1)
        assert ONE_G not in node.kubelet.amounts
        first, second = [await node.kubelet.admit(pod(name, mem=4)) for name in ("a", "b")]
        assert gpus_of(first) == gpus_of(second), "binpack fills an instance before a larger GPU"
        assert envs_of(first)["NVIDIA_VISIBLE_DEVICES"] == next(iter(gpus_of(first)))
        assert envs_of(first)["GPUSHARE_MEMORY_LIMIT_BY"] == "advisory"
        whole = await node.kubelet.admit(pod("whole", mem=9))
        assert len(gpus_of(whole)) == 1
        assert envs_of(whole)["GPUSHARE_MEMORY_LIMIT_BY"] == "partition"
        large = await node.kubelet.admit(pod("large", mem=12))
        assert gpus_of(large).isdisjoint(uuids(h100("1g.10gb*3"), tmp=node)[0])
        refused = await node.kubelet.admit(pod("too-large", mem=10))
        assert refused.phase == "Failed"
        assert "the emptiest healthy GPU has 9 GiB free" in refused.message


async def test_device_nodes_of_an_instance_reach_the_container() -> None:
    async with world([h100("1g.10gb*2")], mig="whole", devices="device-specs") as node:
        for name in ("nvidiactl", "nvidia-uvm"):
            (node.dev / name).touch()
        await node.start_agent()
        await offered(node, one=2)
        made = await node.kubelet.admit(asking("one", ONE_G))
        paths = [each.host_path for each in made.container("main").received.devices]
        assert paths[:3] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
        assert len(paths) == 5
        assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in paths[3:])


# --- The way changes --------------------------------------------------------------------------------------------------


async def test_the_way_of_giving_instances_changes_while_pods_run() -> None:
    async with world([h100("1g.10gb*2"), T4], mig="share") as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("shared", mem=4))
        (uuid,) = gpus_of(made)
        change(node, mig="whole")
        await offered(node, one=1, mem=14 + 4)
        assert len(shown(node, MEM)) == 2 * 9 + 14, "what was listed stays listed"
        assert shown(node, ONE_G)[uuid] is False
        assert node.agent is not None
        assert node.agent.registration.registrations[MEM] == 1, "the others are not registered again"
        other = await node.kubelet.admit(asking("whole", ONE_G))
        assert gpus_of(other, ONE_G).isdisjoint({uuid})
        node.kubelet.finish(made)
        await offered(node, one=2, mem=14)
        change(node, mig="share")
        await offered(node, mem=14 + 9)


async def test_the_label_of_the_node_decides() -> None:
    async with cluster([h100("1g.10gb*2"), T4], node_labels={"gpu-device-plugin/mig": "whole"}, mig="off") as there:
        there.node.launch()
        there.cluster.look_s = 0.05
        await there.node.healthy_is(ONE_G, 2)
        there.api.patch("nodes", NODE, {"metadata": {"labels": {"gpu-device-plugin/mig": "share"}}})
        await there.node.healthy_is(MEM, 2 * 9 + 14)
        await there.node.healthy_is(ONE_G, 0)


# --- A GPU is divided anew --------------------------------------------------------------------------------------------


async def test_a_gpu_that_is_divided_anew_keeps_the_old_ids_and_brings_new_ones() -> None:
    async with world([h100("1g.10gb*3"), T4], mig="whole") as node:
        await node.start_agent()
        await offered(node, one=3)
        before = shown(node, ONE_G)
        node.hardware(h100("2g.20gb*2"), T4)
        await offered(node, one=0, two=2)
        assert shown(node, ONE_G) == dict.fromkeys(before, False)
        agent = node.agent
        assert agent is not None
        # The kubelet has the list of the new size before it has answered its registration.
        await node.until(lambda: agent.registration.registrations == {MEM: 1, COUNT: 1, ONE_G: 1, TWO_G: 1})
        assert (await node.kubelet.admit(asking("two", TWO_G))).phase == "Running"
        node.hardware(h100("1g.10gb*3"), T4)
        await offered(node, one=3, two=0)
        assert shown(node, ONE_G) == before


async def test_an_agent_whose_list_is_full_of_former_instances_ends_to_be_started_again() -> None:
    """7 instances of 8 GPUs are 2,184 shares of 256 MiB, the 3 that come after them 1,872: too many for a kubelet."""
    async with world([{**h100("1g.10gb*7"), "count": 8}], mig="share", share_size="256MiB") as node:
        await node.start_agent()
        await offered(node, mem=2184)
        node.hardware({**h100("2g.20gb*3"), "count": 8})
        assert isinstance(await node.ended(), ListFullError)
        await node.start_agent()
        await offered(node, mem=1872)
        assert len(shown(node, MEM)) == 1872


async def test_where_more_instances_do_not_fit_the_list_those_that_are_gone_are_given_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A GPU of 7 leaves MIG mode, and has more shares than a kubelet copes with beside the others'."""
    async with world([{**h100("1g.10gb*7"), "count": 7}], mig="share", share_size="128MiB") as node:
        await node.start_agent()
        await offered(node, mem=7 * 7 * 78)
        full = {**h100("1g.10gb*7"), "count": 6}
        node.hardware({"model": "H100", "memory": "141GiB"}, full)
        await offered(node, mem=6 * 7 * 78)
        assert any("new GPUs are not shared" in message for message in caplog.messages)


async def test_instances_that_an_owner_wrote_on_a_pod_are_taken_off_or_corrected() -> None:
    """Where no policy forbids it, a pod could show as holding instances that others have."""
    forged = {"gpu-device-plugin/mig-instances": '{"main":["MIG-1","MIG-2","MIG-3"]}'}
    async with cluster([h100("1g.10gb*3"), T4], mig="whole") as there:
        for name in ("plain", "waiting"):
            there.create(pod(name) if name == "plain" else asking(name, ONE_G), annotations=forged)
            there.api.bind(name, NODE)
        await there.start_agent()
        await there.node.until(
            lambda: (
                not any("gpu-device-plugin/mig-instances" in there.annotations(name) for name in ("plain", "waiting"))
            )
        )
        await there.node.healthy_is(ONE_G, 3)
        there.create(asking("liar", ONE_G), annotations=forged)
        await there.bind("liar")
        made = await there.admit(there.known(asking("liar", ONE_G)))
        (uuid,) = gpus_of(made, ONE_G)
        await there.node.until(
            lambda: there.annotations("liar").get("gpu-device-plugin/mig-instances") == f'{{"main":["{uuid}"]}}'
        )


async def test_a_pod_on_an_instance_that_exists_no_more_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster([h100("1g.10gb*3"), T4], mig="whole") as there:
        await there.start_agent()
        await there.node.healthy_is(ONE_G, 3)
        made = await there.run(asking("old", ONE_G))
        await there.node.until(lambda: "gpu-device-plugin/mig-instances" in there.annotations("old"))
        (uuid,) = gpus_of(made, ONE_G)
        assert json.loads(there.annotations("old")["gpu-device-plugin/mig-instances"]) == {"main": [uuid]}
        there.node.hardware(h100("2g.20gb*2"), T4)
        await there.node.until(lambda: bool(there.events("MigInstanceGone")))
        await there.node.until(lambda: len(there.events("MigInstanceGone")) == 2)
        notes = {event["regarding"]["kind"]: event["note"] for event in there.events("MigInstanceGone")}
        assert f"({uuid}), a MIG instance that no longer exists" in notes["Pod"]
        assert notes["Node"].startswith("default/old: container main was allocated GPU ")
        assert any("default/old: container main was allocated" in message for message in caplog.messages)
        assert not there.events("GPUUnhealthy"), "a destroyed instance is no failure"
        await there.node.until(
            lambda: [gpu["uuid"] for gpu in there.said_of_node().get("instances", ())].count(uuid) == 1
        )
        listed = {gpu["uuid"]: gpu for gpu in there.said_of_node()["instances"]}
        assert listed[uuid]["reason"] == "the MIG instance no longer exists"
        there.node.kubelet.finish(made)
        await there.node.until(lambda: uuid in {gpu["uuid"] for gpu in there.said_of_node().get("gone", ())})


async def test_an_excluded_instance_is_given_to_nobody_by_the_next_agent() -> None:
    async with cluster([h100("1g.10gb*2"), T4], mig="whole") as there:
        await there.start_agent()
        await there.node.healthy_is(ONE_G, 2)
        await there.node.until(there.takes_pods)
        first, second = uuids(h100("1g.10gb*2"), tmp=there.node)[0]
        await there.node.stop_agent()
        await there.start_agent(exclude_gpus=first)
        await there.node.healthy_is(ONE_G, 1)
        await there.node.rounds(2)
        assert shown(there.node, ONE_G) == {second: True}


async def test_an_instance_made_again_as_another_profile_is_not_given_beside_its_former_holder() -> None:
    """The driver may give it the same UUID, which both resources list then."""
    profile = {"gi": 5, "uuid": "MIG-6f1c2f4e-0d2b-4f0c-9a57-0a2f0b0c1d2e"}
    async with world([h100([{"profile": "1g.20gb", **profile}]), T4], mig="whole") as node:
        await node.start_agent()
        former = "aliyun.com/mig-1g.20gb"
        await node.healthy_is(former, 1)
        made = await node.kubelet.admit(asking("old", former))
        node.hardware(h100([{"profile": "2g.20gb", **profile}]), T4)
        assert node.agent is not None
        node.agent.hardware.timings = MonitorTimings(probe_every_s=0.05, rescan_every_s=0.1, rescan_missing_every_s=0.1)
        await node.agent.hardware.pause()
        node.agent.hardware.resume()
        await node.until(lambda: TWO_G in node.kubelet.amounts)
        await node.rounds(2)
        assert node.healthy(TWO_G) == 0
        node.kubelet.finish(made)
        await offered(node, two=1)


async def test_positions_outlive_the_agent_and_the_instances() -> None:
    gpus = [h100("1g.10gb*2"), T4]
    async with cluster(gpus, mig="share") as there:
        await there.start_agent()
        await there.node.until(there.takes_pods)
        made = await there.run(pod("on-t4", mem=10))
        assert there.positions(made) == {2: 10}
        await there.node.stop_agent()
        there.node.hardware(h100("2g.20gb*1"), T4)
        await there.start_agent()
        two, _, t4 = there.node.uuids
        assert two in uuids(h100("2g.20gb*1"), tmp=there.node)[0]
        assert t4 in gpus_of(made)
        await there.node.until(lambda: [gpu["index"] for gpu in there.said_of_node()["gpus"]] == [0, 2])
        assert [gpu["index"] for gpu in there.said_of_node()["gone"]] == [1]
        await there.node.stop_agent()
        there.node.hardware(h100("1g.10gb*3"), T4)
        await there.start_agent()
        assert there.node.uuids[2] == t4
        await there.node.until(lambda: [gpu["index"] for gpu in there.said_of_node()["gpus"]] == [0, 1, 2, 3])


@pytest.mark.parametrize("chosen_by", ["label", "reload"])
async def test_shared_instances_that_the_driver_does_not_show_now_stay_on_the_node(chosen_by: str) -> None:
    """Also where the node's label or changed settings say that they are shared, not the settings of the start."""
    gpus, labels = [h100("1g.10gb*2"), T4], {"gpu-device-plugin/mig": "share"} if chosen_by == "label" else {}
    async with cluster(gpus, node_labels=labels, mig="off" if labels else "share") as there:
        await there.start_agent()
        await there.node.until(lambda: [gpu["index"] for gpu in there.said_of_node().get("gpus", ())] == [0, 1, 2])
        await there.node.stop_agent()
        there.node.hardware(*gpus, events=[{"at": 0, "failure": "no-driver"}])
        there.node.settings["mig"] = "off"
        there.node.launch()
        if chosen_by == "reload":
            change(there.node, mig="share")
        await there.node.until(lambda: [gpu["healthy"] for gpu in there.said_of_node()["gpus"]] == [False] * 3)


async def test_instances_whose_gpu_is_lost_come_back_with_it() -> None:
    async with world([h100("1g.10gb*2"), T4], mig="share") as node:
        agent = node.launch()
        agent.hardware.timings = MonitorTimings(probe_every_s=0.05, rescan_every_s=0.2, rescan_missing_every_s=0.2)
        await node.ready()
        await offered(node, mem=2 * 9 + 14)
        node.hardware({**h100("1g.10gb*2"), "lost": True}, T4)
        await offered(node, mem=14)
        assert not any(shared.gone for shared in agent.state.node.shares.gpus)
        node.hardware(h100("1g.10gb*2"), T4)
        await offered(node, mem=2 * 9 + 14)


# --- Health and use ---------------------------------------------------------------------------------------------------


async def test_an_xid_of_a_gpu_instance_condemns_this_one_alone() -> None:
    async with world([h100("1g.10gb*2"), T4], mig="whole") as node:
        await node.start_agent()
        await offered(node, one=2)
        first, second = uuids(h100("1g.10gb*2"), tmp=node)[0]
        node.hardware(h100("1g.10gb*2"), T4, events=[{"at": "0s", "gpu": 0, "xid": 48, "gi": 7}])
        await offered(node, one=1)
        assert shown(node, ONE_G) == {first: False, second: True}


async def test_an_xid_of_the_gpu_condemns_all_of_its_instances() -> None:
    async with world([h100("1g.10gb*2"), T4], mig="whole", probe_interval="10s") as node:
        await node.start_agent()
        await offered(node, one=2)
        node.hardware(h100("1g.10gb*2"), T4, events=[{"at": "0s", "gpu": 0, "xid": 79}])
        await offered(node, one=0, mem=14)
        assert node.agent is not None
        told = node.agent.state.node.blocks
        for uuid in uuids(h100("1g.10gb*2"), tmp=node)[0]:
            assert told[uuid].everyone.startswith("its GPU is unhealthy: XID 79")


async def test_the_use_of_an_instance_is_that_of_its_container() -> None:
    container_id = "5ad9" * 16
    async with cluster([h100("1g.10gb*2"), T4], usage_interval="50ms", mig="share") as there:
        await there.start_agent()
        made = await there.run(pod("web", mem=4))
        (uuid,) = gpus_of(made)
        there.node.process(11, made, container_id)
        event = {"at": "0s", "gpu": 0, "instance": uuid, "processes": [{"pid": 11, "used": "3GiB"}], "used": "3GiB"}
        there.node.hardware(h100("1g.10gb*2"), T4, events=[event])
        assert there.node.agent is not None
        reading = there.node.agent.features.of(Use).reading
        await there.node.until(
            lambda: (
                [(use.pod_uid, use.uuid, use.used_mib) for use in reading.value.containers] == [(made.uid, uuid, 3072)]
            )
        )


# --- Restarts and chance ----------------------------------------------------------------------------------------------


LAYOUTS = ("1g.10gb*7", "1g.10gb*3/2g.20gb*1", "2g.20gb*3", "3g.40gb*2", True)


@pytest.mark.chance
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_divided_anew_under_load_nothing_is_given_twice(seed: int) -> None:
    """Pods come and go in both ways while a GPU is divided anew, the way changes and the agent is started again."""
    chance = random.Random(seed)  # noqa: S311
    async with world([h100("1g.10gb*7"), h100("3g.40gb*2"), T4], seed=seed, mig="share") as node:
        await node.start_agent()
        for step in range(40):
            match chance.choice(["divide", "way", "restart", "pods", "pods", "pods", "end", "settle"]):
                case "divide":
                    node.hardware(h100(chance.choice(LAYOUTS)), h100(chance.choice(LAYOUTS)), T4)
                case "settle":
                    await node.rounds(1)
                case "way":
                    change(node, mig=chance.choice(["off", "whole", "share"]))
                case "restart":
                    await node.stop_agent()
                    await node.start_agent()
                case "pods":
                    await pods_come(node, chance, f"p{step}")
                case "end":
                    for made in [made for made in node.kubelet.running if chance.random() < 0.6]:
                        node.kubelet.finish(made)
            nothing_is_given_twice(node.kubelet.running)


async def pods_come(node: NodeWorld, chance: random.Random, name: str) -> None:
    for number in range(3):
        profiles = [resource for resource in node.kubelet.amounts if "mig-" in resource]
        resource = chance.choice([MEM, MEM, COUNT, *profiles])
        amount = chance.randint(1, 9) if resource == MEM else 1
        await node.kubelet.admit(asking(f"{name}-{number}", resource, amount))


def nothing_is_given_twice(pods: tuple[Pod, ...] | list[Pod]) -> None:
    taken = [name for made in pods for each in made.containers for ids in each.devices.values() for name in ids]
    assert len(set(taken)) == len(taken)
    whole = {uuid for uuid, number in map(parse_id, taken) if number is None}
    shared = {uuid for uuid, number in map(parse_id, taken) if number is not None}
    assert not whole & shared
    for made in pods:
        for each in made.containers:
            on = {parse_id(name)[0] for name in each.devices.get(MEM, ())}
            assert len(on) <= 1
