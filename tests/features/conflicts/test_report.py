"""What to write instead of what a pod asks for."""

import pytest

from gpu_device_plugin.features.conflicts.report import annotated_for_others, annotations_of_others, asks_for_others
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.pod_causes import asks_in_mib
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.findings import facts
from tests.resources import COUNT, MEM
from tests.views import node_view

BOTH = (MEM, COUNT)
INSTEAD = "aliyun.com/gpu-mem: N for N shares of one GPU or aliyun.com/gpu-count: 1 for a whole GPU"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aliyun.com/gpu-memory", "mistyped-resource meant=aliyun.com/gpu-mem"),
        ("aliyun.com/gpumem", "mistyped-resource meant=aliyun.com/gpu-mem"),
        ("aliyun.com/gpu-counts", "mistyped-resource meant=aliyun.com/gpu-count"),
        ("aliyun.com/eni", "unknown-resource"),
        ("nvidia.com/gpu", "resource-of-others"),
        ("amd.com/gpumem", "resource-of-others"),
        ("gpu.intel.com/xe", "resource-of-others"),
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
        "gpu.intel.com/i915",
        "aliyun.com/gpu-mem",
        "example.com/gpu-mem",
        "nvidia.com/mig-1g.5gb",
        "aliyun.com/mig-1g.5gb",
    ],
)
def test_other_resources_are_nobodys_mistake(name: str) -> None:
    assert list(asks_for_others([name], BOTH)) == []


@pytest.mark.parametrize(
    ("annotation", "system"),
    [
        ("gpu-fraction", "KAI's and run:ai's"),
        ("gpu-fraction-num-devices", "KAI's and run:ai's"),
        ("gpu-fraction-limit", "KAI's and run:ai's"),
        ("gpu-memory", "KAI's and run:ai's"),
        ("gpu-memory-limit", "KAI's and run:ai's"),
        ("gpu-compute.portion", "KAI's and run:ai's"),
        ("kai.scheduler/queue", "KAI's"),
        ("runai/queue", "run:ai's"),
        ("workload.run.ai/name", "run:ai's"),
        ("hami.io/gpu-scheduler-policy", "HAMi's"),
        ("nvidia.com/use-gputype", "HAMi's"),
        ("nvidia.com/nouse-gpuuuid", "HAMi's"),
        ("nvidia.com/vgpu-mode", "HAMi's"),
        ("volcano.sh/vgpu-mode", "Volcano's"),
    ],
)
def test_the_annotations_of_other_systems_are_named_with_what_to_write_here(annotation: str, system: str) -> None:
    assert annotations_of_others(["b", annotation, "gpu-device-plugin/memory-limit"]) == (annotation,)
    (finding,) = annotated_for_others([annotation], "default-scheduler", BOTH)
    assert finding.code == "annotation-of-others"
    assert str(finding) == (
        f"Its annotation {annotation} is {system}: neither default-scheduler nor an agent here reads it. In the limits "
        f"of a container write {INSTEAD}."
    )


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "runai-scheduler", "runai-scheduler-default", "hami-scheduler"])
def test_a_pod_that_another_system_schedules_may_have_its_annotations(scheduler: str) -> None:
    assert list(annotated_for_others(["gpu-fraction"], scheduler, BOTH)) == []


def test_annotations_that_mean_nothing_about_gpus_are_not_named() -> None:
    names = ["gpu-name", "nvidia.com/gpu", "example.com/gpu-fraction", "prometheus.io/scrape", "hami.iot/x"]
    assert annotations_of_others(names) == ()
    assert len(annotations_of_others(f"hami.io/{number}" for number in range(1000))) == 5


def test_of_a_pod_with_very_many_annotations_the_first_are_compared() -> None:
    """The owner of a pod may write tens of thousands on it, and the page reads it at each of its changes."""
    keys = iter([f"a{number}" for number in range(25_000)])
    assert annotations_of_others(keys) == ()
    assert next(keys) == "a1000"


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
    assert str(finding.parameters["instead"]) == f"{INSTEAD} or aliyun.com/mig-1g.10gb: 1 for a MIG instance"
    (finding,) = asks_for_others(["aliyun.com/mig-1g10gb"], BOTH)
    assert str(finding) == f"It asks for aliyun.com/mig-1g10gb, which no agent offers: write {INSTEAD}."


def test_only_what_is_offered_is_proposed() -> None:
    (finding,) = asks_for_others(["nvidia.com/gpu"], [MEM])
    assert str(finding.parameters["instead"]) == "aliyun.com/gpu-mem: N for N shares of one GPU"


def asking(amount: int, gpus: int = 1, kind: Kind = Kind.MEMORY) -> GpuRequest:
    return GpuRequest((Part(Demand(kind, amount, gpus)),))


SMALL, LARGE = node_view("a", (15,)), node_view("b", (22, 141))


@pytest.mark.parametrize(
    ("asked", "units"),
    [(asking(8000), 8), (asking(8192), 8), (asking(512), 1), (asking(141 * 1024), 141), (asking(16000, gpus=2), 8)],
)
def test_more_units_than_any_gpu_has_are_taken_for_mib(asked: GpuRequest, units: int) -> None:
    amount = asked.parts[0].demand.amount // asked.parts[0].demand.gpus
    expected = [f"asks-in-mib amount={amount} unit=1 GiB units={units}"]
    assert facts(asks_in_mib(asked, BOTH, [SMALL, LARGE]), "amount unit units") == expected


@pytest.mark.parametrize(
    "asked",
    [
        asking(141),
        asking(15),
        asking(142),
        asking(511),
        asking(142 * 1024),
        asking(8000, kind=Kind.COUNT),
        GpuRequest(),
    ],
)
def test_what_a_gpu_has_and_what_none_has_in_mib_either_is_left_alone(asked: GpuRequest) -> None:
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
        "It requests 8000 shares of 1 GiB each unless configured otherwise: no GPU has that much. If 8000 MiB are "
        "meant, write aliyun.com/gpu-mem: 8."
    )


def test_a_unit_of_one_mib_is_never_mistaken() -> None:
    assert list(asks_in_mib(asking(99_999), BOTH, [node_view("e", (15_360,), share_mib=1)])) == []
