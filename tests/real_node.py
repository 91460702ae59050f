"""The parts of a node of real programs: its cgroups, and the configurations of containerd and the kubelet."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")

_CONTAINERD = """
version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{address}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_cdi = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
_RUNTIME = """
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
      SystemdCgroup = false
"""


def containerd_configuration(
    *, root: str, state: str, address: str, sandbox: str, networks: str, cni: str = "", runtimes: Sequence[str]
) -> str:
    """Return containerd's configuration as TOML; every runtime of `runtimes` is runc under that name."""
    return _CONTAINERD.format(
        root=root, state=state, address=address, sandbox=sandbox, cni=cni, networks=networks
    ) + "".join(_RUNTIME.format(name=name) for name in runtimes)


def kubelet_configuration(*, containerd: str, cgroup: str, **rest: Any) -> dict[str, Any]:
    """Return a KubeletConfiguration that changes nothing of the machine outside `cgroup`, with `rest` added."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "containerRuntimeEndpoint": f"unix://{containerd}",
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "10Mi"},
        # The kubelet's own default is a minute.
        "syncFrequency": "5s",
        "resolvConf": "",
        **rest,
    }


def cgroups(name: str) -> list[Path]:
    """Return the cgroups of this name, a pattern: one of each controller with cgroup v1, otherwise one."""
    return [*_CGROUPS.glob(name), *_CGROUPS.glob(f"*/{name}")]


def make_cgroups(name: str) -> None:
    """Make a cgroup of this name in every hierarchy, ready for processes."""
    parents = [each.parent for each in _CGROUPS.glob("*/tasks")] or [_CGROUPS]
    for parent in parents:
        (parent / name).mkdir()
        # A cpuset of cgroup v1 begins empty, and then nothing can run in it.
        for each in ("cpuset.cpus", "cpuset.mems") if (parent / "tasks").exists() else ():
            if (parent / name / each).exists():
                (parent / name / each).write_text((parent / each).read_text())


def removed_cgroups(name: str) -> bool:
    """Remove the cgroups of this name; False while a process is left in one."""
    for root in cgroups(name):
        for directory, _, _ in os.walk(root, topdown=False):
            try:
                os.rmdir(directory)  # noqa: PTH106  (a cgroup is removed though files are in it)
            except OSError:
                return False
    return True


def child_of(pid: int) -> int:
    """Return the first child of a process, as `unshare` and `nsenter` have one."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
