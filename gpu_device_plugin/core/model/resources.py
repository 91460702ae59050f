"""The extended resources gpu-mem and gpu-count: two values of one type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The hardware that one device ID of a resource stands for."""

    MEMORY = "memory"
    """A share: a fixed amount of one GPU's memory."""
    COUNT = "count"
    """A whole GPU."""

    @property
    def other(self) -> Kind:
        """The other kind for the same hardware; no GPU is used through both kinds at the same time."""
        return Kind.COUNT if self is Kind.MEMORY else Kind.MEMORY


@dataclass(frozen=True, slots=True)
class Resource:
    """An extended resource as the kubelet knows it."""

    kind: Kind
    name: str
    """With its domain, for example ``aliyun.com/gpu-mem``."""
