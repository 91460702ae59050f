"""Which claims a node prepares, with which shares, and why it refuses the others."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.claims.contract import Claim, monitor_name
from gpu_device_plugin.features.claims.rules.devices import SliceInputs, devices
from gpu_device_plugin.features.claims.rules.pool import contents
from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim
from gpu_device_plugin.features.claims.rules.preparing import Preparation, prepare, two_claims
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.ledger import Ledger, Reservation
from gpu_device_plugin.node.rules.node import Node
from tests.claims import NODE, claim, config, device, ids, instance, mig_inventory, mig_node, mig_uuid, node, uuid


def made(here: Node, asked: Claim, before: PreparedClaim | None = None) -> Preparation:
    found = prepare(here, asked, NODE, before)
    assert isinstance(found, Preparation), found
    return found


def refused(here: Node, asked: Claim, before: PreparedClaim | None = None) -> Refusal:
    found = prepare(here, asked, NODE, before)
    assert isinstance(found, Refusal)
    return found


def test_a_part_of_a_gpu_is_so_many_free_shares() -> None:
    found = made(node(8, used={0: [0, 2]}), claim(device(0, 2.5, compute=25)))  # rounded up to whole shares
    assert found.device_ids == ids(0, [1, 3, 4])
    assert found.placement == Placement(Demand(Kind.MEMORY, 3, 1), ((0, 3),))
    (only,) = found.devices
    assert (only.request, only.pool, only.device, only.share_id) == ("gpu", NODE, uuid(0).lower(), "share-0")
    assert (only.uuid, only.mib, only.compute) == (uuid(0), 3072, 25)
    assert (found.compute, found.admin, found.config.limits) == (25, False, None)


def test_a_part_takes_nothing_that_containers_are_guaranteed_beyond_their_requests() -> None:
    here = node(8, used={0: [0, 2]})
    reservations = Reservation(uuid(0), 3, ids(0, [0]))
    here = here.with_ledger(here.ledger.with_reservations({("a", "main"): reservations}))
    assert made(here, claim(device(0, 3))).device_ids == ids(0, [1, 3, 4])
    assert refused(here, claim(device(0, 4))).code is RefusalCode.NO_ROOM


def test_parts_of_several_gpus_and_several_parts_of_one() -> None:
    asked = claim(device(1, 2), device(0, 1), device(1, 3, share_id="another"))
    found = made(node(8, 8), asked)
    assert found.device_ids == ids(0, [0]) | ids(1, range(5))
    assert found.placement == Placement(Demand(Kind.MEMORY, 6, 2), ((0, 1), (1, 5)))
    assert [each.mib for each in found.devices] == [2048, 1024, 3072]


def test_a_whole_gpu() -> None:
    found = made(node(8, 8), claim(device(1, whole=True)))
    assert found.device_ids == {uuid(1)}
    assert found.placement == Placement(Demand(Kind.COUNT, 1, 1), ((1, 8),))
    assert (found.devices[0].mib, found.devices[0].compute) == (8192, 0)
    shared = claim(device(1, 8, undivided=True))
    assert replace(made(node(8, 8), shared), devices=()) == replace(found, devices=())


def test_access_beside_others_takes_nothing_even_of_a_gpu_that_is_full_or_broken() -> None:
    here = node(8, used={0: range(8)}, unhealthy={0: "it is lost"})
    for whole in (False, True):
        found = made(here, claim(device(0, whole=whole, admin=True)))
        assert (found.device_ids, found.admin, found.devices[0].mib, found.devices[0].compute) == (
            frozenset(),
            True,
            0,
            0,
        )
        assert found.placement == Placement(Demand(Kind.COUNT, 1, 1), ((0, 8),))
    limited = made(here, claim(device(0, admin=True), parameters=(config(limits="mps"),)))
    assert limited.config.limits is Enforcement.MPS


def test_a_monitor_is_for_access_beside_others_only() -> None:
    monitor = replace(device(0, whole=True), name=monitor_name(uuid(0)))
    both = claim(replace(monitor, admin=True), replace(device(0, whole=True), admin=True))
    assert len(made(node(8), both).devices) == 2
    found = made(node(8, whole=[0]), claim(replace(monitor, admin=True)))
    assert (found.device_ids, found.admin, found.devices[0].uuid) == (frozenset(), True, uuid(0))
    refusal = refused(node(8), claim(monitor))
    assert refusal.code is RefusalCode.BAD_PARAMETERS
    assert "set adminAccess: true on the request" in refusal.sentence


def before_of(preparation: Preparation) -> PreparedClaim:
    return PreparedClaim("uid-of-c1", "default", "c1", preparation.devices, preparation.device_ids)


def test_the_answer_is_the_same_however_often_it_is_asked_for() -> None:
    for asked in (claim(device(0, 8)), claim(device(0, whole=True))):
        here = node(8)
        first = made(here, asked)
        after = here.with_ledger(here.ledger.seen(first.device_ids))
        assert made(after, asked, before_of(first)) == first
        assert isinstance(prepare(after, asked, NODE), Refusal)


def test_parameters_are_those_of_the_claim_and_decide_on_compute() -> None:
    asked = claim(device(0, 1, compute=10), parameters=(config(limits="mps", computePercent=40),))
    found = made(node(8), asked)
    assert (found.config.limits, found.compute, found.devices[0].compute) == (Enforcement.MPS, 40, 40)


@pytest.mark.parametrize(
    ("asked", "why", "words"),
    [
        (claim(), RefusalCode.UNKNOWN_DEVICE, "has no device of gpu-device-plugin allocated"),
        (claim(device(driver="gpu.nvidia.com")), RefusalCode.UNKNOWN_DEVICE, "has no device of gpu-device-plugin"),
        (claim(device(pool="gpu-2")), RefusalCode.OTHER_NODE, "was allocated a GPU of node gpu-2, and this is gpu-1"),
        (claim(device(7)), RefusalCode.UNKNOWN_DEVICE, "is not on this node"),
        (
            claim(replace(device(), name="gpu-0")),
            RefusalCode.UNKNOWN_DEVICE,
            "device gpu-0 of claim default/c1 is not on",
        ),
        (claim(device(0), device(1, whole=True)), RefusalCode.BOTH_RESOURCES, "or admin access, which one set of"),
        (claim(device(0), device(1, admin=True)), RefusalCode.BOTH_RESOURCES, "use one claim for each"),
        (
            claim(device(0, 4, undivided=True)),
            RefusalCode.BAD_PARAMETERS,
            "asks for all of a GPU and for 4 GiB at once",
        ),
        (
            claim(device(0, 9)),
            RefusalCode.NO_ROOM,
            "GPU 0 has 8 GiB free, and claim default/c1 was allocated 9 GiB of it",
        ),
        (claim(device(0, 5), device(0, 4)), RefusalCode.NO_ROOM, "was allocated 9 GiB of it"),
        (
            claim(device(), parameters=(config(a=1),)),
            RefusalCode.BAD_PARAMETERS,
            "correct the parameters of claim default/c1",
        ),
        (
            claim(device(), replace(device(1), request="two"), parameters=(config("two", limits="mps"),)),
            RefusalCode.BAD_PARAMETERS,
            "have different parameters",
        ),
    ],
)
def test_a_claim_that_cannot_be_prepared_is_told_why(asked: Claim, why: RefusalCode, words: str) -> None:
    found = refused(node(8, 8), asked)
    assert found.code is why
    assert words in found.sentence


@pytest.mark.parametrize("whole", [False, True])
def test_a_gpu_that_can_give_nothing_now_is_refused(*, whole: bool) -> None:
    asked = claim(device(0, 1, whole=whole))
    broken = refused(node(8, unhealthy={0: "XID 79"}), asked)
    assert (broken.code, broken.sentence) == (RefusalCode.UNHEALTHY, "GPU 0 is unhealthy: XID 79")
    taken = refused(node(8, whole=[0]), asked)
    assert (taken.code, "still in use by another claim" in taken.sentence) == (RefusalCode.IN_WHOLE_USE, True)
    here = node(8)
    foreign = refused(here.with_ledger(Ledger().with_held_by_other_resource({uuid(0): "nvidia.com/gpu"})), asked)
    assert (foreign.code, "in use through nvidia.com/gpu" in foreign.sentence) == (RefusalCode.OTHER_RESOURCE, True)
    for closed in (node(8, unhealthy={0: "XID 79"}), here.with_ledger(Ledger(certain=False))):
        assert isinstance(prepare(closed, asked, NODE, running=True), Preparation)
    unread = refused(here.with_ledger(Ledger(certain=False)), asked)
    assert unread.code is RefusalCode.RECORDS_UNREADABLE
    assert unread.sentence == (
        "the kubelet's checkpoint cannot be read, so nothing proves that this GPU is free; the log of the GPU agent on "
        "this node says what to do"
    )


def test_a_gpu_with_a_share_in_use_is_not_given_whole() -> None:
    assert refused(node(8, used={0: [7]}), claim(device(0, whole=True))).code is RefusalCode.IN_WHOLE_USE


# --- MIG instances ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [MigMode.WHOLE, MigMode.SHARE])
def test_a_whole_instance_is_held_by_its_uuid(mode: MigMode) -> None:
    found = made(mig_node([10, 20], mode=mode), claim(instance(0, 1, whole=True)))
    assert found.device_ids == {mig_uuid(0, 1)}
    assert found.placement == Placement(Demand(Kind.INSTANCE, 1, 1), ((1, 20),))
    (only,) = found.devices
    assert (only.device, only.uuid, only.mib) == (mig_uuid(0, 1).lower(), mig_uuid(0, 1), 20480)


def test_an_instance_that_is_given_whole_only_is_given_whole_to_claims_of_any_class() -> None:
    found = made(mig_node([10, 20], mode=MigMode.WHOLE), claim(instance(0, 1, 20)))
    assert found.device_ids == {mig_uuid(0, 1)}


def test_a_claim_may_have_several_whole_instances_as_with_nvidias_driver() -> None:
    asked = claim(instance(0, 0, whole=True), instance(0, 1, whole=True), instance(1, 0, whole=True))
    found = made(mig_node([10, 20], [10], mode=MigMode.WHOLE), asked)
    assert found.device_ids == {mig_uuid(0, 0), mig_uuid(0, 1), mig_uuid(1, 0)}
    assert found.placement.demand == Demand(Kind.INSTANCE, 3, 3)


def test_a_part_of_an_instance_is_so_many_free_shares_of_it() -> None:
    found = made(mig_node([10], used={(0, 0): [0]}), claim(instance(0, 0, 2), instance(0, 0, 1, share_id="two")))
    assert found.device_ids == {f"{mig_uuid(0, 0)}::{number}" for number in (1, 2, 3)}
    assert found.placement == Placement(Demand(Kind.MEMORY, 3, 1), ((0, 3),))


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (claim(instance(0, 0), instance(0, 1)), "GPU 0 (MIG 1g.10gb) and GPU 1 (MIG 1g.10gb)"),
        (claim(replace(device(1), request="other"), instance(0, 1)), "GPU 1 (MIG 1g.10gb) and GPU 2"),
    ],
)
def test_parts_of_an_instance_and_of_anything_else_are_refused(asked: Claim, names: str) -> None:
    found = refused(mig_node([10, 10], 8), asked)
    assert found.code is RefusalCode.SEVERAL_INSTANCES
    assert found.sentence.startswith(f"claim default/c1 was allocated shares of {names}, and no program can use")


@pytest.mark.parametrize(
    "asked",
    [
        claim(instance(0, 0, whole=True), device(1, whole=True)),
        claim(instance(0, 0, whole=True), instance(0, 1)),
        claim(instance(0, 0, whole=True), instance(0, 1, whole=True, admin=True)),
    ],
)
def test_a_claim_has_whole_instances_or_something_else(asked: Claim) -> None:
    assert refused(mig_node([10, 10], 8), asked).code is RefusalCode.BOTH_RESOURCES


def test_access_beside_others_may_be_to_gpus_and_instances() -> None:
    monitors = [
        replace(device(1, admin=True), name=monitor_name(uuid(1))),
        replace(instance(0, 0, admin=True), name=monitor_name(mig_uuid(0, 0))),
    ]
    found = made(mig_node([10], 8, whole=[(0, 0)]), claim(*monitors))
    assert (found.device_ids, found.admin) == (frozenset(), True)
    assert found.placement.demand == Demand(Kind.COUNT, 2, 2)


def test_an_instance_is_whole_or_in_parts_and_says_so_by_its_name() -> None:
    whole = refused(mig_node([10], used={(0, 0): [7]}), claim(instance(0, 0, whole=True)))
    assert whole.sentence == "GPU 0 (MIG 1g.10gb) is still in use by another claim or container; this is retried"
    assert refused(mig_node([10], whole=[(0, 0)]), claim(instance(0, 0))).sentence == whole.sentence
    full = refused(mig_node([10], used={(0, 0): range(8)}), claim(instance(0, 0)))
    assert full.sentence.startswith("GPU 0 (MIG 1g.10gb) has 2 GiB free, and claim default/c1 was allocated 4 GiB")
    broken = refused(mig_node([10], unhealthy={mig_uuid(0, 0): "XID 48"}), claim(instance(0, 0)))
    assert broken.sentence == "GPU 0 (MIG 1g.10gb) is unhealthy: XID 48"


@pytest.mark.parametrize("whole", [False, True])
def test_an_instance_that_exists_no_more_is_given_to_nobody_and_counts_for_who_has_it(*, whole: bool) -> None:
    before = mig_node([10, 10])
    here = replace(before, shares=before.shares.with_inventory(mig_inventory([10]), mig=MigMode.SHARE))
    asked = claim(instance(0, 1, whole=whole))
    found = refused(here, asked)
    assert found.code is RefusalCode.UNKNOWN_DEVICE
    assert "is not on this node; delete the pod" in found.sentence
    running = prepare(here, asked, NODE, running=True)
    assert isinstance(running, Preparation)
    assert running.device_ids


LAYOUTS: tuple[tuple[int, ...], ...] = ((), (10, 10), (20, 10), (10,))
STEPS = st.one_of(
    st.tuples(st.just("divide"), st.integers(0, 1), st.integers(0, len(LAYOUTS) - 1)),
    st.tuples(st.just("mode"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    *[st.tuples(st.just("claim"), st.integers(0, 40), st.integers(1, 20))] * 3,
)


@given(st.lists(STEPS, max_size=40))
def test_whatever_becomes_of_instances_what_the_scheduler_may_allocate_is_prepared_and_nothing_twice(
    steps: list[tuple[str, int, int]],
) -> None:
    """The scheduler knows the slices, and what claims have of the devices that it allocated by them."""
    layouts, mode = [LAYOUTS[1], LAYOUTS[2]], MigMode.SHARE
    here = mig_node(*layouts, 8, mode=mode)
    held: dict[str, tuple[Preparation, str, int]] = {}
    for number, (step, a, b) in enumerate(steps):
        if step == "divide":
            layouts[a] = LAYOUTS[b]
        elif step == "mode":
            mode = list(MigMode)[a]
        elif step == "end" and held:
            gone, _, _ = held.pop(sorted(held)[a % len(held)])
            here = here.with_ledger(here.ledger.without(gone.device_ids))
        elif step == "claim" and (offered := allocatable(here, held, b)):
            found = offered[a % len(offered)]
            whole = not found.get("allowMultipleAllocations")
            asked = claim(replace(device(0, b, whole=whole), name=found["name"]), name=f"c{number}")
            made_of_it = made(here, asked)
            assert not made_of_it.device_ids & here.ledger.id_states.keys()
            held[asked.uid] = made_of_it, found["name"], b
            here = here.with_ledger(here.ledger.seen(made_of_it.device_ids))
        here = replace(here, shares=here.shares.with_inventory(mig_inventory(*layouts, 8), mig=mode))
        uses = [here.use(shared) for shared in here.shares.gpus]
        assert not any(use.whole and use.shares for use in uses)


def allocatable(here: Node, held: dict[str, tuple[Preparation, str, int]], gib: int) -> list[dict[str, Any]]:
    """Return the devices of which kube-scheduler would allocate all, or so many GiB."""
    taken = Counter({name: 0 for _, name, _ in held.values()})
    for _, name, size in held.values():
        taken[name] += size
    counted = {name.removesuffix("-whole"): name for name in taken}
    return [
        each
        for content in contents(devices(here, SliceInputs(())))
        for each in content.get("devices", ())
        if each["attributes"]["type"]["string"] != "monitor"
        and "taints" not in each
        and all(
            counted.get(counter, each["name"]) == each["name"]
            for consumed in each.get("consumesCounters", ())
            for counter in consumed["counters"]
        )
        and (
            taken[each["name"]] + gib <= int(each["capacity"]["memory"]["value"].removesuffix("Gi"))
            if each.get("allowMultipleAllocations")
            else each["name"] not in taken
        )
    ]


def test_two_claims_of_one_container_are_refused() -> None:
    """They would set the same variables."""
    asked, other = claim(name="c2"), PreparedClaim("uid-of-c1", "default", "c1", ())

    def refused_for(earlier: PreparedClaim, **claims: tuple[str, ...]) -> Refusal | None:
        return two_claims(Pod("u", "default", "p1", claims=claims), asked, [earlier])

    found = refused_for(other, a=("c1", "c2"))
    assert found is not None
    assert found.code is RefusalCode.TWO_CLAIMS
    assert "container 'a' uses claim c1 and claim c2" in found.sentence
    assert refused_for(other, a=("c1",), b=("c2",)) is None
    assert refused_for(replace(other, uid=asked.uid, name="c2"), a=("c1", "c2")) is None
    assert refused_for(replace(other, namespace="other"), a=("c1", "c2")) is None


# --- A limit beyond the amount ----------------------------------------------------------------------------------------


def limited(amount: str, *devices: Any) -> Claim:
    return claim(*devices, parameters=(config(memoryLimit=amount),))


def test_a_claim_may_use_more_of_its_gpu_than_it_holds() -> None:
    """Whole shares, rounded up, of which the GPU has 16."""
    for amount, shares in (("6Gi", 6), ("5000Mi", 5), ("16Gi", 16), ("99Gi", 16), ("4Gi", None)):
        found = made(node(16), limited(amount, device(0, 4)))
        assert (found.limit_shares, found.device_ids) == (shares, ids(0, range(4)))
        assert found.placement == Placement(Demand(Kind.MEMORY, 4, 1), ((0, 4),))
        assert found.placement.at_most(found.limit_shares).shares == ((0, shares or 4),)


def test_two_parts_of_one_gpu_have_one_limit() -> None:
    assert made(node(16), limited("9Gi", device(0, 4), device(0, 2, share_id="another"))).limit_shares == 9


@pytest.mark.parametrize(
    ("devices", "here"),
    [
        pytest.param((device(0, whole=True),), node(8), id="a whole GPU"),
        pytest.param((device(0, 4), device(1, 4)), node(8, 8), id="parts of two GPUs"),
        pytest.param((device(0, admin=True),), node(8), id="access beside others"),
        pytest.param((instance(0, 0, 2),), mig_node([10, 10]), id="a part of a MIG instance"),
    ],
)
def test_nothing_else_may_be_exceeded(devices: tuple[Any, ...], here: Node) -> None:
    found = refused(here, limited("6Gi", *devices))
    assert (found.code, "memoryLimit, which works only for shares of a single GPU" in found.sentence) == (
        RefusalCode.BAD_PARAMETERS,
        True,
    )


def test_a_limit_below_the_amount_is_refused() -> None:
    found = refused(node(8), limited("3Gi", device(0, 4)))
    assert found.code is RefusalCode.BAD_PARAMETERS
    assert "has memoryLimit 3 GiB, and was allocated 4 GiB; write a limit of at least" in found.sentence
