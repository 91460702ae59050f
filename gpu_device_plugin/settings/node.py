"""The settings of the node agent, with their defaults, forms and descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.model.resources import OF_GPUS, Kind, Names, Resource
from gpu_device_plugin.node.rules.container_grants import DELIVERIES
from gpu_device_plugin.node.rules.serving_mode import SERVING_MODES, ServingMode
from gpu_device_plugin.settings.common import LogSettings, ResourceSettings
from gpu_device_plugin.settings.forms import (
    DIRECTORY,
    DOMAIN,
    GPU_SOURCE,
    OPTIONAL_ADDRESS,
    PATH,
    SWITCH,
    Address,
    api_server,
    duration,
    number,
    object_name,
    one_of,
    several,
    size,
    some_of,
)
from gpu_device_plugin.settings.knobs import Form, SettingsError, knob


def _gpu_name(text: str) -> str:
    of_kernel = r"(?:GPU-[0-9A-F]{16}|PCI-[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])(?:-p[0-7])?"
    # rocminfo writes small letters.
    text = re.sub(r"\AGPU-[0-9a-fA-F]{16}(?=-p|\Z)", lambda found: f"GPU-{found[0][4:].upper()}", text)
    of_nvml = r"GPU-[0-9a-fA-F-]{36}|MIG-[0-9a-zA-Z/-]{36,92}"
    if re.fullmatch(rf"[0-9]{{1,3}}(:[0-9]{{1,2}})?|{of_nvml}|{of_kernel}", text, re.ASCII):
        return text
    raise ValueError(
        f"{text!r} is neither an index nor a UUID of a GPU, as nvidia-smi -L prints them; the agent's "
        "log names those of other drivers"
    )


def _cdi_kind(text: str) -> str:
    if re.fullmatch(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", text, re.ASCII):
        return text
    raise ValueError(f"{text!r} is not a CDI vendor and class; write it like nvidia.com/gpu")


_XIDS = several("XID", number(1, 9999).read)


class NodeSettings(ResourceSettings, LogSettings):
    """The settings of a node agent."""

    COMMAND: ClassVar[str] = "node"

    gpus: str = knob(
        "auto",
        GPU_SOURCE,
        "Source of the GPUs: auto (every driver that the node has), nvml, amdgpu or xe alone, fake ones like "
        "fake:2xH200-141GiB,1xA10 or fake:2xH100:mig=1g.10gb*7, or a .yaml file with fake GPUs and their faults.",
    )
    exclude_gpus: tuple[str, ...] = knob(
        "",
        several("GPU", _gpu_name),
        "GPUs that are not shared, by UUID or by number (nvidia-smi's; others follow in PCI order), which shifts when "
        "a GPU disappears. A GPU in MIG mode stands for all its instances; name a single one by its UUID, or like 0:3.",
    )
    share_size_mib: int = knob(
        "1GiB",
        size(1),
        "GPU memory of one share, the same on all GPUs of the node.",
    )
    reserve_mib: int = knob("0MiB", size(0), "Memory kept free on every GPU, beyond what the driver reserves.")
    unified_memory_mib: int = knob(
        "0MiB",
        size(0),
        "Memory of the machine that a GPU without its own (GB10, Jetson) shares. 0MiB: such a GPU is allocated whole.",
    )
    resources: tuple[Kind, ...] = knob(
        "memory,count",
        some_of(*OF_GPUS),
        "Resources to offer, and kinds of devices for claims. Beside gpushare's original extender, memory only: it "
        "knows no whole GPUs.",
    )
    serve: str = knob(
        "auto",
        one_of(*SERVING_MODES),
        "How pods get GPUs: device-plugin (limits such as aliyun.com/gpu-mem), dra (ResourceClaims, from Kubernetes "
        "1.36), or auto (device-plugin). A change waits until no pod holds GPUs the other way. The node label "
        "gpu-device-plugin/serve overrides it.",
        live=True,
    )
    policy: str = knob(
        "fit",
        one_of(*POLICIES),
        "Which GPU of the node a pod gets: binpack fills one GPU before the next, spread takes the emptiest, fit "
        "leaves it to the extender (without one: binpack). The node label ack.node.gpu.placement overrides it.",
        live=True,
    )
    mig: str = knob(
        "off",
        one_of(*MigMode),
        "How pods get MIG instances: off (not at all), whole (by a resource for each profile, such as "
        "aliyun.com/mig-1g.10gb), or share (by memory, like GPUs). The node label gpu-device-plugin/mig overrides it.",
        live=True,
    )
    mig_domain: str = knob(
        "",
        Form("DOMAIN", lambda text: DOMAIN.read(text) if text else ""),
        "Domain of the MIG profiles' resources. With nvidia.com, manifests for NVIDIA's device plugin work unchanged "
        "on nodes that it does not serve. Empty: as `domain`.",
    )
    devices: tuple[str, ...] = knob(
        "envvar",
        some_of(*DELIVERIES),
        "How GPUs reach a container: envvar (NVIDIA_VISIBLE_DEVICES, for the nvidia runtime), device-specs (also the "
        "/dev/nvidia* nodes, so that GPUs survive a systemctl daemon-reload), cdi (CDI names). GPUs of other drivers "
        "always come as device nodes, with card also /dev/dri/cardN.",
        live=True,
    )
    cdi_kind: str = knob(
        "nvidia.com/gpu",
        Form("VENDOR/CLASS", _cdi_kind),
        "Vendor and class of the GPUs in CDI names: the part before the =.",
        live=True,
    )
    pre_start: bool = knob(
        "true",
        SWITCH,
        "Have the kubelet ask the agent (PreStartContainer) before each start of a container: one whose GPU is "
        "unhealthy waits, and one of a force-deleted pod does not start without its variables.",
    )
    device_plugin_dir: Path = knob(
        "/var/lib/kubelet/device-plugins",
        DIRECTORY,
        "Directory of the kubelet's device-plugin socket and checkpoint.",
        in_profile=False,
    )
    pod_resources_socket: Path = knob(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        PATH,
        "Socket of the kubelet's PodResources API.",
        in_profile=False,
    )
    node_name: str = knob(
        "",
        object_name("node", "use the one that kubectl get nodes lists"),
        "Name of this node in the Kubernetes API. NODE_NAME is read too.",
        also="NODE_NAME",
        in_profile=False,
    )
    api: str = knob(
        "auto",
        api_server("auto", "off", "in-cluster"),
        "How to reach the Kubernetes API: in-cluster (the pod's service account), a kubeconfig's path, an http:// "
        "address, off, or auto (in-cluster if a service account is mounted, else off).",
        in_profile=False,
    )
    http: Address | None = knob(
        "",
        OPTIONAL_ADDRESS,
        "Address of /metrics, /use (present use of the GPUs, as JSON), /healthz and /readyz, such as :9445. Empty or "
        "off: none.",
        in_profile=False,
    )
    node_condition: bool = knob(
        "false",
        SWITCH,
        "Maintain the node condition GPUHealthy, which node-repair tools understand. Needs the right to patch "
        "nodes/status.",
        live=True,
    )
    ignored_xids: tuple[int, ...] = knob(
        "", _XIDS, "XID errors that never make a GPU unhealthy, besides those of applications.", live=True
    )
    fatal_xids: tuple[int, ...] = knob(
        "", _XIDS, "XID errors that always make a GPU unhealthy, besides those known to be serious.", live=True
    )
    row_remap_pending: str = knob(
        "warn",
        one_of("warn", "unhealthy"),
        "How to treat a GPU that needs a reset to complete the remapping of memory rows: warn, or unhealthy.",
        live=True,
    )
    probe_interval_s: float = knob("10s", duration(), "Interval between health checks of every GPU.", live=True)
    nvml_timeout_s: float = knob(
        "5s", duration(), "How long NVML may take to answer before the process that calls it is replaced.", live=True
    )
    blind_after_s: float = knob(
        "60s", duration(), "How long GPUs stay on offer while their health cannot be checked.", live=True
    )
    reconcile_interval_s: float = knob(
        "10s", duration(), "Interval between comparisons of the ledger with the kubelet's records.", live=True
    )
    process_wait_s: float = knob(
        "60s",
        duration(zero=True),
        "How long a freed GPU that still runs processes is withheld.",
        live=True,
    )
    refusal_limit: int = knob(
        "10",
        number(0, 1_000_000),
        "Refusals of one size in a minute after which the node shows less free memory, so that pods wait instead of "
        "failing, and an Event advises. 0: never.",
        live=True,
    )

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from super()._contradictions()
        if both := sorted(set(self.ignored_xids) & set(self.fatal_xids)):
            yield SettingsError(
                f"XID {both[0]} is both ignored and fatal; name it in one of them only", ("ignored_xids", "fatal_xids")
            )
        if self.blind_after_s <= self.probe_interval_s:
            yield SettingsError(
                f"GPUs checked every {self.probe_interval_s:g}s would be unhealthy after {self.blind_after_s:g}s "
                "without an answer; make the second longer than the first",
                ("probe_interval", "blind_after"),
            )
        if self.serve == ServingMode.DRA and self.api == "off":
            yield SettingsError(
                "serve is dra, and ResourceClaims are read from the Kubernetes API, which api=off forbids; set api to "
                "auto, or serve to device-plugin",
                ("serve", "api"),
            )
        if self.api not in {"auto", "off"} and not self.node_name:
            yield SettingsError(
                "an agent cannot use the Kubernetes API without the name of its node; set node_name "
                "(in a pod: NODE_NAME from the field spec.nodeName), or api to off",
                ("api", "node_name"),
            )

    @property
    def offered(self) -> tuple[Resource, ...]:
        """The resources that are offered, with their full names."""
        return tuple(resource for resource in self.managed if resource.kind in self.resources)

    @property
    def domain_of_mig(self) -> str:
        """The domain of the resources of MIG profiles."""
        return self.mig_domain or self.domain

    @property
    def names(self) -> Names:
        """The full names of our resources, those of MIG profiles that the node may have later included."""
        return Names({resource.name: resource.kind for resource in self.offered}, self.domain_of_mig)

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's root directory, below which the PodResources socket is."""
        return self.pod_resources_socket.parent.parent

    @property
    def plugins_registry(self) -> Path:
        """The directory of DRA drivers' sockets."""
        return self.kubelet_root / "plugins_registry"

    def reaches_api(self, environ: Mapping[str, str]) -> bool:
        """Whether to use the Kubernetes API; `auto` does in a pod."""
        return self.api != "off" and (self.api != "auto" or "KUBERNETES_SERVICE_HOST" in environ)
