"""The Kubernetes API as a user's kubectl reaches it: through `kubectl proxy`, so every kubeconfig and login works."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket as sockets
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import (
    ApiError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    UnauthorizedError,
)
from gpu_device_plugin.kubernetes.kubeconfigs import given_by, parsed, why_no_cluster
from gpu_device_plugin.kubernetes.kubectl_messages import Messages, feed, heard
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind, decoded

T = TypeVar("T")

_LOGIN_S = 300.0
"""How long the first request may take: a login plugin may wait for a person."""
_TIMING = Timing(request_s=60.0)
_WHO_AM_I = ObjectKind("selfsubjectreviews", group="authentication.k8s.io")


class ClusterUnreadableError(Exception):
    """The cluster could not be read. The message is for the user and says what to do.

    It is no OSError, which a program under a supervisor is restarted after.
    """


# --- What is selected -------------------------------------------------------------------------------------------------


_CONFIG = ("config", "view", "--output=json")
"""Prints all of kubectl's configuration, merged of all its files, and without credentials."""


class Selected(NamedTuple):
    """What kubectl's configuration and flags select; empty where they do not say."""

    context: str = ""
    user: str = ""
    """As the configuration calls it, or the one to act as."""
    namespace: str = ""
    path: str = ""
    """Of the Kubernetes API on its server: of Rancher it is ``/k8s/clusters/NAME``, of most servers empty."""
    server: str = ""
    """Its address."""


def selected(config: Mapping[str, Any], flags: Sequence[str]) -> Selected:
    """Return what these flags of kubectl select of its configuration, as `_CONFIG` prints it."""

    def named(plural: str, name: str) -> dict[str, str]:
        every = config.get(plural)
        found = (each[plural[:-1]] for each in every if each.get("name") == name) if isinstance(every, list) else ()
        return next(iter(found), {})

    given = given_by(flags)
    context_name = given.get("context") or config.get("current-context", "")
    context = named("contexts", context_name)
    cluster = named("clusters", given.get("cluster") or context.get("cluster", ""))
    user = given.get("as") or given.get("user") or context.get("user", "")
    server = given.get("server") or cluster.get("server", "")
    return Selected(context_name, user, context.get("namespace", ""), _path_of(server), server)


def _path_of(server: str) -> str:
    """Return the path of a server's address, without a slash at its end; empty if it has none."""
    try:
        parts = urlsplit(server)
    except ValueError:  # kubectl says that it is no address
        return ""
    segments = [segment for segment in parts.path.split("/") if segment not in {"", "."}]
    return "".join(f"/{segment}" for segment in segments) if parts.scheme in {"http", "https"} else ""


@contextlib.asynccontextmanager
async def _child(*words: str, **pipes: int | bool) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process for as long as the block runs."""
    process = await asyncio.create_subprocess_exec(*words, **pipes)  # type: ignore[arg-type] # as asyncio takes them
    try:
        yield process
    finally:
        signal_child(process.pid, process.returncode, signal.SIGKILL)
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:  # which would leave a process that nobody has waited for
            await asyncio.wait({ended})
            raise


async def _configured(flags: Sequence[str], kubectl: str, environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Return kubectl's configuration; empty where it has none, as in a pod.

    Raises:
        ClusterUnreadableError: it leads to no cluster.
    """
    none, text = asyncio.subprocess.DEVNULL, b""
    try:
        async with _child(
            kubectl, *flags, *_CONFIG, stdin=none, stdout=asyncio.subprocess.PIPE, stderr=none
        ) as process:
            async with asyncio.timeout(10.0):
                text, _ = await process.communicate()
    except TimeoutError:  # only names are missing, and the path of a few servers
        return {}
    except OSError as error:
        raise _not_run(kubectl, error) from error
    return _checked(text, process.returncode, flags, environ)


def _checked(text: bytes, code: int | None, flags: Sequence[str], environ: Mapping[str, str]) -> Mapping[str, Any]:
    config = parsed(text)
    if why := why_no_cluster(None if code else config, flags, environ):
        raise ClusterUnreadableError(why)
    return config


# --- kubectl proxy ----------------------------------------------------------------------------------------------------


_BEGINS_S = 60.0
"""How long kubectl may take until it serves."""
_LOOK_S = 0.02
"""How often it is looked whether kubectl serves."""
_SHELL = "/bin/sh"
_GUARD = 'read -r line; pkill -P "$1"; kill "$1"; rm -f "$2/socket"; rmdir "$2"'
"""Reads from a pipe of which only we have the other end, so that it goes on when we have ended, however that was. What
is called kubectl may be a script or another program, and its child that which serves."""


def _not_run(program: str, error: OSError) -> ClusterUnreadableError:
    why = "is not on the PATH" if isinstance(error, FileNotFoundError) else os.strerror(error.errno or 0)
    return ClusterUnreadableError(
        f"{program}: {why}; the cluster is read through it: install it (https://kubernetes.io/docs/tasks/tools/)"
    )


