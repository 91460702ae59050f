"""What is wrong in a cluster: each case one symptom, what the doctor says of it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin.core.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.core.node.others import sightings
from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms, Lease, NodeSeen, PartSeen, PodSeen
from gpu_device_plugin.core.telling.diagnosing import Unknown, examine, worst
from gpu_device_plugin.core.telling.diagnosing_cluster import ADMISSION_POLICIES, CHECKS
from gpu_device_plugin.core.telling.nodeamounts import set_count
from tests.names import COUNT, MEM

ROOT = Path(__file__).parents[3]


def node(name: str, **changes: Any) -> NodeSeen:
    gpus = NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15)), share_mib=1024)
    amounts = {MEM: 30, COUNT: 2}
    return replace(
        NodeSeen(name=name, switch="true", annotated=True, gpus=gpus, capacity=amounts, allocatable=amounts), **changes
    )


def agent(on: str, **changes: Any) -> PartSeen:
    return replace(PartSeen(name=f"gpushare/agent-{on}", node=on, ready=True, version="0.1.0"), **changes)


EXTENDER = PartSeen(name="gpushare/scheduler-0", node="node-a", ready=True, version="0.1.0", asked=7)
POD = PodSeen(name="default/web", node="node-a", scheduler="gpushare-scheduler", promised=True)
WELL = ClusterSymptoms(
    memory_resource=MEM,
    count_resource=COUNT,
    version="v1.36.2",
    nodes=(node("node-a"), node("node-b")),
    agents=(agent("node-a"), agent("node-b")),
    extenders=(EXTENDER,),
    own_scheduler=True,
    runtime_class="nvidia",
    runtime_classes=frozenset({"nvidia", "runc"}),
    pods=(POD,),
    leases={"gpushare/gpushare-scheduler": Lease("scheduler-0", 2.0, 15.0)},
    configurations={"gpushare/gpushare-scheduler, config.yaml": "kubescheduler.config.k8s.io/v1"},
    policies=ADMISSION_POLICIES,
)


def of(check: str, **changes: Any) -> list[str]:
    """Return what one check says, as `severity: found -> advice`."""
    found = CHECKS[check](replace(WELL, **changes))
    return [f"{each.severity}: {each.found}{f' -> {each.advice}' if each.advice else ''}" for each in found]


def test_of_a_cluster_that_is_well_everything_is_told_and_nothing_is_wrong() -> None:
    findings = examine(CHECKS, WELL)
    assert [f"{finding.check}: {finding.found}" for finding in findings] == [
        "API server: Kubernetes v1.36.2",
        "nodes: 2 labelled nodes with an agent",
        "agents: 2 ready",
        "runtime class: nvidia exists",
        "GPUs: 4 healthy on 2 nodes",
        "allocatable: aliyun.com/gpu-mem is offered by 2 nodes",
        "capacity: matches the GPUs on 2 nodes",
        "share size: 1 GiB on every node",
        "other plugins: no other plugin hands out GPUs of labelled nodes",
        "extender: gpushare/scheduler-0 is ready",
        "extender: schedulers called it 7 times since it started",
        "leader: gpushare/gpushare-scheduler is held by scheduler-0",
        "scheduler configuration: gpushare/gpushare-scheduler, config.yaml has version v1",
        "placement: 1 GPU pod on nodes, each with a GPU chosen by a scheduler",
        "pending pods: no GPU pod is pending",
        "variables: no pod on a sharing node sets NVIDIA_VISIBLE_DEVICES itself",
        "versions: 3 x 0.1.0",
        "policies: all admission policies are installed",
    ]
    assert worst(findings) == "ok"


def test_a_cluster_in_which_nothing_is_installed() -> None:
    bare = ClusterSymptoms(memory_resource=MEM, count_resource=COUNT, version="v1.36.2", daemonset=False)
    findings = examine(CHECKS, bare)
    assert [finding.found for finding in findings if finding.severity == "error"] == [
        "no agent is installed",
        "no node is labelled gpushare=true",
    ]
    assert worst(findings) == "error"
    assert of("nodes", daemonset=False, agents=(), nodes=(node("node-a", annotated=False),)) == [
        "error: no agent is installed -> kubectl apply -f deploy/daemonset.yaml"
    ], "of the nodes nothing more is to be said"


def test_what_could_not_be_read_is_told_and_no_more() -> None:
    hidden = Unknown("forbidden")
    dark = replace(
        WELL,
        version=hidden,
        daemonset=hidden,
        runtime_classes=hidden,
        leases=hidden,
        configurations=hidden,
        policies=hidden,
    )
    told = [finding.check for finding in examine(CHECKS, dark) if finding.severity == "unknown"]
    assert told == [
        "API server",
        "nodes",
        "runtime class",
        "leader",
        "scheduler configuration",
        "policies",
    ]
    assert of("runtime class", runtime_classes=hidden) == ["unknown: forbidden"]


# --- Nodes and agents -------------------------------------------------------------------------------------------------


def test_labelled_nodes_without_an_agent_or_without_its_word() -> None:
    silent = node("node-c", annotated=False)
    (mute, deserted) = of(
        "nodes", nodes=(silent, *(node(f"node-{n}", annotated=False) for n in range(7))), agents=(agent("node-c"),)
    )
    assert mute.startswith("error: no GPUs are listed on node-c, though an agent runs there -> see its log")
    assert deserted.startswith(
        "error: no agent runs on node-0, node-1, node-2, node-3, node-4 and 2 more, labelled gpushare=true -> kubectl"
    )


def test_agents_that_are_not_ready() -> None:
    ill = [agent(f"node-{n}", ready=False, why="containers with unready status: [agent]") for n in range(7)]
    told = of("agents", agents=tuple(ill))
    assert told[0].startswith(
        "error: gpushare/agent-node-0 on node-0 is not ready: containers with unready status: [agent] -> kubectl -n "
        "gpushare exec agent-node-0 -- gpu-device-plugin doctor says why; so does kubectl logs"
    )
    assert len(told) == 6
    assert told[5] == "error: 2 more agents are not ready -> begin with the first"
    assert of("agents", agents=(agent("", ready=False),))[0].startswith(
        "error: gpushare/agent- on no node is not ready -> "
    )
    assert of("agents", agents=()) == []
    theirs = agent("node-a", name="kube-system/plugin-x", ready=False, original=True)
    assert of("agents", agents=(theirs,)) == [
        "error: kube-system/plugin-x on node-a is not ready -> kubectl -n kube-system logs plugin-x says why"
    ]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("ErrImagePull", "correct image: in the manifest, push the image there, or load it on the node"),
        ("ImagePullBackOff", "correct image: in the manifest"),
        ("ErrImageNeverPull", "correct image: in the manifest"),
        ("InvalidImageName", "correct image: in the manifest"),
        ("CreateContainerConfigError", "correct the object that the message names; kubectl diff -f deploy/ shows"),
        ("CreateContainerError", "the node's container runtime could not start it"),
        ("RunContainerError", "the node's container runtime could not start it"),
        ("StartError", "the node's container runtime could not start it"),
        ("CrashLoopBackOff", "kubectl -n gpushare logs agent-node-a -c agent --previous says why it ended"),
        ("OOMKilled", "it needs more memory than its limit"),
        ("ContainerCreating", "kubectl -n gpushare describe pod agent-node-a: its Events name the reason"),
    ],
)
def test_what_helps_an_agent_that_does_not_run_depends_on_why(reason: str, advice: str) -> None:
    stuck = agent("node-a", ready=False, container="agent", reason=reason, why="what the kubelet says")
    (told,) = of("agents", agents=(stuck,))
    found, _, advised = told.partition(" -> ")
    assert found == (
        f"error: gpushare/agent-node-a on node-a is not ready: container agent: {reason}: what the kubelet says"
    )
    assert advised.startswith(advice)


def test_an_agent_for_which_its_node_has_no_room() -> None:
    waits = agent("", name="gpushare/agent-x", ready=False, reason="Unschedulable", why="0/1 nodes are available")
    assert of("agents", agents=(waits,)) == [
        (
            "error: gpushare/agent-x on no node is not ready: Unschedulable: 0/1 nodes are available -> "
            "make room for its requests, or lower them"
        )
    ]


def test_a_runtime_class_that_the_cluster_does_not_have() -> None:
    assert of("runtime class", runtime_classes=frozenset())[0].startswith(
        "error: the agents need the runtime class nvidia, which this cluster does not have -> create it"
    )
    assert of("runtime class", runtime_class="") == []


def test_gpus_out_of_service_and_nodes_that_cannot_be_read() -> None:
    ill = (ListedGpu(1, 15, unhealthy="XID 79"), ListedGpu(2, 15, unhealthy="hung"), ListedGpu(3, 15, unhealthy="hung"))
    gpus = NodeGpus((ListedGpu(0, 15), *ill), share_mib=1024)
    lost = node("node-b", gpus=NodeGpus(), problem="the node's annotation is of another version")
    told = of("GPUs", nodes=(node("node-a", gpus=gpus), lost))
    assert told[0].startswith("warning: node-a: GPU 1 is out of service: XID 79 -> ")
    assert told[1].startswith("warning: node-a: GPU 2, 3 are out of service: hung -> ")
    assert told[2].startswith("error: node-b: the node's annotation is of another version -> upgrade")
    assert len(told) == 3


def test_mig_instances_are_counted_and_named_by_their_numbers() -> None:
    small = ListedInstance("GPU-m", 0, 0, "1g.10gb", 7)
    whole = replace(small, number=1, gi=8, resource="aliyun.com/mig-1g.10gb")
    gpus = NodeGpus(
        (ListedGpu(0, 15), ListedGpu(1, 9, instance=small)),
        instances=(ListedGpu(2, 9, instance=whole),),
        share_mib=1024,
    )
    mixed = node("node-a", gpus=gpus, capacity={MEM: 24, COUNT: 1, whole.resource: 1})
    assert of("GPUs", nodes=(mixed,)) == ["ok: 3 healthy on 1 node, 2 of them MIG instances"]
    assert of("capacity", nodes=(mixed,)) == ["ok: matches the GPUs on 1 node"]
    ill = replace(gpus, instances=(ListedGpu(2, 9, unhealthy="XID 94", instance=whole),))
    assert of("GPUs", nodes=(node("node-a", gpus=ill),))[0].startswith(
        "warning: node-a: GPU 2 (MIG 0:1 1g.10gb) is out of service: XID 94 -> "
    )


def test_a_node_that_gives_only_whole_instances_need_not_offer_memory() -> None:
    whole = ListedInstance("GPU-m", 0, 0, "1g.10gb", 7, "aliyun.com/mig-1g.10gb")
    gpus = NodeGpus(instances=(ListedGpu(0, 9, instance=whole),), share_mib=1024)
    only = node("node-a", gpus=gpus, capacity={whole.resource: 1}, allocatable={whole.resource: 1})
    assert of("allocatable", nodes=(only,)) == []
    assert of("allocatable", nodes=(only, node("node-b"))) == ["ok: aliyun.com/gpu-mem is offered by 1 node"]
    assert of("capacity", nodes=(only,)) == ["ok: matches the GPUs on 1 node"]


def test_nodes_that_offer_nothing() -> None:
    """node-a has an agent, so that its GPUs may be in use; node-b has none."""
    empty = (node("node-a", allocatable={MEM: 0}), node("node-b", allocatable={}))
    assert of("allocatable", nodes=empty, agents=(agent("node-a"),)) == [
        "error: no aliyun.com/gpu-mem on node-b: no agent is ready there -> see above",
        "note: no aliyun.com/gpu-mem on node-a: all GPUs are in whole use, or out of service",
    ]
    assert of("allocatable", nodes=()) == []
    leaving = node("node-c", switch=None, allocatable={})
    assert of("allocatable", nodes=(node("node-a"), leaving)) == ["ok: aliyun.com/gpu-mem is offered by 1 node"]


def test_a_daemonset_whose_agents_are_missing_is_installed_all_the_same() -> None:
    (told,) = of("nodes", daemonset=True, agents=())
    assert told.startswith("error: no agent runs on node-a, node-b, labelled gpushare=true -> kubectl -n gpushare")


def test_of_a_labelled_node_without_an_agent_the_events_tell_more() -> None:
    (told,) = of("nodes", nodes=(node("node-a", annotated=False),), agents=())
    assert told.endswith(
        "-> kubectl -n gpushare describe daemonset gpushare-node: its Events say why, most often a runtime class that "
        "the cluster lacks, or the PodSecurity level of the namespace"
    )


def test_a_mistyped_switch_is_named_beside_nodes_that_have_it_right() -> None:
    """`false` is somebody's will, and no label is none."""
    plain = {"annotated": False, "capacity": {}, "allocatable": {}, "gpus": NodeGpus()}
    mistyped = [node(f"node-{n}", switch=value, **plain) for n, value in enumerate(["True", "yes", "", "True"])]
    well = (node("node-a"), node("node-b", switch="false", **plain), node("node-c", switch=None, **plain))
    assert of("nodes", nodes=(*well, *mistyped)) == [
        "ok: 1 labelled node with an agent",
        (
            "warning: gpushare= on node-2 switches nothing on: only true does, in small letters -> "
            "kubectl label node -l gpushare= --overwrite gpushare=true, or =false where no GPUs are to be shared"
        ),
        (
            "warning: gpushare=True on node-0, node-3 switches nothing on: only true does, in small letters -> "
            "kubectl label node -l gpushare=True --overwrite gpushare=true, or =false where no GPUs are to be shared"
        ),
        (
            "warning: gpushare=yes on node-1 switches nothing on: only true does, in small letters -> "
            "kubectl label node -l gpushare=yes --overwrite gpushare=true, or =false where no GPUs are to be shared"
        ),
    ]
    assert of("leftovers", nodes=(*well, *mistyped)) == [], "they never shared anything"


