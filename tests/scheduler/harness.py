"""A cluster with an extender and its scheduler: nodes and pods in an API server, and every call over real sockets."""

import asyncio
import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from gpu_device_plugin.feature_list import FeatureSpec, settings_of
from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES
from gpu_device_plugin.kubernetes.client.api_client import Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.lease import LeaseTiming
from gpu_device_plugin.kubernetes.reflector import ReflectorTiming
from gpu_device_plugin.kubernetes.writers.binder import BinderTiming
from gpu_device_plugin.scheduler.controller_context import ExtenderTimings
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.sources import Sources
from tests import builders
from tests.builders import GPU_COUNT, GPU_MEM
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Trouble
from tests.patience import eventually, stretched
from tests.scheduler_double.scheduler import ExtenderConfig, Outcome, Scheduler

Json = dict[str, Any]

RIGHTS = {
    ("list", "nodes"),
    ("watch", "nodes"),
    ("list", "pods"),
    ("watch", "pods"),
    ("get", "pods"),
    ("create", "pods/binding"),
    ("patch", "pods/status"),
    ("patch", "pods"),
    ("get", "namespaces"),
}
"""What deploy/scheduler.yaml grants the extender."""
LEASE_RIGHTS = {("get", "leases"), ("create", "leases"), ("update", "leases")}

QUICK = ExtenderTimings(
    api=Timing(connect_s=20, request_s=20, watch_s=30, silence_s=30),
    follow=ReflectorTiming(first_retry_s=0.01, longest_retry_s=0.1, patience_s=0.02),
    bind=BinderTiming(call_s=10, total_s=20, pause_s=0.01),
    lease=LeaseTiming(lease_s=60, renew_s=40, retry_s=0.1, release_s=20),
    catch_up_s=20,
    check_doubts_s=0.02,
    settle_s=0.0,
    nominate_s=0.0,
    resize_s=0.01,
    capacity_s=0.01,
    settled_s=0.05,
    tick_s=0.02,
)
"""Under these nothing that a test waits for takes long, and nothing is given up that is only slow."""
HASTY = replace(
    QUICK,
    api=Timing(connect_s=1, request_s=0.5, watch_s=30, silence_s=30),
    bind=BinderTiming(call_s=0.2, total_s=0.4, pause_s=0.01),
    catch_up_s=1,
)
"""The same for an API server that does not answer: the extender gives up soon, and that is what a test waits for."""
BIND_TIMEOUT_S = 30.0
"""Longer than either takes for a binding."""

SECRET = "hunter2"  # noqa: S105 - stands for what must not get into a log
NODE_GPUS = "gpu-device-plugin/gpus"
ALLOCATION = "scheduler.framework.gpushare.allocation"
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
PREFIX = "/gpushare-scheduler"


def gpus(node: str, *sizes: int, model: str = "Tesla T4", share_mib: int = 1024, **rest: Any) -> str:
    """Return what an agent writes of its GPUs: so many shares each. `unhealthy` are reasons by position."""
    unhealthy: Mapping[int, str] = rest.pop("unhealthy", {})
    models: Mapping[int, str] = rest.pop("models", {})
    listed = [
        {
            "uuid": f"GPU-{node}-{at}",
            "index": at,
            "model": models.get(at, model),
            "memoryMiB": size * share_mib,
            "shares": size,
            "healthy": at not in unhealthy,
            **({"reason": unhealthy[at]} if at in unhealthy else {}),
        }
        for at, size in enumerate(sizes)
    ]
    said = {"version": 1, "shareMiB": share_mib, "policy": "", "driver": "565.57.01", "gpus": listed, "links": []}
    return json.dumps(said | rest)


@dataclass
class Running:
    """An extender that runs, and the scheduler beside it."""

    extender: Extender
    task: asyncio.Task[Any]
    scheme: str = "http"

    @property
    def url(self) -> str:
        """Where the scheduler calls it."""
        return f"{self.scheme}://127.0.0.1:{self.extender.ports['listen']}"

    @property
    def probes(self) -> str:
        """Where the kubelet and Prometheus do."""
        return f"http://127.0.0.1:{self.extender.ports['http']}"

    def free(self, node: str) -> list[int]:
        """Return the free shares of a node's GPUs, 0 for one in whole use, as the extender has it in its ledger."""
        return [0 if room.whole else room.free for room in self.extender.fleet.candidates[node].rooms]


