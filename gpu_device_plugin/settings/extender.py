"""The settings of the scheduler extender, with their defaults, forms and descriptions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.settings.common import (
    LogSettings,
    ResourceSettings,
    in_cluster_api,
    incomplete_pair,
    on_loopback,
    own_namespace,
)
from gpu_device_plugin.settings.forms import (
    ADDRESS,
    OPTIONAL_ADDRESS,
    OPTIONAL_PATH,
    SWITCH,
    Address,
    duration,
    object_name,
    one_of,
)
from gpu_device_plugin.settings.knobs import Form, SettingsError, knob


def _identity(text: str) -> str:
    # A Lease takes any text for its holder; people read it in kubectl get leases.
    if not text.isprintable() or text != text.strip():
        raise ValueError(f"{text!r} is no identity: it has unprintable characters or outer spaces; use the pod's name")
    return text


class ExtenderSettings(ResourceSettings, LogSettings):
    """The settings of a scheduler extender."""

    COMMAND: ClassVar[str] = "extender"

    listen: Address = knob(
        "127.0.0.1:32766",
        ADDRESS,
        "Address for the scheduler's calls. Every client that reaches it can bind pods, so any address but loopback "
        "needs client_ca.",
    )
    tls_cert: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "PEM file with the server certificate of listen, reloaded when it changes. Empty: plain HTTP.",
    )
    tls_key: Path | None = knob("", OPTIONAL_PATH, "PEM file with the key of tls_cert.")
    client_ca: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "PEM file with the CA of the scheduler's client certificate; all other clients are then refused.",
    )
    http: Address | None = knob(
        ":9402",
        OPTIONAL_ADDRESS,
        "Address of /metrics, /healthz and /readyz, such as 0.0.0.0:9402, or :9402 for all addresses. Empty or off: "
        "none.",
    )
    api: str = in_cluster_api()
    node_policy: str = knob(
        "fit",
        one_of(*POLICIES),
        "How a node is chosen for a pod: fit takes the node that strands the least memory for your usual pods, "
        "binpack fills one node before the next, spread takes the emptiest.",
        live=True,
    )
    gpu_policy: str = knob(
        "fit",
        one_of(*POLICIES),
        "How a GPU of the node is chosen if its agent does not say: fit, binpack or spread, likewise.",
        live=True,
    )
    vanished_grace_s: float = knob(
        "30s",
        duration(zero=True),
        "How long a pod that was deleted before it had ended still counts.",
        live=True,
    )
    bind_timeout_s: float = knob(
        "4s",
        duration(),
        "Timeout of binding a pod; kube-scheduler's own (httpTimeout) is 5s by default.",
        live=True,
    )
    leader_election: bool = knob(
        "false",
        SWITCH,
        "Elect the active one of several extenders by a Lease. An extender in the same pod as its scheduler does not "
        "need it: the scheduler elects a leader itself.",
    )
    lease_namespace: str = knob(
        "",
        object_name("namespace", "use one that kubectl get namespaces lists"),
        "Namespace of the Lease. Empty: that of this pod, else kube-system.",
    )
    lease_name: str = knob(
        "gpu-device-plugin-extender",
        object_name("Lease", "use lower-case letters, digits, dashes and dots"),
        "Name of the Lease.",
    )
    scheduler_lease: str = knob(
        "",
        object_name("Lease", "use the resourceName of kube-scheduler's leaderElection"),
        "Name of the Lease by which the kube-schedulers of several extenders elect the active one. Its holder alone "
        "resizes pods. Empty: this extender is the only one, or leader_election is on.",
    )
    identity: str = knob(
        "",
        Form("NAME", _identity),
        "Unique name of this extender in the Lease. Empty: the host name. POD_NAME is read too.",
        also="POD_NAME",
    )

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from super()._contradictions()
        yield from incomplete_pair(self.tls_cert, self.tls_key)
        if self.client_ca is not None and self.tls_cert is None:
            yield SettingsError(
                "client certificates need TLS; give tls_cert and tls_key too", ("client_ca", "tls_cert")
            )
        if self.leader_election and not self.lease_name:
            yield SettingsError("leader election needs a lease_name; give one", ("leader_election", "lease_name"))

    @property
    def exposed(self) -> bool:
        """Whether clients on other machines can bind pods without a certificate."""
        return not on_loopback(self.listen) and self.client_ca is None

    def holder(self) -> str:
        """Return the name of this extender in the Lease; reads the host name if `identity` is empty."""
        return self.identity or socket.gethostname()

    def namespace(self, service_account: Path) -> str:
        """Return the namespace of the Lease; `service_account` is the mount point of a pod's, and need not exist."""
        return self.lease_namespace or own_namespace(service_account, "kube-system")