def test_an_agent_that_says_nothing_is_named_and_the_node_is_not_counted_as_well() -> None:
    (told,) = of("nodes", nodes=(node("node-a", annotated=False), node("node-b")))
    assert told.startswith(
        "error: no GPUs are listed on node-a, though an agent runs there -> see its log, and kubectl"
    )


def test_share_sizes_that_differ() -> None:
    small = NodeGpus((ListedGpu(0, 60),), share_mib=256)
    (told,) = of("share size", nodes=(node("node-a"), node("node-b", gpus=small)))
    assert told.startswith(
        "warning: aliyun.com/gpu-mem: 1 is not the same memory on every node: 256 MiB on node-b; 1 GiB on"
    )
    assert told.endswith(
        "if the sizes differ on purpose, give these nodes a settings profile of their own (label "
        "gpu-device-plugin/config, docs/settings.md), and have pods choose nodes by the label "
        "gpu-device-plugin/share-mib"
    )
    assert of("share size", nodes=(node("node-a", gpus=NodeGpus()),)) == []


def test_share_sizes_that_differ_by_profile_are_meant_to() -> None:
    """Within one profile they are not: one of its agents has not taken it over. `default` is as good as no label."""
    small = NodeGpus((ListedGpu(0, 60),), share_mib=256)
    a, b = node("node-a"), node("node-b", gpus=small, profile="small")
    assert of("share size", nodes=(a, b)) == [
        (
            "note: aliyun.com/gpu-mem: 1 is not the same memory on every node: 256 MiB on node-b; 1 GiB on node-a, by "
            "their settings profiles -> have pods choose nodes by the label gpu-device-plugin/share-mib"
        )
    ]
    (told,) = of("share size", nodes=(a, b, node("node-c", profile="small")))
    assert told.startswith("warning: ")
    (told,) = of("share size", nodes=(a, node("node-b", gpus=small, profile="default")))
    assert told.startswith("warning: ")


