"""The part of a kubelet that speaks to DRA drivers, for tests: real sockets and the rules of Kubernetes 1.36.2.

It finds drivers in ``plugins_registry``, prepares the claims of pods before they start and unprepares them after the
last pod has ended, remembers what it prepared over restarts, removes the node's ResourceSlices at its start and those
of a driver that has been gone for a while, and follows the health of devices. A container gets its variables from CDI
files, as from containerd. Time passes only as the adjustable intervals say.
"""

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc
from grpc import aio

from gpu_device_plugin.kubelet._proto import (
    dra_health_pb2,
    dra_health_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.kinds import SLICES

_SERVICES: dict[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
"""By name; of a driver's services the first one that is among these is called."""
_HEALTH = "v1alpha1.DRAResourceHealth"
_STATE = "dra_manager_state"


@dataclass(frozen=True, slots=True)
class Started:
    """What became of the start of a pod."""

    environ: dict[str, str] = field(default_factory=dict)
    """The variables that its containers got through CDI."""
    error: str = ""
    """Why it was not started, as its Event says; empty: it runs."""


@dataclass(slots=True)
class _Driver:
    """A registered driver: its endpoints, the latest one last."""

    endpoints: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the path of the registration's socket: that of the services, and the service that is called."""
    stream: asyncio.Task[None] | None = None
    gone_since: float | None = None


class DraKubelet:
    """The kubelet of one node under `root`. `async with` starts it, and stops it for good."""

    def __init__(self, root: Path, api: ApiServer, node: str) -> None:
        """Make the directories; `api` has the node, its pods and their claims."""
        self.root = root
        self.registry = root / "plugins_registry"
        self.plugins = root / "plugins"
        self.cdi = root / "cdi"
        for directory in (self.registry, self.plugins, self.cdi):
            directory.mkdir(parents=True, exist_ok=True)
        self._api = api
        self._node = node
        self.wipe_s = 30.0
        """How long a driver may be gone before its slices are removed, in seconds."""
        self.retry_s = 5.0
        """Seconds until a broken stream of health is opened again."""
        self.prepare_s = 45.0
        """Timeout of a call of a driver, in seconds."""
        self.looks = asyncio.Event()
        """Clear, it has not looked for drivers yet: at its start a kubelet does so after it has removed the slices."""
        self.looks.set()
        self.drivers: dict[str, _Driver] = {}
        self.health: dict[tuple[str, str], tuple[bool, str]] = {}
        """By pool and device: whether it is healthy, and the driver's message."""
        self.refused: list[str] = []
        """Why sockets were not registered."""
        self.wiped = 0
        """How often ResourceSlices were removed."""
        self._prepared: dict[str, dict[str, Any]] = {}
        """By UID of a claim: its namespace, name, driver, CDI names, and the UIDs of the pods that use it."""
        self._asked: set[str] = set()
        """The UIDs of claims that this process had prepared; it does not know of its predecessor's."""
        self._process: asyncio.Task[None] | None = None
        self._up = False

    def __repr__(self) -> str:
        return f"<DraKubelet of {self._node}: {sorted(self.drivers)}, {len(self._prepared)} claims>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start: read the state, remove the node's slices, look for drivers."""
        state = self.root / _STATE
        self._prepared = json.loads(state.read_text()) if state.exists() else {}
        self._asked.clear()
        self._wipe("")
        self._up = True
        self._process = asyncio.create_task(self._run(), name="kubelet: plugins")

    async def stop(self) -> None:
        """End the process; directories, state and running pods stay."""
        self._up = False
        process, self._process = self._process, None
        tasks = [driver.stream for driver in self.drivers.values() if driver.stream is not None]
        self.drivers, self.health = {}, {}
        for task in [*tasks, *([process] if process is not None else [])]:
            task.cancel()
            await asyncio.wait({task})

    def reaches(self, driver: str) -> bool:
        """Whether a driver is registered with an endpoint that is there."""
        known = self.drivers.get(driver)
        return known is not None and bool(known.endpoints) and Path(list(known.endpoints.values())[-1][0]).exists()

    # --- Pods ---------------------------------------------------------------------------------------------------------

    async def start_pod(self, name: str, namespace: str = "default") -> Started:
        """Prepare the claims of a pod of the API server and start its containers, once; a real kubelet tries again."""
        pod = self._api.get("pods", name, namespace)
        uid = pod["metadata"]["uid"]
        environ: dict[str, str] = {}
        wanted: dict[str, list[dict[str, Any]]] = {}
        for claim_name in self._claims_of(pod):
            claim = self._api.get("resourceclaims", claim_name, namespace)
            reserved = (claim.get("status") or {}).get("reservedFor") or ()
            if uid not in {one["uid"] for one in reserved}:
                return Started(error=f"pod {name} is not allowed to use ResourceClaim {claim_name}")
            for driver in {result["driver"] for result in claim["status"]["allocation"]["devices"]["results"]}:
                wanted.setdefault(driver, []).append(claim)
        for driver, claims in wanted.items():
            new = [claim for claim in claims if claim["metadata"]["uid"] not in self._asked]
            if new and (error := await self._prepare(driver, new, uid)):
                return Started(error=error)
            for claim in claims:
                known = self._prepared[claim["metadata"]["uid"]]
                known["pods"] = sorted({*known["pods"], uid})
                for cdi in known["cdi"]:
                    try:
                        environ |= self._injected(cdi)
                    except LookupError as error:
                        return Started(error=f"unresolvable CDI devices {error}")
            self._save()
        return Started(environ)

    async def end_pod(self, name: str, namespace: str = "default", uid: str = "") -> str:
        """Let the containers of a pod be over and unprepare what no other pod uses; return why that failed, or nothing.

        `uid` names the pod if the API server does not have it any more.
        """
        uid = uid or self._api.get("pods", name, namespace)["metadata"]["uid"]
        over = []
        for claim in self._prepared.values():
            claim["pods"] = [pod for pod in claim["pods"] if pod != uid]
            if not claim["pods"]:
                over.append(claim)
        for claim in over:
            if error := await self._unprepare(claim):
                claim["pods"] = [uid]
                return error
            del self._prepared[claim["uid"]]
            self._asked.discard(claim["uid"])
        self._save()
        return ""

    def _claims_of(self, pod: dict[str, Any]) -> list[str]:
        made = {one["name"]: one.get("resourceClaimName") for one in pod["status"].get("resourceClaimStatuses") or ()}
        own = [one.get("resourceClaimName") or made[one["name"]] for one in pod["spec"].get("resourceClaims") or ()]
        extended = pod["status"].get("extendedResourceClaimStatus")
        return [*own, *([extended["resourceClaimName"]] if extended else [])]

    def _injected(self, cdi: str) -> dict[str, str]:
        """Return the variables of a CDI device; LookupError: no file has it."""
        kind, _, device = cdi.partition("=")
        for path in self.cdi.glob("*.json"):
            content = json.loads(path.read_text())
            for found in content["devices"] if content["kind"] == kind else ():
                if found["name"] == device:
                    return dict(entry.split("=", 1) for entry in found["containerEdits"].get("env", ()))
        raise LookupError(cdi)

    async def _prepare(self, driver: str, claims: Sequence[dict[str, Any]], pod: str) -> str:
        try:
            async with self._services(driver) as (stub, messages):
                # A kubelet notes the claims before it calls, and unprepares them although that may fail (manager.go).
                for claim in claims:
                    meta = claim["metadata"]
                    new = {key: meta[key] for key in ("uid", "namespace", "name")}
                    known = self._prepared.setdefault(meta["uid"], {**new, "driver": driver, "cdi": [], "pods": []})
                    known["pods"] = sorted({*known["pods"], pod})
                self._save()
                refs = [_ref(messages, claim["metadata"]) for claim in claims]
                request = messages.NodePrepareResourcesRequest(claims=refs)
                answer = await stub.NodePrepareResources(request, timeout=self.prepare_s)
        except (LookupError, aio.AioRpcError) as error:
            return _told(error)
        for claim in claims:
            meta = claim["metadata"]
            found = answer.claims.get(meta["uid"])
            if found is None or found.error:
                return f"prepare devices: {'no answer' if found is None else found.error}"
            names = dict.fromkeys(name for device in found.devices for name in device.cdi_device_ids)
            self._prepared[meta["uid"]]["cdi"] = list(names)
            self._asked.add(meta["uid"])
        self._save()
        return ""

    async def _unprepare(self, claim: dict[str, Any]) -> str:
        try:
            async with self._services(claim["driver"]) as (stub, messages):
                request = messages.NodeUnprepareResourcesRequest(claims=[_ref(messages, claim)])
                answer = await stub.NodeUnprepareResources(request, timeout=self.prepare_s)
        except (LookupError, aio.AioRpcError) as error:
            return _told(error)
        return answer.claims[claim["uid"]].error if claim["uid"] in answer.claims else "no answer"

    @contextlib.asynccontextmanager
    async def _services(self, driver: str) -> AsyncIterator[tuple[Any, Any]]:
        """Connect to the latest endpoint of a driver; return its stub and the module of its messages.

        LookupError: it is not registered.
        """
        known = self.drivers.get(driver)
        if not self._up or known is None or not known.endpoints:
            raise LookupError(f"DRA driver {driver} is not registered")
        endpoint, service = list(known.endpoints.values())[-1]
        messages, stubs = _SERVICES[service]
        async with aio.insecure_channel(f"unix:{endpoint}") as opened:
            yield stubs.DRAPluginStub(opened), messages

    def _save(self) -> None:
        (self.root / _STATE).write_text(json.dumps(self._prepared))

    # --- Drivers ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        seen: dict[str, int] = {}
        while True:
            await self.looks.wait()
            # A kubelet is told of every new file; one with the name and the inode of an old one is new all the same.
            there = {str(path): made for path in sorted(self.registry.glob("**/*.sock")) if (made := _made(path))}
            for path in [path for path, made in seen.items() if there.get(path) != made]:
                del seen[path]
                self._deregister(path)
            for path, made in there.items():
                if path not in seen and await self._register(path):
                    seen[path] = made
            now = asyncio.get_running_loop().time()
            for name, driver in self.drivers.items():
                if driver.gone_since is not None and now - driver.gone_since >= self.wipe_s:
                    driver.gone_since = None
                    self._wipe(name)
            await asyncio.sleep(0.02)

    async def _register(self, path: str) -> bool:
        try:
            async with aio.insecure_channel(f"unix:{path}") as opened:
                stub = pluginregistration_pb2_grpc.RegistrationStub(opened)
                info = await stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=1)
                if error := self._unfit(info):
                    await stub.NotifyRegistrationStatus(_status(error), timeout=5)
                    self.refused.append(f"{path}: {error}")
                    return True
                # As in the kubelet, a driver that is told so can be called at once.
                self._add(path, info)
                await stub.NotifyRegistrationStatus(_status(""), timeout=5)
        except aio.AioRpcError as failure:
            self._deregister(path)
            self.refused.append(f"{path}: {failure.details()}")
            return False
        return True

    def _add(self, path: str, info: pluginregistration_pb2.PluginInfo) -> None:
        driver = self.drivers.setdefault(info.name, _Driver())
        driver.endpoints[path] = info.endpoint, next(each for each in info.supported_versions if each in _SERVICES)
        driver.gone_since = None
        if _HEALTH in info.supported_versions and driver.stream is None:
            driver.stream = asyncio.create_task(self._follow_health(info.name), name=f"kubelet: health of {info.name}")

    def _unfit(self, info: pluginregistration_pb2.PluginInfo) -> str:
        if info.type != "DRAPlugin":
            return f"RegisterPlugin error -- no handler registered for plugin type: {info.type}"
        if not _SERVICES.keys() & set(info.supported_versions):
            return (
                "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA "
                f"driver plugin {info.name} at endpoint {info.endpoint}: none of services supported by the plugin "
                f"({_listed(info.supported_versions)}) are supported by the kubelet ({_listed(_SERVICES)})"
            )
        known = self.drivers.get(info.name)
        if known is not None and info.endpoint in {endpoint for endpoint, _ in known.endpoints.values()}:
            return f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}"
        return ""

    def _deregister(self, path: str) -> None:
        for driver in self.drivers.values():
            if driver.endpoints.pop(path, None) and not driver.endpoints:
                driver.gone_since = asyncio.get_running_loop().time()

    def _wipe(self, driver: str) -> None:
        """Remove the slices of the node; of one driver, or of all."""
        for found in self._api.all("resourceslices"):
            spec = found["spec"]
            if spec.get("nodeName") == self._node and driver in {"", spec["driver"]}:
                self._api.store.delete(SLICES, ("", found["metadata"]["name"]))
        self.wiped += 1

    async def _follow_health(self, name: str) -> None:
        while True:
            known = self.drivers.get(name)
            endpoint = list(known.endpoints.values())[-1][0] if known is not None and known.endpoints else ""
            try:
                async with aio.insecure_channel(f"unix:{endpoint}") as opened:
                    stub = dra_health_pb2_grpc.DRAResourceHealthStub(opened)
                    async for answer in stub.NodeWatchResources(dra_health_pb2.NodeWatchResourcesRequest()):
                        self.health = {
                            (one.device.pool_name, one.device.device_name): (
                                one.health == dra_health_pb2.HEALTHY,
                                one.message,
                            )
                            for one in answer.devices
                        }
            except aio.AioRpcError:
                pass
            await asyncio.sleep(self.retry_s)


def _made(path: Path) -> int:
    """Return when a socket was made, in nanoseconds; 0 if it is none, or has gone since it was listed."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_ctime_ns if stat.S_ISSOCK(found.st_mode) else 0


def _status(error: str) -> pluginregistration_pb2.RegistrationStatus:
    return pluginregistration_pb2.RegistrationStatus(plugin_registered=not error, error=error)


def _ref(messages: Any, meta: dict[str, Any]) -> Any:
    return messages.Claim(uid=meta["uid"], namespace=meta["namespace"], name=meta["name"])


def _listed(names: Iterable[str]) -> str:
    """Return names as Go prints a list of them."""
    return "[{}]".format(" ".join(f'"{name}"' for name in names))


def _told(error: LookupError | aio.AioRpcError) -> str:
    if isinstance(error, LookupError):
        return str(error.args[0])
    return f"{error.code() if isinstance(error.code(), grpc.StatusCode) else ''}: {error.details()}"
