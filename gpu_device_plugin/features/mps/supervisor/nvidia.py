"""Run the driver's programs `nvidia-cuda-mps-control` and `nvidia-smi`, each with a deadline."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.features.mps.rules.mps_daemon import MODES
from gpu_device_plugin.features.mps.supervisor.places import GpuDirectory
from gpu_device_plugin.kubelet import procfs

_log = logging.getLogger(__name__)

CONTROL, SERVER, SMI = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-smi"
_MOST = 1 << 16
"""Bytes that are read of a program's output, or of a process's command line or environment."""
_TOLD = 300
"""Letters of it that an error quotes."""
_NO_SUCH_GPU = 6
"""nvidia-smi's exit code for a GPU that it does not know ("a query to find an object was unsuccessful")."""


class MpsError(Exception):
    """Something could not be done; the message is a sentence without a full stop."""


class Nvidia:
    """Control daemons and compute modes of the GPUs of this machine. Every call ends within a deadline of its own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Prepare; nothing is started yet. The variables of `environ` that steer CUDA are not passed on."""
        self._environ = {name: value for name, value in environ.items() if not name.startswith(("CUDA_", "GPUSHARE_"))}
        self.start_s, self.command_s = 20.0, 5.0
        """The deadlines of a start and of a command, in seconds."""
        self.smi_s = 30.0
        """The deadline of nvidia-smi: without persistence mode the driver takes seconds to load."""
        self._processes = MpsProcesses(Path("/proc"))
        self._daemons: dict[str, Process] = {}

    def missing(self) -> tuple[str, ...]:
        """Return a sentence for each program that is not there."""
        path = self._environ.get("PATH", "")
        return tuple([_not_found(program) for program in (CONTROL, SMI) if shutil.which(program, path=path) is None])

    async def start(self, place: GpuDirectory) -> None:
        """Start the control daemon of a GPU; it outlives this program unless the container's runtime ends it.

        Raises MpsError.
        """
        environ = {**self._variables(place), "CUDA_VISIBLE_DEVICES": place.uuid}
        try:
            place.prepare()
        except OSError as error:
            raise MpsError(f"its directory cannot be used: {error}") from error
        # Clients of several users share a server only so; otherwise those of the second user wait for the first one's.
        code, said = await self._run([CONTROL, "-d", "-multiuser-server"], environ, self.start_s)
        if code and any(word in said.lower() for word in ("multiuser", "usage", "unrecognized", "invalid", "unknown")):
            _log.warning("this driver's MPS has one user at a time", extra={"gpu": place.uuid, "why": said})
            code, said = await self._run([CONTROL, "-d"], environ, self.start_s)
        if code:
            raise MpsError(f"{CONTROL} -d failed: {said or f'exit code {code}'}")

    async def command(self, place: GpuDirectory, text: str) -> str:
        """Give the daemon of a GPU one command; return its answer. MpsError: it refuses, is not there, or is late."""
        code, said = await self._run([CONTROL], self._variables(place), self.command_s, text)
        if code:
            raise MpsError(f"{text.partition(' ')[0]} failed: {said or f'exit code {code}'}")
        return said

    async def compute_mode(self, uuid: str) -> str:
        """Return the compute mode of a GPU as `nvidia-smi -c` takes it; empty: the driver does not name the GPU.

        Raises MpsError.
        """
        query = [SMI, "-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader"]
        code, said = await self._run(query, self._environ, self.smi_s)
        if code == _NO_SUCH_GPU or "No devices were found" in said:
            return ""
        mode = said.strip().upper()
        if code or mode not in MODES:
            raise MpsError(f"{SMI} does not tell the compute mode: {said or f'exit code {code}'}")
        return mode

    async def set_compute_mode(self, uuid: str, mode: str) -> None:
        """Set the compute mode of a GPU. Raises MpsError."""
        code, said = await self._run([SMI, "-i", uuid, "-c", mode], self._environ, self.smi_s)
        if code:
            raise MpsError(f"{SMI} -c {mode} failed: {said or f'exit code {code}'}")

    def alive(self, place: GpuDirectory) -> bool:
        """Return whether the GPU's daemon has a process. All are looked at only while it is not found."""
        known = self._daemons.get(place.uuid)
        if known is not None and self._processes.is_there(known):
            return True
        daemons, _ = self._processes.of(place.pipe)
        if daemons:
            self._daemons[place.uuid] = daemons[0]
        return bool(daemons)

    def kill(self, place: GpuDirectory) -> None:
        """Send SIGKILL to the daemon of a GPU and to its server."""
        for processes in self._processes.of(place.pipe):
            for each in processes:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)

    def _variables(self, place: GpuDirectory) -> dict[str, str]:
        return {
            **self._environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(place.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(place.log),
        }

    async def _run(
        self, words: list[str], environ: Mapping[str, str], deadline_s: float, said: str = ""
    ) -> tuple[int, str]:
        """Run a program; return its exit code and its output, as one line. Raises MpsError."""
        # A file, because a daemon inherits the output and would keep a pipe open after the program's end.
        output = os.memfd_create("output")
        try:
            asked, ask = os.pipe()
            os.write(ask, f"{said}\n".encode() if said else b"")
            os.close(ask)
            try:
                child = await asyncio.create_subprocess_exec(
                    *words, stdin=asked, stdout=output, stderr=output, env=environ, start_new_session=True
                )
            except OSError as error:
                absent = isinstance(error, FileNotFoundError)
                why = _not_found(words[0]) if absent else f"{words[0]} cannot be run: {error.strerror}"
                raise MpsError(why) from error
            finally:
                os.close(asked)
            try:
                if not await wait_within(deadline_s, child.wait()):
                    raise MpsError(f"{words[0]} did not answer within {deadline_s:g} s")
            finally:
                signal_child(child.pid, child.returncode, signal.SIGKILL)
                # A process that waits in the kernel for a GPU may not end even then.
                await wait_within(1.0, child.wait())
            text = os.pread(output, _MOST, 0).decode(errors="replace")
        finally:
            os.close(output)
        answer = text.strip()
        return child.returncode or 0, answer if not child.returncode else " ".join(answer.split())[:_TOLD]


def _not_found(program: str) -> str:
    return (
        f"{program} is not on the PATH: on a node the driver's package brings it, into a container the NVIDIA runtime "
        "with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )


# --- Processes: which are a GPU's daemon and servers, whatever clients call themselves ------------------------------

_AS_DAEMON = frozenset({b"-d", b"-f"})


class Process(NamedTuple):
    """A process, told apart from a later one of the same ID."""

    pid: int
    started: str
    """In ticks since the machine started."""


class MpsProcesses:
    """Looks at the processes of this machine."""

    def __init__(self, proc: Path) -> None:
        """Prepare to look at `proc`, which is /proc."""
        self._proc = proc
        self._ours = (proc / "self/ns/pid").stat().st_ino

    def is_there(self, process: Process) -> bool:
        """Return whether a process still runs."""
        return self._started(process.pid) == process.started

    def of(self, pipe: Path) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
        """Return the control daemons and the servers whose pipe directory is `pipe`.

        Clients have the same variable, so the name of the program counts too. A container's process may take any name,
        but lives in a PID namespace of its own, and the daemon's file with its PID can be written by every client.
        """
        wanted = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(pipe)
        daemons: list[Process] = []
        servers: list[Process] = []
        for entry in os.scandir(self._proc):
            if not entry.name.isdecimal():
                continue
            words = self._read(entry.name, "cmdline").split(b"\0")
            # The first is the interpreter, where the program is a script.
            names = {word.rpartition(b"/")[2] for word in words[:2]}
            if SERVER.encode() in names:
                found = servers
            # Commands are given by a process of the same name, without arguments.
            elif CONTROL.encode() in names and _AS_DAEMON.intersection(words):
                found = daemons
            else:
                continue
            pid = int(entry.name)
            if started := self._started(pid):
                environ = self._read(entry.name, "environ").split(b"\0")
                if wanted in environ and self._namespace(pid) == self._ours:
                    found.append(Process(pid, started))
        return tuple(daemons), tuple(servers)

    def _read(self, pid: str, name: str) -> bytes:
        try:
            with (self._proc / pid / name).open("rb") as file:
                return file.read(_MOST)
        except OSError:  # it has ended
            return b""

    def _started(self, pid: int) -> str:
        """Return when a process started; empty if it has ended, even if nobody has asked for its exit code yet."""
        fields = procfs.stat(self._proc, pid)
        return "" if fields is None or fields[0] in {"Z", "X"} else fields[19]

    def _namespace(self, pid: int) -> int:
        try:
            return (self._proc / str(pid) / "ns/pid").stat().st_ino
        except OSError:
            return 0
