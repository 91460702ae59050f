"""An extender as kube-scheduler meets it: what it is sent, and what its answers are taken for (extender.go of 1.36)."""

import asyncio
import json
import os
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.builders import GPU_COUNT, GPU_MEM, Json
from tests.scheduler_double.nodes import Node, Status, containers

_SCORE_SCALE = 10
"""An extender's scores end at 10, the scheduler's own at 100."""
NO_VICTIM = 'expected at least one victim pod on node "{}"'


class ExtenderError(Exception):
    """An extender did not answer, or not as it must; the text is what the scheduler shows."""


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
class Filtered:
    """What one round of filters said."""

    feasible: list[Node]
    statuses: dict[str, Status] = field(default_factory=dict)


class Extender:
    """The scheduler's side of one extender; use it in an ``async with``. Every call raises ExtenderError."""

    def __init__(self, config: ExtenderConfig) -> None:
        """Prepare to call the extender of `config`."""
        self._config = config
        self._http: aiohttp.ClientSession | None = None
        self.calls: Counter[str] = Counter()
        """How often each verb was asked."""

    def __repr__(self) -> str:
        return f"<Extender {self._config.url_prefix}: {sum(self.calls.values())} calls>"

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    def interested(self, pod: Json) -> bool:
        """Return whether the extender is asked about a pod: its quantities do not matter, only their names."""
        return any(
            resource in self._config.managed_resources
            for container in containers(pod)
            for amounts in container.get("resources", {}).values()
            for resource in amounts
        )

    async def filter(self, pod: Json, nodes: Sequence[Node]) -> Filtered:
        """Ask which of these nodes fit."""
        answer = await self._send("filter", {"Pod": pod, **self._listed(nodes)})
        if why_not := _field(answer, "Error"):
            raise ExtenderError(why_not)
        unresolvable = _field(answer, "FailedAndUnresolvableNodes") or {}
        statuses = {name: Status(why) for name, why in (_field(answer, "FailedNodes") or {}).items()}
        statuses |= {name: Status(why, resolvable=False) for name, why in unresolvable.items()}
        return Filtered(self._kept(answer, nodes), statuses)

    def _kept(self, answer: Json, asked: Sequence[Node]) -> list[Node]:
        """Return the nodes that an extender lets pass. Without a list of any form it is none, and nobody is told."""
        by_name = {node.name: node for node in asked}
        names, nodes = _field(answer, "NodeNames"), _field(answer, "Nodes")
        if self._config.node_cache_capable and names is not None:
            for name in names:
                if name not in by_name:
                    raise ExtenderError(
                        f'extender "{self._config.url_prefix}" claims a filtered node "{name}" which is not found in '
                        "the input node list"
                    )
            return [by_name[name] for name in names]
        if nodes is None:
            return []
        # These are taken as they come back, asked about or not.
        bodies = [_field(each, "metadata")["name"] for each in _field(nodes, "items") or []]
        return [by_name[name] for name in bodies if name in by_name]

    async def prioritize(self, pod: Json, nodes: Sequence[Node]) -> Mapping[str, int]:
        """Ask how good each of these nodes is; return scores by name, in the scheduler's scale."""
        scores: Counter[str] = Counter()
        for each in await self._send("prioritize", {"Pod": pod, **self._listed(nodes)}) or []:
            scores[_field(each, "Host")] += _field(each, "Score") * self._config.weight * _SCORE_SCALE
        return scores

    async def bind(self, pod: Json, node: str) -> None:
        """Have it bind a pod to a node."""
        meta = pod["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        if why_not := _field(await self._send("bind", asked), "Error"):
            raise ExtenderError(why_not)

    async def preempt(
        self, pod: Json, victims: Mapping[str, Sequence[Json]], nodes: Mapping[str, Node]
    ) -> dict[str, list[Json]]:
        """Ask whom it would evict, given the scheduler's own victims; both by the names of nodes."""
        meta = {
            name: {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": 0}
            for name, pods in victims.items()
        }
        whole = {name: {"Pods": list(pods), "NumPDBViolations": 0} for name, pods in victims.items()}
        capable = self._config.node_cache_capable
        args = {
            "Pod": pod,
            "NodeNameToVictims": None if capable else whole,
            "NodeNameToMetaVictims": meta if capable else None,
        }
        answer = await self._send("preempt", args)
        found: dict[str, list[Json]] = {}
        for name, said in (_field(answer, "NodeNameToMetaVictims") or {}).items():
            if name not in nodes:
                raise ExtenderError(f'nodeinfo not found for node name "{name}"')
            there = {each["metadata"]["uid"]: each for each in nodes[name].pods}
            for each in _field(said, "Pods") or []:
                uid = _field(each, "UID")
                if uid not in there:
                    raise ExtenderError(
                        f"extender: {self._config.url_prefix} claims to preempt pod (UID: &MetaPod{{UID:{uid},}}) on "
                        f"node: {name}, but the pod is not found on that node"
                    )
                found.setdefault(name, []).append(there[uid])
            if not found.get(name):
                raise ExtenderError(NO_VICTIM.format(name))
        return found

    def _listed(self, nodes: Sequence[Node]) -> Json:
        if self._config.node_cache_capable:
            return {"Nodes": None, "NodeNames": [node.name for node in nodes]}
        return {"Nodes": {"metadata": {}, "items": [node.body for node in nodes]}, "NodeNames": None}

    async def _send(self, verb: str, args: Json) -> Any:
        if self._http is None:
            raise RuntimeError(f"{self!r} is used outside its `async with`")
        self.calls[verb] += 1
        url = f"{self._config.url_prefix.rstrip('/')}/{verb}"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        body = json.dumps(args, separators=(",", ":")).encode()
        try:
            async with (
                asyncio.timeout(self._config.http_timeout_s),
                self._http.post(
                    url, data=body, headers=headers, ssl=self._config.tls or True, allow_redirects=False
                ) as answer,
            ):
                text = (await answer.read()).decode(errors="replace")
        except TimeoutError as error:
            why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            raise ExtenderError(f'Post "{url}": {why}') from error
        except (aiohttp.ClientError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {_in_go(error)}') from error
        if answer.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
        return _decoded(text)


def _decoded(text: str) -> Any:
    """Read the first JSON value of an answer, as Go does."""
    if not text.strip():
        raise ExtenderError("EOF")
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except json.JSONDecodeError as error:
        what = f"invalid character {error.doc[error.pos]!r}" if error.pos < len(error.doc) else "unexpected EOF"
        raise ExtenderError(what) from error


def _field(answer: Any, name: str) -> Any:
    """Return a field of an object, whatever the case of its key; None if there is none."""
    if answer is None:
        return None
    if not isinstance(answer, dict):
        raise ExtenderError(f"json: cannot unmarshal {type(answer).__name__} into a Go value")
    return next((value for key, value in answer.items() if key.lower() == name.lower()), None)


def _in_go(error: Exception) -> str:
    """Say in Go's words what became of a connection."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"dial tcp {error.host}:{error.port}: connect: {os.strerror(error.os_error.errno or 0).lower()}"
    return "EOF" if isinstance(error, aiohttp.ServerDisconnectedError) else str(error)
