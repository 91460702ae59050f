"""Serve the page on this machine through `kubectl proxy`, with the rights of whoever's kubeconfig it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.http import ListenError
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.cluster.client.api_client import Client, Timing
from gpu_device_plugin.cluster.client.config import ClusterConfig
from gpu_device_plugin.cluster.client.errors import ApiError, ForbiddenError, NotFoundError
from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE
from gpu_device_plugin.lifetime import until_stopped
from gpu_device_plugin.programs.commandline import FAILED
from gpu_device_plugin.programs.kubectl import CONFIG, Selected, how_it_ended, not_run, selected
from gpu_device_plugin.programs.terminal import discard_output, say
from gpu_device_plugin.programs.web.callers import LocalCallers
from gpu_device_plugin.programs.web.figures import AgentFigures
from gpu_device_plugin.programs.web.web_program import DEFAULT_TIMINGS, PageServer
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.forms import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gpu_device_plugin.model.resources import Resource

_GUARD = 'read -r line; kill "$1"; rm -f "$2/socket"; rmdir "$2"'
"""Reads from a pipe of which only we have the other end, so that it goes on when we have ended, however that was."""
_MOST_SAID = 4096
"""Bytes of kubectl's messages that are kept."""


class ProxyError(Exception):
    """There is no page, mostly as `kubectl proxy` does not run; the message is a sentence for the user.

    It is no OSError, which a program under a supervisor is restarted after.
    """


class _Output:
    """A pipe into which a process writes.

    Not asyncio's: with that, a process ends only when what it leaves behind has closed the pipe, too, and the browser
    of a login stays for days.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        """Read from now on, until `close`; `take` gets what comes."""
        self._take = take
        self._end, self.other_end = os.pipe()
        os.set_blocking(self._end, False)
        asyncio.get_running_loop().add_reader(self._end, self._read)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._end, _MOST_SAID)
        except BlockingIOError:
            return False
        if chunk:
            self._take(chunk)
        else:
            asyncio.get_running_loop().remove_reader(self._end)
        return bool(chunk)

    def close(self) -> None:
        if self._read():
            self._read()
        asyncio.get_running_loop().remove_reader(self._end)
        os.close(self._end)


class KubectlProxy:
    """`kubectl proxy`, started again whenever it ends."""

    def __init__(self, flags: Sequence[str], program: str, folder: Path) -> None:
        self._command = (
            program,
            *flags,
            "proxy",
            f"--unix-socket={folder / 'socket'}",
            # We only read, and nobody else may write through it.
            "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
        )
        self._program = program
        self._folder = folder
        self._said = b""
        self._process: asyncio.subprocess.Process | None = None
        self._guard: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None
        self._outputs: tuple[_Output, ...] = ()
        self._serving = asyncio.Event()

    def config(self, path: str) -> ClusterConfig:
        """Return where the API server is for our client; `path` is that of the API on it."""
        # By default the proxy answers only requests to localhost, and leaves out the path of the server. Not every
        # kubectl has a flag against that (--append-server-path).
        return ClusterConfig(f"http://localhost{path}", unix_socket=self._folder / "socket")

    async def start(self, within_s: float = 60.0) -> None:
        """Start it, and wait until it serves.

        Raises:
            ProxyError: it does not serve.
        """
        (self._folder / "socket").unlink(missing_ok=True)
        self._said = b""
        self._serving.clear()
        self._outputs = out, err = _Output(self._printed), _Output(self._complained)
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdout=out.other_end, stderr=err.other_end)
        except OSError as error:
            raise ProxyError(not_run(self._program, error)) from error
        finally:
            for each in self._outputs:
                os.close(each.other_end)
        self._process = process
        self._guard = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _GUARD, "sh", str(process.pid), str(self._folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us, and must not end the guard
        )
        self._ended = asyncio.create_task(process.wait(), name="kubectl's end")
        self._ended.add_done_callback(lambda _: self._serving.set())
        in_time = await wait_within(within_s, self._serving.wait())
        if process.returncode is not None or not in_time or not (self._folder / "socket").exists():
            await self.stop()
            ended = how_it_ended(self._said, process.returncode)
            why = ended if in_time else f"it did not serve within {within_s:g} s"
            raise ProxyError(f"{self._program} proxy: {why}")

    async def keep(self) -> NoReturn:
        """Start it again whenever it has ended. Ends only by cancellation."""
        while True:
            if self._process is not None:
                await self._process.wait()
            await self.stop()
            await asyncio.sleep(2.0)
            with contextlib.suppress(ProxyError):  # the client's next request says that nobody answers
                await self.start()

    async def stop(self) -> None:
        """End it."""
        for process in (self._process, self._guard):
            if process is not None:
                signal_child(process.pid, process.returncode, signal.SIGKILL)
                await process.wait()
        for each in self._outputs:
            each.close()
        self._guard, self._outputs = None, ()

    def _printed(self, _chunk: bytes) -> None:
        """Learn that it has printed something: it does so once it serves, and wrappers of it do before."""
        if (self._folder / "socket").exists():
            self._serving.set()

    def _complained(self, chunk: bytes) -> None:
        """Show what kubectl says: a login plugin may ask for something, without the end of a line."""
        self._said = (self._said + chunk)[-_MOST_SAID:]
        with contextlib.suppress(OSError):  # nobody reads it any more, but kubectl must not wait for a reader
            sys.stderr.write(chunk.decode(errors="replace"))
            sys.stderr.flush()


@contextlib.asynccontextmanager
async def running(flags: Sequence[str], program: str = "kubectl") -> AsyncIterator[KubectlProxy]:
    """Run a proxy for as long as the block runs. Its socket is in a folder that only this user can enter.

    Raises:
        ProxyError: it does not serve.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="gpushare-"))  # with mode 0700
    except OSError as error:
        raise ProxyError(
            f"no folder can be made for the socket of {program} proxy ({error.strerror}); name a folder that can be "
            "written to in TMPDIR"
        ) from error
    proxy = KubectlProxy(flags, program, folder)
    try:
        await proxy.start()
        yield proxy
    finally:
        try:
            await proxy.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_HOST = "127.0.0.1"
