"""Pods for the kubelet double, each in one line."""

from collections.abc import Iterable, Mapping

from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.pod_specs import ContainerSpec, PodSpec


def pod(
    name: str,
    *apps: Mapping[str, int],
    init: Iterable[Mapping[str, int]] = (),
    sidecars: Iterable[Mapping[str, int]] = (),
    uid: str | None = None,
    created: int | None = None,
    namespace: str = "default",
) -> PodSpec:
    """Write a pod in one line, each container as its limits: init containers i0, i1, sidecars s0, then apps c0, c1."""
    groups = ((ContainerKind.INIT, "i", init), (ContainerKind.SIDECAR, "s", sidecars), (ContainerKind.APP, "c", apps))
    containers = tuple(
        ContainerSpec(f"{letter}{number}", dict(limits), kind)
        for kind, letter, group in groups
        for number, limits in enumerate(group)
    )
    return PodSpec(name, containers, namespace=namespace, uid=uid, created=created)
