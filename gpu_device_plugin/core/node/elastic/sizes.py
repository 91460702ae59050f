"""Derive from the wishes of a pod's owner how much of its GPU a container is guaranteed and may use, in shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.elastic import readable_wish
from gpu_device_plugin.core.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def size_of(
    container: str, annotations: Mapping[str, str], guaranteed: int, gpu_shares: int, *, may_borrow: bool
) -> Size:
    """Return the size of a container with shares of one GPU.

    Args:
        container: its name.
        annotations: those of its pod. A malformed wish counts as none.
        guaranteed: the shares that are held for it: its request, or more after a resize.
        gpu_shares: all shares of its GPU.
        may_borrow: whether the node lets containers use more than they are guaranteed.
    """
    wanted = readable_wish(annotations, MEMORY_LIMIT).of(container)
    if wanted is None:
        # Less than the request can only be taken from the limit.
        wanted = min(guaranteed, readable_wish(annotations, MEMORY_GUARANTEE).of(container) or guaranteed)
    return Size(guaranteed, min(wanted, gpu_shares if may_borrow else guaranteed))


def is_elastic(annotations: Mapping[str, str]) -> bool:
    """Return whether the owner of a pod wants its memory to differ from its requests."""
    return MEMORY_LIMIT in annotations or MEMORY_GUARANTEE in annotations
