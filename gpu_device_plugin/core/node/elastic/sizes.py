"""Derive from the wishes of a pod's owner how much of its GPU a container is guaranteed and may use, in shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpu_device_plugin.core.contract.elastic import readable_wish
from gpu_device_plugin.core.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT
from gpu_device_plugin.core.model.holds import HoldSource
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import parse_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.contract.elastic import Wish
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.shares import SharedGpu, Shares


@dataclass(frozen=True, slots=True)
class Size:
    """The memory of a container on its GPU, in shares."""

    guaranteed: int
    limit: int
    """The most that it may use, while what is beyond the guarantee is free. Below the guarantee if the owner wants
    that: the kubelet does not take device IDs back from a running container."""

    @property
    def borrows(self) -> bool:
        """Whether it may use more than it is guaranteed."""
        return self.limit > self.guaranteed


class Sizes(NamedTuple):
    """The wishes of the owner of a pod, parsed once for all of its containers. A malformed one counts as none."""

    limit: Wish
    guarantee: Wish

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Sizes:
        """Parse the annotations of a pod."""
        return cls(readable_wish(annotations, MEMORY_LIMIT), readable_wish(annotations, MEMORY_GUARANTEE))


def size_of(container: str, sizes: Sizes, guaranteed: int, gpu_shares: int, *, may_borrow: bool) -> Size:
    """Return the size of a container with shares of one GPU.

    Args:
        container: its name.
        sizes: what the owner of its pod wishes.
        guaranteed: the shares that are held for it: its request, or more after a resize.
        gpu_shares: all shares of its GPU.
        may_borrow: whether the node lets containers use more than they are guaranteed.
    """
    wanted = sizes.limit.of(container)
    if wanted is None:
        # Less than the request can only be taken from the limit.
        wanted = min(guaranteed, sizes.guarantee.of(container) or guaranteed)
    return Size(guaranteed, min(wanted, gpu_shares if may_borrow else guaranteed))


def is_elastic(annotations: Mapping[str, str]) -> bool:
    """Return whether the owner of a pod wants its memory to differ from its requests."""
    return MEMORY_LIMIT in annotations or MEMORY_GUARANTEE in annotations


def elastic_gpu(hold: DeviceHold, pod: Pod, shares: Shares) -> SharedGpu | None:
    """Return the GPU of which a container may get more while it runs; None: its devices allow none.

    It has shares of one GPU through the device plugin, and is no ordinary init container: containers after such a one
    reuse its devices. A MIG instance is never larger than it is.
    """
    uuids = {parse_id(name)[0] for name in hold.device_ids}
    if hold.kind is not Kind.MEMORY or hold.source is HoldSource.CLAIM or len(uuids) != 1:
        return None
    shared = shares.by_uuid(uuids.pop())
    if shared is None or shared.gpu.instance is not None:
        return None
    stays = any(each.name == hold.container and not each.hands_on for each in pod.containers)
    return shared if stays else None
