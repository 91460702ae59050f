"""Find the pods that have ended although the kubelet's records still show their devices.

Kubelets from 1.23 to 1.31 count the pod that they admitted last as active until they admit another pod, with or without
devices, even if the first one has ended (``pendingAdmissionPod`` in devicemanager/manager.go; removed in 1.32; read in
the sources of 1.25 to 1.36, observed on 1.31.14). Until then its entry stays in the checkpoint, however often the
kubelet writes that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.model.pods import Pod

_KEEPING = range(23, 32)
"""Minor versions of Kubernetes 1 whose kubelets keep the pod that they admitted last."""
_VERSION = re.compile(r"v?1\.(\d{1,4})(?!\d)")
_OF_THE_API = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A UID from an API server. A static pod has a hash of its manifest instead, 32 digits without dashes."""


@dataclass(frozen=True, slots=True)
class PodsInApi:
    """A node's pods as the Kubernetes API shows them, by the UIDs in the kubelet's records."""

    names: Mapping[str, str] = field(default_factory=dict)
    """``namespace/name`` of every pod."""
    ended: frozenset[str] = frozenset()
    """The pods whose containers have all ended for good. Empty unless the kubelet is known to keep such a pod."""
    static: frozenset[str] = frozenset()
    """The static pods, whose manifests are files of the node."""


def pods_in_api(pods: Iterable[Pod], kubelet_version: str) -> PodsInApi | None:
    """Return all `pods` of a node as the API shows them; None if its kubelet frees the devices of every ended pod.

    `kubelet_version` is the one in the node's status (``v1.31.14+k3s1``); empty if unknown.
    """
    minor = _VERSION.match(kubelet_version)
    if minor is not None and int(minor[1]) not in _KEEPING:
        return None
    by_uid = {pod.kubelet_uid: pod for pod in pods}
    return PodsInApi(
        names={uid: str(pod) for uid, pod in by_uid.items()},
        ended=frozenset(uid for uid, pod in by_uid.items() if minor is not None and pod.ended and not pod.running),
        static=frozenset(uid for uid, pod in by_uid.items() if pod.static_uid),
    )


@dataclass(frozen=True, slots=True)
class EndedPods:
    """The pods that are over, by the records of one kubelet process. Each reading of its records makes a new value.

    A pod is over when

    * a List of this process named it while the checkpoint had devices for it, and a later List does not. The kubelet
      has then dropped it: kubelets since 1.32 free its devices for the same reason;
    * or the API shows that all its containers have ended, and the kubelet is known to keep such a pod.

    The earlier List of the same process distinguishes a kubelet that has dropped the pod from one that has just started
    and does not know its pods yet. A static pod is never over: if its file comes back it has its old UID, and the
    kubelet reuses its entry without calling us.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    """``namespace/name`` by UID of the pods that a List named and for which the checkpoint has devices."""
    over: frozenset[str] = frozenset()
    """UIDs of pods that are over and for which the checkpoint still has devices."""

    def after(
        self, recorded: Mapping[str, frozenset[str]], listed: Mapping[str, frozenset[str]], api: PodsInApi
    ) -> EndedPods:
        """Return the value after one more reading of the records.

        Args:
            recorded: device IDs by pod UID, in a checkpoint that was read before the List began. A pod in it was
                admitted before, so that the List names it unless the kubelet has dropped it.
            listed: device IDs by namespace/name, of every pod in a successful List, those without devices included.
            api: the node's pods in the API; empty without access to the API.
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
        """Return the device IDs that the records show only for pods that are over; arguments as for `after`.

        Up to 1.33 List names ended pods as long as the API has them, with the devices that the device manager keeps.
        """
        kept = frozenset[str]().union(*(ids for uid, ids in recorded.items() if uid not in self.over))
        stale = set[str]()
        for uid in self.over & recorded.keys():
            own = api.names.get(uid) if uid in api.ended else None
            stale |= recorded[uid] - kept - frozenset[str]().union(*(ids for n, ids in listed.items() if n != own))
        return frozenset(stale)


def _named(recorded: Mapping[str, frozenset[str]], listed: Mapping[str, frozenset[str]]) -> Mapping[str, str]:
    """Return the listed names of pods by UID, as far as their devices identify them without ambiguity."""
    owners, names = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for uid, ids in recorded.items():
        for device in ids:
            owners[device].add(uid)
    for name, ids in listed.items():
        for device in ids:
            if len(owners[device]) == 1:
                names[next(iter(owners[device]))].add(name)
    return {uid: next(iter(found)) for uid, found in names.items() if len(found) == 1}
