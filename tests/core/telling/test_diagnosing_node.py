"""What is wrong on a node: each case one symptom, what the doctor says of it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.core.contract.nodegpus import NO_GPUS, ListedGpu, NodeGpus
from gpu_device_plugin.core.model.gpus import Gpu, Inventory
from gpu_device_plugin.core.node.others import sightings
from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, examine, worst
from gpu_device_plugin.core.telling.diagnosing_node import CHECKS
from gpu_device_plugin.core.telling.node_symptoms import AgentSeen, ApiSeen, NodeSymptoms, Profiles, Runtime
from gpu_device_plugin.core.telling.nodeamounts import set_count
from tests.names import COUNT, MEM
from tests.resources import RESOURCES

GPUS = (
    Gpu("GPU-a", 0, "Tesla T4", 15360, 0, minor=0, memory_limits=True),
    Gpu("GPU-b", 1, "Tesla T4", 15360, 0, minor=1, memory_limits=True),
)
CONTAINERD = Runtime("containerd", "/etc/containerd/config.toml", ("nvidia",), default=False, cdi=True)
NEEDS_CLASS = (
    "containerd knows NVIDIA's runtime as nvidia, which needs runtimeClassName: nvidia on every GPU pod "
    "(/etc/containerd/config.toml)"
)
WELL = NodeSymptoms(
    resources=RESOURCES,
    memory_resource=MEM,
    count_resource=COUNT,
    share_mib=1024,
    inventory=Inventory(GPUS, driver_version="615.71.09", cgroup=2),
    device_nodes={"/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/nvidia0": "", "/dev/nvidia1": ""},
    runtimes=(CONTAINERD,),
    cdi_devices=frozenset({"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}),
    toolkit="1.20.1",
    obeys_images=False,
    cgroup=2,
    directory="/var/lib/kubelet/device-plugins",
    agent=AgentSeen("http://127.0.0.1:9445", streams={MEM: True, COUNT: True}, version="0.1.0"),
    agents_running=1,
    api=ApiSeen(
        "https://10.96.0.1:443",
        version="v1.36.2",
        skew_s=0.4,
        rights={"get nodes": True, "patch nodes": True},
        labels={"gpushare": "true"},
        allocatable={MEM: 30, COUNT: 2},
        capacity={MEM: 30, COUNT: 2},
        gpus=NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15)), share_mib=1024),
    ),
    node_name="node-a",
)


def of(check: str, symptoms: NodeSymptoms = WELL, **changes: Any) -> list[str]:
    """Return what one check says, as `severity: found -> advice`."""
    return [_told(each) for each in CHECKS[check](replace(symptoms, **changes))]


def _told(finding: Finding) -> str:
    return f"{finding.severity}: {finding.found}{f' -> {finding.advice}' if finding.advice else ''}"


def api(**changes: Any) -> ApiSeen:
    assert isinstance(WELL.api, ApiSeen)
    return replace(WELL.api, **changes)


def agent(**changes: Any) -> AgentSeen:
    assert isinstance(WELL.agent, AgentSeen)
    return replace(WELL.agent, **changes)


def test_of_a_node_that_is_well_everything_is_told_and_nothing_is_wrong() -> None:
    findings = examine(CHECKS, WELL)
    assert [f"{finding.check}: {finding.found}" for finding in findings] == [
        "driver: driver 615.71.09, 2 x Tesla T4",
        "GPUs: 2 healthy",
        "device nodes: /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidia1",
        f"container runtime: {NEEDS_CLASS}",
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
        "capacity: matches the GPUs",
        "clock: agrees with the API server's",
    ]
    assert worst(findings) == "note"


# --- Hardware ---------------------------------------------------------------------------------------------------------


def test_a_driver_that_cannot_be_used_is_told_with_its_own_advice() -> None:
    problem = "opening NVML failed: Driver Not Loaded (9); load the kernel module; then look again"
    assert of("driver", driver_problem=problem) == [
        "error: opening NVML failed: Driver Not Loaded (9) -> load the kernel module; then look again"
    ]
    assert of("driver", driver_problem="it hangs") == ["error: it hangs -> see the agent's log"]
    assert of("memory limits", driver_problem=problem) == ["unknown: advisory as long as no driver answers"]


def test_a_driver_without_gpus() -> None:
    none = Inventory((), driver_version=None)
    (told,) = of("driver", inventory=none)
    assert told.startswith("error: the driver answers, and lists no GPU -> see nvidia-smi -L on the node")
    assert of("GPUs", inventory=none) == []
    assert of("shares", inventory=none) == ["unknown: there is no GPU to share"]


def test_gpus_out_of_service() -> None:
    (told,) = of("GPUs", unhealthy={"GPU-a": "XID 79 (it has fallen off the bus)"})
    assert told.startswith("error: GPU 0 (GPU-a) is out of service: XID 79 (it has fallen off the bus) -> docs/")


def test_device_nodes_that_are_missing() -> None:
    nodes = {"/dev/nvidiactl": "", "/dev/nvidia-uvm": "is missing", "/dev/nvidia0": "is missing", "/dev/nvidia1": ""}
    smi = "nvidia-smi as root on the node creates it, and nvidia-persistenced keeps it"
    uvm, *others = of("device nodes", device_nodes=nodes)
    assert uvm.startswith("error: /dev/nvidia-uvm is missing -> nvidia-modprobe -u -c 0 on the node creates it")
    assert others == [f"error: /dev/nvidia0 is missing -> {smi}", "ok: /dev/nvidiactl, /dev/nvidia1"]
    assert of("device nodes", device_nodes=nodes, in_container=True)[0] == (
        "unknown: /dev/nvidia-uvm is for CUDA, and this container does not have it -> run the doctor on the node"
    )
    assert of("device nodes", device_nodes={"/dev/nvidiactl": "is no device"}) == [
        f"error: /dev/nvidiactl is no device -> {smi}"
    ]


def test_nodes_that_systemd_does_not_know_matter_where_no_rule_is_given_to_the_runtime() -> None:
    """F6: a daemon-reload takes the GPU away."""
    unlinked = ("/dev/nvidiactl", "/dev/nvidia0")
    (_, told) = of("device nodes", unlinked_nodes=unlinked)
    assert told.startswith("warning: /dev/char does not lead to /dev/nvidiactl, /dev/nvidia0: with systemd cgroups")
    assert "nvidia-ctk system create-dev-char-symlinks" in told
    assert len(of("device nodes", unlinked_nodes=unlinked, devices=("envvar", "device-specs"))) == 1
    assert len(of("device nodes", unlinked_nodes=unlinked, devices=("cdi",))) == 1


def test_invented_gpus_need_no_devices_no_runtime_and_have_no_limits() -> None:
    assert of("driver", invented=True) == ["ok: driver 615.71.09, 2 x Tesla T4 (invented)"]
    assert of("device nodes", invented=True) == ["ok: invented GPUs have none"]
    assert of("container runtime", invented=True, runtimes=()) == ["ok: invented GPUs need none"]
    assert of("memory limits", invented=True) == ["ok: invented GPUs have none"]


# --- The container runtime --------------------------------------------------------------------------------------------


def test_a_default_runtime_needs_no_class() -> None:
    runtimes = (replace(CONTAINERD, default=True),)
    assert of("container runtime", runtimes=runtimes) == [
        "ok: containerd knows NVIDIA's runtime as nvidia, which is its default (/etc/containerd/config.toml)"
    ]


@pytest.mark.parametrize(
    ("runtimes", "seen"),
    [((), "no container runtime"), ((replace(CONTAINERD, handlers=()),), "containerd (/etc/containerd/config.toml)")],
)
def test_without_nvidias_runtime_a_variable_gives_no_gpu(runtimes: tuple[Runtime, ...], seen: str) -> None:
    (told,) = of("container runtime", runtimes=runtimes)
    assert told.startswith(f"error: no container runtime that is configured here knows NVIDIA's: {seen} -> install")
    assert of("container runtime", runtimes=runtimes, devices=("cdi",)) == []


def test_a_container_that_got_the_driver_proves_its_runtime() -> None:
    hidden = Unknown("not to be seen", "look elsewhere")
    assert of("container runtime", runtimes=hidden, in_container=True) == ["ok: it gave this container the driver"]
    for changes in ({}, {"in_container": True, "driver_problem": "none"}, {"in_container": True, "invented": True}):
        told = of("container runtime", runtimes=hidden, **changes)
        assert told == ["unknown: not to be seen -> look elsewhere"]


def test_cdi_names_are_wanted_only_where_they_are_given() -> None:
    assert of("CDI", cdi_devices=Unknown("hidden")) == []
    assert of("CDI", cdi_devices=Unknown("hidden"), devices=("cdi",)) == ["unknown: hidden"]
    assert of("CDI", devices=("cdi",)) == ["ok: CDI files name all 2 GPUs by UUID"]


def test_a_cdi_file_that_names_gpus_otherwise_is_of_no_use() -> None:
    """F9: the toolkit writes indexes unless told otherwise."""
    told = of("CDI", devices=("cdi",), cdi_devices=frozenset({"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-b"}))
    assert told[0].startswith("error: no CDI file names nvidia.com/gpu=GPU-a -> nvidia-ctk cdi generate")
    told = of("CDI", devices=("cdi",), runtimes=(replace(CONTAINERD, cdi=False),))
    assert told[1].startswith("warning: no container runtime that is configured here uses CDI")
    assert len(of("CDI", devices=("cdi",), runtimes=Unknown("hidden"))) == 1


def test_images_that_ask_for_every_gpu() -> None:
    """F2: worst where every container runs with NVIDIA's runtime."""
    default = (replace(CONTAINERD, default=True),)
    assert of("images", obeys_images=True, runtimes=default)[0].startswith(
        "warning: NVIDIA's runtime is the default here, so every container of an image with NVIDIA_VISIBLE_DEVICES=all"
    )
    for runtimes in ((CONTAINERD,), Unknown("hidden")):
        assert of("images", obeys_images=True, runtimes=runtimes)[0].startswith("note: a container that is run with")
    assert of("images", obeys_images=Unknown("no config.toml")) == ["unknown: no config.toml"]


