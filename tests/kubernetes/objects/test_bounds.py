"""What strangers write into objects is bounded in bytes before it is kept."""

import gc
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.features.claims.claim_objects import read_claim, read_shown_claim
from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.kubernetes.objects.decoding import NodeReader, PodReader
from gpu_device_plugin.kubernetes.objects.requests import LONGEST_NAME, bounded
from gpu_device_plugin.model.contract.keys import AVOID_MODEL, READ_BY_AGENT, TOO_LONG, USE_MODEL
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.pods import Owner
from gpu_device_plugin.model.sharing import Shared, weight
from gpu_device_plugin.report.followed_cluster import FollowedCluster, FollowedPod
from gpu_device_plugin.settings.common import ResourceSettings
from tests.builders import GPU_MEM, container, node, pod
from tests.claim_values import claim_json, whole_json

MIB = 1 << 20
LONG = 1_400_000
"""Characters that the API server takes in one field which it does not bound."""
RESOURCES = ResourceSettings().offered


def reader() -> PodReader:
    """Return a reader as the node's agent has one."""
    names = [each.name for each in RESOURCES]
    return PodReader(names, READ_BY_AGENT.__contains__, sums=True, ids=True, claims=True, mig=True, owners=True)


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


def owned(number: int = 0, **fields: Any) -> Any:
    """Return a pod with a controller of which some fields are unusual."""
    made = pod(f"p{number}", container(mem=1), uid=f"u{number}", node="n")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "o", "controller": True, **fields}
    made["metadata"]["ownerReferences"] = [owner]
    return made


def grown_mib(objects: Iterator[object]) -> float:
    """Return by how many MiB the memory grows that is still in use, in which some objects are made and dropped."""
    gc.collect()
    tracemalloc.start()
    try:
        for _ in objects:
            pass
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / MIB
    finally:
        tracemalloc.stop()


def test_pods_that_come_and_go_with_owners_of_long_names_leave_nothing() -> None:
    agent = reader()
    found = grown_mib(agent.read(raw(owned(n, name=str(n) + "x" * LONG))) for n in range(40))
    assert found < 1, "the API server takes an owner's name of 1.4 MB"