def test_other_plugins_on_nodes_that_share_or_are_meant_to() -> None:
    others = sightings((), (), {"nvidia.com/gpu": 8}, ())
    unlabelled = node("node-c", switch=None, others=others)
    (told,) = of("other plugins", nodes=(node("node-a", others=others), node("node-b", others=others), unlabelled))
    assert told.startswith(
        "error: NVIDIA's device plugin, or one derived from it (HAMi's is), hands out GPUs too, on node-a,"
    )
    assert "nvidia.com/gpu.deploy.device-plugin=false" in told
    assert "node-c" not in told


def test_nodes_that_shared_once() -> None:
    old = node("node-c", switch=None)
    assert of("leftovers", nodes=(old,)) == [
        "note: node-c: annotations or capacity remain, though sharing is off -> "  # noqa: ISC004 - one text
        "kubectl inspect gpushare uninstall removes them from nodes "
        "without the label"
    ]
    assert of("leftovers", nodes=(old,), agents=(agent("node-c"),)) == [], "its DaemonSet chooses nodes otherwise"


# --- The scheduler ----------------------------------------------------------------------------------------------------


def test_without_an_extender() -> None:
    (told,) = of("extender", extenders=())
    assert told.startswith("warning: no scheduler extender runs")
    assert "kubectl apply -f deploy/scheduler.yaml" in told


