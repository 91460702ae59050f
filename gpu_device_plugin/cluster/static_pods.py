"""Tell the mirror pods that kubelets make of their static pods from pods that only claim to be some."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.core.contract.keys import STATIC_POD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
"""The UID that a kubelet gives a static pod, a hash of its manifest. UIDs of the API have dashes."""


class Owner(msgspec.Struct, rename="camel", gc=False):
    """An owner of an object, without its UID."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


def static_uid(annotations: Mapping[str, str], owners: Sequence[Owner], node_name: str) -> str:
    """Return the UID by which a kubelet knows the static pod of which a pod is the mirror; empty if it is no mirror.

    Any client can write the annotation on a pod that it creates, with the UID of another pod. A kubelet writes a hash,
    and that its node owns the pod (Kubernetes, pkg/kubelet/pod/mirror_client.go and pkg/kubelet/config/common.go).
    """
    uid = annotations.get(STATIC_POD, "")
    owned = len(owners) == 1 and owners[0] == Owner("v1", "Node", node_name, controller=True)
    return uid if owned and node_name and _HASH.fullmatch(uid) else ""
