"""Derive what keeps a container within its parts of GPUs, variables and mounts, or why it is refused them.

An administrator may add variables and mounts, in which placeholders are filled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.contract.variables import OF_FRAMEWORKS
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import NOBODY, NOTHING, Grant, GrantOwner, Mount
from gpu_device_plugin.node.rules.node import Node


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a container on one of its GPUs."""

    uuid: str
    mib: int
    whole_mib: int
    """The memory on the card."""
    visible_mib: int
    """The memory of the card that a program sees as all of it: without the driver's own part."""
    partition: bool = False
    """It is all of a MIG instance."""
    most_mib: int | None = None
    """The most that it may use; None: its part."""

    @property
    def limit_mib(self) -> int:
        """The most that it may use."""
        return self.mib if self.most_mib is None else self.most_mib


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """How new containers of a node are kept within their parts."""

    enforcements: Mapping[str, GpuEnforcement] = field(default_factory=dict)
    """By UUID; a GPU that is not among them has advisory limits."""
    soft_is_share: bool = False
    """The driver's soft limit is the container's part; otherwise zero."""
    extra: ExtraGrant | None = None
    """What the setting `extra_grant` adds under `CUSTOM`."""
    refuse: bool = False
    """A container to which the enforcement of its GPUs cannot apply is refused; otherwise its limits are advisory."""
    others: Mapping[Enforcement, Callable[[Sequence[Part]], Grant | None]] = field(default_factory=dict)
    """What the means of other features add for a container with these parts; None: they cannot limit it."""

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why every container is refused shares, by the UUIDs of the GPUs."""
        return {uuid: gpu.refusal for uuid, gpu in self.enforcements.items() if gpu.refusal}

    @property
    def names_pods(self) -> bool:
        """Whether what it adds for one container is wrong for any other."""
        custom = any(gpu.enforcement is Enforcement.CUSTOM for gpu in self.enforcements.values())
        return custom and self.extra is not None and bool(self.extra.of_the_pod)


def weakest(parts: Iterable[Part], enforcements: Mapping[str, GpuEnforcement]) -> Enforcement:
    """Return the weakest of what keeps a container within its parts, at least one; `enforcements` are by UUID."""
    return min((_of(part, enforcements) for part in parts), key=lambda enforcement: enforcement.strength)


def _of(part: Part, enforcements: Mapping[str, GpuEnforcement]) -> Enforcement:
    if part.partition:
        return Enforcement.PARTITION
    return enforcements[part.uuid].enforcement if part.uuid in enforcements else Enforcement.ADVISORY


def parts(given: Iterable[tuple[int, int]], shares: Shares, limit_shares: int | None = None) -> tuple[Part, ...]:
    """Return the parts of a container by the GPU's number in the container; `given` are shares by position.

    `limit_shares` are the most of its GPU that it may use, None: those that it was given.

    CUDA numbers equal GPUs by their PCI addresses, as NVML's index does; positions may be in another order.
    """
    ordered = sorted(((shares.gpus[position], count) for position, count in given), key=lambda part: part[0].gpu.index)
    return tuple(
        Part(
            shared.gpu.uuid,
            count * shares.share_mib,
            shared.gpu.total_mib,
            shared.gpu.capacity_mib,
            partition=shared.gpu.instance is not None and count >= len(shared.shares),
            most_mib=None if limit_shares is None else limit_shares * shares.share_mib,
        )
        for shared, count in ordered
    )


def refuse_unlimited(
    node: Node, kind: Kind, device_ids: Collection[str], plan: LimitPlan, owner: GrantOwner
) -> Refusal | None:
    """Refuse a container whose memory cannot be limited although the administrator requires it.

    Whole GPUs have no limits. `owner` is the container, as far as it is known.
    """
    if not (plan.refuse or plan.refusals):  # as on most nodes, whose answers need not wait for what follows
        return None
    given = sorted(node.shares.spread(device_ids).items()) if kind is Kind.MEMORY else []
    if not given or not (why := refusal(parts(given, node.shares), plan, owner)):
        return None
    gpus = [node.shares.gpus[position] for position, _ in given]
    refusing = [shared for shared in gpus if plan.refusals.get(shared.gpu.uuid) == why]
    return Refusal(RefusalCode.NO_LIMIT, f"{', '.join(shared.name for shared in refusing or gpus)}: {why}")


def refusal(parts: Sequence[Part], plan: LimitPlan, owner: GrantOwner = NOBODY) -> str:
    """Return why a container is refused its parts although they are free, in a sentence; empty: it is not refused."""
    enforcement = weakest(parts, plan.enforcements)
    if enforcement is Enforcement.PARTITION:
        return ""
    refusals = (plan.enforcements[part.uuid].refusal for part in parts if part.uuid in plan.enforcements)
    if why := next(filter(None, refusals), ""):
        return why
    if plan.refuse and plan.extra is not None and enforcement is Enforcement.CUSTOM:
        unknown = " and ".join(f"{{{name}}}" for name in plan.extra.unknown(owner))
        return unknown and (
            f"the node's extra_grant needs {unknown}, and the pod of this container is not known: the node's agent has "
            "no access to the Kubernetes API, or has not seen the pod there; delete the pod to try again"
        )
    return ""


def limit_grant(parts: Sequence[Part], plan: LimitPlan, owner: GrantOwner = NOBODY) -> Grant:
    """Return what keeps a container within its parts: variables and mounts.

    Of GPUs with different enforcements the weakest one counts; a container that cannot have it has advisory limits.
    `parts` are by the GPU's number in the container, at least one.
    """
    enforcement = weakest(parts, plan.enforcements)
    envs: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    if enforcement is Enforcement.DRIVER:
        # The toolkit's hook sets the pair for each GPU of the container. It takes base-10 MiB without a suffix, and a
        # request up to the limit. The driver adds soft limits to the cgroups above and leaves them there.
        largest = max(parts, key=lambda part: part.mib)
        soft_mib = min(largest.mib, largest.limit_mib) if plan.soft_is_share else 0
        envs = {variables.DRIVER_REQUEST: str(soft_mib), variables.DRIVER_LIMIT: str(largest.limit_mib)}
    elif enforcement is Enforcement.CUSTOM and plan.extra is not None and not plan.extra.unknown(owner):
        envs, mounts = plan.extra.filled(parts, owner)
    elif enforcement is Enforcement.DMEM:
        pass  # the limit helper sets the limit of the container's cgroup, and no variable plays a part
    elif enforcement in plan.others and (made := plan.others[enforcement](parts)) is not None:
        envs, mounts = made.envs, made.mounts
    elif enforcement is not Enforcement.PARTITION:
        enforcement = Enforcement.ADVISORY
    # Ours come last: no other variable says what was given.
    envs = {**framework_envs(owner.frameworks, enforcement, parts), **envs, variables.LIMITS: enforcement.value}
    return Grant(envs, mounts=mounts)


def added_for_limits(placement: Placement, shares: Shares, plan: LimitPlan, owner: GrantOwner = NOBODY) -> Grant:
    """Return what a container with this placement gets for its limits; whole GPUs have none."""
    if placement.demand.kind is Kind.MEMORY:
        return limit_grant(parts(placement.shares, shares, owner.limit_shares), plan, owner)
    return Grant({variables.LIMITS: Enforcement.PARTITION.value}) if placement.demand.kind is Kind.INSTANCE else NOTHING


# --- Frameworks, which keep their own caches within a part ------------------------------------------------------------

_SEES_WHOLE = frozenset({Enforcement.DMEM, Enforcement.MPS, Enforcement.ADVISORY})
"""Under these a framework sees the whole GPU; of the kernel's limit ROCm knows nothing. Under `DRIVER` it sees the
limit as all the memory, of which a fraction would be a fraction of the part. Under `CUSTOM` that is unknown: HAMi-core
shows the limit."""

_STEPS = 10_000
"""A fraction has four digits."""


def framework_envs(frameworks: Iterable[str], enforcement: Enforcement, parts: Sequence[Part]) -> Mapping[str, str]:
    """Return the variables of these frameworks, names in `OF_FRAMEWORKS`, for a container.

    A framework has one fraction for all GPUs, so it is that of the smallest limit. A variable in the container's own
    env takes its place: the kubelet puts it after ours (kubelet_pods.go).
    """
    if enforcement not in _SEES_WHOLE:
        return {}
    steps = min(part.limit_mib * _STEPS // max(part.visible_mib, 1) for part in parts)
    # Neither framework accepts zero.
    fraction = f"{min(max(steps, 1), _STEPS) / _STEPS:.4f}"
    return {name: f"{begin}{fraction}" for name, begin in (OF_FRAMEWORKS[framework] for framework in frameworks)}


# --- What an administrator adds ---------------------------------------------------------------------------------------

PLACEHOLDERS = ("limit_mib", "guaranteed_mib", "ordinal", "uuid", "pod_uid", "container")
"""In braces: the most MiB of a GPU that the container may use, those that it is guaranteed, the GPU's number in the
container, its UUID, and the container's pod and name."""
_PER_GPU = frozenset({"ordinal", "uuid"})
_OF_THE_POD = frozenset({"pod_uid", "container"})

