"""The pods of the demo, each in the API server and on the kubelet, from its start to its end."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from gpu_device_plugin.programs.demo.processes import container_id
from gpu_device_plugin.testing import builders
from gpu_device_plugin.testing.pods import ContainerSpec, PodSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.testing.cluster import ApiServer
    from gpu_device_plugin.testing.kubelet import Kubelet
    from gpu_device_plugin.testing.pods import Pod

_CONTAINER = "main"


async def _at_once() -> None:
    pass


class Pods:
    """Starts pods and ends them, each of one container."""

    def __init__(self, api: ApiServer, kubelet: Kubelet, on_end: Callable[[Pod], None]) -> None:
        """Put the node of `kubelet` into `api`; `on_end` ends the processes of a pod."""
        self._api = api
        self._kubelet = kubelet
        self._on_end = on_end
        self.grace: Callable[[], Awaitable[None]] = _at_once
        """Waits until a pod that somebody deletes in the API server has ended its work."""
        api.add(builders.node(kubelet.node))

    def __repr__(self) -> str:
        return f"<Pods: {len(self._kubelet.pods)} on {self._kubelet.node}>"

    async def admit(self, name: str, resource: str, amount: int) -> Pod:
        """Bind a pod that requests `amount` of a resource to the node; return it once it runs or is refused."""
        uid = str(uuid.uuid4())
        limits = {resource: amount}
        container = builders.container(_CONTAINER, limits={resource: str(amount)})
        self._api.add(builders.pod(name, container, uid=uid, node=self._kubelet.node))
        pod = await self._kubelet.admit(PodSpec(name, (ContainerSpec(_CONTAINER, limits),), uid=uid))
        if pod.phase == "Running":
            running = {
                "name": _CONTAINER,
                "containerID": f"containerd://{container_id(pod)}",
                "state": {"running": {}},
            }
            status = {"phase": "Running", "containerStatuses": [running]}
            self._api.patch("pods", name, {"status": status}, subresource="status")
        return pod

    async def end(self, pod: Pod) -> None:
        """End a pod, its grace period included, unless it has ended."""
        if pod.uid not in {known.uid for known in self._kubelet.pods}:
            return
        self._on_end(pod)
        await self._kubelet.delete(pod)
        self._api.delete("pods", pod.name)

    async def end_deleted(self) -> NoReturn:
        """End every pod that somebody deletes in the API server, as a kubelet does."""
        version = 0
        while True:
            version, _ = await self._api.store.changed.after(version)
            for pod in self._kubelet.pods:
                if "deletionTimestamp" in self._api.get("pods", pod.name)["metadata"]:
                    await self.grace()
                    await self.end(pod)

    def annotations(self, name: str) -> Mapping[str, str]:
        """Return the annotations of a pod, none if it has ended."""
        return next(
            (
                pod["metadata"].get("annotations", {})
                for pod in self._api.all("pods")
                if pod["metadata"]["name"] == name
            ),
            {},
        )

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
