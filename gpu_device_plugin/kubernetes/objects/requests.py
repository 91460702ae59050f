"""The parts of pods that their readers share: bounds, requests, claims, running and ended containers, and owners."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gpu_device_plugin.kubernetes.objects.quantity import RequestSums
from gpu_device_plugin.model.contract.keys import STATIC_POD
from gpu_device_plugin.model.pods import ContainerEnd, Owner

# What strangers write is bounded before it is kept, by the API's own limits where it has some.
LONGEST_NAME = 253
"""Bytes of the name of an object, or of an API group (RFC 1123, a subdomain)."""
LONGEST_LABEL = 63
"""Of a namespace, a container, a kind, the value of a label, and of a word such as a reason (RFC 1123, a label)."""
LONGEST_UID = 64
"""The API server makes UIDs of 36 characters. In a reference to another object it takes any text."""
LONGEST_KEY = LONGEST_NAME + 1 + LONGEST_LABEL
"""Of a key or a resource, ``<prefix>/<name>``, and of ``<group>/<version>``."""
LONGEST_SENTENCE = 1024
"""Of an Event's note. Messages in a status have no bound."""


def fits(text: str, most: int) -> bool:
    """Return whether a text has no more bytes in UTF-8 than so many."""
    return len(text) <= most and (text.isascii() or len(text.encode(errors="surrogatepass")) <= most)


def bounded(text: str | None, most: int) -> str:
    """Return a text; an empty one where it is missing, or has more than so many bytes: what it means is not known."""
    return text if text and fits(text, most) else ""


# --- The requests of pods ---------------------------------------------------------------------------------------------

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MOST_SUMMED = 64
"""The requests of pods with more containers are not added up."""
_MOST_CLAIMS = 128
"""Claims of one pod, and containers with claims. The API bounds neither."""


class Name(msgspec.Struct, gc=False):
    """An entry with a name: a claim that a container uses, or a scheduling gate."""

    name: str = ""


class Resources(msgspec.Struct, gc=False):
    """Limits and requests, as written, and the claims that a container uses."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[Name] | None = None


class ContainerSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a container that we read."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None

    @property
    def always_restarts(self) -> bool:
        """Whether an init container is a sidecar."""
        return self.restart_policy == "Always"


class Affinity(msgspec.Struct, rename="camel", gc=False):
    """What a pod says of the pods beside it."""

    pod_anti_affinity: dict[str, msgspec.Raw] | None = None


class PodClaim(msgspec.Struct, rename="camel", gc=False):
    """A claim of a pod, by its own name or that of a template; in a status, the claim that was made."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's spec that we read."""

    node_name: str | None = None
    # In bookmarks the API server writes null here.
    containers: list[ContainerSpec] | None = None
    init_containers: list[ContainerSpec] | None = None
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    affinity: Affinity | None = None
    overhead: dict[str, Any] | None = None
    resources: Resources | None = None
    resource_claims: list[PodClaim] | None = None


def repels(spec: PodSpec) -> bool:
    """Return whether evicting a pod frees more than its requests: others may then come that it keeps away."""
    return spec.affinity is not None and _REQUIRED in (spec.affinity.pod_anti_affinity or ())


def requests_of(spec: PodSpec, sums: RequestSums) -> Mapping[str, int] | None:
    """Return the requests of a pod; None where they are not added up."""
    init, app = spec.init_containers or (), spec.containers or ()
    if len(init) + len(app) > _MOST_SUMMED:
        return None
    return sums.of(
        [(each.always_restarts, requested(each.resources)) for each in init],
        [requested(each.resources) for each in app],
        (spec.resources.requests if spec.resources is not None else None) or {},
        spec.overhead or {},
    )


def requested(resources: Resources | None) -> Mapping[str, Any]:
    """Return a container's requests; a resource with only a limit counts with its limit."""
    return {} if resources is None else {**(resources.limits or {}), **(resources.requests or {})}


# --- The claims that containers use -----------------------------------------------------------------------------------


class _Mapping(msgspec.Struct, rename="camel", gc=False):
    container_name: str = ""


class _ExtendedClaim(msgspec.Struct, rename="camel", gc=False):
    """The claim that kube-scheduler made for limits of extended resources."""

    resource_claim_name: str = ""
    request_mappings: list[_Mapping] | None = None


