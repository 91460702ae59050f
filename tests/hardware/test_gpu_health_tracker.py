"""What is believed of GPUs that are divided into MIG instances, listed, read and reported of."""

import pytest

from gpu_device_plugin.hardware.gpu_health_tracker import GpuHealthTracker, HealthChange
from gpu_device_plugin.hardware.messages import Listing
from gpu_device_plugin.model.gpus import Gpu, MigInstance
from gpu_device_plugin.node.rules.gpu_health import HealthRules, Probe, Xid


def instance(uuid: str, parent: str, gi: int, ci: int = 0) -> Gpu:
    return Gpu(uuid, 0, "NVIDIA H100 MIG", 9984, instance=MigInstance(parent, gi - 7, "1g.10gb", gi, ci))


A, B = Gpu("GPU-a", 0, "NVIDIA H100", 81559, mig=True), Gpu("GPU-b", 1, "NVIDIA H100", 81559, mig=True)
T4 = Gpu("GPU-t", 2, "Tesla T4", 15360)
ONE, TWO, OTHER = instance("MIG-1", "GPU-a", 7), instance("MIG-2", "GPU-a", 8), instance("MIG-3", "GPU-b", 7)
PART = instance("MIG-4", "GPU-a", 8, 1)
ALL = (A, ONE, TWO, PART, B, OTHER, T4)


class World:
    """Beliefs about `ALL`, with what they reported."""

    def __init__(self) -> None:
        self.changes: list[HealthChange] = []
        self.xids: list[Xid] = []
        self.beliefs = GpuHealthTracker(HealthRules, self.changes.append, self.xids.append)
        self.listed(*ALL)

    def listed(self, *gpus: Gpu, left_out: int = 0) -> None:
        self.beliefs.adopt(Listing(gpus, (), "580.65.06", 2, left_out, ()))
        self.beliefs.publish()

    def read(self, *probes: Probe) -> bool:
        return self.beliefs.take_readings(probes, 0)

    @property
    def unhealthy(self) -> set[str]:
        return {uuid for uuid, health in self.beliefs.view.value.health_by_uuid.items() if not health.healthy}

    @property
    def known(self) -> list[str]:
        return [gpu.uuid for gpu in self.beliefs.view.value.inventory.gpus]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("probe", "outdated"),
    [
        (Probe("GPU-a", mig=True, instances=("MIG-4", "MIG-1", "MIG-2")), False),
        (Probe("GPU-a", mig=True, instances=("MIG-1", "MIG-2")), True),
        (Probe("GPU-a", mig=True, instances=("MIG-1", "MIG-2", "MIG-4", "MIG-5")), True),
        (Probe("GPU-a", mig=True, instances=("MIG-1", "MIG-2", "MIG-5")), True),
        (Probe("GPU-a", mig=True, instances=()), True),
        (Probe("GPU-a", mig=True), False),  # it is unknown which there are
        (Probe("GPU-a", mig=False), True),
        (Probe("GPU-a", mig_changed=True), True),
        (Probe("GPU-a", error="it hangs"), False),
        (Probe("GPU-t", mig=False), False),
        (Probe("GPU-t", mig=True, instances=()), True),
        (Probe("MIG-1"), False),
    ],
)
def test_a_reading_that_differs_from_the_listing_shows_that_it_is_outdated(
    world: World,
    probe: Probe,
    outdated: bool,  # noqa: FBT001 (a parameter)
) -> None:
    assert world.read(Probe("GPU-b", mig=True, instances=("MIG-3",)), probe) is outdated
    assert World().beliefs.take_events([Xid("GPU-b", 31), probe]) is outdated


