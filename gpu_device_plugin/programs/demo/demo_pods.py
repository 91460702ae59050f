"""The pods of the demo, in the API server and on the kubelet, and the fake GPUs with the pods' fake processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import yaml

from gpu_device_plugin.hardware.driver import DRIVERS
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.model.shares import SharedGpu
from gpu_device_plugin.testing.cluster.api_server import ApiServer
from gpu_device_plugin.testing.cluster.cluster_kinds import Json
from gpu_device_plugin.testing.kubelet.device_manager import Amount
from gpu_device_plugin.testing.kubelet.kubelet_double import Kubelet
from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod, PodSpec

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
        offered = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        status = {
            "capacity": offered,
            "allocatable": dict(offered),
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2"},
        }
        meta = {"name": kubelet.node, "labels": {"kubernetes.io/hostname": kubelet.node}}
        api.add({"kind": "Node", "metadata": meta, "spec": {}, "status": status})

    def add_agent(self) -> str:
        """Add the pod of the node's agent; return the address at which the agent has to serve HTTP."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "{}:{}".format(*free.getsockname())
        inside = f"10.0.0.{len(self._api.all('nodes'))}"
        self._api.network[f"{inside}:{_HTTP}"] = f"http://{address}"
        container = {"name": "agent", "ports": [{"name": "http", "containerPort": _HTTP}]}
        labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}
        pod = _pod(f"gpushare-node-{self._kubelet.node}", "gpushare", container, labels=labels)
        pod["spec"]["nodeName"] = self._kubelet.node
        self._api.add({**pod, "status": {"phase": "Running", "podIP": inside}})
        return address

    def wait(self, name: str, resource: str, amount: int, namespace: str = _NAMESPACE) -> None:
        """Add a pod that requests `amount` of a resource and has no node, until `admit` is called with its name."""
        pod = _asking(name, resource, amount, namespace)
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
        waiting = self._without_node().get(name)
        meta = (waiting or self._api.add(_asking(name, resource, amount, namespace, annotations)))["metadata"]
        binding = {"metadata": {"name": name}, "target": {"name": self._kubelet.node}}
        self._api.store.bind((meta["namespace"], name), binding)
        container = ContainerSpec(_CONTAINER, {resource: amount})
        pod = await self._kubelet.admit(PodSpec(name, (container,), meta["namespace"], meta["uid"]))
        if pod.phase == "Running":
            running = {
                "name": _CONTAINER,
                "containerID": f"containerd://{container_id(pod)}",
                "state": {"running": {}},
            }
            status = {"phase": "Running", "containerStatuses": [running]}
            self._api.patch("pods", name, {"status": status}, meta["namespace"], "status")
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
        events = reversed(self._api.all("events"))
        about = pod.uid, reason
        return next((each["note"] for each in events if (each["regarding"].get("uid"), each["reason"]) == about), None)

    @property
    def evictions(self) -> int:
        """How often somebody has asked for the eviction of a pod."""
        return self._api.count("create", "pods/eviction")


def _asking(
    name: str, resource: str, amount: int, namespace: str, annotations: Mapping[str, str] | None = None
) -> Json:
    container = {"name": _CONTAINER, "resources": {"limits": {resource: str(amount)}}}
    return _pod(name, namespace, container, **({"annotations": dict(annotations)} if annotations else {}))


def _pod(name: str, namespace: str, container: Json, **meta: Mapping[str, str]) -> Json:
    spec = {"containers": [{"image": "example.com/app:1", **container}]}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, **meta}, "spec": spec}


# --- Fake GPUs, and the fake processes of pods there ------------------------------------------------------------------

_NODES_NAMESPACE = "pid:[4026531836]"
"""The PID namespace that the kernel starts with; an agent in it sees the processes of all pods."""


def container_id(pod: Pod) -> str:
    """Return the ID that the container runtime gave to the container of a pod with just one."""
    return hashlib.sha256(f"{pod.uid}/{pod.only.name}".encode()).hexdigest()


class FakeGpus:
    """The description of fake GPUs, to which faults and processes are added, and whose the processes are.

    A pod has at most one process, on all of its GPUs; a folder tells that it is the pod's, as /proc does.
    """

    def __init__(self, root: Path, gpus: str) -> None:
        """Describe `gpus`, the source of an agent's GPUs, in `root`."""
        self.proc = root / "proc"
        self._pids: dict[str, int] = {}
        """By UID of the pod."""
        self._free = count(10_001)
        namespaces = self.proc / "self" / "ns"
        namespaces.mkdir(parents=True)
        (namespaces / "pid").symlink_to(_NODES_NAMESPACE)
        self._file = root / "gpus.json"
        self._description = _description(gpus)
        self.source = str(self._file) if self.scripted else gpus
        """The source with what is added."""
        if self.scripted:
            self.publish()

    @property
    def scripted(self) -> bool:
        """Whether the GPUs do what the demo says: they are fake, and their description has no events of its own."""
        return self._description is not None

    def publish(
        self, faults: Iterable[Mapping[str, object]] = (), used: Sequence[tuple[Pod, SharedGpu, int]] = ()
    ) -> None:
        """Make these the only faults of the GPUs, and these MiB all that processes use; the agent sees both at once."""
        pods = {pod.uid: pod for pod, _, _ in used}
        for uid in self._pids.keys() - pods.keys():
            shutil.rmtree(self.proc / str(self._pids.pop(uid)))
        for uid in pods.keys() - self._pids.keys():
            self._pids[uid] = self._start(pods[uid])
        by_gpu: dict[str, dict[str, Any]] = {}
        for pod, shared, mib in used:
            gpu, instance = shared.gpu, shared.gpu.instance
            where = {"gpu": gpu.uuid} if instance is None else {"gpu": instance.parent, "instance": gpu.uuid}
            event = by_gpu.setdefault(gpu.uuid, {"at": 0, **where, "processes": []})
            event["processes"].append({"pid": self._pids[pod.uid], "used": f"{mib}MiB"})
        new = self._file.with_suffix(".new")
        events = [*faults, *by_gpu.values()]
        new.write_text(json.dumps({**(self._description or {}), "events": events}), encoding="utf-8")
        new.replace(self._file)

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


def _description(gpus: str) -> dict[str, Any] | None:
    """Return the description of fake GPUs without events of their own, None for all other GPUs."""
    if gpus in DRIVERS:
        return None
    if gpus.startswith("fake:"):
        return {"gpus": gpus.removeprefix("fake:")}
    found: dict[str, Any] = yaml.safe_load(Path(gpus).read_text(encoding="utf-8"))
    return None if found.get("events") else found
