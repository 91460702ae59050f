"""kube-scheduler, as far as an extender meets it: whom it asks what, in which order, and what it makes of the answers.

The rules are those of Kubernetes 1.36 (pkg/scheduler: extender.go, schedule_one.go, eventhandlers.go, backend/queue,
framework/preemption). Of a node it looks at no more than its extended resources, its cordon and its labels; it has no
scores of its own. Where the real one draws lots, this one takes the first. It sees the cluster as it is, without the
delay of a watch.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from bench.policies import nodes_to_find
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.testing.cluster.cluster_kinds import NODES, PODS, StatusError
from tests.builders import Json
from tests.cluster_double.api_server import ApiServer
from tests.scheduler_double.events import may_help
from tests.scheduler_double.extender import NO_VICTIM, Extender, ExtenderConfig, ExtenderError, Filtered
from tests.scheduler_double.nodes import (
    EXTENDER,
    FIT,
    Node,
    Status,
    ended,
    evicted,
    full_name,
    node_of,
    priority,
    started,
    unfit,
)

__all__ = ["ExtenderConfig", "Outcome", "Scheduler"]

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"

FLUSH_S = 300.0
"""So long a pod waits that fitted nowhere, if nothing happens that its refusal depends on."""

_LIFT = 1 << 31
"""Makes every priority positive, so that few victims of a low one cost less than many."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt to schedule a pod."""

    node: str = ""
    """Where it is bound; empty: it is not."""
    reason: str = ""
    """Of its condition PodScheduled: ``Unschedulable`` or ``SchedulerError``."""
    message: str = ""
    """As its owner reads it."""


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
        percentage_of_nodes: int = 0,
    ) -> None:
        """Prepare a scheduler.

        Args:
            api: the cluster; read and changed without HTTP, so that no trouble ordered there hits the scheduler.
            extender: whom to ask.
            name: only pods that name this scheduler are its own.
            backoff_s: how soon `run` tries a pod again, at first and at most, in seconds.
            flush_s: after how many seconds it tries one again though nothing has happened that might help it.
            percentage_of_nodes: how many it looks for that pass its plugins, at least 100; 0: by the cluster's size.
        """
        self._api = api
        self._extender = Extender(extender)
        self._name = name
        self._backoff_s = backoff_s
        self._flush_s = flush_s
        self._percentage = percentage_of_nodes
        self._next_start = 0
        self._assumed: dict[str, Json] = {}
        self._retries: dict[str, _Retry] = {}
        self.calls = self._extender.calls
        """How often each verb was asked."""

    def __repr__(self) -> str:
        return f"<Scheduler {self._name}: {len(self._waiting())} waiting, {len(self._assumed)} assumed>"

    async def __aenter__(self) -> Self:
        await self._extender.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._extender.__aexit__(kind, error, traceback)

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
            if retry.flushed <= now or any(may_help(pod, retry.refused_by, change) for change in changes):
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
                and not ended(pod)
                and "deletionTimestamp" not in pod["metadata"]
            ),
            key=lambda pod: (-priority(pod), pod["metadata"]["creationTimestamp"], full_name(pod)),
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
            except ExtenderError as error:
                self._assumed.pop(uid, None)
                found[name] = self._failed(pod, SCHEDULER_ERROR, str(error), nominated="")
                self._forgotten()
            else:
                found[name] = Outcome(chosen)

        binds.create_task(bind(), name=f"bind {full_name(pod)}")

    async def _place(self, pod: Json) -> str | Outcome:
        """Return the node for a pod, or why there is none."""
        nodes = self._nodes()
        if not nodes:
            return self._failed(pod, UNSCHEDULABLE, "no nodes available to schedule pods", nominated="")
        try:
            asked = await self._filtered(pod, nodes)
            if asked.feasible:
                return await self._best(pod, asked.feasible)
        except ExtenderError as error:
            return self._failed(pod, SCHEDULER_ERROR, str(error), nominated="")
        message = _explained(len(nodes), asked.statuses.values())
        refused_by = frozenset(status.by for status in asked.statuses.values())
        try:
            nominated, why = await self._preempt(pod, nodes, asked.statuses)
        except ExtenderError as error:
            nominated, why = None, str(error)
        preemption = f" preemption: {why}" if why else ""
        return self._failed(pod, UNSCHEDULABLE, message + preemption, nominated=nominated, refused_by=refused_by)

    async def _filtered(self, pod: Json, nodes: Sequence[Node]) -> Filtered:
        """Return the nodes that fit. The one nominated after a preemption is asked about alone, and before others."""
        early: Mapping[str, Status] = {}
        nominated = [node for node in nodes if node.name == pod["status"].get("nominatedNodeName")]
        if nominated:
            try:
                asked = await self._by_extender(pod, *self._by_plugins(pod, nominated))
            except ExtenderError:
                asked = Filtered([])
            if asked.feasible:
                return asked
            early = asked.statuses
        turn = self._next_start % len(nodes)
        fitting, statuses = self._by_plugins(pod, [*nodes[turn:], *nodes[:turn]])
        self._next_start = turn + len(fitting) + len(statuses)
        found = await self._by_extender(pod, fitting, statuses)
        return Filtered(found.feasible, {**early, **found.statuses})

    def _by_plugins(self, pod: Json, nodes: Sequence[Node]) -> tuple[list[Node], dict[str, Status]]:
        """Return the first nodes that fit, as many as are looked for, and what is wrong with others before the last."""
        fitting: list[Node] = []
        statuses: dict[str, Status] = {}
        for node in nodes:
            if len(fitting) == nodes_to_find(len(nodes), self._percentage):
                break
            if (status := self._unfit(pod, node)) is None:
                fitting.append(node)
            else:
                statuses[node.name] = status
        return fitting, statuses

    async def _by_extender(self, pod: Json, fitting: list[Node], statuses: dict[str, Status]) -> Filtered:
        if not fitting or not self._extender.interested(pod):
            return Filtered(fitting, statuses)
        filtered = await self._extender.filter(pod, fitting)
        return Filtered(filtered.feasible, statuses | filtered.statuses)

    async def _best(self, pod: Json, nodes: Sequence[Node]) -> str:
        if len(nodes) == 1 or not self._extender.interested(pod):
            return nodes[0].name
        try:
            scores = await self._extender.prioritize(pod, nodes)
        except ExtenderError:
            scores = {}  # the scheduler goes on without
        return max(nodes, key=lambda node: scores.get(node.name, 0)).name

    async def _bind(self, pod: Json, node: str) -> None:
        if self._extender.interested(pod):
            await self._extender.bind(pod, node)
            return
        meta = pod["metadata"]
        binding = {"metadata": {"name": meta["name"], "uid": meta["uid"]}, "target": {"name": node}}
        try:
            self._api.store.bind((meta["namespace"], meta["name"]), binding)
        except StatusError as error:
            raise ExtenderError(error.message) from error

    def _forgotten(self) -> None:
        """Let the others go on that fitted nowhere: a pod that was assumed to be on its node is not."""
        for retry in self._retries.values():
            if retry.refused_by & {EXTENDER, FIT}:
                retry.refused_by = frozenset()

    def _failed(
        self, pod: Json, reason: str, message: str, *, nominated: str | None, refused_by: frozenset[str] = frozenset()
    ) -> Outcome:
        """Tell the pod's owner, and try again later. `nominated`: None leaves the nomination as it is."""
        meta = pod["metadata"]
        try:
            now = self._api.get("pods", meta["name"], meta["namespace"])
        except StatusError:
            return Outcome(reason=reason, message=message)
        if now["metadata"]["uid"] == meta["uid"] and not now["spec"].get("nodeName"):
            told = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            before = [one for one in now["status"].get("conditions", []) if one["type"] == "PodScheduled"]
            since = [one.get("lastTransitionTime") for one in before if one["status"] == told["status"]]
            told["lastTransitionTime"] = next(iter(since), None) or rfc3339(time.time())
            others = [one for one in now["status"].get("conditions", []) if one["type"] != "PodScheduled"]
            status: Json = {"conditions": [*others, told]}
            # It compares with the pod that it tried: what another client has nominated meanwhile stays.
            if nominated is not None and nominated != pod["status"].get("nominatedNodeName", ""):
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

    def _nodes(self) -> list[Node]:
        objects = self._api.store.state().objects
        on: dict[str, list[Json]] = {}
        pods = {pod["metadata"]["uid"]: pod for pod in objects[PODS].values()}
        for pod in (pods | {uid: pod for uid, pod in self._assumed.items() if uid in pods}).values():
            if not ended(pod):
                on.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return [
            node_of(body, sorted(on.get(name, ()), key=full_name)) for (_, name), body in sorted(objects[NODES].items())
        ]

    def _unfit(self, pod: Json, node: Node) -> Status | None:
        return unfit(pod, node, self._nominated(node.name))

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
        self, pod: Json, nodes: Sequence[Node], statuses: Mapping[str, Status]
    ) -> tuple[str | None, str]:
        """Evict pods so that this one fits; return its nomination, None to leave it, and why it was no use."""
        nominated = pod["status"].get("nominatedNodeName", "")
        if pod["spec"].get("preemptionPolicy") == "Never":
            return None, "not eligible due to preemptionPolicy=Never."
        if nominated and statuses.get(nominated, Status("", resolvable=False)).resolvable:
            there = next((node.pods for node in nodes if node.name == nominated), ())
            if any(priority(other) < priority(pod) and evicted(other) for other in there):
                return None, "not eligible due to a terminating pod on the nominated node."
        victims, why_not = self._dry_run(pod, [node for node in nodes if _resolvable(statuses, node.name)])
        if not victims:
            # An error, and all the scheduler says where it was the extender that had no room.
            empty = [NO_VICTIM.format(name) for name, status in why_not.items() if status is None]
            if empty:
                raise ExtenderError(empty[0] if len(empty) == 1 else f"[{', '.join(empty)}]")
            told = [why_not.get(node.name) or Status("Preemption is not helpful for scheduling") for node in nodes]
            return "", _explained(len(nodes), told)
        if self._extender.interested(pod):
            victims = await self._extender.preempt(pod, victims, {node.name: node for node in nodes})
        if not victims:
            return None, "no candidate node for preemption"
        node = min(victims, key=lambda name: (_cost(victims[name]), name))
        for victim in victims[node]:
            self._evict(victim)
        return node, ""

    def _dry_run(self, pod: Json, nodes: Iterable[Node]) -> tuple[dict[str, list[Json]], dict[str, Status | None]]:
        """Return whom to evict on each node, and why nobody on others; None: since there is room without."""
        victims: dict[str, list[Json]] = {}
        why_not: dict[str, Status | None] = {}
        for node in nodes:
            lower = [other for other in node.pods if priority(other) < priority(pod)]
            # The most important are spared first.
            lower.sort(key=lambda other: (-priority(other), started(other), full_name(other)))
            kept = [other for other in node.pods if priority(other) >= priority(pod)]
            if not lower:
                why_not[node.name] = Status("No preemption victims found for incoming pod")
            elif (status := self._unfit(pod, node_of(node.body, kept))) is not None:
                why_not[node.name] = status
            else:
                for other in lower:
                    if self._unfit(pod, node_of(node.body, [*kept, other])) is None:
                        kept.append(other)
                    else:
                        victims.setdefault(node.name, []).append(other)
                if node.name not in victims:
                    why_not[node.name] = None
        return victims, why_not

    def _evict(self, victim: Json) -> None:
        meta = victim["metadata"]
        if "deletionTimestamp" in meta:
            return
        told = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        status = {"conditions": [*victim["status"].get("conditions", []), told]}
        try:
            self._api.patch("pods", meta["name"], {"status": status}, meta["namespace"], subresource="status")
            self._api.delete("pods", meta["name"], meta["namespace"], grace_s=None)
        except StatusError:
            pass  # gone by itself


def _explained(nodes: int, statuses: Iterable[Status]) -> str:
    """Add up the reasons of nodes, equal ones together, in the order of the texts that come of it."""
    reasons = sorted(f"{number} {text}" for text, number in Counter(status.text for status in statuses).items())
    return f"0/{nodes} nodes are available:" + (f" {', '.join(reasons)}." if reasons else "")


def _resolvable(statuses: Mapping[str, Status], node: str) -> bool:
    status = statuses.get(node)
    return status is not None and status.resolvable


def _cost(victims: Sequence[Json]) -> tuple[int, int, int]:
    """Return what is compared of the victims of nodes; the least is chosen."""
    priorities = [priority(victim) for victim in victims]
    return max(priorities), sum(priority + _LIFT for priority in priorities), len(victims)
