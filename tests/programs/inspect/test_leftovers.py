"""The agent's labels and annotations on a node are distinguished from those of others."""

from gpu_device_plugin.features.capacity.contract import kept
from gpu_device_plugin.model.contract.keys import (
    CORDONS,
    HELD_ROOM,
    KEEPS,
    KEPT_NODE,
    NODE_GPUS,
    NODE_LIMITS,
    NODE_USE,
    SET_LIMITS_LABEL,
)
from gpu_device_plugin.model.contract.nodegpus import NodeGpus, write_node_gpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.programs.inspect.uninstall import Leftovers, leftovers, mig_resources
from tests.views import listed_instance

RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")


def leftovers_of(
    labels: dict[str, str], annotations: dict[str, str], capacity: dict[str, int], condition: str = ""
) -> Leftovers:
    record = NodeRecord(
        "node-a", "uid", labels=labels, annotations=annotations, capacity=capacity, gpu_condition=condition
    )
    return leftovers(record, RESOURCES)


def test_what_the_extender_wrote_and_cordons_go_too_and_what_a_person_wrote_for_others_stays() -> None:
    theirs = {KEEPS[0]: "true"}
    notes = {**theirs, **kept(theirs, "full"), HELD_ROOM: "{}", CORDONS: "{}"}
    left = leftovers_of({}, {key: text for key, text in notes.items() if text is not None}, {})
    assert set(left.annotations) == {KEEPS[1], KEPT_NODE, HELD_ROOM, CORDONS}


def test_the_label_by_which_pods_select_limits_is_ours_and_the_wish_for_limits_is_the_administrators() -> None:
    """The label and the annotation of the limits have the same key."""
    left = leftovers_of({NODE_LIMITS: "mps", SET_LIMITS_LABEL: "mps"}, {NODE_LIMITS: "{}", NODE_USE: "{}"}, {})
    assert left.metadata_patch == {
        "metadata": {"labels": {NODE_LIMITS: None}, "annotations": {NODE_LIMITS: None, NODE_USE: None}}
    }


def test_leftovers_of_a_node_are_named_and_removed_by_two_patches() -> None:
    """The kubelet keeps the capacity with 0; the label zone and the annotation x are not the agent's."""
    left = leftovers_of(
        {"gpu-device-plugin/count": "2", "zone": "a"},
        {NODE_GPUS: "{}", "x": "y"},
        {"cpu": 8, "aliyun.com/gpu-mem": 0},
    )
    assert left.node == "node-a"
    assert str(left) == (
        "labels gpu-device-plugin/count; annotations gpu-device-plugin/gpus; capacity aliyun.com/gpu-mem"
    )
    assert left.metadata_patch == {
        "metadata": {"labels": {"gpu-device-plugin/count": None}, "annotations": {"gpu-device-plugin/gpus": None}}
    }
    nulls = {"aliyun.com/gpu-mem": None}
    assert left.status_patch == {"status": {"capacity": nulls, "allocatable": nulls}}


def test_a_node_that_never_shared_has_no_leftovers() -> None:
    none = leftovers_of({"zone": "a"}, {}, {"cpu": 8})
    assert not none
    assert (none.metadata_patch, none.status_patch, str(none)) == ({}, {}, "")


def test_the_switch_is_removed_where_it_still_enables_sharing() -> None:
    left = leftovers_of({"gpushare": "true"}, {}, {"aliyun.com/gpu-mem": 8})
    assert left.labelled
    assert left.metadata_patch == {"metadata": {"labels": {"gpushare": None}}}


def test_the_condition_is_removed_by_its_type() -> None:
    """A strategic merge patch leaves the conditions of others, which a merge patch would replace."""
    left = leftovers_of({}, {}, {"aliyun.com/gpu-mem": 0}, "True")
    assert str(left) == "capacity aliyun.com/gpu-mem; conditions GPUHealthy"
    nulls = {"aliyun.com/gpu-mem": None}
    gone = [{"type": "GPUHealthy", "$patch": "delete"}]
    assert left.status_patch == {"status": {"capacity": nulls, "allocatable": nulls, "conditions": gone}}
    alone = leftovers_of({}, {}, {}, "False")
    assert (bool(alone), alone.metadata_patch, alone.status_patch) == (True, {}, {"status": {"conditions": gone}})


def test_resources_of_mig_profiles_are_ours_in_our_domain_or_where_the_agent_lists_them() -> None:
    """NVIDIA's plugin offers some of its own on other nodes."""
    theirs = "nvidia.com/mig-1g.10gb"
    capacity = {"cpu": 8, "aliyun.com/gpu-mem": 0, "aliyun.com/mig-2g.20gb": 0, theirs: 7, "aliyun.com/eni": 3}
    assert mig_resources(NodeRecord("n", "n", capacity=capacity), RESOURCES) == {"aliyun.com/mig-2g.20gb"}
    listed = NodeGpus(instances=(listed_instance(0, 0, resource=theirs),), share_mib=1024)
    annotated = NodeRecord("n", "n", annotations={NODE_GPUS: write_node_gpus(listed)}, capacity=capacity)
    assert mig_resources(annotated, RESOURCES) == {
        "aliyun.com/mig-2g.20gb",
        theirs,
    }
