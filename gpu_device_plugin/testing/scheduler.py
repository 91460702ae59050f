"""kube-scheduler, as far as an extender meets it: whom it asks what, in which order, and what it makes of the answers.

The rules are those of Kubernetes 1.36 (pkg/scheduler: extender.go, schedule_one.go, eventhandlers.go, backend/queue,
framework/preemption). Of a node it looks at no more than its extended resources, its cordon and its labels; it has no
scores of its own. Where the real one draws lots, this one takes the first by name. It sees the cluster as it is,
without the delay of a watch.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import aiohttp

from gpu_device_plugin.cluster.quantity import whole_quantity
from gpu_device_plugin.testing.builders import GPU_COUNT, GPU_MEM
from gpu_device_plugin.testing.cluster_store import NODES, PODS, RefusedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from gpu_device_plugin.testing.builders import Json
    from gpu_device_plugin.testing.cluster import ApiServer
    from gpu_device_plugin.testing.cluster_store import Change

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"

FLUSH_S = 300.0
"""So long a pod waits that fitted nowhere, if nothing happens that its refusal depends on."""

_EXTENDER, _FIT, _AFFINITY, _CORDON = "extender", "NodeResourcesFit", "NodeAffinity", "NodeUnschedulable"
_SCORE_SCALE = 10
"""An extender's scores end at 10, the scheduler's own at 100."""
_NO_VICTIM = 'expected at least one victim pod on node "{}"'
_LIFT = 1 << 31
"""Makes every priority positive, so that few victims of a low one cost less than many."""


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """An entry of ``extenders`` in a KubeSchedulerConfiguration, with all four verbs under their own names."""

    url_prefix: str
    managed_resources: frozenset[str] = frozenset({GPU_MEM, GPU_COUNT})
    weight: int = 1
    node_cache_capable: bool = True
    """The extender knows the nodes: only their names are sent."""
    http_timeout_s: float = 5.0
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt to schedule a pod."""

    node: str = ""
    """Where it is bound; empty: it is not."""
    reason: str = ""
    """Of its condition PodScheduled: ``Unschedulable`` or ``SchedulerError``."""
    message: str = ""
    """As its owner reads it."""


@dataclass(frozen=True, slots=True)
class _Status:
    """Why a node was not taken."""

    text: str
    resolvable: bool = True
    """Evicting pods might help."""
    by: str = _EXTENDER
    """The plugin that said so."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node, and the pods that count on it: bound there and not ended, or assumed to be bound."""

    body: Json
    pods: tuple[Json, ...]
    allocatable: Mapping[str, int]
    used: Mapping[str, int]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


@dataclass(slots=True)
class _Retry:
    """When a pod that was tried is tried again."""

    attempts: int = 0
    due: float = 0.0
    """Not before, in seconds of the event loop."""
    refused_by: frozenset[str] = frozenset()
    """The plugins whose refusal something has to change. Empty: it waits for nothing but its time."""
    seen: int = 0
    """The version of the cluster up to which nothing has changed any of that."""
    flushed: float = 0.0
    """When it is tried anyway."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one round of filters said."""

    feasible: list[_Node]
    statuses: dict[str, _Status] = field(default_factory=dict)


class _ExtenderError(Exception):
    """An extender did not answer, or not as it must; the text is what the scheduler shows."""


