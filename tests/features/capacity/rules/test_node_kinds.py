"""What a new node will be like, by the nodes that are there or were."""

from dataclasses import replace

import pytest

from gpu_device_plugin.features.capacity.rules.node_kinds import MACHINE, PRODUCT, Needs, kind_of, likely_labels, unlike
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.keys import HOSTNAME, STARTUP_TAINT
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Terms, Toleration
from tests.scheduler.rules.test_fitting import asking, mem, node, whole

LABELS = {HOSTNAME: "n1", "pool": "gpus", MACHINE: "g4dn.12xlarge"}
TAINTS = (Taint("dedicated"), Taint(STARTUP_TAINT), Taint("node.kubernetes.io/not-ready"))
NONE: frozenset[str] = frozenset()
USED = node(8, 8, used={0: 5}, unhealthy=(1,), models=("Tesla T4", "Tesla T4"))
T4 = kind_of(
    replace(USED, gpus=replace(USED.gpus, problem="away", away=True), allocatable=Amounts(8, 8)),
    LABELS,
    TAINTS,
    frozenset({"rdma/hca"}),
)
SLICED = candidate(
    "n",
    NodeGpus(
        tuple(
            ListedGpu(at, 10, f"MIG-{at}", "H100", instance=ListedInstance(card, 0, at, "1g.10gb", at))
            for at, card in enumerate("aab")
        ),
        1024,
    ),
    (),
)
A100 = kind_of(node(40, 40, models=("A100", "A100")), {"pool": "large"}, (), NONE)


def test_a_new_node_is_empty_and_whole_and_has_started() -> None:
    assert unfit(asking(mem(8), mem(8)), T4.node) is None
    assert T4.node.left == Amounts(8, 8)
    assert (T4.labels, T4.taints) == ({"pool": "gpus", MACHINE: "g4dn.12xlarge"}, (Taint("dedicated"),))
    assert T4.marks == {PRODUCT: "Tesla-T4", MACHINE: "g4dn.12xlarge"}
    assert A100.marks == {PRODUCT: "A100"}


def test_a_new_node_has_no_gpu_that_a_pod_wants_by_name() -> None:
    (uuid,) = {gpu.uuid for gpu in node(8).gpus.gpus}

    wants = Needs(asking(mem(4), preferences=GpuSelector(use_uuids={uuid})), NO_TERMS)
    assert wants.met_by(node(8))
    assert not wants.met_by(kind_of(node(8), {}, (), NONE).node)


def test_kinds_with_several_models_or_none_are_not_told_by_their_product() -> None:
    mixed = kind_of(node(8, 40, models=("T4", "A100")), {}, (), NONE)
    nothing = kind_of(node(), {}, (), NONE)

    assert (mixed.product, nothing.product, nothing.marks) == ("mixed", "", {})


@pytest.mark.parametrize(
    ("needs", "allowed"),
    [
        (Needs(asking(mem(1)), Terms((Toleration("dedicated", "Exists"),))), True),
        (Needs(asking(mem(1)), NO_TERMS), False),
        (
            Needs(
                asking(mem(1)),
                Terms((Toleration(operator="Exists"),), {"pool": "gpus"}),
                others=frozenset({"rdma/hca"}),
            ),
            True,
        ),
        (Needs(asking(mem(1)), Terms((Toleration(operator="Exists"),)), others=frozenset({"example.com/x"})), False),
    ],
)
def test_the_pods_terms_and_its_other_resources_decide_where_it_may_go(needs: Needs, *, allowed: bool) -> None:
    assert T4.allows(needs) == allowed


def test_gpus_cpu_and_memory_decide_where_it_has_room() -> None:
    assert Needs(asking(mem(8)), NO_TERMS, Amounts(8, 8)).met_by(T4.node)
    assert not Needs(asking(mem(8)), NO_TERMS, Amounts(9, 8)).met_by(T4.node)
    assert not Needs(asking(mem(9)), NO_TERMS).met_by(T4.node)
    assert Needs(asking(mem(8)), NO_TERMS, Amounts(9, 8)).met_by(node(8))


@pytest.mark.parametrize(("needs", "fits"), [(mem(11), True), (mem(12), False), (whole(1), True), (whole(2), False)])
def test_an_autoscaler_sees_sums_alone(needs: object, fits: bool) -> None:  # noqa: FBT001
    assert Needs(asking(needs), NO_TERMS).fits_by_sums(node(8, 8, used={0: 5})) == fits  # type: ignore[arg-type]


def test_nodes_of_no_use_are_told_by_labels_that_no_useful_one_has() -> None:
    same = replace(A100, labels={MACHINE: "g4dn.12xlarge"})

    assert unlike([A100], [T4, A100]) == {PRODUCT: ["Tesla-T4"], MACHINE: ["g4dn.12xlarge"]}
    assert unlike([same], [T4, A100]) == {PRODUCT: ["Tesla-T4"]}
    assert unlike([T4, A100], [T4, A100]) == {}


def test_a_node_without_its_agents_labels_is_likely_of_the_kind_that_has_all_of_its_labels() -> None:
    assert likely_labels({HOSTNAME: "n2", "pool": "gpus"}, [A100, T4]) == {**T4.labels, **T4.marks}
    assert likely_labels({HOSTNAME: "n2", "pool": "new"}, [A100, T4]) == {"pool": "new"}


def test_a_node_of_a_known_machine_is_likely_of_the_kind_with_most_of_its_labels_though_some_differ() -> None:
    """Groups of nodes span zones, of which the node that is the example is in one."""
    v100 = replace(A100, labels={"pool": "fast", MACHINE: "g4dn.12xlarge", "zone": "a"})
    kinds = [replace(A100, labels={"pool": "gpus", "zone": "b"}), v100, replace(T4, labels={**T4.labels, "zone": "a"})]
    new = {"pool": "gpus", MACHINE: "g4dn.12xlarge", "zone": "b"}

    assert likely_labels({HOSTNAME: "n2", **new}, kinds) == {**new, PRODUCT: "Tesla-T4"}
    assert likely_labels({**new, MACHINE: "unseen"}, kinds) == {**new, MACHINE: "unseen"}


def test_a_kind_is_known_again_by_product_machine_taints_and_group() -> None:
    group = {"eks.amazonaws.com/nodegroup": "b"}

    assert replace(T4, node=node(8, models=("Tesla T4",))).key == T4.key, "one GPU is broken"
    assert replace(T4, labels={**T4.labels, "team": "b"}).key == T4.key
    others = A100, replace(T4, taints=()), replace(T4, labels={**T4.labels, **group})
    assert len({T4.key, *(each.key for each in others)}) == 4
