"""What another kubelet process has lost of its predecessor's record, and for how long it counts."""

from dataclasses import replace

from gpu_device_plugin.features.forgotten.rules import Remembered, lost_sentence
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.resources import Kind


def given(uid: str, *device_ids: str, container: str = "main") -> Allocation:
    return Allocation(uid, container, Kind.MEMORY, frozenset(device_ids), through="mem")


def lost(*allocations: Allocation) -> frozenset[Allocation]:
    return frozenset(replace(allocation, source=AllocationSource.REMEMBERED) for allocation in allocations)


A, B = given("a", "G::0", "G::1"), given("b", "G::2")
BEFORE = Remembered("first", frozenset({A, B}))


def test_a_kubelet_that_shows_one_allocation_of_its_predecessor_has_restored_all_of_them() -> None:
    """Its checksum covers the whole file; the pod of the other has ended."""
    after = BEFORE.after([A], "second", its_own=True)
    assert after == Remembered("second", frozenset({A}))
    assert after.lost_ids == frozenset()


def test_another_kubelet_that_shows_none_of_them_has_lost_all() -> None:
    after = BEFORE.after([], "second", its_own=True)
    assert after == Remembered("second", frozenset(), lost(A, B))
    assert after.lost_ids == {"G::0", "G::1", "G::2"}


def test_another_kubelet_whose_checkpoint_is_missing_or_damaged_has_lost_all() -> None:
    """It is asked for again until a kubelet's own record is there."""
    after = BEFORE.after(None, "second", its_own=False)
    assert after == Remembered("first", frozenset(), lost(A, B))
    assert after.after(None, "second", its_own=False) == after
    assert after.after([], "second", its_own=True) == Remembered("second", frozenset(), lost(A, B))


def test_the_same_kubelet_loses_nothing() -> None:
    """What its record shows no more has ended, and what happens to the file does not change what it knows."""
    assert BEFORE.after([], "first", its_own=True) == Remembered("first")
    assert BEFORE.after(None, "first", its_own=False) == BEFORE


def test_a_record_of_the_predecessor_that_the_kubelet_refused_to_read_does_not_count_as_its_own() -> None:
    """It was edited: only its checksum is wrong, which we cannot compute."""
    seen = BEFORE.after([A, B], "second", its_own=False)
    assert seen == BEFORE
    assert seen.after([], "second", its_own=True).lost_ids == {"G::0", "G::1", "G::2"}


def test_a_container_that_the_kubelet_allocated_for_anew_holds_no_more_than_that() -> None:
    """It did not run when the kubelet started; the other container of its pod did."""
    sidecar = given("a", "G::5", container="sidecar")
    after_loss = Remembered("first", frozenset({A, sidecar})).after(None, "second", its_own=False)
    after = after_loss.after([given("a", "G::7", "G::8")], "second", its_own=True)
    assert after.forgotten == lost(sidecar)
    assert after.lost_ids == {"G::5"}


def test_a_device_that_the_kubelet_gave_again_is_in_its_record_and_no_longer_unknown_to_it() -> None:
    """As to a pod of the moment before anybody knew. Both pods have it."""
    after_loss = BEFORE.after(None, "second", its_own=False).after([given("c", "G::1")], "second", its_own=True)
    assert after_loss.forgotten == lost(A, B)
    assert after_loss.lost_ids == {"G::0", "G::2"}
    assert after_loss.after([], "second", its_own=True).lost_ids == {"G::0", "G::1", "G::2"}


def test_what_was_lost_stays_lost_for_later_kubelets_and_what_was_given_since_is_restored() -> None:
    new = given("c", "G::3")
    after_loss = BEFORE.after(None, "second", its_own=False).after([new], "second", its_own=True)
    assert after_loss.after([new], "third", its_own=True) == Remembered("third", frozenset({new}), lost(A, B))
    assert after_loss.after([], "third", its_own=True).forgotten == lost(A, B, new)


def test_the_allocations_of_a_pod_that_has_ended_are_free() -> None:
    after_loss = BEFORE.after(None, "second", its_own=False)
    assert after_loss.among({"b", "x"}).lost_ids == {"G::2"}
    assert after_loss.among(()).lost_ids == frozenset()


def test_on_a_node_of_which_nothing_is_remembered_nothing_was_lost() -> None:
    nothing = Remembered()
    assert nothing.after([], "first", its_own=True) == Remembered("first")
    assert nothing.after(None, "", its_own=False) == nothing


def test_a_sentence_names_three_pods_and_counts_the_others() -> None:
    ours = [given(uid, f"G::{uid}", f"G::{uid}2") for uid in "abcde"]
    assert lost_sentence(ours, {"a": "default/a", "e": "default/e"}).startswith(
        "the kubelet has lost its record of 10 devices of default/a, default/e, the pod with UID b and 2 more: "
        "its checkpoint was deleted or damaged before it started, "
    )
    assert " devices of default/a: its checkpoint " in lost_sentence(ours[:1], {"a": "default/a"})
