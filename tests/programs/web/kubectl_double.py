"""A kubectl whose `proxy` stands between a unix socket and an API server, as the real one does.

``python -m tests.programs.web.kubectl_double HOME WORD...``; HOME holds ``script.json``.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

_PASSED = ("Authorization", "Accept", "Content-Type")


class Proxy:
    """Passes requests on with the rights of the kubeconfig's user."""

    def __init__(self, script: dict[str, Any], flags: dict[str, str], session: aiohttp.ClientSession) -> None:
        self._server = script["server"]
        self._headers = {"Authorization": f"Bearer {script['token']}"} if script.get("token") else {}
        self._refused = [re.compile(each) for each in flags.get("--reject-methods", "^$").split(",")]
        self._session = session

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer as staging/src/k8s.io/kubectl/pkg/proxy/proxy_server.go does."""
        if request.host.partition(":")[0] not in {"localhost", "127.0.0.1"}:
            return web.Response(status=403, text="Forbidden")
        if any(each.match(request.method) for each in self._refused):
            return web.Response(status=403, text="Forbidden")
        headers = {name: value for name, value in request.headers.items() if name in _PASSED} | self._headers
        # The path of the server is left out, as UseRequestLocation is set and AppendLocationPath is not.
        address = f"{URL(self._server).origin()}{request.path_qs}"
        try:
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._session.request(request.method, address, headers=headers, timeout=timeout) as answer:
                response = web.StreamResponse(
                    status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
                )
                with contextlib.suppress(ConnectionResetError):  # of a client that has gone
                    await response.prepare(request)
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                return response
        except aiohttp.ClientConnectorError as error:
            place = "E1122 10:30:00.123456      42 proxy_server.go:147]"
            sys.stderr.write(f"{place} Error while proxying request: {error}\n")
            return web.Response(status=500, text=f"{error}\n")


async def serve(script: dict[str, Any], flags: dict[str, str]) -> None:
    """Serve until a signal ends us, as it ends a program in Go."""
    path = flags["--unix-socket"]
    async with aiohttp.ClientSession() as session:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", Proxy(script, flags, session).answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.UnixSite(runner, path).start()
        sys.stdout.write(f"Starting to serve on {path}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main(home: Path, words: list[str]) -> int:
    """Run one command of kubectl."""
    with (home / "calls").open("a") as calls:
        calls.write(json.dumps([os.getpid(), *words]) + "\n")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a program in Go ends without a word
    script = json.loads((home / "script.json").read_text())
    flags = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    if script.get("fail"):
        sys.stderr.write(f"{script['fail']}\n")
        return 1
    match [word for word in words if not word.startswith("--")]:
        case ["proxy"]:
            sys.stdout.write(script.get("banner", ""))
            sys.stdout.flush()
            if script.get("leaves"):  # like the browser of a login
                left = subprocess.Popen(["/bin/sleep", "600"])
                (home / "left").write_text(str(left.pid))
            asyncio.run(serve(script, flags))
        case ["config", "view"] if script.get("stuck"):
            signal.pause()
        case ["config", "view"]:
            name = flags.get("--context", "dev")
            config = {
                "current-context": "dev",
                "contexts": [{"name": name, "context": {"cluster": "c", **script.get("context", {})}}],
                "clusters": [{"name": "c", "cluster": {"server": script["server"]}}],
            }
            sys.stdout.write(json.dumps(config))
        case other:
            sys.stderr.write(f"error: unknown command {other}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
