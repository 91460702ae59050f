"""A node that gives MIG instances to ResourceClaims, whole or in parts, while its GPUs are divided anew."""

from typing import Any

from gpu_device_plugin.features.use.node import Use
from tests.features.claims.dra_harness import Claims, claims
from tests.node.cluster_harness import NODE
from tests.scheduler_double.dra_scheduler import exactly

SEVEN = "fake:1xH100:mig=1g.10gb*7"
MIXED: list[dict[str, Any]] = [{"model": "H100", "mig": "2g.20gb/1g.10gb*2"}, {"model": "T4"}]
"""GPU 0 with three instances of 19 and twice 9 shares of 1 GiB, and GPU 1 of 14 shares."""
INSTANCE = exactly("mig")


def types(here: Claims) -> dict[str, int]:
    """Return the number of devices of each type."""
    found = [device["attributes"]["type"]["string"] for device in here.devices().values()]
    return {each: found.count(each) for each in sorted(set(found))}


def profiles(here: Claims) -> list[str]:
    """Return the profiles of the instances that can be had whole."""
    found = [device["attributes"] for device in here.devices().values()]
    return sorted(each["profile"]["string"] for each in found if each["type"]["string"] == "mig")


async def divide(here: Claims, *mig: str) -> None:
    """Divide the GPUs anew, and wait until the slices say so."""
    here.node.hardware(*({"model": "H100", "mig": each} for each in mig))
    wanted = sorted(
        profile.partition("*")[0]
        for each in mig
        for profile in each.split("/")
        for _ in range(int(profile.partition("*")[2] or 1))
    )
    await here.node.until(lambda: profiles(here) == wanted)
    await here.serves()


async def test_a_claim_gets_a_whole_instance_which_the_hardware_keeps_apart() -> None:
    async with claims(SEVEN) as here:
        await here.start(mig="whole")
        assert types(here) == {"mig": 7, "monitor": 7}
        started = await here.run_claim("c1", INSTANCE)
        uuid = started.environ["NVIDIA_VISIBLE_DEVICES"]
        assert started.environ == {"NVIDIA_VISIBLE_DEVICES": uuid, "GPUSHARE_MEMORY_LIMIT_BY": "partition"}
        assert uuid.startswith("MIG-")
        await here.node.until(lambda: bool(here.status("c1")))
        (device,) = here.status("c1")
        assert device["device"] == uuid.lower()
        assert (device["data"]["uuid"], device["data"]["limitBy"]) == (uuid, "partition")
        assert here.node.agent is not None
        agent = here.node.agent
        await here.node.until(lambda: [each.container for each in agent.features.of(Use).holders()] == ["main"])
        (holder,) = agent.features.of(Use).holders()
        assert (list(holder.granted), holder.whole) == ([uuid], True)
        await here.end_claim("c1")
        assert not agent.state.node.ledger.id_states


