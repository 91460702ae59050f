"""The pods of the demo, in the API server and on the kubelet, and their fake processes on fake GPUs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
from functools import partial
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.testing import builders
from gpu_device_plugin.testing.pod_specs import ContainerSpec, PodSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from typing import NoReturn

    from gpu_device_plugin.testing.builders import Json
    from gpu_device_plugin.testing.cluster.api_server import ApiServer
    from gpu_device_plugin.testing.kubelet.device_manager import Amount
    from gpu_device_plugin.testing.kubelet.kubelet_double import Kubelet
    from gpu_device_plugin.testing.pod_specs import Pod

_NAMESPACE, _CONTAINER = "default", "main"
_HTTP = 9445
"""The port of an agent, as in our manifests."""


class Pods:
    """Starts pods and ends them, each of one container."""

    def __init__(self, api: ApiServer, kubelet: Kubelet) -> None:
        self._api = api
        self._kubelet = kubelet
        self.on_end: Callable[[Pod], None] = lambda _pod: None
        """Ends the processes of a pod."""
        self.grace: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
        """Waits until a pod that somebody deletes in the API server has ended its work."""
        api.add(builders.node(kubelet.node))

    def add_agent(self) -> str:
        """Add the pod of the node's agent; return the address at which the agent has to serve HTTP."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "{}:{}".format(*free.getsockname())
        inside = f"10.0.0.{len(self._api.all('nodes'))}"
        self._api.network[f"{inside}:{_HTTP}"] = f"http://{address}"
        container = {**builders.container("agent"), "ports": [{"name": "http", "containerPort": _HTTP}]}
        pod = builders.pod(
            f"gpushare-node-{self._kubelet.node}",
            container,
            namespace="gpushare",
            node=self._kubelet.node,
            phase="Running",
            labels={"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"},
        )
        pod["status"]["podIP"] = inside
        self._api.add(pod)
        return address

    def wait(self, name: str, resource: str, amount: int, namespace: str = _NAMESPACE) -> None:
        """Add a pod that requests `amount` of a resource and has no node, until `admit` is called with its name."""
        container = builders.container(_CONTAINER, limits={resource: str(amount)})
        pod = builders.pod(name, container, namespace=namespace)
        pod["spec"]["schedulerName"] = "gpushare-scheduler"
        self._api.add(pod)

    @property
    def waiting(self) -> Mapping[str, int]:
        """How much each pod of the cluster that has no node requests, by its name."""
        return {
            name: sum(map(int, pod["spec"]["containers"][0]["resources"]["limits"].values()))
            for name, pod in self._without_node().items()
        }

    def give_up(self, name: str) -> None:
        """Delete a pod that has no node."""
        self._api.delete("pods", name, self._without_node()[name]["metadata"]["namespace"])

    def _without_node(self) -> Mapping[str, Json]:
        return {pod["metadata"]["name"]: pod for pod in self._api.all("pods") if "nodeName" not in pod["spec"]}

    async def admit(
        self,
        name: str,
        resource: str,
        amount: int,
        namespace: str = _NAMESPACE,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """Bind a pod that requests `amount` of a resource to the node; return it once it runs or is refused.

        One of this name that waits for a node is bound as it is.
        """
        limits = {resource: amount}
        waiting = self._without_node().get(name)
        if waiting is not None:
            namespace, uid = waiting["metadata"]["namespace"], waiting["metadata"]["uid"]
            binding = {"metadata": {"name": name}, "target": {"name": self._kubelet.node}}
            self._api.store.bind((namespace, name), binding)
        else:
            uid = str(uuid4())
            container = builders.container(_CONTAINER, limits={resource: str(amount)})
            node = self._kubelet.node
            self._api.add(
                builders.pod(name, container, namespace=namespace, uid=uid, node=node, annotations=annotations)
            )
        pod = await self._kubelet.admit(PodSpec(name, (ContainerSpec(_CONTAINER, limits),), namespace, uid))
        if pod.phase == "Running":
            running = {
                "name": _CONTAINER,
                "containerID": f"containerd://{container_id(pod)}",
                "state": {"running": {}},
            }
            status = {"phase": "Running", "containerStatuses": [running]}
            self._api.patch("pods", name, {"status": status}, namespace, "status")
        return pod

    async def end(self, pod: Pod) -> None:
        """End a pod, its grace period included, unless it has ended."""
        if pod.uid not in {known.uid for known in self._kubelet.pods}:
            return
        self.on_end(pod)
        await self._kubelet.delete(pod)
        self._api.delete("pods", pod.name, pod.spec.namespace)

    async def end_deleted(self) -> NoReturn:
        """End every pod that somebody deletes in the API server, as a kubelet does."""
        version = 0
        while True:
            version, _ = await self._api.store.changed.after(version)
            for pod in self._kubelet.pods:
                if "deletionTimestamp" in self._api.get("pods", pod.name, pod.spec.namespace)["metadata"]:
                    await self.grace()
                    await self.end(pod)

    async def publish_node(self) -> NoReturn:
        """Keep the node's resources in the API server as the kubelet knows them, which a real one does less often."""
        shown: Mapping[str, Amount] = {}
        while True:
            amounts = self._kubelet.publish() if self._kubelet.up else shown
            if amounts != shown:
                shown = dict(amounts)
                status = {
                    field: {name: str(getattr(amount, field)) for name, amount in shown.items()}
                    for field in ("capacity", "allocatable")
                }
                self._api.patch("nodes", self._kubelet.node, {"status": status}, subresource="status")
            await asyncio.sleep(0.2)

    def annotations(self, name: str) -> Mapping[str, str]:
        """Return the annotations of a pod, none if it has ended."""
        named = (meta for pod in self._api.all("pods") if (meta := pod["metadata"])["name"] == name)
        return next((meta.get("annotations", {}) for meta in named), {})

    def event(self, pod: Pod, reason: str) -> str | None:
        """Return the note of the newest Event about a pod for this reason, None if there is none."""
        notes = [
            event["note"]
            for event in self._api.all("events")
            if (event["regarding"].get("uid"), event["reason"]) == (pod.uid, reason)
        ]
        return notes[-1] if notes else None

    @property
    def evictions(self) -> int:
        """How often somebody has asked for the eviction of a pod."""
        return self._api.count("create", "pods/eviction")


# --- The fake processes of pods on fake GPUs, with a folder that tells whose they are as /proc does -------------------

_NODES_NAMESPACE = "pid:[4026531836]"
"""The PID namespace that the kernel starts with; an agent in it sees the processes of all pods."""


def container_id(pod: Pod) -> str:
    """Return the ID that the container runtime gave to the container of a pod with just one."""
    return hashlib.sha256(f"{pod.uid}/{pod.only.name}".encode()).hexdigest()


class FakeProcesses:
    """At most one process for each pod, on all of its GPUs."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self._pids: dict[str, int] = {}
        """By UID of the pod."""
        self._free = count(10_001)
        namespaces = proc / "self" / "ns"
        namespaces.mkdir(parents=True)
        (namespaces / "pid").symlink_to(_NODES_NAMESPACE)

    def keep(self, pods: Mapping[str, Pod]) -> None:
        """Start a process for each of these pods (by UID) that has none, and end those of all other pods."""
        for uid in self._pids.keys() - pods.keys():
            shutil.rmtree(self.proc / str(self._pids.pop(uid)))
        for uid, pod in pods.items():
            if uid not in self._pids:
                self._pids[uid] = self._start(pod)

    def events(self, used: Mapping[tuple[str, str], int], parents: Mapping[str, str]) -> list[dict[str, object]]:
        """Return the events of a description of GPUs that put the processes on them.

        `used` has MiB by UID of the pod and UUID of the GPU or MIG instance, `parents` the GPU of each instance.
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
