"""A node that serves ResourceClaims: between a kubelet, an API server and a scheduler by the real rules."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.features.claims.dra_services import DraLoop, DraServicer
from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim
from gpu_device_plugin.features.mps.contract import MpsStatus
from gpu_device_plugin.kubelet._proto import dra_v1_pb2, dra_v1_pb2_grpc
from gpu_device_plugin.kubelet.calls import channel
from gpu_device_plugin.kubelet.sockets import DirectoryGoneError
from gpu_device_plugin.metrics import PrometheusMetrics
from gpu_device_plugin.model.contract.cordons import Cordon, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS
from tests.cluster_double.troubles import Answer, Garbage
from tests.features.claims.dra_harness import Claims, claims
from tests.features.mps.mps_supervisor import Supervisor
from tests.node.cluster_harness import NODE, RIGHTS
from tests.node.harness import T4
from tests.ports import free_port
from tests.scheduler_double.dra_scheduler import exactly

WHOLE = exactly("whole-gpu")


def names_of(files: object) -> list[str]:
    return sorted(path.name for path in files)  # type: ignore[attr-defined]


async def test_a_claim_gets_a_part_of_a_gpu_and_its_containers_the_variables_of_a_share() -> None:
    async with claims() as here:
        await here.start()
        started = await here.run_claim("c1", exactly(memory="3500Mi"))
        assert started.error == ""
        assert started.environ == {
            "NVIDIA_VISIBLE_DEVICES": started.environ["NVIDIA_VISIBLE_DEVICES"],
            "GPUSHARE_MEMORY_LIMIT_MIB": "4096",
            "GPUSHARE_MEMORY_GUARANTEED_MIB": "4096",
            "GPUSHARE_MEMORY_LIMIT_BY": "advisory",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "4",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
            "ALIYUN_COM_GPU_MEM_DEV": "14",
        }
        uuid = started.environ["NVIDIA_VISIBLE_DEVICES"]
        await here.node.until(lambda: bool(here.status("c1")))
        (device,) = here.status("c1")
        assert device["data"] == {"uuid": uuid, "memoryMiB": 4096, "limitBy": "advisory"}
        assert device["device"] == uuid.lower()
        await here.end_claim("c1")
        assert not list(here.kubelet.cdi.iterdir())
        assert not list(here.dra.loop.claims.iterdir())
        assert here.node.agent is not None
        assert not here.node.agent.state.node.ledger.id_states


async def test_shares_and_whole_gpus_never_meet_on_one_gpu() -> None:
    async with claims() as here:
        await here.start()
        share = await here.run_claim("share", exactly(memory="1Gi"))
        whole = await here.run_claim("whole", WHOLE)
        assert "GPUSHARE_MEMORY_LIMIT_MIB" not in whole.environ
        assert whole.environ["NVIDIA_VISIBLE_DEVICES"] != share.environ["NVIDIA_VISIBLE_DEVICES"]
        for name, wish in (("more", exactly(memory="14Gi")), ("another", WHOLE)):
            here.wish(name, wish)
            assert here.allocate(name) == "cannot allocate all claims"
        await here.end_claim("share")
        assert here.allocate("another") == ""
        assert (await here.kubelet.start_pod("another")).error == ""


async def test_two_pods_share_a_claim_and_the_last_one_ends_it() -> None:
    async with claims() as here:
        await here.start()
        here.wish("c1", pods=("p1", "p2"))
        assert here.allocate("c1", "p1", "p2") == ""
        first, second = await here.kubelet.start_pod("p1"), await here.kubelet.start_pod("p2")
        assert first == second
        await here.kubelet.end_pod("p1")
        assert here.dra.claims.prepared.value
        await here.kubelet.end_pod("p2")
        assert not here.dra.claims.prepared.value


async def test_an_agent_that_was_killed_finds_its_claims_again_and_ends_them() -> None:
    async with claims() as here:
        await here.start()
        before = await here.run_claim("c1")
        await here.node.stop_agent()
        for path in here.kubelet.cdi.iterdir():  # a reboot empties /run
            path.unlink()
        assert await here.kubelet.end_pod("c1") != ""
        await here.start()
        assert await here.kubelet.start_pod("c1") == before
        assert (await here.run_claim("c2", exactly(memory="13Gi"))).environ["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        await here.end_claim("c1")
        assert names_of(here.kubelet.cdi.iterdir()) == [
            f"gpu-device-plugin-claim_{here.api.get('resourceclaims', 'c2')['metadata']['uid']}.json"
        ]


async def test_a_claim_whose_file_is_damaged_is_read_from_the_api_again() -> None:
    async with claims() as here:
        await here.start()
        before = await here.run_claim("c1", exactly(memory="10Gi"))
        await here.run_claim("gone")
        await here.node.stop_agent()
        for path in here.dra_files():
            path.write_text("\0" * 20)
        here.scheduler.release("gone")
        await here.start()
        assert list(here.dra.claims.prepared.value) == [here.api.get("resourceclaims", "c1")["metadata"]["uid"]]
        assert (await here.kubelet.start_pod("c1")).environ == before.environ


@pytest.mark.parametrize("serve", ["dra", "device-plugin"])
async def test_an_agent_that_waits_for_the_api_with_the_damaged_file_of_a_claim_is_alive_and_not_ready(
    serve: str,
) -> None:
    """A probe that restarts it would do so for ever: a new process cannot read the file either."""
    async with claims() as here:
        await here.start()
        await here.run_claim("c1")
        await here.node.stop_agent()
        for path in here.dra_files():
            path.write_text("\0" * 20)
        here.api.fail(Answer(503), resources=["resourceclaims"])
        here.launch(serve=serve)
        assert here.node.agent is not None
        switch = here.node.agent.server
        await here.node.until(lambda: bool(here.dra.unrecovered))
        assert await switch.alive() == ()
        assert any("claims that were prepared on this node are not known yet" in why for why in await switch.ready())
        here.api.heal()
        await here.node.until(lambda: bool(here.dra.claims.prepared.value))


async def test_a_gpu_that_a_claim_has_by_a_device_of_a_former_agent_is_given_to_nobody_else() -> None:
    """Such a device was beside the one for parts, and kube-scheduler counts nothing of it for that one."""
    async with claims() as here:
        await here.start()
        here.wish("c1", WHOLE)
        assert here.allocate("c1") == ""
        allocation = here.api.get("resourceclaims", "c1")["status"]["allocation"]
        (result,) = allocation["devices"]["results"]
        name = result["device"]
        former = {"request": result["request"], "driver": result["driver"], "pool": result["pool"]}
        allocation["devices"] = {"results": [former | {"device": f"{name}-whole"}]}
        here.api.patch("resourceclaims", "c1", {"status": {"allocation": allocation}}, "default", "status")
        started = await here.kubelet.start_pod("c1")
        assert (started.error, started.environ["NVIDIA_VISIBLE_DEVICES"].lower()) == ("", name)
        await here.node.until(lambda: "taints" in here.devices()[name])
        other = await here.run_claim("c2", WHOLE)
        assert (other.error, other.environ["NVIDIA_VISIBLE_DEVICES"].lower() != name) == ("", True)
        await here.end_claim("c1")
        await here.node.until(lambda: "taints" not in here.devices()[name])


async def test_a_cordon_keeps_new_claims_from_a_gpu_and_serves_those_that_were_allocated_before() -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        (uuid,) = here.node.uuids
        here.wish("before")
        assert here.allocate("before") == ""
        text = write_cordons({uuid: Cordon("alice")})
        here.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: text}}})
        await here.node.until(lambda: "taints" in here.devices()[uuid.lower()])
        (taint,) = here.devices()[uuid.lower()]["taints"]
        assert (taint["key"], taint["effect"]) == ("gpu-device-plugin/cordoned", "NoSchedule")
        here.wish("after")
        assert here.allocate("after") != ""
        assert (await here.kubelet.start_pod("before")).error == ""
        here.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: None}}})
        await here.node.until(lambda: "taints" not in here.devices()[uuid.lower()])
        assert here.allocate("after") == ""


@pytest.mark.parametrize("which", ["registry", "plugins"])
async def test_a_driver_whose_container_still_sees_a_deleted_directory_of_the_kubelet_is_restarted(which: str) -> None:
    """The way through an open descriptor is what a bind mount is to a container: it leads to what is no more."""
    async with claims() as here:
        gone = here.kubelet.plugins.with_name("gone")
        gone.mkdir()
        descriptor = os.open(gone, os.O_RDONLY)
        gone.rmdir()
        here.launch()
        mounted, loop = Path(f"/proc/self/fd/{descriptor}"), here.dra.loop
        if which == "registry":
            loop.registry = mounted
        else:
            loop.plugin = mounted / DRIVER
        assert isinstance(await here.node.ended(), DirectoryGoneError)
        os.close(descriptor)


async def test_slices_that_somebody_removes_come_back() -> None:
    async with claims() as here:
        await here.start()
        assert len(here.devices()) == 4
        await here.kubelet.stop()
        await here.kubelet.start()
        assert here.kubelet.wiped == 2
        await here.node.until(lambda: len(here.devices()) == 4)
        assert len({spec["pool"]["generation"] for spec in here.slices()}) == 1
        await here.serves()
        assert (await here.run_claim("c1")).error == ""


@pytest.mark.parametrize("body", [b"<html>sign in, please</html>", b"{}"])
async def test_slices_are_published_although_a_proxy_answered_in_place_of_the_api_server(body: bytes) -> None:
    async with claims() as here:
        here.api.fail(Garbage(body), verbs=["get", "create"], resources=["nodes", "resourceslices"], times=4)
        await here.start()
        assert len(here.devices()) == 4


async def test_no_device_is_offered_before_the_kubelet_can_call_the_driver() -> None:
    """A pod that the scheduler sends there in between starts a minute late: when the kubelet tries its claim again."""
    async with claims() as here:
        here.kubelet.looks.clear()
        here.launch()
        await here.node.until(lambda: bool(here.dra.offer.reflector.lists and here.dra.offer.wanted.value))
        await unchanged_slices(here, 0)
        here.kubelet.looks.set()
        await here.serves()
        assert len(here.devices()) == 4


async def test_slices_that_a_kubelet_removed_at_its_start_wait_until_it_knows_the_driver_again() -> None:
    async with claims() as here:
        await here.start()
        await here.node.until(lambda: bool(here.kubelet.health))  # who never listened is not missed
        await here.kubelet.stop()
        await here.node.until(lambda: not here.dra.loop.reached.value)
        here.kubelet.looks.clear()
        await here.kubelet.start()
        await here.node.until(lambda: not here.dra.offer._found)
        await unchanged_slices(here, 0)
        here.kubelet.looks.set()
        await here.serves()
        assert (await here.run_claim("c1")).error == ""


async def test_slices_that_are_there_are_kept_up_to_date_while_the_kubelet_is_away() -> None:
    async with claims([T4, T4]) as here:
        await here.start()
        await here.node.until(lambda: bool(here.kubelet.health))  # who never listened is not missed
        await here.kubelet.stop()
        await here.node.until(lambda: not here.dra.loop.reached.value)
        here.node.hardware(T4 | {"lost": True}, T4)
        await here.node.until(lambda: any(device.get("taints") for device in here.devices().values()))
        assert len(here.slices()) == 1


async def unchanged_slices(here: Claims, count: int) -> None:
    """Have the agent ask the API server often enough for it to have published slices between two of the questions."""
    for _ in range(20):
        await here.dra.claims.allocated()
        assert len(here.slices()) == count


async def test_a_claim_waits_in_its_call_for_the_end_of_the_one_before() -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        here.dra.claims.wait_s = 3600
        await here.run_claim("old", exactly(memory="14Gi"))
        uid = here.api.get("pods", "old")["metadata"]["uid"]
        here.api.delete("pods", "old")  # by force: for the API server it has ended
        here.scheduler.release("old")
        here.wish("new", exactly(memory="14Gi"))
        assert here.allocate("new") == ""
        await here.seen("new")
        starts = asyncio.create_task(here.kubelet.start_pod("new"))
        await here.node.until(lambda: here.api.count("get", "resourceclaims") >= 2)
        assert await here.kubelet.end_pod("old", uid=uid) == ""
        assert (await starts).error == ""


async def test_a_claim_is_read_again_in_its_call_while_the_api_server_fails() -> None:
    async with claims() as here:
        await here.start()
        here.dra.claims.wait_s = 3600
        here.api.fail(Answer(503), verbs=["get"], resources=["resourceclaims"], times=2)
        assert (await here.run_claim("c1")).error == ""
        assert here.api.count("get", "resourceclaims") == 3


async def test_two_claims_of_one_call_wait_side_by_side() -> None:
    async with claims("fake:2xT4") as here:
        await here.start()
        await here.run_claim("old", exactly(memory="14Gi"))
        uid = here.api.get("pods", "old")["metadata"]["uid"]
        here.api.delete("pods", "old")
        here.scheduler.release("old")
        for name in ("late", "now"):
            here.wish(name, exactly(memory="14Gi"), pods=(f"unused-{name}",))
        here.pod("p1", "late", "now", container="a")
        assert here.allocate("late", "p1") == here.allocate("now", "p1") == ""
        here.dra.claims.wait_s = 3600
        starts = asyncio.create_task(here.kubelet.start_pod("p1"))
        now = here.api.get("resourceclaims", "now")["metadata"]["uid"]
        await here.node.until(lambda: now in here.dra.claims.prepared.value)
        assert await here.kubelet.end_pod("old", uid=uid) == ""
        await starts


async def test_a_call_that_is_given_up_while_it_writes_leaves_nothing_to_the_next_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with claims() as here:
        await here.start()
        here.wish("c1")
        assert here.allocate("c1") == ""
        uid = here.api.get("resourceclaims", "c1")["metadata"]["uid"]
        write, writing, may = here.dra.store.write, threading.Event(), threading.Event()

        def slowly(claim: PreparedClaim) -> None:
            writing.set()
            may.wait()
            write(claim)

        monkeypatch.setattr(here.dra.store, "write", slowly)
        call = asyncio.create_task(here.dra.claims.prepare(dra_v1_pb2.Claim(uid=uid, namespace="default", name="c1")))
        await here.node.until(writing.is_set)
        call.cancel()
        end = asyncio.create_task(here.dra.claims.unprepare(uid))
        await unchanged_slices(here, 1)
        may.set()
        await asyncio.gather(call, end, return_exceptions=True)
        assert not here.dra_files()
        assert not list(here.kubelet.cdi.iterdir())


async def test_a_claim_that_was_released_while_its_call_waited_is_not_prepared() -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        here.dra.claims.wait_s = 3600
        await here.run_claim("old", exactly(memory="14Gi"))
        uid = here.api.get("pods", "old")["metadata"]["uid"]
        here.api.delete("pods", "old")
        here.scheduler.release("old")
        here.wish("new", exactly(memory="14Gi"))
        assert here.allocate("new") == ""
        await here.seen("new")
        starts = asyncio.create_task(here.kubelet.start_pod("new"))
        await here.node.until(lambda: here.api.count("get", "resourceclaims") >= 2)
        here.scheduler.release("new")
        assert await here.kubelet.end_pod("old", uid=uid) == ""
        assert "delete the pod so that it is scheduled again" in (await starts).error
        assert not here.dra.claims.prepared.value


async def test_a_kubelet_does_not_prepare_twice_what_it_remembers() -> None:
    async with claims() as here:
        await here.start()
        before = await here.run_claim("c1")
        await here.kubelet.stop()
        await here.kubelet.start()
        await here.serves()
        assert await here.kubelet.start_pod("c1") == before
        await here.end_claim("c1")
        assert not here.dra.claims.prepared.value


async def test_sockets_that_vanish_are_made_anew() -> None:
    async with claims() as here:
        await here.start()
        for path in here.kubelet.registry.glob("*.sock"):
            path.unlink()
        await here.node.until(lambda: here.dra.loop.registrations == 2)
        await here.serves()
        assert (await here.run_claim("c1")).error == ""


@pytest.mark.parametrize("which", ["services", "registration"])
async def test_a_driver_of_which_a_socket_does_not_answer_gets_new_ones(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a device plugin: a server out of file descriptors is like that. A restart would take all else with it."""
    deaf = False

    def sometimes_deaf(answer: Any) -> Any:
        async def answering(*arguments: Any) -> Any:
            if deaf:
                raise OSError(24, "Too many open files")
            return await answer(*arguments)

        return answering

    if which == "services":
        monkeypatch.setattr(DraServicer, "for_each", sometimes_deaf(DraServicer.for_each))
    else:
        monkeypatch.setattr(DraLoop, "GetInfo", sometimes_deaf(DraLoop.GetInfo))
    async with claims() as here:
        await here.start()
        assert here.node.agent is not None
        alive = here.node.agent.server.alive
        assert await alive() == ()
        before = set(here.kubelet.plugins.rglob("*.sock")) | set(here.kubelet.registry.glob("*.sock"))
        deaf = True
        await here.node.until(lambda: not any(path.exists() for path in before))
        assert await alive() == ("the DRA driver's socket does not answer",)
        deaf = False
        await here.serves()
        assert await alive() == ()
        assert (await here.run_claim("c1")).error == ""


