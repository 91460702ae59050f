"""Fill the placeholders in the variables and mounts that an administrator adds to the grants of containers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.node.rules.container_grants import Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.node.rules.container_grants import GrantOwner

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
