"""An API server in a process of its own, with a node, its pods, and a claim for each of them.

``python -m bench.dra_cluster NODE PODS`` prints its address. Then it obeys one command a line, and answers each with a
line of JSON, until its input ends: ``offered`` waits until the node offers its GPUs, ``allocate`` makes the claims,
``reads`` tells how long the reads of claims took since the last time, ``wipe`` deletes all ResourceSlices and tells how
long it took until they were back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from urllib.parse import urlsplit

from bench.cluster import uid
from gpu_device_plugin.features.claims.contract import DRIVER
from tests import builders
from tests.cluster_double.api_server import ApiServer
from tests.scheduler_double.dra_scheduler import Allocator, exactly

MEMORY = "4Gi"
"""What each claim asks for."""
_POD_BYTES = 9_000
_READ = (b"GET /apis/resource.k8s.io/v1/namespaces/", b"/resourceclaims/")


class Relay:
    """Passes bytes on to a server, and knows from its side how long reads of claims take."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._to = where.hostname, where.port
        self._tasks: set[asyncio.Task[None]] = set()
        self.reads: list[list[float]] = []
        """When each read came in and when the last bytes of its answer left, in seconds, in their order."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        further_reader, further_writer = await asyncio.open_connection(*self._to)
        read: list[list[float]] = []
        """The read that this connection waits for."""

        async def to_server() -> None:
            while data := await reader.read(1 << 16):
                now, line = time.monotonic(), data.partition(b"\r\n")[0]
                read.clear()
                if line.startswith(_READ[0]) and _READ[1] in line:
                    read.append([now, now])
                    self.reads.extend(read)
                further_writer.write(data)
            further_writer.close()

        async def to_client() -> None:
            while data := await further_reader.read(1 << 16):
                writer.write(data)
                for each in read:
                    each[1] = time.monotonic()
            writer.close()

        for mode in (to_server, to_client):
            task = asyncio.create_task(_quiet(mode()), name=mode.__name__)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def took_ms(self) -> list[float]:
        """Return how long each read took since the last time, in ms."""
        found, self.reads = self.reads, []
        return [(ended - began) * 1000 for began, ended in found]


async def _quiet(mode: object) -> None:
    with contextlib.suppress(OSError):
        await mode  # type: ignore[misc]


def pod(number: int, node: str) -> builders.Json:
    """Return a pod of the node with a claim, with as much beside the point in it as in a real one."""
    made = builders.pod(f"pod-{number}", builders.container(), uid=uid(number), node=node, phase="Running")
    (main,) = made["spec"]["containers"]
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"claim-{number}"}]
    main["resources"] = {"claims": [{"name": "gpu"}]}
    main["env"] = []
    while len(json.dumps(made)) < _POD_BYTES:
        name = f"SOME_SERVICE_{len(main['env'])}_URL"
        main["env"].append({"name": name, "value": f"http://some-service-{number}.default.svc.cluster.local:8080/"})
    return made


def offered(server: ApiServer) -> int:
    """Return the number of devices that the node offers; 0: its pool is not complete."""
    specs = [found["spec"] for found in server.all("resourceslices")]
    pools = {(spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) for spec in specs}
    if len(pools) != 1 or len(specs) != next(iter(pools))[1]:
        return 0
    return sum(len(spec.get("devices") or ()) for spec in specs)


def allocate(server: ApiServer, node: str, pods: int) -> list[str]:
    """Make a claim for each pod, and return their UIDs."""
    scheduler = Allocator(server, DRIVER)
    found = []
    for number in range(pods):
        name = f"claim-{number}"
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly(memory=MEMORY)}]}}
        server.add({"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
        why = scheduler.allocate(name, node, [(f"pod-{number}", uid(number))])
        if why:
            raise SystemExit(f"{name}: {why}")
        found.append(server.get("resourceclaims", name)["metadata"]["uid"])
    return found


async def wipe(server: ApiServer) -> float:
    """Delete all slices, as a kubelet does that starts; return after how many ms all devices were offered again."""
    before = offered(server)
    began = time.monotonic()
    for found in server.all("resourceslices"):
        server.delete("resourceslices", found["metadata"]["name"], namespace="")
    while offered(server) != before:  # noqa: ASYNC110 - its memory, which nothing announces
        await asyncio.sleep(0.001)
    return (time.monotonic() - began) * 1000


async def serve(node: str, pods: int) -> None:
    """Serve until standard input ends."""
    async with ApiServer() as server:
        server.add(builders.node(node))
        for number in range(pods):
            server.add(pod(number, node))
        relay = Relay(server.url)
        listening = await asyncio.start_server(relay.connected, "127.0.0.1", 0)
        print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
        while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
            answer: object = None
            if command == "offered":
                while not offered(server):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
                answer = offered(server)
            elif command == "allocate":
                answer = allocate(server, node, pods)
            elif command == "reads":
                answer = relay.took_ms()
            elif command == "wipe":
                answer = await wipe(server)
            print(json.dumps(answer), flush=True)
        listening.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