class Scheduler:
    """One kube-scheduler with one extender; use it in an ``async with``, in the API server's event loop."""

    def __init__(
        self,
        api: ApiServer,
        extender: ExtenderConfig,
        *,
        name: str = "default-scheduler",
        backoff_s: tuple[float, float] = (1.0, 10.0),
        flush_s: float = FLUSH_S,
    ) -> None:
        """Prepare a scheduler.

        Args:
            api: the cluster; read and changed without HTTP, so that no trouble ordered there hits the scheduler.
            extender: whom to ask.
            name: only pods that name this scheduler are its own.
            backoff_s: how soon `run` tries a pod again, at first and at most, in seconds.
            flush_s: after how many seconds it tries one again though nothing has happened that might help it.
        """
        self._api = api
        self._extender = extender
        self._name = name
        self._backoff_s = backoff_s
        self._flush_s = flush_s
        self._assumed: dict[str, Json] = {}
        self._retries: dict[str, _Retry] = {}
        self._http: aiohttp.ClientSession | None = None
        self.calls: Counter[str] = Counter()
        """How often each verb was asked."""

    def __repr__(self) -> str:
        return f"<Scheduler {self._name}: {len(self._waiting())} waiting, {len(self._assumed)} assumed>"

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def schedule(self) -> Mapping[str, Outcome]:
        """Try every pod that waits once, and return by name what became of each when all bindings are answered.

        The most important comes first, then the oldest. One is filtered after the other; bindings go on side by side.
        """
        found: dict[str, Outcome] = {}
        async with asyncio.TaskGroup() as binds:
            for pod in self._waiting():
                await self._try(pod, binds, found)
        return found

    async def run(self) -> NoReturn:
        """Schedule for ever: new pods at once, others when it may help, after a while. Ends only by cancellation."""
        loop = asyncio.get_running_loop()
        changed = self._api.store.changed
        async with asyncio.TaskGroup() as binds:
            while True:
                tick, now = changed.version, loop.time()
                wake = now + self._backoff_s[1]
                for pod in self._waiting():
                    retry = self._retries.setdefault(pod["metadata"]["uid"], _Retry())
                    self._look_for_help(pod, retry, now)
                    if retry.refused_by:
                        wake = min(wake, retry.flushed)
                    elif retry.due > now:
                        wake = min(wake, retry.due)
                    else:
                        await self._try(pod, binds, {})
                        break
                else:
                    try:
                        async with asyncio.timeout_at(wake):
                            await changed.after(tick)
                    except TimeoutError:
                        pass
        raise AssertionError  # pragma: no cover (the loop never ends)

    def _look_for_help(self, pod: Json, retry: _Retry, now: float) -> None:
        """Let a pod go on if something has happened that may help it."""
        if retry.refused_by:
            newest = self._api.store.version
            changes = self._api.store.changes_after(retry.seen, newest)
            retry.seen = newest
            if retry.flushed <= now or any(_may_help(pod, retry.refused_by, change) for change in changes):
                retry.refused_by = frozenset()

    # --- One pod ------------------------------------------------------------------------------------------------------

    def _waiting(self) -> list[Json]:
        """Return the pods that are to be scheduled, the first first."""
        bodies = self._api.store.state().objects[PODS].values()
        for uid in self._assumed.keys() - {pod["metadata"]["uid"] for pod in bodies if not pod["spec"].get("nodeName")}:
            del self._assumed[uid]  # seen bound, or gone
        return sorted(
            (
                pod
                for pod in bodies
                if not pod["spec"].get("nodeName")
                and not pod["spec"].get("schedulingGates")
                and pod["spec"]["schedulerName"] == self._name
                and pod["metadata"]["uid"] not in self._assumed
                and not _ended(pod)
                and "deletionTimestamp" not in pod["metadata"]
            ),
            key=lambda pod: (-_priority(pod), pod["metadata"]["creationTimestamp"], _full(pod)),
        )

    async def _try(self, pod: Json, binds: asyncio.TaskGroup, found: dict[str, Outcome]) -> None:
        """Make one attempt; its binding, if it comes to that, is a task of `binds`."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        # What happens from now on counts.
        self._retries.setdefault(uid, _Retry()).seen = self._api.store.version
        chosen = await self._place(pod)
        if isinstance(chosen, Outcome):
            found[name] = chosen
            return
        self._assumed[uid] = {**pod, "spec": {**pod["spec"], "nodeName": chosen}}

        async def bind() -> None:
            try:
                await self._bind(pod, chosen)
            except _ExtenderError as error:
                self._assumed.pop(uid, None)
                found[name] = self._failed(pod, SCHEDULER_ERROR, str(error), nominated="")
                self._forgotten()
            else:
                found[name] = Outcome(chosen)

        binds.create_task(bind(), name=f"bind {_full(pod)}")

    async def _place(self, pod: Json) -> str | Outcome:
        """Return the node for a pod, or why there is none."""
        nodes = self._nodes()
        if not nodes:
            return self._failed(pod, UNSCHEDULABLE, "no nodes available to schedule pods", nominated="")
        try:
            asked = await self._filtered(pod, nodes)
            if asked.feasible:
                return await self._best(pod, asked.feasible)
        except _ExtenderError as error:
            return self._failed(pod, SCHEDULER_ERROR, str(error), nominated="")
        message = _explained(len(nodes), asked.statuses.values())
        refused_by = frozenset(status.by for status in asked.statuses.values())
        try:
            nominated, why = await self._preempt(pod, nodes, asked.statuses)
        except _ExtenderError as error:
            nominated, why = None, str(error)
        preemption = f" preemption: {why}" if why else ""
        return self._failed(pod, UNSCHEDULABLE, message + preemption, nominated=nominated, refused_by=refused_by)

    async def _filtered(self, pod: Json, nodes: Sequence[_Node]) -> _Asked:
        """Return the nodes that fit. The one nominated after a preemption is asked about alone, and before others."""
        nominated = [node for node in nodes if node.name == pod["status"].get("nominatedNodeName")]
        if nominated:
            try:
                asked = await self._passed(pod, nominated)
            except _ExtenderError:
                asked = _Asked([])
            if asked.feasible:
                return asked
        return await self._passed(pod, nodes)

    async def _passed(self, pod: Json, nodes: Sequence[_Node]) -> _Asked:
        statuses = {node.name: status for node in nodes if (status := self._unfit(pod, node)) is not None}
        asked = _Asked([node for node in nodes if node.name not in statuses], statuses)
        if not asked.feasible or not self._interested(pod):
            return asked
        answer = await self._send("filter", {"Pod": pod, **self._listed(asked.feasible)})
        if why_not := _field(answer, "Error"):
            raise _ExtenderError(why_not)
        for name, why in (_field(answer, "FailedAndUnresolvableNodes") or {}).items():
            statuses[name] = _Status(why, resolvable=False)
        for name, why in (_field(answer, "FailedNodes") or {}).items():
            if name not in (_field(answer, "FailedAndUnresolvableNodes") or {}):
                statuses[name] = _Status(why)
        return _Asked(self._kept(answer, asked.feasible), statuses)

    def _kept(self, answer: Json, asked: Sequence[_Node]) -> list[_Node]:
        """Return the nodes that an extender lets pass. Without a list of any form it is none, and nobody is told."""
        by_name = {node.name: node for node in asked}
        names, nodes = _field(answer, "NodeNames"), _field(answer, "Nodes")
        if self._extender.node_cache_capable and names is not None:
            for name in names:
                if name not in by_name:
                    raise _ExtenderError(
                        f'extender "{self._extender.url_prefix}" claims a filtered node "{name}" which is not found in '
                        "the input node list"
                    )
            return [by_name[name] for name in names]
        if nodes is None:
            return []
        # These are taken as they come back, asked about or not.
        bodies = [_field(each, "metadata")["name"] for each in _field(nodes, "items") or []]
        return [by_name[name] for name in bodies if name in by_name]

    async def _best(self, pod: Json, nodes: Sequence[_Node]) -> str:
        if len(nodes) == 1 or not self._interested(pod):
            return nodes[0].name
        scores: Counter[str] = Counter()
        try:
            for each in await self._send("prioritize", {"Pod": pod, **self._listed(nodes)}) or []:
                scores[_field(each, "Host")] += _field(each, "Score") * self._extender.weight * _SCORE_SCALE
        except _ExtenderError:
            scores.clear()  # the scheduler goes on without
        return min(nodes, key=lambda node: (-scores[node.name], node.name)).name

    async def _bind(self, pod: Json, node: str) -> None:
        meta = pod["metadata"]
        if not self._interested(pod):
            try:
                self._api.store.bind(
                    (meta["namespace"], meta["name"]),
                    {"metadata": {"name": meta["name"], "uid": meta["uid"]}, "target": {"name": node}},
                )
            except RefusedError as error:
                raise _ExtenderError(error.message) from error
            return
        asked = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        if why_not := _field(await self._send("bind", asked), "Error"):
            raise _ExtenderError(why_not)

    def _forgotten(self) -> None:
        """Let the others go on that fitted nowhere: a pod that was assumed to be on its node is not."""
        for retry in self._retries.values():
            if retry.refused_by & {_EXTENDER, _FIT}:
                retry.refused_by = frozenset()

    def _failed(
        self, pod: Json, reason: str, message: str, *, nominated: str | None, refused_by: frozenset[str] = frozenset()
    ) -> Outcome:
        """Tell the pod's owner, and try again later. `nominated`: None leaves the nomination as it is."""
        meta = pod["metadata"]
        try:
            now = self._api.get("pods", meta["name"], meta["namespace"])
        except RefusedError:
            return Outcome(reason=reason, message=message)
        if now["metadata"]["uid"] == meta["uid"] and not now["spec"].get("nodeName"):
            told = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            others = [one for one in now["status"].get("conditions", []) if one["type"] != "PodScheduled"]
            status: Json = {"conditions": [*others, told]}
            if nominated is not None:
                status["nominatedNodeName"] = nominated or None
            self._api.patch("pods", meta["name"], {"status": status}, meta["namespace"], subresource="status")
        retry = self._retries.setdefault(meta["uid"], _Retry())
        first, most = self._backoff_s
        moment = asyncio.get_running_loop().time()
        retry.due, retry.flushed = moment + min(most, first * 2**retry.attempts), moment + self._flush_s
        retry.attempts = min(retry.attempts + 1, 20)
        retry.refused_by = refused_by
        return Outcome(reason=reason, message=message)

    # --- What the scheduler knows itself ------------------------------------------------------------------------------

    def _nodes(self) -> list[_Node]:
        objects = self._api.store.state().objects
        on: dict[str, list[Json]] = {}
        pods = {pod["metadata"]["uid"]: pod for pod in objects[PODS].values()}
        for pod in (pods | {uid: pod for uid, pod in self._assumed.items() if uid in pods}).values():
            if not _ended(pod):
                on.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return [_node(body, sorted(on.get(name, ()), key=_full)) for (_, name), body in sorted(objects[NODES].items())]

    def _unfit(self, pod: Json, node: _Node) -> _Status | None:
        """Return why the scheduler itself does not take a node, None if it would."""
        if node.body["spec"].get("unschedulable"):
            return _Status("node(s) were unschedulable", resolvable=False, by=_CORDON)
        labels = node.body["metadata"].get("labels", {})
        if not pod["spec"].get("nodeSelector", {}).items() <= labels.items():
            return _Status("node(s) didn't match Pod's node affinity/selector", resolvable=False, by=_AFFINITY)
        used = Counter(node.used)
        for other in self._nominated(node.name):
            if other["metadata"]["uid"] != pod["metadata"]["uid"] and _priority(other) >= _priority(pod):
                used.update(_requests(other))
        for resource, wanted in sorted(_requests(pod).items()):
            if wanted and wanted > node.allocatable.get(resource, 0) - used[resource]:
                resolvable = wanted <= node.allocatable.get(resource, 0)
                return _Status(f"Insufficient {resource}", resolvable=resolvable, by=_FIT)
        return None

    def _nominated(self, node: str) -> list[Json]:
        """Return the pods for which others were evicted from a node, and which are not there yet."""
        bodies = self._api.store.state().objects[PODS].values()
        return [
            pod
            for pod in bodies
            if pod["status"].get("nominatedNodeName") == node
            and not pod["spec"].get("nodeName")
            and pod["metadata"]["uid"] not in self._assumed
        ]

    # --- Preemption ---------------------------------------------------------------------------------------------------

    async def _preempt(
        self, pod: Json, nodes: Sequence[_Node], statuses: Mapping[str, _Status]
    ) -> tuple[str | None, str]:
        """Evict pods so that this one fits; return its nomination, None to leave it, and why it was no use."""
        nominated = pod["status"].get("nominatedNodeName", "")
        if pod["spec"].get("preemptionPolicy") == "Never":
            return None, "not eligible due to preemptionPolicy=Never."
        if nominated and statuses.get(nominated, _Status("", resolvable=False)).resolvable:
            there = next((node.pods for node in nodes if node.name == nominated), ())
            if any(_priority(other) < _priority(pod) and _evicted(other) for other in there):
                return None, "not eligible due to a terminating pod on the nominated node."
        victims, why_not = self._dry_run(pod, [node for node in nodes if _resolvable(statuses, node.name)])
        if not victims:
            # An error, and all the scheduler says where it was the extender that had no room.
            empty = [_NO_VICTIM.format(name) for name, status in why_not.items() if status is None]
            if empty:
                raise _ExtenderError(empty[0] if len(empty) == 1 else f"[{', '.join(empty)}]")
            told = [why_not.get(node.name) or _Status("Preemption is not helpful for scheduling") for node in nodes]
            return "", _explained(len(nodes), told)
        if self._interested(pod):
            victims = await self._confirmed(pod, victims, {node.name: node for node in nodes})
        if not victims:
            return None, "no candidate node for preemption"
        node = min(victims, key=lambda name: (_cost(victims[name]), name))
        for victim in victims[node]:
            self._evict(victim)
        return node, ""

    def _dry_run(self, pod: Json, nodes: Iterable[_Node]) -> tuple[dict[str, list[Json]], dict[str, _Status | None]]:
        """Return whom to evict on each node, and why nobody on others; None: since there is room without."""
        victims: dict[str, list[Json]] = {}
        why_not: dict[str, _Status | None] = {}
        for node in nodes:
            lower = [other for other in node.pods if _priority(other) < _priority(pod)]
            # The most important are spared first.
            lower.sort(key=lambda other: (-_priority(other), _started(other), _full(other)))
            kept = [other for other in node.pods if _priority(other) >= _priority(pod)]
            if not lower:
                why_not[node.name] = _Status("No preemption victims found for incoming pod")
            elif (status := self._unfit(pod, _node(node.body, kept))) is not None:
                why_not[node.name] = status
            else:
                for other in lower:
                    if self._unfit(pod, _node(node.body, [*kept, other])) is None:
                        kept.append(other)
                    else:
                        victims.setdefault(node.name, []).append(other)
                if node.name not in victims:
                    why_not[node.name] = None
        return victims, why_not

    async def _confirmed(
        self, pod: Json, victims: Mapping[str, Sequence[Json]], nodes: Mapping[str, _Node]
    ) -> dict[str, list[Json]]:
        """Ask the extender whom it would evict."""
        meta = {
            name: {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": 0}
            for name, pods in victims.items()
        }
        whole = {name: {"Pods": list(pods), "NumPDBViolations": 0} for name, pods in victims.items()}
        capable = self._extender.node_cache_capable
        args = {
            "Pod": pod,
            "NodeNameToVictims": None if capable else whole,
            "NodeNameToMetaVictims": meta if capable else None,
        }
        answer = await self._send("preempt", args)
        found: dict[str, list[Json]] = {}
        for name, said in (_field(answer, "NodeNameToMetaVictims") or {}).items():
            if name not in nodes:
                raise _ExtenderError(f'nodeinfo not found for node name "{name}"')
            there = {each["metadata"]["uid"]: each for each in nodes[name].pods}
            for each in _field(said, "Pods") or []:
                uid = _field(each, "UID")
                if uid not in there:
                    raise _ExtenderError(
                        f"extender: {self._extender.url_prefix} claims to preempt pod (UID: &MetaPod{{UID:{uid},}}) on "
                        f"node: {name}, but the pod is not found on that node"
                    )
                found.setdefault(name, []).append(there[uid])
            if not found.get(name):
                raise _ExtenderError(_NO_VICTIM.format(name))
        return found

    def _evict(self, victim: Json) -> None:
        meta = victim["metadata"]
        if "deletionTimestamp" in meta:
            return
        told = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        status = {"conditions": [*victim["status"].get("conditions", []), told]}
        try:
            self._api.patch("pods", meta["name"], {"status": status}, meta["namespace"], subresource="status")
            self._api.delete("pods", meta["name"], meta["namespace"], grace_s=None)
        except RefusedError:
            pass  # gone by itself

    # --- The extender -------------------------------------------------------------------------------------------------

    def _interested(self, pod: Json) -> bool:
        """Return whether the extender is asked about a pod: its quantities do not matter, only their names."""
        return any(
            resource in self._extender.managed_resources
            for container in _containers(pod)
            for amounts in container.get("resources", {}).values()
            for resource in amounts
        )

    def _listed(self, nodes: Sequence[_Node]) -> Json:
        if self._extender.node_cache_capable:
            return {"Nodes": None, "NodeNames": [node.name for node in nodes]}
        return {"Nodes": {"metadata": {}, "items": [node.body for node in nodes]}, "NodeNames": None}

    async def _send(self, verb: str, args: Json) -> Any:
        if self._http is None:
            raise RuntimeError(f"{self!r} is used outside its `async with`")
        self.calls[verb] += 1
        url = f"{self._extender.url_prefix.rstrip('/')}/{verb}"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        body = json.dumps(args, separators=(",", ":")).encode()
        try:
            async with (
                asyncio.timeout(self._extender.http_timeout_s),
                self._http.post(
                    url, data=body, headers=headers, ssl=self._extender.tls or True, allow_redirects=False
                ) as answer,
            ):
                text = (await answer.read()).decode(errors="replace")
        except TimeoutError as error:
            why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            raise _ExtenderError(f'Post "{url}": {why}') from error
        except (aiohttp.ClientError, OSError) as error:
            raise _ExtenderError(f'Post "{url}": {_in_go(error)}') from error
        if answer.status != 200:
            raise _ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
        return _decoded(text)


# --- What may help a pod that fitted nowhere --------------------------------------------------------------------------

_PARTS: Mapping[str, Callable[[Json], Any]] = MappingProxyType(
    {
        "taints": lambda node: node["spec"].get("taints") or [],
        "allocatable": lambda node: node.get("status", {}).get("allocatable", {}),
        "labels": lambda node: node["metadata"].get("labels", {}),
        "annotations": lambda node: node["metadata"].get("annotations", {}),
        # When a condition was reported last does not matter: the kubelet does so all the time.
        "conditions": lambda node: {
            one["type"]: one.get("status") for one in node.get("status", {}).get("conditions", [])
        },
    }
)
"""Changes of a node that are events to the queue."""
_HEARD: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # An extender cannot say what its refusals depend on, so that every event is taken for one.
        _EXTENDER: frozenset(
            {*_PARTS, "uncordoned", "node added", "node deleted", "pod assigned", "pod changed", "pod gone", "itself"}
        ),
        _FIT: frozenset({"node added", "allocatable", "pod gone"}),
        _AFFINITY: frozenset({"node added", "labels"}),
        _CORDON: frozenset({"node added", "uncordoned", "taints"}),
    }
)
"""The events after which a pod is tried again that one of the plugins refused."""


