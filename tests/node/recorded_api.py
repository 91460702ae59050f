"""The Kubernetes API of an agent's node, which knows some pods and remembers what it is told."""

from collections.abc import Mapping

from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.node_api import Happening, NodeApi


class RecordedApi(NodeApi):
    """With all Events, and all annotations that it was asked to write."""

    def __init__(self, *pods: Pod) -> None:
        super().__init__()
        self.happenings.listeners.append(self._told)
        self.known = {pod.uid: pod for pod in pods}
        self.events: list[tuple[str, str, str, bool]] = []
        """Reason, note, action, and whether it is a warning."""
        self.pod_events: list[tuple[str, str, str, str]] = []
        """UID of the pod, reason, note, action."""
        self.annotated: list[tuple[str, Mapping[str, str | None]]] = []
        """By the UID of the pod."""

    @property
    def pods(self) -> Mapping[str, Pod]:
        return self.known

    def _told(self, happening: Happening) -> None:
        pod, reason = happening.pod, happening.reason
        if pod is None:
            self.events.append((reason, happening.note, happening.action, happening.warning))
        else:
            assert happening.warning or reason == "GPUIdle"
            self.pod_events.append((pod.uid, reason, happening.note, happening.action))

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        self.annotated.append((pod.uid, annotations))
