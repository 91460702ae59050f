"""Decide what the MPS supervisor does next with the control daemon and the compute mode of one GPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus

DEFAULT = "DEFAULT"
EXCLUSIVE = "EXCLUSIVE_PROCESS"
"""Compute modes, as `nvidia-smi -c` takes them. Under EXCLUSIVE one process may use the GPU, which is the server of
MPS: a container that goes around the daemon gets an error, and under DEFAULT it would run without a limit."""
MODES = frozenset({DEFAULT, EXCLUSIVE, "EXCLUSIVE_THREAD", "PROHIBITED"})

QUIT_S = 60.0
"""How long a daemon that was told to quit may take: its server waits for clients. It is killed after that."""
SILENT_S = 60.0
"""How long a daemon may leave commands without an answer before it is killed: its clients go with it."""
KILL_S = 5.0
"""Interval between two attempts to kill."""
STEADY_S = 60.0
"""A daemon that has run for so long since the last failure begins anew with the shortest back-off."""
_BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)

_SHORT = 8
"""Letters of a UUID in a directory's name: the path of a socket has at most 107 bytes."""


class Act(StrEnum):
    """Something that the supervisor does, one at a time for each GPU."""

    SET_EXCLUSIVE = "set the compute mode to EXCLUSIVE_PROCESS"
    START = "start the daemon"
    SET_LIMIT = "set the limit of its clients"
    QUIT = "tell the daemon to quit"
    KILL = "kill the daemon and its server"
    SET_BACK = "set the compute mode back"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that the daemon has started for its clients."""

    pid: int
    clients: int = 0
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation of a GPU."""

    wanted_mib: int | None
    """The limit of a client that its daemon shall have at least; None: no daemon is wanted."""
    mode: str | None
    """The compute mode; empty: the driver does not name this GPU; None: the driver did not answer."""
    alive: bool
    """There is a process of the daemon."""
    silence: str = ""
    """Why the daemon does not answer commands, as a sentence; empty: it answers, or there is none."""
    servers: tuple[Server, ...] = ()


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the supervisor remembers of a GPU between two steps. After its restart it knows only `before`."""

    status: MpsStatus = MpsStatus.STOPPED
    why: str = ""
    before: str = ""
    """The compute mode to set back; empty: we did not change it."""
    running: bool = False
    """There was a process of the daemon at the last look."""
    limit_mib: int = 0
    """The limit that the daemon was given; 0: none yet, or unknown."""
    servers: tuple[Server, ...] = ()
    failures: int = 0
    """In a row."""
    retry_s: float = 0.0
    """Nothing that may fail is tried before this time."""
    quit_s: float | None = None
    """When the daemon was told to quit."""
    silent_s: float | None = None
    """Since when it leaves commands without an answer."""

    def as_state(self, pipe_directory: str) -> MpsGpu:
        """Return what the agent is told."""
        clients = sum(server.clients for server in self.servers)
        pids = tuple(server.pid for server in self.servers)
        limit = self.limit_mib if self.status is MpsStatus.READY else 0
        return MpsGpu(self.status, self.why, pipe_directory, clients, pids, limit)


def decide(daemon: Daemon, seen: Seen, now_s: float) -> tuple[Daemon, Act | None]:
    """Return what is remembered from now on, and what to do now; afterwards comes `did` or `failed`.

    `Daemon.before` has to be on disk before the act begins.
    """
    daemon = replace(daemon, servers=seen.servers if seen.alive and not seen.silence else ())
    if seen.alive:
        daemon = replace(daemon, running=True)
        if seen.wanted_mib is None or daemon.quit_s is not None:
            return _stop(daemon, now_s)
        return _run(daemon, seen, seen.wanted_mib, now_s)
    ended = daemon.running and daemon.quit_s is None
    if daemon.quit_s is not None:
        daemon = replace(daemon, retry_s=now_s)  # what was put off was the next attempt to kill it
    daemon = replace(daemon, running=False, limit_mib=0, quit_s=None, silent_s=None)
    if seen.wanted_mib is None:
        return _set_back(daemon, seen, now_s)
    if ended:
        return _failed(daemon, "the daemon has ended by itself", now_s), None
    return _begin(daemon, seen, now_s)


def did(daemon: Daemon, act: Act, seen: Seen, now_s: float) -> Daemon:
    """Return what is remembered once `act`, decided upon `seen`, has succeeded."""
    match act:
        case Act.SET_LIMIT:
            return replace(daemon, limit_mib=seen.wanted_mib or 0)
        case Act.KILL:
            return replace(daemon, retry_s=now_s + KILL_S)
        case Act.SET_BACK:
            return replace(daemon, before="")
        case Act.START:
            return replace(daemon, running=True)
    return daemon


def failed(daemon: Daemon, act: Act, why: str, now_s: float) -> Daemon:
    """Return what is remembered once `act` has failed; `why` is a sentence without a full stop."""
    # A daemon that cannot be told to quit, or waits for its clients, is killed when its time is over.
    return daemon if act is Act.QUIT else _failed(daemon, why, now_s)


def _failed(daemon: Daemon, why: str, now_s: float) -> Daemon:
    failures = 1 if now_s >= daemon.retry_s + STEADY_S else daemon.failures + 1
    pause = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]
    return replace(daemon, status=MpsStatus.FAILED, why=why, failures=failures, retry_s=now_s + pause)


def _trouble(daemon: Daemon, why: str) -> tuple[Daemon, None]:
    """Something that passes without us: there is nothing to count and to put off."""
    return replace(daemon, status=MpsStatus.FAILED, why=why), None


# --- Towards a daemon -------------------------------------------------------------------------------------------------

_UNKNOWN = "the driver does not tell the compute mode of the GPU"
_ABSENT = "the driver does not name this GPU"


def _begin(daemon: Daemon, seen: Seen, now_s: float) -> tuple[Daemon, Act | None]:
    if seen.mode is None:
        return _trouble(daemon, _UNKNOWN)
    if not seen.mode:
        return _trouble(daemon, _ABSENT)
    if now_s < daemon.retry_s:
        return daemon, None
    daemon = replace(daemon, status=MpsStatus.STARTING, why="", before=daemon.before or _worth_keeping(seen.mode))
    return daemon, Act.START if seen.mode == EXCLUSIVE else Act.SET_EXCLUSIVE


def _worth_keeping(mode: str) -> str:
    # A GPU left in EXCLUSIVE by a supervisor that could not clean up looks as if it had been so before us.
    return DEFAULT if mode == EXCLUSIVE else mode


def _run(daemon: Daemon, seen: Seen, wanted_mib: int, now_s: float) -> tuple[Daemon, Act | None]:
    if seen.silence:
        since_s = now_s if daemon.silent_s is None else daemon.silent_s
        daemon = replace(daemon, silent_s=since_s)
        if now_s - since_s < SILENT_S:
            return _trouble(daemon, seen.silence)
        return replace(daemon, status=MpsStatus.FAILED, why=seen.silence, quit_s=now_s - QUIT_S), Act.KILL
    daemon = replace(daemon, silent_s=None)
    if seen.mode is None:
        # A driver that is slow for once does not take a daemon that works out of service.
        return (daemon, None) if daemon.status is MpsStatus.READY else _trouble(daemon, _UNKNOWN)
    if not seen.mode:
        return _trouble(daemon, _ABSENT)
    daemon = replace(daemon, before=daemon.before or _worth_keeping(seen.mode))
    if seen.mode != EXCLUSIVE:
        why = f"the compute mode is {seen.mode}, in which clients could go without a limit"
        daemon = replace(daemon, status=MpsStatus.FAILED, why=why)
        return daemon, Act.SET_EXCLUSIVE if now_s >= daemon.retry_s else None
    return _serve(daemon, seen, wanted_mib, now_s)


def _serve(daemon: Daemon, seen: Seen, wanted_mib: int, now_s: float) -> tuple[Daemon, Act | None]:
    if daemon.limit_mib != wanted_mib:
        # The clients that run go on under the old limit; a ready daemon stays ready meanwhile.
        status = MpsStatus.READY if daemon.status is MpsStatus.READY else MpsStatus.STARTING
        if now_s < daemon.retry_s:
            return daemon, None
        return replace(daemon, status=status, why=""), Act.SET_LIMIT
    if any(server.fault for server in seen.servers):
        clients = sum(server.clients for server in seen.servers)
        present = "its present client has" if clients == 1 else f"its {clients} present clients have"
        why = f"a client caused a fatal fault of the GPU, which reaches all; new ones are refused until {present} ended"
        return replace(daemon, status=MpsStatus.FAULT, why=why), None
    return replace(daemon, status=MpsStatus.READY, why=""), None


# --- Towards none -----------------------------------------------------------------------------------------------------


def _stop(daemon: Daemon, now_s: float) -> tuple[Daemon, Act | None]:
    if daemon.quit_s is None:
        return replace(daemon, status=MpsStatus.STOPPING, why="", quit_s=now_s), Act.QUIT
    if now_s < daemon.quit_s + QUIT_S or now_s < daemon.retry_s:
        return daemon, None
    return daemon, Act.KILL


def _set_back(daemon: Daemon, seen: Seen, now_s: float) -> tuple[Daemon, Act | None]:
    if seen.mode is None:
        return _trouble(daemon, f"{_UNKNOWN}, which may have to be set back")
    if seen.mode and (seen.mode == EXCLUSIVE or seen.mode != (daemon.before or seen.mode)):
        if now_s < daemon.retry_s:
            return daemon, None
        # The mode is on disk until it is set, for a supervisor that is killed in between.
        return replace(daemon, status=MpsStatus.STOPPING, before=daemon.before or DEFAULT), Act.SET_BACK
    return Daemon(), None


# --- Directories ------------------------------------------------------------------------------------------------------


def short_name(uuid: str, taken: Collection[str]) -> str:
    """Return the name of the directory of a GPU: the first letters of its UUID, more where another GPU has these."""
    rest = uuid.removeprefix("GPU-")
    lengths = range(min(_SHORT, len(rest)), len(rest) + 1)
    # No UUID has an underscore, so that the last resort is no part of another one.
    return next((rest[:n] for n in lengths if rest[:n] not in taken), f"{rest}_")