def test_control_groups() -> None:
    assert of("cgroups", cgroup=1)[0].startswith("warning: version 1: no memory limits of the driver")
    assert of("cgroups", cgroup=Unknown("not there")) == ["unknown: not there"]


def test_who_holds_containers_to_their_memory() -> None:
    old = Inventory(tuple(replace(gpu, memory_limits=False) for gpu in GPUS), driver_version="580.95.05", cgroup=2)
    (told,) = of("memory limits", inventory=old)
    assert told == (
        "note: advisory: the driver has no memory limits, which come with r615 (driver 580.95.05) -> a container "
        "reads in GPUSHARE_MEMORY_LIMIT_MIB how much memory it may use, and nothing holds it to that; NVIDIA's MPS "
        "limits each process with this driver too: limits: mps"
    )
    assert of("memory limits", inventory=replace(WELL.inventory, cgroup=1))[0].startswith(
        "note: advisory: the node's cgroup version is 1, and must be 2 for the driver's limits (driver 615.71.09) -> "
    )
    one_in_mig = replace(WELL.inventory, gpus=(GPUS[0], replace(GPUS[1], mig=True)))
    assert of("memory limits", inventory=one_in_mig)[0].startswith("ok: cgroup: driver 615.71.09")


OLD = Inventory(tuple(replace(gpu, memory_limits=False) for gpu in GPUS), driver_version="580.95.05", cgroup=2)