def _may_help(pod: Json, refused_by: Iterable[str], change: Change) -> bool:
    happened = _events(pod["metadata"]["uid"], change)
    return any(_HEARD[plugin] & happened for plugin in refused_by)


def _events(uid: str, change: Change) -> frozenset[str]:
    """Return what a write means to the queue, in which the pod `uid` waits; writes of other kinds are no events."""
    before, after = change.before, change.after
    if change.served is NODES:
        if before is None or after is None:
            return frozenset({"node added" if before is None else "node deleted"})
        uncordoned = before["spec"].get("unschedulable") and not after["spec"].get("unschedulable")
        changed = frozenset(what for what, part in _PARTS.items() if part(before) != part(after))
        return changed | {"uncordoned"} if uncordoned else changed
    if change.served is not PODS:
        return frozenset()
    if after is not None and after["metadata"]["uid"] == uid:
        return frozenset({"itself"})
    was, stays = _on_a_node(before), _on_a_node(after)
    if not was and not stays:
        return frozenset()  # other pods that wait are nobody's business
    return frozenset({"pod gone" if not stays else "pod changed" if was else "pod assigned"})


def _on_a_node(pod: Json | None) -> bool:
    """Whether a pod counts on a node. One that waits for those to end who were evicted for it counts there, too."""
    return pod is not None and not _ended(pod) and bool(pod["spec"].get("nodeName") or _nomination(pod))


