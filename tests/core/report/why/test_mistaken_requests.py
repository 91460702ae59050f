"""What to write instead of what a pod asks for."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
from gpu_device_plugin.core.contract.keys import MEMORY_LIMIT
from gpu_device_plugin.core.model.placing import Demand
from gpu_device_plugin.core.model.pods import Container, ContainerKind
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.report.why.mistaken_requests import (
    asks_for_others,
    asks_for_several,
    asks_in_mib,
    asks_others,
    read_by_others,
)
from tests.findings import facts
from tests.resources import COUNT, MEM
from tests.views import node_view

BOTH = (MEM, COUNT)
INSTEAD = "aliyun.com/gpu-mem: N for N units of the memory of one GPU or aliyun.com/gpu-count: 1 for a whole GPU"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aliyun.com/gpu-memory", "mistyped-resource meant=aliyun.com/gpu-mem"),
        ("aliyun.com/gpumem", "mistyped-resource meant=aliyun.com/gpu-mem"),
        ("aliyun.com/gpu-counts", "mistyped-resource meant=aliyun.com/gpu-count"),
        ("aliyun.com/eni", "unknown-resource"),
        ("nvidia.com/gpu", "resource-of-others"),
        ("volcano.sh/vgpu-memory", "resource-of-others"),
    ],
)
def test_a_resource_that_stands_for_gpus_elsewhere_is_told_with_ours(name: str, expected: str) -> None:
    (finding,) = asks_for_others(["cpu", name, "aliyun.com/gpu-mem", name], BOTH)
    assert facts([finding], "meant") == [expected]
    assert finding.parameters["resource"] == name


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "memory",
        "rdma/hca",
        "aliyun.com/gpu-mem",
        "example.com/gpu-mem",
        "nvidia.com/mig-1g.5gb",
        "aliyun.com/mig-1g.5gb",
    ],
)
def test_other_resources_are_nobodys_mistake(name: str) -> None:
    assert list(asks_for_others([name], BOTH)) == []


@pytest.mark.parametrize(
    ("annotation", "who", "instead"),
    [
        ("gpu-fraction", "KAI Scheduler and run:ai read", f": write {INSTEAD}"),
        ("gpu-memory", "KAI Scheduler and run:ai read", f": write {INSTEAD}"),
        ("gpu-memory.limit", "KAI Scheduler and run:ai read", f": write the annotation {MEMORY_LIMIT}"),
        ("gpu-sm-percentage", "KAI Scheduler and run:ai read", ""),
        ("nvidia.com/use-gputype", "HAMi reads", ": write the annotation gpu-device-plugin/use-model"),
        ("hami.io/device-scoring-weights", "HAMi reads", ""),
    ],
)
def test_an_annotation_that_another_system_reads_is_told_with_ours(annotation: str, who: str, instead: str) -> None:
    assert read_by_others(annotation)
    (finding,) = asks_others([annotation], BOTH)
    assert str(finding) == f"{who} its annotation {annotation}, which means nothing here{instead}."


def test_who_asks_for_our_gpus_is_not_told_to_do_so() -> None:
    (finding,) = asks_others(["gpu-fraction"], ())
    assert str(finding) == "KAI Scheduler and run:ai read its annotation gpu-fraction, which means nothing here."


@pytest.mark.parametrize("annotation", ["gpu-memory-note", "example.com/gpu-fraction", "nvidia.com/gpu.deploy"])
def test_other_annotations_are_nobodys_request(annotation: str) -> None:
    assert not read_by_others(annotation)


PROFILES = ["aliyun.com/mig-3g.40gb", "aliyun.com/mig-1g.10gb"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aliyun.com/mig-1g10gb", "aliyun.com/mig-1g.10gb"),
        ("aliyun.com/mig-1g.10g", "aliyun.com/mig-1g.10gb"),
        ("aliyun.com/mig-1g.10GB", "aliyun.com/mig-1g.10gb"),
        ("aliyun.com/1g.10gb", "aliyun.com/mig-1g.10gb"),
        ("nvidia.com/mig-3g-40gb", "aliyun.com/mig-3g.40gb"),
    ],
)
def test_a_profile_that_is_written_wrong_is_corrected_where_nodes_offer_it(name: str, meant: str) -> None:
    assert facts(asks_for_others([name], BOTH, PROFILES), "meant") == [f"mistyped-resource meant={meant}"]


def test_who_asks_for_nvidias_gpus_is_told_of_instances_where_nodes_offer_them() -> None:
    (finding,) = asks_for_others(["nvidia.com/gpu"], BOTH, PROFILES)
    assert finding.parameters["instead"] == f"{INSTEAD} or aliyun.com/mig-1g.10gb: 1 for a MIG instance"
    (finding,) = asks_for_others(["aliyun.com/mig-1g10gb"], BOTH)
    assert str(finding) == f"It asks for aliyun.com/mig-1g10gb, which no agent offers: write {INSTEAD}."


def test_only_what_is_offered_is_proposed() -> None:
    (finding,) = asks_for_others(["nvidia.com/gpu"], [MEM])
    assert finding.parameters["instead"] == "aliyun.com/gpu-mem: N for N units of the memory of one GPU"


SMALL_ONES, LARGE_ONES = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


@pytest.mark.parametrize("others", [{"aliyun.com/gpu-mem": 2}, {"aliyun.com/gpu-count": 1}, {LARGE_ONES: 1}])
def test_a_container_cannot_use_instances_beside_other_devices(others: dict[str, int]) -> None:
    findings = asks_for_several([Container("main", ContainerKind.APP, 0, {SMALL_ONES: 1, **others})])
    both = " and ".join(sorted([*others, SMALL_ONES]))
    assert facts(findings, "container resources") == [f"several-resources container='main' resources={both}"]


def test_a_program_may_see_only_one_of_several_instances() -> None:
    findings = asks_for_several([Container("main", ContainerKind.APP, 0, {SMALL_ONES: 2})])
    assert facts(findings, "number resource") == [f"several-instances number=2 resource={SMALL_ONES}"]


@pytest.mark.parametrize(
    "limits",
    [{SMALL_ONES: 1}, {SMALL_ONES: 1, LARGE_ONES: 0}, {"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-count": 1}, {}],
)
def test_one_instance_in_a_container_is_right(limits: dict[str, int]) -> None:
    """And that gpu-mem and gpu-count together are wrong is told elsewhere."""
    assert list(asks_for_several([Container("main", ContainerKind.APP, 0, limits)])) == []


def asking(amount: int, gpus: int = 1, kind: Kind = Kind.MEMORY) -> Ask:
    return Ask((Part(Demand(kind, amount, gpus)),))


SMALL, LARGE = node_view("a", (15,)), node_view("b", (22, 141))


@pytest.mark.parametrize(
    ("asked", "units"),
    [(asking(8000), 8), (asking(8192), 8), (asking(512), 1), (asking(141 * 1024), 141), (asking(16000, gpus=2), 8)],
)
def test_more_units_than_any_gpu_has_are_taken_for_mib(asked: Ask, units: int) -> None:
    amount = asked.parts[0].demand.amount // asked.parts[0].demand.gpus
    expected = [f"asks-in-mib amount={amount} unit=1 GiB units={units}"]
    assert facts(asks_in_mib(asked, BOTH, [SMALL, LARGE]), "amount unit units") == expected


@pytest.mark.parametrize(
    "asked",
    [asking(141), asking(15), asking(142), asking(511), asking(142 * 1024), asking(8000, kind=Kind.COUNT), Ask()],
)
def test_what_a_gpu_has_and_what_none_has_in_mib_either_is_left_alone(asked: Ask) -> None:
    assert list(asks_in_mib(asked, BOTH, [SMALL, LARGE])) == []


def test_where_shares_are_of_several_sizes_or_of_none_that_is_known_nothing_is_guessed() -> None:
    halves = node_view("c", (30,), share_mib=512)
    assert list(asks_in_mib(asking(8000), BOTH, [SMALL, halves])) == []
    assert list(asks_in_mib(asking(8000), BOTH, [node_view("d", (15,), share_mib=None)])) == []
    assert list(asks_in_mib(asking(8000), BOTH, [])) == []
    assert facts(asks_in_mib(asking(8000), BOTH, [halves]), "units") == ["asks-in-mib units=16"]


def test_where_no_node_may_be_read_the_usual_unit_is_meant() -> None:
    assert list(asks_in_mib(asking(141), BOTH, None)) == []
    (finding,) = asks_in_mib(asking(8000), [COUNT, MEM], None)
    assert str(finding) == (
        "It asks for 8000 units, which are 1 GiB each unless configured otherwise: no GPU has as much. If 8000 MiB are "
        "meant, write aliyun.com/gpu-mem: 8."
    )


def test_a_unit_of_one_mib_is_never_mistaken() -> None:
    assert list(asks_in_mib(asking(99_999), BOTH, [node_view("e", (15_360,), share_mib=1)])) == []
