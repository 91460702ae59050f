"""The cluster of docs/guide.md, made of doubles: what a manifest does there is what the guide says that it does."""

import asyncio
import copy
import hashlib
import io
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES, EXTENDER_SETTINGS
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.model.contract.keys import INSTANCES
from gpu_device_plugin.model.mig import MigMode, is_mig_resource
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.programs.inspect import inspect_program
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod, PodSpec
from tests import builders
from tests.builders import GPU_COUNT, GPU_MEM
from tests.cluster_double.api_server import ApiServer
from tests.node.cluster_harness import said_of, takes_pods
from tests.node.harness import NodeWorld, world
from tests.scheduler.harness import QUICK
from tests.scheduler_double.scheduler import ExtenderConfig, Scheduler

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"

NODE = "gpu-1"
GPUS = "fake:1xP4,3xT4"
"""The node of the guide: GPU 0 has 7 shares, GPUs 1 to 3 have 14 each."""
DIVIDED = "fake:1xT4,1xH100:mig=1g.10gb*3/3g.40gb"
"""The node of its section on MIG: GPU 0 is whole, GPU 1 is a large instance, GPUs 2 to 4 are small ones."""
SCHEDULER = "gpushare-scheduler"

_KUBECTL = """\
#!{python} -IS
import asyncio, sys

async def copied(reader, writer):
    while chunk := await reader.read(65536):
        writer.write(chunk)
    writer.close()

async def passed_on(reader, writer):
    there, back = await asyncio.open_connection(*"{address}".split(":"))
    await asyncio.gather(copied(reader, back), copied(there, writer), return_exceptions=True)

async def proxy(socket):
    await (await asyncio.start_unix_server(passed_on, socket)).serve_forever()

if "proxy" in sys.argv:
    asyncio.run(proxy(*(word.partition("=")[2] for word in sys.argv if word.startswith("--unix-socket="))))
"""
"""As much of kubectl as `kubectl inspect gpushare` needs."""


