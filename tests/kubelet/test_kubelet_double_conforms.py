"""The kubelet's contract with a device plugin: the same tests for the double and, with KUBE_BIN, for a real kubelet.

Where the contract depends on the version, a test states the rule of each, and every kubelet says which version it is.
"""

import asyncio
import itertools
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    DevicePluginOptions,
    DeviceSpec,
    Mount,
)
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import PodResourcesListerStub
from gpu_device_plugin.testing.pod_specs import Pod
from tests.kubelet import kubelet_versions as versions
from tests.kubelet.any_version import RpcStatusError
from tests.kubelet.gated_kubelet import Kubelet
from tests.kubelet.kubelet_under_test import (
    KubeletUnderTest,
    TheDouble,
    entries,
    healthy,
    listed,
    pod_resources,
    registered,
)
from tests.kubelet.pod_lines import pod
from tests.kubelet.real_kubelet import RealKubelet
from tests.kubelet.scripted_plugin import Script, ScriptedPlugin
from tests.patience import eventually, stretched

FOUR_EACH = {f"GPU-{gpu}::{share}": True for gpu in range(2) for share in range(4)}
PREFERS = DevicePluginOptions(get_preferred_allocation_available=True)
PRE_START = DevicePluginOptions(pre_start_required=True)

_numbers = itertools.count()


@dataclass
class World:
    """A kubelet, and plugins for resource names that no other test uses: a real kubelet remembers names for minutes."""

    kubelet: KubeletUnderTest
    resource: str = field(default_factory=lambda: f"test.example.com/mem-{next(_numbers)}")
    other: str = field(default_factory=lambda: f"test.example.com/count-{next(_numbers)}")
    plugins: list[ScriptedPlugin] = field(default_factory=list)

    def plugin(
        self,
        devices: Mapping[str, bool] = FOUR_EACH,
        *,
        resource: str | None = None,
        numa_nodes: Mapping[str, Sequence[int]] | None = None,
        **script: Any,
    ) -> ScriptedPlugin:
        """Make a plugin that does nothing yet, with a socket name of its own."""
        plugin = ScriptedPlugin(
            self.kubelet.device_plugin_dir,
            resource or self.resource,
            devices,
            script=Script(**script),
            endpoint=f"test-{next(_numbers)}.sock",
            numa_nodes=numa_nodes,
        )
        self.plugins.append(plugin)
        return plugin

    async def start(self, *plugins: ScriptedPlugin) -> None:
        """Serve and register, and wait until the kubelet believes the lists."""
        for plugin in plugins:
            await plugin.start()
        for plugin in plugins:
            await self.believed(plugin)

    async def stop(self) -> None:
        """Stop every plugin."""
        for plugin in self.plugins:
            await plugin.stop()

    async def believed(self, plugin: ScriptedPlugin) -> None:
        """Wait until the kubelet believes the plugin's list."""
        wanted = {device for device, well in plugin.healthy.items() if well}
        await eventually(lambda: self.lists(plugin.resource, wanted))

    async def lists(self, resource: str, wanted: set[str]) -> bool:
        """Say whether these are the healthy devices in the kubelet's records."""
        return await healthy(self.kubelet, resource) == wanted

    async def admit(self, *apps: int, init: Sequence[int] = (), sidecars: Sequence[int] = ()) -> Pod:
        """Admit a pod whose containers want this many of `resource` each."""
        apps_limits, init_limits, sidecar_limits = (
            [{self.resource: wanted} for wanted in kind] for kind in (apps, init, sidecars)
        )
        return await self.kubelet.admit(
            pod(f"p{next(_numbers)}", *apps_limits, init=init_limits, sidecars=sidecar_limits)
        )

    async def admit_plain(self) -> Pod:
        """Admit a pod that wants no devices."""
        return await self.kubelet.admit(pod(f"p{next(_numbers)}", {}))

    async def write_checkpoint(self, plugin: ScriptedPlugin) -> None:
        """Have the kubelet write its checkpoint, by the list that it has already."""
        before = self.kubelet.checkpoint.stat().st_ino
        plugin.list(plugin.healthy)
        await eventually(lambda: self.kubelet.checkpoint.stat().st_ino != before)

    @property
    def no_healthy(self) -> str:
        """The message of a pod that finds no healthy device."""
        return (
            "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
            f"{self.resource}, which is unexpected"
        )

    async def becomes(self, uid: str, phase: str) -> Pod:
        """Wait until a pod has this phase, and return it."""

        async def there() -> bool:
            return (await self.kubelet.look(uid)).phase == phase

        await eventually(there)
        return await self.kubelet.look(uid)

    async def held(self, a_pod: Pod) -> dict[str, dict[str, set[str]]]:
        """Ask PodResources what a pod holds: by container and resource the IDs."""
        containers = (await listed(self.kubelet)).get(a_pod.name, {})
        held: dict[str, dict[str, set[str]]] = {}
        for container, devices in containers.items():
            for resource, ids in devices:
                held.setdefault(container, {}).setdefault(resource, set()).update(ids)
        return held


