"""Record incidents of a node with what led to them, and serve the records."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NoReturn, cast

import msgspec

from gpu_device_plugin import files
from gpu_device_plugin.aio.http import JSON, Page, Request, Route
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.history.contract import (
    INCIDENTS_PATH,
    LARGEST_INCIDENT,
    STEP_S,
    Decision,
    Incident,
    IncidentKind,
    IncidentList,
    IncidentSummary,
    NodeHistory,
)
from gpu_device_plugin.features.history.rules.incidents import (
    BEFORE_S,
    RecentIncidents,
    Trigger,
    concerned,
    deaths,
    is_name,
    lately,
    making_room,
    processes_on,
    summary,
    use_of,
)
from gpu_device_plugin.features.history.rules.ring import Selection
from gpu_device_plugin.features.history.sampling import History, encoded
from gpu_device_plugin.features.use.node import Use, UseReports
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.kubelet.sockets import OURS, advice
from gpu_device_plugin.model.contract.node_use import NodeUse
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.node_api import Happening

_log = logging.getLogger(__name__)

_KINDS = {"GPUUnhealthy": IncidentKind.GPU_FAILED, "GPUError": IncidentKind.XID}
"""By the reason of what happened; every other incident is an eviction."""
_MOST_DECISIONS, _LONGEST_DECISION = 128, 400
_MOST_WAITING = 8
"""Records that wait for the disk."""
_STORM_S = 1.0
"""Records of the same second have the same limits and use: for a thousand containers they take 40 ms each time."""
_MOST_ROWS = 256
"""Processes of a record; and half as many containers in its report of use."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A record that is not encoded yet."""

    incident: Incident
    """Without its history, and with the use of all GPUs."""
    selection: Selection | None
    positions: frozenset[int]
    """Of the GPUs concerned."""
    epoch: float
    """When monotonic time was 0, in seconds since the epoch."""


