"""Find which moves of pods make room for a waiting pod, whose pods are read anew: one plan at a time."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.features.capacity.arrangement import BUDGETS, Arrangement, ArrangementReader
from gpu_device_plugin.features.capacity.report import makes_room, plan_document, stays
from gpu_device_plugin.features.capacity.rules.movable import Fits, PlannedPod, after
from gpu_device_plugin.features.capacity.rules.plans import Plan, planning, settled
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import Call, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NOT_ENDED, PODS
from gpu_device_plugin.programs.web.page_state import PageState
from gpu_device_plugin.programs.web.watched import missing_right
from gpu_device_plugin.report.rules.finding import Finding, note

_KNOWN_S = 10.0
"""How long a plan is remembered."""
_MOST_STAYING = 500
"""The most pods that are named as not moved: 60 KB."""


class PagePlans:
    """Makes plans, which name pods of all namespaces.

    Pods are read page by page, as no more than what decides about moves is kept of them. Reading is done beside the
    event loop and the search on it, in steps of a millisecond or two.
    """

    def __init__(self, client: Client, page_state: PageState, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._page_state = page_state
        self._clock = clock
        self._turns = Turns(1)
        self._known: dict[tuple[str, bool], tuple[float, bytes]] = {}

    async def document(self, pod: str, user: str, *, budgets: bool) -> bytes | None:
        """Return the plan for a pod, ``namespace/name``, as JSON; None: it does not wait for GPUs by its limits.

        Users take turns. Without `budgets` PodDisruptionBudgets are left to the API server.

        Raises:
            ApiError: the cluster cannot be read.
        """
        async with self._turns.turn(user):
            now_s = self._clock()
            self._known = {key: kept for key, kept in self._known.items() if now_s - kept[0] < _KNOWN_S}
            if (pod, budgets) in self._known:
                return self._known[pod, budgets][1]
            waiting = self._page_state.watched.cluster.waiting_pods
            made = None
            if any(f"{each.namespace}/{each.name}" == pod for each in waiting):
                with _collecting_rarely():
                    made = await self._made(pod, budgets=budgets)
            if made is not None:
                self._known[pod, budgets] = self._clock(), made
            return made

    async def _made(self, pod: str, *, budgets: bool) -> bytes | None:
        nodes = self._page_state.watched.nodes
        if nodes.problem is not None and not nodes.synced:
            raise nodes.problem
        lacking = None if budgets else Call("list", BUDGETS.plural, BUDGETS.group)
        raw: Sequence[msgspec.Raw] = ()
        if budgets:
            try:
                raw = [each async for page in self._client.pages(BUDGETS) for each in page.items or ()]
            except ForbiddenError as error:
                lacking = error.call
            except NotFoundError:
                pass
        reader = ArrangementReader(raw, self._page_state.watched.cluster.resources)
        async for page in self._client.pages(PODS, fields=",".join(NOT_ENDED)):
            await asyncio.to_thread(reader.read_pods, page.items or ())
        views = self._page_state.readable or ()
        found = await asyncio.to_thread(reader.arrangement, views, now_s=time.time())
        wanted = next((each for each in found.waiting if str(each) == pod), None)
        if wanted is None:
            return None
        goal = Fits(wanted.ask, wanted.amounts, wanted.nodes, wanted.pod.priority)
        plan = await last_of(planning(found.sites, goal, found.budgets))
        text = "{right}: the API server may refuse evictions that the plan counts on."
        notes = [note("budgets-unread", text, right=missing_right(lacking))] if lacking else []
        return await asyncio.to_thread(_written, found, wanted, plan, notes)


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Put off full collections: a large cluster read anew causes several, and each stops the page for 60 ms or more."""
    usual = gc.get_threshold()
    gc.set_threshold(usual[0], usual[1], 1000)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _written(found: Arrangement, wanted: PlannedPod, plan: Plan, notes: Sequence[Finding]) -> bytes:
    """Return the JSON of `kubectl inspect gpushare plan`, with what there is to say about it.

    Once a plan is found only the pods that stay on its own nodes matter.
    """
    then = found.sites if plan is None else settled(after(found.sites, plan), wanted)
    document: dict[str, Any] = plan_document([(str(wanted), plan)], found.sites, then)
    touched = {name for move in plan or () for name in (move.origin, move.node)}
    staying = [each for each in document["stays"] if plan is None or each["node"] in touched]
    more = len(staying) - _MOST_STAYING
    said = [*notes, note("more-not-moved", "{n:more pod is|more pods are} not moved.", n=more)] if more > 0 else notes
    return msgspec.json.encode(
        {
            **document,
            "stays": [{**each, "why": stays(each["why"]).message()} for each in staying[:_MOST_STAYING]],
            "verdict": makes_room(plan, str(wanted)).message(),
            "notes": [each.message(capital=True) for each in said],
        }
    )
