"""The fake processes of pods on fake GPUs, with a folder that tells whose they are as `/proc` does."""

from __future__ import annotations

import hashlib
import os
import shutil
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.kubelet.procfs import boot_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpu_device_plugin.testing.pods import Pod

_FIRST_PID = 10_001
_NODES_NAMESPACE = "pid:[4026531836]"
"""The PID namespace that the kernel starts with; an agent in it sees the processes of all pods."""


def container_id(pod: Pod) -> str:
    """Return the ID that the container runtime gave to the container of a pod with just one."""
    return hashlib.sha256(f"{pod.uid}/{pod.only.name}".encode()).hexdigest()


class Processes:
    """At most one process for each pod, on all of its GPUs."""

    def __init__(self, proc: Path) -> None:
        """Make the folder `proc`, without any process."""
        self.proc = proc
        self._pids: dict[str, int] = {}
        """By UID of the pod."""
        self._free = count(_FIRST_PID)
        namespaces = proc / "self" / "ns"
        namespaces.mkdir(parents=True)
        (namespaces / "pid").symlink_to(_NODES_NAMESPACE)

    def __repr__(self) -> str:
        return f"<Processes below {self.proc}: {len(self._pids)}>"

    def keep(self, pods: Mapping[str, Pod]) -> None:
        """Start a process for each of these pods (by UID) that has none, and end those of all other pods."""
        for uid in self._pids.keys() - pods.keys():
            shutil.rmtree(self.proc / str(self._pids.pop(uid)))
        for uid, pod in pods.items():
            if uid not in self._pids:
                self._pids[uid] = self._start(pod)

    def events(
        self, used: Mapping[tuple[str, str], int], parents: Mapping[str, str] = MappingProxyType({})
    ) -> list[dict[str, object]]:
        """Return the events of a description of GPUs that put the processes on them.

        Args:
            used: MiB by UID of the pod and UUID of the GPU or the MIG instance.
            parents: the UUID of the GPU of each instance.
        """
        by_gpu: dict[str, list[dict[str, object]]] = {}
        for (uid, uuid), mib in used.items():
            by_gpu.setdefault(uuid, []).append({"pid": self._pids[uid], "used": f"{mib}MiB"})
        return [
            {
                "at": 0,
                **({"gpu": parents[uuid], "instance": uuid} if uuid in parents else {"gpu": uuid}),
                "processes": listed,
            }
            for uuid, listed in by_gpu.items()
        ]

    def _start(self, pod: Pod) -> int:
        pid = next(self._free)
        folder = self.proc / str(pid)
        folder.mkdir()
        # The fields of proc_pid_stat(5) from the third on: state, parent, 17 that nobody reads, start.
        fields = ["S", "1", *["0"] * 17, str(int(boot_time() * os.sysconf("SC_CLK_TCK")))]
        (folder / "stat").write_text(f"{pid} (service) {' '.join(fields)}\n", encoding="ascii")
        slices = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{pod.uid.replace('-', '_')}.slice"
        (folder / "cgroup").write_text(f"0::/{slices}/cri-containerd-{container_id(pod)}.scope\n", encoding="ascii")
        return pid
