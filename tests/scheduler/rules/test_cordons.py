"""No pod is placed on a GPU that is put aside; what runs there counts, and uncordoned the node is as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.cordons import Cordon, write_cordons
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.keys import CORDONS
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate, with_cordons
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit, unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.scheduler.rules.test_cluster_properties import asks, nodes, policies
from tests.views import listed_instance

WHY = Cordon("alice", "2026-11-28T18:00:00Z", "a fan is loud")
SAYS = "cordoned by alice at 2026-11-28T18:00:00Z because: a fan is loud"


def two(*used: int, unhealthy: str = "") -> Candidate:
    """Return a node with two GPUs of 8 shares, of which so many are used."""
    gpus = NodeGpus((ListedGpu(0, 8, "GPU-0"), ListedGpu(1, 8, "GPU-1", unhealthy=unhealthy)), share_mib=1024)
    return candidate("node", gpus, [Usage(tuple(enumerate(used)))])


def cordoned(node: Candidate, *uuids: str, used: tuple[int, ...]) -> Candidate:
    text = write_cordons(dict.fromkeys(uuids, WHY))
    assert text is not None
    return candidate("node", with_cordons(node.gpus, {CORDONS: text}), [Usage(tuple(enumerate(used)))])


def asking(shares: int, use_uuids: tuple[str, ...] = ()) -> GpuRequest:
    return GpuRequest((Part(Demand(Kind.MEMORY, shares)),), GpuSelector(use_uuids=use_uuids))


def test_a_cordoned_gpu_has_no_room_and_what_runs_there_counts() -> None:
    node = cordoned(two(), "GPU-0", used=(3, 2))
    assert [(room.free, room.shared, room.gives_shares) for room in node.rooms] == [(5, True, False), (6, True, True)]
    assert node.summary.frees == (6,)
    found = fit(asking(5), node, "binpack")
    assert isinstance(found, Fit)
    assert found.placements[0].positions == (1,)


@pytest.mark.parametrize(
    ("used", "uuids", "shares", "sentence"),
    [
        ((0, 4), ("GPU-0",), 5, f"GPU 0 is {SAYS}"),
        ((0, 0), ("GPU-0", "GPU-1"), 5, f"GPU 0 is {SAYS}"),
        ((4, 4), ("GPU-0",), 5, "no GPU has 5 GiB free"),
        ((4, 4), ("GPU-0", "GPU-1"), 9, "the largest GPU has only 8 GiB"),
    ],
)
def test_the_reason_names_a_cordon_only_where_it_is_the_reason(
    used: tuple[int, ...], uuids: tuple[str, ...], shares: int, sentence: str
) -> None:
    why = unfit(asking(shares), cordoned(two(), *uuids, used=used))
    assert why is not None
    assert why.sentence == sentence
    assert fit(asking(shares), cordoned(two(), *uuids, used=used), "binpack") == why


def test_a_gpu_out_of_service_stays_so_without_its_cordon() -> None:
    node = cordoned(two(unhealthy="hot"), "GPU-0", "GPU-1", used=(8, 0))
    why = unfit(asking(5), node)
    assert why is not None
    assert why.sentence == "no GPU has 5 GiB free"
    assert [gpu.closed for gpu in node.gpus.gpus] == [SAYS, f"unhealthy: hot; {SAYS}"]


def test_a_gpu_that_the_pod_does_not_want_is_not_the_reason() -> None:
    why = unfit(asking(5, use_uuids=("GPU-1",)), cordoned(two(), "GPU-0", used=(0, 4)))
    assert why is not None
    assert why.sentence == "no GPU has 5 GiB free, among the GPUs that the pod's annotations allow"


def test_a_whole_gpu_in_mig_mode_takes_its_instances_along() -> None:
    listed = (listed_instance(0, 0), listed_instance(1, 1, resource="nvidia.com/mig-1g.10gb"))
    text = write_cordons({"GPU-m": WHY})
    assert text is not None
    gpus = with_cordons(NodeGpus(listed[:1], instances=listed[1:]), {CORDONS: text})
    assert [gpu.cordon for gpu in gpus.all] == [WHY, WHY]


@given(asks, nodes(gpushare=False), policies)
def test_no_pod_is_ever_placed_on_a_cordoned_gpu(asked: GpuRequest, node: Candidate, policy: str) -> None:
    found = fit(asked, node, policy)
    closed = {gpu.position for gpu in node.gpus.cordoned}
    places = [placement.positions for placement in found.placements] if isinstance(found, Fit) else []
    assert all(closed.isdisjoint(positions) for positions in places)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4), st.sets(st.integers(0, 3)))
def test_uncordoned_a_node_is_as_it_was(gpus: list[tuple[int, int]], positions: set[int]) -> None:
    listed = NodeGpus(tuple(ListedGpu(at, size, f"GPU-{at}") for at, (size, _) in enumerate(gpus)), share_mib=1024)
    used = Usage(tuple((at, taken) for at, (_, taken) in enumerate(gpus) if taken))
    text = write_cordons({f"GPU-{position}": WHY for position in positions})
    marked = with_cordons(listed, {} if text is None else {CORDONS: text})
    before, now = candidate("node", listed, [used]), candidate("node", marked, [used])
    assert now.opened() == before
    assert with_cordons(marked, {}) == listed
    assert [(room.free, room.shared) for room in now.rooms] == [(room.free, room.shared) for room in before.rooms]
    assert {room.position for room in now.rooms if not room.gives_shares} == positions & set(range(len(gpus)))
