"""Slices and claims in our API server are validated, dropped and applied as in the real one (KUBE_BIN)."""

import asyncio
import copy
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin.features.claims.claim_objects import CLAIMS, SLICES, read_slice
from gpu_device_plugin.features.claims.rules.devices import SliceInputs, devices, plain_devices
from gpu_device_plugin.features.claims.rules.pool import contents, dropped, writes
from gpu_device_plugin.kubernetes.client.api_client import Client, PatchType, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ConflictError, InvalidError
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.node.rules.node import Node
from tests.claims import mig_node, node
from tests.cluster_double.api_server import ApiServer
from tests.kubernetes.conftest import Api, RealServer, processes, programs

Json = dict[str, Any]
PATH = "/apis/resource.k8s.io/v1/resourceslices"
OLDER = "--feature-gates=" + ",".join(
    f"{gate}=false"
    for gate in ("DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceTaints", "DRAExtendedResource")
)
"""With these an API server of 1.36 reads slices as one of 1.34 does."""


@pytest.fixture
def name() -> str:
    """A name that no other test uses: the real server lives as long as all of them."""
    return f"t{uuid.uuid4().hex[:10]}"


def specs(name: str, **facts: Any) -> list[Json]:
    """Return the specs of the slices of a node of this name with three GPUs, one of them out of service."""
    here = node(16, 8, 141, unhealthy={1: "XID 79"}, nvlinks=[(0, 2)])
    return [
        dict(spec)
        for _, spec, _ in writes(name, contents(devices(here, SliceInputs((), "570.86.03", **facts))), ()).put
    ]


def body(name: str, spec: Json, number: int = 0) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-{number}"},
        "spec": spec,
    }


async def test_what_we_publish_comes_back_as_it_was_sent(api: Api, name: str) -> None:
    for number, spec in enumerate(specs(name)):
        stored = await api.client.create(SLICES, body(name, spec, number))
        found = read_slice(stored)
        assert not dropped(spec, {"driver": spec["driver"], **_spec(stored)})
        assert found.generation == 1
        taints = [taint for device in spec.get("devices", ()) for taint in device.get("taints", ())]
        kept = [taint for device in found.content.get("devices", ()) for taint in device.get("taints", ())]
        assert [taint["timeAdded"].endswith("Z") for taint in kept] == [True] * len(taints)


@pytest.mark.parametrize(
    "here",
    [
        pytest.param(mig_node(*[[10] * 7] * 8), id="8x7"),
        pytest.param(mig_node(8, *[[10]] * 9), id="9x1"),
        pytest.param(mig_node([10, 20], 80, mode=MigMode.WHOLE), id="whole"),
        pytest.param(mig_node([10], 8, share_mib=8192), id="one share"),
    ],
)
async def test_instances_are_published_within_all_limits(api: Api, name: str, here: Node) -> None:
    for number, (_, spec, _) in enumerate(writes(name, contents(devices(here, SliceInputs(()))), ()).put):
        stored = await api.client.create(SLICES, body(name, dict(spec), number))
        assert not dropped(spec, _spec(stored))


def _spec(stored: bytes) -> Json:
    found: Json = json.loads(stored)["spec"]
    return found


async def test_a_dry_run_answers_and_stores_nothing(api: Api, name: str) -> None:
    spec = specs(name)[0]
    assert not dropped(spec, _spec(await api.client.create(SLICES, body(name, spec), dry_run=True)))
    assert (await api.ask("GET", f"{PATH}/{name}-0"))[0] == 404


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
POLICY = "devices/0/capacity/memory/requestPolicy"


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("devices", lambda device: [device | {"name": f"d{n}", "taints": [TAINT]} for n in range(65)]),
        ("devices", lambda device: [device, device]),
        ("sharedCounters", [{"name": "x", "counters": {"c": {"value": "1"}}}]),
        ("devices/0/name", "GPU_0"),
        ("devices/0/attributes/productName", {"string": "x" * 65}),
        ("devices/0/attributes/driverVersion", {"version": "570.86.03"}),
        ("devices/0/attributes/index", {"int": 0, "string": "0"}),
        ("devices/0/attributes", lambda device: device["attributes"] | {f"a{n}": {"int": n} for n in range(32)}),
        ("devices/0/allowMultipleAllocations", False),
        (POLICY, {"validRange": {"min": "1Gi", "step": "1Gi"}}),
        (POLICY, {"default": "16Gi", "validRange": {"min": "16Gi", "max": "16Gi", "step": "16Gi"}}),
        (f"{POLICY}/default", "1500Mi"),
        (f"{POLICY}/validRange/max", "4Ti"),
        ("devices/0/taints", [{"key": "k", "value": "v", "effect": "Soon"}]),
        ("devices/0/taints", [{"key": "k", "value": "v" * 64, "effect": "NoSchedule"}]),
        ("pool", {"name": "", "generation": 1, "resourceSliceCount": 1}),
        ("nodeName", ""),
    ],
)
async def test_a_slice_with_a_fault_is_refused(api: Api, name: str, where: str, what: Any) -> None:
    spec = copy.deepcopy(specs(name)[0])
    *path, last = where.split("/")
    part: Any = spec
    for key in path:
        part = part[int(key) if isinstance(part, list) else key]
    part[last] = what(spec["devices"][0]) if callable(what) else what
    with pytest.raises(InvalidError):
        await api.client.create(SLICES, body(name, spec))


