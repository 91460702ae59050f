"""Decode pods that ask for no GPU into the CPU and memory that they take of their nodes."""

from __future__ import annotations

import msgspec

from gpu_device_plugin.cluster.objects.decoding import UnreadableObjectError, decoded
from gpu_device_plugin.cluster.objects.quantity import RequestSums
from gpu_device_plugin.cluster.objects.requests import PodSpec, requests_of
from gpu_device_plugin.core.cluster.other_pods import OtherPod

_OF_ONE_NODE = frozenset({"DaemonSet", "Node"})
"""The kinds of owners of pods that can run on one node only: the node itself owns the mirrors of its static pods."""
_ENDED = frozenset({"Succeeded", "Failed"})


class _Owner(msgspec.Struct, gc=False):
    kind: str = ""


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    owner_references: list[_Owner] | None = None


class _Status(msgspec.Struct, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: _Status = msgspec.field(default_factory=_Status)


class OtherPodReader:
    """Decodes a pod's JSON into an `OtherPod`."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Pod)
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
