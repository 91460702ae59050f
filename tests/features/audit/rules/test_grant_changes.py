"""Which audit records follow from what containers held before and hold now."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.audit.contract import AuditKind, AuditRecord
from gpu_device_plugin.features.audit.rules import changes, decision, grants, offered
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Owner, Pod
from gpu_device_plugin.model.shares import Shares
from tests.features.audit.records import record_of
from tests.mig import inventory, mig_node
from tests.nodes import uuid

GPUS = inventory(16, 16)
SHARES = Shares(1024).with_inventory(GPUS)
POD = Pod("a", "ml", "web-0", owner=Owner("StatefulSet", "web", "o", "apps/v1"))
T0, T1 = "2026-10-03T02:00:00Z", "2026-10-03T02:40:00Z"


def held(mib: int, pod: Pod | None = POD, gpu: int = 0, *, whole: bool = False) -> ContainerGpus:
    return ContainerGpus("a", "main", {uuid(gpu): mib}, whole=whole, pod=pod)


def having(*holders: ContainerGpus, before: Any = None, now: str = T0) -> Any:
    return grants("n1", holders, SHARES, before or {}, now)


def said(records: list[AuditRecord]) -> list[tuple[str, int | None, str, str]]:
    return [(str(each.kind), each.shares, each.began, each.ended) for each in records]


def test_a_grant_names_pod_owner_gpu_and_shares() -> None:
    (found,) = having(held(4096)).values()
    assert found == AuditRecord(
        AuditKind.GRANTED, "n1", "ml", "web-0", "a", "StatefulSet", "web", "main", uuid(0),
        SHARES.gpus[0].gpu.product, 16384, shares=4, share_mib=1024, memory_mib=4096, whole=False, began=T0,
    )  # fmt: skip
    assert record_of(found.attributes()) == found


def test_a_whole_gpu_has_all_its_shares() -> None:
    shares = Shares(1024, reserve_mib=2048).with_inventory(GPUS)
    (found,) = grants("n1", [held(16384, whole=True)], shares, {}, T0).values()
    assert (found.shares, found.whole, found.memory_mib) == (14, True, 16384)


def test_a_grant_an_end_and_nothing_new_are_told_apart() -> None:
    one, both = having(held(4096)), having(held(4096), held(1024, gpu=1))
    assert said(changes({}, one, {}, T0)) == [("granted", 4, T0, "")]
    assert said(changes({}, one, {}, T0, first=True)) == [("found", 4, T0, "")]
    assert changes(one, one, {}, T1) == []
    assert said(changes(both, one, {}, T1)) == [("ended", 1, T0, T1)]


def test_a_resize_tells_the_shares_before_and_its_event() -> None:
    before = having(held(4096))
    (record,) = changes(before, having(held(6144), before=before, now=T1), {}, T1)
    assert (record.kind, record.before, record.shares, record.event, record.began) == (
        AuditKind.RESIZED, 4, 6, "GPUMemoryResized", T1,
    )  # fmt: skip


def test_a_name_that_becomes_known_is_told_and_stays_once_the_api_forgets_it() -> None:
    unnamed = having(held(4096, pod=None))
    named = having(held(4096), before=unnamed, now=T1)
    assert said(changes(unnamed, named, {}, T1)) == [("found", 4, T0, "")]
    assert having(held(4096, pod=None), before=named, now=T1) == named


def test_a_pod_without_a_controller_has_no_owner() -> None:
    (found,) = having(held(4096, replace(POD, owner=None))).values()
    assert (found.pod, found.owner_kind, found.owner) == ("web-0", "", "")


def test_an_eviction_is_told_once_with_the_reason_of_its_event() -> None:
    now = having(held(4096))
    evicted = {"a": "GPUMemoryEvicted", "other": "GPUMemoryEvicted"}
    (record,) = changes(now, now, evicted, T1)
    assert (record.kind, record.event) == (AuditKind.EVICTED, "GPUMemoryEvicted")
    assert changes(now, now, {"other": "GPUMemoryEvicted"}, T1) == []
    assert [each.kind for each in changes(now, {}, evicted, T1)] == [AuditKind.EVICTED, AuditKind.ENDED]


def test_containers_of_one_pod_are_told_apart() -> None:
    found = having(held(4096), replace(held(2048), container="side"))
    assert [(each.container, each.memory_mib) for each in found.values()] == [("main", 4096), ("side", 2048)]
    assert {each.place for each in found.values()} == found.keys()


def test_of_two_grants_of_one_gpu_the_larger_counts_and_gpus_that_are_not_shared_do_not() -> None:
    found = having(
        held(4096), held(16384, whole=True), held(1024), ContainerGpus("a", "main", {"GPU-other": 1, uuid(1): 2048})
    )
    assert [each.memory_mib for each in found.values()] == [16384, 2048]


def test_what_can_be_given_is_offered_a_mig_instance_with_its_card() -> None:
    gpu = AuditRecord(AuditKind.OFFERED, "n", gpu=uuid(0), model=GPUS.gpus[0].product, gpu_mib=16384, began=T0)
    assert list(offered("n", SHARES, GPUS, T0)) == [gpu, replace(gpu, gpu=uuid(1))]
    cut = inventory((10, 20))
    shares = mig_node((10, 20), mode=MigMode.WHOLE).shares
    there = [each for each in offered("n", shares, cut, T0) if each.card]
    cards = {gpu.uuid: gpu.total_mib for gpu in cut.gpus if gpu.mig}
    assert there
    assert all(each.card_mib == cards[each.card] for each in there)
    assert all(each.card_mib is None for each in offered("n", shares, Inventory((Gpu("GPU-x", 0, "x", 1),)), T0))


def test_instances_that_nobody_can_have_any_more_are_not_offered() -> None:
    cut = inventory((10, 20))
    shares = mig_node((10, 20), mode=MigMode.WHOLE).shares.with_inventory(cut, mig=MigMode.OFF)
    assert shares.gpus
    assert list(offered("n", shares, cut, T0)) == []


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 16), max_size=3), max_size=8))
def test_records_replayed_are_what_containers_have(states: list[dict[str, int]]) -> None:
    """Whatever comes, ends and changes: who reads the records knows what there is."""
    before: Any = {}
    replayed: dict[str, int | None] = {}
    for number, state in enumerate(states):
        holders = [ContainerGpus(uid, "main", {uuid(0): count * 1024}) for uid, count in state.items()]
        now = grants("n", holders, SHARES, before, f"t{number}")
        for record in changes(before, now, {}, f"t{number}"):
            replayed[record.pod_uid] = record.shares
            if record.kind is AuditKind.ENDED:
                del replayed[record.pod_uid]
        assert replayed == state
        before = now


def test_grants_and_their_ends_are_sentences_and_nothing_else_is() -> None:
    record = AuditRecord(AuditKind.GRANTED, pod_uid="u", container="main", gpu="GPU-a", memory_mib=4096)
    named = replace(record, namespace="team", pod="web")
    assert decision(named) == "container main of team/web was allocated 4 GiB of GPU-a"
    ended = replace(record, kind=AuditKind.ENDED)
    assert decision(ended) == "container main of the pod with UID u released 4 GiB of GPU-a"
    others = [replace(named, kind=kind) for kind in AuditKind if kind not in {AuditKind.GRANTED, AuditKind.ENDED}]
    assert {decision(each) for each in others} == {""}