class ClaimStatuses(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's status that names the claims that were made for it."""

    resource_claim_statuses: list[PodClaim] | None = None
    extended_resource_claim_status: _ExtendedClaim | None = None


def claims_of(spec: PodSpec, status: ClaimStatuses) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the ResourceClaims of each container; those of templates are known once they were made."""
    extended = status.extended_resource_claim_status
    if not spec.resource_claims and extended is None:
        return {}
    made = {one.name: one.resource_claim_name for one in status.resource_claim_statuses or ()}
    few = (spec.resource_claims or ())[:_MOST_CLAIMS]
    names = {one.name: bounded(one.resource_claim_name or made.get(one.name), LONGEST_NAME) for one in few}
    found: dict[str, tuple[str, ...]] = {}
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        used = () if container.resources is None else container.resources.claims or ()
        own = tuple(dict.fromkeys(name for use in used if (name := names.get(use.name))))
        if extended is not None and any(
            each.container_name == container.name for each in extended.request_mappings or ()
        ):
            own = (*own, bounded(extended.resource_claim_name, LONGEST_NAME))
        if own:
            found[container.name] = own
            if len(found) == _MOST_CLAIMS:
                break
    return found


# --- Containers that run or have ended ------------------------------------------------------------------------------


class _Running(msgspec.Struct, gc=False):
    """Only its presence matters, not its content."""


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    exit_code: int = 0
    reason: str | None = None
    finished_at: str | None = None


class _ContainerState(msgspec.Struct, gc=False):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, rename={"container_id": "containerID", "last_state": "lastState"}, gc=False):
    name: str = ""
    container_id: str | None = None
    state: _ContainerState | None = None
    last_state: _ContainerState | None = None


class PodStatus(ClaimStatuses, rename="camel", gc=False):
    """The status of a pod, as far as it is read here."""

    phase: str = ""
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None


def running(status: PodStatus, *, bound: bool) -> bool:
    """Return whether a container runs, of a pod that is `bound` to a node or not."""
    statuses = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
    if not any(statuses):  # the kubelet reports only the phase
        return bound and status.phase == "Running"
    return any(one.state is not None and one.state.running is not None for some in statuses for one in some or ())


def container_ids_of(status: PodStatus) -> Mapping[str, str]:
    """Return the ID of each running container by its name; the API has it as ``containerd://<64 digits>``."""
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return {
        one.name: one.container_id.rpartition("/")[2]
        for one in statuses
        if bounded(one.container_id, LONGEST_NAME) and one.state is not None and one.state.running is not None
    }


def ends_of(status: PodStatus) -> Mapping[str, ContainerEnd]:
    """Return the newest end of each container that has ended; the kubelet keeps the one before in ``lastState``."""
    found = {}
    for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ())):
        ends = (state.terminated for state in (one.state, one.last_state) if state is not None)
        if (end := next(filter(None, ends), None)) is not None:
            reason, at = (bounded(text, LONGEST_LABEL) for text in (end.reason, end.finished_at))
            found[one.name] = ContainerEnd(end.exit_code, reason, at)
    return found


# --- The owners of pods -----------------------------------------------------------------------------------------------

_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)
"""The UID that a kubelet gives a static pod, a hash of its manifest. UIDs of the API have dashes."""


class OwnerReference(msgspec.Struct, rename="camel", gc=False):
    """An owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


def controller_of(owners: Iterable[OwnerReference]) -> Owner | None:
    """Return the owner that is the controller; None, too, if it is named by longer texts than any object has.

    The API server bounds the names of objects, but not those in references to them.
    """
    for each in owners:
        if each.controller:
            known = (
                fits(each.kind, LONGEST_LABEL)
                and fits(each.name, LONGEST_NAME)
                and fits(each.uid, LONGEST_UID)
                and fits(each.api_version, LONGEST_KEY)
            )
            return Owner(each.kind, each.name, each.uid, each.api_version) if known else None
    return None


def static_uid(annotations: Mapping[str, str], owners: Sequence[OwnerReference], node_name: str) -> str:
    """Return the UID by which a kubelet knows the static pod of which a pod is the mirror; empty if it is no mirror.

    Any client can write the annotation on a pod that it creates, with the UID of another pod. A kubelet writes a hash,
    and that its node owns the pod (Kubernetes, pkg/kubelet/pod/mirror_client.go and pkg/kubelet/config/common.go).
    """
    uid = annotations.get(STATIC_POD, "")
    if not (uid and node_name and _HASH.fullmatch(uid)):
        return ""
    found = [(each.api_version, each.kind, each.name, each.controller) for each in owners]
    return uid if found == [("v1", "Node", node_name, True)] else ""