def test_a_wanted_means_that_is_missing_is_an_error_where_shares_are_refused_for_it() -> None:
    missing = (
        "GPU 0, 1: the setting limits=driver asks for driver: the driver has no memory limits, which come with r615; "
    )
    (told,) = of("memory limits", inventory=OLD, limits="driver")
    assert told.startswith(
        f"error: {missing}containers are refused shares (limits_fallback: refuse) (driver 580.95.05) -> provide what is"
    )
    (told,) = of("memory limits", inventory=OLD, limits="driver", limits_fallback="advisory")
    assert told.startswith(f"warning: {missing}the limits are advisory there (driver 580.95.05) -> provide what is")


def test_a_node_label_chooses_the_means_and_one_of_an_unknown_value_is_told() -> None:
    asked = api(labels={"gpushare": "true", "gpu-device-plugin/set-limits": "mps"})
    (told,) = of("memory limits", inventory=OLD, api=asked, mps={})
    assert told == (
        "ok: mps: the node label gpu-device-plugin/set-limits=mps asks for it, and the server of MPS limits each "
        "process"
    )
    (told,) = of("memory limits", inventory=OLD, api=Unknown("hidden"), limits="custom", extra_grant=True)
    assert told.startswith("note: custom: the setting limits=custom asks for it, and the setting extra_grant adds a")
    ignored, held = of("memory limits", api=api(labels={"gpu-device-plugin/set-limits": "all"}))
    assert ignored.startswith("warning: the node label gpu-device-plugin/set-limits=all is ignored: its value is none")
    assert held.startswith("ok: cgroup: ")