@pytest.fixture(scope="session")
async def real() -> AsyncIterator[RealKubelet]:
    async with RealKubelet() as kubelet:
        yield kubelet


async def test_a_real_kubelet_starts(real: RealKubelet) -> None:
    """Where there is none, this says why in one line, instead of one for each test that runs on the double alone."""
    if reason := RealKubelet.missing():
        pytest.skip(reason)
    await real.be_up()
    assert real.registration_socket.is_socket()
    await real.clear()


DOUBLES = {"double": (1, 36), "double of 1.31": (1, 31)}


@pytest.fixture(params=[*DOUBLES] if RealKubelet.missing() else [*DOUBLES, "real"])
async def world(request: pytest.FixtureRequest, real: RealKubelet) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        if (version := DOUBLES.get(request.param)) is not None:
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="kubelet"))
            double = Kubelet(Path(root), version=version, dial_timeout_s=stretched(0.5))
            world = World(TheDouble(await stack.enter_async_context(double)))
        else:
            await real.be_up()
            stack.push_async_callback(real.clear)
            world = World(real)
        stack.push_async_callback(world.stop)
        yield world


def refusing(code: grpc.StatusCode, details: str) -> Any:
    def answer(_: Any) -> Any:
        raise RpcStatusError(code, details)

    return answer


# Registering


