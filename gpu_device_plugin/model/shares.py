"""GPUs cut into the device IDs that we advertise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gpu_device_plugin.model.gpus import MOST_POSITIONS, NVIDIA, Gpu, Inventory, Link, Links
from gpu_device_plugin.model.memory import MAX_DEVICE_IDS, format_mib, shares_of, smallest_share_mib
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import Kind

# dcgm-exporter splits a device ID at the same separator to find the GPU.
_SEPARATOR = "::"


class TooManySharesError(ValueError):
    """The share size cuts this node's GPUs into more device IDs than a kubelet can manage."""

    def __init__(self, message: str, *, restart_helps: bool) -> None:
        """Raise with a message for people."""
        super().__init__(message)
        self.restart_helps = restart_helps
        """Too many are of MIG instances that are no longer offered: an agent that starts anew does not list them."""


Listing: TypeAlias = tuple[Kind, str]
"""A resource by its kind and, for MIG instances, their profile."""

SHARES: Listing = (Kind.MEMORY, "")
WHOLE_GPUS: Listing = (Kind.COUNT, "")
OF_GPU: frozenset[Listing] = frozenset({SHARES, WHOLE_GPUS})
"""The resources of a whole GPU."""


def _names(gpu: Gpu) -> frozenset[str]:
    """Return the names by which an administrator may exclude a GPU, or a MIG instance."""
    return frozenset({gpu.uuid, gpu.label})


def unknown_exclusions(excluded: Iterable[str], inventory: Inventory) -> str:
    """Return a sentence on the excluded GPUs that the node does not have; empty if it has all of them, or no GPU."""
    known = frozenset[str]().union(*map(_names, inventory.gpus))
    unknown = [name for name in excluded if name not in known] if known else []
    if not unknown:
        return ""
    see = "nvidia-smi -L" if any(gpu.driver == NVIDIA for gpu in inventory.gpus) else "the agent's log"
    return f"--exclude-gpus names {', '.join(unknown)}, but this node has no such GPU; see {see}, and use UUIDs"


