"""Decide from a pod's spec whether only its requests determine if it fits on a node after evictions."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

# A node provides any number of these kinds, and no pod can block another's.
_UNLIMITED_VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "projected", "secret"})


class _Port(Struct, rename="camel", gc=False):
    host_port: int | None = None


class _Container(Struct, gc=False):
    ports: list[_Port] | None = None


class _Affinity(Struct, rename="camel", gc=False):
    pod_affinity: dict[str, Raw] | None = None
    pod_anti_affinity: dict[str, Raw] | None = None


class _Spec(Struct, rename="camel", gc=False):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    affinity: _Affinity | None = None
    topology_spread_constraints: list[Raw] | None = None
    resource_claims: list[Raw] | None = None
    volumes: list[dict[str, Raw]] | None = None


class _Pod(Struct, gc=False):
    spec: _Spec = msgspec.field(default_factory=_Spec)


def fits_by_requests_alone(pod: bytes | Raw) -> bool:
    """Return whether pods of lower priority can keep this pod off a node only by their requests.

    False where host ports, the placement of other pods, claimed devices or claimed volumes may also decide, and where
    the pod cannot be decoded.
    """
    try:
        spec = msgspec.json.decode(pod, type=_Pod).spec
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    affinity = spec.affinity or _Affinity()
    volumes = (kind for volume in spec.volumes or () for kind in volume if kind != "name")
    return not (
        any(port.host_port for container in containers for port in container.ports or ())
        or affinity.pod_affinity
        or affinity.pod_anti_affinity
        or spec.topology_spread_constraints
        or spec.resource_claims
        or not _UNLIMITED_VOLUMES.issuperset(volumes)
    )
