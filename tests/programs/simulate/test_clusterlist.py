"""What kubectl prints of a cluster becomes nodes, a queue, and the pods that run."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.kubernetes.objects.decoding import UnreadableObjectError
from gpu_device_plugin.model.contract.keys import NODE_GPUS
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus, write_node_gpus
from gpu_device_plugin.programs.simulate.clusterlist import read_cluster
from gpu_device_plugin.programs.simulate.model import Inputs
from gpu_device_plugin.settings.common import ResourceSettings
from tests.builders import container, node, pod

PLACED = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}


def two_gpus(name: str, **more: Any) -> Mapping[str, Any]:
    found = node(name, mem=20, count=2, **more)
    found["metadata"]["uid"] = name
    return found


def asking(name: str, mem: int | None = None, *, cpu: str = "", **more: Any) -> Mapping[str, Any]:
    each = container(mem=mem)
    if cpu:
        each.setdefault("resources", {})["requests"] = {"cpu": cpu}
    return pod(name, each, uid=name, **more)


def listed(*objects: Mapping[str, Any], from_empty: bool = False) -> Inputs:
    text = json.dumps({"kind": "List", "items": objects}).encode()
    return read_cluster(text, ResourceSettings().offered, from_empty=from_empty)


def coming(found: Inputs) -> tuple[tuple[str, PodKind], ...]:
    """Return the pods that come, each with the name that people know it by."""
    workload = found.workload
    return tuple((workload.name(pod), workload.kinds[pod]) for pod in workload.pods)


def test_running_pods_take_gpus_and_those_without_gpus_take_cpu() -> None:
    """20 shares on two GPUs are 10 each, of which 7 are taken of the second; 16 CPUs less 2 and 3."""
    objects = (
        two_gpus("a"),
        asking("web", 7, cpu="2", node="a", phase="Running", annotations=PLACED),
        asking("log", cpu="3", node="a", phase="Running"),
        asking("done", 7, node="a", phase="Succeeded", annotations=PLACED),
    )
    cleared = listed(*objects, from_empty=True)
    (now,), (empty,) = listed(*objects).nodes, cleared.nodes
    assert (now.left.frees, now.left.cpu_milli) == ((10, 3), 11_000)
    assert (empty.left.frees, empty.left.cpu_milli) == ((10, 10), 13_000)
    assert coming(cleared) == (("default/web", PodKind(7, 1, 2000)),)


def test_waiting_pods_queue_by_age() -> None:
    found = listed(
        two_gpus("a"),
        asking("young", 4, created="2026-11-02T00:00:00Z"),
        asking("old", 5, created="2026-11-01T00:00:00Z"),
        asking("without a GPU", created="2026-11-01T00:00:00Z"),
    )
    assert coming(found) == (("default/old", PodKind(5, 1)), ("default/young", PodKind(4, 1)))


def with_list(name: str, gpus: NodeGpus) -> Mapping[str, Any]:
    """Return a node whose agent lists these GPUs."""
    return two_gpus(name, annotations={NODE_GPUS: write_node_gpus(gpus)})


def test_instances_of_a_cluster_are_read_from_the_nodes_list() -> None:
    places = [ListedInstance("GPU-b", 1, n, "1g.10gb", n + 7) for n in range(2)]
    instances = tuple(
        ListedGpu(n + 1, 9, f"MIG-{n}", "H100 MIG 1g.10gb", instance=each) for n, each in enumerate(places)
    )
    shared = NodeGpus((ListedGpu(0, 80, "GPU-a", "H100"), *instances), share_mib=1024)
    found = listed(with_list("a", shared), asking("web", 7, node="a", phase="Running", annotations=PLACED))
    (now,) = found.nodes
    assert (now.shape.sizes, now.shape.cards, now.left.frees) == ((80, 9, 9), (None, 1, 1), (80, 2, 9))


def test_nodes_that_take_no_pods_or_give_their_instances_whole_are_left_out_and_named() -> None:
    cordoned = {**two_gpus("c"), "spec": {"unschedulable": True}}
    whole = ListedInstance("GPU-b", 1, 0, "1g.10gb", 7, "aliyun.com/mig-1g.10gb")
    sliced = with_list("d", NodeGpus(share_mib=1024, instances=(ListedGpu(0, 9, instance=whole),)))
    found = listed(two_gpus("a"), two_gpus("b", ready=False), cordoned, sliced)
    assert [each.name for each in found.nodes] == ["a"]
    assert found.notes == (
        "node b is left out: it is not ready",
        "node c is left out: it is cordoned",
        "node d is left out: its MIG instances are allocated whole, by the resources of their profiles",
    )


def test_a_pod_that_no_node_can_ever_take_is_left_out_and_named() -> None:
    both = container(limits={"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-count": "1"})
    found = listed(two_gpus("a"), pod("odd", both, uid="odd"))
    assert coming(found) == ()
    (note,) = found.notes
    assert note.startswith("pod default/odd is left out: container 'main' requests")


def test_a_request_that_no_machine_meets_stays_within_64_bits() -> None:
    ((_, kind),) = coming(listed(two_gpus("a"), asking("huge", 4, cpu="9E")))
    assert 10**9 < kind.cpu_milli < 2**62


def test_an_object_that_cannot_be_read_does_not_hide_the_others() -> None:
    found = listed({"kind": "Pod", "metadata": 3}, {"kind": "Node", "metadata": {}}, two_gpus("a"))
    assert len(found.nodes) == 1
    assert [note.partition(":")[0] for note in found.notes] == ["an object is left out"] * 2


# --- Objects that make pods -------------------------------------------------------------------------------------------


def workload(kind: str, name: str, each: Mapping[str, Any], *, uid: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop", **({"uid": uid} if uid else {})}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [each]}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {**spec, "template": template}}


@pytest.mark.parametrize(
    ("kind", "spec", "pods"),
    [
        ("Deployment", {"replicas": 3}, 3),
        ("Deployment", {}, 1),
        ("Deployment", {"replicas": 0}, 0),
        ("StatefulSet", {"replicas": 2}, 2),
        ("ReplicaSet", {"replicas": 2}, 2),
        ("Job", {}, 1),
        ("Job", {"parallelism": 4}, 4),
        ("Job", {"parallelism": 4, "completions": 3}, 3),
    ],
)
def test_an_object_makes_as_many_pods_as_run_at_once(kind: str, spec: Mapping[str, Any], pods: int) -> None:
    found = listed(two_gpus("a"), workload(kind, "web", container(mem=4), **spec))
    assert coming(found) == ((f"shop/{kind} web", PodKind(4, 1)),) * pods
    assert found.notes == ()


def test_a_cron_job_makes_the_pods_of_one_job() -> None:
    job = workload("Job", "nightly", container(mem=4), parallelism=2)
    cron = {"kind": "CronJob", "metadata": {"name": "nightly"}, "spec": {"jobTemplate": {"spec": job["spec"]}}}
    assert coming(listed(cron)) == (("CronJob nightly", PodKind(4, 1)),) * 2


def test_a_cron_job_that_is_none_is_told_of_by_its_name() -> None:
    template = {"spec": {"parallelism": "two"}}
    cron = {"kind": "CronJob", "metadata": {"name": "nightly"}, "spec": {"jobTemplate": template}}
    (note,) = listed(cron).notes
    assert note.startswith("CronJob nightly is left out: not a CronJob: Expected `int | null`")


def test_a_pod_of_a_manifest_waits_under_its_own_name() -> None:
    """It has no uid; a node that its author names is one of a cluster that is not simulated."""
    wanted = asking("train", 4, node="b")
    del wanted["metadata"]["uid"]
    assert coming(listed(two_gpus("a"), wanted)) == (("default/train", PodKind(4, 1)),)


def test_pods_that_a_cluster_has_do_not_come_once_more_with_the_object_that_made_them() -> None:
    """As kubectl get nodes,deployments,replicasets,pods prints it."""
    deployment = workload("Deployment", "web", container(mem=4), uid="d", replicas=1)
    replicas = workload("ReplicaSet", "web-5d8", container(mem=4), uid="r", replicas=1)
    replicas["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "web", "controller": True}]
    one = asking("web-5d8-x2", 4, namespace="shop", labels={"pod-template-hash": "5d8"})
    one["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-5d8", "controller": True}]
    assert coming(listed(two_gpus("a"), deployment, replicas)) == (("shop/Deployment web", PodKind(4, 1)),)
    found = listed(two_gpus("a"), deployment, replicas, one)
    assert coming(found) == (("shop/web", PodKind(4, 1)),)
    assert found.notes == ("shop/Deployment web is left out: its pods are in the list",)


def test_the_parts_of_a_pod_have_its_name() -> None:
    two = {"kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container(mem=4), container(mem=3)]}}
    assert coming(listed(two)) == (("x, part 1", PodKind(4, 1)), ("x, part 2", PodKind(3, 1)))


def test_objects_without_pods_are_named_and_broken_ones_too() -> None:
    service = {"kind": "Service", "metadata": {"name": "web"}}
    broken = {"kind": "Job", "metadata": {"name": "odd"}, "spec": {"parallelism": 1}}
    negative = workload("Deployment", "less", container(mem=4), replicas=-1)
    notes = listed(two_gpus("a"), service, broken, negative).notes
    assert notes == (
        "Job odd is left out: not a Job: it has no template with a spec",
        "shop/Deployment less is left out: not a Deployment: it asks for -1 pods",
        "left out, as no pods are read from these kinds: 1 Service",
    )


def test_an_object_alone_and_a_typed_list_are_lists_too() -> None:
    """kubectl get deployment web -o json; and the API's own lists, whose items name no kind."""
    one = workload("Deployment", "web", container(mem=4))
    alone = read_cluster(json.dumps(one).encode(), ResourceSettings().offered)
    bare = {key: value for key, value in one.items() if key != "kind"}
    typed = json.dumps({"kind": "DeploymentList", "items": [bare]}).encode()
    assert coming(alone) == coming(read_cluster(typed, ResourceSettings().offered)) != ()


