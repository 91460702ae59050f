"""Detect other programs that offer the GPUs of a node, by their sockets, resources and answers."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpu_device_plugin.model.gpus import NVIDIA


@dataclass(frozen=True, slots=True)
class Other:
    """A program that gives containers whole GPUs or parts of them, without regard to our allocations."""

    name: str
    off: str
    """Instructions to keep it off a node."""
    plugin_sockets: tuple[str, ...] = ()
    """Names of its sockets in the kubelet's directory of device plugins, as shell patterns."""
    driver_sockets: tuple[str, ...] = ()
    """Names of its sockets among those of DRA drivers (``plugins_registry``), likewise."""
    resources: tuple[str, ...] = ()
    """Names of the resources that it advertises, as shell patterns."""
    driver: str = NVIDIA
    """The kernel driver of the GPUs that it hands out."""


_OFF = "keep its DaemonSet off the node"
_OFF_BY_OPERATOR = f"where AMD's GPU Operator deploys it, set {{}}: false in its DeviceConfig; else {_OFF}"

OTHERS = (
    Other(
        "NVIDIA's device plugin, or one derived from it (HAMi's is),",
        "where the GPU Operator deploys it, label the node nvidia.com/gpu.deploy.device-plugin=false; else keep its "
        "DaemonSet off the node",
        plugin_sockets=("nvidia-*.sock", "nvidia.sock"),
        resources=("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/gpu-*", "nvidia.com/mig-*"),
    ),
    Other(
        "GKE's device plugin",
        "recreate the node pool with the node label gke-no-default-nvidia-gpu-device-plugin=true",
        plugin_sockets=("nvidiaGPU-*.sock",),
    ),
    Other(
        "gpushare's own device plugin",
        "delete its DaemonSet: kubectl -n kube-system delete daemonset gpushare-device-plugin-ds",
        plugin_sockets=("aliyungpushare.sock",),
    ),
    Other(
        "NVIDIA's DRA driver for GPUs",
        "where the GPU Operator deploys it, label the node nvidia.com/gpu.deploy.dra-driver=false; else install it "
        "with resources.gpus.enabled=false",
        driver_sockets=("gpu.nvidia.com*-reg.sock",),
    ),
    Other(
        "HAMi's DRA driver",
        _OFF,
        driver_sockets=("hami-core-gpu.project-hami.io*-reg.sock",),
    ),
    Other(
        "vgpu-manager",
        _OFF,
        plugin_sockets=("vgpu-number.sock", "vgpu-core.sock", "vgpu-memory.sock"),
        resources=("nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"),
    ),
    Other(
        "Volcano's device plugin for GPUs",
        _OFF,
        resources=("volcano.sh/vgpu-number", "volcano.sh/gpu-number", "volcano.sh/gpu-memory", "volcano.sh/gpu-mem.*"),
    ),
    Other("Tencent's gpu-manager", _OFF, resources=("tencent.com/vcuda-core",)),
    Other("Tencent's qGPU", _OFF, resources=("tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory")),
    Other("the elastic GPU agent", _OFF, resources=("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory")),
    Other("Baidu's device plugin", _OFF, resources=("baidu.com/*cgpu*",)),
    Other("OrionX", _OFF, resources=("virtaitech.com/gpu",)),
    Other("the AWS virtual GPU device plugin", _OFF, resources=("k8s.amazonaws.com/vgpu",)),
    Other(
        "AMD's device plugin, or one derived from it,",
        _OFF_BY_OPERATOR.format("devicePlugin.enableDevicePlugin"),
        plugin_sockets=("amd.com_*",),
        resources=("amd.com/gpu", "amd.com/?px_nps?"),
        driver="amdgpu",
    ),
    Other(
        "AMD's DRA driver for GPUs",
        _OFF_BY_OPERATOR.format("draDriver.enable"),
        driver_sockets=("gpu.amd.com*-reg.sock",),
        driver="amdgpu",
    ),
    Other(
        "Intel's GPU device plugin",
        _OFF,
        plugin_sockets=("gpu.intel.com-xe.sock",),
        resources=("gpu.intel.com/xe",),
        driver="xe",
    ),
    Other("Intel's DRA driver for GPUs", _OFF, driver_sockets=("gpu.intel.com*-reg.sock",), driver="xe"),
)
PLUGIN_SOCKETS = tuple(pattern for other in OTHERS for pattern in other.plugin_sockets)
DRIVER_SOCKETS = tuple(pattern for other in OTHERS for pattern in other.driver_sockets)


@dataclass(frozen=True, slots=True)
class Detection:
    """Another program on a node, and the signs of it."""

    other: Other
    signs: tuple[str, ...]

    @property
    def finding(self) -> str:
        """The finding, as a sentence without the full stop."""
        return f"{self.other.name} hands out GPUs of this node too ({', '.join(self.signs)})"

    def __str__(self) -> str:
        """Return the finding and the instructions."""
        return f"{self.finding}; {self.other.off}"


def sightings(
    plugin_sockets: Iterable[str],
    driver_sockets: Iterable[str],
    allocatable: Mapping[str, int],
    ours: Container[str],
    given: Iterable[str] = (),
    *,
    drivers: Collection[str] = (),
) -> tuple[Detection, ...]:
    """Return the other programs that hand out GPUs of a node.

    Both kinds of sockets are names of those on which a process listens: a file alone proves nothing. `allocatable` is
    the node's amount of each resource, `ours` the configured names of our own resources. `given` are the resources by
    which containers were given GPUs, by their plugins' answers in the kubelet's checkpoint; each counts while the node
    offers it, whatever its plugin is called. `drivers` are those of the node's GPUs; none: they are not known, and any
    program counts.
    """
    plugin_sockets, driver_sockets = tuple(plugin_sockets), tuple(driver_sockets)
    offered = tuple(name for name, amount in allocatable.items() if amount > 0 and name not in ours)
    found = []
    for other in OTHERS:
        if drivers and other.driver not in drivers:
            continue
        signs = (
            *(f"a process listens on {name}" for name in _matching(plugin_sockets, other.plugin_sockets)),
            *(f"a process listens on {name}" for name in _matching(driver_sockets, other.driver_sockets)),
            *(f"the node offers {allocatable[name]} {name}" for name in _matching(offered, other.resources)),
        )
        if signs:
            found.append(Detection(other, signs))
    known = [pattern for other in OTHERS for pattern in other.resources]
    for name in sorted(set(given) & {*offered}):
        if not any(fnmatchcase(name, pattern) for pattern in known):
            sign = f"a container was allocated GPUs by {name}, of which the node offers {allocatable[name]}"
            found.append(Detection(Other(f"the device plugin of {name}", _OFF), (sign,)))
    return tuple(found)


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))
