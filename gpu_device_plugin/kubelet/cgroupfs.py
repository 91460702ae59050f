"""Find the cgroup of a container in the kubelet's tree of cgroups, by its name, and read what it counts.

The kubelet's cgroup driver, its cgroup root and the container runtime decide on the shape of the tree. So the tree is
searched, downwards from the mount of the cgroup file system, and no path is computed. A pod sees the tree of its node
only if the node's ``/sys/fs/cgroup`` is mounted into it: a cgroup namespace begins at the pod's own cgroup, and
``/proc/1/root``, with ``hostPID: true``, needs the capability SYS_PTRACE.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_device_plugin import files
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner, owner_of

ROOT = Path("/sys/fs/cgroup")

_TREE = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")
_DEEPEST_TREE = 4
"""Levels below the mount: ``kubepods`` is on the first; below a kubelet's own ``cgroupRoot`` on the second; with kind
and with cgroup v1 one further down."""
_MOST_ABOVE = 1_000
"""Directories in which trees are looked for. Without one in the first level, a node with systemd has some hundred."""
_DEEPEST_OUTSIDE = 5
"""Levels below the mount: runc's cgroups are below the unit of containerd, which may run in a container itself."""
_QOS_LEVELS = 1
"""Levels between a tree and its pods: ``burstable`` and ``besteffort``, under any name; guaranteed pods have none."""
_LONGEST = 1 << 14
"""Bytes of a file with counters."""
_COUNTED = ("nr_periods", "nr_throttled", "oom_kill")


class CgroupTree:
    """The cgroups of the node's containers; a found one is kept as long as it exists and is asked for."""

    def __init__(self, root: Path = ROOT) -> None:
        """Search below `root`, where a cgroup file system is mounted."""
        self._root = root
        self.mount = str(root)
        self._found: Mapping[CgroupOwner, str] = {}

    def leaves(self, wanted: Collection[CgroupOwner]) -> Mapping[CgroupOwner, str] | None:
        """Return the cgroup directory of each of these containers that runs; None: no cgroup of the kubelet is visible.

        Opens a directory for each level of the tree and for each of their pods, and no other pod's; never fails.
        """
        found = {owner: path for owner, path in self._found.items() if owner in wanted and os.path.isdir(path)}  # noqa: PTH112 - a string, not to be parsed
        missing = {owner for owner in wanted if owner not in found}
        trees = self._trees() if missing else []
        visible = not missing or bool(trees) or bool(found)
        elsewhere: set[CgroupOwner] = set()
        for tree in trees:
            inside, outside = _containers(tree, missing)
            found |= inside
            elsewhere |= outside
        if elsewhere := elsewhere - found.keys():
            found |= self._outside(elsewhere)
        self._found = found
        return found if visible else None

    def pods(self, uids: Collection[str]) -> Mapping[str, str]:
        """Return the cgroup directory of each of these pods that has one in a tree of the kubelet, by UID."""
        found: dict[str, str] = {}
        for tree in self._trees() if uids else ():
            for pod in _pods(tree, uids):
                if (owner := owner_of(pod.name)) is not None:
                    found.setdefault(owner.pod_uid, pod.path)
        return found

    def counters(self, leaf: str) -> Mapping[str, int]:
        """Read what the cgroup in this directory of the tree counts since it was made; what is not told is left out.

        By the kernel's names: the scheduling periods of the CPU limit in which it wanted to run (``nr_periods``, 0
        without a limit) and was held back (``nr_throttled``), of cpu.stat; the processes that the kernel killed for
        lack of memory (``oom_kill``), of memory.events or, of cgroup v1, memory.oom_control.
        """
        cpu = _counts(f"{leaf}/cpu.stat") or _counts(self._of_controller(leaf, "cpu", "cpu.stat"))
        memory = _counts(f"{leaf}/memory.events") or _counts(self._of_controller(leaf, "memory", "memory.oom_control"))
        return {name: value for name, value in {**cpu, **memory}.items() if name in _COUNTED}

    def _of_controller(self, leaf: str, controller: str, name: str) -> str:
        """Return the path of a file in cgroup v1, which has a tree for each controller, in directories of the mount."""
        _, *below = Path(leaf).relative_to(self._root).parts
        return str(self._root.joinpath(controller, *below, name))

    def _outside(self, wanted: Collection[CgroupOwner]) -> dict[CgroupOwner, str]:
        """Return the cgroups of these containers that are in no tree of the kubelet.

        For a kubelet with the driver systemd and a runtime with cgroupfs the slice of a pod is a name, not a place.
        """
        uids = {owner.pod_uid for owner in wanted}
        found: dict[CgroupOwner, str] = {}
        for below in _levels(str(self._root), _DEEPEST_OUTSIDE, _MOST_ABOVE):
            for each in below:
                owner = owner_of(each.name)
                if owner is None or owner.pod_uid not in uids:
                    continue
                if owner in wanted:
                    found.setdefault(owner, _leaf(each))
                elif not owner.container_id:
                    found |= _of_pod(each.name, _directories(each.path), wanted)
            if found.keys() >= set(wanted):
                break
        return found

    def _trees(self) -> list[str]:
        """Return the directories named like the kubelet's tree, all of the first level that has some."""
        levels = _levels(str(self._root), _DEEPEST_TREE, _MOST_ABOVE)
        found = ([each.path for each in below if _TREE.fullmatch(each.name)] for below in levels)
        return next(filter(None, found), [])


