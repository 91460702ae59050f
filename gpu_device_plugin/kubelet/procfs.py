"""Read from /proc which pod's cgroup a process is in."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner, owner_of_process

PROC = Path("/proc")
MOST = 8192
"""The most processes of which the owner is remembered: more than MPS or time-slicing can have on the GPUs of a node."""
_INITIAL = "pid:[4026531836]"
"""The PID namespace that the kernel starts with (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""
_LARGEST = 1 << 16
"""Bytes. With cgroup v1 there are some 13 lines, each with a path of at most 4096 bytes."""
_DEPTH = 64
"""The most parents that are looked at."""


class ProcessOwners:
    """The owners of processes, remembered while they run."""

    def __init__(self, proc: Path = PROC, most: int = MOST) -> None:
        """Read below `proc`; remember `most` processes, and of more those that were asked for last."""
        self._proc = str(proc)
        self._most = most
        self._known: OrderedDict[int, tuple[int, CgroupOwner | None]] = OrderedDict()
        """The start and the owner of processes by PID."""
        self._ticks = os.sysconf("SC_CLK_TCK")

    def owners(self, pids: Iterable[int], *, named_at: float | None = None) -> Mapping[int, CgroupOwner | None]:
        """Return the owner of each process, None if it runs in no pod. Processes that have ended are left out.

        Blocks for 0.1 ms for each process that is not known, and less for the others. To be called from one thread at
        a time.

        The PIDs are those in the namespace of `proc`, and were read `named_at` seconds after the boot (`boot_time`), or
        at this moment: a process that started later has got the PID of one that ended.
        """
        found: dict[int, CgroupOwner | None] = {}
        latest = None if named_at is None else int(named_at * self._ticks) + 1
        for pid in pids:
            start = _started(self._proc, pid)
            if start is None or (latest is not None and start > latest):
                continue
            known = self._known.get(pid)
            if known is None or known[0] != start:
                text = _text(f"{self._proc}/{pid}/cgroup")
                if text is None or _started(self._proc, pid) != start:
                    continue  # it ended, and another process may have got its PID meanwhile
                known = self._known[pid] = start, owner_of_process(text)
            self._known.move_to_end(pid)
            found[pid] = known[1]
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


def boot_id(proc: Path = PROC) -> str:
    """Return the ID that the kernel has drawn for this boot of the machine; empty if /proc does not tell."""
    return (_text(f"{proc}/sys/kernel/random/boot_id") or "").strip()


def running_pods(proc: Path = PROC) -> frozenset[str] | None:
    """Return the UIDs of the pods of which a process runs on this node; None if we do not see the node's processes.

    A pod has one as long as any of its containers runs: that of its sandbox. Blocks for 20 ms for each 1,000 processes.
    """
    if not in_nodes_namespace(proc):
        return None
    try:
        names = os.listdir(proc)  # noqa: PTH208 - a thousand paths cost more than their names
    except OSError:
        return None
    texts = (_text(f"{proc}/{name}/cgroup") for name in names if name.isdecimal())
    owners = (owner_of_process(text) for text in texts if text is not None)
    return frozenset(owner.pod_uid for owner in owners if owner is not None)


def boot_time() -> float:
    """Return the seconds since the machine was booted, by which the kernel tells when a process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def in_nodes_namespace(proc: Path = PROC) -> bool | None:
    """Return whether we are in the PID namespace of our node, and so see the processes of all its pods.

    The node may be a container itself, as with kind: then its namespace is not the machine's. We are in it if the
    first process (PID 1) is among our ancestors and runs in another cgroup than ours. In a PID namespace of its own a
    container is the first process itself or a child of that; where the containers of a pod share one, the runtime
    starts each of them from outside.

    Returns:
        None if /proc does not tell.
    """
    try:
        if (proc / "self/ns/pid").readlink() == Path(_INITIAL):
            return True
    except OSError:
        pass
    ours, first, fields = _text(f"{proc}/self/cgroup"), _text(f"{proc}/1/cgroup"), stat(proc, "self")
    if ours is None or first is None or fields is None:
        return None
    for _ in range(_DEPTH):
        parent = int(fields[1])
        if parent <= 1:
            return parent == 1 and first != ours
        fields = stat(proc, parent)
        if fields is None:
            break
    return None


def _started(proc: str, pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it is not there."""
    fields = stat(proc, pid)
    return None if fields is None else int(fields[19])


def stat(proc: Path | str, pid: int | str) -> list[str] | None:
    """Return the fields of a process's ``stat`` from the third on (state, parent, ...); the start is the 22nd.

    The second is the program's name in parentheses, which the program may choose, parentheses and blanks included.
    """
    text = _text(f"{proc}/{pid}/stat")
    fields = [] if text is None else text.rpartition(")")[2].split()
    return fields if len(fields) >= 20 and fields[1].isdecimal() and fields[19].isdecimal() else None


def _text(path: str) -> str | None:
    """Return the content of a file of a process; None if it cannot be read: most often the process has ended.

    The kernel gives such a file whole to one `read` that is large enough, and this is called a thousand times a round.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(opened, _LARGEST + 1)
    except OSError:  # it has ended since the file was opened
        return None
    finally:
        os.close(opened)
    return content.decode("utf-8", "replace") if len(content) <= _LARGEST else None
