"""The settings of the page's server in the cluster, with their defaults, forms and descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE
from gpu_device_plugin.settings.common import (
    LogSettings,
    ResourceSettings,
    in_cluster_api,
    incomplete_pair,
    on_loopback,
    own_namespace,
)
from gpu_device_plugin.settings.forms import ADDRESS, OPTIONAL_PATH, OPTIONAL_URL, Address, object_name
from gpu_device_plugin.settings.knobs import SettingsError, knob


class WebSettings(ResourceSettings, LogSettings):
    """The settings of the page's server."""

    COMMAND: ClassVar[str] = "web"

    http: Address = knob(
        ":9404",
        ADDRESS,
        "Address of the page, its data, /healthz and /readyz, such as 0.0.0.0:9404, or :9404 for all addresses.",
    )
    tls_cert: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "PEM file with the server certificate of http, reloaded when it changes. Empty: plain HTTP, over which "
        "callers send their tokens.",
    )
    tls_key: Path | None = knob("", OPTIONAL_PATH, "PEM file with the key of tls_cert.")
    api: str = in_cluster_api()

    agents_namespace: str = knob(
        "",
        object_name("namespace", "use one that kubectl get namespaces lists"),
        "Namespace of the node agents, whose /use has the live figures; pods elsewhere are ignored. Empty: that of "
        "this pod, else gpushare.",
    )

    dashboard: str = knob(
        "",
        OPTIONAL_URL,
        "Address of a Grafana or Prometheus to which the page links for more than the last hour. Empty: none.",
    )

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from super()._contradictions()
        yield from incomplete_pair(self.tls_cert, self.tls_key)

    def home(self, service_account: Path) -> str:
        """Return the namespace of the agents; `service_account` is the mount point of a pod's, and need not exist."""
        return self.agents_namespace or own_namespace(service_account, AGENT_NAMESPACE)

    @property
    def exposed(self) -> bool:
        """Whether tokens of callers cross the network unencrypted."""
        return not on_loopback(self.http) and self.tls_cert is None
