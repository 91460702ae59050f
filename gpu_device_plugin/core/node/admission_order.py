"""In which order the kubelet admits the pods of its node, as lists and a watch tell it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.model.pods import Pod


@dataclass(frozen=True, slots=True)
class AdmissionOrder:
    """The pods bound to one node, in the order of their admission, as far as it is known.

    The kubelet admits pods in the order of their bindings, and a watch tells of them in that order. A list does not:
    pods that are new in one are ordered by age, then by name. Where a watch goes on from before the list, it tells of
    them once more; until it has, or has come as far as the list, they are not shown.
    """

    pods: Mapping[str, Pod] = field(default_factory=dict)
    """By UID; those whose place is known, then the others."""
    unordered: frozenset[str] = frozenset()
    """Pods new in a list, of which the watch has not told yet."""
    unexplained: frozenset[str] = frozenset()
    """Pods in which a list differed from what the watch had told, and of which it has told nothing since."""

    @property
    def shown(self) -> Mapping[str, Pod]:
        """The pods whose place is known, by UID."""
        if not self.unordered:
            return self.pods
        return {uid: pod for uid, pod in self.pods.items() if uid not in self.unordered}

    def begun_with(self, listed: Iterable[Pod]) -> AdmissionOrder:
        """Return the order after a list with which a watch begins: nothing else will tell the order of its new pods."""
        return AdmissionOrder(self._with_list(listed))

    def compared_with(self, listed: Iterable[Pod]) -> AdmissionOrder:
        """Return the order after a list beside a watch that goes on, and tells what led to it. `settled` ends that."""
        pods = self._with_list(listed)
        changed = {uid for uid, pod in pods.items() if self.pods.get(uid) != pod} | (self.pods.keys() - pods.keys())
        new = pods.keys() - self.pods.keys()
        return AdmissionOrder(pods, (self.unordered | new) & pods.keys(), self.unexplained | changed)

    def replayed(self, uid: str, *, deleted: bool) -> AdmissionOrder:
        """Return the order after the watch told of a pod what a list had shown already."""
        unexplained = self.unexplained - {uid}
        if deleted or uid not in self.unordered:
            return replace(self, unexplained=unexplained)
        # The next in the order of binding: behind those whose place is known, before those whose is not.
        return AdmissionOrder({**self.shown, uid: self.pods[uid], **self.pods}, self.unordered - {uid}, unexplained)

    def settled(self) -> AdmissionOrder:
        """Return the order once the watch has come as far as the list: what it has not told it never will."""
        return AdmissionOrder(self.pods)

    def put(self, pod: Pod) -> AdmissionOrder:
        """Return the order after the watch told of a pod that is bound now, or has changed."""
        return self if self.pods.get(pod.uid) == pod else replace(self, pods={**self.pods, pod.uid: pod})

    def removed(self, uid: str) -> AdmissionOrder:
        """Return the order after the watch told of a deletion."""
        left = {other: pod for other, pod in self.pods.items() if other != uid}
        return replace(self, pods=left, unordered=self.unordered - {uid})

    def _with_list(self, listed: Iterable[Pod]) -> dict[str, Pod]:
        found = {pod.uid: pod for pod in sorted(listed, key=lambda pod: (pod.created, pod.name, pod.namespace))}
        return {uid: found[uid] for uid in self.pods if uid in found} | found
