"""An API server in a process of its own: a node and its pods, each as large as real ones are.

``python -m bench.cluster NODE PODS`` prints its address and runs until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests import builders
from tests.cluster_double.api_server import ApiServer

WAITING_SHARES = 8
"""What the one pod asks that has no devices yet; it was promised GPU `PROMISED_GPU`."""
PROMISED_GPU = 7
_POD_BYTES = 9_000


def uid(number: int) -> str:
    """Return the UID of a pod; the one that waits has number 0, and those with odd numbers have one share each."""
    return f"00000000-0000-4000-8000-{number:012}"


def pod(number: int, node: str) -> dict[str, Any]:
    """Return one pod of the node, with as much beside the point in it as in a real one."""
    shares = WAITING_SHARES if number == 0 else number % 2
    main = builders.container(mem=shares or None)
    promise = {"ALIYUN_COM_GPU_MEM_IDX": str(PROMISED_GPU), "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
    made = builders.pod(
        f"pod-{number}",
        main,
        uid=uid(number),
        node=node,
        phase="Running" if number else "Pending",
        annotations={} if number else promise,
        labels={"app": f"app-{number % 20}", "pod-template-hash": f"{number:010}"},
    )
    main["env"] = []
    while len(json.dumps(made)) < _POD_BYTES:
        name = f"SOME_SERVICE_{len(main['env'])}_URL"
        main["env"].append({"name": name, "value": f"http://some-service-{number}.default.svc.cluster.local:8080/"})
    return made


async def serve(node: str, pods: int) -> None:
    """Serve until standard input ends."""
    async with ApiServer() as server:
        server.add(builders.node(node))
        for number in range(pods):
            server.add(pod(number, node))
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