_LOGIN_S = 300.0
"""How long the first request may take: a login plugin may wait for a person."""


def main(
    flags: Sequence[str],
    resources: Sequence[Resource],
    *,
    port: int,
    browser: bool,
    prog: str,
    kubectl: str = "kubectl",
    agents_namespace: str = AGENT_NAMESPACE,
) -> int:
    """Serve on the loopback address until SIGINT, SIGTERM or SIGHUP; `port` 0: a free one.

    kubectl's `flags` select the cluster and the user, who typed `prog`. With `browser` the page is opened in the user's
    browser, where there is a graphical one. Pods of `agents_namespace` alone are believed to be node agents.

    Returns:
        0 once stopped; 1 if the cluster cannot be read, or the port cannot be listened on.
    """

    def ready(url: str) -> None:
        try:
            say(sys.stdout, f"The page is at {url}")
            say(sys.stdout, "It shows what your kubeconfig may read, to whoever has this address. Ctrl-C ends it.")
            sys.stdout.flush()
        except BrokenPipeError as error:
            discard_output(sys.stdout)
            raise ProxyError("the page ends, since nobody reads its address: the output is closed") from error
        # Without a graphical display a browser would take the terminal.
        displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        if browser and (sys.platform == "darwin" or any(os.environ.get(name) for name in displays)):
            # A browser that begins may take its time, and some of them stay: nothing waits for it.
            threading.Thread(target=webbrowser.open, args=(url,), name="browser", daemon=True).start()

    work = _serve(flags, resources, port=port, kubectl=kubectl, ready=ready, agents_namespace=agents_namespace)
    try:
        # The terminal is closed: SIGHUP ends us, too.
        return asyncio.run(until_stopped(work, "page", {signal.SIGHUP: lambda: signal.raise_signal(signal.SIGTERM)}))
    except ProxyError as error:
        say(sys.stderr, f"{prog}: {error}")
        return FAILED


async def _serve(
    flags: Sequence[str],
    resources: Sequence[Resource],
    *,
    port: int,
    kubectl: str,
    ready: Callable[[str], None],
    agents_namespace: str,
) -> NoReturn:
    async with running(flags, kubectl) as proxy:
        chosen = await _chosen(flags, kubectl)
        config = proxy.config(chosen.path)
        async with Client(config, timing=Timing(request_s=_LOGIN_S)) as first:
            try:
                await first.server()
            except (ForbiddenError, NotFoundError):
                pass  # it has answered
            except ApiError as error:
                raise ProxyError(
                    f"the cluster cannot be read ({error}); kubectl's message, if any, stands above. See whether "
                    "kubectl get nodes works with the same flags"
                ) from error
        impersonated = next((flag.removeprefix("--as=") for flag in flags if flag.startswith("--as=")), "")
        callers = LocalCallers(impersonated or chosen.user)
        async with Client(config, timing=DEFAULT_TIMINGS.api) as client:
            server = PageServer(
                client,
                resources,
                callers,
                about=AboutPage("kubeconfig", chosen.context, frozenset({_HOST, "localhost"})),
                figures=AgentFigures(client, namespace=agents_namespace),
                namespace=chosen.namespace or "default",
            )
            try:
                async with server.serving(Address(_HOST, port)) as bound:
                    ready(f"http://{_HOST}:{bound}/#token={callers.token}")
                    await proxy.keep()
            except ListenError as error:
                raise ProxyError(str(error)) from error


async def _chosen(flags: Sequence[str], kubectl: str) -> Selected:
    """Return what the flags select; nothing without a kubeconfig, as in a pod."""
    process = await asyncio.create_subprocess_exec(
        *(kubectl, *flags, *CONFIG),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    text = b""
    try:
        async with asyncio.timeout(10.0):
            text, _ = await process.communicate()
    except TimeoutError:
        pass  # only names for the page are missing, and the path of a few servers
    finally:
        signal_child(process.pid, process.returncode, signal.SIGKILL)
        await process.wait()
    return selected(text, flags)
