"""Which pods are decided on when, and what counts while a promise is being written."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.core.cluster.resizing import Outcome
from gpu_device_plugin.fleet import Fleet
from gpu_device_plugin.model.contract.keys import IDX, MEMORY_GUARANTEE, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.programs.extender.resizing import Patch, Resizes
from tests.programs.extender.contexts import context
from tests.resources import MEM, RESOURCES

LABELS = {RESIZE_BOUND: "100"}


class World:
    """A node with one GPU of 12 shares, and its resizes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.fleet = Fleet(RESOURCES, vanished_grace_s=30)
        self.fleet.put_node("a", NodeGpus((ListedGpu(0, 12),), share_mib=1024))
        self.resizes = Resizes(context(self.fleet, clock=lambda: self.now))

    def see(self, pod: Pod) -> Pod:
        self.fleet.put_pod(pod, self.now)
        self.resizes.put(pod)
        return pod

    def grows(self, pod: Pod) -> Patch:
        (taken,) = self.resizes.take(10)
        assert taken.uid == pod.uid
        outcome, patch = self.resizes.decide(pod.uid, LABELS)
        assert outcome is Outcome.GROWN
        assert patch is not None
        return patch

    @property
    def free(self) -> int:
        (room,) = self.fleet.candidates["a"].rooms
        return room.free


def wishing(name: str, shares: int = 6, *, namespace: str = "default", version: int = 1) -> Pod:
    """A pod that was bound with 4 shares."""
    containers = (Container("main", ContainerKind.APP, 0, {MEM.name: 4}),)
    annotations = {IDX: "0", MEMORY_PROMISED: "{}", MEMORY_GUARANTEE: str(shares)}
    return Pod(
        name, namespace, name, "a", annotations=annotations, containers=containers, resource_version=str(version)
    )


def test_growth_counts_until_the_watch_shows_it_whatever_older_states_come() -> None:
    w = World()
    pod = w.see(wishing("p"))
    patch = w.grows(pod)
    assert w.free == 6
    written = replace(pod, annotations={**pod.annotations, MEMORY_PROMISED: patch.promised}, resource_version="9")
    w.resizes.written(patch, written)
    w.see(replace(pod, running=True, resource_version="5"))
    assert w.free == 6
    w.see(written)
    assert (w.free, repr(w.resizes)) == (6, "<Resizes: 1 pods, 1 queued, 0 claimed>")
    w.see(replace(pod, resource_version="12"))
    assert w.free == 8, "somebody else has taken the promise back"


def test_a_patch_in_doubt_counts_while_it_can_still_be_made() -> None:
    w = World()
    pod = w.see(wishing("p"))
    patch = w.grows(pod)
    w.resizes.failed(patch, certain=False)
    assert w.free == 6
    w.now += 2
    assert w.grows(pod) is patch, "it is sent again"
    w.resizes.failed(patch, certain=True)
    assert w.free == 6, "it was refused when it was sent again; the first may still be made"
    w.see(replace(pod, running=True))
    assert w.free == 6, "the watch shows no newer state"
    newer = replace(pod, resource_version="2")
    w.see(newer)
    assert (w.free, repr(w.resizes)) == (8, "<Resizes: 1 pods, 1 queued, 0 claimed>")


def test_a_patch_that_was_not_made_for_longer_than_the_api_server_works_on_one_is_given_up() -> None:
    w = World()
    pod = w.see(wishing("p"))
    patch = w.grows(pod)
    w.resizes.failed(patch, certain=False)
    w.now += 61
    w.resizes.failed(w.grows(pod), certain=True)
    assert w.free == 8


def test_a_refused_patch_gives_its_room_back() -> None:
    w = World()
    patch = w.grows(w.see(wishing("p")))
    w.resizes.failed(patch, certain=True)
    assert w.free == 8


def test_namespaces_take_turns() -> None:
    w = World()
    for n in range(20):
        w.see(wishing(f"many-{n}", namespace="busy"))
    w.see(wishing("one", namespace="calm"))
    assert "one" in [pod.name for pod in w.resizes.take(2)]


def test_a_pod_is_decided_on_once_a_second_also_if_its_wish_comes_and_goes() -> None:
    w = World()
    pod = w.see(wishing("p"))
    assert [each.name for each in w.resizes.take(10)] == ["p"]
    for shares in range(5, 9):
        w.see(replace(pod, annotations={IDX: "0", MEMORY_PROMISED: "{}"}))
        w.see(wishing("p", shares))
    assert not w.resizes.due()
    w.now += 1
    assert [each.name for each in w.resizes.take(10)] == ["p"]
    assert not w.resizes.due()


def test_what_is_remembered_of_pods_that_are_gone_is_bounded() -> None:
    w = World()
    for n in range(1000):
        pod = w.see(wishing(f"p{n}"))
        w.resizes.take(10)
        w.resizes.remove(pod.uid)
        w.now += 2
    assert len(w.resizes._next_at) < 300


def test_an_extender_that_stands_by_remembers_nothing_of_pods_that_are_gone() -> None:
    """It sees what is ready, and never takes it."""
    w = World()
    for n in range(10):
        w.see(wishing(f"p{n}", namespace=f"n{n % 3}"))
        assert w.resizes.due()
        w.resizes.remove(f"p{n}")
        w.now += 2
    assert not w.resizes._queued
    stays = w.see(wishing("stays"))
    for _ in range(10):
        assert w.resizes.due()
        w.see(replace(stays, annotations={IDX: "0", MEMORY_PROMISED: "{}"}))
        w.see(stays)
        w.now += 2
    assert w.resizes.due()
    assert len(w.resizes._queued) == 1
