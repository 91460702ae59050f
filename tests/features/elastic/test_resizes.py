"""Which pods are decided on when, and what counts while a promise is being written."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import pytest

from gpu_device_plugin.features.elastic.rules.promising import Outcome
from gpu_device_plugin.features.elastic.scheduler import Patch, Resizes
from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.errors import Call, TooManyRequestsError, UnavailableError
from gpu_device_plugin.model.contract.keys import IDX, MEMORY_GUARANTEE, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.cluster_state import Fleet
from tests.resources import MEM, RESOURCES
from tests.scheduler.contexts import context

LABELS = {RESIZE_BOUND: "100"}


async def nothing(*_: object) -> None:
    """Await nothing."""


class Api:
    """An API server that makes each patch."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None]] = []
        """Of each patch the pod's name, and the shares that it promises its container."""
        self.refuses: Exception | None = None
        self.before_reading: Callable[[], object] = lambda: None

    async def get(self, _kind: object, name: str, **_more: object) -> ApiAnswer:
        self.before_reading()
        raw = json.dumps({"metadata": {"name": name, "labels": LABELS}})
        return ApiAnswer.to(Call("get", "namespaces", name=name), raw.encode())

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> Pod:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append((pod.name, json.loads(annotations[MEMORY_PROMISED]).get("guarantees", {}).get("main")))
        return replace(pod, annotations={**pod.annotations, **annotations}, resource_version="50")