@pytest.mark.parametrize(("field", "most"), [("name", 253), ("kind", 63), ("uid", 64), ("apiVersion", 317)], ids=str)
def test_an_owner_is_unknown_if_it_is_named_by_more_than_the_api_has_names_for(field: str, most: int) -> None:
    assert reader().read(raw(owned(0, **{field: "x" * most})))[0].owner is not None
    assert reader().read(raw(owned(0, **{field: "x" * (most + 1)})))[0].owner is None
    assert reader().read(raw(owned(0, **{field: "é" * (most // 2 + 1)})))[0].owner is None, "bytes count"


def test_thousands_of_owners_with_names_of_their_own_are_not_all_remembered() -> None:
    template = raw(owned(name="NAME", apiVersion="GROUP/v1"))
    agent = reader()

    def churn() -> Iterator[object]:
        for n in range(8000):
            name = f"{n}".ljust(253, "x").encode()
            yield agent.read(template.replace(b"NAME", name).replace(b"GROUP", name))

    assert grown_mib(churn()) < 5


def test_the_names_of_nodes_that_owners_of_pods_invent_are_not_all_remembered() -> None:
    """Whoever makes a pod may name any node."""
    template = raw(pod("a", container(mem=1), uid="u", node="NODE"))
    agent = reader()

    def churn() -> Iterator[object]:
        for n in range(15_000):
            yield agent.read(template.replace(b"NODE", f"{n}".ljust(253, "x").encode()))

    assert grown_mib(churn()) < 4


def test_the_names_of_resources_that_owners_of_pods_invent_are_not_all_remembered() -> None:
    limits = {f"RESOURCE-{n}.{'x' * 230}/a": "1" for n in range(100)}
    template = raw(pod("a", container(mem=1, limits=limits), uid="u", node="n"))
    agent = reader()

    def churn() -> Iterator[object]:
        for n in range(400):
            yield agent.read(template.replace(b"RESOURCE", f"{n}".encode()))

    assert grown_mib(churn()) < 10


def test_a_pool_of_equal_values_has_a_bound_in_bytes() -> None:
    pool: Shared[str, str] = Shared(10_000, most_bytes=5000)
    for n in range(1000):
        text = f"{n}".ljust(1000, "x")
        assert pool.one(text, text.upper) == text.upper()
        assert len(pool) * weight(text) <= 5000
    assert 0 < len(pool) <= 4


def test_a_text_weighs_what_it_takes() -> None:
    assert weight("x" * 100) - weight("") == 100
    assert weight("é" * 100) - weight("") == 400
    assert weight(("a", ("b", 1))) > 2 * weight("a")


@pytest.mark.parametrize("text", ["", "a", "x" * 253, "é" * 126])
def test_a_text_within_its_bound_is_kept(text: str) -> None:
    assert bounded(text, LONGEST_NAME) == text


@pytest.mark.parametrize("text", [None, "x" * 254, "é" * 127, "🙂" * 64, "\ud800" * 100])
def test_a_text_beyond_its_bound_counts_as_missing(text: str | None) -> None:
    assert bounded(text, LONGEST_NAME) == ""


def test_an_annotation_is_bounded_by_the_memory_that_it_takes() -> None:
    """One character outside ASCII makes each of a text take four bytes."""
    body = pod("a", container(mem=1), annotations={USE_MODEL: "x" * 4095 + "🙂", AVOID_MODEL: "ä" * 1024}, uid="u")
    found, _ = reader().read(raw(body))
    assert found.annotations == {USE_MODEL: TOO_LONG, AVOID_MODEL: "ä" * 1024}


def test_of_a_container_more_profiles_than_there_are_do_not_count() -> None:
    limits = {f"{n}.com/mig-1g.5gb": "1" for n in range(1000)}
    (found,) = reader().read(raw(pod("a", container(limits=limits), uid="u", node="n")))[0].containers
    assert len(found.limits) == 32


def test_what_a_pod_requests_of_resources_with_long_names_is_not_known() -> None:
    """Of 2,000 waiting pods with 128 resources of their own that would be 100 MiB."""
    limits = {"cpu": "2", **{f"{n}.{'x' * 240}/a": "1" for n in range(100)}}
    found, _ = reader().read(raw(pod("a", container(mem=1, limits=limits), uid="u")))
    assert found.requests is None
    assert found.amounts.cpu_milli == 2000, "CPU and memory count all the same"


def test_of_ten_thousand_claims_of_a_pod_a_few_are_kept() -> None:
    body = pod("a", container(mem=1), uid="u", node="n")
    names = [f"c{n}" for n in range(10_000)]
    body["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": f"{name}-{'x' * 200}"} for name in names]
    body["spec"]["containers"][0]["resources"]["claims"] = [{"name": name} for name in names]
    (found,) = reader().read(raw(body))[0].claims.values()
    assert len(found) == 128


def test_what_a_status_says_at_length_is_not_kept() -> None:
    ended = {"exitCode": 1, "reason": "x" * LONG, "finishedAt": "x" * LONG}
    body = pod("a", container("main", mem=1), uid="u", node="n")
    body["status"] = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    found, _ = reader().read(raw(body))
    assert (found.ends["main"].reason, found.ends["main"].at) == ("", "")
    body["status"] = {
        "containerStatuses": [{"name": "main", "containerID": "containerd://" + "x" * LONG, "state": {"running": {}}}]
    }
    assert reader().read(raw(body))[0].container_ids == {}


def test_of_a_node_what_its_kubelet_says_at_length_is_not_kept() -> None:
    body = node("n")
    body["metadata"]["uid"] = "u"
    body["status"] = {
        "conditions": [{"type": "GPUHealthy", "status": "x" * LONG}],
        "addresses": [{"type": "InternalIP", "address": "x" * LONG}],
        "nodeInfo": {"kubeletVersion": "x" * LONG, "containerRuntimeVersion": "x" * LONG},
    }
    found = NodeReader([GPU_MEM]).read(raw(body))
    assert (found.gpu_condition, found.address, found.kubelet_version, found.runtime) == ("", "", "", "")


# --- What the page keeps ----------------------------------------------------------------------------------------------


def on_page(body: Any) -> FollowedPod:
    body["metadata"].setdefault("uid", "u")
    found = FollowedCluster(RESOURCES).read_pod(msgspec.Raw(raw(body)))
    assert found is not None
    return found


def test_of_a_waiting_pod_the_page_keeps_no_long_texts_of_strangers() -> None:
    body = owned(name="x" * LONG)
    del body["spec"]["nodeName"]
    body["spec"] |= {"schedulerName": "x" * LONG, "schedulingGates": [{"name": "x" * LONG}]}
    body["spec"]["containers"][0]["resources"]["limits"]["x" * LONG] = "1"
    body["spec"]["resourceClaims"] = [{"name": "x" * LONG, "resourceClaimName": "x" * LONG}]
    condition = {"type": "PodScheduled", "status": "False", "reason": "x" * LONG, "message": "m" * LONG}
    body["status"] = {"reason": "x" * LONG, "message": "m" * LONG, "conditions": [condition]}
    status = on_page(body).status
    assert status is not None
    assert len(repr(status)) < 10_000
    assert status.condition.startswith("mmm"), "of a sentence the beginning is kept"


def test_of_a_waiting_pod_with_one_long_condition_on_nodes_the_page_keeps_no_terms() -> None:
    body = pod("a", container(mem=1))
    expression = {"key": "zone", "operator": "In", "values": ["x" * LONG]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    body["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    status = on_page(body).status
    assert status is not None
    assert len(repr(status)) < 10_000
    assert [why.partition(" have ")[0] for why in status.ignored] == ["its tolerations, nodeSelector and node affinity"]


def test_the_page_keeps_nothing_of_what_a_claim_says_to_its_driver() -> None:
    """There may be 32 times 10 KiB in each."""
    body = claim_json("a", whole_json(0))
    configuration = {"driver": DRIVER, "parameters": {"kind": "x" * 10_000}}
    body["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", "opaque": configuration}]
    claim = read_claim(raw(body))
    assert claim.parameters
    assert read_shown_claim(msgspec.Raw(raw(body))) == replace(claim, parameters=())


def test_more_containers_than_any_node_takes_are_not_kept() -> None:
    containers = [container(f"c{n}", mem=1) for n in range(8000)]
    found, _ = reader().read(raw(pod("a", *containers, uid="u")))
    assert len(found.containers) == MOST_CONTAINERS + 1


OWNER = Owner("Job", "a", "o", "batch/v1")


def test_a_usual_owner_is_kept() -> None:
    assert reader().read(raw(owned()))[0].owner == OWNER
