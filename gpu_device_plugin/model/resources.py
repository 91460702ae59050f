"""The extended resources gpu-mem and gpu-count, and those of MIG profiles: values of one type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpu_device_plugin.model.mig import is_mig_resource, resource_name


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

    @classmethod
    def of_profile(cls, profile: str, domain: str) -> Resource:
        """Return the resource of a MIG profile in this domain."""
        return cls(Kind.INSTANCE, f"{domain}/{resource_name(profile)}", profile)

    @property
    def listing(self) -> tuple[Kind, str]:
        """It as `shares.SharedGpu.listed` names it, without its domain."""
        return self.kind, self.profile


@dataclass(frozen=True, slots=True)
class Names:
    """The full names of our resources: some of them, and those of all MIG profiles in one domain."""

    kinds: Mapping[str, Kind]
    """By name the kinds of the resources that are no MIG profile's."""
    mig_domain: str = ""
    """Empty: no MIG profile's is ours."""

    def kind_of(self, name: str) -> Kind | None:
        """Return the kind of the resource of this full name; None: it is not ours."""
        mig = bool(self.mig_domain) and is_mig_resource(name, self.mig_domain)
        return self.kinds.get(name, Kind.INSTANCE if mig else None)

    def __contains__(self, name: object) -> bool:
        """Whether a resource of this full name is ours."""
        return isinstance(name, str) and self.kind_of(name) is not None


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPU and memory."""

    cpu_milli: int = 0
    """Thousandths of a CPU."""
    memory_mib: int = 0
    """MiB; requests are rounded up, and the room of a node down."""

    def without(self, taken: Iterable[Amounts]) -> Amounts:
        """Return the rest; less than 0 where more is taken than there is."""
        cpu, memory = self.cpu_milli, self.memory_mib
        for each in taken:
            cpu -= each.cpu_milli
            memory -= each.memory_mib
        return Amounts(cpu, memory)

    def cover(self, wanted: Amounts) -> bool:
        """Return whether there is as much as is wanted."""
        return self.cpu_milli >= wanted.cpu_milli and self.memory_mib >= wanted.memory_mib


NO_AMOUNTS = Amounts()
