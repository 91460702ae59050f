"""The settings that several programs have: what the resources are called, and how a program logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpu_device_plugin.core.model.resources import Kind, Resource
from gpu_device_plugin.settings.forms import DOMAIN, RESOURCE_NAME, one_of
from gpu_device_plugin.settings.knobs import SettingsError, knob, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSettings:
    """What the resources are called, which is all that a program has to know which only looks at a cluster.

    Raises:
        SettingsError: settings contradict each other.
    """

    COMMAND: ClassVar[str] = "inspect"

    domain: str = knob("aliyun.com", DOMAIN, "Domain of both resource names.")
    memory_resource: str = knob("gpu-mem", RESOURCE_NAME, "Name of the resource that counts shares of GPU memory.")
    count_resource: str = knob("gpu-count", RESOURCE_NAME, "Name of the resource that counts whole GPUs.")

    def __post_init__(self) -> None:
        refuse(self._contradictions())

    def _contradictions(self) -> Iterator[SettingsError]:
        """Yield what contradicts each other; a program adds what concerns its own settings."""
        if len(self.offered) != len({resource.name for resource in self.offered}):
            yield SettingsError(
                f"both resources would be called {self.offered[0].name}; give them different names",
                ("memory_resource", "count_resource"),
            )

    @property
    def managed(self) -> tuple[Resource, ...]:
        """Both resources, by their full names."""
        return (
            Resource(Kind.MEMORY, f"{self.domain}/{self.memory_resource}"),
            Resource(Kind.COUNT, f"{self.domain}/{self.count_resource}"),
        )

    @property
    def offered(self) -> tuple[Resource, ...]:
        """Those that pods can ask for."""
        return self.managed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings(ResourceSettings):
    """What a program that runs for long has besides."""

    log_level: str = knob("info", one_of("debug", "info", "warning", "error"), "Least severe line to log.", live=True)
    log_format: str = knob(
        "auto",
        one_of("auto", "human", "json"),
        "Log lines for people or for machines; auto writes for people on a terminal and JSON elsewhere.",
        in_profile=False,
    )
