"""The containers of a pod as the page shows them."""

import json
from typing import Any

from gpu_device_plugin.model.contract.keys import ALLOCATION, FRAMEWORKS, IDX, INSTANCES, POD
from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.programs.web.pod_document import containers_of
from gpu_device_plugin.settings.common import ResourceSettings
from tests.reports import SINCE, part, report
from tests.views import WHOLE, mig_view, node_view

RESOURCES = ResourceSettings().offered
MEM, COUNT = (resource.name for resource in RESOURCES)


PLACE = {"parent": "GPU-m", "gpu": 0, "number": 1, "profile": "1g.10gb", "gi": 8}


def a_pod(*limits: dict[str, int], node: str = "n", **annotations: str) -> Pod:
    containers = tuple(Container(f"c{at}", ContainerKind.APP, at, each) for at, each in enumerate(limits))
    keys = {"idx": IDX, "allocation": ALLOCATION, "pod": POD, "frameworks": FRAMEWORKS, "instances": INSTANCES}
    return Pod(
        "u",
        "default",
        "web",
        node_name=node,
        annotations={keys[key]: value for key, value in annotations.items()},
        containers=containers,
    )


def enforcements(enforcement: Enforcement, *positions: int) -> dict[int, GpuEnforcement]:
    return {position: GpuEnforcement(enforcement, "because") for position in positions}


def variables(pod: Pod, enforcement: Enforcement, *parts: Any) -> dict[str, str]:
    node = node_view("n", (15, 15), report=report(*parts, enforcements=enforcements(enforcement, 0, 1)))
    found: dict[str, str] = containers_of(pod, RESOURCES, node)[0]["variables"]
    return found


def test_a_container_has_its_share_and_the_variables_of_its_place() -> None:
    node = node_view("n", (15, 15))
    (shown,) = containers_of(a_pod({MEM: 5}, idx="1"), RESOURCES, node)
    assert shown == {
        "name": "c0",
        "kind": "app",
        "asks": {MEM: 5},
        "gpus": [{"index": 1, "uuid": "GPU-1", "model": "Tesla T4", "shares": 5, "grantedMiB": 5120}],
        "variables": {
            "NVIDIA_VISIBLE_DEVICES": "GPU-1",
            "GPUSHARE_MEMORY_LIMIT_MIB": "5120",
            "GPUSHARE_MEMORY_GUARANTEED_MIB": "5120",
            "GPUSHARE_MEMORY_LIMIT_BY": "advisory",
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "5",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
        },
        "use": [],
    }


def test_a_container_with_whole_gpus_has_them_whole() -> None:
    pod = a_pod({COUNT: 2}, allocation=json.dumps({"0": {"0": 15, "1": 15}}))
    (shown,) = containers_of(pod, RESOURCES, node_view("n", (15, 15)))
    assert [(gpu["index"], gpu["whole"], gpu["grantedMiB"]) for gpu in shown["gpus"]] == [
        (0, True, 15360),
        (1, True, 15360),
    ]
    assert shown["variables"] == {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}


def test_the_means_with_which_a_container_was_started_counts() -> None:
    pod = a_pod({MEM: 5}, idx="0", pod="9")
    started = ContainerUse("default", "web", "c0", 0, 5120, 100, enforcement=Enforcement.MPS)
    found = variables(pod, Enforcement.DRIVER, started)
    assert (found["GPUSHARE_MEMORY_LIMIT_BY"], found["ALIYUN_COM_GPU_MEM_POD"]) == ("mps", "9")
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in found


def test_frameworks_get_their_fraction_but_beside_a_library_of_the_administrators() -> None:
    pod = a_pod({MEM: 5}, idx="0", frameworks="pytorch", pod="many")
    assert "PYTORCH_CUDA_ALLOC_CONF" in variables(pod, Enforcement.ADVISORY)
    found = variables(pod, Enforcement.CUSTOM)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in found
    assert (found["GPUSHARE_MEMORY_LIMIT_BY"], found["ALIYUN_COM_GPU_MEM_POD"]) == ("custom", "5")


def test_a_place_that_the_node_does_not_describe_has_no_variables() -> None:
    pod = a_pod({MEM: 5}, idx="7")
    (shown,) = containers_of(pod, RESOURCES, node_view("n", (15,)))
    assert (shown["gpus"], shown["variables"]) == ([{"index": 7, "shares": 5, "grantedMiB": 5120}], {})
    unsized = node_view("n", (15,), share_mib=None)
    (shown,) = containers_of(a_pod({MEM: 5}, idx="0"), RESOURCES, unsized)
    assert (shown["gpus"][0]["shares"], "grantedMiB" in shown["gpus"][0], shown["variables"]) == (5, False, {})


def test_positions_that_are_not_used_any_more_are_no_obstacle() -> None:
    """They were those of MIG instances."""
    (shown,) = containers_of(a_pod({MEM: 5}, idx="1"), RESOURCES, node_view("n", {1: 15}))
    assert shown["variables"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


def test_a_container_with_a_whole_instance_has_it_whole() -> None:
    pod = a_pod({WHOLE: 2}, instances=json.dumps({"c0": ["MIG-1", "MIG-gone"]}))
    (shown,) = containers_of(pod, RESOURCES, mig_view("n", shared=1, whole=1))
    assert shown["gpus"] == [
        {
            "index": 1,
            "uuid": "MIG-1",
            "model": "NVIDIA H100 MIG 1g.10gb",
            "mig": PLACE,
            "whole": True,
            "grantedMiB": 9728,
        }
    ]
    assert shown["variables"]["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"
    (bare,) = containers_of(pod, RESOURCES, None)
    assert (bare["gpus"], bare["variables"]) == ([], {})


def test_without_a_readable_node_only_the_annotations_speak() -> None:
    (first, second) = containers_of(
        a_pod({MEM: 5}, {COUNT: 1}, allocation=json.dumps({"0": {"0": 5}, "1": {"1": 15}})), RESOURCES, None
    )
    assert (first["gpus"], first["variables"]) == ([{"index": 0, "shares": 5}], {})
    assert second["gpus"] == [{"index": 1, "whole": True}]


def test_a_pod_that_waits_has_no_gpus() -> None:
    (shown,) = containers_of(a_pod({MEM: 5, COUNT: 0}, node=""), RESOURCES, None)
    assert (shown["asks"], shown["gpus"]) == ({MEM: 5}, [])


def test_use_is_told_by_container_also_of_one_that_was_given_nothing() -> None:
    own = ContainerUse("default", "web", "c0", 0, 5120, 6000, 40, Enforcement.ADVISORY, over_since=SINCE)
    stranger = ContainerUse("default", "web", "thief", 1, 0, 300)
    node = node_view("n", (15, 15), report=report(own, stranger, part("other")))
    mine, thief = containers_of(a_pod({MEM: 5}, idx="0"), RESOURCES, node)
    assert mine["use"] == [
        {
            "index": 0,
            "grantedMiB": 5120,
            "usedMiB": 6000,
            "smPercent": 40,
            "enforcement": "advisory",
            "overSince": SINCE,
        }
        | {"states": [state.message() for state in node.part_states([own])]}
    ]
    assert thief == {
        "name": "thief",
        "kind": "app",
        "use": [
            {"index": 1, "grantedMiB": 0, "usedMiB": 300, "trespassing": True}
            | {"states": [state.message() for state in node.part_states([stranger])]}
        ],
    }
