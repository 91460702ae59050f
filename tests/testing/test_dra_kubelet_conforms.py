"""The kubelet's contract with a DRA driver: the same tests for the double and, with KUBE_BIN, for a real kubelet."""

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_double.api_server import ApiServer
from tests.patience import REAL_S, eventually
from tests.testing.dra_kubelet import DraKubelet
from tests.testing.dra_kubelet_under_test import (
    Real,
    TheDouble,
    allocation,
    claim_body,
    pod_body,
    slice_body,
)
from tests.testing.scripted_dra_driver import DRIVER, ScriptedDriver

NODE = "n1"

pytestmark = pytest.mark.timeout(600)


@dataclass
class World:
    """A kubelet, and a driver that a test starts."""

    kubelet: TheDouble | Real
    driver: ScriptedDriver

    async def claim(self, name: str, *pods: str, reserved: bool = True) -> None:
        """Make an allocated claim, the pods that use it, and what a container gets by it."""
        await self.kubelet.create(claim_body(name), allocation())
        uids = {pod: await self.kubelet.create(pod_body(pod, name)) for pod in pods}
        if reserved:
            await self.kubelet.allow(name, uids)
        self.write_cdi(name)

    def write_cdi(self, claim: str) -> None:
        device = {"name": claim, "containerEdits": {"env": [f"CLAIM={claim}"]}}
        content = {"cdiVersion": "0.6.0", "kind": f"{DRIVER}/claim", "devices": [device]}
        (self.kubelet.cdi / f"{claim}.json").write_text(json.dumps(content))

    async def registered(self) -> None:
        """Wait until the kubelet has told all sockets so."""
        await self.driver.start()
        await self.told(1)

    async def told(self, count: int) -> None:
        await eventually(lambda: len(self.driver.told) >= count, f"{count} registrations were answered", quiet_s=REAL_S)


@pytest.fixture(scope="session")
async def real() -> AsyncIterator[Real]:
    kubelet = Real()
    yield kubelet
    await kubelet.down()


async def test_a_real_kubelet_starts(real: Real) -> None:
    """Where there is none, this says why in one line, instead of one for each test that runs on the double alone."""
    if reason := Real.missing():
        pytest.skip(reason)
    await real.up()
    assert real.registry.is_dir()


@pytest.fixture(params=["double"] if Real.missing() else ["double", "real"])
async def world(request: pytest.FixtureRequest, real: Real) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        kubelet: TheDouble | Real = real
        if request.param == "double":
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gs")))
            api = await stack.enter_async_context(ApiServer())
            double = DraKubelet(root, api, NODE)
            double.retry_s, double.wipe_s = 0.05, 0.3
            kubelet = TheDouble(await stack.enter_async_context(double), api, NODE)
        else:
            await real.up()
        driver = ScriptedDriver(kubelet.registry, kubelet.plugins, kubelet.plugins_seen)
        stack.push_async_callback(driver.stop)
        stack.push_async_callback(kubelet.clear)
        yield World(kubelet, driver)


async def test_a_driver_is_found_by_its_socket_and_prepares_before_a_pod_starts(world: World) -> None:
    await world.claim("c1", "p1")
    assert f"DRA driver {DRIVER} is not registered" in await world.kubelet.refusal("p1")
    await world.registered()
    assert (await world.kubelet.runs("p1"))["CLAIM"] == "c1"
    assert world.driver.told == [""]
    assert world.driver.calls == [("prepare", "c1")]
    await world.kubelet.end("p1")
    assert world.driver.calls == [("prepare", "c1"), ("unprepare", "c1")]


