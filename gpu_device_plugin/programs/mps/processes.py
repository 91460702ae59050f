"""Find the processes of MPS that are of one control daemon, in /proc."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
_AS_DAEMON = frozenset({b"-d", b"-f"})
_MOST = 1 << 16
"""Bytes of a command line or environment that are read."""


class Process(NamedTuple):
    """A process, told apart from a later one of the same ID."""

    pid: int
    started: bytes
    """In ticks since the machine started."""


class Processes:
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

    def _started(self, pid: int) -> bytes:
        """Return when a process started; empty if it has ended, even if nobody has asked for its exit code yet."""
        # The second field is the name, in parentheses, and may contain anything.
        state, *rest = self._read(str(pid), "stat").rpartition(b")")[2].split() or [b"X"]
        return rest[18] if state not in {b"Z", b"X"} and len(rest) > 18 else b""

    def _namespace(self, pid: int) -> int:
        try:
            return (self._proc / str(pid) / "ns/pid").stat().st_ino
        except OSError:
            return 0
