"""The cluster for display, change by change, and read once."""

import json
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.features.claims.claim_objects import read_claim
from gpu_device_plugin.features.claims.contract import Claim
from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.model.contract.keys import ALLOCATION, GPU_POLICY, INSTANCES, NODE_GPUS, NODE_USE
from gpu_device_plugin.model.contract.nodegpus import NodeGpus, write_node_gpus
from gpu_device_plugin.programs.inspect.overview import gpu_pods
from gpu_device_plugin.report.followed_cluster import FollowedCluster, FollowedNode, FollowedPod, cluster
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS
from gpu_device_plugin.scheduler.rules.usage import Usage
from gpu_device_plugin.settings.common import ResourceSettings
from tests.builders import container, node, pod
from tests.claim_values import claim_json, part_json, serving, whole_json
from tests.reports import part, written
from tests.views import WHOLE, listed_instance

RESOURCES = ResourceSettings().offered
NOW_S = 1_800_000_000.0


class World:
    """A followed cluster, and the same objects as they are."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.changes = 0
        self.followed = FollowedCluster(RESOURCES, kind=REPORT.kind, wall_s=lambda: self.now_s, on_change=self._count)
        self.versions = 0

    def _count(self) -> None:
        self.changes += 1

    def raw(self, body: Any) -> msgspec.Raw:
        self.versions += 1
        body["metadata"].setdefault("uid", f"uid-{body['metadata']['name']}")
        body["metadata"]["resourceVersion"] = str(self.versions)
        return msgspec.Raw(json.dumps(body).encode())

    def node(self, body: Any) -> FollowedNode:
        return self.followed.read_node(self.raw(body))

    def pod(self, body: Any) -> FollowedPod:
        read = self.followed.read_pod(self.raw(body))
        assert read is not None
        return read

    def put(self, *bodies: Any) -> None:
        for body in bodies:
            if body["kind"] == "Node":
                self.followed.nodes.put(self.node(body))
            elif body["kind"] == "ResourceClaim":
                self.followed.more.put(self.claim(body))
            else:
                self.followed.pods.put(self.pod(body))

    def claim(self, body: Any) -> Claim:
        return read_claim(self.raw(body))

    def held(self, name: str) -> list[tuple[str, Usage]]:
        shown = self.followed.view(name)
        assert shown is not None
        return [(str(each), each.usage) for each in shown.pods]


@pytest.fixture
def world() -> World:
    return World()


def bound(name: str, shares: int, at: str = "gpu-1", position: int = 0, **more: Any) -> Any:
    annotations = {ALLOCATION: json.dumps({"0": {str(position): shares}})}
    return pod(name, container(mem=shares), node=at, annotations=annotations, **more)


def names(pods: Iterable[FollowedPod]) -> list[str]:
    return [each.pod.name for each in pods]


def test_it_shows_the_nodes_that_share_gpus_with_the_pods_that_hold_them(world: World) -> None:
    world.put(node("gpu-1", mem=30, count=2), node("gpu-2", mem=15, count=1), node("cpu-1"))
    world.put(bound("a", 5), bound("b", 15, position=1), bound("elsewhere", 3, at="gpu-2"))
    world.put(bound("ended", 3, phase="Succeeded"))
    assert [view.name for view in world.followed.views] == ["gpu-1", "gpu-2"]
    assert world.held("gpu-1") == [("default/a", Usage(((0, 5),))), ("default/b", Usage(((1, 15),)))]
    assert (world.followed.view("cpu-1"), world.followed.view("nowhere")) == (None, None)


def test_only_nodes_that_changed_are_named(world: World) -> None:
    world.put(node("gpu-1", mem=15, count=1), node("gpu-2", mem=15, count=1), bound("a", 5))
    assert world.followed.changed() == ["gpu-1", "gpu-2"]
    assert world.followed.changed() == []
    world.put(bound("b", 5, at="gpu-2"))
    assert world.followed.changed() == ["gpu-2"]
    world.put(node("gpu-1", mem=15, count=1))
    assert world.followed.changed() == []
    world.put(node("gpu-1", mem=15, count=1, ready=False))
    assert world.followed.changed() == ["gpu-1"]
    world.followed.nodes.remove(world.node(node("gpu-2", mem=15, count=1)))
    assert world.followed.changed() == ["gpu-2"]
    assert world.followed.view("gpu-2") is None


def test_a_deleted_pod_is_marked_and_then_gone(world: World) -> None:
    body = bound("a", 5)
    world.put(node("gpu-1", mem=15, count=1), body)
    world.followed.changed()
    body["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.put(body)
    assert world.followed.changed() == ["gpu-1"]
    shown = world.followed.view("gpu-1")
    assert shown is not None
    assert [each.terminating for each in shown.pods] == [True]
    world.followed.pods.remove(world.pod(body))
    assert world.followed.changed() == ["gpu-1"]
    shown = world.followed.view("gpu-1")
    assert shown is not None
    assert shown.pods == ()


def test_a_pod_whose_deletion_only_a_list_shows_is_marked_too(world: World) -> None:
    """The watch that would have shown it had broken off."""
    body, other = bound("a", 5), bound("b", 5, at="gpu-2")
    world.put(node("gpu-1", mem=15, count=1), node("gpu-2", mem=15, count=1), body, other)
    world.followed.changed()
    body["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.followed.pods.replace([world.pod(body), world.pod(other)])
    assert world.followed.changed() == ["gpu-1"]


def test_a_waiting_pod_is_read_by_the_reader_that_is_there(world: World) -> None:
    """To make one takes longer than to read a pod, and every Event of the scheduler's changes its pod."""
    made = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event == "call" and frame.f_code is PodReader.__init__.__code__

    sys.setprofile(count)
    try:
        read = world.pod(pod("waiting", container(mem=5)))
    finally:
        sys.setprofile(None)
    assert read.status is not None
    assert made == 0


