"""An API server in this process, and a kubectl whose proxy leads to it: a shell script, as each command starts one."""

from __future__ import annotations

import json
import socketserver
import tempfile
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

Answer = tuple[int, Any]
"""The HTTP status, and what becomes JSON; or bytes."""

KUBECTL = """\
#!/bin/sh
for word; do printf '%s\\037' "$word"; done >> {home}/calls
echo >> {home}/calls
for word; do case "$word" in --unix-socket=*) socket=${{word#*=}};; esac; done
case " $* " in
    *" config view "*) cat {home}/config.json;;
    *" proxy "*)
        if [ -s {home}/refusal ]; then cat {home}/refusal >&2; exit 1; fi
        echo $$ > {home}/proxy
        ln -s {socket} "$socket"
        echo "Starting to serve on $socket"
        exec sleep 3600;;
esac
"""

_OPEN: list[ProxiedApi] = []


def close_all() -> None:
    """End the servers of a test."""
    while _OPEN:
        _OPEN.pop().close()


def failure(code: int, reason: str, message: str) -> Answer:
    """Return what an API server answers in place of an object."""
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def forbidden(verb: str, plural: str, group: str, namespace: str | None, name: str = "") -> Answer:
    """Return the answer to a caller without a right (ForbiddenMessage in apiserver/.../responsewriters/errors.go)."""
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    what = f'{plural} "{name}"' if name else plural
    denied = f'User "dev" cannot {verb} resource "{plural}" in API group "{group}" {where}'
    return failure(403, "Forbidden", f"{what} is forbidden: {denied}")


class ProxiedApi:
    """Answers requests as a function says, on a unix socket."""

    def __init__(self, home: Path, answer: Callable[[str, str, Mapping[str, str], bytes], Answer]) -> None:
        """Serve until `close`. `answer` gets method, path, query and body; kubectl stands in `home`."""
        self.home = home
        self.requests: list[tuple[str, str]] = []
        """Method and path, with the query in the order of its names."""
        # The path of a socket has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="api-")
        path = Path(self._folder.name) / "socket"
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                asked = f"{url.path}?{urlencode(sorted(query.items()))}" if query else url.path
                requests.append((self.command, asked))
                status, found = answer(self.command, unquote(url.path), query, body)
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PATCH = do_POST = do_GET  # noqa: N815 - as the base class looks for them

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128  # as of Go's servers, far more than the 5 that refuse connections made at once

            def handle_error(self, *_: Any) -> None:
                """Pass over clients that have gone."""

        self._server = Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.kubectl.write_text(KUBECTL.format(home=home, socket=path), encoding="utf-8")
        self.kubectl.chmod(0o755)
        self.configured()
        _OPEN.append(self)

    @property
    def kubectl(self) -> Path:
        """The program."""
        return self.home / "kubectl"

    @property
    def calls(self) -> list[list[str]]:
        """The words of each call of kubectl so far."""
        path = self.home / "calls"
        return [line.split("\037")[:-1] for line in path.read_text().splitlines()] if path.exists() else []

    def configured(self, server: str = "https://10.0.0.1:6443", namespace: str = "") -> None:
        """Say what kubectl's configuration is."""
        context = {"cluster": "c", "user": "in-kubeconfig", "namespace": namespace}
        contexts = [{"name": name, "context": context} for name in ("dev", "prod")]
        clusters = [{"name": "c", "cluster": {"server": server}}]
        config = {"current-context": "dev", "contexts": contexts, "clusters": clusters}
        (self.home / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def refuse(self, message: str) -> None:
        """Have kubectl's proxy end with a message instead of serving; empty: it serves."""
        (self.home / "refusal").write_text(message, encoding="utf-8")

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()
