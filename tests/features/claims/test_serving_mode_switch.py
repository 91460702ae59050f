"""A node that changes over between the device plugin and ResourceClaims, and never serves both ways."""

from dataclasses import replace

import pytest

from gpu_device_plugin.node.rules.serving_mode import ServingMode
from gpu_device_plugin.testing.pod_specs import Pod
from tests import builders
from tests.cluster_double import owned as owned_objects
from tests.cluster_double.troubles import Answer
from tests.features.claims.dra_harness import Claims, claims
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE
from tests.node.harness import envs_of, pod
from tests.scheduler_double.dra_scheduler import exactly


def offered(here: Claims) -> tuple[int, int]:
    """Return the IDs that the kubelet sees healthy, of both resources."""
    return here.node.healthy(MEM), here.node.healthy(COUNT)


async def way_is(here: Claims, mode: ServingMode, *, waits: bool = False) -> None:
    agent = here.node.agent
    assert agent is not None
    await here.node.until(
        lambda: (
            bool(agent.server.serving.version)
            and (agent.server.serving.value.mode, bool(agent.server.serving.value.waits)) == (mode, waits)
        )
    )


async def serves_as_plugin(here: Claims) -> None:
    await here.node.ready()
    await here.node.until(lambda: here.cluster.followed.reflector.synced)


def ended(here: Claims, made: Pod) -> None:
    here.node.kubelet.finish(made)
    here.api.patch("pods", made.name, {"status": {"phase": "Succeeded"}}, subresource="status")


async def test_by_default_a_node_is_served_as_a_device_plugin_and_nothing_is_asked_of_dra() -> None:
    async with claims(serve="auto") as here:
        here.launch()
        await serves_as_plugin(here)
        await way_is(here, ServingMode.DEVICE_PLUGIN)
        assert offered(here) == (28, 2)
        assert not here.slices()
        assert not [request for request in here.api.requests if request.group == "resource.k8s.io"]
        assert not list(here.kubelet.registry.iterdir())


async def test_the_label_changes_a_node_over_and_back() -> None:
    async with claims(serve="auto") as here:
        here.launch()
        await serves_as_plugin(here)
        here.label("dra")
        await here.serves()
        await way_is(here, ServingMode.DRA)
        assert len(here.devices()) == 4
        assert here.node.kubelet.amounts[MEM].allocatable == 0
        assert (await here.run_claim("c1")).error == ""
        await here.end_claim("c1")
        here.label(None)
        await way_is(here, ServingMode.DEVICE_PLUGIN)
        await here.node.ready()
        assert not here.slices()
        assert not list(here.kubelet.registry.iterdir())
        made = await here.run(pod("p1", mem=3))
        assert envs_of(made)["GPUSHARE_MEMORY_LIMIT_MIB"] == "3072"


async def test_a_node_waits_for_the_pods_of_the_plugin_and_gives_nothing_meanwhile() -> None:
    async with claims(serve="auto") as here:
        here.launch()
        await serves_as_plugin(here)
        made = await here.run(pod("p1", mem=3))
        here.label("dra")
        await way_is(here, ServingMode.DEVICE_PLUGIN, waits=True)
        await here.node.until(lambda: offered(here) == (3, 0))
        assert not here.slices()
        agent = here.node.agent
        assert agent is not None
        waits = "this node will serve through dra instead of device-plugin later: pod default/p1 still holds its GPUs"
        await here.node.until(lambda: agent.server.serving.value.waits.startswith(waits))
        await here.node.until(lambda: bool(here.events("ServingWaits")))
        await here.node.until(lambda: "will serve" in here.said_of_node()["gpus"][0].get("reason", ""))
        ended(here, made)
        await here.serves()
        assert len(here.devices()) == 4


async def test_the_last_registration_asks_for_no_call_before_containers_start() -> None:
    """Kubelets up to 1.36.2 would make that call for containers that DRA serves, and not start them."""
    async with claims(serve="auto") as here:
        here.launch()
        await serves_as_plugin(here)
        here.label("dra")
        await here.serves()
        requests = [each.request for each in here.node.kubelet.registrations]
        last = {each.resource_name: each.options.pre_start_required for each in requests}
        assert last == {MEM: False, COUNT: False}
        assert [each.options.pre_start_required for each in requests] == [True, True, False, False]


async def test_a_node_that_waits_for_a_static_pod_of_the_plugin_names_it() -> None:
    """The kubelet's records have its own UID of a static pod, and the API that of its mirror."""
    async with claims(serve="auto") as here:
        here.launch()
        await serves_as_plugin(here)
        static = await here.node.kubelet.admit(replace(pod("static", mem=3), uid="0123456789abcdef" * 2))
        body = builders.pod("static", builders.container(mem=3), node=NODE)
        here.api.add(owned_objects.mirror(body, static.uid))
        await here.seen("static")
        here.label("dra")
        agent = here.node.agent
        assert agent is not None
        await here.node.until(lambda: "pod default/static still holds" in agent.server.serving.value.waits)


