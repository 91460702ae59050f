"""GPUs with the UUIDs of every driver: an agent lists, gives, books, cordons, excludes and remembers them alike."""

import json
from typing import Any

import pytest

from gpu_device_plugin.model.contract.cordons import Cordon, read_cordons, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, NODE_USE
from gpu_device_plugin.model.contract.node_use import read_node_use
from gpu_device_plugin.model.contract.nodegpus import read_node_gpus
from gpu_device_plugin.model.shares import parse_id, share_id
from gpu_device_plugin.report.rules.printing import short_uuid
from tests.features.cordon.test_cordons import start
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, Cluster, cluster, promise
from tests.node.harness import container, envs_of, gpus_of, pod

NVIDIA = "GPU-5f2c0b1e-9d3a-4c55-8b6e-0123456789ab"
BOARD = "GPU-0123456789ABCDEF"
ADDRESS = "PCI-0000:03:00.0"
PARTITION = "GPU-FEDCBA9876543210-p3"
PARTITION_AT = "PCI-10000:c1:00.0-p1"
"""A PCI domain has up to eight digits."""
EVERY = (NVIDIA, BOARD, ADDRESS, PARTITION, PARTITION_AT)
OTHERS = EVERY[1:]
MI210 = {"model": "MI210", "memory": "8GiB", "devices": ["/dev/kfd", "/dev/dri/renderD128"]}


def described(*uuids: str, **more: Any) -> list[dict[str, Any]]:
    of_nvidia = {"model": "T4", "memory": "8GiB", "reserved": "0GiB"}
    return [{**(of_nvidia if uuid == NVIDIA else MI210), "uuid": uuid, **more} for uuid in uuids]


@pytest.mark.parametrize("uuid", EVERY)
async def test_an_agent_gives_books_and_remembers_a_gpu_with_any_uuid(uuid: str) -> None:
    """Beside another one, to which nothing goes."""
    async with cluster(described(uuid, "GPU-00000000000000AA"), http="127.0.0.1:0") as there:
        await there.start_agent()
        await there.node.healthy_is(MEM, 16)
        made = await there.run(pod("shares", mem=3), promise(0, 3))
        assert (made.phase, gpus_of(made), there.positions(made)) == ("Running", {uuid}, {0: 3})
        assert {parse_id(name)[0] for name in there.node.held} == {uuid}
        await there.assigned("shares")
        await there.node.stop_agent()

        await there.start_agent()
        await there.node.confirmed()
        assert {parse_id(name)[0] for name in there.node.held} == {uuid}
        whole = await there.run(pod("whole", count=1))
        assert gpus_of(whole, COUNT) == {"GPU-00000000000000AA"}, "the other is in use"
        await there.node.until(lambda: [gpu.uuid for gpu in listed(there)] == [uuid, "GPU-00000000000000AA"])
        assert f'gpu="{uuid}"' in await there.metrics()


@pytest.mark.parametrize("uuid", OTHERS)
async def test_a_container_gets_the_nodes_of_its_gpu_and_no_runtime_adds_any(uuid: str) -> None:
    async with cluster(described(uuid)) as there:
        await there.start_agent()
        made = await there.run(pod("shares", mem=3))
        assert [each.host_path for each in made.only.received.devices] == ["/dev/kfd", "/dev/dri/renderD128"]
        envs = envs_of(made)
        assert (envs["NVIDIA_VISIBLE_DEVICES"], envs["GPUSHARE_MEMORY_LIMIT_MIB"]) == ("void", "3072")


@pytest.mark.parametrize("uuid", EVERY)
async def test_a_cordoned_gpu_is_given_to_no_new_pod(uuid: str) -> None:
    async with cluster(described(uuid, "GPU-00000000000000AA")) as there:
        await start(there)
        cordons = write_cordons({uuid: Cordon("ops", "", "fan")})
        assert cordons is not None
        assert read_cordons(cordons).keys() == {uuid}
        there.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: cordons}}})
        await there.node.healthy_is(MEM, 8)
        await there.node.until(lambda: [gpu.cordon is not None for gpu in listed(there)] == [True, False])
        made = await there.run(pod("shares", mem=3))
        assert gpus_of(made) == {"GPU-00000000000000AA"}


@pytest.mark.parametrize("uuid", EVERY)
async def test_a_pod_may_name_its_gpu_by_any_uuid(uuid: str) -> None:
    async with cluster(described("GPU-00000000000000AA", uuid)) as there:
        await there.start_agent()
        spec = pod("choosy", mem=3)
        there.create(spec, annotations={"gpu-device-plugin/use-uuid": uuid})
        await there.bind("choosy")
        made = await there.admit(there.known(spec))
        assert gpus_of(made) == {uuid}


@pytest.mark.parametrize("uuid", EVERY)
async def test_a_gpu_is_excluded_by_any_uuid(uuid: str) -> None:
    async with cluster(described(uuid, "GPU-00000000000000AA"), exclude_gpus=uuid) as there:
        await there.start_agent()
        await there.node.healthy_is(MEM, 8)
        assert gpus_of(await there.run(pod("shares", mem=8))) == {"GPU-00000000000000AA"}


async def test_pods_of_a_node_with_gpus_of_several_drivers_are_told_apart() -> None:
    async with cluster(described(*EVERY)) as there:
        there.node.show_processes()
        await there.start_agent()
        await there.node.healthy_is(MEM, 40)
        for position, uuid in enumerate(EVERY):
            made = await there.run(pod(f"p{position}", mem=2), promise(position, 2))
            assert gpus_of(made) == {uuid}
            assert envs_of(made)["NVIDIA_VISIBLE_DEVICES"] == (uuid if uuid == NVIDIA else "void")
        await there.node.until(lambda: NODE_USE in annotations(there))
        assert sorted(read_node_use(annotations(there)[NODE_USE]).gpus) == [0, 1, 2, 3, 4]
        two = await there.run(pod("two", container("a", mem=1), container("b", mem=1)), promise(2, 2))
        assert there.positions(two) == {2: 2}


def annotations(there: Cluster) -> dict[str, str]:
    found: dict[str, str] = there.api.get("nodes", NODE)["metadata"].get("annotations", {})
    return found


def listed(there: Cluster) -> Any:
    return read_node_gpus(json.dumps(there.said_of_node())).gpus


@pytest.mark.parametrize("uuid", EVERY)
def test_the_id_of_a_share_names_its_gpu(uuid: str) -> None:
    assert parse_id(share_id(uuid, 17)) == (uuid, 17)
    assert parse_id(uuid) == (uuid, None)


def test_tables_tell_gpus_apart_by_the_beginning_of_their_uuids() -> None:
    assert [short_uuid(uuid) for uuid in EVERY] == [
        "5f2c0b1e",
        "01234567",
        "0000:03:00.0",
        "FEDCBA98-p3",
        "10000:c1:00.0-p1",
    ]
