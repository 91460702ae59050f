"""The extended resources gpu-mem and gpu-count, and those of MIG profiles: values of one type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpu_device_plugin.core.model.mig import is_mig_resource


class Kind(StrEnum):
    """The hardware that one device ID of a resource stands for."""

    MEMORY = "memory"
    """A share: a fixed amount of one GPU's memory."""
    COUNT = "count"
    """A whole GPU, never a MIG instance."""
    INSTANCE = "instance"
    """A whole MIG instance of one profile."""


OF_GPUS = (Kind.MEMORY, Kind.COUNT)
"""The kinds of GPUs; the others are of MIG instances."""


@dataclass(frozen=True, slots=True)
class Resource:
    """An extended resource as the kubelet knows it."""

    kind: Kind
    name: str
    """With its domain, for example ``aliyun.com/gpu-mem``."""
    profile: str = ""
    """The MIG profile of its instances; empty for all other resources."""

    @property
    def listing(self) -> tuple[Kind, str]:
        """It as `shares.SharedGpu.listed` names it, without its domain."""
        return self.kind, self.profile


@dataclass(frozen=True, slots=True)
class Names:
    """The full names of our resources: some of them, and those of all MIG profiles in one domain."""

    names: frozenset[str]
    mig_domain: str = ""
    """Empty: no MIG profile's is ours."""

    def __contains__(self, name: object) -> bool:
        """Whether a resource of this full name is ours."""
        return isinstance(name, str) and (
            name in self.names or bool(self.mig_domain and is_mig_resource(name, self.mig_domain))
        )