async def test_a_node_waits_for_claims_and_offers_nothing_meanwhile() -> None:
    async with claims() as here:
        await here.start()
        await here.run_claim("c1")
        here.wish("late")
        assert here.allocate("late") == ""
        here.label("device-plugin")
        await way_is(here, ServingMode.DRA, waits=True)
        await here.node.until(lambda: not here.slices())
        assert offered(here) == (0, 0)
        assert (await here.kubelet.start_pod("late")).error == ""  # it was allocated before
        await here.end_claim("c1")
        await here.end_claim("late")
        await way_is(here, ServingMode.DEVICE_PLUGIN)
        await here.node.ready()
        assert offered(here) == (28, 2)


async def test_a_claim_that_is_allocated_and_not_prepared_keeps_its_gpu_from_the_plugin() -> None:
    async with claims() as here:
        await here.start()
        here.wish("c1", exactly("whole-gpu"))
        assert here.allocate("c1") == ""
        here.label("device-plugin")
        agent = here.node.agent
        assert agent is not None
        await here.node.until(lambda: "claim default/c1 still holds" in agent.server.serving.value.waits)
        here.scheduler.release("c1")
        await way_is(here, ServingMode.DEVICE_PLUGIN)


async def test_a_node_that_is_told_to_stay_serves_on() -> None:
    async with claims() as here:
        await here.start()
        await here.run_claim("c1")
        here.label("device-plugin")
        await way_is(here, ServingMode.DRA, waits=True)
        await here.node.until(lambda: not here.slices())
        here.label("dra")
        await way_is(here, ServingMode.DRA)
        await here.serves()
        assert (await here.run_claim("c2")).error == ""


async def test_a_node_is_not_ready_for_claims_while_its_offer_is_to_be_published_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with claims() as here:
        await here.start()
        offer = here.dra.offer.offer
        monkeypatch.setattr(here.dra.offer, "offer", lambda **_: None)  # the agent offers whenever it looks; here we do
        offer(offering=False)
        assert here.dra.unmet() == ("the ResourceSlices of this node are not published yet",)
        await here.node.until(lambda: not here.slices() and not here.dra.unmet())
        offer(offering=True)
        assert here.dra.unmet() == ("the ResourceSlices of this node are not published yet",)
        await here.serves()
        assert here.slices()


async def test_an_agent_that_ends_while_it_changes_over_leaves_no_gpu_offered_both_ways() -> None:
    async with claims() as here:
        await here.start()
        await here.run_claim("c1")
        await here.node.stop_agent()
        assert here.slices()  # the kubelet removes them later
        here.launch(serve="device-plugin")
        await way_is(here, ServingMode.DRA, waits=True)
        await here.node.until(lambda: not here.slices())
        await here.node.until(lambda: here.kubelet.reaches("gpu-device-plugin"))
        await here.end_claim("c1")
        await way_is(here, ServingMode.DEVICE_PLUGIN)
        await here.node.ready()


async def test_slices_that_an_agent_left_are_removed_before_the_plugin_registers() -> None:
    async with claims() as here:
        await here.start()
        await here.node.stop_agent()
        here.launch(serve="device-plugin")
        await here.node.until(lambda: bool(here.node.kubelet.registrations))
        assert not here.slices()


async def test_an_agent_goes_on_as_its_predecessor_while_its_node_cannot_be_read() -> None:
    async with claims(serve="auto") as here:
        here.launch()
        await serves_as_plugin(here)
        here.label("dra")
        await here.serves()
        await here.node.stop_agent()
        here.api.fail(Answer(503), verbs=["get"], resources=["nodes"])
        here.launch()
        await way_is(here, ServingMode.DRA)
        here.api.heal()


async def test_a_share_size_waits_for_claims_too() -> None:
    async with claims() as here:
        await here.start()
        await here.run_claim("c1")
        await here.node.stop_agent()
        await here.start(share_size="2GiB")
        agent = here.node.agent
        assert agent is not None
        assert agent.state.node.shares.share_mib == 1024
        await here.end_claim("c1")
        await here.node.stop_agent()
        await here.start()
        agent = here.node.agent
        assert agent is not None
        assert agent.state.node.shares.share_mib == 2048


async def test_a_missing_directory_of_the_kubelet_is_told_and_tried_again() -> None:
    async with claims() as here:
        await here.kubelet.stop()
        here.kubelet.registry.rmdir()
        here.launch()
        await here.node.until(lambda: any("mount the kubelet's directories" in why for why in here.dra.unmet()))
        assert here.node.agent is not None
        assert await here.node.agent.server.alive() == (), "a restart would not bring it back"
        here.kubelet.registry.mkdir()
        await here.kubelet.start()
        await here.serves()
