"""What is wrong in a cluster: each case one symptom, what the doctor finds, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin.features.conflicts.rules import sightings
from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, OVER_USE, SWITCH_LABEL
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.programs.doctor.rules.cluster_checks import set_count
from gpu_device_plugin.programs.doctor.rules.component_checks import ADMISSION_POLICIES
from gpu_device_plugin.programs.doctor.rules.findings_report import worst
from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, ComponentStatus, Lease, NodeSeen, PodSeen
from gpu_device_plugin.report.rules.finding import Unknown, examine
from tests.findings import case, told
from tests.names import COUNT, MEM
from tests.reporting import CLUSTER_CHECKS as CHECKS
from tests.reporting import examine_partly

ROOT = Path(__file__).parents[4]
TWO = NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15)), share_mib=1024)
HIDDEN = Unknown("hidden", "forbidden")


def node(name: str, switch: str | None = "true", profile: str | None = None, **changes: Any) -> NodeSeen:
    amounts, named = {MEM: 30, COUNT: 2}, {SWITCH_LABEL: switch, CONFIG_LABEL: profile}
    labels = changes.pop("labels", {}) | {key: value for key, value in named.items() if value is not None}
    seen = NodeSeen(name=name, labels=labels, annotated=True, gpus=TWO, capacity=amounts, allocatable=amounts)
    return replace(seen, **changes)


def agent(on: str, **changes: Any) -> ComponentStatus:
    return replace(ComponentStatus(name=f"gpushare/agent-{on}", node=on, ready=True, version="0.1.0"), **changes)


EXTENDER = ComponentStatus(name="gpushare/scheduler-0", node="node-a", ready=True, version="0.1.0", asked=7)


def asking(name: str, node: str = "node-a", **changes: Any) -> PodSeen:
    pod = Pod("u", "default", name, node, "Running" if node else "Pending")
    seen = PodSeen(pod=pod, scheduler="gpushare-scheduler", promised=bool(node), seen=True, age_s=0.0)
    return replace(seen, **changes)


POD = asking("web")
WELL = ClusterSymptoms(
    memory_resource=MEM,
    count_resource=COUNT,
    version="v1.36.2",
    nodes=(node("node-a"), node("node-b")),
    agents=(agent("node-a"), agent("node-b")),
    extenders=(EXTENDER,),
    own_scheduler=True,
    daemonset="nvidia",
    runtime_classes=frozenset({"nvidia", "runc"}),
    pods=(POD,),
    leases={"gpushare/gpushare-scheduler": Lease("scheduler-0", 2.0, 15.0)},
    configurations={"gpushare/gpushare-scheduler, config.yaml": "kubescheduler.config.k8s.io/v1"},
    policies=ADMISSION_POLICIES,
)


def of(check: str, show: str = "", **changes: Any) -> list[str]:
    """Return the findings of one check, with the parameters that `show` names."""
    return told(CHECKS[check](replace(WELL, **changes)), show)


def test_the_sentences_of_a_cluster_that_is_well() -> None:
    findings = examine(CHECKS, WELL)
    assert [f"{finding.check}: {finding}" for finding in findings] == [
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
    bare = ClusterSymptoms(memory_resource=MEM, count_resource=COUNT, version="v1.36.2", daemonset=None)
    findings = examine(CHECKS, bare)
    assert [finding.code for finding in findings if finding.severity == "error"] == [
        "not-installed",
        "no-node-labelled",
    ]


def test_what_could_not_be_read_is_told_and_no_more() -> None:
    checks = {
        "API server": "version",
        "nodes": "daemonset",
        "runtime class": "runtime_classes",
        "leader": "leases",
        "scheduler configuration": "configurations",
        "policies": "policies",
    }
    for check, symptom in checks.items():
        dark = replace(WELL, **{symptom: HIDDEN})  # type: ignore[arg-type]
        assert [finding.check for finding in examine(CHECKS, dark) if finding.code == "hidden"] == [check]


# --- Nodes and agents -------------------------------------------------------------------------------------------------

SILENT = node("node-a", annotated=False)
PLAIN: dict[str, Any] = {"annotated": False, "capacity": {}, "allocatable": {}, "gpus": NodeGpus()}
PLACED = (node("node-a"), node("node-b", switch="false", **PLAIN), node("node-c", switch=None, **PLAIN))
MISTYPED = tuple(node(f"node-{n}", switch=value, **PLAIN) for n, value in enumerate(["True", "yes", "", "True"]))
SMALL = NodeGpus((ListedGpu(0, 60),), share_mib=256)
OTHERS = sightings((), (), {"nvidia.com/gpu": 8}, ())
DEVICE_PLUGIN = "other=NVIDIA's device plugin, or one derived from it (HAMi's is),"
PART = ListedInstance("GPU-m", 0, 0, "1g.10gb", 7)
WHOLE = replace(PART, number=1, gi=8, resource="aliyun.com/mig-1g.10gb")
MIXED = NodeGpus(
    (ListedGpu(0, 15), ListedGpu(1, 9, instance=PART)), instances=(ListedGpu(2, 9, instance=WHOLE),), share_mib=1024
)
ONLY_WHOLE = node(
    "node-a",
    gpus=NodeGpus(instances=(ListedGpu(0, 9, instance=WHOLE),), share_mib=1024),
    capacity={WHOLE.resource: 1},
    allocatable={WHOLE.resource: 1},
)
MIXED_NODE = node("node-a", gpus=MIXED, capacity={MEM: 24, COUNT: 1, WHOLE.resource: 1})
PAIR = (ListedGpu(0, 15), ListedGpu(1, 15))
ASIDE = NodeGpus((PAIR[0], replace(PAIR[1], cordon=Cordon("alice"))))
ILL = NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15, unhealthy="XID 79"), ListedGpu(2, 15, unhealthy="hung")))
ILL_MIXED = replace(MIXED, instances=(ListedGpu(2, 9, unhealthy="XID 94", instance=WHOLE),))
FORGOTTEN = (node("node-a", capacity={MEM: 30, COUNT: 0}),)
WRONG = node("node-b", capacity={MEM: 30, COUNT: 1})


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        # Where no agent is installed nothing more is to be said of the nodes.
        case("nodes", "error not-installed", daemonset=None, agents=(), nodes=(SILENT,)),
        case("nodes", "error no-gpus-listed nodes=node-a", nodes=(SILENT, node("node-b"))),
        case("nodes", "error no-agent-on-node nodes=node-a, node-b", agents=()),
        case(
            "nodes",
            "error no-gpus-listed nodes=node-a",
            "error no-agent-on-node nodes=node-c",
            nodes=(SILENT, node("node-c", annotated=False)),
        ),
        # `false` is somebody's will, and no label is none.
        case(
            "nodes",
            "ok nodes nodes=1",
            "warning switch-mistyped nodes=node-2 value=",
            "warning switch-mistyped nodes=node-0, node-3 value=True",
            "warning switch-mistyped nodes=node-1 value=yes",
            nodes=(*PLACED, *MISTYPED),
        ),
        case("leftovers", nodes=(*PLACED, *MISTYPED)),
        case("leftovers", "note leftovers nodes=node-c", nodes=(node("node-c", switch=None),)),
        # Its DaemonSet chooses nodes otherwise.
        case("leftovers", nodes=(node("node-c", switch=None),), agents=(agent("node-c"),)),
        case("runtime class", "error no-runtime-class", runtime_classes=frozenset()),
        case("runtime class", daemonset=""),
        case(
            "GPUs",
            "warning gpu-unhealthy node=node-a gpus=GPU 1",
            "warning gpu-unhealthy node=node-a gpus=GPU 2",
            "error node-unreadable node=node-b",
            nodes=(node("node-a", gpus=ILL), node("node-b", gpus=NodeGpus(problem="of another version"))),
        ),
        case("GPUs", "error gpu-unread node=node-a", nodes=(node("node-a", gpus=NodeGpus(unread=("it is lost",))),)),
        case("GPUs", "ok gpus-healthy nodes=1 gpus=3 instances=2", nodes=(MIXED_NODE,)),
        case(
            "GPUs",
            "note gpu-cordoned node=node-a",
            "ok gpus-healthy nodes=1 gpus=2 instances=0",
            nodes=(node("node-a", gpus=ASIDE),),
        ),
        case(
            "GPUs",
            "warning cordons-unreadable node=node-a",
            "ok gpus-healthy nodes=1 gpus=2 instances=0",
            nodes=(node("node-a", gpus=replace(ASIDE, gpus=PAIR, cordons_fault="is not JSON")),),
        ),
        case(
            "GPUs",
            "warning gpu-unhealthy node=node-a gpus=GPU 2 (MIG 0:1 1g.10gb)",
            nodes=(node("node-a", gpus=ILL_MIXED),),
        ),
        case("capacity", "ok capacity nodes=1", nodes=(MIXED_NODE,)),
        case("capacity", "ok capacity nodes=1", nodes=(ONLY_WHOLE,)),
        case("allocatable", nodes=(ONLY_WHOLE,)),
        case("allocatable", "ok offered nodes=1", nodes=(ONLY_WHOLE, node("node-b"))),
        # node-a has an agent, so that its GPUs may be in use; node-b has none.
        case(
            "allocatable",
            "error not-offered nodes=node-b",
            "note all-in-use nodes=node-a",
            nodes=(node("node-a", allocatable={MEM: 0}), node("node-b", allocatable={})),
            agents=(agent("node-a"),),
        ),
        case("allocatable", nodes=()),
        case("allocatable", "ok offered nodes=1", nodes=(node("node-a"), node("node-c", switch=None, allocatable={}))),
        case("share size", nodes=(node("node-a", gpus=NodeGpus()),)),
        case(
            "share size",
            "warning share-sizes-differ sizes=256 MiB on node-b; 1 GiB on node-a",
            nodes=(node("node-a"), node("node-b", gpus=SMALL)),
        ),
        # Sizes that differ by profile are meant to; within one profile they are not. `default` is as good as no label.
        case(
            "share size",
            "note share-sizes-by-profile sizes=256 MiB on node-b; 1 GiB on node-a",
            nodes=(node("node-a"), node("node-b", gpus=SMALL, profile="small")),
        ),
        case(
            "share size",
            "warning share-sizes-differ sizes=256 MiB on node-b; 1 GiB on node-c",
            nodes=(node("node-b", gpus=SMALL, profile="small"), node("node-c", profile="small")),
        ),
        case(
            "share size",
            "warning share-sizes-differ sizes=256 MiB on node-b; 1 GiB on node-a",
            nodes=(node("node-a"), node("node-b", gpus=SMALL, profile="default")),
        ),
        case(
            "other plugins",
            f"error other-plugin nodes=node-a, node-b {DEVICE_PLUGIN}",
            nodes=(
                node("node-a", other_plugins=OTHERS),
                node("node-b", other_plugins=OTHERS),
                node("c", switch=None, other_plugins=OTHERS),
            ),
        ),
        case("variables", "warning variable-set-by-pod", pods_overriding_visible_devices=("default/greedy",)),
        case(
            "capacity",
            f"warning capacity-differs node=node-b kubelet=1 agent=2 command={set_count('node-b', COUNT, 2)}",
            nodes=(node("node-a"), WRONG),
        ),
        case(
            "capacity",
            "warning capacity-differs node=node-a kubelet=28 agent=30 command=",
            nodes=(node("node-a", capacity={MEM: 28, COUNT: 2}),),
        ),
        case("capacity", "ok capacity nodes=1", nodes=(node("node-a", gpus=NodeGpus()),)),
        # Of an agent that is not ready nothing is expected.
        case("capacity", nodes=(WRONG,), agents=(agent("node-b", ready=False),)),
        # With memory alone offered and an extender of ours nobody goes by the number of GPUs; gpushare's divides by it.
        case("capacity", "ok capacity nodes=1", nodes=FORGOTTEN),
        case(
            "capacity",
            f"warning capacity-differs node=node-a kubelet=0 agent=2 command={set_count('node-a', COUNT, 2)}",
            nodes=FORGOTTEN,
            extenders=(replace(EXTENDER, original=True),),
        ),
    ],
)
def test_nodes(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    show = "node nodes value gpus instances sizes other kubelet agent command"
    assert of(check, show, **changes) == expected


@pytest.mark.parametrize(
    ("capacity", "allocatable", "expected"),
    [
        (2, 2, "ok capacity"),
        (2, 0, "warning count-remembered"),
        (0, 0, "warning no-count"),
        (None, 0, "warning no-count"),
    ],
)
def test_going_back_to_gpushares_plugin_within_five_minutes_is_noticed(
    capacity: int | None, allocatable: int, expected: str
) -> None:
    """It writes the number of GPUs once; the kubelet, which remembers our agent, makes it 0 later."""
    theirs = (agent("node-a", name="kube-system/gpushare-device-plugin-ds-x", original=True),)
    amounts = {MEM: 30} if capacity is None else {MEM: 30, COUNT: capacity}
    offered = {MEM: 30, COUNT: allocatable}
    seen = node("node-a", annotated=False, gpus=NodeGpus(), capacity=amounts, allocatable=offered)
    assert of("capacity", nodes=(seen,), agents=theirs) == [expected]


def test_agents_that_are_not_ready() -> None:
    ill = [agent(f"node-{n}", ready=False, why="x") for n in range(7)]
    expected = [f"error agent-not-ready part=gpushare/agent-node-{n} node=node-{n}" for n in range(5)]
    assert of("agents", "part node agents", agents=tuple(ill)) == [*expected, "error agents-not-ready agents=2"]
    nowhere = ["error agent-not-ready part=gpushare/agent- node="]
    assert of("agents", "part node", agents=(agent("", ready=False),)) == nowhere
    assert of("agents", agents=()) == []


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("", "kubectl -n gpushare exec agent-node-a -- gpu-device-plugin doctor says why; so does kubectl logs"),
        *(
            (reason, "correct image: in the manifest")
            for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
        ),
        ("CreateContainerConfigError", "correct the object that the message names; kubectl diff -f deploy/ shows"),
        *(
            (reason, "the node's container runtime could not start it")
            for reason in ("CreateContainerError", "RunContainerError", "StartError")
        ),
        ("CrashLoopBackOff", "kubectl -n gpushare logs agent-node-a -c agent --previous says why it ended"),
        ("OOMKilled", "it needs more memory than its limit"),
        ("Unschedulable", "make room for its requests"),
        ("ContainerCreating", "kubectl -n gpushare describe pod agent-node-a: its Events name the reason"),
    ],
)
def test_what_helps_an_agent_that_does_not_run_depends_on_why(reason: str, advice: str) -> None:
    stuck = agent("node-a", ready=False, container="agent", reason=reason, why="what the kubelet says")
    (finding,) = CHECKS["agents"](replace(WELL, agents=(stuck,)))
    assert (finding.code, finding.parameters["reason"]) == ("agent-not-ready", reason)
    assert finding.advice.startswith(advice)
    theirs = replace(stuck, name="kube-system/plugin-x", reason="", container="", original=True)
    (finding,) = CHECKS["agents"](replace(WELL, agents=(theirs,)))
    assert finding.advice == "kubectl -n kube-system logs plugin-x says why"


# --- The scheduler ----------------------------------------------------------------------------------------------------

STARTING = replace(EXTENDER, name="gpushare/scheduler-1", ready=False, why="starting", asked=None)
CRASHING = replace(STARTING, container="extender", reason="CrashLoopBackOff")
BEYOND = "gpushare/scheduler-0, gpushare/scheduler-1"
LOST = asking("lost", scheduler="other", promised=False)
WAITING = asking("web", "")
IGNORED = asking("lost", "", scheduler="gpushre-scheduler", seen=False, age_s=31.0)
FRESH = asking("new", "", scheduler="gpushre-scheduler", seen=False, age_s=29.0)
LEASE = "gpushare/gpushare-scheduler"


READY, ASKED = "ok extender extenders=gpushare/scheduler-0", "ok extender-asked calls=7"


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        case("extender", "warning no-extender", extenders=()),
        # With a scheduler of its own every replica is to be ready; behind a Service only the one that leads is,
        # unless a replica cannot start.
        case("extender", "error extender-not-ready", extenders=(STARTING,)),
        case("extender", "warning extender-not-ready", READY, ASKED, extenders=(EXTENDER, STARTING)),
        case("extender", "note extender-not-ready", READY, ASKED, extenders=(EXTENDER, STARTING), own_scheduler=False),
        case(
            "extender",
            "warning extender-not-ready",
            READY,
            ASKED,
            extenders=(EXTENDER, CRASHING),
            own_scheduler=False,
        ),
        case(
            "extender",
            f"ok extender extenders={BEYOND}",
            "ok extender-asked calls=14",
            extenders=(EXTENDER, replace(EXTENDER, name="gpushare/scheduler-1")),
        ),
        # The original's has no metrics that a right would show.
        case("extender", READY, extenders=(replace(EXTENDER, original=True, asked=None),)),
        case("extender", READY, "unknown calls-unknown", extenders=(replace(EXTENDER, asked=None),)),
        case("extender", READY, "warning extender-never-asked", extenders=(replace(EXTENDER, asked=0),)),
        case("extender", READY, "note extender-idle", extenders=(replace(EXTENDER, asked=0),), pods=()),
        case("scheduler version"),
        case("scheduler version", extenders=(replace(EXTENDER, kube_scheduler="v1.36.2"),), version=HIDDEN),
        *(
            (
                "scheduler version",
                {"extenders": (replace(EXTENDER, kube_scheduler=tag),), "version": server},
                [expected],
            )
            for tag, server, expected in (
                ("v1.36.2", "v1.36.2", "ok scheduler-version minor=v1.36"),
                ("v1.36.4", "v1.36.2", "ok scheduler-version minor=v1.36"),
                ("v1.35.0", "v1.36.2", "ok scheduler-version minor=v1.36"),
                ("v1.36.2", "v1.30.4-gke.100", "warning scheduler-too-new minor=v1.30"),
                ("v1.34.9", "v1.36.2", "warning scheduler-too-old minor=v1.36"),
                ("", "v1.36.2", "unknown scheduler-version-unknown minor=v1.36"),
            )
        ),
        case("leader", "error leader-lost seconds=80", leases={LEASE: Lease("a", 80.0, 15.0)}),
        case("leader", "ok leader", leases={LEASE: Lease("a", 74.0, 15.0)}),
        case("leader", "error no-leader", leases={LEASE: Lease("", 1.0, 1.0)}),
        case("leader", "error no-lease", leases={}),
        case("leader", leases={}, own_scheduler=False),
        case(
            "scheduler configuration",
            "error configuration-version version=kubescheduler.config.k8s.io/v1beta2",
            "error configuration-version version=(none)",
            configurations={"x": "kubescheduler.config.k8s.io/v1beta2", "y": ""},
        ),
        case(
            "placement",
            "warning extender-not-asked pods=default/b, default/lost",
            pods=(POD, LOST, replace(LOST, pod=replace(LOST.pod, name="b"))),
        ),
        case("placement", pods=()),
        case(
            "pending pods",
            "error pods-ignored pods=default/lost",
            "note pods-pending pods=default/new, default/web",
            pods=(POD, WAITING, IGNORED, FRESH),
        ),
    ],
)
def test_the_scheduler(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert of(check, "extenders calls minor seconds version pods", **changes) == expected


@pytest.mark.parametrize(("asked", "advised"), [(None, False), (HIDDEN, True)])
def test_a_right_is_advised_only_where_it_keeps_the_calls_unknown(asked: Unknown | None, advised: bool) -> None:  # noqa: FBT001
    found = CHECKS["extender"](replace(WELL, extenders=(replace(EXTENDER, asked=asked),)))
    (unknown,) = (each for each in found if each.code == "calls-unknown")
    assert ("the right to get pods/proxy" in unknown.advice) is advised


# --- Versions and other installations ---------------------------------------------------------------------------------

THEIR_AGENT = agent("node-a", name="kube-system/gpushare-device-plugin-ds-x", original=True)
THEIR_EXTENDER = replace(EXTENDER, name="kube-system/gpushare-schd-extender-x", original=True)
NEWER = (replace(EXTENDER, version="0.2.0"),)


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        case(
            "versions",
            "note versions-differ versions=1 x 0.2.0, 1 x v0.1.5",
            agents=(agent("node-b", version="v0.1.5"),),
            extenders=NEWER,
        ),
        case(
            "versions",
            "warning versions-apart versions=1 x 0.0.9, 1 x 0.2.0",
            agents=(agent("node-b", version="0.0.9"),),
            extenders=NEWER,
        ),
        case(
            "versions",
            "warning versions-apart versions=1 x 0.2.0, 1 x 1.2.0",
            agents=(agent("node-b", version="0.2.0"),),
            extenders=(replace(EXTENDER, version="1.2.0"),),
        ),
        case(
            "versions",
            "unknown versions-unknown",
            "ok versions versions=1 x 0.1.0, 1 x latest",
            agents=(agent("node-a", version="latest"),),
        ),
        case("versions", agents=(), extenders=()),
        case(
            "gpushare's own parts",
            "error original-agent",
            "error original-extender-beside-ours",
            agents=(*WELL.agents, THEIR_AGENT),
            extenders=(EXTENDER, THEIR_EXTENDER),
        ),
        case("gpushare's own parts", agents=(agent("n", original=True),)),
        case("gpushare's own parts", "note original-extender", extenders=(THEIR_EXTENDER,)),
        case(
            "policies",
            "note policies-missing policies=gpushare-placement, gpushare-size",
            policies=ADMISSION_POLICIES - {"gpushare-placement", "gpushare-size"},
        ),
    ],
)
def test_versions_and_other_installations(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert of(check, "versions policies", **changes) == expected


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        (frozenset[str](), "16 admission policies are not installed: pods may"),
        (ADMISSION_POLICIES - {"gpushare-size"}, "1 admission policy is not installed (gpushare-size): pods may"),
    ],
)
def test_the_policies_are_named_unless_all_are_missing(installed: frozenset[str], sentence: str) -> None:
    (finding,) = CHECKS["policies"](replace(WELL, policies=installed))
    assert str(finding).startswith(sentence)
    assert finding.parameters["policies"] == tuple(sorted(ADMISSION_POLICIES - installed))


def test_the_policies_are_those_of_the_manifest() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/policies.yaml").read_text(encoding="utf-8"))
    assert {
        one["metadata"]["name"] for one in documents if one["kind"] == "ValidatingAdmissionPolicy"
    } == ADMISSION_POLICIES


# --- A reader with few rights -----------------------------------------------------------------------------------------

WELL_POD = Pod("u1", "ml", "a", "n1", "Running")
OVER = Pod("u2", "ml", "b", "n1", "Running", annotations={OVER_USE: "container main uses 9 MiB, was granted 5 MiB"})


def left_out(*, nodes: bool, namespace: str) -> set[str]:
    rights, *others = examine_partly(WELL, [], ["no nodes"], "ask Ann", nodes=nodes, namespace=namespace)
    assert (rights.severity, rights.check, rights.code, rights.advice) == (
        "unknown",
        "rights",
        "rights-missing",
        "ask Ann",
    )
    names = set(str(rights.parameters["checks"]).split(", "))
    assert not names & {finding.check for finding in others if finding.check != "memory use"}
    return names


def test_what_is_not_examined_comes_first_and_is_less_with_more_rights() -> None:
    assert set(CHECKS) > left_out(nodes=False, namespace="ml") > left_out(nodes=True, namespace="ml")
    assert left_out(nodes=True, namespace="ml") > left_out(nodes=True, namespace="")


@pytest.mark.parametrize(
    ("pods", "namespace", "expected"),
    [
        ([WELL_POD], "ml", "ok use namespace=ml"),
        ([], "", "ok use namespace="),
        ([WELL_POD, OVER], "ml", "warning over-use pod=ml/b"),
    ],
)
def test_without_nodes_over_use_is_what_agents_wrote_on_pods(pods: list[Pod], namespace: str, expected: str) -> None:
    findings = examine_partly(WELL, pods, [], "", nodes=False, namespace=namespace)
    assert told([finding for finding in findings if finding.check == "memory use"], "namespace pod") == [expected]
