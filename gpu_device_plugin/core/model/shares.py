"""GPUs cut into the device IDs that we advertise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.gpus import Links
from gpu_device_plugin.core.model.memory import MAX_DEVICE_IDS, format_mib, shares_of, smallest_share_mib
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.model.gpus import Gpu, Inventory, Link

# dcgm-exporter splits a device ID at the same separator to find the GPU.
_SEPARATOR = "::"


class TooManySharesError(ValueError):
    """The share size cuts this node's GPUs into more device IDs than a kubelet can manage."""


def _names(gpu: Gpu) -> frozenset[str]:
    """Return the names by which an administrator may exclude a GPU."""
    return frozenset({gpu.uuid, str(gpu.index)})


def unknown_exclusions(excluded: Iterable[str], inventory: Inventory) -> str:
    """Return a sentence on the excluded GPUs that the node does not have; empty if it has all of them, or no GPU."""
    known = frozenset[str]().union(*map(_names, inventory.gpus))
    unknown = [name for name in excluded if name not in known] if known else []
    if not unknown:
        return ""
    return f"--exclude-gpus names {', '.join(unknown)}, but this node has no such GPU; see nvidia-smi -L, and use UUIDs"


def share_id(uuid: str, number: int) -> str:
    """Return the device ID of one share of gpu-mem. A whole GPU's device ID is its UUID."""
    return f"{uuid}{_SEPARATOR}{number}"


def parse_id(device_id: str) -> tuple[str, int | None]:
    """Return the GPU's UUID and the number of the share, None for a whole GPU. Never fails."""
    uuid, separator, number = device_id.partition(_SEPARATOR)
    # No kubelet allocates an ID with more digits; Python refuses to convert some thousands of them.
    if separator and number.isascii() and number.isdigit() and len(number) <= 9:
        return uuid, int(number)
    return device_id, None


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU of this node and the device IDs it is advertised as."""

    gpu: Gpu
    position: int
    """Its place in the node's list, 0..n-1: the number in ``ALIYUN_COM_GPU_MEM_IDX``. Constant while the agent runs."""
    shares: tuple[str, ...]
    """The device IDs of its shares; the device ID of the whole GPU is its UUID."""

    def ids(self, kind: Kind) -> tuple[str, ...]:
        """Return the device IDs of this GPU for one kind of resource."""
        return self.shares if kind is Kind.MEMORY else (self.gpu.uuid,)


@dataclass(frozen=True, slots=True)
class Shares:
    """All shared GPUs of a node, and every device ID that they are advertised as.

    It only grows: an ID that was once advertised stays listed while the agent runs, because a kubelet (1.20 to 1.36 at
    least) panics when an ID vanishes between its call of Allocate and our answer.
    """

    share_mib: int
    reserve_mib: int = 0
    gpus: tuple[SharedGpu, ...] = ()
    left_out: tuple[tuple[Gpu, str], ...] = ()
    """GPUs that are not shared, each with the reason."""
    _places: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)

    def with_inventory(self, inventory: Inventory, excluded: Iterable[str] = (), limit: int = MAX_DEVICE_IDS) -> Shares:
        """Return these shares with the present facts of `inventory`, and with its new GPUs behind the known ones.

        A known GPU always keeps its position and its IDs. `excluded` are UUIDs or NVML indexes (as text) of GPUs that
        the administrator excludes; `limit` is the most device IDs of one resource.

        Raises:
            TooManySharesError: the share size gives more IDs than `limit`; the message names one that fits.
        """
        excluded = frozenset(excluded)
        now = {gpu.uuid: gpu for gpu in inventory.gpus}
        known = [replace(shared, gpu=now.get(shared.gpu.uuid, shared.gpu)) for shared in self.gpus]
        names = {shared.gpu.uuid for shared in known}
        left_out: list[tuple[Gpu, str]] = []
        for gpu in inventory.gpus:
            if gpu.uuid in names:
                continue
            count = shares_of(gpu, self.share_mib, self.reserve_mib)
            if excluded & _names(gpu):
                left_out.append((gpu, "excluded by the configuration"))
            elif gpu.mig:
                left_out.append((gpu, "in MIG mode, whose instances are not shared yet"))
            elif count == 0:
                left_out.append((gpu, self._too_small(gpu)))
            else:
                known.append(SharedGpu(gpu, len(known), tuple(share_id(gpu.uuid, n) for n in range(count))))
        total = sum(len(shared.shares) for shared in known)
        if total > limit:
            fits = smallest_share_mib((shared.gpu for shared in known), self.reserve_mib, limit)
            raise TooManySharesError(
                f"a share size of {format_mib(self.share_mib)} cuts the GPUs of this node into {total} shares, and a "
                f"kubelet copes with about {limit}; set the share size to {format_mib(fits)} or more"
            )
        places = {name: (shared.position, n) for shared in known for n, name in enumerate(shared.shares)}
        places.update((shared.gpu.uuid, (shared.position, -1)) for shared in known)
        return Shares(self.share_mib, self.reserve_mib, tuple(known), tuple(left_out), places)

    def _too_small(self, gpu: Gpu) -> str:
        share, kept_back = format_mib(self.share_mib), gpu.reserved_mib + self.reserve_mib
        less = f", of which {format_mib(kept_back)} are kept back" if gpu.total_mib >= self.share_mib else ""
        return f"{format_mib(gpu.total_mib)}{less}, less than one share of {share}"

    @property
    def why_none(self) -> str:
        """Why no GPU is shared, with the settings that decide it; empty if one is shared, or the node has no GPU."""
        if self.gpus or not self.left_out:
            return ""
        counts = Counter(why for _, why in self.left_out)
        reasons = ", ".join(f"{why} ({count} GPU{'s' * (count > 1)})" for why, count in counts.items())
        return f"no GPU is shared: {reasons}; --share-size, --exclude-gpus and the MIG mode of a GPU decide about that"

    def place_of(self, device_id: str) -> tuple[int, int] | None:
        """Return (position of the GPU, number of the share; -1 for the whole GPU), None for an ID that is not ours."""
        return self._places.get(device_id)

    def by_uuid(self, uuid: str) -> SharedGpu | None:
        """Return the GPU of this UUID, None if it is not shared here."""
        place = self._places.get(uuid)
        return None if place is None else self.gpus[place[0]]

    def links(self, links: Iterable[Link]) -> Links:
        """Return the connections between the shared GPUs, by position."""
        position = {shared.gpu.uuid: shared.position for shared in self.gpus}
        ends = ((position.get(link.a, -1), position.get(link.b, -1), link) for link in links)
        return Links(
            tuple(sorted((min(a, b), max(a, b), way.closeness, way.nvlinks) for a, b, way in ends if min(a, b) >= 0))
        )