@pytest.mark.parametrize(
    ("toolkit", "which"), [("1.20.1", "1.20.1"), ("1.21.0", "1.21.0"), (Unknown("hidden"), "1.20.1 or newer")]
)
def test_containers_that_a_toolkit_will_not_start_again_are_named(toolkit: str | Unknown, which: str) -> None:
    """An older agent gave them the variables on a driver without limits; the hook fails at their next start."""
    carrying = ("0f6b8c1e/main", "1a2b3c4d/main", "1a2b3c4d/side")
    _, told = of("memory limits", inventory=OLD, toolkit=toolkit, with_driver_limits=carrying)
    assert told.startswith(
        f"warning: nvidia-container-toolkit {which} in its CDI modes does not start containers with "
        "NVIDIA_GPU_MEMORY_LIMIT on this node, and an earlier agent gave it to 0f6b8c1e/main and 2 others: driver "
        "580.95.05 has no memory limits"
    )
    assert told.endswith(" before a container of theirs restarts")
    _, told = of("memory limits", inventory=OLD, toolkit=toolkit, with_driver_limits=carrying[:1])
    assert "gave it to 0f6b8c1e/main: driver" in told


def test_an_older_toolkit_and_a_driver_with_limits_start_them() -> None:
    carrying = ("0f6b8c1e/main",)
    assert len(of("memory limits", inventory=OLD, toolkit="1.19.0", with_driver_limits=carrying)) == 1
    assert len(of("memory limits", with_driver_limits=carrying)) == 1


def test_limits_of_the_driver_need_a_toolkit_that_asks_for_them() -> None:
    (told,) = of("memory limits", toolkit="1.17.8")
    assert told.startswith("note: advisory: driver 615.71.09 can limit memory (cgroup), and only")
    assert "(now 1.17.8) -> " in told
    assert "(now none) -> " in of("memory limits", toolkit="")[0]
    (told,) = of("memory limits", toolkit=Unknown("hidden", "look there"))
    assert told.startswith("unknown: driver 615.71.09 can limit memory (cgroup), if nvidia-container-toolkit is 1.20.1")
    assert told.endswith(": hidden -> look there")


# --- Shares and the kubelet -------------------------------------------------------------------------------------------


def test_a_share_size_that_waits_is_told_and_the_other_one_counted() -> None:
    waiting, counted = of("shares", share_mib_in_force=2048)
    assert waiting == (
        "warning: one share is 2 GiB, and a share_size of 1 GiB waits: containers held shares when the agent started"
        " -> drain the node, and restart its agent then"
    )
    assert "shares of 2 GiB" in counted
    assert len(of("shares", share_mib_in_force=1024)) == 1


def test_a_share_size_that_no_kubelet_copes_with_names_one_that_fits() -> None:
    """Two GPUs of 15 GiB in shares of 1 MiB are 30,720 IDs; with 8 MiB they are 3,840."""
    (told,) = of("shares", share_mib=1)
    assert told.startswith("error: a share size of 1 MiB cuts the GPUs of this node into 30720 shares")
    assert told.endswith("-> set the share size to 8 MiB or more")


def test_a_gpu_that_is_left_out_is_noted() -> None:
    assert of("shares", exclude_gpus=("GPU-a",)) == [
        "note: GPU 0 (GPU-a) is not shared: excluded by the configuration",
        "ok: 1 GPU, 15 shares of 1 GiB (4000 are the most)",
    ]