# --- Before an agent of ours runs -------------------------------------------------------------------------------------


def of_nvidia(name: str, offered: int = 2, **labels: Any) -> Mapping[str, Any]:
    """A node with NVIDIA's device plugin and GPU feature discovery."""
    found = node(name, labels={f"nvidia.com/gpu.{key}": value for key, value in labels.items()})
    found["metadata"]["uid"] = name
    for amounts in (found["status"]["capacity"], found["status"]["allocatable"]):
        amounts["nvidia.com/gpu"] = str(offered)
    return found


def wanting_gpus(name: str, number: int, **more: Any) -> Mapping[str, Any]:
    return pod(name, container(limits={"nvidia.com/gpu": str(number)}), uid=name, **more)


T4: Mapping[str, Any] = {"product": "Tesla-T4", "memory": "15360", "count": "2"}


def test_labels_of_nvidia_say_which_gpus_a_node_has_before_an_agent_of_ours_does() -> None:
    """A T4 has 15,360 MiB, of which its driver keeps 449: 14 shares of 1 GiB."""
    found = listed(of_nvidia("a", **T4))
    assert [(each.shape.sizes, each.shape.models) for each in found.nodes] == [((14, 14), ("Tesla T4",) * 2)]
    assert found.nodes[0].left.frees == (14, 14)
    assert "shares of 1 GiB, and nvidia.com/gpu of a pod counts as whole GPUs" in found.notes[0]


