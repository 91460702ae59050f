"""Find the pod and the container in the names of control groups.

The kubelet and the container runtime name a container's cgroup by its pod's UID and its own ID, in one of several
shapes that depend on the cgroup driver and the runtime. The names are searched for the two IDs; no path is computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./]|$)", re.ASCII)
"""A UID; systemd's names have underscores in it. A static pod has 32 digits, the hash of its file."""
_CONTAINER = re.compile(r"[/:-]([0-9a-f]{64})(?=\.scope|/|$)", re.ASCII)
"""A runtime's ID. For a kubelet with the driver systemd the cgroup is called ``<slice of the pod>:<prefix>:<ID>``; runc
makes a slice and a scope of that if its own driver is systemd, too, and otherwise one directory."""


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    """The pod and the container that a cgroup belongs to."""

    pod_uid: str
    """As the kubelet knows the pod: of a static pod the hash in its mirror pod's annotation."""
    container_id: str = ""
    """64 hexadecimal digits; empty: the cgroup is the pod's own, or of no known shape."""


def owner_of(path: str) -> CgroupOwner | None:
    """Return the owner of a cgroup by its path; None if it belongs to no pod."""
    pod = _POD.search(path)
    if pod is None:
        return None
    container = _CONTAINER.search(path, pod.end())
    return CgroupOwner(pod[1].replace("_", "-"), container[1] if container is not None else "")


def owner_of_process(text: str) -> CgroupOwner | None:
    """Return the owner of a process by the text of its ``/proc/<pid>/cgroup``; None if it belongs to no pod.

    With cgroup v1 the text has a line for each controller, any of which may name the pod.
    """
    owners = [owner for line in text.splitlines() if (owner := owner_of(line.partition("::")[2] or line)) is not None]
    return next((owner for owner in owners if owner.container_id), owners[0] if owners else None)