def test_a_node_that_shares_no_gpu_is_wrong_and_says_why() -> None:
    advice = "-> --share-size, --exclude-gpus and --mig decide about that"
    assert of("shares", share_mib=100 * 1024) == [
        f"error: no GPU is shared: 15 GiB, less than one share of 100 GiB (2 GPUs) {advice}"
    ]
    assert of("shares", exclude_gpus=("GPU-a", "1")) == [
        f"error: no GPU is shared: excluded by the configuration (2 GPUs) {advice}"
    ]


def test_a_gpu_to_leave_alone_that_is_not_there_is_a_warning() -> None:
    told, counted = of("shares", exclude_gpus=("9",))
    assert told == "warning: --exclude-gpus names 9, but this node has no such GPU -> see nvidia-smi -L, and use UUIDs"
    assert counted.startswith("ok: 2 GPUs")


def test_what_is_kept_back_of_each_gpu_is_no_share() -> None:
    assert of("shares", reserve_mib=1024) == ["ok: 2 GPUs, 28 shares of 1 GiB (4000 are the most)"]


def test_the_kubelets_side() -> None:
    assert of("kubelet directory", directory_problem="/x is not a directory; start a kubelet") == [
        "error: /x is not a directory -> start a kubelet"
    ]
    assert of("kubelet", kubelet_listens=False)[0].startswith(
        "error: no process listens on /var/lib/kubelet/device-plugins/kubelet.sock -> start the kubelet"
    )
    assert of("kubelet's records", pod_resources_problem="no answer; is it running?", checkpoint_problem="damaged") == [
        "error: no answer -> is it running?",
        "error: damaged -> see the agent's log",
    ]
    assert of("kubelet's records", checkpoint_problem="damaged") == ["error: damaged -> see the agent's log"]


# --- The agent --------------------------------------------------------------------------------------------------------


def test_no_agent_at_all() -> None:
    (told,) = of("agent", agents_running=0, agent=Unknown("nobody answers"))
    assert told.startswith("error: no agent runs here -> kubectl label node node-a gpushare=true")
    assert "label node NODE gpushare" in of("agent", agents_running=0, node_name="")[0]


def test_an_agent_that_is_not_to_be_reached_is_not_known_to_be_ill() -> None:
    for running in (None, 1):
        assert of("agent", agents_running=running, agent=Unknown("refused", "exec")) == ["unknown: refused -> exec"]
    assert of("registration", agent=Unknown("refused")) == []


@pytest.mark.parametrize(
    ("label", "last", "told"),
    [
        (None, None, "ok: those of /etc/gpushare/default.yaml"),
        (None, "", "ok: those of /etc/gpushare/default.yaml"),
        ("default", None, "ok: those of /etc/gpushare/default.yaml"),
        ("big", "big", "ok: those of /etc/gpushare/big.yaml"),
        (
            "big",
            "small",
            "warning: those of /etc/gpushare/big.yaml, which the agent has not applied -> see its log for the reason",
        ),
        (
            "bigg",
            "big",
            (
                "error: the node label gpu-device-plugin/config=bigg names no profile: there is no bigg.yaml in "
                "/etc/gpushare -> correct the label (kubectl label node node-a --overwrite "
                "gpu-device-plugin/config=...), or add the file"
            ),
        ),
    ],
)
def test_the_settings_are_those_of_the_profile_that_the_label_names(
    label: str | None, last: str | None, told: str
) -> None:
    labels = {} if label is None else {"gpu-device-plugin/config": label}
    profiles = Profiles("/etc/gpushare", ("big", "small"), last)
    assert of("settings", api=api(labels=labels), profiles=profiles) == [told]