def test_pods_of_nvidias_plugin_hold_whole_gpus_or_wait_for_them() -> None:
    objects = (
        of_nvidia("a", **T4),
        wanting_gpus("runs", 1, node="a", phase="Running"),
        wanting_gpus("ended", 1, node="a", phase="Succeeded"),
        wanting_gpus("waits", 2),
    )
    found, cleared = listed(*objects), listed(*objects, from_empty=True)
    assert [each.left.frees for each in found.nodes] == [(0, 14)]
    assert [each.left.frees for each in cleared.nodes] == [(14, 14)]
    assert coming(found) == (("default/waits", PodKind(0, 2)),)
    assert coming(cleared) == (("default/runs", PodKind(0, 1)), *coming(found))


def test_gpus_that_are_handed_out_several_times_are_counted_once() -> None:
    """Time-slicing: 2 GPUs of 14 shares are 8 of the resource, 3 shares each; 5 of these are on 2 GPUs at least."""
    sliced = {**T4, "product": "Tesla-T4-SHARED", "replicas": "4"}
    found = listed(of_nvidia("a", 8, **sliced), wanting_gpus("runs", 5, node="a", phase="Running"))
    assert [(each.shape.models[0], each.left.frees) for each in found.nodes] == [("Tesla T4", (0, 11))]
    few = listed(of_nvidia("a", 8, **sliced), wanting_gpus("runs", 3, node="a", phase="Running"))
    assert [each.left.frees for each in few.nodes] == [(5, 14)]
    full = listed(of_nvidia("a", 8, **sliced), wanting_gpus("runs", 9, node="a", phase="Running"))
    assert [each.left.frees for each in full.nodes] == [(0, 0)]
    uncounted = listed(of_nvidia("a", 8, **{**sliced, "count": ""}))
    assert [each.shape.sizes for each in uncounted.nodes] == [(14, 14)]