def test_an_extender_that_is_not_ready() -> None:
    """With a scheduler of its own every replica is to be ready; behind a Service only the one that leads is."""
    ill = replace(EXTENDER, name="gpushare/scheduler-1", ready=False, why="starting", asked=None)
    assert of("extender", extenders=(ill,))[0] == (
        "error: gpushare/scheduler-1 is not ready: starting -> kubectl -n gpushare logs scheduler-1 says why"
    )
    assert of("extender", extenders=(EXTENDER, ill))[0].startswith("warning: gpushare/scheduler-1 is not ready")
    alone = of("extender", extenders=(EXTENDER, replace(ill, why="")), own_scheduler=False)
    assert alone[0].startswith("note: gpushare/scheduler-1 is not ready -> ")
    both = of("extender", extenders=(EXTENDER, replace(EXTENDER, name="gpushare/scheduler-1")))
    assert both[0] == "ok: gpushare/scheduler-0, gpushare/scheduler-1 are ready"
    assert both[1] == "ok: schedulers called it 14 times since it started"


def test_a_scheduler_whose_containers_do_not_run() -> None:
    """The one that holds it up is named, and where the extender does not run it is no wonder that it tells nothing."""
    ill = replace(EXTENDER, ready=False, container="kube-scheduler", asked=None)
    assert of("extender", extenders=(replace(ill, reason="ImagePullBackOff", why="Back-off"),)) == [
        (
            "error: gpushare/scheduler-0 is not ready: container kube-scheduler: ImagePullBackOff: Back-off -> "
            "correct image: in the manifest, push the image there, or load it on the node "
            "(docs/install-image.md); a registry with a password needs imagePullSecrets"
        )
    ]
    assert of("extender", extenders=(ill,)) == [
        "error: gpushare/scheduler-0 is not ready -> kubectl -n gpushare logs scheduler-0 -c kube-scheduler says why"
    ]


