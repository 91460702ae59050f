"""However much their owners write on pods, thousands of them take little of the memory of extender and page."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench import hostile
from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache
from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES, EXTENDER_SETTINGS
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.model.contract.keys import (
    LONGEST,
    MEMORY_GUARANTEE,
    MOVE_TO,
    OVER_USE,
    READ_BY_AGENT,
    READ_ON_PODS,
    TOO_LONG,
    USE_MODEL,
    USE_UUID,
)
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.report.followed_cluster import FollowedCluster
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.scheduler.rules.pod_demand import Impossible, ask
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.sources import Sources
from tests import builders
from tests.builders import GPU_MEM
from tests.resources import RESOURCES
from tests.scheduler.contexts import BINPACK, context
from tests.scheduler.harness import world

Json = dict[str, Any]

KIB = 1 << 10
MOST_KIB: Mapping[Callable[[int, str | None], Json], float] = {
    hostile.written: 20 * 1024 / 2000,
    hostile.crowd: 20 * 1024 / 1000,
}
"""For each pod: 20 MiB for 2,000 with much written on them, or for 1,000 with as many containers as may have GPUs."""
NUMBER = 200


def each_kib(put: Callable[[msgspec.Raw], object], pods: Iterator[Json]) -> float:
    """Return by how many KiB the memory in use grows with each of some pods.

    A table of the interpreter may grow in between, so it is the second least of four parts.
    """
    raw = [msgspec.Raw(json.dumps(each).encode()) for each in pods]
    size, grown = len(raw) // 5, []
    for each in raw[:size]:  # what all of them share
        put(each)
    for part in range(1, 5):
        gc.collect()
        tracemalloc.start()
        try:
            for each in raw[part * size : (part + 1) * size]:
                put(each)
            gc.collect()
            grown.append(tracemalloc.get_traced_memory()[0] / KIB / size)
        finally:
            tracemalloc.stop()
    return sorted(grown)[1]


def extender(**settings: str) -> Callable[[msgspec.Raw], object]:
    """Return what has an extender learn of a pod."""
    read_settings = Sources(EXTENDER_SETTINGS, flags={"listen": "127.0.0.1:0", **settings}, environ={}).read()
    made = Extender(read_settings, ClusterConfig("http://127.0.0.1:1"), features=EXTENDER_FEATURES)
    store = made.follower.pods

    def put(raw: msgspec.Raw) -> None:
        read = made.follower.read_pod(raw)
        assert read is not None
        store.put(read)

    return put


def page() -> Callable[[msgspec.Raw], object]:
    """Return what has a page learn of a pod."""
    followed = FollowedCluster(ResourceSettings().offered)

    def put(raw: msgspec.Raw) -> None:
        read = followed.read_pod(raw)
        assert read is not None
        followed.put_pod(read)

    return put


@pytest.mark.parametrize("node", [None, "n"], ids=["waiting", "bound"])
@pytest.mark.parametrize(
    "program", [extender, lambda: extender(keep_nodes="true"), page], ids=["extender", "capacity", "page"]
)
@pytest.mark.parametrize("made", MOST_KIB, ids=["annotations", "containers"])
def test_of_what_owners_write_on_thousands_of_pods_little_is_kept(
    made: Callable[[int, str | None], Json], program: Callable[[], Callable[[msgspec.Raw], object]], node: str | None
) -> None:
    assert each_kib(program(), (made(n, node) for n in range(NUMBER))) < MOST_KIB[made]


async def test_a_pod_with_many_wishes_is_read_again_when_it_is_bound() -> None:
    """Of thousands that wait with long ones, none is kept; each is placed as its owner wishes all the same."""
    async with world() as w:
        w.node("a", 8, 8)
        extender = (await w.start()).extender
        names = ",".join(f"GPU-{n:032}" for n in range(30))
        made = w.pod("p", mem=2, annotations={USE_UUID: f"{names},GPU-a-1"})
        await w.seen()
        (kept,) = extender.fleet.pending.values()
        assert (kept.uid, kept.containers, kept.annotations) == (made["metadata"]["uid"], (), {})
        assert await w.bind("p", "a") == ""
        assert w.only.free("a") == [8, 6]


def test_a_bound_pod_with_very_many_wishes_is_not_moved_as_if_it_had_none() -> None:
    read = PodReader([GPU_MEM], READ_ON_PODS.__contains__)
    annotations = {USE_MODEL: "x" * 2000, MEMORY_GUARANTEE: "9" * 500, MOVE_TO: "{}"}
    pod, _ = read.read(
        json.dumps(builders.pod("a", builders.container(mem=1), uid="u", node="n", annotations=annotations)).encode()
    )
    followed = CapacityCache(context(settings=lambda: replace(BINPACK, keep_nodes=True)))
    followed.put_pod(pod)
    (kept,) = followed.pods.values()
    assert kept.annotations == {USE_MODEL: TOO_LONG, MOVE_TO: "{}"}
    assert isinstance(ask(kept, RESOURCES), Impossible)


def test_a_page_says_which_pods_it_does_not_explain_whole() -> None:
    followed = FollowedCluster(RESOURCES)
    found = followed.read_pod(msgspec.Raw(json.dumps(hostile.written(1)).encode()))
    assert found is not None
    assert found.status is not None
    assert (found.pod.annotations, len(found.pod.containers)) == ({}, 1)
    assert found.status.ignored[-1].startswith("its annotations for GPUs have more than 1024 characters together; ")


def test_of_pods_that_have_ended_nothing_long_is_kept() -> None:
    """A node that names no kubelet, or a full one, has any number of them."""
    read = PodReader([GPU_MEM], READ_BY_AGENT.__contains__)
    made = hostile.written(1, "n")
    made["status"] = {"phase": "Failed"}
    made["spec"]["containers"] *= 500
    found, _ = read.read(json.dumps(made).encode())
    assert sum(map(len, found.annotations.values())) < LONGEST[OVER_USE] + 2000
    assert len(found.containers) == MOST_CONTAINERS + 1