@dataclass
class ExtenderWorld:
    """What a test acts on and looks at."""

    api: ApiServer
    http: aiohttp.ClientSession
    settings: dict[str, str]
    timings: ExtenderTimings
    logs: list[str] = field(default_factory=list)
    """Every line that was logged, with all that belongs to it."""
    running: list[Running] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    """Nodes whose GPUs are others than those on which pods were placed."""
    features: Sequence[FeatureSpec] = EXTENDER_FEATURES
    """Those of the extenders."""

    # Extenders

    async def start(self, **changed: str) -> Running:
        """Start an extender, and wait until it knows the cluster."""
        running = await self.launch(**changed)
        await self.until(lambda: not running.extender.unready())
        return running

    async def launch(self, *, token: str = "", url: str = "", **changed: str) -> Running:
        """Start an extender, and wait until it listens."""
        settings = Sources(
            settings_of(self.features, ExtenderSettings), flags=self.settings | changed, environ={}
        ).read()
        config = ClusterConfig(url or self.api.url, token=token)
        # What is kept for good here would be kept through all other tests.
        extender = Extender(settings, config, features=self.features, timings=self.timings, when_read=lambda: None)
        running = Running(extender, asyncio.create_task(extender.run()), "https" if settings.tls_cert else "http")
        self.running.append(running)
        await self.until(lambda: "listen" in extender.ports)
        return running

    async def stop(self, running: Running | None = None) -> None:
        """Stop an extender, as SIGTERM does."""
        running = running or self.only
        running.task.cancel()
        ended: BaseException
        (ended,) = await asyncio.gather(running.task, return_exceptions=True)
        self.running.remove(running)
        while isinstance(ended, BaseExceptionGroup):
            ended = ended.exceptions[0]
        assert isinstance(ended, asyncio.CancelledError), ended

    async def restart(self, **changed: str) -> Running:
        """Stop the extender, and start one that knows nothing of it."""
        await self.stop()
        return await self.start(**changed)

    @property
    def only(self) -> Running:
        """The extender, where there is one."""
        (running,) = self.running
        return running

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; fail if an extender ends before."""
        await eventually(condition, running=lambda: [running.task for running in self.running])

    async def seen(self) -> None:
        """Wait until every extender knows what the API server tells its watches."""
        newest = self.api.store.version
        for running in self.running:
            extender = running.extender
            await self.until(lambda e=extender: min(each.version for each in e.watches.values()) >= newest)  # type: ignore[misc]

    # Nodes

    def node(self, name: str, *sizes: int, labels: Mapping[str, str] | None = None, **rest: Any) -> None:
        """Add a node whose agent has written its GPUs on it: so many shares each."""
        said = gpus(name, *sizes, **rest)
        self.api.add(
            builders.node(name, mem=sum(sizes), count=len(sizes), labels=labels, annotations={NODE_GPUS: said})
        )

    def tell(self, name: str, *sizes: int, **rest: Any) -> None:
        """Let an agent write anew what GPUs its node has, and its kubelet the sums."""
        self.changed.add(name)
        said = gpus(name, *sizes, **rest)
        self.api.patch("nodes", name, {"metadata": {"annotations": {NODE_GPUS: said}}})
        amounts = {GPU_MEM: str(sum(sizes)), GPU_COUNT: str(len(sizes))}
        self.api.patch("nodes", name, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")

    # Pods

    def pod(self, name: str, *containers: Json, node: str = "", priority: int = 0, **rest: Any) -> Json:
        """Create a pod, each container of which knows a secret; without containers it has one, by mem=4, count=1."""
        amounts = {key: rest.pop(key) for key in ("mem", "count") if key in rest}
        spec: Json = rest.pop("spec", {})
        body = builders.pod(name, *(containers or (builders.container(**amounts),)), node=node, **rest)
        body["spec"] |= spec | ({"priority": priority} if priority else {})
        for container in (*body["spec"]["containers"], *body["spec"].get("initContainers", ())):
            container["env"] = [{"name": "PASSWORD", "value": SECRET}]
        return self.api.add(body)

    def get(self, name: str) -> Json:
        return self.api.get("pods", name)

    def where(self, name: str) -> str:
        """Return the node that a pod is bound to; empty: none."""
        return str(self.get(name)["spec"].get("nodeName", ""))

    def reason(self, name: str) -> str:
        """Return why a pod is not scheduled, in one word; empty: nobody has tried, or it is."""
        return str(self._scheduled(name).get("reason", ""))

    def message(self, name: str) -> str:
        """Return why a pod is not scheduled, as its owner reads it."""
        return str(self._scheduled(name).get("message", ""))

    def _scheduled(self, name: str) -> Json:
        conditions = self.get(name)["status"].get("conditions", [])
        return next((one for one in conditions if one["type"] == "PodScheduled"), {})

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.get(name)["metadata"].get("annotations", {})
        return found

    def places(self, name: str) -> dict[int, int]:
        """Return the shares of each GPU that stand on a pod at its peak, read independently of the product."""
        pod = self.get(name)
        return dict(held(pod, GPU_MEM) + held(pod, GPU_COUNT))

    def run(self, name: str) -> None:
        """Let the kubelet say that a pod's containers run."""
        names = [container["name"] for container in self.get(name)["spec"]["containers"]]
        states = [{"name": each, "state": {"running": {}}} for each in names]
        self.api.patch(
            "pods", name, {"status": {"phase": "Running", "containerStatuses": states}}, subresource="status"
        )

    def end(self, name: str, phase: str = "Succeeded") -> None:
        """Let all containers of a pod end."""
        names = [container["name"] for container in self.get(name)["spec"]["containers"]]
        states = [{"name": each, "state": {"terminated": {}}} for each in names]
        self.api.patch("pods", name, {"status": {"phase": phase, "containerStatuses": states}}, subresource="status")

    def delete(self, name: str) -> None:
        """Delete a pod as people do: its containers get time to end."""
        self.api.delete("pods", name, grace_s=None)

    def force_delete(self, name: str) -> None:
        """Delete a pod at once, whatever runs."""
        self.api.delete("pods", name, grace_s=0)

    def finish(self, name: str) -> None:
        """Let the kubelet end a deleted pod and remove it."""
        self.end(name, "Failed")
        self.api.delete("pods", name, grace_s=0)

    def bindings_meet(self, trouble: Trouble, times: float = math.inf) -> None:
        """Order trouble for bindings."""
        self.api.fail(trouble, verbs={"create"}, resources={"pods/binding"}, times=times)

    # Scheduling

    @asynccontextmanager
    async def scheduler(self, running: Running | None = None, **rest: Any) -> AsyncIterator[Scheduler]:
        """Put a scheduler beside an extender; it waits longer for a binding than the extender takes for one."""
        there = running or self.only
        waits_s = there.extender.settings.bind_timeout_s + stretched()
        config = ExtenderConfig(there.url + PREFIX, http_timeout_s=waits_s, **rest)
        async with Scheduler(self.api, config, backoff_s=(0.02, 0.1)) as scheduler:
            yield scheduler

    async def schedule(self, running: Running | None = None, **rest: Any) -> Mapping[str, Outcome]:
        """Have every pod that waits tried once, and wait until the extenders have seen what came of it."""
        await self.seen()
        async with self.scheduler(running, **rest) as scheduler:
            found = await scheduler.schedule()
        await self.seen()
        self.check()
        return found

    async def ask(self, verb: str, body: Any, running: Running | None = None) -> Any:
        """Send what a scheduler might; return the answer, which must be one."""
        async with self.http.post(f"{(running or self.only).url}{PREFIX}/{verb}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def filter(self, pod: Json, *names: str, running: Running | None = None) -> Json:
        found: Json = await self.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(names)}, running)
        return found

    async def bind(self, name: str, node: str, running: Running | None = None) -> str:
        """Have a pod bound; return the error."""
        meta = self.get(name)["metadata"]
        body = {"PodName": name, "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        return str((await self.ask("bind", body, running))["Error"])

    async def inspect(self, node: str = "") -> tuple[int, Json]:
        async with self.http.get(f"{self.only.url}{PREFIX}/inspect{'/' if node else ''}{node}") as answer:
            return answer.status, await answer.json()

    async def metrics(self) -> str:
        async with self.http.get(f"{self.only.probes}/metrics") as answer:
            assert answer.status == 200
            return await answer.text()

    # What must be so whatever happened

    def check(self) -> None:
        """No GPU has more on it than it has, by what stands on the pods that have not ended."""
        shares: dict[str, Counter[int]] = defaultdict(Counter)
        whole: dict[str, Counter[int]] = defaultdict(Counter)
        for pod in self.api.all("pods"):
            node = pod["spec"].get("nodeName", "")
            if node and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                shares[node].update(held(pod, GPU_MEM))
                whole[node].update(held(pod, GPU_COUNT).keys())
        for node in self.api.all("nodes"):
            name, text = node["metadata"]["name"], node["metadata"].get("annotations", {}).get(NODE_GPUS, "")
            listed = [] if name in self.changed else _json(text).get("gpus", [])
            sizes = {gpu["index"]: gpu["shares"] for gpu in listed if "shares" in gpu}
            for at, size in sizes.items():
                assert shares[name][at] <= size, f"of {size} shares of GPU {at} of {name}, {shares[name][at]} are taken"
                assert whole[name][at] <= 1, f"GPU {at} of {name} is taken whole by {whole[name][at]}"
                assert not (whole[name][at] and shares[name][at]), f"GPU {at} of {name} is shared and taken whole"


def held(pod: Json, resource: str) -> Counter[int]:
    """Return the most shares of each GPU that a pod holds of a resource: what it asks, where its annotations say."""
    notes = pod["metadata"].get("annotations", {})
    app, init = (_json(notes.get(key, "")) for key in (ALLOCATION, INIT_ALLOCATION))
    kept: Counter[int] = Counter()
    peak: Counter[int] = Counter()
    for said, containers in ((init, pod["spec"].get("initContainers", ())), (app, pod["spec"]["containers"])):
        for index, container in enumerate(containers):
            if resource in container.get("resources", {}).get("limits", {}):
                here = Counter({int(at): shares for at, shares in said.get(str(index), {}).items()})
                if len(here) == 1 and said is app and resource == GPU_MEM:
                    here = Counter({at: max(n, guaranteed(notes, container["name"])) for at, n in here.items()})
                peak |= kept + here
                if said is app or container.get("restartPolicy") == "Always":
                    kept += here
    return peak | kept


def guaranteed(notes: Mapping[str, str], container: str) -> int:
    """Return what a container is promised or held beyond its request; 0: nothing."""
    answers = (_json(notes.get(f"gpu-device-plugin/memory-{key}", "")) for key in ("promised", "held"))
    return max(int(answer.get("guarantees", {}).get(container, 0)) for answer in answers)


def _json(text: str) -> Json:
    """Return an object; empty if this is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Lines(logging.Handler):
    """Keeps every line with all that belongs to it."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        extra = {key: value for key, value in vars(record).items() if key not in _USUAL}
        self._lines.append(f"{record.levelname} {self.format(record)} {extra}")


_USUAL = frozenset(vars(logging.makeLogRecord({})))


def patient(timings: ExtenderTimings) -> ExtenderTimings:
    """Return the same with more time, on a busy machine, for what is answered at all."""
    longer = stretched(1)
    api, bind, lease = timings.api, timings.bind, timings.lease
    return replace(
        timings,
        api=replace(api, connect_s=longer * api.connect_s, request_s=longer * api.request_s),
        bind=bind and replace(bind, call_s=longer * bind.call_s, total_s=longer * bind.total_s),
        lease=replace(lease, lease_s=math.ceil(longer * lease.lease_s), renew_s=longer * lease.renew_s),
        catch_up_s=longer * timings.catch_up_s,
    )


@asynccontextmanager
async def world(
    settings: Mapping[str, str] | None = None,
    *,
    allowed: Iterable[tuple[str, str]] | None = RIGHTS,
    timings: ExtenderTimings = QUICK,
    **more: str,
) -> AsyncIterator[ExtenderWorld]:
    """Make an API server without nodes; its extender is started by the test. No secret may get into a log."""
    lines: list[str] = []
    handler, logger = _Lines(lines), logging.getLogger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    ours = logging.getLogger("gpu_device_plugin")
    ours_before = ours.level
    ours.setLevel(logging.NOTSET)  # a reload of settings sets it, here or in a test before
    try:
        async with (
            ApiServer(allowed=allowed, bookmark_s=0.02) as api,
            aiohttp.ClientSession() as http,
        ):
            made = ExtenderWorld(
                api,
                http,
                {
                    "listen": "127.0.0.1:0",
                    "http": "127.0.0.1:0",
                    "vanished_grace": "1h",
                    "bind_timeout": f"{stretched(BIND_TIMEOUT_S):.0f}s",
                    **(settings or {}),
                    **more,
                },
                patient(timings),
                lines,
            )
            try:
                yield made
            finally:
                for running in tuple(made.running):
                    await made.stop(running)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        ours.setLevel(ours_before)
    assert SECRET not in "\n".join(lines)