async def test_a_message_larger_than_any_of_a_kubelet_is_not_read() -> None:
    async with claims() as here:
        await here.start()
        (services,) = (here.kubelet.plugins / DRIVER).glob("*.sock")
        request = dra_v1_pb2.NodePrepareResourcesRequest()
        request.claims.add(uid="a" * (1 << 20), namespace="default", name="c1")
        async with channel(services) as opened:
            answering = dra_v1_pb2_grpc.DRAPluginStub(opened).NodePrepareResources(request)
            assert await answering.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_registrations_of_the_driver_are_counted_like_those_of_a_device_plugin() -> None:
    async with claims(http=f"127.0.0.1:{free_port()}") as here:
        await here.start()
        assert here.node.agent is not None
        metrics = here.node.agent.metrics
        assert isinstance(metrics, PrometheusMetrics)
        counted = f'gpushare_kubelet_registrations_total{{outcome="registered",resource="{DRIVER}"}} 1.0'
        assert counted in str((await metrics.page()).body).splitlines()


async def test_a_gpu_that_fails_has_a_taint_and_the_pods_on_it_are_told() -> None:
    async with claims([T4, T4]) as here:
        await here.start()
        started = await here.run_claim("c1")
        uuid = started.environ["NVIDIA_VISIBLE_DEVICES"]
        here.node.hardware(T4 | {"lost": True}, T4)
        await here.node.until(lambda: bool(here.devices()[uuid.lower()].get("taints")))
        (taint,) = here.devices()[uuid.lower()]["taints"]
        assert (taint["key"], taint["effect"]) == ("gpu-device-plugin/unhealthy", "NoSchedule")
        here.node.reload(on_gpu_failure="evict")
        await here.node.until(lambda: here.devices()[uuid.lower()]["taints"][0]["effect"] == "NoExecute")
        await here.node.until(lambda: here.kubelet.health.get((NODE, uuid.lower()), (True, ""))[0] is False)