SET_BY_US = frozenset(
    {
        variables.VISIBLE_DEVICES,
        variables.MEMORY_LIMIT,
        variables.MEMORY_GUARANTEED,
        variables.LIMITS,
        variables.DRIVER_REQUEST,
        variables.DRIVER_LIMIT,
        variables.IDX,
        variables.POD,
        variables.CONTAINER,
        variables.DEV,
        variables.CGPU_DISABLE,
    }
)
"""Variables that say what a container was given; an extra grant must not change them."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_NEEDED = frozenset({(), ("proc",), ("sys",), ("dev",)})
"""Directories of a container without which it does not start, or has no GPU; below them there may be mounts."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,252}")
"""UIDs and the names of containers, which may become parts of paths. The UID of a static pod is an annotation, which
anyone who creates a pod can write."""


@dataclass(frozen=True, slots=True)
class ExtraGrant:
    """Variables and mounts whose names, values and paths have placeholders, see `PLACEHOLDERS`."""

    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()

    def unknown(self, owner: GrantOwner) -> tuple[str, ...]:
        """Return the placeholders whose values are not known for the container of `owner`, by their names."""
        known = {"pod_uid": owner.pod_uid, "container": owner.container}
        return tuple(sorted(name for name in self.of_the_pod if not _SAFE.fullmatch(known[name])))

    @property
    def of_the_pod(self) -> frozenset[str]:
        """The placeholders in it whose values differ between containers with equal parts."""
        texts = (
            *(text for pair in self.envs for text in pair),
            *(text for mount in self.mounts for text in (mount.host_path, mount.container_path)),
        )
        return _OF_THE_POD.intersection(name for text in texts for name in placeholders(text))

    def filled(self, parts: Sequence[Part], owner: GrantOwner) -> tuple[Mapping[str, str], tuple[Mount, ...]]:
        """Return the variables and mounts of one container, none of whose placeholders is unknown.

        A variable or mount with ``{ordinal}`` or ``{uuid}`` in its name or path is repeated for each GPU. If only the
        value of a variable has one, the values for all GPUs are joined by commas. `parts` are by the GPU's number in
        the container, at least one.
        """
        largest = max(parts, key=lambda part: part.mib)
        common = {"pod_uid": owner.pod_uid, "container": owner.container, **_amounts(largest)}
        each = [
            common | {"ordinal": str(ordinal), "uuid": part.uuid, **_amounts(part)}
            for ordinal, part in enumerate(parts)
        ]
        envs: dict[str, str] = {}
        for name, value in self.envs:
            if _per_gpu(name):
                envs |= {_fill(name, values): _fill(value, values) for values in each}
            else:
                envs[_fill(name, common)] = ",".join(_fill(value, v) for v in (each if _per_gpu(value) else [common]))
        mounts = [
            Mount(_fill(mount.host_path, values), _fill(mount.container_path, values), mount.read_only)
            for mount in self.mounts
            for values in (each if _per_gpu(mount.container_path) else [common])
        ]
        return envs, tuple(mounts)


