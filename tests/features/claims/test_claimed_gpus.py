"""What claims hold of a node's GPUs, worked out by hand: shares of 1 GiB unless a test says otherwise."""

from dataclasses import replace

import pytest

from gpu_device_plugin.features.claims.claimed_gpus import (
    BY_LIMITS,
    ask_of_claims,
    claimants,
    for_claims,
    free_instances,
    usage_of_claims,
    waits_for_ours,
    with_claims,
)
from gpu_device_plugin.features.claims.contract import DRIVER, Device, DeviceRequest
from gpu_device_plugin.model.contract.nodegpus import AWAY, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import Part
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer, Usage
from tests.claim_values import INSTANCES, claim, part, serving, serving_view, whole, whole_instance, with_instances
from tests.views import holder, node_view, pod_on

TWO = serving(8, 8)
MIG = with_instances(TWO, "1g.10gb", "1g.10gb")
GIB = 1024
STRANGE = Device("gpu", DRIVER, "n1", "gpu-of-a-later-version", "s", 3 * GIB)


@pytest.mark.parametrize(
    ("gpus", "devices", "expected"),
    [
        (TWO, [part(1, 4 * GIB)], Usage(((1, 4),))),
        (TWO, [part(0, 4 * GIB), part(0, 2 * GIB), part(1, GIB)], Usage(((0, 6), (1, 1)))),
        # What was taken is a number of whole shares; another driver's step, or a changed share size, may be finer.
        (TWO, [part(0, 3500)], Usage(((0, 4),))),
        (serving(64, 64, share_mib=256), [part(0, 3500)], Usage(((0, 14),))),
        (TWO, [whole(1)], Usage(whole=(1,))),
        (TWO, [whole(1), part(0, GIB)], Usage(((0, 1),), (1,))),
        # An allocation without an amount: that API server knows no parts of devices.
        (TWO, [part(1, None)], Usage(whole=(1,))),
        # Access beside others takes nothing; other nodes and drivers do not matter.
        (TWO, [part(0, 4 * GIB, admin=True)], NOTHING),
        (TWO, [part(0, 4 * GIB, "n2")], NOTHING),
        (TWO, [Device("gpu", "gpu.nvidia.com", "n1", "gpu-0")], NOTHING),
        # GPUs that the node does not list, and names that are not ours.
        (TWO, [part(5, 4 * GIB)], Usage(unplaced_shares=4)),
        (TWO, [whole(5)], Usage(unplaced_gpus=1)),
        (TWO, [STRANGE], Usage(unplaced_shares=3)),
        (TWO, [STRANGE, part(5, 4 * GIB)], Usage(unplaced_shares=7)),
        (TWO, [whole(5), whole(6)], Usage(unplaced_gpus=2)),
        (TWO, [replace(whole(1), memory_mib=8 * GIB, undivided=True)], Usage(whole=(1,))),
        (TWO, [replace(STRANGE, memory_mib=None)], Usage(unplaced_gpus=1)),
        # MIG instances that are given whole are told apart, and those that exist no more are no GPU of the node.
        (MIG, [whole_instance(2), part(0, GIB)], Usage(((0, 1),))),
        (replace(MIG, instances=(), gone=MIG.instances), [whole_instance(3)], NOTHING),
        (TWO, [whole_instance(3)], Usage(unplaced_gpus=1)),
        # Without the size of shares nothing less than the whole GPU is sure to be enough.
        (serving(8, share_mib=None), [part(0, GIB)], Usage(whole=(0,))),
    ],
)
def test_what_a_claim_takes(gpus: NodeGpus, devices: list[Device], expected: Usage) -> None:
    assert usage_of_claims("n1", gpus, [claim("c", *devices)]) == expected


def test_a_claim_on_an_instance_that_is_given_whole_takes_nothing_of_the_gpus() -> None:
    """The second stands apart in the node's list, and a part of the third was taken before it was gone."""
    gpu, *others = serving(8, 8, 8).gpus
    apart = tuple(replace(each, instance=ListedInstance("GPU-9", 9, 0, "1g.10gb", 7)) for each in others)
    there = replace(TWO, gpus=(gpu,), instances=apart[:1], gone=apart[1:])
    asked = claim("c", whole(1), part(2, GIB), part(0, GIB))
    assert usage_of_claims("n1", there, [asked]) == Usage(((0, 1),))


def test_a_node_that_names_no_gpus_has_its_claims_on_unknown_ones() -> None:
    nameless = replace(TWO, gpus=tuple(replace(gpu, uuid="") for gpu in TWO.gpus))
    assert usage_of_claims("n1", nameless, [claim("c", part(0, GIB))]) == Usage(unplaced_shares=1)


def told(occupant: GpuConsumer) -> tuple[str, str, Usage]:
    return occupant.uid, str(occupant), occupant.usage


