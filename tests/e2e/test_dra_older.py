"""Claims on GPUs on a Kubernetes that knows whole devices only, 1.34 or 1.35: whole GPUs, and that said."""

from collections.abc import Iterator

import pytest

from tests.e2e import dra_lab
from tests.e2e.cluster import Cluster
from tests.e2e.dra_lab import (
    H200,
    LONG_S,
    agent,
    clear,
    delete,
    devices,
    environ,
    minor,
    phase,
    pod,
    run,
    uuid_of,
    waits,
)

if reason := dra_lab.why_not():
    pytest.skip(reason, allow_module_level=True)
if minor() not in {34, 35}:
    pytest.skip("KUBE_BIN has no Kubernetes 1.34 or 1.35", allow_module_level=True)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    with dra_lab.installed(H200, H200, published=4) as cluster:
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    yield installed
    clear(installed)


def test_whole_gpus_are_given_each_once(cluster: Cluster) -> None:
    run(cluster, pod("one", "gpu-whole"), pod("two", "gpu-whole"))
    assert uuid_of(cluster, "one") != uuid_of(cluster, "two")
    assert "GPUSHARE_MEMORY_LIMIT_MIB" not in environ(cluster, "one")
    cluster.apply_all([pod("three", "gpu-whole")])
    waits(cluster, "three", "cannot allocate all claims")
    delete(cluster, "two")
    cluster.until(lambda: phase(cluster, "three") == "Running", "the GPU that is free is given", LONG_S)


def test_it_is_said_that_there_are_no_parts(cluster: Cluster) -> None:
    assert all(
        "allowMultipleAllocations" not in device and "consumesCounters" not in device
        for device in devices(cluster).values()
    )
    told = cluster.kubectl("--namespace=gpushare", "logs", agent(cluster))
    assert "the API server does not know" in told
    assert "Kubernetes 1.36" in told


def test_a_pod_that_asks_for_a_part_waits(cluster: Cluster) -> None:
    cluster.apply_all([pod("part", "gpu-mem-4gi")])
    cluster.until(
        lambda: (
            phase(cluster, "part") == "Pending" and cluster.items("events", "--field-selector=involvedObject.name=part")
        ),
        "an Event says why the pod waits",
        LONG_S,
    )


def test_an_agent_that_starts_again_takes_nothing_away(cluster: Cluster) -> None:
    run(cluster, pod("before", "gpu-whole"))
    cluster.kubectl("--namespace=gpushare", "delete", "pod", agent(cluster))
    agent(cluster)
    assert len(devices(cluster)) == 4
    run(cluster, pod("after", "gpu-whole"))
    assert uuid_of(cluster, "before") != uuid_of(cluster, "after")