def _amounts(part: Part) -> Mapping[str, str]:
    return {"limit_mib": str(part.limit_mib), "guaranteed_mib": str(part.mib)}


def placeholders(text: str) -> tuple[str, ...]:
    """Return the names of the placeholders in a text. Other braces are no placeholders: JSON has them too."""
    return tuple(_PLACEHOLDER.findall(text))


def wrong_text(text: str) -> str:
    """Return what is wrong with a name, value or path of an extra grant, as the end of a sentence; empty: nothing."""
    unknown = [name for name in placeholders(text) if name not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        return f"there is no placeholder {{{unknown[0]}}}; use {known}"
    if any(ord(char) < ord(" ") for char in text):
        return "a control character is in it; remove it"
    # The kubelet takes UTF-8. In YAML an escape can write half of a pair of UTF-16.
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "half of a character is in it, an escape between \\ud800 and \\udfff; write the character itself"
    return ""


def wrong_name(name: str) -> str:
    """Return what is wrong with the name of a variable, see `wrong_text`."""
    if name in SET_BY_US:
        return "the agent sets this variable itself; remove it"
    plain = _PLACEHOLDER.sub("0", name)
    return wrong_text(name) or ("" if _NAME.fullmatch(plain) else "this is not the name of a variable; correct it")


def wrong_path(path: str) -> str:
    """Return what is wrong with a path in a mount, see `wrong_text`."""
    if not path.startswith("/") or ".." in path.split("/"):
        return "this is not an absolute path without ..; correct it"
    return wrong_text(path)


def wrong_mount(mount: Mount, others: Iterable[Mount] = ()) -> str:
    """Return what is wrong with a mount whose paths are right beside these others, see `wrong_text`."""
    place = _plain(mount.container_path)
    if place in _NEEDED:
        return f"over {mount.container_path} in a container nothing can be mounted; choose another container_path"
    if any(_plain(other.container_path) == place for other in others):
        # The kubelet would take one of them, and say so in its own log only.
        return f"another mount has the container_path {mount.container_path} too; remove one of the two"
    if _per_gpu(mount.host_path) and not _per_gpu(mount.container_path):
        return "host_path differs by GPU, so that container_path needs {ordinal} or {uuid} too"
    return ""


def _plain(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in {"", "."})


def _per_gpu(text: str) -> bool:
    return not _PER_GPU.isdisjoint(placeholders(text))


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)
