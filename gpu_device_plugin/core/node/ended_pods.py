"""Which pods have ended for the kubelet although its records still show their devices.

Kubelets from 1.23 to 1.31 count the pod that they admitted last among the active ones until they admit another, of any
kind and whatever has become of it (``pendingAdmissionPod`` in devicemanager/manager.go; gone in 1.32; read in the
sources of 1.25 to 1.36, seen on 1.31.14). Its entry stays in the checkpoint all that time, however often that is
written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import STATIC_POD
from gpu_device_plugin.core.node.assigned import kubelet_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.model.pods import Pod

_KEEPING = range(23, 32)
"""Minor versions of Kubernetes 1 whose kubelets keep the pod that they admitted last."""
_VERSION = re.compile(r"v?1\.(\d{1,4})(?!\d)")
_OF_THE_API = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A UID that an API server made. A static pod has a hash of its manifest instead, 32 digits without dashes."""


@dataclass(frozen=True, slots=True)
class PodsInApi:
    """What the Kubernetes API shows of a node's pods, by the UID that the kubelet knows them by."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Namespace and name, with a slash between them."""
    ended: frozenset[str] = frozenset()
    """All containers have ended for good. Empty unless the kubelet is known to keep such a pod."""
    static: frozenset[str] = frozenset()
    """They come from a file of the node."""


def pods_in_api(pods: Iterable[Pod], kubelet_version: str) -> PodsInApi | None:
    """Return what the API shows of all `pods` of a node; None where its kubelet frees the devices of all that ended.

    `kubelet_version` stands in the node's status (``v1.31.14+k3s1``); empty: not known.
    """
    minor = _VERSION.match(kubelet_version)
    if minor is not None and int(minor[1]) not in _KEEPING:
        return None
    by_uid = {kubelet_uid(pod): pod for pod in pods}
    return PodsInApi(
        names={uid: f"{pod.namespace}/{pod.name}" for uid, pod in by_uid.items()},
        ended=frozenset(uid for uid, pod in by_uid.items() if minor is not None and pod.ended and not pod.running),
        static=frozenset(uid for uid, pod in by_uid.items() if STATIC_POD in pod.annotations),
    )


@dataclass(frozen=True, slots=True)
class EndedPods:
    """What one kubelet process has shown of its pods' ends. A look at its records is a new value.

    A pod is over when

    * a List of this process named it while the checkpoint had devices for it, and a later one does not. The kubelet
      has dropped it then: kubelets since 1.32 free its devices for that very reason;
    * or the API shows that all its containers have ended, and the kubelet is known to keep such a pod.

    That this process has named the pod is what tells a kubelet that has dropped it from one that was started just now,
    and does not know its pods yet. A static pod is never over: put back it has its old UID, and the kubelet then goes
    on with its entry without asking us.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    """Pods of which the checkpoint has devices and that were named in a List, by UID."""
    over: frozenset[str] = frozenset()
    """UIDs of pods that are over and of which the checkpoint still has devices."""

    def after(
        self, recorded: Mapping[str, frozenset[str]], listed: Mapping[str, frozenset[str]], api: PodsInApi
    ) -> EndedPods:
        """Return what is known after one more look.

        Args:
            recorded: device IDs by pod UID, in a checkpoint that was read before the List began. A pod in it was
                admitted before, so that the List names it unless the kubelet has dropped it.
            listed: device IDs by namespace/name, of every pod in a successful List, those without devices included.
            api: what the API shows; nothing without one.
        """
        names = {uid: name for uid, name in self.names.items() if uid in recorded}
        names |= _named(recorded, listed)
        names |= {uid: api.names[uid] for uid in recorded.keys() & api.names.keys() if api.names[uid] in listed}
        dropped = {uid for uid, name in names.items() if name not in listed}
        new = {uid for uid in dropped | (recorded.keys() & api.ended) if _OF_THE_API.fullmatch(uid)} - api.static
        return EndedPods(names, frozenset(new | (self.over & recorded.keys())))

    def stale(
        self, recorded: Mapping[str, frozenset[str]], listed: Mapping[str, frozenset[str]], api: PodsInApi
    ) -> frozenset[str]:
        """Return the device IDs that the records show for pods only that are over; see `after`.

        Until 1.33 List names pods that have ended as long as the API has them, with what the device manager keeps.
        """
        kept = frozenset[str]().union(*(ids for uid, ids in recorded.items() if uid not in self.over))
        stale = set[str]()
        for uid in self.over & recorded.keys():
            own = api.names.get(uid) if uid in api.ended else None
            stale |= recorded[uid] - kept - frozenset[str]().union(*(ids for n, ids in listed.items() if n != own))
        return frozenset(stale)


def _named(recorded: Mapping[str, frozenset[str]], listed: Mapping[str, frozenset[str]]) -> Mapping[str, str]:
    """Return which pods are listed by which name, as far as their devices tell without a doubt."""
    owners, names = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for uid, ids in recorded.items():
        for device in ids:
            owners[device].add(uid)
    for name, ids in listed.items():
        for device in ids:
            if len(owners[device]) == 1:
                names[next(iter(owners[device]))].add(name)
    return {uid: next(iter(found)) for uid, found in names.items() if len(found) == 1}