async def test_a_claim_is_prepared_once_by_each_process_and_unprepared_after_its_last_pod(world: World) -> None:
    await world.claim("c1", "p1", "p2", "p3")
    await world.registered()
    for pod in ("p1", "p2"):
        await world.kubelet.runs(pod)
    await world.kubelet.stop()
    await world.kubelet.start()
    await world.told(2)
    assert world.driver.calls == [("prepare", "c1")]
    await world.kubelet.runs("p3")
    await world.kubelet.end("p1")
    await world.kubelet.end("p3")
    assert world.driver.calls == [("prepare", "c1"), ("prepare", "c1")]  # a new process does not know it is prepared
    await world.kubelet.end("p2")
    assert world.driver.calls == [("prepare", "c1"), ("prepare", "c1"), ("unprepare", "c1")]


async def test_two_claims_of_a_pod_are_prepared_both(world: World) -> None:
    for claim in ("c1", "c2"):
        await world.claim(claim)
    uid = await world.kubelet.create(pod_body("p1", "c1", "c2"))
    for claim in ("c1", "c2"):
        await world.kubelet.allow(claim, {"p1": uid})
    await world.registered()
    assert (await world.kubelet.runs("p1"))["CLAIM"] in {"c1", "c2"}
    await world.kubelet.end("p1")
    assert sorted(world.driver.calls) == [(call, claim) for call in ("prepare", "unprepare") for claim in ("c1", "c2")]


async def test_what_is_not_prepared_is_told_and_tried_again(world: World) -> None:
    await world.claim("c1", "p1")
    world.driver.errors["c1"] = "no room"
    await world.registered()
    refusal = await world.kubelet.refusal("p1")
    assert "prepare" in refusal
    assert refusal.endswith("no room")
    world.driver.errors.clear()
    await world.kubelet.runs("p1")
    assert set(world.driver.calls) == {("prepare", "c1")}


async def test_a_claim_that_was_not_prepared_is_unprepared_with_its_pod(world: World) -> None:
    await world.claim("c1", "p1")
    world.driver.errors["c1"] = "no room"
    await world.registered()
    assert (await world.kubelet.refusal("p1")).endswith("no room")
    world.driver.errors.clear()
    await world.kubelet.end("p1")
    assert world.driver.calls[-1] == ("unprepare", "c1")


async def test_what_is_not_unprepared_is_tried_again_and_keeps_its_pod(world: World) -> None:
    await world.claim("c1", "p1")
    await world.registered()
    await world.kubelet.runs("p1")
    world.driver.errors["c1"] = "busy"
    await world.kubelet.stays("p1")
    await eventually(lambda: ("unprepare", "c1") in world.driver.calls, quiet_s=REAL_S)
    world.driver.errors.clear()
    await world.kubelet.end("p1")
    assert world.driver.calls.count(("unprepare", "c1")) > 1


async def test_a_claim_that_is_not_reserved_for_a_pod_does_not_start_it(world: World) -> None:
    await world.claim("c1", "p1", reserved=False)
    await world.registered()
    assert "is not allowed to use" in await world.kubelet.refusal("p1")
    assert world.driver.calls == []


async def test_a_container_whose_cdi_file_is_gone_does_not_start(world: World) -> None:
    await world.claim("c1", "p1")
    (world.kubelet.cdi / "c1.json").unlink()
    await world.registered()
    assert f"unresolvable CDI devices {DRIVER}/claim=c1" in await world.kubelet.refusal("p1")
    world.write_cdi("c1")
    await world.kubelet.runs("p1")
    assert world.driver.calls == [("prepare", "c1")]


async def test_a_pod_that_ends_while_the_kubelet_is_away_is_unprepared_later(world: World) -> None:
    await world.claim("c1", "p1")
    await world.registered()
    await world.kubelet.runs("p1")
    await world.driver.stop("a")
    await world.kubelet.stays("p1")
    await world.driver.start("a")
    await world.told(2)
    await world.kubelet.end("p1")
    assert world.driver.calls == [("prepare", "c1"), ("unprepare", "c1")]


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ({"kind": "Other"}, "RegisterPlugin error -- no handler registered for plugin type: Other"),
        (
            {"services": ("v2.DRAPlugin",)},
            'supported by the plugin (["v2.DRAPlugin"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1',
        ),
    ],
)
async def test_what_is_no_driver_is_refused(world: World, driver: dict[str, Any], words: str) -> None:
    for name, value in driver.items():
        setattr(world.driver, name, value)
    await world.registered()
    assert words in world.driver.told[0]
    await world.claim("c1", "p1")
    assert f"DRA driver {DRIVER} is not registered" in await world.kubelet.refusal("p1")


