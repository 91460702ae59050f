"""The settings that several programs have: the names of the resources, and logging."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.settings.forms import DOMAIN, RESOURCE_NAME, Address, api_server, one_of
from gpu_device_plugin.settings.knobs import Settings, SettingsError, knob


class ResourceSettings(Settings):
    """The names of the resources; a program that only reads a cluster needs no other settings."""

    COMMAND: ClassVar[str] = "inspect"

    domain: str = knob("aliyun.com", DOMAIN, "Domain of both resource names.")
    memory_resource: str = knob("gpu-mem", RESOURCE_NAME, "Name of the resource for shares of GPU memory.")
    count_resource: str = knob("gpu-count", RESOURCE_NAME, "Name of the resource for whole GPUs.")

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from super()._contradictions()
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
        """The resources that pods can request."""
        return self.managed


class LogSettings(Settings):
    """The settings of the log of a program that runs permanently."""

    log_level: str = knob("info", one_of("debug", "info", "warning", "error"), "Least severity to log.", live=True)
    log_format: str = knob(
        "auto",
        one_of("auto", "human", "json"),
        "Form of the log: human, json (one object per line), or auto (human on a terminal, else json).",
        in_profile=False,
    )


def in_cluster_api() -> str:
    """Declare the setting `api` of a program that runs in the cluster."""
    return knob(
        "auto",
        api_server("auto", "in-cluster"),
        "How to reach the Kubernetes API: in-cluster (the pod's service account), the path of a kubeconfig, an "
        "http:// address, or auto (in-cluster).",
    )


def incomplete_pair(cert: Path | None, key: Path | None) -> Iterator[SettingsError]:
    """Yield an error if only one of the settings ``tls_cert`` and ``tls_key`` is given."""
    if (cert is None) != (key is None):
        yield SettingsError("a certificate and its key go together; give both or neither", ("tls_cert", "tls_key"))


def on_loopback(address: Address) -> bool:
    """Return whether only this machine reaches an address."""
    return bool(address.host) and ipaddress.ip_address(address.host).is_loopback


def own_namespace(service_account: Path, otherwise: str) -> str:
    """Return the namespace of our pod; `service_account` is the mount point of its account, and need not exist."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (service_account / "namespace").read_text(encoding="utf-8").strip() or otherwise
    return otherwise