def _counts(path: str) -> Mapping[str, int]:
    """Return the counters in a file of lines with a name and a number; none if it cannot be read."""
    try:
        content, _ = files.read(Path(path), _LONGEST)
    except OSError:
        return {}
    pairs = (line.split(" ") for line in content.decode(errors="replace").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit()}


def _containers(tree: str, wanted: Collection[CgroupOwner]) -> tuple[dict[CgroupOwner, str], set[CgroupOwner]]:
    """Return the cgroups of these containers in a tree, and those of whose pods the runtime has put nothing there."""
    uids = {owner.pod_uid for owner in wanted}
    found: dict[CgroupOwner, str] = {}
    empty: set[str] = set()
    for pod in _pods(tree, uids):
        below = _directories(pod.path)
        found |= _of_pod(pod.name, below, wanted)
        if not below and (owner := owner_of(pod.name)) is not None:  # a pod that runs has the cgroup of its sandbox
            empty.add(owner.pod_uid)
    return found, {owner for owner in wanted if owner.pod_uid in empty}


def _of_pod(name: str, below: Iterable[os.DirEntry[str]], wanted: Collection[CgroupOwner]) -> dict[CgroupOwner, str]:
    """Return the cgroups of these containers among those in the cgroup of a pod."""
    found: dict[CgroupOwner, str] = {}
    for each in below:
        owner = owner_of(f"{name}/{each.name}")
        # CRI-O may run its monitor of a container in the pod's cgroup, too.
        if owner is not None and owner in wanted and "conmon" not in each.name:
            found.setdefault(owner, _leaf(each))
    return found


def _pods(tree: str, uids: Collection[str]) -> Iterator[os.DirEntry[str]]:
    """Yield the directories of these pods."""
    for below in _levels(tree, 1 + _QOS_LEVELS, sys.maxsize, trees=True):
        for each in below:
            owner = owner_of(each.name)
            if owner is not None and owner.pod_uid in uids:
                yield each


def _levels(top: str, deepest: int, most: int, *, trees: bool = False) -> Iterator[Sequence[os.DirEntry[str]]]:
    """Yield the directories of each level below one, after looking into `most` at most; none below pods, and `trees`.

    A kubelet with `--cgroup-root=/kubepods` has a tree within a tree.
    """
    level = [top]
    for _ in range(deepest):
        below = [each for directory in level[:most] for each in _directories(directory)]
        yield below
        most -= len(level)
        if most <= 0:
            return
        level = [e.path for e in below if owner_of(e.name) is None and (trees or not _TREE.fullmatch(e.name))]


def _leaf(container: os.DirEntry[str]) -> str:
    """Return where the processes are: with crun as the runtime of CRI-O a level further down."""
    inner = f"{container.path}/container"
    return inner if container.name.startswith("crio-") and os.path.isdir(inner) else container.path  # noqa: PTH112


def _directories(path: str) -> list[os.DirEntry[str]]:
    """Return the directories in a directory; none if it cannot be read, or was just removed."""
    try:
        with os.scandir(path) as entries:
            return [each for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