async def test_registering_asks_for_options_and_then_for_the_list(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    assert (plugin.options_asked, plugin.listened) == (1, 1)
    assert registered(world.kubelet)[world.resource] == set(FOUR_EACH)


async def test_only_the_options_that_are_asked_for_count(world: World) -> None:
    """The Register request says that the plugin prefers; GetDevicePluginOptions, answered later, does not."""
    plugin = world.plugin(options=PREFERS)
    plugin.options_gate.hold()
    await plugin.serve()
    registering = asyncio.create_task(plugin.register())
    await plugin.options_gate.reached()
    plugin.script.options = DevicePluginOptions()
    plugin.options_gate.release()
    await registering
    await world.believed(plugin)
    assert (await world.admit(1)).phase == "Running"
    assert plugin.preferences == []


@pytest.mark.parametrize(
    "name",
    [
        "gpu-mem",
        "kubernetes.io/gpu",
        "a.kubernetes.io/gpu",
        "requests.a.b/gpu",
        f"a.b/{'x' * 64}",
        "A.b/gpu",
        "a.b/gpu_",
    ],
)
async def test_a_resource_name_that_no_pod_could_ask_for_is_refused(world: World, name: str) -> None:
    plugin = world.plugin(resource=name)
    await plugin.serve()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await plugin.register()
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == f'the ResourceName "{name}" is invalid'


async def test_another_version_of_the_api_is_refused(world: World) -> None:
    plugin = world.plugin()
    await plugin.serve()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await plugin.register(version="v1alpha1")
    assert refused.value.details() == (
        'requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]'
    )


async def test_a_socket_that_nobody_serves_is_refused_after_dialling(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.plugin().register()
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == "failed to dial device plugin: context deadline exceeded"


async def test_a_plugin_that_cannot_tell_its_options_is_refused(world: World) -> None:
    plugin = world.plugin()
    plugin.options_gate.refuse("not now", grpc.StatusCode.FAILED_PRECONDITION)
    await plugin.serve()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await plugin.register()
    assert refused.value.details() == (
        "failed to get device plugin options: rpc error: code = FailedPrecondition desc = not now"
    )
    assert plugin.listened == 0


async def test_a_list_above_four_mib_ends_the_stream_though_registering_succeeded(world: World) -> None:
    """72,000 IDs of 45 characters make 4.2 MB; with 60,000 it would have gone well."""
    plugin = world.plugin({f"GPU-00000000-0000-0000-0000-{n:012}::{n:03}": True for n in range(72_000)})
    await plugin.start()
    await eventually(lambda: plugin.listened and not plugin.listeners)
    assert await healthy(world.kubelet, world.resource) == set()


async def test_the_newest_registration_gets_the_calls(world: World) -> None:
    first, second = world.plugin(), world.plugin()
    await world.start(first)
    await world.start(second)
    await world.admit(1)
    assert (len(first.allocations), len(second.allocations)) == (0, 1)


async def test_two_live_streams_overwrite_each_other(world: World) -> None:
    first, second = world.plugin({"old": True}), world.plugin({"new": True})
    await world.start(first)
    await world.start(second)
    first.list({"old": True, "older": True})
    await eventually(lambda: world.lists(world.resource, {"old", "older"}))


async def test_the_end_of_an_old_stream_disconnects_the_new_plugin(world: World) -> None:
    # With a list of its own it is seen when the second one's has come: later it would make the devices healthy again.
    first, second = world.plugin(), world.plugin({"new": True})
    await world.start(first)
    await world.start(second)
    await first.stop()
    await eventually(lambda: not second.listeners)
    # The kubelet closes the connection before it marks the devices.
    await eventually(lambda: world.lists(world.resource, set()))
    refused = await world.admit(1)
    assert refused.message == world.no_healthy


async def test_a_failed_registration_makes_the_kubelet_forget_the_plugin_that_works(world: World) -> None:
    """Nobody notices then when its stream ends: its devices stay healthy for the kubelet, and pods fail in Allocate."""
    plugin, broken = world.plugin(), world.plugin()
    await world.start(plugin)
    broken.options_gate.refuse("broken")
    await broken.serve()
    with pytest.raises(grpc.aio.AioRpcError):
        await broken.register()
    await plugin.stop()
    assert (await world.admit(1)).message.startswith(
        "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = "
    )
    assert await healthy(world.kubelet, world.resource) == set(FOUR_EACH)


# Choosing devices


async def test_a_container_gets_as_many_as_it_asks_for(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    running = await world.admit(3)
    assert running.phase == "Running"
    (ids,) = plugin.allocations
    assert len(set(ids)) == 3
    assert set(ids) <= set(FOUR_EACH)
    assert running.only.received.envs["IDS"] == ",".join(sorted(ids))
    assert await world.held(running) == {"c0": {world.resource: set(ids)}}
    assert list(entries(world.kubelet, running.uid)) == [("c0", world.resource, set(ids))]


async def test_without_a_preference_the_choice_is_random(world: World) -> None:
    """Eight pods take one of 32 devices each; in order they would be the first eight."""
    plugin = world.plugin({f"{n:02}": True for n in range(32)})
    await world.start(plugin)
    for _ in range(8):
        await world.admit(1)
    assert len(set(plugin.allocations)) == 8
    assert [ids for (ids,) in plugin.allocations] != [f"{n:02}" for n in range(8)]


async def test_no_device_is_given_twice(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    for wanted in (3, 2, 3):
        assert (await world.admit(wanted)).phase == "Running"
    assert sorted(device for ids in plugin.allocations for device in ids) == sorted(FOUR_EACH)


async def test_the_preferred_devices_are_taken_from_all_that_are_free(world: World) -> None:
    plugin = world.plugin(options=PREFERS, prefer=lambda _: ["GPU-1::0", "GPU-1::3"])
    await world.start(plugin)
    assert (await world.held(await world.admit(2)))["c0"] == {world.resource: {"GPU-1::0", "GPU-1::3"}}
    plugin.script.prefer = lambda _: ["GPU-1::1"]
    assert (await world.held(await world.admit(1)))["c0"] == {world.resource: {"GPU-1::1"}}
    assert [(set(asked.available), asked.must_include, asked.size) for asked in plugin.preferences] == [
        (set(FOUR_EACH), (), 2),
        (set(FOUR_EACH) - {"GPU-1::0", "GPU-1::3"}, (), 1),
    ]


async def test_a_request_for_everything_is_asked_about_too(world: World) -> None:
    plugin = world.plugin(options=PREFERS)
    await world.start(plugin)
    await world.admit(8)
    assert [asked.size for asked in plugin.preferences] == [8]


async def test_a_short_preference_is_filled_up(world: World) -> None:
    plugin = world.plugin(options=PREFERS, prefer=lambda _: ["GPU-0::0"])
    await world.start(plugin)
    (ids,) = (await world.held(await world.admit(4)))["c0"].values()
    assert len(ids) == 4
    assert "GPU-0::0" in ids


async def test_devices_that_are_not_free_are_ignored_in_a_preference(world: World) -> None:
    plugin = world.plugin(options=PREFERS, prefer=lambda _: ["nonsense", "GPU-0::0"])
    await world.start(plugin)
    first = await world.admit(1)
    second = await world.admit(1)
    assert (await world.held(first))["c0"] == {world.resource: {"GPU-0::0"}}
    (ids,) = (await world.held(second))["c0"].values()
    assert len(ids) == 1
    assert ids < set(FOUR_EACH) - {"GPU-0::0"}


async def test_a_long_preference_is_cut_to_size(world: World) -> None:
    long = [f"GPU-1::{share}" for share in range(4)]
    plugin = world.plugin(options=PREFERS, prefer=lambda _: long)
    await world.start(plugin)
    (ids,) = (await world.held(await world.admit(2)))["c0"].values()
    assert len(ids) == 2
    assert ids < set(long)


async def test_an_error_instead_of_a_preference_fails_the_pod(world: World) -> None:
    plugin = world.plugin(options=PREFERS, prefer=refusing(grpc.StatusCode.INTERNAL, "no idea"))
    await world.start(plugin)
    failed = await world.admit(2)
    assert (failed.phase, failed.reason) == ("Failed", "UnexpectedAdmissionError")
    assert failed.message == (
        "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = Internal desc = no idea, which is unexpected"
    )
    assert plugin.allocations == []


async def test_the_plugin_is_asked_although_devices_have_numa_nodes_where_no_policy_aligns_them(world: World) -> None:
    nodes = {device: [int(device[4])] for device in FOUR_EACH}
    plugin = world.plugin(numa_nodes=nodes, options=PREFERS, prefer=lambda _: ["GPU-1::2"])
    await world.start(plugin)
    holder = await world.admit(1)
    assert list(entries(world.kubelet, holder.uid)) == [("c0", world.resource, {"GPU-1::2"})]


async def test_unhealthy_devices_are_not_given(world: World) -> None:
    plugin = world.plugin(FOUR_EACH | {"GPU-0::0": False, "GPU-0::1": False})
    await world.start(plugin)
    assert (await world.admit(6)).phase == "Running"
    assert set(plugin.allocations[0]) == set(FOUR_EACH) - {"GPU-0::0", "GPU-0::1"}


async def test_too_few_devices_fail_the_pod(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    await world.admit(3)
    failed = await world.admit(6)
    assert failed.message == (
        f"Pod was rejected: Allocate failed due to requested number of devices unavailable for {world.resource}. "
        f"Requested: 6, Available: 5, which is unexpected"
    )
    assert len(plugin.allocations) == 1


async def test_a_quantity_of_zero_needs_no_device_but_a_healthy_resource(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    assert (await world.admit(0)).phase == "Running"
    assert plugin.allocations == []
    plugin.list(dict.fromkeys(FOUR_EACH, False))
    await world.believed(plugin)
    assert (await world.admit(0)).message == world.no_healthy


async def test_a_resource_nobody_registered_is_nobodys_business(world: World) -> None:
    running = await world.admit(4)
    assert running.phase == "Running"
    assert await world.held(running) == {}


# Allocate


async def test_the_words_of_a_refused_allocate_reach_the_pod(world: World) -> None:
    plugin = world.plugin(allocate=refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, "GPU-0 has 3 GiB free, 6 are asked"))
    await world.start(plugin)
    failed = await world.admit(6)
    assert (failed.phase, failed.reason) == ("Failed", "UnexpectedAdmissionError")
    assert failed.message == (
        "Pod was rejected: Allocate failed due to rpc error: code = ResourceExhausted desc = "
        "GPU-0 has 3 GiB free, 6 are asked, which is unexpected"
    )


async def test_devices_of_a_refused_allocate_are_free_again(world: World) -> None:
    plugin = world.plugin(allocate=refusing(grpc.StatusCode.INTERNAL, "no"))
    await world.start(plugin)
    await world.admit(8)
    plugin.script.allocate = Script().allocate
    assert (await world.admit(8)).phase == "Running"


async def test_an_allocate_without_an_answer_fails_the_pod(world: World) -> None:
    plugin = world.plugin(allocate=lambda _: None)
    await world.start(plugin)
    failed = await world.admit(1)
    assert failed.message.startswith(
        "Pod was rejected: Allocate failed due to no containers return in allocation response"
    )


async def test_everything_in_the_answer_reaches_the_container(world: World) -> None:
    answer = ContainerAllocateResponse(
        envs={"A": "1"},
        mounts=[Mount(container_path="/given", host_path="/tmp", read_only=True)],
        devices=[DeviceSpec(container_path="/dev/given", host_path="/dev/null", permissions="rwm")],
        annotations={"a/b": "c"},
    )
    plugin = world.plugin(allocate=lambda _: answer)
    await world.start(plugin)
    received = (await world.admit(1)).only.received
    assert received.envs["A"] == "1"
    assert [m.read_only for m in received.mounts if m.container_path == "/given"] == [True]
    assert [d.container_path for d in received.devices if d.container_path == "/dev/given"] == ["/dev/given"]


async def test_each_container_and_each_resource_has_an_allocate_of_its_own(world: World) -> None:
    first, second = world.plugin(), world.plugin({"GPU-0": True, "GPU-1": True}, resource=world.other)
    await world.start(first, second)
    both = await world.kubelet.admit(
        pod(f"p{next(_numbers)}", {world.resource: 2, world.other: 1}, {world.resource: 3})
    )
    assert both.phase == "Running"
    assert [len(ids) for ids in first.allocations] == [2, 3]
    assert [len(ids) for ids in second.allocations] == [1]
    assert await world.held(both) == {
        "c0": {world.resource: set(first.allocations[0]), world.other: set(second.allocations[0])},
        "c1": {world.resource: set(first.allocations[1])},
    }


async def test_while_an_allocate_hangs_no_other_pod_is_admitted(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    plugin.allocate_gate.hold()
    waiting = await world.kubelet.begin(pod(f"p{next(_numbers)}", {world.resource: 1}))
    await plugin.allocate_gate.reached()
    plain = await world.kubelet.begin(pod(f"p{next(_numbers)}", {}))
    assert (await world.kubelet.look(plain)).phase == "Pending"
    plugin.allocate_gate.release()
    for uid in (waiting, plain):
        await world.becomes(uid, "Running")


async def test_withdrawing_a_device_during_its_allocate_kills_the_kubelet_since_1_34(world: World) -> None:
    """Before, the device is given out all the same."""
    plugin = world.plugin({"a": True, "b": True})
    await world.start(plugin)
    plugin.allocate_gate.hold()
    waiting = await world.kubelet.begin(pod(f"p{next(_numbers)}", {world.resource: 2}))
    await plugin.allocate_gate.reached()
    plugin.list({"a": True})
    await world.believed(plugin)
    plugin.allocate_gate.release()
    if world.kubelet.minor in versions.PANICS_OF_A_DEVICE_WITHDRAWN:
        assert await world.kubelet.died()
    else:
        assert await world.held(await world.becomes(waiting, "Running")) == {"c0": {world.resource: {"a", "b"}}}


# Init containers and sidecars


async def test_the_devices_of_an_init_container_are_used_again(world: World) -> None:
    plugin = world.plugin(options=PREFERS)
    await world.start(plugin)
    running = await world.admit(2, init=[4])
    init, app = plugin.allocations
    assert (len(init), len(app)) == (4, 2)
    assert set(app) < set(init)
    assert len(plugin.preferences) == 1
    assert await world.held(running) == {"c0": {world.resource: set(app)}}
    assert sorted(name for name, _, _ in entries(world.kubelet, running.uid)) == ["c0", "i0"]


async def test_a_container_that_wants_more_than_its_init_container_must_include_its_devices(world: World) -> None:
    plugin = world.plugin(options=PREFERS, prefer=lambda asked: sorted(asked.available)[: asked.size])
    await world.start(plugin)
    await world.admit(4, init=[2])
    init, app = plugin.allocations
    assert set(init) == {"GPU-0::0", "GPU-0::1"}
    assert set(app) == {"GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3"}
    asked = plugin.preferences[1]
    assert (set(asked.available), set(asked.must_include), asked.size) == (set(FOUR_EACH), set(init), 4)


async def test_app_containers_share_what_an_init_container_had(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    await world.admit(1, 1, init=[2])
    init, first, second = map(set, plugin.allocations)
    assert first | second == init


async def test_a_sidecar_keeps_its_devices(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    running = await world.admit(2, init=[2], sidecars=[2])
    init, sidecar, app = map(set, plugin.allocations)
    assert sidecar == init
    assert not sidecar & app
    assert await world.held(running) == {"s0": {world.resource: sidecar}, "c0": {world.resource: app}}


# PreStartContainer


async def test_pre_start_comes_before_the_container_when_its_devices_are_already_listed(world: World) -> None:
    plugin = world.plugin(options=PRE_START)
    await world.start(plugin)
    running = await world.admit(2)
    assert running.phase == "Running"
    assert [set(ids) for ids in plugin.starts] == [set(ids) for ids in plugin.allocations]


async def test_a_failed_pre_start_leaves_the_pod_pending(world: World) -> None:
    plugin = world.plugin(options=PRE_START)
    await world.start(plugin)
    plugin.start_gate.refuse("not yet", grpc.StatusCode.UNAVAILABLE)
    waiting = await world.kubelet.begin(pod(f"p{next(_numbers)}", {world.resource: 1}))
    await eventually(lambda: _waits(world.kubelet, waiting))
    now = await world.kubelet.look(waiting)
    assert now.phase == "Pending"
    assert now.only.waiting == (
        "CreateContainerConfigError: device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = Unavailable desc = not yet"
    )


async def _waits(kubelet: KubeletUnderTest, uid: str) -> bool:
    return "PreStart" in ((await kubelet.look(uid)).only.waiting or "")


# The end of pods, of streams and of the kubelet


async def test_the_devices_of_a_deleted_pod_are_given_again(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    first = await world.admit(8)
    await world.kubelet.delete(first.uid)
    assert await world.held(first) == {}
    assert (await world.admit(8)).phase == "Running"


async def test_the_devices_of_a_finished_pod_are_given_again(world: World) -> None:
    await world.start(world.plugin())
    first = await world.admit(8)
    await world.kubelet.finish(first.uid)
    if world.kubelet.minor in versions.KEEPS_POD_ADMITTED_LAST:
        await world.admit_plain()
    await eventually(lambda: _holds_nothing(world, first))
    assert (await world.admit(8)).phase == "Running"


async def _holds_nothing(world: World, a_pod: Pod) -> bool:
    return await world.held(a_pod) == {}


async def test_freed_devices_stay_in_the_checkpoint_until_the_next_list(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    ended = await world.admit(2)
    await world.admit_plain()
    await world.kubelet.delete(ended.uid)
    assert await world.held(ended) == {}
    assert len(list(entries(world.kubelet, ended.uid))) == 1
    plugin.list(plugin.healthy)
    await eventually(lambda: not list(entries(world.kubelet, ended.uid)))


async def test_from_1_23_to_1_31_the_pod_admitted_last_stays_in_every_checkpoint_until_another_is_admitted(
    world: World,
) -> None:
    """Of any kind; the next List frees the devices then. Other kubelets forget it with the first list that comes."""
    plugin = world.plugin()
    await world.start(plugin)
    last = await world.admit(2)
    await world.kubelet.delete(last.uid)
    assert await world.held(last) == {}
    await world.write_checkpoint(plugin)
    kept = world.kubelet.minor in versions.KEEPS_POD_ADMITTED_LAST
    assert len(list(entries(world.kubelet, last.uid))) == kept
    await world.admit_plain()
    assert await world.held(last) == {}
    await world.write_checkpoint(plugin)
    assert not list(entries(world.kubelet, last.uid))


async def test_a_kubelet_that_starts_does_not_know_which_pod_was_admitted_last(world: World) -> None:
    first = world.plugin()
    await world.start(first)
    last = await world.admit(2)
    await world.kubelet.delete(last.uid)
    await world.kubelet.stop()
    await world.kubelet.start()
    again = world.plugin()
    await world.start(again)
    await eventually(lambda: _is_forgotten(world, again, last))


async def _is_forgotten(world: World, plugin: ScriptedPlugin, a_pod: Pod) -> bool:
    await world.held(a_pod)
    await world.write_checkpoint(plugin)
    return not list(entries(world.kubelet, a_pod.uid))


async def test_a_stream_that_ends_makes_every_device_unhealthy_for_good(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    holder = await world.admit(2)
    await plugin.stop()
    await eventually(lambda: world.lists(world.resource, set()))
    assert (await world.admit(1)).message == world.no_healthy
    assert (await world.kubelet.look(holder.uid)).phase == "Running"
    await plugin.serve()
    assert plugin.listened == 1


async def test_after_registering_again_allocations_are_known_by_their_ids(world: World) -> None:
    first = world.plugin()
    await world.start(first)
    holder = await world.admit(5)
    await first.stop()
    await eventually(lambda: world.lists(world.resource, set()))
    second = world.plugin()
    await world.start(second)
    assert (await world.admit(4)).phase == "Failed"
    assert (await world.admit(3)).phase == "Running"
    assert set(second.allocations[0]) == set(FOUR_EACH) - (await world.held(holder))["c0"][world.resource]


async def test_a_stopping_kubelet_ends_the_streams_and_leaves_every_socket_behind(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    await world.kubelet.stop()
    await eventually(lambda: not plugin.listeners)
    assert stat.S_ISSOCK(plugin.socket.stat().st_mode)
    assert stat.S_ISSOCK(world.kubelet.registration_socket.stat().st_mode)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await plugin.register()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_starting_kubelet_wipes_sockets_and_up_to_1_32_other_files_too(world: World) -> None:
    """Directories are spared by all."""
    plugin = world.plugin()
    await world.start(plugin)
    mine = world.kubelet.device_plugin_dir / "mine"
    mine.write_text("mine")
    folder = world.kubelet.device_plugin_dir / "folder"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    before = world.kubelet.registration_socket.stat().st_ino, world.kubelet.registration_socket.stat().st_ctime_ns
    await world.kubelet.stop()
    await world.kubelet.start()
    after = world.kubelet.registration_socket.stat().st_ino, world.kubelet.registration_socket.stat().st_ctime_ns
    assert not plugin.socket.exists()
    assert before != after
    assert mine.exists() is (world.kubelet.minor not in versions.WIPES_EVERY_FILE)
    assert (folder / "mine").read_text() == "mine"
    mine.unlink(missing_ok=True)
    (folder / "mine").unlink()
    folder.rmdir()


async def test_pods_survive_a_kubelet_restart_without_their_plugin(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    holder = await world.admit(3)
    (ids,) = plugin.allocations
    await world.kubelet.stop()
    await plugin.stop()
    await world.kubelet.start()
    assert (await world.kubelet.look(holder.uid)).phase == "Running"
    assert await world.held(holder) == {"c0": {world.resource: set(ids)}}
    again = world.plugin()
    await world.start(again)
    assert (await world.admit(5)).phase == "Running"
    assert set(again.allocations[0]) == set(FOUR_EACH) - set(ids)


async def test_a_pod_without_running_containers_is_refused_after_a_restart_until_its_plugin_is_back(
    world: World,
) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    await world.admit(1)
    await world.kubelet.stop()
    await plugin.stop()
    late = await world.kubelet.begin(pod(f"p{next(_numbers)}", {world.resource: 1}))
    await world.kubelet.start()
    assert (await world.becomes(late, "Failed")).message == world.no_healthy


def _deleted(checkpoint: Path) -> None:
    checkpoint.unlink()


def _cut(checkpoint: Path) -> None:
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)


def _edited(checkpoint: Path) -> None:
    """Change it so that it is still JSON of the right form, which only the checksum contradicts."""
    checkpoint.write_text(checkpoint.read_text().replace("GPU-0::1", "GPU-9::9"))


@pytest.mark.parametrize("lose", [_deleted, _cut, _edited])
async def test_a_kubelet_that_lost_its_checkpoint_keeps_pods_running_and_writes_an_empty_record(
    world: World, lose: Callable[[Path], None]
) -> None:
    """Nothing tells a plugin: the pods run on, and their devices are given again."""
    await world.start(world.plugin())
    holder = await world.admit(3)
    await world.kubelet.stop()
    lose(world.kubelet.checkpoint)
    await world.kubelet.start()
    assert (await world.kubelet.look(holder.uid)).phase == "Running"
    assert await world.held(holder) == {}
    again = world.plugin()
    await world.start(again)
    await eventually(lambda: _is_forgotten(world, again, holder))
    assert (await world.kubelet.look(holder.uid)).phase == "Running"
    assert (await world.admit(5)).phase == "Running"
    assert (await world.kubelet.look(holder.uid)).phase == "Running"


async def test_a_pod_whose_devices_were_forgotten_still_counts_by_what_it_asks_for(world: World) -> None:
    """All eight devices are free for the device manager; three are asked for by a pod that has none."""
    await world.start(world.plugin())
    await world.admit(3)
    await world.kubelet.stop()
    world.kubelet.checkpoint.unlink()
    await world.kubelet.start()
    await world.start(world.plugin())
    assert (await world.admit(8)).phase == "Failed"
    assert (await world.admit(5)).phase == "Running"


async def test_the_checkpoint_is_readable_by_its_owner_alone(world: World) -> None:
    await world.start(world.plugin())
    assert stat.S_IMODE(world.kubelet.checkpoint.stat().st_mode) == 0o600


async def test_the_checkpoint_is_replaced_in_one_step(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    before = world.kubelet.checkpoint.stat().st_ino
    await world.admit(1)
    assert world.kubelet.checkpoint.stat().st_ino != before
    assert list(world.kubelet.device_plugin_dir.glob("*checkpoint*")) == [world.kubelet.checkpoint]


async def test_pod_resources_has_one_entry_for_every_device(world: World) -> None:
    await world.start(world.plugin())
    running = await world.admit(3)
    devices = (await listed(world.kubelet))[running.name]["c0"]
    assert len(devices) == 3
    assert all(len(ids) == 1 for _, ids in devices)


async def test_pod_resources_describes_one_pod_since_1_34_or_says_that_there_is_none(world: World) -> None:
    await world.start(world.plugin())
    running = await world.admit(2)
    async with pod_resources(world.kubelet) as channel:
        stub: PodResourcesListerStub[Any, Any, Any] = PodResourcesListerStub(channel)
        there = world.kubelet.minor in versions.DESCRIBES_ONE_POD
        if there:
            found = await stub.Get(v1.GetPodResourcesRequest(pod_name=running.name, pod_namespace="default"))
            assert len(found.pod_resources.containers[0].devices) == 2
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Get(v1.GetPodResourcesRequest(pod_name="nobody", pod_namespace="default"))
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == (
        "pod nobody in namespace default not found" if there else "PodResources API Get method disabled"
    )