def misread_exclusions(excluded: Iterable[str], inventory: Inventory, shares: Shares) -> str:
    """Return a sentence on the excluded numbers that mean another GPU to people, who read positions; empty if none."""
    by_index = {str(gpu.index): gpu.uuid for gpu in inventory.gpus if gpu.instance is None}
    here = {str(shared.position): shared.gpu.card for shared in shares.gpus}
    others = [name for name in excluded if name in by_index and here.get(name, by_index[name]) != by_index[name]]
    if not others:
        return ""
    counting = "nvidia-smi" if any(gpu.driver == NVIDIA for gpu in inventory.gpus) else "the driver"
    which = ", ".join(f"{name}, by which {counting} counts {by_index[name]}" for name in others)
    return f"--exclude-gpus names {which}; this node's list counts another GPU so, therefore use UUIDs"


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
    """A GPU of this node, or a MIG instance of one, and the device IDs it is advertised as."""

    gpu: Gpu
    position: int
    """Its place in the node's list, 0..n-1: the number in ``ALIYUN_COM_GPU_MEM_IDX``. Constant while the agent runs."""
    shares: tuple[str, ...]
    """The device IDs of its shares; the device ID of the whole GPU or instance is its UUID."""
    listed: frozenset[Listing] = OF_GPU
    """The resources among whose devices it is, or was since the agent started."""
    offered: frozenset[Listing] = OF_GPU
    """Those of `listed` through which it is given to new containers."""
    gone: bool = False
    """A MIG instance that exists no more, or a GPU in MIG mode since an earlier agent: it keeps its position, and the
    IDs that it has in `listed`. Or it is `vacant`."""
    card: int | None = None
    """Of a MIG instance: the position of the first instance of its GPU, which they have in common."""

    def ids(self, listing: Listing) -> tuple[str, ...]:
        """Return the device IDs of this GPU for one resource."""
        if listing not in self.listed:
            return ()
        return self.shares if listing[0] is Kind.MEMORY else (self.gpu.uuid,)

    @property
    def vacant(self) -> bool:
        """Whether it only has a number, so that those behind it keep theirs: a GPU that is excluded, or too small."""
        return self.gone and self.gpu.instance is None and not self.gpu.mig

    @property
    def name(self) -> str:
        """Its name for the owner of a pod: ``GPU 3``, or ``GPU 3 (MIG 1g.10gb)``."""
        instance = self.gpu.instance
        return f"GPU {self.position}" + (f" (MIG {instance.profile})" if instance is not None else "")


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
    """GPUs that are not shared, each with the reason. MIG instances that nobody can have are among them only if others
    of their GPU are shared."""
    mig: MigMode = MigMode.OFF
    """How pods get MIG instances at present."""
    _places: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)

    def with_inventory(
        self,
        inventory: Inventory,
        excluded: Iterable[str] = (),
        limit: int = MAX_DEVICE_IDS,
        mig: MigMode = MigMode.OFF,
    ) -> Shares:
        """Return these shares with the present facts of `inventory`, and with its new GPUs behind the known ones.

        A known GPU always keeps its position and its IDs. `excluded` are UUIDs or NVML indexes (as text) of GPUs that
        the administrator excludes; `limit` is the most device IDs of one resource; `mig` says how pods get instances.

        Raises:
            TooManySharesError: the share size gives more IDs than `limit`; the message names one that fits.
        """
        excluded = frozenset(excluded)
        now = {gpu.uuid: gpu for gpu in inventory.gpus}
        before = {gpu.uuid for gpu in inventory.order}
        known = [self._known(shared, now.get(shared.gpu.uuid), excluded, mig) for shared in self.gpus]
        names = {shared.gpu.uuid for shared in known}
        given_before = {shared.gpu.uuid for shared in known if not shared.vacant}
        cards = {shared.gpu.card: shared.card for shared in known if shared.card is not None}
        left_out: list[tuple[Gpu, str]] = []
        for gpu in {gpu.uuid: gpu for gpu in (*inventory.order, *inventory.gpus)}.values():
            here = gpu if gpu.instance is None else now.get(gpu.uuid)
            why = self._why_not(gpu, excluded, mig, inventory)
            if why and here is not None and (gpu.uuid not in given_before or gpu.instance is not None):
                left_out.append((gpu, why))
            if gpu.uuid in names:
                continue
            keeps_position = gpu.uuid in before and (gpu.mig or gpu.instance is not None)
            given = gpu.instance is None or (mig is not MigMode.OFF and not _with_its_card(gpu, excluded))
            # A GPU that is not given has a position all the same: otherwise those behind it would have other numbers.
            if keeps_position or (given and not gpu.mig and (not why or gpu.instance is None)):
                at = len(known)
                card = None if gpu.instance is None else cards.setdefault(gpu.card, at)
                kept = bool(why) and gpu.instance is None
                new = SharedGpu(gpu, at, (), frozenset(), frozenset(), gone=kept, card=card)
                known.append(new if kept else self._known(new, here, excluded, mig))
        self._check(known, limit)
        places = {name: (shared.position, n) for shared in known for n, name in enumerate(shared.shares)}
        places.update((shared.gpu.uuid, (shared.position, -1)) for shared in known if not shared.vacant)
        return Shares(self.share_mib, self.reserve_mib, tuple(known), tuple(left_out), mig, places)

    def _known(self, shared: SharedGpu, gpu: Gpu | None, excluded: frozenset[str], mig: MigMode) -> SharedGpu:
        """Return a GPU with its present facts and the resources that offer it; those that have listed it still do.

        `gpu` are the facts; None: the driver lists it no more. Of whole GPUs the driver forgets none.
        """
        if shared.vacant:
            return shared  # what keeps it from being given is not decided anew while the agent runs
        if gpu is None:
            whole = shared.gpu.instance is None
            return shared if whole else replace(shared, offered=frozenset(), gone=True)
        count = shares_of(gpu, self.share_mib, self.reserve_mib)
        ids = shared.shares or tuple(share_id(gpu.uuid, n) for n in range(count))
        if gpu.instance is not None:
            barred = _with_its_card(gpu, excluded) or bool(self._barred(gpu, excluded, mig))
            # An instance that was made again under its UUID may be smaller: then its earlier IDs are for nobody.
            smaller = mig is MigMode.SHARE and count < len(ids)
            way: Listing = SHARES if mig is MigMode.SHARE else (Kind.INSTANCE, gpu.instance.profile)
            offered = frozenset[Listing]() if barred or smaller or mig is MigMode.OFF else frozenset({way})
        else:
            given = frozenset({WHOLE_GPUS}) if gpu.unified else OF_GPU
            offered = given if shared.listed or not gpu.mig else frozenset[Listing]()
        listed = shared.listed | offered
        return SharedGpu(gpu, shared.position, ids, listed, offered, gpu.mig and not listed, shared.card)

    def _why_not(self, gpu: Gpu, excluded: frozenset[str], mig: MigMode, inventory: Inventory) -> str:
        """Return why a GPU is not shared; empty: it is, or the reason stands beside another GPU."""
        if gpu.instance is not None and (mig is MigMode.OFF or _with_its_card(gpu, excluded)):
            return ""
        why = self._barred(gpu, excluded, mig)
        if why or not gpu.mig:
            return why
        instances = sum(each.card == gpu.uuid for each in inventory.gpus) - 1
        if not instances:
            return "in MIG mode and without instances, which nvidia-smi mig or mig-parted creates"
        if mig is not MigMode.OFF:
            return ""
        return (
            f"in MIG mode, with {instances} instance{'s' * (instances > 1)} that --mig=whole or --mig=share, or "
            "the node label gpu-device-plugin/mig, would allocate to pods"
        )

    def _barred(self, gpu: Gpu, excluded: frozenset[str], mig: MigMode) -> str:
        """Return why a GPU or MIG instance by itself cannot be shared; empty: it can, or is in MIG mode."""
        if excluded & _names(gpu):
            return "excluded by the configuration"
        instance = gpu.instance
        if instance is not None and not instance.alone:
            return f"the compute instance {instance.profile} uses the memory of its GPU instance together with others"
        given_whole = gpu.mig or (instance is not None and mig is MigMode.WHOLE)
        if given_whole or shares_of(gpu, self.share_mib, self.reserve_mib):
            return ""
        kept_back = gpu.reserved_mib + self.reserve_mib
        less = f", of which {format_mib(kept_back)} are reserved" if gpu.total_mib >= self.share_mib else ""
        return f"{format_mib(gpu.total_mib)}{less}, less than one share of {format_mib(self.share_mib)}"

    def _check(self, gpus: Collection[SharedGpu], limit: int) -> None:
        """Raise TooManySharesError if a resource has more IDs than `limit`, or the node too many positions."""
        former = sum(shared.gone and bool(shared.listed) for shared in gpus)
        if len(gpus) > MOST_POSITIONS and former:
            raise TooManySharesError(
                f"{former} of {len(gpus)} positions of the node's list are of MIG instances that no longer exist, and "
                f"readers handle about {MOST_POSITIONS}; an agent that starts anew gives them to others",
                restart_helps=True,
            )
        cut = [shared for shared in gpus if SHARES in shared.listed]
        total = sum(len(shared.shares) for shared in cut)
        if total <= limit:
            return
        live = sum(len(shared.shares) for shared in cut if SHARES in shared.offered)
        if live <= limit:
            raise TooManySharesError(
                f"{total - live} of {total} device IDs are of MIG instances that are no longer offered, and a "
                f"kubelet handles about {limit}; an agent that starts anew does not list them",
                restart_helps=True,
            )
        fits = smallest_share_mib((shared.gpu for shared in cut if SHARES in shared.offered), self.reserve_mib, limit)
        raise TooManySharesError(
            f"a share size of {format_mib(self.share_mib)} splits the GPUs of this node into {live} shares, and a "
            f"kubelet handles about {limit}; set the share size to {format_mib(fits)} or more",
            restart_helps=False,
        )

    @property
    def why_none(self) -> str:
        """Why no GPU is shared, with the settings that decide it; empty if one is shared, or the node has no GPU."""
        if self.any_listed or not self.left_out:
            return ""
        counts = Counter(why for _, why in self.left_out)
        reasons = ", ".join(f"{why} ({count} GPU{'s' * (count > 1)})" for why, count in counts.items())
        return f"no GPU is shared: {reasons}; --share-size, --exclude-gpus and --mig decide this"

    @property
    def any_listed(self) -> bool:
        """Whether there is a device of any resource."""
        return any(shared.listed for shared in self.gpus)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The MIG profiles that have, or had since the agent started, a resource of their own, sorted."""
        return tuple(
            sorted({profile for shared in self.gpus for kind, profile in shared.listed if kind is Kind.INSTANCE})
        )

    @property
    def place_of(self) -> Callable[[str], tuple[int, int] | None]:
        """Finds the place of a device ID: (position of the GPU, number of the share; -1 for the whole GPU).

        None for an ID that is not ours.
        """
        return self._places.get

    def spread(self, device_ids: Iterable[str]) -> Mapping[int, int]:
        """Return how many of these IDs lie on each GPU (by position). IDs that are not ours are left out."""
        spread: dict[int, int] = {}  # a Counter takes three times as long, of the kubelet's time
        place_of = self._places.get
        for name in device_ids:
            if (found := place_of(name)) is not None:
                spread[found[0]] = spread.get(found[0], 0) + 1
        return spread

    def by_uuid(self, uuid: str) -> SharedGpu | None:
        """Return the GPU of this UUID, None if it is not shared here."""
        place = self._places.get(uuid)
        return None if place is None else self.gpus[place[0]]

    def called(self, uuid: str) -> str:
        """Return the name of the GPU of this UUID for people."""
        shared = self.by_uuid(uuid)
        return f"the GPU {uuid}" if shared is None else shared.name

    def name_of(self, gpu: Gpu) -> str:
        """Return the name of a GPU for people, whether it is shared or not: its number if it has one, else its UUID."""
        shared = next((shared for shared in self.gpus if shared.gpu.uuid == gpu.uuid), None)
        if shared is not None:
            return shared.name
        if gpu.driver != NVIDIA:
            return f"the GPU {gpu.uuid}"
        kind = "GPU" if gpu.instance is None else "MIG instance"
        return f"the {kind} {gpu.uuid} (nvidia-smi counts it as {gpu.label})"

    @property
    def capacity_mib(self) -> Mapping[str, int]:
        """What containers can use of the memory of each GPU, by UUID."""
        return {shared.gpu.uuid: shared.gpu.capacity_mib for shared in self.gpus if not shared.vacant}

    def links(self, links: Iterable[Link]) -> Links:
        """Return the connections between the shared GPUs, by position."""
        position = {shared.gpu.uuid: shared.position for shared in self.gpus}
        ends = ((position.get(link.a, -1), position.get(link.b, -1), link) for link in links)
        return Links(
            tuple(sorted((min(a, b), max(a, b), way.closeness, way.nvlinks) for a, b, way in ends if min(a, b) >= 0))
        )


def _with_its_card(instance: Gpu, excluded: frozenset[str]) -> bool:
    return bool(excluded & {instance.card, str(instance.index)})
