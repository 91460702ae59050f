"""kube-scheduler's side of an extender: what it asks, in its order, with as little in between as possible.

One pod after the other is filtered and prioritized; its binding goes on while the next ones are looked at.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import aiohttp

    from tests.builders import Json

PREFIX = "/gpushare-scheduler"


def arguments(pod: Json, names: Sequence[str]) -> bytes:
    """Return the body of filter and of prioritize, as the scheduler sends it where the extender knows the nodes."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


class Caller:
    """One kept connection to an extender. A library takes as long for its own part as many an answer."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._head = f"Host: {where.netloc}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n"
        self._socket = socket.create_connection((where.hostname, where.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def post(self, path: str, body: bytes = b"") -> tuple[float, bytes]:
        """Return how many ms one call took, and its answer."""
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode()
        began = time.perf_counter()
        self._socket.sendall(head + body)
        status = self._file.readline()
        size = -1
        while (line := self._file.readline()) not in {b"\r\n", b""}:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        answer = self._file.read(size) if size >= 0 else self._chunks()
        took = time.perf_counter() - began
        if b" 200 " not in status:
            raise OSError(f"{path}: {status!r} {answer[:200]!r}")
        return took * 1000, answer

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._file.readline(), 16):
            parts.append(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return b"".join(parts)


@dataclass(slots=True)
class Outcome:
    """What became of some pods."""

    bound: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """How many times which sentence was said."""
    seconds: float = 0.0
    filter_ms: list[float] = field(default_factory=list)
    bind_ms: list[float] = field(default_factory=list)

    def refuse(self, sentence: str) -> None:
        self.refused[sentence] = self.refused.get(sentence, 0) + 1


async def schedule(
    http: aiohttp.ClientSession,
    extender: str,
    pods: Sequence[Json],
    named: Iterator[Sequence[str]],
    *,
    prioritize: bool = True,
) -> Outcome:
    """Have `pods`, which exist, each scheduled onto one of the next nodes `named`, as fast as the extender can."""
    outcome = Outcome()
    rng = random.Random(0)  # noqa: S311 - the same run every time

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for pod in pods:
            took, found = await _ask(http, extender, "filter", arguments(pod, next(named)))
            outcome.filter_ms.append(took)
            fitting = found.get("NodeNames") or found.get("nodenames")
            if not fitting:
                outcome.refuse(found.get("Error") or "no node fits")
                continue
            best = list(fitting)
            if prioritize and len(best) > 1:
                _, scores = await _ask(http, extender, "prioritize", arguments(pod, fitting))
                highest = max(one["Score"] for one in scores)
                best = [one["Host"] for one in scores if one["Score"] == highest]
            tasks.create_task(
                _bind(http, extender, pod, rng.choice(best), outcome), name=f"bind {pod['metadata']['name']}"
            )
    outcome.seconds = time.perf_counter() - began
    return outcome


async def _ask(http: aiohttp.ClientSession, extender: str, verb: str, body: bytes) -> tuple[float, Any]:
    """Return how long the answer took, in milliseconds, and what it was."""
    began = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    async with http.post(f"{extender}{PREFIX}/{verb}", data=body, headers=headers) as answer:
        said = await answer.read()
    return (time.perf_counter() - began) * 1000, json.loads(said)


async def _bind(http: aiohttp.ClientSession, extender: str, pod: Json, node: str, outcome: Outcome) -> None:
    took, said = await _ask(http, extender, "bind", json.dumps(binding(pod["metadata"], node)).encode())
    outcome.bind_ms.append(took)
    if error := said.get("Error") or said.get("error"):
        outcome.refuse(error)
    else:
        outcome.bound += 1


def binding(meta: Mapping[str, Any], node: str) -> Mapping[str, str]:
    """Return the body of bind."""
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}


async def bind_at_once(
    http: aiohttp.ClientSession, extender: str, pods: Sequence[Json], nodes: Sequence[str]
) -> Outcome:
    """Have `pods` bound, each to the node of the same place in `nodes`, all at the same time."""
    outcome = Outcome()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for pod, node in zip(pods, nodes, strict=True):
            tasks.create_task(_bind(http, extender, pod, node, outcome), name=f"bind {pod['metadata']['name']}")
    outcome.seconds = time.perf_counter() - began
    return outcome


async def create(http: aiohttp.ClientSession, api: str, pods: Sequence[Json], token: str = "") -> list[Json]:
    """Create pods, and return them as the API server has them."""
    limit = asyncio.Semaphore(20)

    async def one(pod: Json) -> Json:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        async with limit, http.post(api + path, json=pod, headers=_bearer(token)) as answer:
            made: Json = await answer.json()
            if answer.status != 201:
                raise OSError(f"creating a pod: {made}")
            return made

    return list(await asyncio.gather(*map(one, pods)))


async def delete(http: aiohttp.ClientSession, api: str, pods: Sequence[Json], token: str = "") -> None:
    """Delete pods, at once."""
    limit = asyncio.Semaphore(20)

    async def one(meta: Mapping[str, Any]) -> None:
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=0"
        async with limit, http.delete(api + path, headers=_bearer(token)) as answer:
            await answer.read()

    await asyncio.gather(*(one(pod["metadata"]) for pod in pods))


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}