def test_a_replica_is_no_whole_gpu() -> None:
    """Of 14 shares in four a pod has 3. It is as if each replica were a pod, and the first has all CPU."""
    sliced = of_nvidia("a", 8, **{**T4, "product": "Tesla-T4-SHARED", "replicas": "4"})
    runs = wanting_gpus("runs", 1, node="a", phase="Running")
    found = listed(sliced, runs, wanting_gpus("waits", 2), from_empty=True)
    assert coming(found) == (("default/runs and 2 more", PodKind(3, 1)),) * 3
    assert [note for note in found.notes if "several times" in note] == [
        (
            "the GPUs of node a are handed out several times: a pod counts with the GPU's memory divided by its "
            "replicas, which time-slicing does not enforce"
        )
    ]
    beside = listed(sliced, of_nvidia("b", **T4), runs, wanting_gpus("waits", 2), from_empty=True)
    assert coming(beside) == (("default/runs", PodKind(3, 1)), ("default/waits", PodKind(0, 2)))


def test_replicas_by_another_name_are_read_too() -> None:
    """With renameByDefault. A name of the administrator's is told."""
    sliced = of_nvidia("a", 0, **{**T4, "product": "Tesla-T4-SHARED", "replicas": "4"})
    sliced["status"]["capacity"] |= {"nvidia.com/gpu.shared": "8"}
    wanting = pod("waits", container(limits={"nvidia.com/gpu.shared": "1"}), uid="waits")
    found = listed(sliced, wanting)
    assert [each.shape.sizes for each in found.nodes] == [(14, 14)]
    assert coming(found) == (("default/waits", PodKind(3, 1)),)
    renamed = of_nvidia("b", 0, **T4)
    renamed["status"]["allocatable"] = {**renamed["status"]["capacity"], "nvidia.com/gpu-t4": "2"}
    assert listed(renamed).notes == (
        (
            "node b is left out: its GPUs are offered as nvidia.com/gpu-t4, and nvidia.com/gpu and "
            "nvidia.com/gpu.shared are read; name it in words"
        ),
    )


def hami(name: str, mib: int, gpus: int = 1, **more: Any) -> Mapping[str, Any]:
    limits = {"nvidia.com/gpu": f"{gpus}", "nvidia.com/gpumem": f"{mib}", "nvidia.com/gpucores": "30"}
    return pod(name, container(limits=limits), uid=name, **more)