async def test_slices_are_selected_by_driver_and_node(api: Api, name: str) -> None:
    await api.client.create(SLICES, body(name, specs(name)[0]))
    found = {}
    for fields in (f"spec.driver=gpu-device-plugin,spec.nodeName={name}", "spec.driver=other", "spec.nodeName=nowhere"):
        pages = [page async for page in api.client.pages(SLICES, fields=fields)]
        found[fields] = [read_slice(raw).name for page in pages for raw in page.items or ()]
    assert list(found.values()) == [[f"{name}-0"], [], []]


async def test_an_update_needs_the_version_that_is_there_and_a_deletion_ends_it(api: Api, name: str) -> None:
    made = read_slice(await api.client.create(SLICES, body(name, specs(name)[0])))
    old = body(name, specs(name)[0]) | {"metadata": {"name": f"{name}-0", "resourceVersion": "1"}}
    with pytest.raises(ConflictError):
        await api.client.replace(SLICES, f"{name}-0", old)
    with pytest.raises(ConflictError):
        await api.client.delete(SLICES, f"{name}-0", uid="another")
    await api.client.delete(SLICES, f"{name}-0", uid=made.uid)
    assert (await api.ask("GET", f"{PATH}/{name}-0"))[0] == 404


# --- Claims -----------------------------------------------------------------------------------------------------------


async def allocated(api: Api, name: str) -> Json:
    """Make a claim that a scheduler has allocated."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpushare", "allocationMode": "ExactCount", "count": 1}}]
    claim: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
    }
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    status, made = await api.ask("POST", path, claim)
    assert status == 201, made
    result = {"request": "gpu", "driver": "gpu-device-plugin", "pool": "gpu-1", "device": "gpu-0"}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    made["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    status, found = await api.ask("PUT", f"{path}/{name}/status", made)
    assert status == 200, found
    given: Json = found
    return given


def said(name: str, uid: str, device: str = "gpu-0", **data: Any) -> Json:
    devices = [{"driver": "gpu-device-plugin", "pool": "gpu-1", "device": device, "data": data}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "status": {"devices": devices},
    }


async def apply(api: Api, name: str, patch: Json) -> None:
    await api.client.patch(CLAIMS, name, patch, namespace="default", subresource="status", how=PatchType.APPLY)


async def test_a_driver_says_what_a_claim_has_and_says_it_again(api: Api, name: str) -> None:
    uid = (await allocated(api, name))["metadata"]["uid"]
    for mib in (1, 2):
        await apply(api, name, said(name, uid, memoryMiB=mib))
        _, found = await api.ask("GET", f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}")
        assert [each["data"] for each in found["status"]["devices"]] == [{"memoryMiB": mib}]
        assert found["status"]["allocation"]
        assert found["status"]["reservedFor"]


async def test_nobody_says_anything_of_a_device_that_is_not_allocated_or_of_another_claim(api: Api, name: str) -> None:
    uid = (await allocated(api, name))["metadata"]["uid"]
    with pytest.raises(InvalidError):
        await apply(api, name, said(name, uid, "gpu-1"))
    with pytest.raises(InvalidError, match=r"metadata\.uid"):
        await apply(api, name, said(name, str(uuid.uuid4())))


# --- An older server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def older_real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with processes(tmp_path_factory.mktemp("older"), programs(), "--authorization-mode=RBAC", OLDER) as server:
        yield server


@pytest.fixture(params=["double", "real"] if os.environ.get("KUBE_BIN") else ["double"])
async def older(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """An API server that knows whole devices only."""
    async with aiohttp.ClientSession() as http:
        if request.param == "real":
            real: RealServer = request.getfixturevalue("older_real_server")
            async with Client(real.config, timing=Timing(watch_s=20)) as client:
                yield Api(real.config, real.stranger, http, client, lambda: asyncio.to_thread(real.restart))
            return
        async with ApiServer() as server, Client(ClusterConfig(server.url)) as client:
            server.older = True
            yield Api(ClusterConfig(server.url), ClusterConfig(server.url), http, client, server.stop)


async def test_an_older_server_drops_what_it_does_not_know_without_a_word(older: Api, name: str) -> None:
    (spec,) = specs(name)
    stored = _spec(await older.client.create(SLICES, body(name, spec), dry_run=True))
    assert set(dropped(spec, stored)) == {"allowMultipleAllocations", "requestPolicy", "taints"}


async def test_an_older_server_keeps_whole_devices(older: Api, name: str) -> None:
    (content,) = contents(plain_devices(node(16, 8), SliceInputs((), "570.86")))
    ((_, spec, _),) = writes(name, [content], ()).put
    assert not dropped(spec, _spec(await older.client.create(SLICES, body(name, dict(spec)))))
