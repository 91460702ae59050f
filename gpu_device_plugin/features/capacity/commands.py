"""`kubectl inspect gpushare plan`: which pods to move so that others have room, and the moves one after the other."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpu_device_plugin.commandline import FAILED, OK, say, width
from gpu_device_plugin.features.capacity.arrangement import BUDGETS, Arrangement, ArrangementReader
from gpu_device_plugin.features.capacity.contract import MANIFEST, Destination, write_destination
from gpu_device_plugin.features.capacity.report import (
    gpu_lines,
    move_lines,
    plan_document,
    staying_lines,
    verdict,
)
from gpu_device_plugin.features.capacity.rules.movable import Move, PlannedNode, PlannedPod, after, usage_at
from gpu_device_plugin.features.capacity.rules.plans import plan_each, planning
from gpu_device_plugin.kubernetes.client.errors import ApiError, NotFoundError, UnavailableError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import PODS, PodReader
from gpu_device_plugin.model.contract.keys import MOVE_REFUSED, MOVE_TO, READ_BY_AGENT
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.commands import (
    AS_JSON,
    NAMESPACE,
    YES,
    Command,
    Output,
    argument,
    cluster_of,
    either,
    every_node_and_pod,
    refusal,
    switch,
    unread,
    valued,
)
from gpu_device_plugin.report.followed_cluster import FollowedKind
from gpu_device_plugin.report.rules.columns import Line
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.printing import counted
from gpu_device_plugin.scheduler.rules.packing import finished
from gpu_device_plugin.scheduler.rules.usage import usage_of
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    import msgspec


async def plan_moves(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Return the plan that the arguments ask for, with the exit code; make its moves if they say so.

    Raises:
        ClusterUnreadableError: a right is missing, or the pod does not wait for GPUs.
        ApiError: the cluster cannot be read.
    """
    _, found = await arranged(access, resources, arguments.parts.kind)
    if arguments.nodes_free:
        one = finished(planning(found.sites, arguments.nodes_free, found.budgets))
        goal = f"{counted(arguments.nodes_free, 'node')} without GPU pods"
        plans, then = [(goal, one)], after(found.sites, one or ())
        said = [verdict(one, f"leave {goal}")]
    else:
        planned = list(plan_each(found.sites, _wanted(arguments, access, found), found.budgets))
        then = planned[-1][2] if planned else found.sites
        plans = [(str(pod), one) for pod, one, _ in planned if arguments.pod or one != ()]
        said = [verdict(one, f"make room for {what}") for what, one in plans]
    moves = [move for _, one in plans for move in one or ()]
    complete = all(one is not None for _, one in plans)
    if arguments.output == "json":
        lines: list[str | Line] = [*json.dumps(plan_document(plans, found.sites, then), indent=2).splitlines()]
    else:
        touched = {name for move in moves for name in (move.origin, move.node)}
        staying = staying_lines(site for site in found.sites if not complete or site.node.name in touched)
        lines = [*(said or ["No pending pod lacks room."]), *details(found.sites, moves, then, staying)]
    if not (arguments.apply and moves):
        return lines, OK if complete or not arguments.apply else FAILED
    return await confirmed(arguments, access, resources, moves, lines)


async def arranged(
    access: Access,
    resources: Sequence[Resource],
    kind: FollowedKind | None,
    as_if: Callable[[NodeView], NodeView] = lambda view: view,
) -> tuple[Sequence[NodeView], Arrangement]:
    """Return the nodes that share GPUs, and what decides about moves there; `as_if` changes the nodes first.

    Pods have room by objects of a `kind`, too; see `cluster_of`.

    Raises:
        ClusterUnreadableError: a right is missing.
        ApiError: the cluster cannot be read.
    """
    raw_nodes, raw_pods = await every_node_and_pod(access, "a plan needs all of them")
    views = [as_if(view) for view in (await cluster_of(raw_nodes, raw_pods, resources, access, kind=kind)).views]
    budgets: Sequence[msgspec.Raw] = ()
    try:
        budgets = await access.items(BUDGETS)
    except ApiError as error:
        say(sys.stderr, f"warning: {unread(error)}: the API server may refuse evictions that the plan counts on")
    reader = ArrangementReader(budgets, resources)
    reader.read_pods(raw_pods)
    return views, reader.arrangement(views, now_s=time.time())


