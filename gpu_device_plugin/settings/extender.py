"""Every knob of the scheduler extender: its default, its meaning, and what a person may write for it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpu_device_plugin.core.model.policy import POLICIES
from gpu_device_plugin.settings.common import ProgramSettings
from gpu_device_plugin.settings.forms import (
    ADDRESS,
    OPTIONAL_ADDRESS,
    OPTIONAL_PATH,
    SWITCH,
    Address,
    api_server,
    duration,
    object_name,
    one_of,
)
from gpu_device_plugin.settings.knobs import Form, SettingsError, knob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _identity(text: str) -> str:
    # A Lease takes any text for its holder; people read it in kubectl get leases.
    if not text.isprintable() or text != text.strip():
        raise ValueError(f"{text!r} is no name to be told apart by; use the name of the pod")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderSettings(ProgramSettings):
    """Everything one can choose about a scheduler extender. Read once, frozen afterwards.

    Raises:
        SettingsError: two of them contradict each other.
    """

    COMMAND: ClassVar[str] = "extender"

    listen: Address = knob(
        "127.0.0.1:32766",
        ADDRESS,
        "Where the scheduler's calls are answered. Whoever reaches it can have pods bound, so beyond loopback it needs "
        "a client_ca.",
    )
    tls_cert: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "PEM file with the certificate for listen, read again when it changes; empty: plain HTTP.",
    )
    tls_key: Path | None = knob("", OPTIONAL_PATH, "PEM file with the key of tls_cert.")
    client_ca: Path | None = knob(
        "",
        OPTIONAL_PATH,
        "PEM file with the authority that signs the scheduler's client certificate; others are then refused.",
    )
    http: Address | None = knob(
        ":9402",
        OPTIONAL_ADDRESS,
        "Where /metrics, /healthz and /readyz are served, for example 0.0.0.0:9402, or :9402 for every address. "
        "Empty or off: nowhere.",
    )
    api: str = knob(
        "auto",
        api_server("auto", "in-cluster"),
        "How the Kubernetes API is reached: in-cluster (the pod's service account), the path of a kubeconfig, an "
        "http:// address, or auto: in-cluster.",
    )
    node_policy: str = knob(
        "binpack",
        one_of(*POLICIES),
        "Which node a pod gets: binpack fills one node before the next, spread takes the emptiest.",
        live=True,
    )
    gpu_policy: str = knob(
        "binpack",
        one_of(*POLICIES),
        "Which GPU of the node a pod gets: binpack fills one GPU before the next, spread takes the emptiest.",
        live=True,
    )
    vanished_grace_s: float = knob(
        "30s",
        duration(zero=True),
        "How long a GPU of a pod that vanished while it ran counts as taken.",
        live=True,
        formerly=("drain",),
    )
    bind_timeout_s: float = knob(
        "4s",
        duration(),
        "How long binding a pod may take; the scheduler itself waits 5s unless httpTimeout says otherwise.",
        live=True,
    )
    leader_election: bool = knob(
        "false",
        SWITCH,
        "Let one of several extenders be active, by a Lease. Not needed beside a scheduler in the same pod, which has "
        "a leader of its own.",
    )
    lease_namespace: str = knob(
        "",
        object_name("namespace", "use one that kubectl get namespaces shows"),
        "Namespace of the Lease; empty: that of this pod, else kube-system.",
    )
    lease_name: str = knob(
        "gpu-device-plugin-extender",
        object_name("Lease", "use lower-case letters, digits, dashes and dots"),
        "Name of the Lease.",
    )
    identity: str = knob(
        "",
        Form("NAME", _identity),
        "What this extender calls itself in the Lease, where each needs a name of its own; empty: the host name. "
        "POD_NAME is read too.",
        also="POD_NAME",
    )

    def _contradictions(self) -> Iterator[SettingsError]:
        yield from ProgramSettings._contradictions(self)  # super() knows no class with slots
        if (self.tls_cert is None) != (self.tls_key is None):
            yield SettingsError("a certificate and its key go together; give both or neither", ("tls_cert", "tls_key"))
        if self.client_ca is not None and self.tls_cert is None:
            yield SettingsError(
                "clients show certificates over TLS only; give tls_cert and tls_key too", ("client_ca", "tls_cert")
            )
        if self.leader_election and not self.lease_name:
            yield SettingsError("leaders are elected by a Lease, which needs a name", ("leader_election", "lease_name"))

    @property
    def exposed(self) -> bool:
        """Whether somebody on another machine can have pods bound without having shown who he is."""
        local = bool(self.listen.host) and ipaddress.ip_address(self.listen.host).is_loopback
        return not local and self.client_ca is None

    def holder(self) -> str:
        """Return what this extender calls itself; asks for the host name where nothing is set."""
        return self.identity or socket.gethostname()

    def namespace(self, service_account: Path) -> str:
        """Return the namespace of the Lease; `service_account`, where a pod's is mounted, need not be there."""
        if self.lease_namespace:
            return self.lease_namespace
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if own := (service_account / "namespace").read_text(encoding="utf-8").strip():
                return own
        return "kube-system"