def test_behind_a_service_a_replica_that_cannot_start_is_not_like_one_that_stands_by() -> None:
    ill = replace(EXTENDER, name="gpushare/extender-1", ready=False, container="extender", reason="CrashLoopBackOff")
    told = of("extender", extenders=(EXTENDER, ill), own_scheduler=False)
    assert told[0].startswith("warning: gpushare/extender-1 is not ready: container extender: CrashLoopBackOff -> ")


def test_the_originals_extender_has_no_metrics_that_a_right_would_show() -> None:
    theirs = replace(EXTENDER, original=True, asked=None)
    assert of("extender", extenders=(theirs,)) == ["ok: gpushare/scheduler-0 is ready"]


@pytest.mark.parametrize(
    ("tag", "server", "told"),
    [
        ("v1.36.2", "v1.36.2", "ok: kube-scheduler v1.36.2, API server v1.36.2"),
        ("v1.36.4", "v1.36.2", "ok: kube-scheduler v1.36.4, API server v1.36.2"),
        ("v1.35.0", "v1.36.2", "ok: kube-scheduler v1.35.0, API server v1.36.2"),
        (
            "v1.36.2",
            "v1.30.4-gke.100",
            (
                "warning: kube-scheduler v1.36.2 is newer than the API server, and may wait forever for APIs that "
                "the server lacks (v1.30.4-gke.100) -> set the image of kube-scheduler to v1.30.x"
            ),
        ),
        (
            "v1.34.9",
            "v1.36.2",
            (
                "warning: kube-scheduler v1.34.9 is more than one minor version older than the API server (v1.36.2) -> "
                "set the image of kube-scheduler to v1.36.x in deploy/scheduler.yaml, or scheduler.kubeScheduler.tag"
            ),
        ),
        ("", "v1.36.2", "unknown: the tag of kube-scheduler's image is no version, and the API server is v1.36.2"),
    ],
)
def test_a_scheduler_is_as_new_as_the_api_server_or_one_minor_version_older(tag: str, server: str, told: str) -> None:
    (found,) = of("scheduler version", extenders=(replace(EXTENDER, kube_scheduler=tag),), version=server)
    assert found.startswith(told)


def test_without_two_versions_none_are_compared() -> None:
    assert of("scheduler version", extenders=(EXTENDER,)) == []
    alone = replace(EXTENDER, kube_scheduler="v1.36.2")
    assert of("scheduler version", extenders=(alone,), version=Unknown("hidden")) == []