@pytest.mark.parametrize("unseen", [Unknown("no service account"), api(problem="refused"), api(node_problem="404")])
def test_where_the_label_is_not_to_be_seen_the_agents_last_profile_tells(unseen: ApiSeen | Unknown) -> None:
    def told(*profiles: Any) -> list[str]:
        return of("settings", api=unseen, profiles=Profiles(*profiles))

    assert told("/etc/gpushare", ("big",), "big") == ["ok: those of /etc/gpushare/big.yaml"]
    assert told() == []
    assert told("/etc/gpushare") == ["ok: those of /etc/gpushare/default.yaml"]
    assert told("/etc/gpushare", ("big",)) == [
        "unknown: which profile this node has: its label gpu-device-plugin/config cannot be read from here"
    ]


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("", "error: line 1"),
        ("default", "error: line 1"),
        ("big", "error: line 2"),
        ("small", "ok: those of /etc/gpushare/small.yaml"),
        ("bigg", "error: the node label"),
    ],
)
def test_a_file_that_cannot_be_used_matters_to_the_nodes_that_have_it(label: str, told: str) -> None:
    profiles = Profiles("/etc/gpushare", ("big", "small"), problems={"": "line 1", "big": "line 2"})
    (found,) = of("settings", api=api(labels={"gpu-device-plugin/config": label}), profiles=profiles)
    assert found.startswith(told)
    advice = "correct it; until then a running agent keeps its settings, and one that starts shares no GPUs"
    assert of("settings", profiles=Profiles(problems={"": "line 1"})) == [f"error: line 1 -> {advice}"]


def test_what_its_readiness_lacks_is_told() -> None:
    assert of("agent", agent=agent(missing=("the kubelet does not listen", "paused; SIGUSR1"))) == [
        "error: the kubelet does not listen -> see the agent's log",
        "error: paused -> SIGUSR1",
    ]
    assert of("agent", agent=agent(version="")) == ["ok: is ready (http://127.0.0.1:9445)"]
    (_, told) = of("registration", agent=agent(streams={MEM: True, COUNT: False}))
    assert told.startswith("error: the kubelet does not listen to aliyun.com/gpu-count -> ")


def test_others_are_an_error_unless_they_are_allowed() -> None:
    found = sightings(["nvidia-gpu.sock"], [], {}, ())
    (told,) = of("other plugins", others=found)
    assert told.startswith("error: NVIDIA's device plugin")
    assert "so that the agent shares none -> where the GPU Operator deploys it, label the node" in told
    (told,) = of("other plugins", others=found, allow_other_plugins=True)
    assert told.endswith("which is allowed -> make sure that each has GPUs of its own: --exclude-gpus")


# --- The API ----------------------------------------------------------------------------------------------------------


def test_without_an_api_nothing_is_said_of_what_it_would_tell() -> None:
    for seen in (Unknown("the agent goes without"), api(problem="https://10.96.0.1: refused")):
        findings = examine(
            {name: CHECKS[name] for name in ("rights", "node", "allocatable", "clock")}, replace(WELL, api=seen)
        )
        assert findings == ()
    assert of("API server", api=Unknown("the agent goes without")) == ["unknown: the agent goes without"]
    assert of("API server", api=api(problem="https://10.96.0.1: refused"))[0].startswith(
        "error: https://10.96.0.1: refused"
    )


def test_an_api_that_did_not_always_answer_is_noted() -> None:
    (_, told) = of("API server", api=api(version=""), agent=agent(api_errors=3))
    assert told == "note: 3 calls of the agent failed since it started -> see its log for which, and why"


def test_rights_that_are_missing_or_unknown() -> None:
    assert len(of("rights", api=api(rights={"get nodes": True, "watch pods": None}))) == 1
    assert len(of("rights", api=api(rights={"get nodes": True, "patch pods": False}))) == 1
    denied, untold = of("rights", api=api(rights={"get nodes": True, "patch pods": False, "watch pods": None}))
    assert denied.startswith("error: the agent's account may not patch pods -> kubectl apply -f deploy/daemonset.yaml")
    assert untold == "unknown: the API server does not say whether the agent may watch pods"


def test_rights_for_some_settings_are_granted_by_a_manifest_of_their_own() -> None:
    denied = {"get nodes": True, "create pods/eviction": False, "patch pods": False, "patch nodes/status": False}
    assert of("rights", api=api(rights=denied)) == [
        (
            "error: the settings want pods evicted, and the agent's account may not create pods/eviction -> "
            "kubectl apply -f deploy/optional/evict.yaml (chart: agent.evict), which grants it"
        ),
        (
            "error: the settings want the node condition GPUHealthy, and the agent's account may not patch "
            "nodes/status -> kubectl apply -f deploy/optional/evict.yaml (chart: agent.nodeCondition), which grants it"
        ),
        (
            "error: the agent's account may not patch pods -> "
            "kubectl apply -f deploy/daemonset.yaml, whose ClusterRole gpushare-node grants it"
        ),
    ]