@pytest.mark.parametrize(
    "parameters",
    [
        {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig", "limits": "strict"},
        {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig", "memory": "4Gi"},
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {},
    ],
)
async def test_parameters_that_cannot_be_used_are_told_to_the_pod(parameters: object) -> None:
    async with claims() as here:
        await here.start()
        started = await here.run_claim("c1", parameters=parameters)
        assert "correct the parameters of claim default/c1 for gpu-device-plugin" in started.error
        assert not list(here.kubelet.cdi.iterdir())


PARAMETERS = {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig"}


async def test_parameters_ask_for_limits_and_frameworks() -> None:
    async with claims() as here:
        await here.start()
        given = PARAMETERS
        kept = await here.run_claim("c1", parameters={**given, "frameworks": ["jax"], "computePercent": 30})
        assert "XLA_CLIENT_MEM_FRACTION" in kept.environ
        assert kept.environ["GPUSHARE_COMPUTE_LIMIT_PERCENT"] == "30"
        refused = await here.run_claim("c2", parameters={**given, "limits": "driver"})
        assert "the parameters of the claim require limits of driver, and this node has advisory" in refused.error


async def test_a_claim_that_requires_the_limits_of_its_node_is_prepared() -> None:
    async with claims([T4 | {"memory_limits": True}]) as here:
        await here.start(limits="driver")
        kept = await here.run_claim("c1", exactly(memory="4Gi"), parameters={**PARAMETERS, "limits": "driver"})
        assert kept.error == ""
        assert kept.environ["GPUSHARE_MEMORY_LIMIT_BY"] == "driver"


async def test_limits_that_the_administrator_requires_and_that_are_not_there_refuse_parts_only() -> None:
    async with claims() as here:
        await here.start()
        wishes = {"part": exactly(memory="4Gi"), "watcher": exactly("monitor", admin=True), "whole": WHOLE}
        for name, wish in wishes.items():
            here.wish(name, wish)
            assert here.allocate(name) == ""
        here.node.reload(limits="driver", limits_fallback="refuse")
        errors = {name: (await here.kubelet.start_pod(name)).error for name in wishes}
        assert "GPU 0: enforced memory limits are required here and not available" in errors.pop("part")
        assert set(errors.values()) == {""}


async def test_a_claim_that_is_gone_or_another_by_now_is_not_prepared() -> None:
    async with claims() as here:
        await here.start()
        here.wish("c1")
        assert here.allocate("c1") == ""
        gone = Answer(404, reason="NotFound")
        here.api.fail(gone, verbs=["get"], resources=["resourceclaims"], times=1)
        assert "claim default/c1 is gone" in (await here.kubelet.start_pod("c1")).error
        here.api.fail(Answer(500), verbs=["get"], resources=["resourceclaims"], times=1)
        assert "claim default/c1 cannot be read" in (await here.kubelet.start_pod("c1")).error
        assert (await here.kubelet.start_pod("c1")).error == ""


async def test_a_container_that_uses_two_claims_is_refused() -> None:
    async with claims() as here:
        await here.start()
        for name in ("c1", "c2"):
            here.wish(name, exactly(memory="1Gi"), pods=(f"unused-{name}",))
        here.pod("p1", "c1", "c2")
        await here.seen("p1")
        assert here.allocate("c1", "p1") == here.allocate("c2", "p1") == ""
        assert "uses claim c1 and claim c2, which set the same variables" in (await here.kubelet.start_pod("p1")).error


async def test_access_beside_others_is_given_although_the_gpu_is_full() -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        await here.run_claim("c1", exactly(memory="14Gi"))
        watcher = await here.run_claim("admin", exactly("monitor", admin=True))
        assert watcher.environ["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
        assert "GPUSHARE_MEMORY_LIMIT_MIB" not in watcher.environ
        await here.end_claim("admin")
        assert len(here.dra.claims.prepared.value) == 1
        assert "set adminAccess: true on the request" in (await here.run_claim("plain", exactly("monitor"))).error


async def test_an_older_api_server_gets_whole_gpus_only_and_says_so() -> None:
    async with claims() as here:
        here.api.older = True
        await here.start()
        (spec,) = here.slices()
        assert sorted(spec["devices"][0]) == ["attributes", "capacity", "name"]
        types = [device["attributes"]["type"]["string"] for device in spec["devices"]]
        assert types == ["whole-gpu", "whole-gpu", "monitor", "monitor"]
        await here.node.until(lambda: bool(here.events("GPUSharesUnavailable")))
        assert "does not know allowMultipleAllocations" in here.events("GPUSharesUnavailable")[0]["note"]
        assert (await here.run_claim("c1", WHOLE)).error == ""


async def test_an_api_server_without_dra_is_told_of() -> None:
    async with claims() as here:
        here.api.without.add("resource.k8s.io")
        here.launch()
        await here.node.until(lambda: any("has no resource.k8s.io/v1" in why for why in here.dra.unmet()))
        here.api.without.clear()
        await here.serves()


async def test_orphans_are_dropped_after_two_looks_and_nothing_else_is() -> None:
    async with claims() as here:
        await here.start()
        await here.run_claim("stays")
        await here.run_claim("orphan")
        here.api.delete("resourceclaims", "orphan")
        for expected in (2, 1, 1):
            await here.dra.look_for_orphans()
            assert len(here.dra.claims.prepared.value) == expected


async def test_the_node_says_that_it_serves_claims() -> None:
    async with claims() as here:
        await here.start()
        await here.node.until(lambda: here.said_of_node().get("claims") is True)
        await here.node.until(here.takes_pods)
        await here.node.until(lambda: bool(here.events("Serving")))
        allocatable = here.api.get("nodes", NODE)["status"].get("allocatable", {})
        assert not json.dumps(allocatable).count("aliyun.com")


async def test_a_claim_whose_files_cannot_be_written_keeps_its_shares_over_a_restart() -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        here.wish("c1", exactly(memory="8Gi"))
        assert here.allocate("c1") == ""
        here.kubelet.cdi.rmdir()
        here.kubelet.cdi.write_text("in the way")
        assert "this is retried" in (await here.kubelet.start_pod("c1")).error
        here.kubelet.cdi.unlink()
        second = await here.run_claim("c2", exactly(memory="6Gi"))
        assert second.error == ""
        await here.node.stop_agent()
        await here.start()
        assert (await here.kubelet.start_pod("c1")).error == ""
        held = [claim.device_ids for claim in here.dra.claims.prepared.value.values()]
        assert len(frozenset().union(*held)) == sum(map(len, held)) == 14


async def test_two_files_with_the_same_shares_are_not_believed_and_both_claims_get_their_own() -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        for name in ("c1", "c2"):
            assert (await here.run_claim(name, exactly(memory="7Gi"))).error == ""
        await here.node.stop_agent()
        first, second = (json.loads(path.read_text()) for path in here.dra_files())
        here.dra_files()[1].write_text(json.dumps(second | {"deviceIDs": first["deviceIDs"]}))
        await here.start()
        held = [claim.device_ids for claim in here.dra.claims.prepared.value.values()]
        assert len(frozenset().union(*held)) == sum(map(len, held)) == 14


async def test_a_directory_in_the_place_of_a_claims_file_keeps_no_driver_from_registering(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with claims("fake:1xT4") as here:
        await here.start()
        before = await here.run_claim("c1", exactly(memory="7Gi"))
        await here.node.stop_agent()
        (path,) = here.dra_files()
        path.unlink()
        path.mkdir()
        (path.parent / "00000000-0000-4000-8000-000000000000.json").mkdir()
        await here.start()
        assert "remove the directory that has the name of a file of ours" in caplog.text
        assert "disk is not full" not in caplog.text
        here.wish("c2", exactly(memory="8Gi"))
        assert here.allocate("c2") == "cannot allocate all claims"
        assert here.node.agent is not None
        assert len(here.node.agent.state.node.ledger.id_states) == 7
        path.rmdir()
        await here.kubelet.stop()
        await here.kubelet.start()  # one that has just started asks again for every claim
        await here.serves()
        assert await here.kubelet.start_pod("c1") == before
        assert path.is_file()


async def test_many_claims_at_once_never_share_a_share() -> None:
    async with claims() as here:
        await here.start()
        for n in range(14):
            here.wish(f"c{n}", exactly(memory="2Gi"))
            assert here.allocate(f"c{n}") == ""
        started = await asyncio.gather(*(here.kubelet.start_pod(f"c{n}") for n in range(14)))
        assert not any(each.error for each in started)
        held = [claim.device_ids for claim in here.dra.claims.prepared.value.values()]
        assert len(frozenset().union(*held)) == sum(map(len, held)) == 28


@asynccontextmanager
async def claims_under_mps(**settings: str) -> AsyncIterator[tuple[Claims, Supervisor]]:
    """Make a node with claims whose memory is limited by MPS, and start its agent."""
    async with claims() as here:
        directory = here.node.folder / "mps"
        directory.mkdir()
        supervisor = Supervisor(directory)
        supervisor.start()
        try:
            await here.start(**{"limits": "mps", "mps_dir": str(directory), **settings})
            here.dra.claims.wait_s = 3600
            yield here, supervisor
        finally:
            await supervisor.stop()


async def test_under_mps_a_part_of_a_gpu_waits_for_its_daemon_and_a_whole_gpu_for_the_end_of_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with claims_under_mps() as (here, supervisor):
        with caplog.at_level("INFO"):
            started = await here.run_claim("c1", exactly(memory="7Gi"))
        assert started.error == ""
        assert started.environ["GPUSHARE_MEMORY_LIMIT_BY"] == "mps"
        assert started.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"
        uuid = started.environ["NVIDIA_VISIBLE_DEVICES"]
        assert list(supervisor.wanted) == [uuid]
        asked = [record.gpus for record in caplog.records if "is asked for daemons" in record.message]  # type: ignore[attr-defined]
        assert asked == [{uuid: 7168}], "from the first wish on, for a supervisor that looks in between ends the daemon"
        await here.end_claim("c1")
        await here.node.until(lambda: not supervisor.wanted)
        whole = await here.run_claim("c2", WHOLE)
        assert whole.error == ""
        assert "CUDA_MPS_PIPE_DIRECTORY" not in whole.environ
        await supervisor.vanish()
        refused = await here.run_claim("c3", exactly(memory="1Gi"))
        assert "MPS" in refused.error


async def test_under_mps_a_running_claim_whose_file_is_damaged_stays_a_client() -> None:
    async with claims_under_mps() as (here, _):
        await here.run_claim("c1", exactly(memory="7Gi"))
        (claim,) = here.dra.claims.prepared.value.values()
        await here.node.stop_agent()
        for path in here.dra_files():
            path.write_text("{")
        await here.start(limits="mps", mps_dir=str(here.node.folder / "mps"))
        (found,) = here.dra.claims.prepared.value.values()
        assert (found.uid, found.enforcement, found.cdi) == (claim.uid, "mps", claim.cdi)


async def test_a_claim_that_is_refused_after_its_daemon_came_leaves_no_daemon_behind() -> None:
    async with claims_under_mps() as (here, supervisor):
        wish = {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig", "limits": "driver"}
        refused = await here.run_claim("c1", exactly(memory="1Gi"), parameters=wish)
        assert "the parameters of the claim require limits of driver" in refused.error
        assert {status for _, status in supervisor.history} >= {MpsStatus.READY}
        await here.node.until(lambda: not supervisor.wanted)


async def test_a_claim_whose_files_cannot_be_written_keeps_its_daemon_with_its_devices() -> None:
    """It holds them for the kubelet's next call, or until its end."""
    async with claims_under_mps() as (here, supervisor):
        here.kubelet.cdi.rename(here.kubelet.cdi.with_name("away"))
        here.kubelet.cdi.touch()
        assert (await here.run_claim("c1", exactly(memory="1Gi"))).error
        assert supervisor.wanted
        await here.end_claim("c1")
        await here.node.until(lambda: not supervisor.wanted)


async def test_a_gpu_is_offered_again_as_soon_as_the_last_container_without_mps_has_left_it() -> None:
    """Not with the next look at our node, up to a minute later."""
    slow = {"probe_interval": "1h", "blind_after": "2h"}
    async with claims_under_mps(limits="advisory", limits_fallback="refuse", **slow) as (here, _):
        uuid = (await here.run_claim("c1", exactly(memory="1Gi"))).environ["NVIDIA_VISIBLE_DEVICES"]
        await here.node.stop_agent()
        here.launch(limits="mps")
        here.cluster.look_s = 3600
        await here.serves()
        agent = here.node.agent
        assert agent is not None
        await here.node.until(lambda: bool(agent.state.node.block(uuid).parts))
        await here.end_claim("c1")
        await here.node.until(lambda: not agent.state.node.block(uuid).parts)


async def test_an_agent_without_the_rights_of_a_driver_says_which_manifest_has_them() -> None:
    async with claims(allowed=RIGHTS) as here:
        here.launch()
        await here.node.until(lambda: any("apply deploy/optional/dra.yaml" in why for why in here.dra.unmet()))