def test_pods_wait_until_they_have_a_node(world: World) -> None:
    late = pod("late", container(mem=5), created="2026-11-22T10:00:00Z")
    early = pod("early", container(count=1), created="2026-11-22T09:00:00Z")
    world.put(late, early)
    assert names(world.followed.waiting) == ["early", "late"]
    assert all(each.status is not None for each in world.followed.waiting)
    version = world.followed.waiting_version
    world.put(bound("late", 5))
    assert names(world.followed.waiting) == ["early"]
    assert world.followed.waiting_version > version
    world.followed.pods.remove(world.pod(early))
    assert names(world.followed.waiting) == []


def test_pods_that_ask_for_no_gpu_are_not_kept(world: World) -> None:
    assert world.followed.read_pod(world.raw(pod("cpu"))) is None
    named = pod("named", container(), annotations={"note": '"aliyun.com/gpu-mem"'})
    assert world.followed.read_pod(world.raw(named)) is None


def test_a_list_replaces_what_was_known(world: World) -> None:
    world.put(node("gpu-1", mem=15, count=1), node("gpu-2", mem=15, count=1), bound("a", 5), pod("w", container(mem=5)))
    world.followed.nodes.replace([world.node(node("gpu-1", mem=15, count=1))])
    world.followed.pods.replace([world.pod(bound("b", 3)), world.pod(pod("v", container(mem=5)))])
    assert list(world.followed.names) == ["gpu-1"]
    shown = world.followed.view("gpu-1")
    assert shown is not None
    assert [each.name for each in shown.pods] == ["b"]
    assert names(world.followed.waiting) == ["v"]


def test_every_change_is_announced(world: World) -> None:
    body = node("gpu-1", mem=15, count=1)
    world.put(body)
    assert world.changes == 1
    world.put(body)
    assert world.changes == 1
    world.put(pod("w", container(mem=5)))
    assert world.changes == 2
    world.followed.nodes.remove(world.node(body))
    world.followed.nodes.remove(world.node(body))
    assert world.changes == 3