def _how_it_ended(code: int | None) -> str:
    """Return the exit code of kubectl, or the signal that ended it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"ended by {next((each.name for each in signal.Signals if each == -code), f'signal {-code}')}"


async def _keep(
    command: Sequence[str], socket: Path, served: asyncio.Future[None], stderr: tuple[int, int, Messages]
) -> None:
    """Run kubectl's proxy again and again; `served` is done once it serves, or has the reason why it never did."""
    reader, writer, messages = stderr
    none, pause_s = asyncio.subprocess.DEVNULL, 0.0
    while True:
        guarded = (_SHELL, "-c", _GUARD, "sh")
        try:
            socket.unlink(missing_ok=True)  # noqa: ASYNC240 - of a moment
            # No pipes: a process ends for asyncio only when what it leaves behind, such as the browser of a login, has
            # closed them, too. On stderr a login plugin may ask for something.
            async with (
                _child(*command, stdout=none, stderr=writer) as process,
                # In a session of its own: Ctrl-C is for us, and must not end the guard.
                _child(
                    *(*guarded, str(process.pid), str(socket.parent)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=none,
                    stderr=none,
                    start_new_session=True,
                ) as guard,
            ):
                try:
                    in_time = await wait_within(_BEGINS_S, _until_it_serves(process, socket))
                    if in_time and process.returncode is None:
                        if not served.done():
                            served.set_result(None)
                        await process.wait()
                except asyncio.CancelledError:
                    if process.returncode is None and guard.stdin is not None:
                        guard.stdin.close()
                        await guard.wait()
                    raise
            why = _how_it_ended(process.returncode) if in_time else f"it did not serve within {_BEGINS_S:g} s"
            feed(reader, messages)
            messages.end()
            problem = ClusterUnreadableError(f"{command[0]} proxy: {messages.problem or why}")
        except OSError as error:
            problem = _not_run(command[0], error)
            if error.filename == _SHELL:
                problem = ClusterUnreadableError(f"{_SHELL}: {error.strerror}; it is to end kubectl's proxy with us")
        if not served.done():
            served.set_exception(problem)
            return
        await asyncio.sleep(pause_s)  # the client's next request says that nobody answers
        pause_s = 2.0


async def _until_it_serves(process: asyncio.subprocess.Process, socket: Path) -> None:
    while process.returncode is None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_unix_connection(socket)
            writer.close()
            return
        await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def _running(flags: Sequence[str], program: str, *, read_only: bool) -> AsyncIterator[Path]:
    """Run a proxy for as long as the block runs; yield its socket, in a folder that only this user can enter."""
    if not hasattr(sockets, "AF_UNIX"):
        raise ClusterUnreadableError("kubectl proxy has no socket here that is this user's alone; use WSL")
    try:
        folder = Path(tempfile.mkdtemp(prefix="gpushare-"))  # with mode 0700
    except OSError as error:
        raise ClusterUnreadableError(
            f"no folder can be made for the socket of {program} proxy ({error.strerror}); name a folder that can be "
            "written to in TMPDIR"
        ) from error
    loop = asyncio.get_running_loop()
    socket, served = folder / "socket", loop.create_future()
    rejected = ("--reject-methods=^(POST|PUT|PATCH|DELETE)$",) if read_only else ()
    command = (program, *flags, "proxy", f"--unix-socket={socket}", *rejected)
    with heard() as stderr:
        reader, _, messages = stderr
        keeping = asyncio.create_task(_keep(command, socket, served, stderr), name="keep kubectl's proxy")
        loop.add_reader(reader, feed, reader, messages)
        try:
            await asyncio.wait({served, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not served.done():
                keeping.result()
            await served
            yield socket
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            loop.remove_reader(reader)
            shutil.rmtree(folder, ignore_errors=True)


# --- The API ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    """The Kubernetes API, with the rights of the user whom kubectl's configuration and flags select.

    Calls raise ApiError as those of the client; GoneError never.
    """

    client: Client
    selected: Selected = field(default_factory=Selected)

    @property
    def namespace(self) -> str:
        """The namespace that kubectl uses by default: that of the context, else `default`."""
        return self.selected.namespace or "default"

    async def user(self) -> str:
        """Return the user, as the API server knows it; else as the kubeconfig calls it; empty: neither is known."""
        try:
            answer = await self.client.create(
                _WHO_AM_I, {"apiVersion": f"{_WHO_AM_I.group}/v1", "kind": "SelfSubjectReview"}
            )
            name: str = json.loads(answer)["status"]["userInfo"].get("username", "")
        except (ApiError, ValueError, LookupError):  # before Kubernetes 1.28
            return self.selected.user
        return name or self.selected.user

    async def items(
        self, kind: ObjectKind, fields: Sequence[str] = (), *, namespace: str = "", labels: str = ""
    ) -> list[msgspec.Raw]:
        """Return all objects of a kind that match all field selectors, and a label selector as kubectl's ``-l``."""
        pages = partial(self.client.pages, kind, namespace=namespace, fields=",".join(fields), labels=labels)
        try:
            return [raw async for page in pages() for raw in page.items or ()]
        except GoneError:
            # The API server keeps a list for some minutes. A slower reader has to fetch it in one piece.
            return [raw async for page in pages(limit=0) for raw in page.items or ()]

    async def every(self, kind: ObjectKind, form: type[T], *, namespace: str = "", labels: str = "") -> list[T]:
        """Return all objects of a kind as `form`. Raises UnreadableObjectError, if one of them is no such object."""
        return [decoded(raw, form) for raw in await self.items(kind, namespace=namespace, labels=labels)]

    async def get(self, kind: ObjectKind, name: str, *, namespace: str = "") -> msgspec.Raw:
        """Return one object; needs the right to get it, not to list."""
        return msgspec.Raw(await self.client.get(kind, name, namespace=namespace))


@contextlib.asynccontextmanager
async def reaching(
    flags: Sequence[str],
    program: str = "kubectl",
    *,
    read_only: bool = False,
    timing: Timing = _TIMING,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Access]:
    """Reach the API for as long as the block runs.

    Login plugins ask on our stderr. With `read_only` nobody can write through it.
    `timing` holds for all requests but the first.

    Raises:
        ClusterUnreadableError: kubectl does not run, or no API server answers.
    """
    chosen = selected(await _configured(flags, program, environ), flags)
    async with _running(flags, program, read_only=read_only) as socket:
        # By default the proxy answers only requests to localhost, and leaves out the path of the server. Not every
        # kubectl has a flag against that (--append-server-path).
        config = ClusterConfig(f"http://localhost{chosen.path}", unix_socket=socket)
        async with Client(config, timing=Timing(request_s=_LOGIN_S)) as first:
            try:
                await first.server()
            except (ForbiddenError, NotFoundError):
                pass  # it has answered
            except ApiError as error:
                raise ClusterUnreadableError(_unanswered(error, chosen)) from error
        async with Client(config, timing=timing) as client:
            yield Access(client, chosen)


_ADVICE = (
    (
        "refused",
        "nothing listens there: see whether the cluster runs, and whether the address is still right",
    ),
    ("no such host", "its name is unknown here: see whether the address is right, and whether a VPN is needed"),
    ("timeout", "see whether the cluster runs, and whether a VPN or a firewall stands between"),
    ("x509", "the certificate does not belong to this cluster, or has expired: get a new kubeconfig"),
    ("getting credentials", "the login of the kubeconfig failed: install its program, or log in again"),
)
"""What to do, by words of Go's message."""


def _unanswered(error: ApiError, chosen: Selected) -> str:
    """Return why no API server answers, in one sentence."""
    where = f"the API server {chosen.server}".strip() + (f" (context {chosen.context})" if chosen.context else "")
    if isinstance(error, UnauthorizedError):
        who = f"the login of {chosen.user}" if chosen.user else "our login"
        return f"{where} does not accept {who}: log in again, or choose another context with --context"
    why = error.why.removeprefix("500 Internal Server Error: ")
    if chosen.server and "://" not in chosen.server:
        return f"{where} does not answer: write https:// before the address"
    return f"{where} does not answer: {why}; {_advice(why, 'see whether kubectl get nodes works with the same flags')}"


def _advice(why: str, otherwise: str) -> str:
    return next((advice for words, advice in _ADVICE if words in why), otherwise)


def nodes_and_pods(flags: Sequence[str], program: str = "kubectl", environ: Mapping[str, str] = os.environ) -> bytes:
    """Return all nodes and pods as one list in JSON, as kubectl prints it.

    Raises:
        ClusterUnreadableError: they cannot be read.
    """
    command = [program, *flags, "get", "nodes,pods", "--all-namespaces", "--output=json"]
    try:
        # The program is what the user calls kubectl, and no shell reads the words.
        config = subprocess.run([program, *flags, *_CONFIG], capture_output=True, check=False)  # noqa: S603
        _checked(config.stdout, config.returncode, flags, environ)
        printed, code, messages = _printed(command)
    except OSError as error:
        raise _not_run(program, error) from error
    if code:
        why = messages.problem or _how_it_ended(code)
        rights = "see whether kubectl get nodes,pods -A works: you need the right to list both in the whole cluster"
        raise ClusterUnreadableError(f"kubectl could not list nodes and pods: {why}; {_advice(why, rights)}")
    return printed


def _printed(command: Sequence[str]) -> tuple[bytes, int, Messages]:
    """Run a command; return its output, its exit code, and what it said beside."""
    output = bytearray()
    with (
        heard() as (reader, writer, messages),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer) as process,  # noqa: S603 - see above
        selectors.DefaultSelector() as selector,
    ):
        printing = process.stdout.fileno() if process.stdout is not None else -1
        selector.register(reader, selectors.EVENT_READ)
        selector.register(printing, selectors.EVENT_READ)
        data = b"-"
        while data:
            ready = {key.fd for key, _ in selector.select()}
            feed(reader, messages)
            if printing in ready:
                data = os.read(printing, 1 << 20)
                output += data
        code = process.wait()
    return bytes(output), code, messages
