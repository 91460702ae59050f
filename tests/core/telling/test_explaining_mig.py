"""Why a pod that asks for whole MIG instances does not run, and which ones it has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.contract.nodegpus import AWAY, BY_CLAIMS, NodeGpus
from gpu_device_plugin.core.telling.explaining_mig import (
    asked_by_profile,
    held_instances,
    holders,
    instance_facts,
)
from tests.views import WHOLE, listed_instance, mig_view, node_view, with_instances

if TYPE_CHECKING:
    from gpu_device_plugin.core.cluster.nodeview import NodeView

HOW = "the setting mig: whole, or kubectl label node NODE gpu-device-plugin/mig=whole"


def changed(node: NodeView, *, claims: bool = False, away: bool = False) -> NodeView:
    """Return a node whose agent serves claims, or serves nobody."""
    instances = node.candidate.gpus.instances
    listed = NodeGpus((), instances=instances, claims=claims, away=away, problem=AWAY if away else BY_CLAIMS)
    return replace(node, candidate=candidate(node.name, listed, ()))


def test_the_demand_is_told_by_resource() -> None:
    assert asked_by_profile({WHOLE: 1, "nvidia.com/mig-1g.20gb": 2}) == f"1 of {WHOLE} and 2 of nvidia.com/mig-1g.20gb"
    assert asked_by_profile({}) == ""


def test_nodes_are_told_with_the_pods_that_have_their_instances_the_freest_first() -> None:
    full = mig_view("a", with_instances("x", 0, 1), whole=2)
    part = mig_view("b", with_instances("y", 0), with_instances("z", asks=1), whole=4, ill={3: "XID 94"})
    assert list(instance_facts({WHOLE: 2}, [full, part, node_view("c", (15,))], {})) == [
        f"2 nodes offer {WHOLE}, and none has enough free.",
        "  b: 2/4 in use, 0:3 out of service (XID 94): default/y (0:0), default/z (not known which)",
        "  a: 2/2 in use: default/x (0:0, 0:1)",
    ]
    assert next(iter(instance_facts({WHOLE: 1}, [part], {}))) == f"1 node offers {WHOLE}, and 1 has 1 free one."


def test_several_reasons_and_several_instances_are_told() -> None:
    nodes = [mig_view("a", whole=2), mig_view("b", whole=3)]
    assert list(instance_facts({WHOLE: 2}, nodes, {"a": ("it is cordoned", "it has a taint")})) == [
        f"2 nodes offer {WHOLE}, and 1 has 2 free ones.",
        "  b: 0/3 in use",
        "  a: 0/2 in use; it is cordoned; it has a taint",
    ]


def test_a_node_to_which_the_pod_may_not_go_comes_last_with_the_reason() -> None:
    nodes = [mig_view("a", whole=2), mig_view("b", with_instances("x", 0), whole=1)]
    assert list(instance_facts({WHOLE: 1}, nodes, {"a": ("it is cordoned",)})) == [
        f"2 nodes offer {WHOLE}, and none has enough free.",
        "  b: 1/1 in use: default/x (0:0)",
        "  a: 0/2 in use; it is cordoned",
    ]


def test_a_node_that_gives_no_instance_now_is_told_with_the_reason() -> None:
    nodes = [changed(mig_view("a", whole=2), claims=True), changed(mig_view("b", whole=1), claims=True, away=True)]
    assert list(instance_facts({WHOLE: 1}, nodes, {})) == [
        f"2 nodes offer {WHOLE}, and none has enough free.",
        "  a: 0/2 in use; it gives them to ResourceClaims (DRA), or by a DeviceClass with this extendedResourceName",
        f"  b: 0/1 in use; {AWAY}",
    ]


def test_of_many_nodes_some_are_told() -> None:
    told = list(instance_facts({WHOLE: 1}, [mig_view(f"n{n:02}", whole=1) for n in range(23)], {}))
    assert (told[0], told[1]) == (f"23 nodes offer {WHOLE}, and 23 have 1 free one.", "  n00: 0/1 in use")
    assert (len(told), told[-1]) == (22, "  and 3 more.")
    assert len(list(instance_facts({WHOLE: 1}, [mig_view(f"n{n:02}", whole=1) for n in range(20)], {}))) == 21


def test_of_many_pods_some_are_named_and_of_one_that_ends_this_is_told() -> None:
    (offer,) = mig_view("a", *(with_instances(f"p{n}", n, deleting=n == 0) for n in range(7)), whole=7).instances()
    assert holders(offer) == (
        "default/p0 (0:0, being deleted), default/p1 (0:1), default/p2 (0:2), default/p3 (0:3), default/p4 (0:4) and 2 "
        "more"
    )


def test_five_pods_are_all_named() -> None:
    (offer,) = mig_view("a", *(with_instances(f"p{n}", n) for n in range(5)), whole=5).instances()
    assert holders(offer).endswith("default/p4 (0:4)")


def test_a_profile_that_no_node_offers_is_told_with_those_that_are_offered_and_how_to_get_it() -> None:
    asked = {"nvidia.com/mig-2g.20gb": 1}
    assert list(instance_facts(asked, [mig_view("a", whole=3), mig_view("b", whole=2)], {})) == [
        "No node that shares its GPUs offers nvidia.com/mig-2g.20gb.",
        f"The nodes offer {WHOLE} (3 on a, 2 on b).",
        (
            "A node offers it once a GPU of it has such an instance (nvidia-mig-parted, or nvidia-smi mig -cgi PROFILE "
            f"-C) and instances are given whole: {HOW}."
        ),
    ]
    assert len(list(instance_facts(asked, [node_view("a", (15,))], {}))) == 2
    small, large = (listed_instance(n, n, resource=f"b/mig-{n}g.10gb") for n in (1, 2))
    both = replace(mig_view("a"), candidate=candidate("a", NodeGpus((), instances=(large, small)), ()))
    told = list(instance_facts(asked, [both], {}))
    assert told[1] == "The nodes offer b/mig-1g.10gb (1 on a); b/mig-2g.10gb (1 on a)."


def test_a_profile_that_is_shared_by_memory_is_told_so() -> None:
    assert list(instance_facts({WHOLE: 1}, [mig_view("a", shared=2), mig_view("b", shared=1)], {})) == [
        f"No node that shares its GPUs offers {WHOLE}.",
        (
            "a, b have instances of this profile and share them by memory: ask for gpu-mem instead, or have them given "
            f"whole ({HOW})."
        ),
    ]


def test_one_node_that_shares_the_profile_is_told_so() -> None:
    (_, told) = instance_facts({WHOLE: 1}, [mig_view("a", shared=2)], {})
    assert told.startswith("a has instances of this profile and shares them by memory: ask for gpu-mem instead")


def test_the_same_profile_under_another_domain_is_proposed() -> None:
    assert list(instance_facts({"aliyun.com/mig-1g.10gb": 1}, [mig_view(f"n{n}", whole=1) for n in range(7)], {})) == [
        "No node that shares its GPUs offers aliyun.com/mig-1g.10gb.",
        f"Did you mean {WHOLE}, which is offered (1 on n0, 1 on n1, 1 on n2, 1 on n3, 1 on n4 and 2 more)?",
    ]


def test_a_pod_on_a_node_is_told_its_instances_or_that_they_are_not_known_yet() -> None:
    node = mig_view("a", with_instances("one", 0), with_instances("two", asks=1), shared=1, whole=3)
    assert list(held_instances("default/one", "uid-one", mig_view("a", with_instances("one", 0), whole=1))) == [
        "  GPU 0 (MIG 0:0 1g.10gb, MIG-0): the whole instance"
    ]
    assert list(held_instances("default/two", "uid-two", node)) == [
        f"  Which instances of {WHOLE} default/two has is not known yet: its node's agent writes it."
    ]
    assert list(held_instances("default/one", "uid-one", None)) == []
    ill = mig_view("a", with_instances("one", 0), whole=1, ill={0: "XID 94"})
    assert list(held_instances("default/one", "uid-one", ill)) == [
        "  GPU 0 (MIG 0:0 1g.10gb, MIG-0): the whole instance, which is out of service: XID 94"
    ]
