"""Decide whether the devices of a container that the kubelet is about to start are still its own.

The kubelet calls PreStartContainer, and reads the variables of the container's devices only after the answer
(devicemanager/manager.go, GetDeviceRunContainerOptions, 1.36). It also starts the container of a pod that was deleted
by force meanwhile, without any variable if it has freed the devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.node.ledger import Ledger

FREED = "the pod of this container was deleted, and the kubelet may have freed its devices"
DELETING = "the pod of this container is being deleted"


@dataclass(frozen=True, slots=True)
class Start:
    """One call of PreStartContainer."""

    device_ids: frozenset[str]
    since: float
    """When it came, in monotonic seconds."""
    named: bool
    """Whether the kubelet's checkpoint has named the container."""
    living: frozenset[str] = frozenset()
    """The UID of its pod, if the API showed it then and it is not static: the mirror of such a pod may vanish."""


def why_not_its_own(
    start: Start,
    *,
    ledger: Ledger,
    owners: Sequence[DeviceHold],
    pods: Mapping[str, Pod] | None,
    listed: Collection[str] | None = None,
) -> str:
    """Return why a container must not start with these devices, as a sentence without a full stop; empty: it may.

    Args:
        start: the call.
        ledger: that of now.
        owners: the containers with exactly these devices in the kubelet's checkpoint: an init container and one after
            it may have the same.
        pods: those of the node in the API, by the UID by which the kubelet knows them; None: not known for now.
        listed: the devices that PodResources lists now; None: it was not asked, or does not answer.
    """
    uids = {owner.pod_uid for owner in owners}
    pod = next((pods[uid] for uid in uids if uid in pods), None) if pods is not None else None
    if pod is not None and pod.deleting and not pod.static_uid:  # the kubelet makes a mirror pod again
        return DELETING
    # Our watch may be ahead of the kubelet's.
    gone = pods is not None and not start.living.issubset(pods)
    if gone or _left(start, ledger):
        return FREED
    if listed is not None and start.device_ids.issubset(listed):
        return ""
    if not owners:
        # A pod may be deleted so soon that the checkpoint has never shown it when we read it.
        return FREED if ledger.certain and (start.named or listed is not None) else ""
    if pod is not None:
        init = {container.name for container in pod.containers if container.hands_on}
        # Ordinary init containers are never listed.
        return "" if listed is None or init.issuperset(owner.container for owner in owners) else FREED
    # The mirror pod of a static pod may be missing. The UID of such a pod is a hash, without dashes.
    return FREED if pods is not None and any("-" in uid for uid in uids) else ""


def _left(start: Start, ledger: Ledger) -> bool:
    """Return whether the devices have left the ledger, or were given to another container since the call."""
    holds = [ledger.holds.get(name) for name in start.device_ids]
    return ledger.certain and any(
        hold is None or hold.freed_at is not None or (hold.granted_at or -math.inf) > start.since for hold in holds
    )
