"""MIG instances by claims, on real Kubernetes: whole, several, by limits and in parts, divided anew while pods run.

On a cluster of its own, as `test_dra`.
"""

from collections.abc import Iterator

import pytest
import yaml

from gpu_device_plugin.model.contract.keys import MIG_LABEL
from tests.docs.pages import DOCS
from tests.e2e import dra_lab
from tests.e2e.cluster import Cluster
from tests.e2e.dra_lab import (
    LONG_S,
    Json,
    agent,
    claim,
    clear,
    delete,
    describe,
    devices,
    environ,
    health,
    minor,
    on_node,
    phase,
    pod,
    run,
    told,
    uuid_of,
    waits,
    why_not,
)

if reason := why_not():
    pytest.skip(reason, allow_module_level=True)
if minor() < 36:
    pytest.skip("counters and parts need Kubernetes 1.36", allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

FOUR: Json = {"model": "H100", "mig": "1g.10gb*3/3g.40gb"}
T4: Json = {"model": "T4"}
OURS = "device.attributes['gpu-device-plugin']"
LIMIT = "aliyun.com/mig-1g.10gb"


def of_type(cluster: Cluster, kind: str, profile: str = "") -> dict[str, str]:
    """Return the UUIDs of the devices that claims can have as a type, and of a profile if named, by the names."""
    texts = {
        name: {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        for name, device in devices(cluster).items()
    }
    return {
        name: text["uuid"]
        for name, text in texts.items()
        if kind in (text["type"], text.get("whole")) and profile in ("", text.get("profile"))
    }


def instance(name: str, profile: str = "", count: int = 1, *, one_gpu: bool = False) -> Json:
    """Return a claim on whole MIG instances."""
    exactly: Json = {"count": count}
    if profile:
        exactly["selectors"] = [{"cel": {"expression": f"{OURS}.profile == '{profile}'"}}]
    body = claim(name, device_class="gpushare-mig", **exactly)
    if one_gpu:
        body["spec"]["devices"]["constraints"] = [{"matchAttribute": "gpu-device-plugin/parentUUID"}]
    return body


def part(name: str, memory: str) -> Json:
    """Return a claim on a part of a MIG instance."""
    return claim(name, memory=memory, selectors=[{"cel": {"expression": f"has({OURS}.profile)"}}])


def mode(cluster: Cluster, value: str, **expected: int) -> None:
    """Let the node give its instances so, and wait for that many devices of the types."""
    cluster.kubectl("label", "--overwrite", "node", cluster.node, f"{MIG_LABEL}={value}")
    wanted = {kind.replace("_", "-"): number for kind, number in expected.items()}
    cluster.until(
        lambda: {kind: len(of_type(cluster, kind)) for kind in wanted} == wanted, f"the node has {wanted}", LONG_S
    )


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    with dra_lab.installed(FOUR, T4, published=2) as cluster:
        by_limit, _ = yaml.safe_load_all((DOCS / "claims/mig-by-limit.yaml").read_text())
        cluster.apply_all([by_limit])
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same, with four instances that are given whole, and with no pod and no claim before and after a test."""
    describe(installed, FOUR, T4)
    mode(installed, "whole", mig=4, shared_gpu=1, whole_gpu=1)
    yield installed
    clear(installed)


def test_each_whole_instance_is_given_once_and_its_pod_and_claim_say_which(cluster: Cluster) -> None:
    ours = of_type(cluster, "mig", "1g.10gb")
    names = [f"one-{number}" for number in range(3)]
    for name in names:
        run(cluster, instance(name, "1g.10gb"), pod(name, claim=name))
    assert {uuid_of(cluster, name) for name in names} == set(ours.values())
    given = environ(cluster, "one-0")
    assert given["GPUSHARE_MEMORY_LIMIT_BY"] == "partition"
    (device,) = told(cluster, "one-0")
    assert ours[device["device"]] == device["data"]["uuid"] == given["NVIDIA_VISIBLE_DEVICES"]
    assert device["data"]["limitBy"] == "partition"
    assert health(cluster, "one-0") == "Healthy"
    cluster.apply_all([instance("late", "1g.10gb"), pod("late", claim="late")])
    waits(cluster, "late", "cannot allocate all claims")
    delete(cluster, "one-1")
    cluster.kubectl("delete", "resourceclaim", "one-1")
    cluster.until(lambda: phase(cluster, "late") == "Running", "the pod that waited runs", LONG_S)


def test_several_instances_of_one_gpu_are_in_one_container(cluster: Cluster) -> None:
    run(cluster, instance("two", count=2, one_gpu=True), pod("two", claim="two"))
    given = uuid_of(cluster, "two").split(",")
    assert len(set(given)) == 2
    assert set(given) <= set(of_type(cluster, "mig").values())


def test_limits_written_for_a_device_plugin_are_met_by_instances(cluster: Cluster) -> None:
    run(cluster, *(pod(f"limit-{number}", limits={LIMIT: "1"}) for number in range(2)))
    run(cluster, instance("claimed", "1g.10gb"), pod("claimed", claim="claimed"))
    given = {uuid_of(cluster, name) for name in ("limit-0", "limit-1", "claimed")}
    assert given == set(of_type(cluster, "mig", "1g.10gb").values())


def test_parts_of_an_instance_and_the_whole_of_it_never_meet(cluster: Cluster) -> None:
    mode(cluster, "share", mig=4, shared_gpu=5)
    for name in ("a", "b"):
        run(cluster, part(name, "30Gi" if name == "a" else "9Gi"), pod(name, claim=name))
    large, small = uuid_of(cluster, "a"), uuid_of(cluster, "b")
    assert environ(cluster, "a")["GPUSHARE_MEMORY_LIMIT_MIB"] == str(30 * 1024)
    assert {large} == set(of_type(cluster, "mig", "3g.40gb").values())
    cluster.apply_all([part("c", "30Gi"), pod("c", claim="c"), instance("d", "3g.40gb"), pod("d", claim="d")])
    waits(cluster, "c", "cannot allocate all claims")
    waits(cluster, "d", "cannot allocate all claims")
    for name in ("e", "f"):
        run(cluster, instance(name, "1g.10gb"), pod(name, claim=name))
    taken = {uuid_of(cluster, name) for name in ("e", "f")}
    assert len(taken | {large}) == 3
    assert small == large or small not in taken


def test_a_gpu_is_divided_anew_while_claims_have_its_instances(cluster: Cluster) -> None:
    run(cluster, instance("old", "1g.10gb"), pod("old", claim="old"))
    old = uuid_of(cluster, "old")
    describe(cluster, FOUR | {"mig": "2g.20gb*3"}, T4)
    cluster.until(lambda: len(of_type(cluster, "mig", "2g.20gb")) == 3, "the new instances are there", LONG_S)
    assert not of_type(cluster, "mig", "1g.10gb")
    run(cluster, instance("new", "2g.20gb"), pod("new", claim="new"))
    assert uuid_of(cluster, "new") != old
    cluster.until(lambda: health(cluster, "old") == "Unhealthy", "the pod is told", LONG_S)
    assert phase(cluster, "old") == "Running"
    on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin node' || true")
    delete(cluster, "old", "new")
    agent(cluster)
    files = on_node(cluster, "ls /var/lib/kubelet/plugins/gpu-device-plugin/claims /run/cdi")
    assert ".json" not in files


def test_nothing_is_given_twice_over_restarts_of_agent_and_kubelet(cluster: Cluster) -> None:
    assert cluster.own is not None
    run(cluster, instance("before", "1g.10gb"), pod("before", claim="before"))
    before = uuid_of(cluster, "before")
    on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin node' || true")
    cluster.own.stop_kubelet()
    cluster.apply_all([instance("meanwhile", "1g.10gb"), pod("meanwhile", claim="meanwhile")])
    cluster.own.start_kubelet()
    cluster.until(lambda: phase(cluster, "meanwhile") == "Running", "the pod of meanwhile runs", LONG_S)
    run(cluster, instance("after", "1g.10gb"), pod("after", claim="after"))
    assert len({before, uuid_of(cluster, "meanwhile"), uuid_of(cluster, "after")}) == 3
    assert uuid_of(cluster, "before") == before