def test_an_extender_that_nobody_asks() -> None:
    idle = (replace(EXTENDER, asked=0),)
    assert of("extender", extenders=idle)[1].startswith("warning: no scheduler has called it since it started")
    assert of("extender", extenders=idle, pods=())[1].startswith("note: no scheduler has called it yet")
    assert of("extender", extenders=(replace(EXTENDER, asked=None),))[1].startswith(
        "unknown: the number of scheduler calls"
    )


def test_a_lease_that_nobody_renews() -> None:
    name = "gpushare/gpushare-scheduler"
    (told,) = of("leader", leases={name: Lease("scheduler-0", 80.0, 15.0)})
    assert told.startswith(f"error: {name}: scheduler-0 has not renewed it for 80 s, so no replica schedules -> see")
    assert of("leader", leases={name: Lease("scheduler-0", 74.0, 15.0)}) == [f"ok: {name} is held by scheduler-0"]
    assert of("leader", leases={name: Lease("", 1.0, 1.0)})[0].startswith(
        f"error: {name}: no replica holds it, so no replica"
    )
    assert of("leader", leases={})[0].startswith("error: the scheduler's lease does not exist: no replica has ever led")
    assert of("leader", leases={}, own_scheduler=False) == []


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("kubescheduler.config.k8s.io/v1beta2", "has version kubescheduler.config.k8s.io/v1beta2, which"),
        ("", "has version (none), which"),
    ],
)
def test_a_configuration_that_no_scheduler_reads_any_more(version: str, told: str) -> None:
    (found,) = of("scheduler configuration", configurations={"x": version})
    assert told in found
    assert found.endswith("-> set apiVersion: kubescheduler.config.k8s.io/v1")


def test_pods_that_were_bound_past_the_extender() -> None:
    lost = [replace(POD, name=f"default/p-{n}", scheduler="default-scheduler", promised=False) for n in range(2)]
    (told,) = of("placement", pods=(POD, *lost))
    assert told.startswith(
        "warning: default-scheduler bound 2 GPU pods without asking the extender: default/p-0, default/p-1 -> configure"
    )
    assert of("placement", pods=()) == []


def test_pods_that_no_scheduler_looks_at() -> None:
    waiting = replace(POD, node="", promised=False)
    forgotten = replace(waiting, name="default/lost", scheduler="gpushre-scheduler", seen=False, age_s=31.0)
    fresh = replace(forgotten, name="default/new", age_s=29.0)
    assert of("pending pods", pods=(POD, waiting, forgotten, fresh)) == [
        "error: gpushre-scheduler has not looked at 1 GPU pod: default/lost -> start a scheduler of that name "  # noqa: ISC004 - one text
        "(deploy/scheduler.yaml is gpushare-scheduler), or correct schedulerName",
        "note: 2 GPU pods pending: default/new, default/web -> kubectl inspect gpushare why POD names the reason",
    ]


def test_pods_that_choose_gpus_themselves() -> None:
    (told,) = of("variables", meddling=("default/greedy",))
    assert told.startswith(
        "warning: default/greedy set NVIDIA_VISIBLE_DEVICES themselves, and may see GPUs of others -> "
    )


# --- Versions and other installations ---------------------------------------------------------------------------------


def test_versions_that_are_one_minor_apart_and_more() -> None:
    older, oldest = agent("node-b", version="v0.1.5"), agent("node-b", version="0.0.9")
    extenders = (replace(EXTENDER, version="0.2.0"),)
    (told,) = of("versions", agents=(older,), extenders=extenders)
    assert told.startswith("note: agents and extenders are of several versions: 1 x 0.2.0, 1 x v0.1.5 -> one minor")
    assert of("versions", agents=(oldest,), extenders=extenders)[0].startswith(
        "warning: agents and extenders are more than"
    )
    newer = replace(EXTENDER, version="1.2.0")
    assert of("versions", agents=(agent("node-a", version="0.2.0"),), extenders=(newer,))[0].startswith("warning")


def test_an_image_without_a_version() -> None:
    assert of("versions", agents=(agent("node-a", version="latest"),)) == [
        "unknown: the tags of some images are no versions",
        "ok: 1 x 0.1.0, 1 x latest",
    ]
    assert of("versions", agents=(), extenders=()) == []