class World:
    """A node with one GPU of 12 shares, and its resizes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.fleet = Fleet(RESOURCES, vanished_grace_s=30)
        self.fleet.put_node("a", NodeGpus((ListedGpu(0, 12),), share_mib=1024))
        self.api = Api()
        self.catch_up: Callable[[], Awaitable[None]] = nothing
        parts = context(self.fleet, client=self.api, binder=self.api, clock=lambda: self.now)
        self.resizes = Resizes(replace(parts, catch_up=lambda: self.catch_up()))  # noqa: PLW0108 - it changes
        self.resizes._term = "first"

    def see(self, pod: Pod) -> Pod:
        self.fleet.put_pod(pod, self.now)
        self.resizes.put_pod(pod)
        return pod

    def grows(self, pod: Pod) -> Patch:
        (taken,) = self.resizes.take(10)
        assert taken.uid == pod.uid
        outcome, patch = self.resizes.decide(pod.uid, LABELS)
        assert outcome is Outcome.GROWN
        assert patch is not None
        return patch

    async def round(self, catch_up: Callable[[], Awaitable[None]] = nothing, *, term: str = "first") -> None:
        """Let the active extender answer what is due."""
        self.catch_up = catch_up
        if term != self.resizes._term:
            await catch_up()
            self.resizes._begin(term)
        await self.resizes._answer()

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


def bound(name: str, shares: int) -> Pod:
    """A pod without a wish that was bound with so many shares."""
    containers = (Container("main", ContainerKind.APP, 0, {MEM.name: shares}),)
    return replace(wishing(name), annotations={IDX: "0", MEMORY_PROMISED: "{}"}, containers=containers)


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


async def test_a_patch_that_was_not_made_for_longer_than_the_api_server_works_on_one_is_given_up() -> None:
    w = World()
    pod = w.see(wishing("p"))
    patch = w.grows(pod)
    w.resizes.failed(patch, certain=False)
    w.now += 61
    w.resizes.failed(w.grows(pod), certain=True)
    w.api.refuses = TooManyRequestsError(Call("patch", "pods"), "too many")
    w.now += 10
    await w.round()
    assert w.free == 8


@pytest.mark.parametrize("outdated", [True, False], ids=["409", "429"])
async def test_a_patch_that_was_made_without_an_answer_counts_however_long_the_watch_is_silent(
    *, outdated: bool
) -> None:
    w = World()
    pod = w.see(wishing("p"))
    patch = w.grows(pod)
    w.resizes.failed(patch, certain=False)
    for _ in range(5):
        w.now += 61
        assert w.grows(pod) is patch
        w.resizes.failed(patch, certain=True, outdated=outdated)
        assert w.free == 6
    made = replace(pod, annotations={**pod.annotations, MEMORY_PROMISED: patch.promised}, resource_version="2")

    async def shown() -> None:
        assert w.free == 6
        w.see(made)

    w.now += 61
    await w.round(shown)
    assert (w.free, w.api.sent) == (6, [])
    assert "0 claimed" in repr(w.resizes)


def test_a_wish_that_goes_while_its_patch_is_under_way_leaves_nothing() -> None:
    w = World()
    pod = w.see(wishing("p"))
    patch = w.grows(pod)
    w.see(replace(pod, annotations={IDX: "0", MEMORY_PROMISED: "{}"}, resource_version="2"))
    assert w.free == 8, "the pod is newer: the patch is not made"
    w.resizes.failed(patch, certain=False)
    assert (w.free, repr(w.resizes)) == (8, "<Resizes: 0 pods, 0 queued, 0 claimed>")


def test_the_failure_of_an_outdated_patch_does_not_concern_the_next_one() -> None:
    w = World()
    first = w.grows(w.see(wishing("p")))
    pod = w.see(wishing("p", 7, version=2))
    w.now += 1
    second = w.grows(pod)
    w.resizes.failed(first, certain=True, outdated=True)
    assert w.free == 5
    w.resizes.written(first, replace(pod, resource_version="2"))
    w.see(replace(pod, running=True))
    assert w.free == 5
    w.resizes.failed(second, certain=True)
    assert w.free == 8


async def test_a_pod_whose_wish_goes_while_its_namespace_is_read_is_forgotten_also_if_that_fails() -> None:
    w = World()
    pod = w.see(wishing("p"))

    def leaves() -> None:
        w.see(replace(pod, annotations={IDX: "0", MEMORY_PROMISED: "{}"}, resource_version="2"))
        raise UnavailableError(Call("get", "namespaces"), "no answer")

    w.api.before_reading = leaves
    await w.round()
    assert repr(w.resizes) == "<Resizes: 0 pods, 0 queued, 0 claimed>"
    w.now += 10
    w.see(wishing("q"))
    await w.round()
    assert w.api.sent == []
    w.api.before_reading = lambda: None
    w.now += 10
    await w.round()
    assert w.api.sent == [("q", 6)]


async def test_a_wish_that_comes_right_before_its_pod_is_decided_on_finds_its_namespace_read() -> None:
    w = World()
    w.see(replace(wishing("p"), annotations={IDX: "0", MEMORY_PROMISED: '{"wish":"5","why":"full"}'}))
    (taken,) = w.resizes.take(1)
    w.see(wishing("p", version=2))
    await w.resizes._resize(taken)
    assert w.api.sent == [("p", 6)]


async def test_in_a_new_term_a_patch_that_cannot_be_made_any_more_is_decided_on_anew() -> None:
    w = World()
    pod = w.see(wishing("p"))
    w.resizes.failed(w.grows(pod), certain=False)
    w.now += 600

    async def another_has_given_the_room_away() -> None:
        w.see(bound("q", 8))

    await w.round(another_has_given_the_room_away, term="new")
    assert w.api.sent == [("p", None)], "refused"
    assert w.free == 0


async def test_in_a_new_term_a_patch_is_not_sent_again_and_counts_while_it_can_still_be_made() -> None:
    w = World()
    pod = w.see(wishing("p"))
    w.resizes.failed(w.grows(pod), certain=False)
    w.now += 20

    async def another_has_given_room_away() -> None:
        w.see(bound("q", 6))

    await w.round(another_has_given_room_away, term="new")
    assert (w.free, w.api.sent) == (0, [])
    w.now += 39
    await w.round(term="new")
    assert (w.free, w.api.sent, w.resizes.due()) == (0, [], False)
    w.now += 1.5
    await w.round(term="new")
    assert (w.free, w.api.sent) == (0, [("p", 6)]), "there is room for it"


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


def test_namespaces_take_turns_also_if_more_of_them_are_busy_than_are_decided_on_at_a_time() -> None:
    w = World()
    for n in range(10):
        for k in range(50):
            w.see(wishing(f"many-{n}-{k}", namespace=f"busy-{n}"))
    w.now += 1
    w.see(wishing("one", namespace="calm"))
    assert "one" in [pod.name for _ in range(2) for pod in w.resizes.take(10)]


def test_the_turns_that_are_remembered_of_namespaces_that_are_gone_are_bounded() -> None:
    w = World()
    for n in range(1000):
        pod = w.see(wishing(f"p{n}", namespace=f"n{n}"))
        w.resizes.take(10)
        w.resizes.remove_pod(pod.uid)
        w.now += 2
    assert len(w.resizes._turns) < 300


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
        w.resizes.remove_pod(pod.uid)
        w.now += 2
    assert len(w.resizes._next_at) < 300


def test_an_extender_that_stands_by_remembers_nothing_of_pods_that_are_gone() -> None:
    """It sees what is ready, and never takes it."""
    w = World()
    for n in range(10):
        w.see(wishing(f"p{n}", namespace=f"n{n % 3}"))
        assert w.resizes.due()
        w.resizes.remove_pod(f"p{n}")
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