def test_figures_age_until_they_are_stale(world: World) -> None:
    annotations = written(part("web"), age_s=0)
    read = json.loads(annotations[NODE_USE])
    annotations[NODE_USE] = json.dumps(read | {"at": "2027-01-15T07:59:50Z"})
    world.put(node("gpu-1", mem=15, count=1, annotations=annotations))
    before_s = world.now_s
    world.now_s += 100
    shown = world.followed.view("gpu-1")
    assert shown is not None
    assert shown.report.use_age_s == pytest.approx(110)
    assert world.followed.went_stale(before_s) == []
    world.now_s += 800
    assert world.followed.went_stale(before_s) == ["gpu-1"]
    assert world.followed.went_stale(world.now_s) == []
    shown = world.followed.view("gpu-1")
    assert shown is not None
    assert shown.report.stale


def test_annotations_that_cannot_be_parsed_are_told(world: World) -> None:
    world.put(node("gpu-1", mem=15, count=1, annotations={NODE_USE: "nonsense"}))
    (problem,) = world.followed.problems()
    assert problem.startswith("node gpu-1: ")
    assert NODE_USE in problem


def test_taints_and_labels_of_nodes_are_known(world: World) -> None:
    body = node("gpu-1", mem=15, count=1, labels={"zone": "a"})
    body["spec"]["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
    world.put(body)
    shown = world.followed.view("gpu-1")
    assert shown is not None
    assert (shown.record.labels["zone"], [taint.key for taint in shown.record.taints]) == ("a", ["gpu"])


# --- ResourceClaims ---------------------------------------------------------------------------------------------------


def serving_node(name: str) -> Any:
    return node(name, annotations={NODE_GPUS: write_node_gpus(serving(8, 8))})


def test_claims_are_followed_from_one_node_to_another(world: World) -> None:
    """4 of GPU 0 on n1; then the same claim, made anew, has GPU 1 of n2."""
    world.put(serving_node("n1"), serving_node("n2"), claim_json("c", part_json(0, "4Gi"), pods=("web",)))
    assert world.held("n1") == [("default/web", Usage(((0, 4),)))]
    assert world.followed.changed() == ["n1", "n2"]
    world.put(claim_json("c", whole_json(1, "n2"), pods=("web",)))
    assert (world.held("n1"), world.held("n2")) == ([], [("default/web", Usage(whole=(1,)))])
    assert world.followed.changed() == ["n1", "n2"]
    assert [str(claim) for claim in world.followed.more_of("default")] == ["default/c"]
    assert world.followed.more_of("other") == []


def test_a_claim_that_stays_as_it_was_changes_nothing(world: World) -> None:
    world.put(serving_node("n1"), claim_json("c", part_json(0, "4Gi")))
    world.followed.changed()
    before = world.changes
    world.put(claim_json("c", part_json(0, "4Gi")))
    assert (world.followed.changed(), world.changes) == ([], before)
    world.put(claim_json("c", part_json(0, "4Gi"), pods=("web",)))
    assert (world.followed.changed(), world.changes) == (["n1"], before + 1)


def test_claims_that_are_gone_take_nothing(world: World) -> None:
    world.put(serving_node("n1"), claim_json("a", part_json(0, "4Gi")), claim_json("b", part_json(1, "2Gi")))
    world.followed.more.remove(world.claim(claim_json("a", part_json(0, "4Gi"))))
    assert world.held("n1") == [("default/claim:b", Usage(((1, 2),)))]
    world.followed.changed()
    world.followed.more.replace([world.claim(claim_json("c", part_json(0, "1Gi")))])
    assert world.held("n1") == [("default/claim:c", Usage(((0, 1),)))]
    assert world.followed.changed() == ["n1"]
    world.followed.more.remove(world.claim(claim_json("unknown")))


def serves(world: World) -> bool:
    return world.followed.needs_more


def test_claims_matter_while_a_node_serves_them(world: World) -> None:
    assert not serves(world)
    world.put(serving_node("n1"))
    assert serves(world)
    world.put(node("n1", mem=30, count=2))
    assert not serves(world)
    world.put(serving_node("n1"))
    world.followed.nodes.remove(world.node(serving_node("n1")))
    assert not serves(world)


ONE_OF_MIG = write_node_gpus(
    NodeGpus(instances=(listed_instance(0, 0, resource=WHOLE), listed_instance(1, 1, resource=WHOLE)), share_mib=1024)
)


def with_mig(name: str, *uuids: str, **more: Any) -> Any:
    annotations = {INSTANCES: json.dumps({"main": list(uuids)})} if uuids else {}
    return pod(name, container(limits={WHOLE: "1"}), annotations=annotations, **more)


def used(world: World, name: str = "gpu-1") -> list[tuple[str, list[str]]]:
    shown = world.followed.view(name)
    assert shown is not None
    return [
        (str(each), [gpu.uuid for gpu in gpus]) for offer in shown.instances() for each, gpus in offer.by_pod.items()
    ]


def test_a_node_that_gives_only_instances_is_shown_with_the_pods_that_have_them(world: World) -> None:
    world.put(node("gpu-1", annotations={NODE_GPUS: ONE_OF_MIG}))
    world.followed.changed()
    assert list(world.followed.names) == ["gpu-1"]
    world.put(with_mig("a", node="gpu-1"), with_mig("b", "MIG-1", node="gpu-1"))
    assert used(world) == [("default/a", []), ("default/b", ["MIG-1"])]
    assert world.followed.changed() == ["gpu-1"]
    world.put(with_mig("a", "MIG-0", node="gpu-1"))
    assert (world.followed.changed(), used(world)[0]) == (["gpu-1"], ("default/a", ["MIG-0"]))
    world.put(with_mig("a", "MIG-0", node="gpu-1"))
    assert world.followed.changed() == []
    world.put(with_mig("a", "MIG-0", node="gpu-1", phase="Succeeded"))
    world.followed.pods.remove(world.pod(with_mig("b", "MIG-1", node="gpu-1")))
    assert (world.followed.changed(), used(world)) == (["gpu-1"], [])
    world.put(with_mig("a", "MIG-0", node="gpu-1"), with_mig("b", "MIG-1", node="gpu-1"))
    world.followed.pods.replace([world.pod(with_mig("b", "MIG-1", node="gpu-1"))])
    assert used(world) == [("default/b", ["MIG-1"])]


def test_a_cluster_that_is_read_once_tells_what_could_not_be_read(world: World) -> None:
    nodes = [world.raw(node("gpu-1", annotations={NODE_GPUS: ONE_OF_MIG})), msgspec.Raw(b'{"metadata": {}}')]
    pods = [world.raw(each) for each in (with_mig("a", "MIG-0", node="gpu-1"), with_mig("w"))]
    state, warnings = cluster(nodes, pods, RESOURCES, kind=REPORT.kind)
    (view,) = state.views
    assert [(str(each), each.held) for each in view.instance_pods] == [("default/a", frozenset({"MIG-0"}))]
    assert [each.name for each in state.waiting_pods] == ["w"]
    assert [warning.partition(":")[0] for warning in warnings] == ["a node is left out"]
    assert [(each.name, usage) for each, usage in gpu_pods(pods, RESOURCES)] == [("a", Usage())]


def test_of_what_an_owner_writes_into_a_waiting_pod_a_bounded_part_is_kept(world: World) -> None:
    """A pod may have some ten thousand tolerations and labels to select; thousands of pods wait."""
    body = pod("a", container(mem=1), annotations={GPU_POLICY: "spread"} | {f"a.com/{n}": "v" for n in range(1000)})
    body["spec"] |= {
        "tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(40)],
        "nodeSelector": {f"k{n}": "v" for n in range(60)},
        "schedulingGates": [{"name": f"g{n}"} for n in range(1000)],
    }
    body["spec"]["containers"][0]["resources"]["limits"] |= {f"a.com/{n}": "1" for n in range(1000)}
    status = world.pod(body).status
    assert status is not None
    assert (len(status.terms.tolerations), len(status.terms.selector), status.ignored) == (40, 60, ())
    assert (len(status.gates), len(status.limits), len(status.annotations)) == (100, 100, 100)
    assert GPU_POLICY not in status.annotations

    expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    body["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    status = world.pod(body).status
    assert status is not None
    assert status.terms == NO_TERMS
    (why,) = status.ignored
    assert why.startswith("its tolerations, nodeSelector and node affinity have more than 100 entries together; ")
