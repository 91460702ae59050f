"""An API server in a process of its own that serves the synthetic cluster, and takes as little time for it as it can.

``python -m bench.bigcluster NODES`` prints its address and runs until its input ends. The double of the test suite
keeps every object as Python's dicts, which at 90,000 pods takes gigabytes, and seconds that would be measured with the
rest. Here an object is written in the moment in which somebody asks. Bindings, lists and watches are as Kubernetes has
them, with nothing that could be refused. What happens in the cluster is ordered below ``/bench/``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from bench import synthetic
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, RESIZE_BOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.synthetic import Placed

_REMEMBERED = 2000
"""Events for a watch that begins after its list; enough, since nothing happens in between that we do not order."""
_CHUNK = 50
"""Events that are written together, as they are where many happen at once."""
_REMEMBERED_S = 29.0
"""The page remembers what a review says for a second more."""
_AWAY = 200
"""So many pods, or an eighth of all, have ended before the first of them is replaced."""


class BigCluster:
    """All nodes and pods, and who watches them."""

    def __init__(self, nodes: int) -> None:
        self._nodes = range(nodes)
        self._pods = {synthetic.pod_name(pod.number): pod for node in self._nodes for pod in synthetic.pods_of(node)}
        self._names = list(self._pods)
        self._growing = [name for name, pod in self._pods.items() if pod.shape == "gpu-mem 2"]
        """Pods that may be resized."""
        self._created: dict[str, dict[str, Any]] = {}
        """Pods that somebody made over HTTP."""
        self._version = 1
        self._log: dict[str, deque[tuple[int, bytes]]] = {"pods": deque(maxlen=_REMEMBERED), "nodes": deque()}
        self._watches: dict[str, set[asyncio.Queue[bytes]]] = {"pods": set(), "nodes": set()}
        self._lists: dict[str, Sequence[Callable[[], str]]] = {}
        self._number = 10**8
        self._turn = 0
        self._away: deque[Placed] = deque()
        self._leases: dict[str, dict[str, Any]] = {}
        self._reviewed: dict[str, float] = {}
        self._reviews_in_all = self._reviews_again = 0
        self._wished: dict[str, tuple[int, asyncio.Event]] = {}
        """By name, the newest version of each pod whose owner changed its wish, and whether it was answered since."""

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered."""
        pod = "/api/v1/namespaces/{namespace}/pods"
        leases = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        return [
            web.get("/api/v1/{kind:nodes|pods}", self._read),
            web.post(pod, self._create),
            web.get(pod + "/{name}", self._get),
            web.post(pod + "/{name}/binding", self._bind),
            web.delete(pod + "/{name}", self._delete),
            web.patch(pod + "/{name}", self._patch),
            web.get("/api/v1/namespaces/{namespace}", self._namespace),
            web.get(leases + "/{name}", self._lease),
            web.post(leases, self._write_lease),
            web.put(leases + "/{name}", self._write_lease),
            web.post("/apis/authentication.k8s.io/v1/tokenreviews", self._review_token),
            web.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._review_access),
            web.get("/bench/reviews", self._reviews),
            web.post("/bench/status", self._status),
            web.post("/bench/churn", self._churn),
            web.post("/bench/wish", self._wish),
            web.post("/bench/resize", self._resize),
        ]

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def _read(self, request: web.Request) -> web.StreamResponse:
        return await (self._watch if request.query.get("watch") else self._list)(request)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind, limit = request.match_info["kind"], int(request.query.get("limit", 10**9))
        token, _, begin = request.query.get("continue", f"{kind}-{self._version}:0").rpartition(":")
        if begin == "0":
            self._lists[token] = self._all(kind)
        found, first = self._lists[token], int(begin)
        version, more = token.rpartition("-")[2], len(found) > first + limit
        meta = f'"resourceVersion":"{version}"' + (f',"continue":"{token}:{first + limit}"' if more else "")
        items = ",".join(make() for make in found[first : first + limit])
        name = {"pods": "PodList", "nodes": "NodeList"}[kind]
        text = f'{{"kind":"{name}","apiVersion":"v1","metadata":{{{meta}}},"items":[{items}]}}'
        return web.Response(body=text.encode(), content_type="application/json")

    def _all(self, kind: str) -> Sequence[Callable[[], str]]:
        if kind == "nodes":
            return [partial(synthetic.node_json, node, 1) for node in self._nodes]
        made = [partial(json.dumps, pod) for pod in self._created.values()]
        return [*(partial(synthetic.pod_json, pod, 1) for pod in self._pods.values()), *made]

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._created[request.match_info["name"]])

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        kind, since = request.match_info["kind"], int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        lines: asyncio.Queue[bytes] = asyncio.Queue(4)
        missed = b"".join(line for version, line in self._log[kind] if version > since)
        self._watches[kind].add(lines)
        try:
            await response.write(missed)
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", 1800))):
                while True:
                    await response.write(await lines.get())
        except (TimeoutError, ConnectionError):
            return response
        finally:
            self._watches[kind].discard(lines)

    async def _lease(self, request: web.Request) -> web.Response:
        held = self._leases.get(request.match_info["name"])
        return _failure(404, "NotFound") if held is None else web.json_response(held)

    async def _write_lease(self, request: web.Request) -> web.Response:
        lease = await request.json()
        meta, held = lease["metadata"], self._leases.get(lease["metadata"]["name"], {"metadata": {}})
        if meta.get("resourceVersion") != held["metadata"].get("resourceVersion"):
            return _failure(409, "Conflict")
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        self._leases[meta["name"]] = lease
        return web.json_response(lease, status=201 if request.method == "POST" else 200)

    # --- Reviews ------------------------------------------------------------------------------------------------------

    async def _review_token(self, request: web.Request) -> web.Response:
        """Know every token as that of a user of its name."""
        token = (await request.json())["spec"]["token"]
        self._note(token)
        user = {"username": token, "groups": ["system:authenticated"]}
        return web.json_response({"status": {"authenticated": True, "user": user}}, status=201)

    async def _review_access(self, request: web.Request) -> web.Response:
        """Let everybody list nodes and get the pods of a namespace of his name, and the user ``admin`` all pods."""
        spec = (await request.json())["spec"]
        user, asked = spec["user"], spec["resourceAttributes"]
        self._note(f"{user} {asked}")
        allowed = asked["resource"] == "nodes" or user in {"admin", asked["namespace"]}
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    async def _reviews(self, _request: web.Request) -> web.Response:
        """Tell how many reviews there were, and how many repeated one of the last half minute."""
        return web.json_response({"all": self._reviews_in_all, "again": self._reviews_again})

    def _note(self, question: str) -> None:
        now_s = time.monotonic()
        self._reviews_in_all += 1
        self._reviews_again += now_s - self._reviewed.get(question, float("-inf")) < _REMEMBERED_S
        self._reviewed[question] = now_s

    # --- Writing ------------------------------------------------------------------------------------------------------

    async def _tell(self, lines: bytes) -> None:
        for watch in tuple(self._watches["pods"]):
            # Nobody takes anything from a watch that has ended meanwhile.
            while watch in self._watches["pods"] and not await wait_within(1.0, watch.put(lines)):
                pass

    def _line(self, kind: str, make: Callable[[int], str], *, remember: bool = True) -> bytes:
        self._version += 1
        text = make(self._version)
        line = f'{{"type":"{kind}","object":{{"kind":"Pod","apiVersion":"v1",{text[1:]}}}\n'.encode()
        if remember:
            self._log["pods"].append((self._version, line))
        return line

    def _made(self, kind: str, pod: dict[str, Any]) -> bytes:
        def text(version: int) -> str:
            pod["metadata"]["resourceVersion"] = str(version)
            return json.dumps(pod, separators=(",", ":"))

        return self._line(kind, text)

    async def _create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        pod["status"] = {"phase": "Pending"}
        pod["metadata"]["namespace"] = request.match_info["namespace"]
        self._created[pod["metadata"]["name"]] = pod
        await self._tell(self._made("ADDED", pod))
        return web.json_response(pod, status=201)

    async def _bind(self, request: web.Request) -> web.Response:
        pod, binding = self._created[request.match_info["name"]], await request.json()
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(binding["metadata"].get("annotations", {}))
        await self._tell(self._made("MODIFIED", pod))
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}, status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self._created.pop(request.match_info["name"])
        pod["status"]["phase"] = "Succeeded"
        await self._tell(self._made("MODIFIED", pod) + self._made("DELETED", pod))
        return web.json_response(pod)

    async def _patch(self, request: web.Request) -> web.Response:
        """Write annotations on a pod whose owner has changed its wish, if nobody has since."""
        name, meta = request.match_info["name"], (await request.json())["metadata"]
        if name not in self._wished:
            return _failure(404, "NotFound")
        version, answered = self._wished[name]
        if meta["resourceVersion"] != str(version):
            return _failure(409, "Conflict")
        made = await self._annotate(name, meta["annotations"])
        answered.set()
        return web.Response(text=made, content_type="application/json")

    async def _annotate(self, name: str, annotations: Mapping[str, str]) -> str:
        pod = self._pods[name]
        self._pods[name] = pod = replace(pod, annotations={**pod.annotations, **annotations})
        line = self._line("MODIFIED", _writer(pod), remember=False)
        self._wished[name] = self._version, self._wished.get(name, (0, asyncio.Event()))[1]
        await self._tell(line)
        return synthetic.pod_json(pod, self._version)

    async def _namespace(self, request: web.Request) -> web.Response:
        meta = {"name": request.match_info["namespace"], "labels": {RESIZE_BOUND: "1000000"}}
        return web.json_response({"kind": "Namespace", "apiVersion": "v1", "metadata": meta})

    # --- What happens in the cluster ----------------------------------------------------------------------------------

    async def _status(self, request: web.Request) -> web.Response:
        """Let kubelets write ``count`` statuses in which nothing has changed but the order of devices."""
        left = int(request.query["count"])
        while left > 0:
            chunk = [
                self._pods[self._names[(self._turn + n) * 7919 % len(self._names)]] for n in range(min(left, _CHUNK))
            ]
            self._turn += len(chunk)
            left -= len(chunk)
            note = str(self._turn)
            await self._tell(b"".join(self._line("MODIFIED", _writer(pod, note=note), remember=False) for pod in chunk))
        return web.Response()

    async def _churn(self, request: web.Request) -> web.Response:
        """Let ``count`` pods end and go, or come: be created, bound and begin to run, in turn."""
        lines: list[bytes] = []
        for n in range(int(request.query["count"])):
            if n % 2 and len(self._away) >= min(_AWAY, len(self._pods) // 8):
                self._number += 1
                new = replace(self._away.popleft(), number=self._number)
                self._names.append(synthetic.pod_name(new.number))
                self._pods[self._names[-1]] = new
                unbound = replace(new, annotations={}, shares=())
                lines += [
                    self._line("ADDED", _writer(unbound, unbound=True, phase="Pending")),
                    self._line("MODIFIED", _writer(new, phase="Pending")),
                    self._line("MODIFIED", _writer(new)),
                ]
            else:
                self._turn += 1
                at = self._turn * 7919 % len(self._names)
                self._names[at], self._names[-1] = self._names[-1], self._names[at]
                pod = self._pods.pop(self._names.pop())
                self._away.append(pod)
                lines += [
                    self._line("MODIFIED", _writer(pod, phase="Succeeded")),
                    self._line("DELETED", _writer(pod, phase="Succeeded")),
                ]
        for begin in range(0, len(lines), _CHUNK):
            await self._tell(b"".join(lines[begin : begin + _CHUNK]))
        return web.json_response({"events": len(lines)})

    async def _wish(self, request: web.Request) -> web.Response:
        """Let the owner of one pod change its wish ``count`` times."""
        name = self._growing[0]
        for _ in range(int(request.query["count"])):
            self._turn += 1
            await self._annotate(name, {MEMORY_GUARANTEE: str(2 + self._turn % 9)})
        return web.Response()

    async def _resize(self, request: web.Request) -> web.Response:
        """Let the owner of the pod ``number`` wish for more; tell in how many seconds the promise was written."""
        name = self._growing[1 + int(request.query["number"]) % (len(self._growing) - 1)]
        self._turn += 1
        self._wished.pop(name, None)
        began = time.monotonic()
        await self._annotate(name, {MEMORY_GUARANTEE: str(3 + self._turn % 9)})
        await self._wished[name][1].wait()
        return web.json_response({"seconds": time.monotonic() - began})


def _failure(status: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "reason": reason, "code": status}, status=status)


def _writer(pod: Placed, *, unbound: bool = False, **changes: str) -> Callable[[int], str]:
    def write(version: int) -> str:
        text = synthetic.pod_json(pod, version, **changes)
        return text.replace(f'"nodeName":"{synthetic.node_name(pod.node)}",', "") if unbound else text

    return write


async def serve(nodes: int) -> None:
    """Serve until standard input ends."""
    app = web.Application(client_max_size=16 << 20)
    app.add_routes(BigCluster(nodes).routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