def _nomination(pod: Json) -> str:
    return str(pod["status"].get("nominatedNodeName") or "")


def _decoded(text: str) -> Any:
    """Read the first JSON value of an answer, as Go does."""
    if not text.strip():
        raise _ExtenderError("EOF")
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except json.JSONDecodeError as error:
        what = f"invalid character {error.doc[error.pos]!r}" if error.pos < len(error.doc) else "unexpected EOF"
        raise _ExtenderError(what) from error


def _field(answer: Any, name: str) -> Any:
    """Return a field of an object, whatever the case of its key; None if there is none."""
    if answer is None:
        return None
    if not isinstance(answer, dict):
        raise _ExtenderError(f"json: cannot unmarshal {type(answer).__name__} into a Go value")
    return next((value for key, value in answer.items() if key.lower() == name.lower()), None)


def _in_go(error: Exception) -> str:
    """Say in Go's words what became of a connection."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"dial tcp {error.host}:{error.port}: connect: {os.strerror(error.os_error.errno or 0).lower()}"
    return "EOF" if isinstance(error, aiohttp.ServerDisconnectedError) else str(error)


def _explained(nodes: int, statuses: Iterable[_Status]) -> str:
    """Add up the reasons of nodes, equal ones together, in the order of the texts that come of it."""
    reasons = sorted(f"{number} {text}" for text, number in Counter(status.text for status in statuses).items())
    return f"0/{nodes} nodes are available:" + (f" {', '.join(reasons)}." if reasons else "")


def _resolvable(statuses: Mapping[str, _Status], node: str) -> bool:
    status = statuses.get(node)
    return status is not None and status.resolvable


def _cost(victims: Sequence[Json]) -> tuple[int, int, int]:
    """Return what is compared of the victims of nodes; the least is chosen."""
    priorities = [_priority(victim) for victim in victims]
    return max(priorities), sum(priority + _LIFT for priority in priorities), len(victims)


def _node(body: Json, pods: Sequence[Json]) -> _Node:
    used: Counter[str] = Counter()
    for pod in pods:
        used.update(_requests(pod))
    amounts = body.get("status", {}).get("allocatable", {})
    allocatable = {name: amount for name, text in amounts.items() if (amount := whole_quantity(str(text))) is not None}
    return _Node(body, tuple(pods), allocatable, used)


def _requests(pod: Json) -> Mapping[str, int]:
    """Return what a pod takes at its peak of each extended resource. Sidecars run on while later containers start."""
    kept: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in _containers(pod):
        wanted = Counter(dict(_wanted(container)))
        peak |= kept + wanted
        if container["kept"]:
            kept += wanted
    return peak | kept


def _wanted(container: Json) -> Iterator[tuple[str, int]]:
    resources = container.get("resources", {})
    for name, text in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
        if "/" in name:
            yield name, whole_quantity(str(text)) or 0


def _containers(pod: Json) -> Iterator[Json]:
    """Yield the containers in the order in which they start, with `kept`: whether others start while this one runs."""
    for container in pod["spec"].get("initContainers") or ():
        yield {**container, "kept": container.get("restartPolicy") == "Always"}
    for container in pod["spec"]["containers"]:
        yield {**container, "kept": True}


def _full(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _priority(pod: Json) -> int:
    return pod["spec"].get("priority") or 0


def _started(pod: Json) -> str:
    return str(pod["status"].get("startTime") or pod["metadata"]["creationTimestamp"])


def _ended(pod: Json) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def _evicted(pod: Json) -> bool:
    """Whether a pod goes since a scheduler wanted its place."""
    told: Json = next((each for each in pod["status"].get("conditions", []) if each["type"] == "DisruptionTarget"), {})
    return "deletionTimestamp" in pod["metadata"] and told.get("reason") == "PreemptionByScheduler"