def test_policies_that_are_missing() -> None:
    assert of("policies", policies=frozenset())[0].startswith("note: the admission policies are not installed")
    (told,) = of("policies", policies=ADMISSION_POLICIES - {"gpushare-placement"})
    assert told.startswith("note: the admission policy gpushare-placement is not installed")
    (told,) = of("policies", policies=ADMISSION_POLICIES - {"gpushare-placement", "gpushare-size"})
    assert told.startswith("note: the admission policies gpushare-placement, gpushare-size are not installed")


def test_the_policies_are_those_of_the_manifest() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/policies.yaml").read_text(encoding="utf-8"))
    assert {
        one["metadata"]["name"] for one in documents if one["kind"] == "ValidatingAdmissionPolicy"
    } == ADMISSION_POLICIES


def test_an_amount_that_is_not_that_of_the_agents_gpus_is_told_with_what_mends_it() -> None:
    wrong = node("node-b", capacity={MEM: 30, COUNT: 1})
    (told,) = of("capacity", nodes=(node("node-a"), wrong))
    assert told.startswith(
        "warning: node-b has 1 aliyun.com/gpu-count by its kubelet, but 2 GPUs by its agent -> where"
    )
    assert "five minutes after the last plugin that offered it has stopped" in told
    assert told.endswith(set_count("node-b", COUNT, 2))
    (told,) = of("capacity", nodes=(node("node-a", capacity={MEM: 28, COUNT: 2}),))
    assert told.startswith("warning: node-a has 28 aliyun.com/gpu-mem by its kubelet, but 30 by its agent")
    idle = agent("node-b", ready=False)
    assert of("capacity", nodes=(wrong,), agents=(idle,)) == [], "of an agent that is not ready nothing is expected"


def test_a_number_of_gpus_that_the_kubelet_forgot_matters_to_whoever_goes_by_it() -> None:
    """With memory alone offered and an extender of ours nobody does; gpushare's extender divides by it."""
    forgotten = (node("node-a", capacity={MEM: 30, COUNT: 0}),)
    assert of("capacity", nodes=forgotten) == ["ok: matches the GPUs on 1 node"]
    theirs = replace(EXTENDER, original=True)
    (told,) = of("capacity", nodes=forgotten, extenders=(theirs,))
    assert told.startswith("warning: node-a has 0 aliyun.com/gpu-count by its kubelet, but 2 GPUs by its agent")


def test_going_back_to_gpushares_plugin_within_five_minutes_is_noticed() -> None:
    """It writes the number of GPUs once; the kubelet, which remembers our agent, makes it 0 later."""
    theirs = (agent("node-a", name="kube-system/gpushare-device-plugin-ds-x", original=True),)

    def told(capacity: int | None, allocatable: int) -> list[str]:
        amounts = {MEM: 30} if capacity is None else {MEM: 30, COUNT: capacity}
        seen = node(
            "node-a", annotated=False, gpus=NodeGpus(), capacity=amounts, allocatable={MEM: 30, COUNT: allocatable}
        )
        return of("capacity", nodes=(seen,), agents=theirs)

    assert told(2, 2) == ["ok: matches the GPUs on 1 node"]
    (soon,) = told(2, 0)
    assert soon.startswith(
        "warning: node-a has 2 aliyun.com/gpu-count only because its kubelet remembers an agent: the kubelet"
    )
    assert "-> wait until it is 0, and then kubectl patch node node-a" in soon
    for nothing in (0, None):
        (late,) = told(nothing, 0)
        assert late.startswith(
            "warning: node-a has no aliyun.com/gpu-count, without which gpushare's extender finds room"
        )


def test_parts_of_the_original_beside_ours() -> None:
    theirs = agent("node-a", name="kube-system/gpushare-device-plugin-ds-x", original=True)
    extender = replace(EXTENDER, name="kube-system/gpushare-schd-extender-x", original=True)
    told = of("gpushare's own parts", agents=(*WELL.agents, theirs), extenders=(EXTENDER, extender))
    assert told[0].startswith("error: gpushare's own device plugin runs beside our agent on node-a -> delete it")
    assert told[1].startswith("error: gpushare's own extender runs beside ours (kube-system/gpushare-schd-extender-x)")
    assert not any(
        "beside our agent" in each for each in of("gpushare's own parts", agents=(agent("n", original=True),))
    )
    (alone,) = of("gpushare's own parts", extenders=(extender,))
    assert alone.startswith("note: gpushare's own extender is in use, which knows gpu-mem only")