def test_a_node_of_another_name_or_without_the_label() -> None:
    assert of("node", api=api(node_problem="get nodes x: 404 NotFound; set NODE_NAME")) == [
        "error: get nodes x: 404 NotFound -> set NODE_NAME"
    ]
    assert of("allocatable", api=api(node_problem="404")) == []
    (told,) = of("node", api=api(labels={}))
    assert told.startswith("note: node-a is not labelled gpushare=true, by which the DaemonSet selects nodes -> ")
    assert told.endswith("-> kubectl label node node-a gpushare=true")


def test_what_the_kubelet_offers() -> None:
    assert of("allocatable", api=api(allocatable={MEM: 0})) == [
        "note: no aliyun.com/gpu-mem can be allocated: all GPUs are in whole use or out of service, or see above",
        "error: the node has no aliyun.com/gpu-count -> the kubelet reports it within 10 s of the registration",
    ]
    (_, told) = of("allocatable", api=api(allocatable={MEM: 3, COUNT: 0}))
    assert told.startswith("note: no aliyun.com/gpu-count can be allocated: all GPUs are in shared use")


def test_an_amount_that_is_not_that_of_the_agents_gpus_is_told_with_what_mends_it() -> None:
    assert of("capacity") == ["ok: matches the GPUs"]
    memory, count = of("capacity", api=api(capacity={MEM: 28, COUNT: 3}))
    assert memory.startswith("warning: node-a has 28 aliyun.com/gpu-mem by its kubelet, but 30 by its agent -> ")
    assert count.startswith("warning: node-a has 3 aliyun.com/gpu-count by its kubelet, but 2 GPUs by its agent -> ")
    assert count.endswith(set_count("node-a", COUNT, 2))
    assert len(of("capacity", api=api(capacity={MEM: 30, COUNT: 0}))) == 1
    assert of("capacity", api=api(capacity={})) == ["ok: matches the GPUs"], "that it has none is told elsewhere"


def test_a_number_of_gpus_that_the_agent_does_not_offer_is_noted() -> None:
    """For gpushare's extender it is right, and only for that one; 0 is what the kubelet leaves of what it forgot."""
    memory = RESOURCES[:1]
    (told,) = of("capacity", resources=memory)
    assert told.startswith(
        "note: node-a has 2 aliyun.com/gpu-count, and its agent offers none: pods that ask for it get"
    )
    assert told.endswith(set_count("node-a", COUNT, None))
    assert of("capacity", resources=memory, api=api(capacity={MEM: 30, COUNT: 0})) == ["ok: matches the GPUs"]
    (wrong,) = of("capacity", resources=memory, api=api(capacity={MEM: 30, COUNT: 1}))
    assert wrong.startswith("warning: node-a has 1 aliyun.com/gpu-count by its kubelet")
    (alone,) = of("capacity", resources=memory, api=api(gpus=NO_GPUS))
    assert alone.startswith("note: node-a has 2 aliyun.com/gpu-count, and its agent offers none")


@pytest.mark.parametrize(
    "unknown", [{"api": Unknown("x")}, {"agent": Unknown("x")}, {"agent": AgentSeen("x", ("not ready",))}]
)
def test_where_the_agent_is_not_ready_no_amount_is_called_wrong(unknown: dict[str, Any]) -> None:
    assert of("capacity", **unknown) == []


def test_the_command_that_sets_the_number_of_gpus_is_one_of_kubectl() -> None:
    assert set_count("n", COUNT, 2) == (
        "kubectl patch node n --subresource=status --type=merge "
        """-p '{"status":{"capacity":{"aliyun.com/gpu-count":"2"}}}'"""
    )
    assert '"aliyun.com/gpu-count":null' in set_count("n", COUNT, None)


@pytest.mark.parametrize(
    ("skew_s", "told"),
    [
        (None, "unknown: the API server's answer has no date"),
        (29.0, "ok: agrees with the API server's"),
        (300.0, "warning: 300 s ahead of the API server's"),
        (-45.0, "warning: 45 s behind the API server's"),
    ],
)
def test_a_clock_that_is_wrong(skew_s: float | None, told: str) -> None:
    assert of("clock", api=api(skew_s=skew_s))[0].startswith(told)
