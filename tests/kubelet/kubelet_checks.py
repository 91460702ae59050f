"""What a kubelet checks: the names of plugins, and whether a pod fits on the node beside the others."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import RegisterRequest
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError
from gpu_device_plugin.testing.pod_specs import Pod, PodSpec

API_VERSION = "v1beta1"

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_extended_resource_name(name: str) -> bool:
    """Return whether a plugin may register this name (IsExtendedResourceName in pkg/apis/core/v1/helper)."""
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith("requests.")
        # The name is checked with "requests." before it, as quotas write it.
        and len("requests." + domain) <= 253
        and len(rest) <= 63
        and _DOMAIN.fullmatch(domain) is not None
        and _NAME.fullmatch(rest) is not None
    )


def validate(request: RegisterRequest) -> None:
    """Raise AdmissionError for a plugin that may not be registered."""
    if request.version != API_VERSION:
        raise AdmissionError(
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{API_VERSION}"]'
        )
    if not is_extended_resource_name(request.resource_name):
        raise AdmissionError(f'the ResourceName "{request.resource_name}" is invalid')


def effective_requests(spec: PodSpec) -> dict[str, int]:
    """Return the pod's peak request of each resource, as the scheduler computes it."""
    staying, peak = Counter[str](), Counter[str]()
    for container in spec.containers:
        for resource, wanted in container.limits.items():
            if container.kind is ContainerKind.INIT:
                peak[resource] = max(peak[resource], staying[resource] + wanted)
            else:
                staying[resource] += wanted
    return {resource: max(peak[resource], staying[resource]) for resource in sorted(peak.keys() | staying.keys())}


def shortage(pod: Pod, others: Iterable[Pod], room: Mapping[str, int]) -> tuple[str, str] | None:
    """Return reason and message if a pod does not fit beside the others; None if it fits.

    The kubelet repeats this check of the scheduler. Resources that are missing in `room` are not checked: before a
    plugin's first registration a pod runs without its devices.
    """
    others = tuple(others)
    for resource, requested in effective_requests(pod.spec).items():
        if not requested or resource not in room:
            continue
        used = sum(effective_requests(other.spec).get(resource, 0) for other in others)
        if used + requested > room[resource]:
            message = (
                f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, "
                f"capacity: {room[resource]}"
            )
            return f"OutOf{resource}", message
    return None