def test_slices_of_hamis_have_the_memory_that_they_ask_for() -> None:
    """4000 MiB are 4 shares, and 8000 are 8: on a GPU of 14 both fit, and then one more of 8 on the other."""
    node_ = of_nvidia("a", 20, **T4)
    pods = [
        hami("x", 4000, node="a", phase="Running"),
        hami("y", 8000, node="a", phase="Running"),
        hami("z", 8000, node="a", phase="Running"),
        hami("w", 8000, 2),
    ]
    found, again = listed(node_, *pods), listed(node_, *pods, from_empty=True)
    assert [each.left.frees for each in found.nodes] == [(2, 6)]
    assert coming(found) == (("default/w", PodKind(8, 2)),)
    assert [kind for _, kind in coming(again)] == [PodKind(4, 1), PodKind(8, 1), PodKind(8, 1), PodKind(8, 2)]
    assert found.notes[-1] == (
        "node a: its 2 GPUs count, not the 20 slices that HAMi makes of them; pods take the nvidia.com/gpumem that "
        "they ask for"
    )


def test_gpus_that_mig_divides_are_left_out_of_a_node_with_others() -> None:
    """Strategy mixed: the label counts all GPUs, the resource those that are not divided."""
    found = listed(of_nvidia("a", 1, **T4))
    assert [each.shape.sizes for each in found.nodes] == [(14,)]
    assert found.notes[-1] == "node a: 1 of its 2 GPUs is divided into MIG instances, and is left out"


def test_memory_in_bytes_is_read_as_such() -> None:
    found = listed(of_nvidia("a", **{**T4, "memory": str(15360 << 20)}))
    assert [each.shape.sizes for each in found.nodes] == [(14, 14)]


def test_nodes_without_gpus_and_with_a_plugin_that_does_not_run_are_named() -> None:
    broken = of_nvidia("b", 0, **T4)
    notes = listed(two_gpus("a"), of_nvidia("x", 0), of_nvidia("y", 0), broken).notes
    assert notes == (
        "node x, node y are left out: they have no GPUs",
        (
            "node b is left out: its labels name GPUs, and it has no nvidia.com/gpu; is NVIDIA's device plugin running "
            "there?"
        ),
    )


def test_objects_without_a_uid_are_those_of_a_cluster_where_they_have_a_status() -> None:
    """People remove it before they pass a list on."""
    objects = [two_gpus("a"), asking("web", 7, node="a", phase="Running", annotations=PLACED)]
    for each in objects:
        del each["metadata"]["uid"]
    found = listed(*objects)
    assert [each.left.frees for each in found.nodes] == [(10, 3)]
    assert (coming(found), found.notes) == ((), ())


def test_a_model_that_is_not_known_has_what_every_driver_leaves() -> None:
    (unknown,) = listed(of_nvidia("a", product="NVIDIA-X1", memory="10240", count="1")).nodes
    assert (unknown.shape.sizes, unknown.shape.models) == ((9,), ("NVIDIA X1",))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "no label nvidia.com/gpu.memory says how much memory its GPUs have"),
        ({**T4, "count": "999"}, "its label nvidia.com/gpu.count is no number of GPUs"),
        ({**T4, "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "its GPUs are divided into MIG instances"),
    ],
)
def test_a_node_of_nvidias_of_which_too_little_is_known_is_left_out_and_named(
    labels: Mapping[str, Any], said: str
) -> None:
    found = listed(of_nvidia("a", **labels))
    assert found.nodes == ()
    assert found.notes[0].startswith(f"node a is left out: {said}")


def test_once_an_agent_of_ours_runs_the_nodes_of_nvidias_plugin_are_left_out_and_named() -> None:
    """Its extender places nothing there, and their pods take CPU and memory only."""
    found = listed(two_gpus("a"), of_nvidia("b", **T4), wanting_gpus("waits", 1))
    assert [each.name for each in found.nodes] == ["a"]
    assert coming(found) == ()
    assert found.notes == (
        "node b is left out: its GPUs are offered as nvidia.com/gpu, by no agent of ours",
        (
            "pod default/waits is left out: it asks for nvidia.com/gpu: 1, which is not read; did you mean "
            "aliyun.com/gpu-count?"
        ),
    )


