"""What happens on a node, and the Kubernetes API as the parts of an agent use it, if the agent has access to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from logging import WARNING
from typing import TYPE_CHECKING

from gpu_device_plugin.aio import low_memory_imports
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.rules.ended_pods import PodsInApi
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.client.config import ClusterConfig
    from gpu_device_plugin.model.nodes import NodeRecord
    from gpu_device_plugin.node.node_publisher import NodePublisher
    from gpu_device_plugin.node.waiting_pods import WaitingPods
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened on the node, or that its agent did."""

    reason: str
    """Of the Event, in CamelCase; `deploy/policies.yaml` lists those about pods. Empty: no Event is posted."""
    note: str
    """What happened, in a sentence."""
    action: str = ""
    """What the agent did, in the field `action` of the Event."""
    pod: Pod | None = None
    """The pod of our node that it is about; None: the node itself."""
    warning: bool = True
    summary: str = ""
    """The sentence by which a record of this incident is listed; empty: it is no incident."""
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs concerned by the incident."""


class Happenings:
    """Calls its listeners at once and on the event loop, in their order."""

    def __init__(self) -> None:
        self.recorders: list[Callable[[Happening], str]] = []
        """They come before all listeners, and return the end of the sentence, such as a record's name."""
        self.listeners: list[Callable[[Happening], None]] = []

    def tell(self, happening: Happening) -> None:
        """Tell all listeners."""
        for record in self.recorders:
            happening = replace(happening, note=happening.note + record(happening))
        for listen in self.listeners:
            listen(happening)


class NodeApi:
    """That of an agent without the API, which knows no pod and posts no Event; see `NodeCluster`."""

    def __init__(self) -> None:
        self.node: Observable[NodeRecord | None] = Observable(None)
        """Our node as last read, with all labels and its allocatable resources; None: not yet."""
        self.happenings = Happenings()
        self.pod_changes: Observable[Mapping[str, Pod]] = Observable({})
        """The pods bound to our node, by UID, set with every change of one."""
        self.published: NodePublisher | None = None
        """What stands on our node; None: nothing of us does."""
        self.waiting: WaitingPods | None = None
        """The pods that wait for devices; None: no API shows them."""

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods bound to our node, by UID."""
        return self.pod_changes.value

    @property
    def current(self) -> bool:
        """Whether `pods` are all pods bound to our node now, as far as we know."""
        return False

    def living(self) -> Mapping[str, str] | None:
        """Return namespace/name of our node's pods that have not ended, by the kubelet's UIDs; None: not known."""
        return None

    def event(
        self,
        reason: str,
        note: str,
        action: str,
        *,
        pod: Pod | None = None,
        warning: bool = True,
        summary: str = "",
        gpus: tuple[str, ...] = (),
    ) -> None:
        """Tell what happened on our node, see `Happening`."""
        self.happenings.tell(Happening(reason, note, action, pod, warning, summary, gpus))

    def announce(self, log: logging.Logger, reason: str, sentence: str, action: str, level: int = WARNING) -> None:
        """Log a sentence without a full stop, and tell it as something that happened on our node."""
        log.log(level, "%s", sentence)
        self.event(reason, f"{sentence[0].upper()}{sentence[1:]}.", action, warning=level > logging.INFO)

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Write annotations on a pod in the background; None removes one."""

    def pods_in_api(self) -> PodsInApi | None:
        """Return the pods of our node in the API, see `node.rules.ended_pods.pods_in_api`."""
        return PodsInApi()

    async def namespace_labels(self, _namespace: str) -> Mapping[str, str] | str | None:
        """Return the labels of a namespace, or a sentence on why they cannot be read; None: they may be known later."""
        return None


def reach_api(settings: NodeSettings) -> ClusterConfig | None:
    """Return how an agent with these settings reaches the API server, None if it runs without the API.

    Raises:
        UsageError: the setting `api` cannot be used.
    """
    if not settings.reaches_api(os.environ):
        return None
    low_memory_imports.import_aiohttp()
    # 12 MB that an agent without API access does not pay.
    from gpu_device_plugin.kubernetes.client.config import ClusterConfigError, config_if_any  # noqa: PLC0415

    try:
        config = config_if_any(settings.api, os.environ)
    except ClusterConfigError as error:
        raise UsageError(f"--api {settings.api}: {error}") from error
    if config is not None and not settings.node_name:
        _log.warning("runs without the Kubernetes API: set NODE_NAME (from the field spec.nodeName)")
        return None
    return config
