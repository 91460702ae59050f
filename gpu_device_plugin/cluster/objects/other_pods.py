"""Decode pods that ask for no GPU into the CPU and memory that they take of their nodes.

Of a pod that asks for one, decide from its spec whether only its requests determine if it fits on a node after
evictions.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from gpu_device_plugin.cluster.objects.decoding import PodObject, UnreadableObjectError, decoded
from gpu_device_plugin.cluster.objects.quantity import RequestSums
from gpu_device_plugin.cluster.objects.requests import requests_of
from gpu_device_plugin.core.cluster.other_pods import OtherPod

_OF_ONE_NODE = frozenset({"DaemonSet", "Node"})
"""The kinds of owners of pods that can run on one node only: the node itself owns the mirrors of its static pods."""
_ENDED = frozenset({"Succeeded", "Failed"})


class OtherPodReader:
    """Decodes a pod's JSON into an `OtherPod`."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(PodObject)
        self._sums = RequestSums()

    def read(self, raw: bytes | msgspec.Raw) -> OtherPod:
        """Return the pod. Requests that are invalid, or of too many containers, count as none.

        Raises UnreadableObjectError.
        """
        pod = decoded(self._decoder, raw, "pod")
        meta = pod.metadata
        if not meta.uid:
            raise UnreadableObjectError("not a pod: its uid is missing")
        return OtherPod(
            meta.uid,
            meta.resource_version,
            pod.spec.node_name or "",
            self._sums.amounts(requests_of(pod.spec, self._sums)),
            pod.status.phase in _ENDED,
            any(owner.kind in _OF_ONE_NODE for owner in meta.owner_references or ()),
            meta.creation_timestamp or "",
        )


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


class _Placing(Struct, gc=False):
    spec: _Spec = msgspec.field(default_factory=_Spec)


def fits_by_requests_alone(pod: bytes | Raw) -> bool:
    """Return whether pods of lower priority can keep this pod off a node only by their requests.

    False where host ports, the placement of other pods, claimed devices or claimed volumes may also decide, and where
    the pod cannot be decoded.
    """
    try:
        spec = msgspec.json.decode(pod, type=_Placing).spec
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