# --- Pods whose requests are not read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"aliyun.com/gpu-memory": 8}, "aliyun.com/gpu-memory: 8, which is not read; did you mean aliyun.com/gpu-mem?"),
        ({"aliyun.com/gpu-cuont": 1}, "aliyun.com/gpu-cuont: 1, which is not read; did you mean aliyun.com/gpu-count?"),
        ({"aliyun.com/other": 1}, "aliyun.com/other: 1, which is not read; did you mean aliyun.com/gpu-count?"),
        ({"gpu.intel.com/xe": 1}, "gpu.intel.com/xe: 1, which is not read; did you mean aliyun.com/gpu-count?"),
        ({"gpu-mem": 4}, "gpu-mem: 4, which is not read; did you mean aliyun.com/gpu-mem?"),
        ({"nvidia.com/mig-1g.10gb": 1}, "nvidia.com/mig-1g.10gb: 1, which is not read; write aliyun.com/gpu-mem: 10"),
        ({"aliyun.com/gpu-mem": "40Gi"}, "aliyun.com/gpu-mem: 40Gi, which counts shares, 1 GiB each by default; write"),
        ({"aliyun.com/gpu-mem": "8192M"}, "aliyun.com/gpu-mem: 8192M, which counts shares, 1 GiB each by default; "),
        ({"aliyun.com/gpu-mem": "0.5"}, "aliyun.com/gpu-mem: 0.5, which is no whole number; write 1"),
        ({"aliyun.com/gpu-mem": 0}, "aliyun.com/gpu-mem: 0, which the API server refuses; leave the line out"),
        ({"aliyun.com/gpu-count": "two"}, "aliyun.com/gpu-count: two, which is no whole number; write one, such as 8"),
    ],
)
def test_a_request_that_is_not_read_is_named_with_the_one_that_is(limits: Mapping[str, Any], why: str) -> None:
    asks = container(limits=limits)
    deployment = workload("Deployment", "web", asks, replicas=12)
    waiting = pod("x", asks, uid="x")
    running = pod("y", asks, uid="y", node="a", phase="Running")
    beside = {"kind": "Pod", "metadata": {"name": "z"}, "spec": {"containers": [container(mem=4), asks]}}
    found = listed(two_gpus("a"), waiting, running, beside, deployment)
    assert coming(found) == ()
    (note,) = found.notes
    assert note.startswith(f"pod default/x, pod default/y, pod z and 1 more are left out: they ask for {why}")
    (of_maker,) = listed(deployment).notes
    assert of_maker.startswith(f"shop/Deployment web with 12 pods is left out: it asks for {why}")


def test_pods_that_ask_for_gpus_by_other_means_are_named() -> None:
    only = {"name": "m", "resources": {"requests": {"aliyun.com/gpu-mem": 30}}}
    claims = {"kind": "Pod", "metadata": {"name": "claims"}, "spec": {"resourceClaims": [{"name": "gpu"}]}}
    fraction = pod("kai", container(), uid="kai", annotations={"gpu-fraction": "0.5"})
    assert listed(two_gpus("a"), pod("only", only, uid="only"), claims, fraction, asking("plain")).notes == (
        "pod default/only is left out: it asks for aliyun.com/gpu-mem: 30, and only as a request; write it as a limit",
        (
            "pod claims is left out: it asks for devices by a ResourceClaim, which is not read; write a limit of "
            "aliyun.com/gpu-mem"
        ),
        (
            "pod default/kai is left out: it asks for a GPU by the annotation gpu-fraction of KAI Scheduler and "
            "run:ai, which is not read; write a limit of aliyun.com/gpu-mem"
        ),
        "pod default/plain is left out: it asks for no GPU",
    )


def test_a_manifest_without_a_gpu_counts_with_its_cpu_and_is_named() -> None:
    found = listed(two_gpus("a"), workload("Deployment", "shop", container(), replicas=2))
    assert [kind.gpus for _, kind in coming(found)] == [0, 0]
    assert found.notes == ("shop/Deployment shop asks for no GPU, and counts with CPU and memory",)


@pytest.mark.parametrize("text", [b'{"items": 3}', b"[]", b'{"items": "\xff"}', b'{"nodes": []}'])
def test_anything_else_is_no_list(text: bytes) -> None:
    with pytest.raises(UnreadableObjectError):
        read_cluster(text, ResourceSettings().offered)
