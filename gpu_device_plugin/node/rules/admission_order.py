"""The order in which a kubelet admits the pods of its node, derived from lists and a watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_device_plugin.model.pods import Pod


@dataclass(frozen=True, slots=True)
class AdmissionOrder:
    """The pods bound to one node, in the order of their admission, as far as it is known.

    The kubelet admits pods in the order of their bindings, and a watch delivers their events in that order. Those that
    were bound before it started it admits by age, oldest first (HandlePodAdditions, kubelet.go). A list has
    no order: its new pods are ordered by age, then by name. A watch that continues from before the list delivers their
    events again; until it has, or has reached the version of the list, these pods are not shown.
    """

    pods: Mapping[str, Pod] = field(default_factory=dict)
    """By UID: the pods whose order is known, then the others."""
    unordered: frozenset[str] = frozenset()
    """UIDs of pods that are new in a list, and of which the watch has delivered no event yet."""
    unexplained: frozenset[str] = frozenset()
    """UIDs of pods that a list changed, added or removed, and of which the watch has delivered no event since."""

    @property
    def shown(self) -> Mapping[str, Pod]:
        """The pods whose order is known, by UID."""
        if not self.unordered:
            return self.pods
        return {uid: pod for uid, pod in self.pods.items() if uid not in self.unordered}

    def begun_with(self, listed: Iterable[Pod]) -> AdmissionOrder:
        """Return the order after the list at which a watch begins: no event will show the order of its new pods."""
        return AdmissionOrder(self._with_list(listed))

    def compared_with(self, listed: Iterable[Pod]) -> AdmissionOrder:
        """Return the order after a list beside a watch, which still delivers the events before it, up to `settled`."""
        pods = self._with_list(listed)
        changed = {uid for uid, pod in pods.items() if self.pods.get(uid) != pod} | (self.pods.keys() - pods.keys())
        new = pods.keys() - self.pods.keys()
        return AdmissionOrder(pods, (self.unordered | new) & pods.keys(), self.unexplained | changed)

    def replayed(self, uid: str, *, deleted: bool) -> AdmissionOrder:
        """Return the order after an event of a pod that a list had anticipated."""
        unexplained = self.unexplained - {uid}
        if deleted or uid not in self.unordered:
            return replace(self, unexplained=unexplained)
        # The next pod in the order of bindings: after the pods whose order is known, before the others.
        return AdmissionOrder({**self.shown, uid: self.pods[uid], **self.pods}, self.unordered - {uid}, unexplained)

    def after_start(self) -> AdmissionOrder:
        """Return the order once another kubelet process has started, which gets all pods bound so far at once."""
        return AdmissionOrder(_by_age(self.pods.values()), unexplained=self.unexplained)

    def settled(self) -> AdmissionOrder:
        """Return the order once the watch has reached the version of the list: no earlier event can follow."""
        return AdmissionOrder(self.pods)

    def put(self, pod: Pod) -> AdmissionOrder:
        """Return the order after an event of a pod that is newly bound, or has changed."""
        return self if self.pods.get(pod.uid) == pod else replace(self, pods={**self.pods, pod.uid: pod})

    def removed(self, uid: str) -> AdmissionOrder:
        """Return the order after the event of a pod's deletion."""
        left = {other: pod for other, pod in self.pods.items() if other != uid}
        return replace(self, pods=left, unordered=self.unordered - {uid})

    def _with_list(self, listed: Iterable[Pod]) -> dict[str, Pod]:
        found = _by_age(listed)
        return {uid: found[uid] for uid in self.pods if uid in found} | found


def _by_age(pods: Iterable[Pod]) -> dict[str, Pod]:
    # The kubelet's order of pods that were created in one second is random.
    return {pod.uid: pod for pod in sorted(pods, key=lambda pod: (pod.created, pod.name, pod.namespace))}