def documents(path: Path) -> list[Json]:
    """Return the objects of a manifest."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def pods_of(body: Json) -> list[Json]:
    """Return the pods that an object stands for, itself or through its controller, and none for other objects."""
    match body["kind"]:
        case "Pod":
            return [copy.deepcopy(body)]
        case "Deployment":
            return [_pod(body, number, _hash(body["metadata"]["name"], 10)) for number in range(_replicas(body))]
        case "Job":
            return [_pod(body, number) for number in range(body["spec"].get("parallelism", 1))]
        case _:
            return []


def _replicas(body: Json) -> int:
    return int(body["spec"].get("replicas", 1))


def _pod(body: Json, number: int, *middle: str) -> Json:
    """Make one pod of a template, with a name such as a controller gives."""
    template, meta = copy.deepcopy(body["spec"]["template"]), body["metadata"]
    name = "-".join([meta["name"], *middle, _hash(f"{meta['name']}/{number}", 5)])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template.get("metadata", {}), "name": name, "namespace": meta.get("namespace", "default")},
        "spec": template["spec"],
    }


def _hash(text: str, length: int) -> str:
    alphabet = "bcdfghjklmnpqrstvwxz2456789"
    return "".join(alphabet[byte % len(alphabet)] for byte in hashlib.sha256(text.encode()).digest()[:length])


@dataclass
class Guide:
    """What a test acts on and looks at."""

    api: ApiServer
    node: NodeWorld
    extender: Extender
    kubectl: Path
    priorities: dict[str, int] = field(default_factory=dict)
    running: dict[str, Pod] = field(default_factory=dict)
    """What the kubelet runs, by name."""

    async def apply(self, path: Path) -> None:
        """Do as `kubectl apply -f`, as the controllers and as admission do, and settle after every pod."""
        for body in documents(path):
            if body["kind"] == "PriorityClass":
                self.priorities[body["metadata"]["name"]] = body["value"]
            for pod in pods_of(body):
                pod["spec"]["priority"] = self.priorities.get(pod["spec"].get("priorityClassName", ""), 0)
                pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
                self.api.add(pod)
                # One after the other: of pods that are bound at the same time, either may be first.
                await self._settle()

    async def _settle(self) -> None:
        """Let the scheduler try every pod, once more where it evicted one, and the kubelet run what is bound."""
        await self._schedule()
        if any(body["status"].get("nominatedNodeName") for body in self.api.all("pods")):
            await self._schedule()

    async def _schedule(self) -> None:
        await self._seen()
        config = ExtenderConfig(f"http://127.0.0.1:{self.extender.ports['listen']}/gpushare-scheduler")
        async with Scheduler(self.api, config, name=SCHEDULER) as scheduler:
            await scheduler.schedule()
        for body in self.api.all("pods"):
            name = body["metadata"]["name"]
            if "deletionTimestamp" in body["metadata"]:
                await self._end(name, body["metadata"]["namespace"])
            elif body["spec"].get("nodeName") and name not in self.running:
                await self._run(body)
        await self.publish()

    async def _seen(self) -> None:
        newest = self.api.store.version
        watches = self.extender.watches.values()
        await self.node.until(lambda: min(each.version for each in watches) >= newest)

    async def _run(self, body: Json) -> None:
        """Let the kubelet run a pod, and wait until the agent has written where it is."""
        meta = body["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        assert self.node.agent is not None
        assert self.node.agent.cluster is not None
        followed = self.node.agent.cluster.followed
        await self.node.until(lambda: meta["uid"] in followed.pods)
        made = self.running[name] = await self.node.kubelet.admit(spec_of(body))
        states = [{"name": each.name, "state": {"running": {}}} for each in made.containers if each.running]
        status = {"phase": made.phase, "containerStatuses": states}
        self.api.patch("pods", name, {"status": status}, namespace, subresource="status")
        assert made.phase == "Running", made
        await self.node.until(
            lambda: (
                self._annotation(name, namespace, "ALIYUN_COM_GPU_MEM_ASSIGNED") == "true"
                or bool(self._annotation(name, namespace, INSTANCES))
            )
        )

    async def _end(self, name: str, namespace: str) -> None:
        made = self.running.pop(name)
        await self.node.kubelet.delete(made)
        self.api.patch("pods", name, {"status": {"phase": "Failed"}}, namespace, subresource="status")
        self.api.delete("pods", name, namespace)

    def _annotation(self, name: str, namespace: str, key: str) -> str:
        return str(self.api.get("pods", name, namespace)["metadata"].get("annotations", {}).get(key, ""))

    async def publish(self) -> None:
        """Write into the node's status what the kubelet offers, as it does every few seconds."""
        assert self.node.agent is not None
        await self.node.confirmed()
        offers = self.node.kubelet.amounts
        status = {
            "capacity": {name: str(offer.capacity) for name, offer in offers.items()},
            "allocatable": {name: str(offer.allocatable) for name, offer in offers.items()},
        }
        self.api.patch("nodes", NODE, {"status": status}, subresource="status")

    async def label(self, key: str, value: str) -> None:
        """Label the node with a way of giving MIG instances, and wait until the kubelet offers what that gives."""
        self.api.patch("nodes", NODE, {"metadata": {"labels": {key: value}}})
        await self.node.until(lambda: self._gives(value))
        await self.publish()

    def _gives(self, mig: str) -> bool:
        assert self.node.agent is not None
        advertiser, shares = self.node.agent.advertiser, self.node.agent.state.node.shares
        advertiser.refresh()
        given_whole = said_of(self.api.get("nodes", NODE)).get("instances", [])
        return (
            shares.mig == mig
            and bool(given_whole) is (mig == MigMode.WHOLE)
            and all(
                sum(healthy for offer in advertiser.offers[each.listing] for _, healthy in offer.devices(each.listing))
                == self.node.healthy(each.name)
                for each in self.node.agent.config.value.resources
            )
        )

    def positions(self, name: str, container: str) -> dict[int, int]:
        """Return how many devices of either resource a container has on each GPU, by what the kubelet gave it."""
        found: dict[int, int] = {}
        for devices in self.running[name].container(container).devices.values():
            for device in devices:
                at = self.node.uuids.index(device.partition("::")[0])
                found[at] = found.get(at, 0) + 1
        return found

    async def inspect(self, *words: str, codes: frozenset[int] = frozenset({0})) -> str:
        """Return what ``kubectl inspect gpushare`` prints, without the blanks at the ends of lines, if it ends so."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = await asyncio.to_thread(inspect_program.main, words, kubectl=str(self.kubectl), environ={})
        assert (err.getvalue(), code in codes) == ("", True), (code, err.getvalue(), out.getvalue())
        return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def spec_of(body: Json) -> PodSpec:
    """Return a pod as the kubelet knows it."""
    meta, spec = body["metadata"], body["spec"]
    return PodSpec(meta["name"], tuple(_containers(spec)), namespace=meta["namespace"], uid=meta["uid"])


def _containers(spec: Json) -> Iterator[ContainerSpec]:
    for kind, containers in (
        (ContainerKind.INIT, spec.get("initContainers", ())),
        (ContainerKind.APP, spec["containers"]),
    ):
        for each in containers:
            limits = {
                name: int(amount)
                for name, amount in each["resources"].get("limits", {}).items()
                if name in {GPU_MEM, GPU_COUNT} or is_mig_resource(name)
            }
            sidecar = each.get("restartPolicy") == "Always"
            yield ContainerSpec(each["name"], limits, ContainerKind.SIDECAR if sidecar else kind)


@asynccontextmanager
async def guide(folder: Path, gpus: str = GPUS) -> AsyncIterator[Guide]:
    """Start the guide's cluster, with an agent on its node, which has these GPUs, and an extender, and no pod."""
    async with ApiServer(bookmark_s=0.02) as api:
        node = builders.node(NODE, labels={"gpushare": "true"})
        node["status"]["addresses"] = [{"type": "InternalIP", "address": "192.168.0.71"}]
        api.add(node)
        api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        async with world(gpus, api=api.url, node_name=NODE) as there:
            agent = there.launch()
            assert agent.cluster is not None
            agent.cluster.look_s = 0.2  # at the labels of the node
            await there.ready()
            await there.until(lambda: takes_pods(api.get("nodes", NODE)))
            flags = {"listen": "127.0.0.1:0", "http": "off"}
            extender = Extender(
                Sources(EXTENDER_SETTINGS, flags=flags, environ={}).read(),
                ClusterConfig(api.url),
                features=EXTENDER_FEATURES,
                timings=QUICK,
            )
            task = asyncio.create_task(extender.run())
            try:
                await there.until(lambda: "listen" in extender.ports and not extender.unready())
                kubectl = folder / "kubectl"
                kubectl.write_text(
                    _KUBECTL.format(python=sys.executable, address=api.url.removeprefix("http://")), encoding="utf-8"
                )
                kubectl.chmod(0o755)
                made = Guide(api, there, extender, kubectl)
                await made.publish()
                yield made
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