def test_a_claim_goes_by_the_name_of_its_pod_and_counts_once_however_many_pods_use_it() -> None:
    found, _ = claimants(
        "n1",
        TWO,
        [
            claim("free", part(0, GIB)),
            claim("one", part(0, GIB), pods=("web",)),
            claim("many", part(1, 2 * GIB), pods=("b", "a")),
            claim("crowd", part(1, GIB), pods=("p5", "p4", "p3", "p2", "p1")),
            claim("four", part(1, GIB), pods=("q4", "q3", "q2", "q1")),
            claim("three", part(1, GIB), pods=("r3", "r2", "r1")),
            claim("waits", pods=("late",)),
        ],
    )
    assert [told(each) for each in found] == [
        ("uid-claim-many", "default/a+b", Usage(((1, 2),))),
        ("uid-claim-free", "default/claim:free", Usage(((0, 1),))),
        ("uid-claim-crowd", "default/p1+p2+p3+2 more", Usage(((1, 1),))),
        ("uid-claim-four", "default/q1+q2+q3+1 more", Usage(((1, 1),))),
        ("uid-claim-three", "default/r1+r2+r3", Usage(((1, 1),))),
        ("uid-web", "default/web", Usage(((0, 1),))),
    ]
    assert [each.users for each in found] == [
        ("a", "b"),
        (),
        ("p1", "p2", "p3", "p4", "p5"),
        ("q1", "q2", "q3", "q4"),
        ("r1", "r2", "r3"),
        ("web",),
    ]


def test_the_claims_of_the_same_pods_are_one_occupant() -> None:
    both = claim("b", part(0, GIB), pods=("web",)), claim("a", part(0, 2 * GIB), whole(1), pods=("web",))
    (found,), _ = claimants("n1", TWO, both)
    assert (*told(found), found.claims) == ("uid-web", "default/web", Usage(((0, 3),), (1,)), ("a", "b"))


def test_claims_that_are_being_deleted_are_about_to_give_their_room_back() -> None:
    going, staying = claim("a", whole(0), pods=("x",), deleting=True), claim("b", whole(1), pods=("x",))
    assert [each.terminating for each in claimants("n1", TWO, [going])[0]] == [True]
    assert [each.terminating for each in claimants("n1", TWO, [going, staying])[0]] == [False]


def view(*pods: GpuConsumer) -> NodeView:
    before = node_view("n1", (8, 8), *pods)
    return replace(before, candidate=replace(before.candidate, gpus=TWO))


def test_claims_stand_beside_pods_and_take_their_room() -> None:
    """Between two pods by name; 2 and 4 shares of GPU 0 are gone, and all of GPU 1."""
    there = with_claims(
        view(pod_on("a", {0: 2}), pod_on("z/a")),
        [claim("c", part(0, 4 * GIB), pods=("b",)), claim("d", whole(1)), claim("e", part(0, GIB, "n2"))],
    )
    assert [str(pod) for pod in there.pods] == ["default/a", "default/b", "default/claim:d", "z/a"]
    assert [(gpu.used, gpu.free) for gpu in there.gpus()] == [(6, 2), (8, 0)]
    assert there.candidate.gpus == TWO
    assert there.candidate.name == "n1"


def test_what_a_node_has_besides_gpus_stays_as_it_was() -> None:
    before = view()
    before = replace(before, candidate=replace(before.candidate, allocatable=Amounts(4, 5), left=Amounts(2, 3)))
    there = with_claims(before, [claim("d", whole(1))]).candidate
    assert (there.allocatable, there.left) == (Amounts(4, 5), Amounts(2, 3))


def test_to_claims_a_node_that_serves_them_is_as_any_other() -> None:
    assert for_claims(serving_view("n1", TWO)).candidate.gpus.claims is False


def test_a_node_without_claims_is_as_it_was() -> None:
    before = view(pod_on("a", {0: 2}))
    assert with_claims(before, [claim("c", whole(0, "n2"), pods=("a",))]) is before


def test_a_pod_whose_limits_were_made_a_claim_counts_only_through_the_claim() -> None:
    """aliyun.com/gpu-count: 1 on a node that serves claims: kube-scheduler made a claim of it."""
    there = with_claims(view(pod_on("web", loose_gpus=1)), [claim("x", whole(1), pods=("web",))])
    assert [told(pod) for pod in there.pods] == [("uid-web", "default/web", Usage(whole=(1,)))]


# --- Claims that are not allocated ------------------------------------------------------------------------------------


def mem(shares: int, gpus: int = 1) -> Part:
    return Part(Demand(Kind.MEMORY, shares, gpus))


def gpus(number: int) -> Part:
    return Part(Demand(Kind.COUNT, number))


