"""Have kube-scheduler try a node that was not in its sample, by nominating it for the pod. See docs/decisions/0030."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.cluster.client.errors import ApiError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.model.pods import Pod

_log = logging.getLogger(__name__)

SMALLEST_SAMPLE = 100
"""kube-scheduler names fewer nodes only if no others passed its plugins (minFeasibleNodesToFind, 1.27 to 1.36)."""
_MOST_NOMINATIONS = 6
"""For one pod in `_PERIOD_S`: kube-scheduler's plugins may refuse a node for reasons that are not known here."""
_PERIOD_S = 300.0
"""kube-scheduler retries an unschedulable pod after this time at the latest."""


@dataclass(slots=True)
class _Nominated:
    """The nodes nominated for one pod."""

    until: float
    """When the pod may be given others, monotonic seconds."""
    nodes: list[str] = field(default_factory=list)
    """The latest at the end."""


@dataclass(eq=False)
class Nominator:
    """Writes the nominated node of pods (``status.nominatedNodeName``), which kube-scheduler tries before all others.

    kube-scheduler retries the pod also if that fails: then it takes its next sample.
    """

    _client: Client
    _pending: Callable[[], Collection[str]]
    """Returns the UIDs of the unbound pods."""
    _: KW_ONLY
    delay_s: float
    """How long a nomination waits for what kube-scheduler writes of the pod's failure, which would remove it."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""

    def __post_init__(self) -> None:
        self._nominated: dict[str, _Nominated] = {}
        """By pod UID."""
        self._queue: asyncio.Queue[tuple[float, Pod, str]] = asyncio.Queue()
        """When to write, for which pod, and the node."""

    def __repr__(self) -> str:
        return f"<Nominator: {len(self._nominated)} pods, {self._queue.qsize()} to be written>"

    def nominate(self, pod: Pod, nodes: Sequence[str]) -> str | None:
        """Nominate one of `nodes`, the best first, for a pod, and return it; None: the pod was given enough of them.

        Preferred are nodes that were not nominated for this pod before, then those of the fewest other pods.
        """
        now, pending = self.clock(), self._pending()
        self._nominated = {
            uid: nominated for uid, nominated in self._nominated.items() if uid in pending and now < nominated.until
        }
        before = self._nominated.setdefault(pod.uid, _Nominated(now + _PERIOD_S)).nodes
        if not nodes or len(before) == _MOST_NOMINATIONS:
            return None
        others = Counter(each.nodes[-1] for uid, each in self._nominated.items() if uid != pod.uid and each.nodes)
        node = min(nodes, key=lambda name: (before.count(name), others[name]))
        before.append(node)
        self._queue.put_nowait((now + self.delay_s, pod, node))
        return node

    async def run(self) -> NoReturn:
        """Write the nominations. Ends only by cancellation; one that cannot be written is logged."""
        while True:
            due, pod, node = await self._queue.get()
            await asyncio.sleep(due - self.clock())
            if pod.uid not in self._pending():
                continue
            body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
            try:
                await self._client.patch(PODS, pod.name, body, namespace=pod.namespace, subresource="status")
            except NotFoundError:
                continue
            except ApiError as error:
                where = {"pod": f"{pod.namespace}/{pod.name}", "node": node}
                _log.warning(
                    "a node could not be nominated for a pod; kube-scheduler looks for one by itself",
                    extra=where | {"why": str(error), "once_per_s": 60},
                )
