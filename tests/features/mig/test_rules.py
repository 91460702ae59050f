"""The MIG instances of containers, and those that were destroyed."""

from __future__ import annotations

import pytest

from gpu_device_plugin.features.mig.rules import instances_by_pod, read_instances, stranded, write_instances
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import INSTANCES, LONGEST, READ_BY_AGENT, TOO_LONG, MalformedAnnotationError
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from tests.mig import inventory, mig_node


def test_containers_with_instances_that_exist_no_more_are_found() -> None:
    shares = mig_node((10, 10)).shares.with_inventory(inventory((10,)), mig=MigMode.SHARE)
    pod = Pod("uid-b", "default", "b")
    there = {"GPU-0", "MIG-0-0"}
    held = [
        Allocation("uid-a", "main", Kind.COUNT, frozenset({"MIG-0-0", "GPU-7"})),
        Allocation("uid-b", "main", Kind.MEMORY, frozenset({"MIG-0-1::0", "MIG-0-1::1", "MIG-0-0::5"})),
        Allocation("uid-c", "main", Kind.INSTANCE, frozenset({"MIG-former"})),
    ]
    known, former = stranded(held, there, shares, {"uid-b": pod})
    assert (known.pod, known.uuid) == (pod, "MIG-0-1")
    assert known.sentence == (
        "container main was given GPU 1 (MIG 1g.10gb) (MIG-0-1), a MIG instance that exists no more: delete the pod, "
        "so that it gets another"
    )
    assert [(known.pod_uid, known.container), (former.pod_uid, former.container)] == [
        ("uid-b", "main"),
        ("uid-c", "main"),
    ]
    assert former.pod is None
    assert former.sentence.startswith("container main was given MIG-former, a MIG instance that exists no more")
    assert stranded(held[:1], there, shares, {}) == ()


def test_a_pod_holds_the_whole_instances_of_all_its_containers() -> None:
    allocations = [
        Allocation("uid-a", "main", Kind.INSTANCE, frozenset({"MIG-0-0"})),
        Allocation("uid-a", "main", Kind.INSTANCE, frozenset({"MIG-1-0"})),
        Allocation("uid-a", "side", Kind.INSTANCE, frozenset({"MIG-0-1"})),
        Allocation("uid-b", "main", Kind.MEMORY, frozenset({"MIG-0-2::0"})),
    ]
    assert instances_by_pod(allocations) == {"uid-a": {"main": {"MIG-0-0", "MIG-1-0"}, "side": {"MIG-0-1"}}}
    assert instances_by_pod([]) == {}


# --- The annotation of pods

ONE = "MIG-5b696ac1-c323-589e-a082-e6045e980bf4"
OLD = "MIG-GPU-c6d4f1ef-42e4-6de3-91c7-45d71c87eb3f/7/0"


def test_instances_are_written_by_container_and_read() -> None:
    text = f'{{"a":["{ONE}","{OLD}"],"b":["{OLD}"]}}'
    assert write_instances({"b": {OLD}, "a": {OLD, ONE}, "none": set()}) == text
    assert read_instances(text) == {"a": (ONE, OLD), "b": (OLD,)}
    assert INSTANCES in READ_BY_AGENT


def test_a_list_of_instances_that_no_reader_accepts_is_not_written() -> None:
    assert write_instances({f"init-{number}": {f"MIG-{of:040}" for of in range(112)} for number in range(64)}) == "{}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 60_000, "is not JSON"),
        (" " * (LONGEST[INSTANCES] + 1), f"is longer than {LONGEST[INSTANCES]} characters"),
        (TOO_LONG, f"is longer than {LONGEST[INSTANCES]} characters"),
        ("[]", "is not of the form"),
        ('{"main": "MIG-1"}', "is not of the form"),
        ('{"main": [1]}', "is not of the form"),
        ('{"main": ["MIG-"]}', "is not of the form"),
        ('{"main": ["MIG-\\u001b[31m"]}', "is not of the form"),
    ],
)
def test_instances_of_another_form_are_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=f"^{INSTANCES} {why}"):
        read_instances(text)
