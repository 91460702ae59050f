"""What is wrong on a node: each case one symptom, what the doctor finds, and nothing else."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.conflicts.rules import sightings
from gpu_device_plugin.features.limits.rules.enforcement import Facts
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.keys import NODE_USE, SCHEDULE_LABEL, SET_LIMITS_LABEL
from gpu_device_plugin.model.contract.node_use import NO_REPORT
from gpu_device_plugin.model.contract.nodegpus import NO_GPUS, ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.programs.doctor.rules.cluster_checks import set_count
from gpu_device_plugin.programs.doctor.rules.findings_report import worst
from gpu_device_plugin.programs.doctor.rules.symptoms import (
    AgentSeen,
    ApiSeen,
    NodeSeen,
    NodeSymptoms,
    Profiles,
    Runtime,
    node_seen,
)
from gpu_device_plugin.report.rules.finding import Unknown, examine
from tests.findings import case, told
from tests.names import COUNT, MEM
from tests.programs.doctor.rules.test_limit_checks import HELD, HOG, MISSING
from tests.reporting import NODE_CHECKS as CHECKS
from tests.reports import report
from tests.resources import RESOURCES

GPUS = (
    Gpu("GPU-a", 0, "Tesla T4", 15360, 0, device_paths=("/dev/nvidia0",), memory_limits=True),
    Gpu("GPU-b", 1, "Tesla T4", 15360, 0, device_paths=("/dev/nvidia1",), memory_limits=True),
)
CONTAINERD = Runtime("containerd", "/etc/containerd/config.toml", ("nvidia",), default=False, cdi=True)
WELL = NodeSymptoms(
    settings=NODE_SETTINGS(node_name="node-a"),
    resources=RESOURCES,
    inventory=Inventory(GPUS, driver_version="615.71.09", cgroup=2),
    device_nodes={"/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/nvidia0": "", "/dev/nvidia1": ""},
    runtimes=(CONTAINERD,),
    cdi_devices=frozenset({"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}),
    toolkit="1.20.1",
    obeys_images=False,
    cgroup=2,
    agent=AgentSeen("http://127.0.0.1:9445", streams={MEM: True, COUNT: True}, version="0.1.0"),
    agents_running=1,
    api=ApiSeen(
        "https://10.96.0.1:443",
        version="v1.36.2",
        skew_s=0.4,
        rights={"get nodes": True, "patch nodes": True},
        node=NodeSeen(
            name="node-a",
            labels={"gpushare": "true"},
            allocatable={MEM: 30, COUNT: 2},
            capacity={MEM: 30, COUNT: 2},
            gpus=NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15)), share_mib=1024),
        ),
    ),
)
AMD = replace(
    WELL.inventory,
    gpus=(Gpu("GPU-5B1E6A0C2F3D4E00", 0, "AMD Instinct MI300X", 196_592, memory_limits=True, driver="amdgpu"),),
)
HIDDEN = Unknown("hidden", "not to be seen", "look {where}", where="elsewhere")


def of(check: str, show: str = "", **changes: Any) -> list[str]:
    """Return the findings of one check, with the parameters that `show` names."""
    return told(CHECKS[check](changed(WELL, changes)), show)


def changed(node: NodeSymptoms, changes: dict[str, Any]) -> NodeSymptoms:
    """Return a node with other settings and symptoms; what has the name of both is a symptom."""
    names = {each.name for each in fields(node.settings)} - {each.name for each in fields(node)}
    settings = replace(node.settings, **{name: value for name, value in changes.items() if name in names})
    return replace(node, settings=settings, **{name: value for name, value in changes.items() if name not in names})


def api(**changes: Any) -> ApiSeen:
    assert isinstance(WELL.api, ApiSeen)
    of_node = {name: changes.pop(name) for name in [*changes] if name in NodeSeen.__dataclass_fields__}
    return replace(WELL.api, node=replace(WELL.api.node, **of_node), **changes)


def agent(**changes: Any) -> AgentSeen:
    assert isinstance(WELL.agent, AgentSeen)
    return replace(WELL.agent, **changes)


def labelled(**labels: str) -> ApiSeen:
    return api(labels={"gpushare": "true", **{f"gpu-device-plugin/{name}": value for name, value in labels.items()}})


def test_the_sentences_of_a_node_that_is_well() -> None:
    findings = examine(CHECKS, WELL)
    assert [f"{finding.check}: {finding}" for finding in findings] == [
        "driver: driver 615.71.09, 2 x Tesla T4",
        "GPUs: 2 healthy",
        "device nodes: /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidia1",
        (
            "container runtime: containerd knows NVIDIA's runtime as nvidia, which needs runtimeClassName: nvidia on "
            "every GPU pod (/etc/containerd/config.toml)"
        ),
        "CDI: 2 devices in CDI files; without cdi in --devices none is requested",
        "images: NVIDIA_VISIBLE_DEVICES of images and pods counts for privileged containers only",
        "cgroups: version 2",
        "memory limits: cgroup: driver 615.71.09 and nvidia-container-toolkit 1.20.1 hold containers to their memory",
        "shares: 2 GPUs, 30 shares of 1 GiB (4000 are the most)",
        "kubelet directory: /var/lib/kubelet/device-plugins can be written",
        "kubelet: listens on /var/lib/kubelet/device-plugins/kubelet.sock",
        "kubelet's records: PodResources answers, and the checkpoint can be read",
        "agent: version 0.1.0 is ready (http://127.0.0.1:9445)",
        "registration: the kubelet listens to aliyun.com/gpu-mem",
        "registration: the kubelet listens to aliyun.com/gpu-count",
        "other plugins: no other plugin hands out GPUs here",
        "API server: https://10.96.0.1:443 answers, Kubernetes v1.36.2",
        "rights: the account has all 2 rights that the agent needs",
        "node: node-a is labelled gpushare=true",
        "allocatable: 30 aliyun.com/gpu-mem can be allocated",
        "allocatable: 2 aliyun.com/gpu-count can be allocated",
        "capacity: matches the GPUs on 1 node",
        "clock: agrees with the API server's",
    ]
    assert worst(findings) == "note"


NO_INVENTORY = Inventory((), driver_version=None)
OLD = Inventory(tuple(replace(gpu, memory_limits=False) for gpu in GPUS), driver_version="580.95.05", cgroup=2)
MISSING_NODES = {
    "/dev/nvidiactl": "",
    "/dev/nvidia-uvm": "is missing",
    "/dev/nvidia0": "is missing",
    "/dev/nvidia1": "",
}
UNLINKED: dict[str, Any] = {"unlinked_nodes": ("/dev/nvidiactl", "/dev/nvidia0")}
NODES = "/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidia1"
DEFAULT = (replace(CONTAINERD, default=True),)
SHOWN = "paths runtimes devices gpu why"


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        case("driver", "error driver-unusable", driver_problem="it hangs"),
        case("driver", "error no-driver", driver_problem="x", driver_missing=True),
        case("driver", "error no-driver-in-container", driver_problem="x", driver_missing=True, in_container=True),
        case("device nodes", driver_missing=True, device_nodes={"/dev/nvidiactl": "is missing"}),
        case("driver", "error no-gpu", inventory=NO_INVENTORY),
        case("driver", "error no-gpu why=an APU", inventory=NO_INVENTORY, left_out="an APU"),
        case("driver", "ok driver", gpus="gpus.yaml"),
        case(
            "driver",
            "error gpu-unread why=GPU-c is left out",
            inventory=replace(NO_INVENTORY, unread=("GPU-c is left out",)),
        ),
        case(
            "driver",
            "error gpu-unread why=GPU-c is left out",
            "ok driver",
            inventory=replace(WELL.inventory, unread=("GPU-c is left out",)),
        ),
        case("GPUs", "error gpu-unhealthy gpu=GPU 0 (GPU-a) why=XID 79", unhealthy={"GPU-a": "XID 79"}),
        case("GPUs", inventory=NO_INVENTORY),
        case("GPU condition", "unknown hidden", telemetry=HIDDEN),
        case("shares", "unknown nothing-to-share", inventory=NO_INVENTORY),
        case("cgroups", "warning cgroup-v1", cgroup=1),
        case("cgroups", "unknown hidden", cgroup=HIDDEN),
        # A daemon-reload takes the GPU away of nodes that systemd does not know, unless the runtime is given a rule.
        case("device nodes", "ok invented", gpus="gpus.yaml"),
        case(
            "device nodes",
            "error no-uvm why=is missing",
            "error no-device-node paths=/dev/nvidia0 why=is missing",
            "ok device-nodes paths=/dev/nvidiactl, /dev/nvidia1",
            device_nodes=MISSING_NODES,
        ),
        case("device nodes", "unknown uvm-hidden", device_nodes={"/dev/nvidia-uvm": "is missing"}, in_container=True),
        case(
            "device nodes",
            "error no-device-node paths=/dev/a why=is no device",
            device_nodes={"/dev/a": "is no device"},
        ),
        case(
            "device nodes",
            f"ok device-nodes paths={NODES}",
            "warning device-nodes-unlinked paths=/dev/nvidiactl, /dev/nvidia0",
            **UNLINKED,
        ),
        case("device nodes", f"ok device-nodes paths={NODES}", **UNLINKED, devices=("envvar", "device-specs")),
        case("device nodes", f"ok device-nodes paths={NODES}", **UNLINKED, devices=("cdi",)),
        # Without NVIDIA's runtime a variable gives no GPU.
        case("container runtime", "ok invented", gpus="gpus.yaml", runtimes=()),
        case("container runtime", "ok runtime-default", runtimes=DEFAULT),
        case("container runtime", "error no-nvidia-runtime runtimes=no container runtime", runtimes=()),
        case(
            "container runtime",
            "error no-nvidia-runtime runtimes=containerd (/etc/containerd/config.toml)",
            runtimes=(replace(CONTAINERD, handlers=()),),
        ),
        case(
            "container runtime",
            "error runtime-without-effect paths=/d.toml",
            runtimes=(replace(CONTAINERD, handlers=(), without_effect=("/d.toml",)),),
        ),
        case("container runtime", runtimes=(), devices=("cdi",)),
        case("container runtime", "ok runtime-gave-driver", runtimes=HIDDEN, in_container=True),
        case("container runtime", "unknown hidden", runtimes=HIDDEN),
        case("container runtime", "unknown hidden", runtimes=HIDDEN, in_container=True, driver_problem="x"),
        case("container runtime", "unknown hidden", runtimes=HIDDEN, in_container=True, gpus="gpus.yaml"),
        # A CDI file that names GPUs otherwise is of no use; the toolkit writes indexes unless told otherwise.
        case("CDI", cdi_devices=HIDDEN),
        case("CDI", "unknown hidden", cdi_devices=HIDDEN, devices=("cdi",)),
        case("CDI", "ok cdi devices=2", devices=("cdi",)),
        case(
            "CDI",
            "error cdi-devices-missing devices=nvidia.com/gpu=GPU-a",
            devices=("cdi",),
            cdi_devices=frozenset({"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-b"}),
        ),
        case(
            "CDI",
            "ok cdi devices=2",
            "warning no-runtime-with-cdi",
            devices=("cdi",),
            runtimes=(replace(CONTAINERD, cdi=False),),
        ),
        case("CDI", "ok cdi devices=2", devices=("cdi",), runtimes=HIDDEN),
        # Images that ask for every GPU are worst where every container runs with NVIDIA's runtime.
        case("images", "warning images-see-gpus", obeys_images=True, runtimes=DEFAULT),
        case("images", "note images-see-gpus-with-class", obeys_images=True),
        case("images", "note images-see-gpus-with-class", obeys_images=True, runtimes=HIDDEN),
        case("images", "unknown hidden", obeys_images=HIDDEN),
    ],
)
def test_the_hardware_and_how_containers_reach_it(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert of(check, SHOWN, **changes) == expected


# --- Memory limits ----------------------------------------------------------------------------------------------------

CARRYING = ("0f6b8c1e/main", "1a2b3c4d/main", "1a2b3c4d/side")
WILL_NOT_RESTART = "warning containers-will-not-restart"
ONE_IN_MIG = replace(WELL.inventory, gpus=(GPUS[0], replace(GPUS[1], mig=True)))
CUSTOM = {"limits": "custom", "extra_grant": Path("/x")}
ASKS_MPS = {"api": labelled(**{"set-limits": "mps"}), "inventory": OLD, "mps": {}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus": "gpus.yaml"}, ["ok invented"]),
        ({"driver_problem": "x"}, ["unknown no-driver"]),
        (
            {**CUSTOM, "extra_grant_problem": "/x: none"},
            ["error extra-grant-unusable"],
        ),
        ({"inventory": OLD}, ["note limits-advisory"]),
        ({"inventory": replace(WELL.inventory, cgroup=1)}, ["note limits-advisory"]),
        ({"inventory": ONE_IN_MIG}, ["ok limits"]),
        ({"inventory": OLD, "limits": "driver"}, ["error limits-missing"]),
        ({"inventory": OLD, "limits": "driver", "limits_fallback": "advisory"}, ["warning limits-missing"]),
        (ASKS_MPS, ["ok limits"]),
        ({"inventory": OLD, "api": HIDDEN, **CUSTOM}, ["note limits-soft"]),
        ({"api": labelled(**{"set-limits": "all"})}, ["warning label-ignored", "ok limits"]),
        # ACK's label requires nothing, so that no container is refused.
        ({"api": api(labels={SCHEDULE_LABEL: "mps"}), "mps": "it does not run"}, ["warning limits-missing"]),
        ({"toolkit": "1.17.8"}, ["note toolkit-too-old toolkit=1.17.8"]),
        ({"toolkit": ""}, ["note toolkit-too-old toolkit=none"]),
        ({"toolkit": HIDDEN}, ["unknown toolkit-unknown"]),
        # An older agent gave containers the variables on a driver without limits; the hook fails at their next start.
        *(
            (
                {"inventory": OLD, "toolkit": toolkit, "with_driver_limits": CARRYING},
                ["note limits-advisory", f"{WILL_NOT_RESTART} toolkit={shown} containers={', '.join(CARRYING)}"],
            )
            for toolkit, shown in (("1.20.1", "1.20.1"), ("1.21.0", "1.21.0"), (HIDDEN, "1.20.1 or newer"))
        ),
        ({"inventory": OLD, "toolkit": "1.19.0", "with_driver_limits": CARRYING}, ["note limits-advisory"]),
        ({"with_driver_limits": CARRYING}, ["ok limits toolkit=1.20.1"]),
    ],
)
def test_who_holds_containers_to_their_memory(changes: dict[str, Any], expected: list[str]) -> None:
    show = "toolkit containers" if "toolkit" in changes or "with_driver_limits" in changes else ""
    assert of("memory limits", show, **changes) == expected


def test_limits_by_dmem_are_there_while_the_helper_sets_them() -> None:
    assert of("memory limits", "limits", inventory=AMD, dmem=Facts(helper="")) == [
        "ok limits limits=dmem: the limit helper has the kernel limit the memory of cgroups, by the controller dmem"
    ]
    (finding,) = CHECKS["memory limits"](changed(WELL, {"inventory": AMD, "dmem": Facts(helper="its pod is gone")}))
    assert finding.code == "limits-advisory"
    assert "advisory: its pod is gone" in str(finding)
    assert "MPS" not in finding.advice


def test_a_gpu_has_the_number_of_the_nodes_list() -> None:
    """And without one, as in MIG mode, its UUID: by its index people would take it for another."""
    listed = NodeGpus((ListedGpu(0, 15, "GPU-b"),))
    seen = replace(api(), node=NodeSeen(name="node-a", gpus=listed))
    unhealthy = {"GPU-a": "XID 79", "GPU-b": "XID 79"}
    assert of("GPUs", "gpu", unhealthy=unhealthy, api=seen) == [
        "error gpu-unhealthy gpu=the GPU GPU-a (nvidia-smi counts it as 0)",
        "error gpu-unhealthy gpu=GPU 0 (GPU-b)",
    ]


def test_the_advice_of_what_hides_the_toolkit_is_that_of_the_finding() -> None:
    (finding,) = CHECKS["memory limits"](replace(WELL, toolkit=HIDDEN))
    assert (finding.parameters["why"], finding.advice) == ("not to be seen", "look elsewhere")


READY = MpsGpu(MpsStatus.READY)
LEFT = {"mps": "it does not run", "mps_left": ("GPU-b", "GPU-x"), "mps_dir": Path("/run")}
DAEMONS = {"GPU-b": MpsGpu(MpsStatus.FAULT), "GPU-x": MpsGpu(MpsStatus.FAILED, "no program"), "GPU-a": READY}
ASKED = {"api": api(labels={SET_LIMITS_LABEL: "mps"})}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mps": {"GPU-a": READY}}, []),
        ({"limits": "mps", "api": HIDDEN, "mps": {"GPU-a": MpsGpu(MpsStatus.STOPPED)}}, ["ok supervisor"]),
        ({**ASKED, "mps": "it does not run"}, ["error no-supervisor"]),
        # What a supervisor that is gone did not give back matters where nobody asks for MPS.
        (LEFT, ["warning mps-left gpu=GPU 1 (GPU-b)", "warning mps-left gpu=GPU ? (GPU-x)"]),
        ({**LEFT, "limits": "mps"}, ["error no-supervisor"]),
        (
            {"limits": "mps", "mps": DAEMONS},
            [
                "warning mps-fault gpu=GPU 1 (GPU-b) state=fault",
                "warning mps-failed gpu=GPU ? (GPU-x) state=failed: no program",
            ],
        ),
    ],
)
def test_the_supervisor_of_a_node_is_examined_where_mps_is_wanted(changes: dict[str, Any], expected: list[str]) -> None:
    assert of("MPS", "gpu state", **changes) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (HIDDEN, []),
        (api(report=NO_REPORT), []),
        (api(report=report(HELD, HELD)), ["ok limits-held", "ok use"]),
        (api(report=NO_REPORT, report_problems=("it is no JSON; upgrade",)), ["warning report-unreadable"]),
        (api(report=report(HOG, MISSING)), ["warning limits-not-held", "warning over-use"]),
        (api(report=report(blind="no hostPID")), ["note use-unknown"]),
        (api(report=report(HOG, age_s=1200)), ["warning use-outdated"]),
    ],
)
def test_a_node_tells_of_its_own_containers(seen: ApiSeen | Unknown, expected: list[str]) -> None:
    assert of("limits held", api=seen) + of("memory use", api=seen) == expected


# --- Shares, the kubelet and the agent --------------------------------------------------------------------------------

PROFILES = Profiles("/etc/gpushare", ("big", "small"))
UNIFIED = Inventory((Gpu("GPU-u", 0, "NVIDIA GB10", 124610, unified=True),))
OTHERS = sightings(["nvidia-gpu.sock"], [], {}, ())


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        case(
            "shares",
            "warning share-size-waits size=2 GiB",
            "ok shares gpus=2 GPUs shares=14 size=2 GiB",
            share_mib_in_force=2048,
        ),
        case("shares", "ok shares gpus=2 GPUs shares=30 size=1 GiB", share_mib_in_force=1024),
        # Two GPUs of 15 GiB in shares of 1 MiB are 30,720 IDs.
        case("shares", "error too-many-shares", share_size_mib=1),
        case("shares", "note gpu-left-out", "ok shares gpus=1 GPU shares=15 size=1 GiB", exclude_gpus=("GPU-a",)),
        case("shares", "ok unified", inventory=UNIFIED),
        case("shares", "ok shares gpus=1 GPU shares=64 size=1 GiB", inventory=UNIFIED, unified_memory_mib=64 * 1024),
        case("shares", "error no-gpu-shared", share_size_mib=100 * 1024),
        case("shares", "error no-gpu-shared", exclude_gpus=("GPU-a", "1")),
        case(
            "shares", "warning excluded-gpu-unknown", "ok shares gpus=2 GPUs shares=30 size=1 GiB", exclude_gpus=("9",)
        ),
        case("shares", "ok shares gpus=2 GPUs shares=28 size=1 GiB", reserve_mib=1024),
        case("kubelet directory", "error directory-unusable", directory_problem="no directory"),
        case("kubelet", "error no-kubelet", kubelet_listens=False),
        case(
            "kubelet's records",
            "error pod-resources-unreadable",
            "error checkpoint-unreadable",
            pod_resources_problem="no answer",
            checkpoint_problem="damaged",
        ),
        case("kubelet's records", "error checkpoint-unreadable", checkpoint_problem="damaged"),
        case("agent", "error no-agent node=node-a", agents_running=0, agent=HIDDEN),
        case("agent", "error no-agent node=NODE", agents_running=0, node_name=""),
        case("agent", "unknown hidden", agents_running=None, agent=HIDDEN),
        case("agent", "unknown hidden", agent=HIDDEN),
        ("agent", {"agent": agent(missing=("no stream", "paused"))}, ["error agent-not-ready"] * 2),
        case("agent", "ok agent-ready", agent=agent(version="")),
        case("registration", agent=HIDDEN),
        case(
            "registration",
            f"ok registered resource={MEM}",
            f"error not-registered resource={COUNT}",
            agent=agent(streams={MEM: True, COUNT: False}),
        ),
        case("other plugins", "error other-plugin", others=OTHERS),
        case("other plugins", "warning other-plugin-allowed", others=OTHERS, allow_other_plugins=True),
    ],
)
def test_shares_the_kubelet_and_the_agent(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    show = {"shares": "gpus shares size", "agent": "node", "registration": "resource"}.get(check, "")
    assert of(check, show, **changes) == expected


@pytest.mark.parametrize(
    ("label", "last", "expected"),
    [
        (None, None, "ok settings file=/etc/gpushare/default.yaml"),
        (None, "", "ok settings file=/etc/gpushare/default.yaml"),
        ("default", None, "ok settings file=/etc/gpushare/default.yaml"),
        ("big", "big", "ok settings file=/etc/gpushare/big.yaml"),
        ("big", "small", "warning settings-not-applied file=/etc/gpushare/big.yaml"),
        ("bigg", "big", "error no-such-profile"),
    ],
)
def test_the_settings_are_those_of_the_profile_that_the_label_names(
    label: str | None, last: str | None, expected: str
) -> None:
    named = api(labels={}) if label is None else labelled(config=label)
    assert of("settings", "file", api=named, profiles=replace(PROFILES, last=last)) == [expected]


@pytest.mark.parametrize("unseen", [HIDDEN, api(problem="refused"), api(node_problem="404")])
@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (Profiles("/etc/gpushare", ("big",), "big"), ["ok settings file=/etc/gpushare/big.yaml"]),
        (Profiles(), []),
        (Profiles("/etc/gpushare"), ["ok settings file=/etc/gpushare/default.yaml"]),
        (Profiles("/etc/gpushare", ("big",)), ["unknown profile-unknown"]),
    ],
)
def test_where_the_label_is_not_to_be_seen_the_agents_last_profile_tells(
    unseen: ApiSeen | Unknown, profiles: Profiles, expected: list[str]
) -> None:
    assert of("settings", "file", api=unseen, profiles=profiles) == expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("", "error settings-unusable problem=line 1"),
        ("default", "error settings-unusable problem=line 1"),
        ("big", "error settings-unusable problem=line 2"),
        ("small", "ok settings"),
        ("bigg", "error no-such-profile"),
    ],
)
def test_a_file_that_cannot_be_used_matters_to_the_nodes_that_have_it(label: str, expected: str) -> None:
    profiles = replace(PROFILES, problems={"": "line 1", "big": "line 2"})
    assert of("settings", "problem", api=labelled(config=label), profiles=profiles) == [expected]
    assert of("settings", profiles=Profiles(problems={"": "line 1"})) == ["error settings-unusable"]


# --- The API ----------------------------------------------------------------------------------------------------------

DENIED = {"get nodes": True, "create pods/eviction": False, "patch pods": False, "patch nodes/status": False}


def rights(**changes: bool | None) -> ApiSeen:
    return api(rights={"get nodes": True} | {name.replace("_", " "): may for name, may in changes.items()})


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        case("API server", "unknown hidden", api=HIDDEN),
        case("API server", "error api-unreachable", api=api(problem="refused")),
        case("API server", "ok api", "note api-errors calls=3", api=api(version=""), agent=agent(api_errors=3)),
        *(
            (check, {"api": unseen}, [])
            for check in ("rights", "node", "allocatable", "clock")
            for unseen in (HIDDEN, api(problem="refused"))
        ),
        case("rights", "unknown rights-unknown rights=watch pods", api=rights(watch_pods=None)),
        case("rights", "error rights-missing rights=patch pods", api=rights(patch_pods=False)),
        case(
            "rights",
            "error rights-missing rights=patch pods",
            "unknown rights-unknown rights=watch pods",
            api=rights(patch_pods=False, watch_pods=None),
        ),
        case(
            "rights",
            "error rights-for-settings-missing right=create pods/eviction value=agent.evict",
            "error rights-for-settings-missing right=patch nodes/status value=agent.nodeCondition",
            "error rights-missing rights=patch pods",
            api=api(rights=DENIED),
        ),
        case("node", "error node-unreadable", api=api(node_problem="404")),
        case("node", "note node-not-labelled", api=api(labels={})),
        case("allocatable", api=api(node_problem="404")),
        case(
            "allocatable",
            f"note all-in-use resource={MEM}",
            f"error not-offered resource={COUNT}",
            api=api(allocatable={MEM: 0}),
        ),
        case("clock", "unknown clock-unknown", api=api(skew_s=None)),
        case("clock", "ok clock", api=api(skew_s=29.0)),
        case("clock", "warning clock-skewed seconds=300", api=api(skew_s=300.0)),
        case("clock", "warning clock-skewed seconds=45", api=api(skew_s=-45.0)),
        case("capacity", "ok capacity"),
        case(
            "capacity",
            f"warning capacity-differs resource={MEM} kubelet=28 agent=30",
            f"warning capacity-differs resource={COUNT} kubelet=3 agent=2",
            api=api(capacity={MEM: 28, COUNT: 3}),
        ),
        case(
            "capacity",
            f"warning capacity-differs resource={COUNT} kubelet=0 agent=2",
            api=api(capacity={MEM: 30, COUNT: 0}),
        ),
        case("capacity", "ok capacity", api=api(capacity={})),  # that it has none is told elsewhere
        # For gpushare's extender a number that the agent does not offer is right, and only for that one; 0 is what
        # the kubelet leaves of what it forgot.
        case("capacity", f"note count-not-offered resource={COUNT} kubelet=2", resources=RESOURCES[:1]),
        case("capacity", "ok capacity", resources=RESOURCES[:1], api=api(capacity={MEM: 30, COUNT: 0})),
        case(
            "capacity",
            f"warning capacity-differs resource={COUNT} kubelet=1 agent=2",
            resources=RESOURCES[:1],
            api=api(capacity={MEM: 30, COUNT: 1}),
        ),
        case(
            "capacity",
            f"note count-not-offered resource={COUNT} kubelet=2",
            resources=RESOURCES[:1],
            api=api(gpus=NO_GPUS),
        ),
        # Where the agent is not ready no amount is called wrong.
        case("capacity", api=HIDDEN),
        case("capacity", agent=HIDDEN),
        case("capacity", agent=AgentSeen("x", ("not ready",))),
    ],
)
def test_the_api_and_what_it_tells(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert of(check, "calls rights right value resource kubelet agent seconds", **changes) == expected


def test_the_command_that_sets_the_number_of_gpus_is_one_of_kubectl() -> None:
    assert set_count("n", COUNT, 2) == (
        "kubectl patch node n --subresource=status --type=merge "
        """-p '{"status":{"capacity":{"aliyun.com/gpu-count":"2"}}}'"""
    )
    assert '"aliyun.com/gpu-count":null' in set_count("n", COUNT, None)


def test_a_node_is_seen_with_what_its_annotations_say() -> None:
    seen = node_seen(NodeRecord("a", "uid", annotations={NODE_USE: "nonsense"}, capacity={MEM: 8}), 0.0, annotated=True)
    assert (seen.name, seen.capacity, seen.annotated, seen.gpus) == ("a", {MEM: 8}, True, NO_GPUS)
    assert (seen.report, len(seen.report_problems)) == (NO_REPORT, 1)


def test_it_is_told_whose_settings_are_examined() -> None:
    assert of("settings", "agent others", followed=("process 7",)) == ["note settings-of-agent agent=process 7"]
    several = changed(WELL, {"followed": ("a", "b", "c")})
    (said,) = CHECKS["settings"](several)
    assert str(said) == "those of the agent that runs on this machine: a; 2 other agents run here"
