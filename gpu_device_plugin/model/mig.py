"""MIG: how a node offers instances to pods, and the names of their profiles and resources."""

from __future__ import annotations

import re
from enum import StrEnum

GPU_SLICES = 7
"""Compute slices of a GPU that can be divided into instances; a GPU's whole memory has eight slices."""
_MEMORY_SLICES = 8

_PREFIX = "mig-"
_PROFILE = re.compile(r"(?:[1-7]c\.)?[1-7]g\.[1-9][0-9]{0,3}gb(?:[+.-][a-z]+)*", re.ASCII)


class MigMode(StrEnum):
    """How pods get the MIG instances of a node."""

    OFF = "off"
    """They do not."""
    WHOLE = "whole"
    """One by one, by a resource for each profile."""
    SHARE = "share"
    """By memory, each cut into shares like a GPU."""


def profile_name(slices: int, memory_mib: int, total_mib: int, compute: int | None = None, attributes: str = "") -> str:
    """Return the name of a profile as nvidia-smi prints it, for example ``1g.10gb``.

    NVIDIA's names round the memory up to eighths of the GPU's whole memory, in GB of 2^30 bytes, and halves of these up
    (NVIDIA/go-nvlib, ``mig_profile.go``).

    The GPU instance has `slices` compute slices and `memory_mib` of the GPU's `total_mib`. The compute instance has
    `compute` of its slices, all if None. Attributes are for example ``+me``: it has the engines for media.
    """
    eighths = -(-memory_mib * _MEMORY_SLICES // max(total_mib, 1))
    gigabytes = (2 * eighths * -(-total_mib // 1024) + _MEMORY_SLICES) // (2 * _MEMORY_SLICES)
    part = "" if compute is None or compute == slices else f"{compute}c."
    return f"{part}{slices}g.{gigabytes}gb{attributes}"


def resource_name(profile: str) -> str:
    """Return the name, without its domain, of the resource for a profile: ``mig-1g.10gb.me`` for ``1g.10gb+me``.

    It is that of NVIDIA's device plugin: names of resources cannot have a plus sign.
    """
    return _PREFIX + profile.replace("+", ".")


def is_profile(text: str) -> bool:
    """Return whether a text is the name of a profile."""
    return _PROFILE.fullmatch(text) is not None


def is_mig_resource(resource: str, domain: str = "") -> bool:
    """Return whether a resource's full name is that of MIG instances, of any domain if none is given."""
    name_domain, _, name = resource.partition("/")
    named = name.startswith(_PREFIX) and is_profile(name.removeprefix(_PREFIX))
    return named and (not domain or name_domain == domain)