async def test_whole_gpus_and_instances_are_two_types_of_devices() -> None:
    async with claims(MIXED) as here:
        await here.start(mig="share")
        assert types(here) == {"monitor": 4, "shared-gpu": 4}
        whole = await here.run_claim("gpu", exactly("whole-gpu"))
        assert whole.environ["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
        here.wish("another", exactly("whole-gpu"))
        assert here.allocate("another") == "cannot allocate all claims"


async def test_parts_of_an_instance_fill_it_and_it_is_not_given_whole_beside_them() -> None:
    async with claims("fake:1xH100:mig=1g.10gb*2") as here:
        await here.start(mig="share")
        first, second = [(await here.run_claim(f"c{n}", exactly(memory="4Gi"))).environ for n in range(2)]
        assert first["NVIDIA_VISIBLE_DEVICES"] == second["NVIDIA_VISIBLE_DEVICES"]
        assert (first["GPUSHARE_MEMORY_LIMIT_BY"], first["ALIYUN_COM_GPU_MEM_DEV"]) == ("advisory", "9")
        whole = await here.run_claim("whole", INSTANCE)
        assert whole.environ["NVIDIA_VISIBLE_DEVICES"] != first["NVIDIA_VISIBLE_DEVICES"]
        for name, wish in (("all", INSTANCE), ("more", exactly(memory="5Gi"))):
            here.wish(name, wish)
            assert here.allocate(name) == "cannot allocate all claims"
        await here.end_claim("whole")
        everything = await here.run_claim("everything", exactly(memory="9Gi"))
        assert everything.environ["GPUSHARE_MEMORY_LIMIT_BY"] == "partition"


async def test_a_gpu_that_is_divided_anew_brings_new_devices_and_takes_the_others_back() -> None:
    async with claims([{"model": "H100", "mig": "1g.10gb*2"}, {"model": "H100", "mig": "1g.10gb"}]) as here:
        await here.start(mig="whole")
        # The second GPU has the fewest free instances, and is filled first.
        stays, goes = [(await here.run_claim(f"c{n}", INSTANCE)).environ["NVIDIA_VISIBLE_DEVICES"] for n in range(2)]
        await divide(here, "3g.40gb", "1g.10gb")
        await here.node.until(
            lambda: (
                here.kubelet.health.get((NODE, goes.lower()), (True, ""))
                == (False, "the MIG instance no longer exists")
            )
        )
        assert here.kubelet.health[NODE, stays.lower()] == (True, "")
        new = (await here.run_claim("new", exactly("mig", profile="3g.40gb"))).environ["NVIDIA_VISIBLE_DEVICES"]
        assert new not in {stays, goes}
        await here.end_claim("c1")
        assert here.node.agent is not None
        assert here.node.agent.state.node.ledger.id_states.keys() == {stays, new}


async def test_an_instance_that_went_before_its_claim_was_prepared_is_told_to_the_pod() -> None:
    async with claims([{"model": "H100", "mig": "1g.10gb*2"}]) as here:
        await here.start(mig="whole")
        here.wish("c1", INSTANCE)
        assert here.allocate("c1") == ""
        await divide(here, "2g.20gb")
        assert "is not on this node; delete the pod" in (await here.kubelet.start_pod("c1")).error


async def test_an_agent_that_was_killed_finds_the_claims_of_instances_again_and_gives_them_to_nobody_else() -> None:
    async with claims([{"model": "H100", "mig": "1g.10gb*2"}]) as here:
        await here.start(mig="whole")
        before = await here.run_claim("c1", INSTANCE)
        await here.node.stop_agent()
        await here.start()
        assert await here.kubelet.start_pod("c1") == before
        other = await here.run_claim("c2", INSTANCE)
        assert other.environ["NVIDIA_VISIBLE_DEVICES"] != before.environ["NVIDIA_VISIBLE_DEVICES"]


async def test_parts_that_are_in_use_keep_an_instance_from_being_given_whole_after_the_mode_changed() -> None:
    async with claims([{"model": "H100", "mig": "1g.10gb*2"}]) as here:
        await here.start(mig="share")
        uuid = (await here.run_claim("c1", exactly(memory="2Gi"))).environ["NVIDIA_VISIBLE_DEVICES"]
        here.api.patch("nodes", NODE, {"metadata": {"labels": {"gpu-device-plugin/mig": "whole"}}})
        await here.node.until(lambda: types(here) == {"mig": 2, "monitor": 2})
        await here.serves()
        assert (await here.run_claim("c2", INSTANCE)).environ["NVIDIA_VISIBLE_DEVICES"] != uuid
        await here.end_claim("c1")
        await here.serves()
        assert (await here.run_claim("c3", INSTANCE)).environ["NVIDIA_VISIBLE_DEVICES"] == uuid
        here.api.patch("nodes", NODE, {"metadata": {"labels": {"gpu-device-plugin/mig": "off"}}})
        await here.node.until(lambda: not here.devices())