async def test_a_driver_is_called_before_it_has_heard_that_it_is_registered(world: World) -> None:
    await world.claim("c1", "p1")
    world.driver.hears.clear()
    await world.driver.start()
    await world.kubelet.runs("p1")
    assert world.driver.told == []
    world.driver.hears.set()
    await world.told(1)
    assert world.driver.told == [""]


async def test_a_driver_that_cannot_be_told_of_its_registration_is_registered_again(world: World) -> None:
    world.driver.deaf = 1
    await world.registered()
    assert (world.driver.deaf, world.driver.told) == (0, [""])
    await world.claim("c1", "p1")
    await world.kubelet.runs("p1")


async def test_of_two_endpoints_the_latest_is_used_and_the_other_once_that_is_gone(world: World) -> None:
    await world.registered()
    await world.driver.start("b")
    await world.told(2)
    for claim, pod in (("c1", "p1"), ("c2", "p2")):
        await world.claim(claim, pod)
    await world.kubelet.runs("p1")
    await world.driver.stop("b")
    await world.kubelet.runs("p2")
    assert world.driver.asked == [("b", "prepare", "c1"), ("a", "prepare", "c2")]


@pytest.mark.parametrize(
    ("services", "called"),
    [
        (("v2.DRAPlugin", "v1.DRAPlugin", "v1beta1.DRAPlugin"), "a"),
        (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "a by v1beta1"),
    ],
)
async def test_of_the_services_of_a_driver_the_first_that_the_kubelet_knows_is_called(
    world: World, services: tuple[str, ...], called: str
) -> None:
    world.driver.services = services
    await world.registered()
    await world.claim("c1", "p1")
    await world.kubelet.runs("p1")
    assert world.driver.asked == [(called, "prepare", "c1")]


async def test_an_endpoint_is_not_known_twice(world: World) -> None:
    await world.registered()
    await world.driver.start("b", endpoint="a")
    await world.told(2)
    assert "already registered" in world.driver.told[1]


async def test_a_kubelet_removes_its_nodes_slices_at_its_start_and_those_of_a_driver_that_is_gone(world: World) -> None:
    node = world.kubelet.node
    for driver, of in ((DRIVER, node), ("other.example.com", node), (DRIVER, "elsewhere")):
        await world.kubelet.create(slice_body(driver, of))
    await world.kubelet.stop()
    await world.kubelet.start()
    await _slices_are(world, {f"elsewhere-{DRIVER}"})
    await world.registered()
    for driver in (DRIVER, "other.example.com"):
        await world.kubelet.create(slice_body(driver, node))
    await world.driver.stop("a")
    await _slices_are(world, {f"elsewhere-{DRIVER}", f"{node}-other.example.com"})


async def _slices_are(world: World, names: set[str]) -> None:
    async def are() -> bool:
        return set(await world.kubelet.slices()) == names

    await eventually(are, f"the slices are {names}", quiet_s=REAL_S, pause_s=0.1)


async def test_the_health_of_a_device_reaches_its_pods(world: World) -> None:
    if not await world.kubelet.tells_health():
        pytest.skip("kubelets before 1.36 tell nobody the health of a device, unless a feature gate is set")
    world.driver.health = False, "the GPU has fallen off the bus"
    await world.claim("c1", "p1")
    await world.registered()
    await world.kubelet.runs("p1")

    async def told() -> bool:
        return await world.kubelet.health("p1") == ("Unhealthy", "the GPU has fallen off the bus")

    await eventually(told, "the pod's status says that its device is unhealthy", quiet_s=REAL_S, pause_s=0.1)