@pytest.mark.parametrize(
    ("request_", "share_mib", "parts"),
    [
        (DeviceRequest("r", "gpushare", 8192), 1024, (mem(8),)),
        (DeviceRequest("r", "gpushare", 3500), 1024, (mem(4),)),
        (DeviceRequest("r", "gpushare", 3500), 256, (mem(14),)),
        (DeviceRequest("r", "gpushare", 3500), None, (mem(4),)),
        (DeviceRequest("r", "gpushare"), 1024, (mem(1),)),
        (DeviceRequest("r", "gpushare", 2048, count=3), 1024, (mem(6, 3),)),
        (DeviceRequest("r", "gpushare", 2048, count=0), 1024, (mem(2),)),
        (DeviceRequest("r", "gpushare-whole", count=2), 1024, (gpus(2),)),
        (DeviceRequest("r", "gpushare", 2048, admin=True), 1024, ()),
        # A DeviceClass of an administrator: memory is a capacity of ours. Without it, it is anybody's.
        (DeviceRequest("r", "team-gpu", 2048), 1024, (mem(2),)),
        (DeviceRequest("r", "nic"), 1024, ()),
    ],
)
def test_what_a_claim_asks_for(request_: DeviceRequest, share_mib: int | None, parts: tuple[Part, ...]) -> None:
    assert ask_of_claims([claim("c", requests=(request_,))], share_mib).parts == parts


def test_claims_ask_together() -> None:
    both = (
        claim("a", requests=(DeviceRequest("r", "gpushare", 1024),)),
        claim("b", requests=(DeviceRequest("r", "gpushare-whole"),)),
    )
    assert ask_of_claims(both, 1024).parts == (mem(1), gpus(1))


def test_a_claim_goes_only_to_nodes_that_serve_claims() -> None:
    asked = ask_of_claims([claim("c", requests=(DeviceRequest("r", "gpushare", 4096),))], 1024)

    def verdict(there: NodeView) -> str | None:
        found = unfit(asked, for_claims(there).candidate)
        return None if found is None else found.sentence

    assert verdict(serving_view("n1", TWO)) is None
    assert verdict(serving_view("n1", serving(2))) == "the largest GPU has only 2 GiB"
    assert verdict(serving_view("n1", TWO, claim("x", whole(0)), claim("y", part(1, 5 * GIB)))) == (
        "no GPU has 4 GiB free"
    )
    assert verdict(node_view("n", (8,))) == BY_LIMITS
    assert verdict(serving_view("n1", replace(TWO, away=True, problem=AWAY))) == AWAY


def test_the_instances_that_a_claim_could_have_are_healthy_and_in_nobodys_use() -> None:
    gpus = with_instances(serving(8), *["1g.10gb"] * 3, "2g.20gb", "2g.20gb", unhealthy=[2])
    there = serving_view("n1", gpus, claim("c", whole_instance(1), whole_instance(4)))
    assert free_instances(there) == {"1g.10gb": 1, "2g.20gb": 1}
    shared = replace(gpus, gpus=(*gpus.gpus, *gpus.instances), instances=())
    parted = replace(whole_instance(3), name=INSTANCES[3].lower(), memory_mib=GIB)
    assert free_instances(serving_view("n1", shared, claim("c", parted))) == {"1g.10gb": 1, "2g.20gb": 2}
    assert free_instances(serving_view("n1", serving(8))) == {}


def test_whole_instances_are_held_by_the_pods_of_claims() -> None:
    gpus = with_instances(serving(8), "1g.10gb", "1g.10gb", "2g.20gb")
    limits = holder("uid-x", "default", "x", {"aliyun.com/mig-1g.10gb": 1})
    before = replace(serving_view("n1", gpus), instance_pods=(limits, replace(limits, uid="uid-web", name="web")))
    seen = with_claims(
        before,
        [
            claim("b", whole_instance(1), whole_instance(3), pods=("web",)),
            claim("a", whole_instance(2), deleting=True),
            claim("c", whole_instance(2, "n2"), pods=("other",)),
            claim("d", part(0, GIB), pods=("parts",)),
        ],
    )
    assert [(pod.uid, pod.name, pod.held, pod.terminating) for pod in seen.instance_pods] == [
        ("uid-claim-a", "claim:a", {INSTANCES[2]}, True),
        ("uid-web", "web", {INSTANCES[1], INSTANCES[3]}, False),
        ("uid-x", "x", frozenset(), False),
    ]
    assert seen.instance_pods[1].asked == {"aliyun.com/mig-1g.10gb": 1, "aliyun.com/mig-2g.20gb": 1}
    assert [str(pod) for pod in seen.pods] == ["default/parts"]
    small, large = seen.instances()
    assert (small.used, large.used, [str(pod) for pod in large.holders[INSTANCES[3]]]) == (3, 1, ["default/web"])


def test_a_claim_on_whole_instances_asks_for_no_room_on_gpus() -> None:
    asked = [DeviceRequest("r", "gpushare-mig", count=2), DeviceRequest("s", "gpushare", 2048)]
    assert waits_for_ours(claim("c", requests=(asked[0],)))
    assert ask_of_claims([claim("c", requests=tuple(asked))], 1024).parts == (mem(2),)