@pytest.mark.parametrize(
    ("xid", "concerned"),
    [
        (Xid("GPU-a", 48, gi=7, ci=0), ["MIG-1"]),
        (Xid("GPU-a", 48, gi=7), ["MIG-1"]),
        (Xid("GPU-a", 48, gi=8), ["MIG-2", "MIG-4"]),
        (Xid("GPU-a", 48, gi=8, ci=1), ["MIG-4"]),
        (Xid("GPU-b", 48, gi=7, ci=0), ["MIG-3"]),  # the same numbers, of another GPU
        (Xid("GPU-a", 48), ["GPU-a"]),
        (Xid("GPU-a", 48, gi=9), ["GPU-a"]),  # an instance that is not known yet, or any more
        (Xid("GPU-a", 48, gi=7, ci=3), ["GPU-a"]),
        (Xid("GPU-t", 48), ["GPU-t"]),
    ],
)
def test_an_xid_concerns_the_instances_that_it_names_and_otherwise_the_gpu(
    world: World, xid: Xid, concerned: list[str]
) -> None:
    assert world.beliefs.take_events([xid]) is False
    assert [(seen.uuid, seen.code) for seen in world.xids] == [(uuid, 48) for uuid in concerned]
    assert [change.uuid for change in world.changes] == concerned
    assert world.unhealthy == set(concerned)
    assert "XID 48" in world.changes[0].reason


def test_an_instance_recovers_from_its_xid_when_the_driver_asks_for_nothing(world: World) -> None:
    world.beliefs.take_events([Xid("GPU-a", 48, gi=7)])
    for _ in range(3):
        assert world.unhealthy == {"MIG-1"}
        world.read(Probe("MIG-1", recovery_action=0))
    assert world.unhealthy == set()


def test_an_xid_is_told_for_each_instance(world: World) -> None:
    world.beliefs.take_events([Xid("GPU-a", 43, gi=8), Xid("GPU-a", 43, gi=8, ci=0), Xid("GPU-a", 43)])
    assert [seen.uuid for seen in world.xids] == ["MIG-2", "MIG-4", "MIG-2", "GPU-a"]


def test_a_destroyed_instance_is_no_lost_gpu(world: World) -> None:
    """Its GPU is listed without it. The hardware as a whole is complete."""
    new = instance("MIG-9", "GPU-a", 9)
    world.listed(A, TWO, new, B, OTHER, T4)
    assert world.known == ["GPU-a", "MIG-2", "GPU-b", "MIG-3", "GPU-t", "MIG-9"]
    assert world.unhealthy == set()
    assert world.changes == []
    assert world.beliefs.complete


def test_an_instance_is_lost_with_its_gpu(world: World) -> None:
    world.listed(B, OTHER, T4, left_out=1)
    assert world.known == [gpu.uuid for gpu in ALL]
    assert world.unhealthy == {"GPU-a", "MIG-1", "MIG-2", "MIG-4"}
    assert not world.beliefs.complete


def test_an_instance_that_is_made_again_is_believed_anew(world: World) -> None:
    """The old problem was that of an instance which exists no more."""
    world.beliefs.take_events([Xid("GPU-a", 48, gi=7)])
    world.listed(A, TWO, PART, B, OTHER, T4)
    assert "MIG-1" not in world.beliefs.view.value.health_by_uuid
    world.listed(*ALL)
    assert world.unhealthy == set()


def test_a_reading_of_an_instance_that_is_not_listed_changes_nothing(world: World) -> None:
    before = world.beliefs.view.value
    world.read(Probe("MIG-9", error="it hangs"))
    world.beliefs.take_events([Xid("MIG-9", 48)])
    assert world.beliefs.view.value == before


def test_the_use_of_instances_is_that_of_their_readings(world: World) -> None:
    world.read(Probe("GPU-a", used_mib=500, instances=("MIG-1",)), Probe("MIG-1", used_mib=3, processes=1))
    processes = {uuid: reading.processes for uuid, reading in world.beliefs.readings.value.items()}
    assert processes == {"GPU-a": 1, "MIG-1": 1}


def test_a_gpu_of_the_last_run_is_lost_with_its_instances_and_a_destroyed_instance_is_not(world: World) -> None:
    """The positions of both are known all the same."""
    destroyed, lost = instance("MIG-old", "GPU-a", 9), Gpu("GPU-x", 3, "NVIDIA H100", 81559, mig=True)
    of_lost = instance("MIG-x", "GPU-x", 7)
    world.beliefs.restore_order((ONE, destroyed, lost, of_lost, T4, TWO, PART, OTHER))
    assert world.unhealthy == {"GPU-x", "MIG-x"}
    assert "MIG-old" not in world.known
    assert set(world.known) == {*(gpu.uuid for gpu in ALL), "GPU-x", "MIG-x"}
    order = [gpu.uuid for gpu in world.beliefs.view.value.inventory.order]
    assert order[:4] == ["MIG-1", "MIG-old", "GPU-x", "MIG-x"]