def _wanted(arguments: argparse.Namespace, access: Access, found: Arrangement) -> Sequence[PlannedPod]:
    if not arguments.pod:
        return found.waiting
    name = f"{arguments.namespace or access.namespace}/{arguments.pod}"
    wanted = [pod for pod in found.waiting if str(pod) == name]
    if not wanted:
        raise ClusterUnreadableError(
            f"{name} is not pending for GPUs that its limits request; kubectl inspect gpushare why {name} shows its "
            "state"
        )
    return wanted


def details(
    sites: Sequence[PlannedNode], moves: Sequence[Move], then: Sequence[PlannedNode], staying: Sequence[str]
) -> list[str | Line]:
    """Return tables of moves and of the GPUs that change, and the lines about pods that stay."""
    lines: list[str | Line] = []
    if moves:
        lines += ["", *move_lines(moves, width()), "", *gpu_lines(sites, then, width())]
    return [*lines, *(["", "Pods that are not moved:", *staying] if staying else [])]


# --- The moves, one after the other -----------------------------------------------------------------------------------


async def confirmed(
    arguments: argparse.Namespace,
    access: Access,
    resources: Sequence[Resource],
    moves: Sequence[Move],
    lines: Sequence[str | Line],
) -> Output:
    """Show `lines`, ask for consent unless the arguments give it, and make moves; return what came of it."""
    for line in lines:
        say(sys.stdout, line if isinstance(line, str) else line.text)
    if not arguments.yes:
        say(sys.stdout, f"Evict {counted(len(moves), 'pod')}, one after another? Type yes:")
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's ends no waiting for a person
        try:
            answer = sys.stdin.readline()
        finally:
            signal.signal(signal.SIGINT, before)
        if answer.strip() != "yes":
            return ["Nothing was moved."], FAILED
    mover = Mover(access, resources)
    done = 0
    try:
        for move in moves:
            say(sys.stdout, await mover.make(move))
            done += 1
    except MoveStoppedError as error:
        left = len(moves) - done
        stands = f"{done} of {counted(len(moves), 'move')} made, {left} left"
        return [f"Stopped: {error}.", f"{stands}. Run the command again to plan from the current state."], FAILED
    return [f"Done: {counted(done, 'move')}."], OK


class MoveStoppedError(Exception):
    """A move did not go as planned. The message says what happened, without a full stop."""