class FlightRecorder(NodeFeature):
    """Takes down what is known at the moment of an incident, and writes it in the background."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        self._node, self._api, self._use = node, node.api, node.features.of(Use)
        self._use_now, self._history = node.features.of(UseReports).now, node.features.of(History)
        self._files = IncidentFiles(node.settings.value.device_plugin_dir)
        self._started_s = time.time()
        self._recent = RecentIncidents()
        self._pods: Mapping[str, Pod] = {}
        self._drafts: deque[_Draft] = deque(maxlen=_MOST_WAITING)
        self._storm: tuple[float, NodeUse, Sequence[ContainerGpus]] | None = None
        """When limits and use were taken down last, and what they were; None: that is written."""
        self._writer = Worker(self._write_drafts)
        self._busy = asyncio.Lock()
        self.decisions: deque[Decision] = deque(maxlen=_MOST_DECISIONS)
        """What the agent did or was told lately, the newest last; everything that it tells is among it."""
        self._api.happenings.recorders.append(self._incident)
        self._api.happenings.listeners.append(self._decided)

    def tasks(self) -> Tasks:  # noqa: D102
        kills, pods = self._history.kills, self._api.pod_changes
        return [kills.follow(self.killed), pods.follow(self.pods_changed), self._writing()]

    def routes(self) -> tuple[Route, ...]:  # noqa: D102
        return (Route("GET", INCIDENTS_PATH, self._answer),)

    def _incident(self, happening: Happening) -> str:
        """Record what happened, if it is an incident; return the end of its sentence."""
        if not happening.summary:
            return ""
        kind = _KINDS.get(happening.reason, IncidentKind.OVER_USE_EVICTION)
        return self.record(Trigger(kind, happening.summary, happening.gpus, happening.pod))

    def _decided(self, happening: Happening) -> None:
        about = "" if happening.pod is None else f" on {happening.pod}"
        text = f"{happening.reason}{about}: {happening.note}" if happening.reason else happening.note
        self.decisions.append(Decision(rfc3339(time.time()), text[:_LONGEST_DECISION]))

    def record(self, trigger: Trigger) -> str:
        """Record an incident; return its name in words for the end of an Event, empty if it is not recorded.

        Returns at once. The name of one that is not new is that of the record that it is in.
        """
        name, _ = self._record(trigger)
        return f" (incident {name})" if name else ""

    def _record(self, trigger: Trigger) -> tuple[str, bool]:
        shares, at_s = self._use.shares(), time.time()
        taken = {each.name for each in self._files.listing.incidents}
        taken |= {each.name for each in self._recent.known.values()}
        found = summary(trigger, shares, at_s, taken)
        before = self._recent
        self._recent, name = before.after(trigger, found.name, time.monotonic())
        if name != found.name:
            return name, False
        try:
            self._drafts.append(self._draft(found, trigger, at_s))
            self._writer.wake()
        except Exception:  # noqa: BLE001 - the caller has something more important to do
            _log.exception("an incident cannot be recorded")
            self._recent = before  # nobody is to be told the name of a record that is not there
            return "", False
        return name, True

    def _draft(self, found: IncidentSummary, trigger: Trigger, at_s: float) -> _Draft:
        shares = self._use.shares()
        uuids = concerned(trigger.uuids, shares)
        if self._storm is None or time.monotonic() - self._storm[0] >= _STORM_S:
            self._storm = time.monotonic(), self._use_now(), self._use.holders()
        _, use, holders = self._storm
        processes = processes_on(uuids, *self._use.processes_read, holders, shares, most=_MOST_ROWS)
        decisions, none = lately(self.decisions, at_s), NodeHistory(found.at, STEP_S)
        return _Draft(
            Incident(found, self._node.settings.value.node_name, none, use, processes, decisions),
            self._history.ring.select(uuids=uuids, last_s=BEFORE_S),
            frozenset(shared.position for shared in shares.gpus if shared.gpu.uuid in uuids),
            at_s - time.monotonic(),
        )

    # --- What happens to containers -----------------------------------------------------------------------------------

    def pods_changed(self, pods: Mapping[str, Pod]) -> None:
        """Record the containers on GPUs that have died, and tell of them on their pods."""
        before, self._pods = self._pods, pods
        of = cache(self._gpus_by_container)  # all of a node's containers may die at once
        for trigger in deaths(before, pods, self._started_s, lambda *container: of()[container]):
            self._report(trigger)

    def _gpus_by_container(self) -> Mapping[tuple[str, str], set[str]]:
        """Return the GPUs that containers hold, or held within the hour, by UID of the pod and name."""
        found = defaultdict[tuple[str, str], set[str]](set)
        for pod_uid, container, uuid in self._history.ring.places:
            found[pod_uid, container].add(uuid)
        for held in self._node.entries.value:
            found[held.pod_uid, held.container] |= {parse_id(each)[0] for each in held.device_ids}
        return found

    def killed(self, holders: Iterable[ContainerGpus]) -> None:
        """Record that the kernel killed a process of each of these containers."""
        for each in holders:
            sentence = f"a process of container {each.container} was killed for lack of main memory"
            uuids = tuple(sorted(each.granted))
            self._report(Trigger(IncidentKind.OUT_OF_MEMORY, sentence, uuids, each.pod, each.container))

    def _report(self, trigger: Trigger) -> None:
        name, new = self._record(trigger)
        _log.warning("%s", trigger.sentence, extra={"incident": name, "once_per_s": 60})
        if new and trigger.pod is not None:
            self._api.event("GPUIncident", f"{trigger.sentence} (incident {name})", "Observe", pod=trigger.pod)

    # --- Files --------------------------------------------------------------------------------------------------------

    async def _writing(self) -> NoReturn:
        async with self._busy:
            await asyncio.to_thread(self._files.load)
        await self._writer.run()

    async def _write_drafts(self) -> None:
        while self._drafts:
            draft = self._drafts.popleft()
            async with self._busy:
                await asyncio.to_thread(self._write, draft)
        self._storm = None

    def _write(self, draft: _Draft) -> None:
        try:
            self._files.write(draft.incident.summary, _content(draft))
        except Exception:  # noqa: BLE001 - as for the use of GPUs: a record is for people
            _log.exception("an incident cannot be recorded")

    async def _answer(self, request: Request) -> Page:
        """Answer with an `IncidentList` or an `Incident`; one is read after the other, however many clients ask."""
        name = request.rest
        if not name:
            return Page(msgspec.json.encode(self._files.listing), content_type=JSON)
        async with self._busy:
            found = await asyncio.to_thread(self._files.read, name) if is_name(name) else None
            if found is None:
                why = "it may have made room for newer ones, or could not be written (see the agent's log)"
                return Page(f"this node has no incident {name[:100]!r}; {why}\n", status=404)
            return Page(await asyncio.to_thread(msgspec.json.encode, found), content_type=JSON)


def _content(draft: _Draft) -> bytes:
    """Return the JSON of a record, with fewer containers and processes if it were too long with all of them."""
    whole = draft.incident
    for share in (1, 4, 16):
        history = whole.history
        if draft.selection is not None:
            content = encoded(draft.selection, draft.epoch, LARGEST_INCIDENT // 2 // share)
            history = cast("NodeHistory", msgspec.Raw(content))
        use = use_of(whole.use, draft.positions, _MOST_ROWS // 2 // share)
        processes = whole.processes[: _MOST_ROWS // share]
        found = msgspec.json.encode(replace(whole, history=history, use=use, processes=processes))
        if len(found) <= LARGEST_INCIDENT:
            break
    return found


# --- Files ------------------------------------------------------------------------------------------------------------

_FOLDER = f"{OURS}/incidents"
_END = ".json"


class IncidentFiles:
    """The records below the device-plugin directory. Only the holder of the node's lock writes them.

    Its methods wait for the disk and log what fails; one of them runs at a time. Names of other forms are left alone.
    """

    def __init__(self, directory: Path) -> None:
        """Name the records below the device-plugin `directory`; nothing is opened yet."""
        self._directory = directory
        self._known: dict[str, IncidentSummary | None] = {}
        """By name; None: the record is damaged."""
        self.listing = IncidentList()
        """The records as last known."""

    def load(self) -> None:
        """Read the records of earlier agents, and remove what an agent that was killed has left half written."""
        for file in sorted(self._names()):
            name = file.removesuffix(_END)
            if is_name(name) and file != name:
                incident = self.read(name)
                self._known[name] = None if incident is None else incident.summary
            elif is_name(file.removeprefix(".").removesuffix(f"{_END}.new")):
                with contextlib.suppress(OSError):  # it is a directory
                    files.remove_below(self._directory, f"{_FOLDER}/{file}")
        if damaged := [name for name, about in self._known.items() if about is None]:
            _log.warning("records of incidents are damaged and not shown", extra={"names": damaged})
        self._list()

    def read(self, name: str) -> Incident | None:
        """Return a record; None: there is none, or it is damaged."""
        try:
            content, _ = files.read_below(self._directory, f"{_FOLDER}/{name}{_END}", LARGEST_INCIDENT)
            incident = msgspec.json.decode(content, type=Incident)
        except (OSError, ValueError, RecursionError):
            return None
        return incident if incident.summary.name == name else None

    def write(self, summary: IncidentSummary, content: bytes) -> bool:
        """Write a record of at most `LARGEST_INCIDENT` bytes, and make room for it; return whether it is there."""
        name = summary.name
        try:
            files.make_folder_below(self._directory, _FOLDER)
            for old in making_room(self._known, summary):
                try:
                    files.remove_below(self._directory, f"{_FOLDER}/{old}{_END}")
                except OSError:
                    if self._known[old] is not None:  # a damaged one may be a directory with such a name
                        raise
                del self._known[old]
            files.replace_below(self._directory, f"{_FOLDER}/{name}{_END}", content)
        except OSError as error:
            extra = {"path": str(self._directory / _FOLDER), "why": f"{error.strerror}{advice(error)}"}
            _log.warning("an incident cannot be recorded", extra={**extra, "once_per_s": 3600})
            return False
        else:
            self._known[name] = summary
            return True
        finally:
            self._list()

    def _list(self) -> None:
        newest = (self._known[name] for name in sorted(self._known, reverse=True))
        self.listing = IncidentList(tuple(about for about in newest if about is not None))

    def _names(self) -> list[str]:
        try:
            return files.names_below(self._directory, _FOLDER)
        except FileNotFoundError:
            return []
        except OSError as error:
            extra = {"path": str(self._directory / _FOLDER), "why": f"{error.strerror}{advice(error)}"}
            _log.warning("the records of incidents cannot be read", extra=extra)
            return []
