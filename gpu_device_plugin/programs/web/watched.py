"""Follow nodes, pods and ResourceClaims as far as the account may read them, and say how current they are."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NoReturn

from gpu_device_plugin.aio.waiting import for_ever
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.features.report_features import ReportParts
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS
from gpu_device_plugin.kubernetes.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.followed_cluster import FollowedCluster, FollowedNode, FollowedPod
from gpu_device_plugin.report.rules.finding import Finding, literal, note

_MOST_PROBLEMS = 20
"""The most sentences about single nodes."""


@dataclass(eq=False, repr=False)
class Watched:
    """The cluster, as reflectors keep it from `run` on. Claims are followed from when a node serves them."""

    _client: Client
    resources: InitVar[Sequence[Resource]]
    _namespace: str
    """Where pods are read if they cannot be read in all namespaces; empty: nowhere else."""
    parts: ReportParts

    def __post_init__(self, resources: Sequence[Resource]) -> None:
        self.changed = asyncio.Event()
        """Something may have changed; whoever looks at it clears it."""
        self.cluster = FollowedCluster(resources, self.parts, kind=self.parts.kind, on_change=self._changed)
        self._serving = asyncio.Event()
        self.nodes: Reflector[FollowedNode] = Reflector(self._client, NODES, self.cluster.read_node, self.cluster.nodes)
        self.pods: Reflector[FollowedPod] | None = None
        """None until it is known where pods may be read."""
        self.claims: Reflector[Any] | None = None
        """None until a node serves claims."""
        self.only = ""
        """The only namespace whose pods are read; empty: those of all are."""
        self._unasked: ApiError | None = None
        self._heard_at = -math.inf

    async def run(self) -> NoReturn:
        """Keep the cluster current. Ends only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.nodes.run(), name="watch nodes")
            self.only = await self._where_pods_are_read()
            self.pods = Reflector(self._client, PODS, self.cluster.read_pod, self.cluster.pods, namespace=self.only)
            tasks.create_task(self.pods.run(), name="watch pods")
            await self._serving.wait()
            for kind in self.parts.kinds:
                self.claims = Reflector(self._client, kind.kind, kind.read, self.cluster.more, namespace=self.only)
                await self.claims.run()
            await for_ever()

    async def keep_hearing(self, wanted: Callable[[], bool], every_s: float) -> NoReturn:
        """While `wanted` returns true, ask the API server for its version, since watches of a quiet cluster are silent.

        Ends only by cancellation.
        """
        while True:
            if wanted():
                try:
                    await self._client.server()
                except ApiError as error:
                    answered = bool(error.status) and error.status < 500
                else:
                    answered = True
                if answered:
                    self._heard_at = time.monotonic()
            await asyncio.sleep(every_s)

    def _changed(self) -> None:
        if self.cluster.needs_more:
            self._serving.set()
        self.changed.set()

    async def _where_pods_are_read(self) -> str:
        """Return the namespace to follow, empty for all."""
        timing = ReflectorTiming()
        backoff = Backoff(timing.first_retry_s, timing.longest_retry_s)
        while self._namespace:
            try:
                async for _ in self._client.pages(PODS, limit=1):
                    break
            except ForbiddenError:
                return self._namespace
            except ApiError as error:
                self._unasked = error
                await asyncio.sleep(backoff.next_s(error.retry_after_s))
            else:
                break
        self._unasked = None
        return ""

    # --- Reading ------------------------------------------------------------------------------------------------------

    @property
    def nodes_readable(self) -> bool:
        """Whether nodes are read, as far as is known."""
        return self.nodes.synced or not isinstance(self.nodes.problem, ForbiddenError)

    @property
    def known(self) -> bool:
        """Whether nodes and pods were read and are watched, as far as they can be."""
        return (
            self.pods is not None
            and all(
                isinstance(watch.problem, ForbiddenError)
                or (watch.synced and (watch.live or watch.problem is not None))
                for watch in (self.nodes, self.pods)
            )
            and (
                not self.cluster.needs_more
                or (self.claims is not None and (self.claims.synced or self.claims.problem is not None))
            )
        )

    @property
    def _claims_readable(self) -> bool:
        return self.claims is not None and (
            self.claims.synced or not isinstance(self.claims.problem, (ForbiddenError, NotFoundError))
        )

    def claims_of(self, namespace: str) -> Sequence[Any] | None:
        """Return the ResourceClaims of a namespace; None: they are not read, or not yet."""
        return self.cluster.more_of(namespace) if self.claims is not None and self.claims.synced else None

    @property
    def reading(self) -> dict[str, Any]:
        """How current the cluster is, as the page has it; `ageS` is the time since the API server was last heard.

        What may not be read is not waited for.
        """
        watches: list[Reflector[Any]] = [self.nodes] if self.nodes_readable else []
        watches += [] if self.pods is None else [self.pods]
        watches += [self.claims] if self.claims is not None and self._claims_readable else []
        silent = [watch.silent_s for watch in watches if not watch.live]
        problems = [self._unasked, *(watch.problem for watch in watches)]
        why = next(
            (_said(problem) for problem in problems if problem is not None),
            note("being-read", "the cluster is being read"),
        )
        if self.pods is None or silent:
            age_s = max(silent, default=float("inf"))
            heard = {} if age_s == float("inf") else {"ageS": round(age_s, 1)}
            return {"live": False, **heard, "why": why.message()}
        age_s = min(time.monotonic() - self._heard_at, *(watch.silent_s for watch in watches))
        return {"live": True, "ageS": round(age_s, 1)}

    def notes(self) -> Iterator[Finding]:
        """Yield a sentence for everything that is not shown because it could not be read."""
        if not self.nodes_readable:
            text = "{right}, so nodes and their GPUs are not shown; ask an administrator of the cluster for it."
            yield note("no-nodes-shown", text, right=_said(self.nodes.problem))
        if self.pods is not None and not self.pods.synced and isinstance(self.pods.problem, ForbiddenError):
            yield note("no-pods-shown", "{right}, so no pods are shown.", right=_said(self.pods.problem))
        elif self.only:
            text = "{right}, so only the pods of the namespace {namespace} are shown, "
            text += "and GPU usage may be under-reported."
            yield note("one-namespace-shown", text, right=missing_right(Call("list", "pods")), namespace=self.only)
        kind = self.cluster.kind
        if kind is not None and self.claims is not None and not self._claims_readable:
            absent = isinstance(self.claims.problem, NotFoundError)
            why = note("claims-absent", literal(kind.absent)) if absent else _said(self.claims.problem)
            yield note("claims-unseen", f"{kind.unseen('{why}')}.", why=why)
        for what, watch in (("nodes", self.nodes), ("pods", self.pods), ("ResourceClaims", self.claims)):
            if watch is not None and watch.unreadable:
                yield note("some-left-out", "some {kind} could not be understood, and are left out.", kind=what)
        problems = list(self.cluster.problems())
        yield from (note("node-problem", "{problem}.", problem=each) for each in problems[:_MOST_PROBLEMS])
        if (more := len(problems) - _MOST_PROBLEMS) > 0:
            yield note("more-node-problems", "{n} more nodes have annotations that cannot be read.", n=more)


def missing_right(call: Call) -> Finding:
    """Return that the right to a call is missing, as a clause."""
    resource = f"{call.resource}.{call.group}" if call.group else call.resource
    if not call.namespace:
        text = "the right to {verb} {resource} in the whole cluster is missing"
        return note("right-missing", text, verb=call.verb, resource=resource)
    text = "the right to {verb} {resource} in the namespace {namespace} is missing"
    return note("right-missing-in-namespace", text, verb=call.verb, resource=resource, namespace=call.namespace)


def _said(problem: ApiError | None) -> Finding:
    if isinstance(problem, ForbiddenError):
        return missing_right(problem.call)
    return note("api-error", "{error}", error=str(problem))