@dataclass(frozen=True)
class Mover:
    """Asks the scheduler extender for moves, and watches what comes of them. Its times are in seconds."""

    answer_s: ClassVar = 60.0
    """For the extender to evict the pod."""
    replaced_s: ClassVar = 300.0
    """For the replacement, beyond the grace period of the pod: as long as the extender holds the room."""
    every_s: ClassVar = 1.0
    restarted_s: ClassVar = 10.0
    """For kubectl's proxy to be started again."""

    _access: Access
    _resources: Sequence[Resource]
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def make(self, move: Move) -> str:
        """Make a move; return what was done, as a sentence.

        Raises:
            MoveStoppedError: it was not made, or not as planned.
        """
        pod = await self._pod(move)
        if pod is None or pod.uid != move.pod.pod.uid or pod.deleting or pod.node_name != move.origin:
            raise MoveStoppedError(f"{move.pod} is no longer on {move.origin}")
        siblings = {each.uid for each in await self._siblings(pod)}
        try:
            await self._wish(pod, write_destination(Destination(move.node, tuple(move.shares.items()))))
            await self._await_eviction(move, pod)
        except asyncio.CancelledError:  # by Ctrl-C
            await self._wish(pod, None)
            raise MoveStoppedError(f"interrupted: the request to move {move.pod} is withdrawn") from None
        try:
            return await self._await_replacement(move, pod, siblings)
        except asyncio.CancelledError:
            raise MoveStoppedError(
                f"interrupted: {move.pod} is being evicted, and room on {move.node} is held for its replacement"
            ) from None

    async def _await_eviction(self, move: Move, pod: Pod) -> None:
        async def evicted() -> bool:
            now = await self._pod(move)
            if now is not None and now.uid == pod.uid and (why := now.annotations.get(MOVE_REFUSED)):
                raise MoveStoppedError(f"the scheduler extender does not move {move.pod}: {why}")
            return now is None or now.uid != pod.uid or now.deleting

        if not await self._until(evicted, self.answer_s):
            await self._wish(pod, None)
            raise MoveStoppedError(
                f"no scheduler extender moved {move.pod} within {self.answer_s:g} s, so the request is withdrawn; "
                f"the extender can move pods once it has the rights of {MANIFEST}"
            )

    async def _await_replacement(self, move: Move, pod: Pod, siblings: set[str]) -> str:
        wanted = move.node, usage_at(move.placements)
        new: list[Pod] = []

        def in_place(each: Pod) -> bool:
            return (each.node_name, usage_of(each, self._resources)) == wanted

        async def bound() -> bool:
            new[:] = [each for each in await self._siblings(pod) if each.uid not in siblings]
            # As long as one waits it may come there; else all that came went elsewhere.
            return any(map(in_place, new)) or (bool(new) and all(each.node_name for each in new))

        await self._until(bound, pod.grace_s + self.replaced_s)
        for each in filter(in_place, new):
            return f"{move.pod} is replaced by {each.namespace}/{each.name} on {move.node}."
        where = ", ".join(f"{each.name} is on {each.node_name or 'no node'}" for each in new) or "there is none yet"
        raise MoveStoppedError(f"{move.pod} was evicted, but its replacement is not on {move.node}: {where}")

    async def _until(self, done: Callable[[], Awaitable[bool]], within_s: float) -> bool:
        end = time.monotonic() + within_s
        while not await done():
            if time.monotonic() >= end:
                return False
            await self._sleep(self.every_s)
        return True

    async def _wish(self, pod: Pod, destination: str | None) -> None:
        body = {"metadata": {"uid": pod.uid, "annotations": {MOVE_TO: destination, MOVE_REFUSED: None}}}
        end = time.monotonic() + self.restarted_s
        while True:
            try:
                await self._access.client.patch(PODS, pod.name, body, namespace=pod.namespace)
            except ApiError as error:
                # Ctrl-C in a terminal ends kubectl's proxy, too, which is then started again. To withdraw a wish twice
                # does no harm.
                again = isinstance(error, UnavailableError)
                if destination is not None or (again and time.monotonic() >= end):
                    raise MoveStoppedError(f"the request cannot be written: {refusal(error)}") from error
                if again:
                    await asyncio.sleep(0.2)
                    continue
            return

    async def _pod(self, move: Move) -> Pod | None:
        """Return the pod of this name as it is now; None: it is gone."""
        pod = move.pod.pod
        try:
            raw = await self._access.get(PODS, pod.name, namespace=pod.namespace)
        except NotFoundError:
            return None
        except ApiError as error:
            raise MoveStoppedError(f"{move.pod} cannot be read: {refusal(error)}") from error
        return self._reader().read(raw)[0]

    async def _siblings(self, pod: Pod) -> list[Pod]:
        """Return the pods of the same controller."""
        try:
            raw = await self._access.items(PODS, namespace=pod.namespace)
        except ApiError as error:
            raise MoveStoppedError(f"the pods of {pod.namespace} cannot be read: {refusal(error)}") from error
        every = [each for each, _ in readable(raw, self._reader().read)]
        return [each for each in every if each.owner is not None and each.owner == pod.owner]

    def _reader(self) -> PodReader:
        keep = READ_BY_AGENT | {MOVE_TO, MOVE_REFUSED}
        return PodReader([each.name for each in self._resources], keep.__contains__, owners=True)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.apply and arguments.output == "json":
        raise UsageError("--apply: it shows the plan in a table; leave out -o json")
    if arguments.yes and not arguments.apply:
        raise UsageError("--yes: there is nothing to confirm; write --apply too, or leave it out")


PLAN = Command(
    "plan",
    "plan which pods to move to make room for others, and move them",
    plan_moves,
    (
        AS_JSON,
        NAMESPACE,
        either(
            argument("--for", dest="pod", metavar="POD", help="plan moves that make room for this pending pod"),
            argument(
                "--nodes-free",
                type=valued(int, lambda nodes: nodes > 0, "write 1, for example"),
                metavar="N",
                help="plan moves that leave N nodes without GPU pods",
            ),
        ),
        switch("--apply", "make the planned moves, one after another"),
        YES,
    ),
    _check,
)
