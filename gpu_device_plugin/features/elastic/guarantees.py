"""Resize guarantees as pod owners ask, as far as the scheduler has promised and the GPUs have room."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NoReturn, TypeAlias

from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.elastic.contract import Allowance, PodGuarantees
from gpu_device_plugin.features.elastic.rules.reservations import (
    UNDECIDED,
    Elastic,
    Growth,
    answer,
    elastics,
    fitting,
    owned,
    resize,
    taken_over,
)
from gpu_device_plugin.kubelet.statefile import LONGEST_DOCUMENT, StateFile
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD
from gpu_device_plugin.model.contract.reservations import Answer, write_answer
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.ledger import ContainerKey, Ledger, Reservation, Reservations
from gpu_device_plugin.node.rules.matching import expected

_log = logging.getLogger(__name__)

_Reserved: TypeAlias = tuple[str, str, str, int, frozenset[str]]  # pod, container, GPU, shares, IDs
_NOT_SAVED = "the agent cannot save its guarantees on the node"


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a pod is to show."""

    answer: Answer | None
    since: float
    """When that was decided, monotonic seconds."""
    written: float | None = None
    """When it was last handed over to be written; None: the pod shows it."""


class Guarantees(NodeFeature):
    """The one writer of `Ledger.reservations`.

    What a container has beyond its request ends with its devices, whether the API knows its pod or not.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        self._state, self._api, self._entries = node.state, node.api, node.checkpoint_entries
        # Most nodes never have any.
        self._file = StateFile(
            node.settings.value.device_plugin_dir, "guarantees", longest=LONGEST_DOCUMENT, nothing="[]"
        )
        self.clock: Callable[[], float] = time.monotonic
        self.withheld: Callable[[], str] = lambda: node.config.value.why_not_offered
        """Returns why nothing of the GPUs is given to anybody now; empty: it is."""
        self._worker = Worker(self._step)
        self.pace_s = 0.5
        """Seconds between two rounds: no guarantee changes more often, however often the owner of a pod wants that."""
        self.again_s = 10.0
        """Seconds until something that was refused is looked at again: nobody follows the labels of namespaces."""
        self.same_s = 30.0
        """Seconds for which the reason of a refusal stays, though its figures may change with every container."""
        self._loaded: bool | None = False
        """None: loaded, but the kubelet's checkpoint could not be read since."""
        self._pods: dict[str, PodGuarantees] = {}
        """By the UID by which the kubelet knows the pod, of pods with something to decide, or to correct."""
        self._allowances: dict[str, tuple[Allowance | str, float]] = {}
        """By namespace, and when they were read."""
        self._answers: dict[str, _Answered] = {}
        """By the UID of a pod."""

    def ledger_complete(self) -> None:
        """Take over what the previous agent guaranteed.

        Without the checkpoint all of it counts: nothing is given out until it can be read.
        """
        if self._loaded is False:
            self._loaded = None
            self._state.update(Ledger.with_reservations, self._load())
        if self._loaded is None and self._entries.version:
            self._loaded = True
            before = self._state.node.ledger.reservations
            self._state.update(Ledger.with_reservations, taken_over(before, self._entries.value))
            self._state.update(Ledger.with_reservations, fitting(self._state.node))
            if ended := before.keys() - self._state.node.ledger.reservations.keys():
                _log.info("guarantees beyond requests ended while no agent ran", extra={"containers": len(ended)})

    def tasks(self) -> Tasks:  # noqa: D102
        return [self._run()]

    async def _run(self) -> NoReturn:
        """Follow the pods and the ledger. Ends only by cancellation."""
        await self._entries.after(0)
        self.ledger_complete()
        await self._worker.run(self._entries, self._state.nodes, self._api.pod_changes)

    async def _step(self) -> float | None:
        again = await self._round()
        await asyncio.sleep(self.pace_s)
        return self.again_s if again else None

    async def _round(self) -> bool:
        """Do what can be done now; return whether something is left that has to be looked at again."""
        await self._read_pods()
        if reservations := self._state.node.ledger.reservations:
            self._state.update(Ledger.with_reservations, owned(reservations, self._entries.value))
        elif not self._pods:  # as on most nodes, whose ledger changes with every container all the same
            self._answers = {}
            return not await self._save({})
        found, decided, growth = self._decide()
        if growth.unknown:
            await asyncio.gather(*(self._read_allowance(namespace) for namespace in sorted(growth.unknown)))
            found, decided, growth = self._decide()
        refused = {**growth.refused, **await self._apply(decided, found)}
        unanswered = self._answer(found, refused)
        later = bool(refused or growth.unknown) or unanswered
        return later or not await self._save(self._state.node.ledger.reservations)

    def _load(self) -> Reservations:
        """Return what the previous agent saved; nothing if there is no such file, or it is damaged."""
        rows: list[_Reserved] = self._file.read_document(list[_Reserved], [])
        return {(uid, container): Reservation(uuid, shares, own) for uid, container, uuid, shares, own in rows}

    async def _save(self, reservations: Reservations) -> bool:
        """Save guarantees for the next agent; return whether that succeeded."""
        rows = [(*key, each.uuid, each.shares, each.own) for key, each in sorted(reservations.items())]
        return await in_thread(self._file.write_document, rows)

    async def _read_pods(self) -> None:
        """Parse what pods have on them, each text once; others run in between."""
        pods: dict[str, PodGuarantees] = {}
        growing = {uid for uid, _ in self._state.node.ledger.reservations}
        for pod in tuple(self._api.pods.values()):
            uid = pod.kubelet_uid
            if pod.ended or (uid not in growing and pod.annotations.keys().isdisjoint({MEMORY_GUARANTEE, MEMORY_HELD})):
                continue
            known = self._pods.get(uid)
            if known is None or known.pod != pod:
                known = PodGuarantees.of(pod)
                await asyncio.sleep(0)
            pods[uid] = known
        self._pods = pods

    def _decide(self) -> tuple[Mapping[str, Sequence[Elastic]], Reservations, Growth]:
        """Return the containers that may grow by the UID of their pod, for pods with all their devices; and what to do.

        The kubelet asks for one container of a pod after the other.
        """
        node, now = self._state.node, self.clock()
        waiting = () if self._api.waiting is None else self._api.waiting.waiting()
        incomplete = {pod.uid for pod in waiting}
        pods = {uid: says for uid, says in self._pods.items() if uid not in incomplete}
        found = elastics(self._entries.value, pods, node)
        fresh = {name: known for name, known in self._allowances.items() if now - known[1] < self.again_s / 2}
        self._allowances = fresh
        withheld = self.withheld()
        allowances = {namespace: withheld or allowance for namespace, (allowance, _) in fresh.items()}
        return found, *resize(node, [*chain(*found.values())], expected(waiting), allowances)

    async def _read_allowance(self, namespace: str) -> None:
        labels = await self._api.namespace_labels(namespace)
        if labels is not None:
            allowance = labels if isinstance(labels, str) else Allowance.of(namespace, labels)
            self._allowances[namespace] = allowance, self.clock()

    async def _apply(
        self, reservations: Reservations, found: Mapping[str, Sequence[Elastic]]
    ) -> Mapping[ContainerKey, str]:
        """Change the ledger and the file; return why containers did not grow after all.

        What shrinks does so in the ledger first, what grows in the file. While that is written the kubelet may get
        answers, so what grows does so only if the decision is still the same; otherwise the next round has another.
        """
        before = self._state.node.ledger.reservations
        both = ((key, reservation, reservations[key]) for key, reservation in before.items() if key in reservations)
        lower = {key: old if old.shares <= new.shares else new for key, old, new in both}
        self._state.update(Ledger.with_reservations, lower)
        refused = {}
        saved = await self._save(reservations)
        if saved and self._decide()[1] == reservations:
            self._state.update(Ledger.with_reservations, reservations)
        elif not saved:
            refused = {key: _NOT_SAVED for key, reservation in reservations.items() if reservation != lower.get(key)}
        after = self._state.node.ledger.reservations
        for each in chain(*found.values()):
            was, now = (held[each.key].shares if each.key in held else 0 for held in (before, after))
            if was != now:
                self._resized(each, was, now)
        return refused

    def _resized(self, each: Elastic, was: int, now: int) -> None:
        pod, request, mib = each.pod, each.size.request, self._state.node.shares.share_mib
        before, after = (format_mib((request + beyond) * mib) for beyond in (was, now))
        extra = {"pod": f"{pod.namespace}/{pod.name}", "container": each.size.container, "from": before, "to": after}
        _log.info("a guarantee was resized", extra=extra)
        note = (
            f"container {each.size.container} is now guaranteed {after} of {each.gpu.name}; it was guaranteed {before}"
        )
        self._api.event("GPUMemoryResized", f"{note}.", "Resize", warning=False, pod=pod)

    def _answer(self, found: Mapping[str, Sequence[Elastic]], refused: Mapping[ContainerKey, str]) -> bool:
        """Write on the pods what they are guaranteed; return whether a pod does not show it yet."""
        reservations, now = self._state.node.ledger.reservations, self.clock()
        holders = {allocation.pod_uid for allocation in self._entries.value}
        answers: dict[str, _Answered] = {}
        for uid, says in self._pods.items():
            if uid in holders and uid not in found:
                continue  # the kubelet's records are not complete yet
            # Without devices it has no guarantee, whatever its owner wrote.
            new = answer(says, found[uid], reservations, refused) if uid in found else None
            last, shown = self._answers.get(uid), says.pod.annotations.get(MEMORY_HELD)
            if last is None or (last.answer != new and not self._only_figures(last, new, now)):
                last = _Answered(new, now)
            text = None if last.answer is None else write_answer(last.answer)
            if text == shown:
                answers[uid] = replace(last, written=None)
            elif last.written is None or now - last.written >= self.again_s:
                self._api.annotate(says.pod, {MEMORY_HELD: text})
                answers[uid] = replace(last, written=now)
                self._report(says, last.answer)
            else:
                answers[uid] = last
        self._answers = answers
        return any(answered.written is not None for answered in answers.values())

    def _only_figures(self, last: _Answered, new: Answer | None, now: float) -> bool:
        """Return whether an answer is new only in the figures of why it is no better, and soon after the last one."""
        if last.answer is None or new is None or not (last.answer.why and new.why):
            return False
        return replace(last.answer, why=new.why) == new and now - last.since < self.same_s

    def _report(self, says: PodGuarantees, new: Answer | None) -> None:
        """Post an Event about a wish that is not fulfilled, one for each wish."""
        if new is None or new.why in {"", UNDECIDED} or (says.held.wish == new.wish and says.held.why):
            return
        note = f"The guarantee of GPU memory is unchanged: {new.why}."
        self._api.event("GPUMemoryNotResized", note, "Resize", pod=says.pod)
