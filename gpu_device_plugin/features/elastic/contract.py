"""Memory that changes while a pod runs: what its owner asks for, what became of it, and a file for its program.

What extender and agent answer stands in `model.contract.reservations`. Amounts are shares.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_device_plugin.model.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    RESIZE_BOUND,
    MalformedAnnotationError,
    compact,
)
from gpu_device_plugin.model.contract.reservations import (
    BLANKS,
    Answer,
    bounded,
    by_container,
    json_object,
    read_answer,
    shares_in,
)
from gpu_device_plugin.model.pods import Pod


@dataclass(frozen=True, slots=True)
class Wish:
    """Shares for the containers of a pod."""

    every: int | None = None
    """For every container without an entry of its own; None: it has no wish."""
    containers: Mapping[str, int] = field(default_factory=dict)
    malformed: str = ""
    """Why the annotation cannot be parsed, as a clause; then it counts as no wish. Empty: it is well-formed."""

    def of(self, container: str) -> int | None:
        """Return the shares for one container; None: no wish."""
        return self.containers.get(container, self.every)

    def in_vain(self, resizable: Container[str]) -> list[str]:
        """Return a sentence for each container that it names, and that is none of those that can be resized."""
        named = sorted(name for name in self.containers if name not in resizable)
        return [f"container {name!r} has no shares of a single GPU, and only those can grow" for name in named]


NO_WISH = Wish()


def read_wish(annotations: Mapping[str, str], key: str) -> Wish:
    """Parse `MEMORY_LIMIT` or `MEMORY_GUARANTEE` in a pod's annotations: a number from 1 on, or such by container."""
    if key not in annotations:
        return NO_WISH
    try:
        return _wish(key, bounded(annotations, key))
    except MalformedAnnotationError as error:
        return Wish(malformed=str(error))


def _wish(key: str, text: str) -> Wish:
    if not text.strip(BLANKS).startswith("{"):
        return Wish(every=shares_in(key, text))
    if "\\" in text:
        raise MalformedAnnotationError(f"the annotation {key} holds a backslash, as no name of a container does")
    return Wish(containers=by_container(key, json_object(key, text)))


def is_elastic(annotations: Mapping[str, str]) -> bool:
    """Return whether the owner of a pod wants its memory to differ from its requests."""
    return MEMORY_LIMIT in annotations or MEMORY_GUARANTEE in annotations


class MemoryRequests(NamedTuple):
    """What the owner of a pod asks for, parsed once for all of its containers."""

    limit: Wish
    guarantee: Wish

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> MemoryRequests:
        """Parse the annotations of a pod."""
        return cls(read_wish(annotations, MEMORY_LIMIT), read_wish(annotations, MEMORY_GUARANTEE))

    @property
    def malformed(self) -> Sequence[str]:
        """A clause for each wish that cannot be parsed."""
        return [wish.malformed for wish in self if wish.malformed]

    def limit_of(self, container: str, guaranteed: int, gpu_shares: int, *, may_borrow: bool) -> int:
        """Return the most shares of its GPU that a container may use, while those beyond its guarantee are free.

        Args:
            container: its name.
            guaranteed: the shares that are held for it: its request, or more after a resize.
            gpu_shares: all shares of its GPU.
            may_borrow: whether the node lets containers use more than they are guaranteed.
        """
        wanted = self.limit.of(container)
        if wanted is None:
            # The kubelet takes no device IDs back from a running container, so a smaller guarantee lowers the limit.
            wanted = min(guaranteed, self.guarantee.of(container) or guaranteed)
        return min(wanted, gpu_shares if may_borrow else guaranteed)


def write_wish(wish: Wish) -> str:
    """Return the value of `MEMORY_LIMIT` or `MEMORY_GUARANTEE`."""
    return compact(dict(sorted(wish.containers.items()))) if wish.containers else str(wish.every)


@dataclass(frozen=True, slots=True)
class Size:
    """The guarantee of a container that can be resized: requested, wished for, promised and held."""

    container: str
    gpu: int
    """The position of its GPU."""
    request: int
    wish: int | None
    """What its owner wants it to be guaranteed; None: its request."""
    promised: int
    """What the extender has promised; without an extender what its owner wants."""
    held: int
    """What it is guaranteed, as its pod shows it."""

    @property
    def target(self) -> int:
        """The guarantee that it comes to if nothing is in the way."""
        return max(self.request, self.wish or 0)

    @property
    def more(self) -> int:
        """What its owner wants beyond what is promised; not more than 0: nothing."""
        return self.target - self.promised

    @property
    def beyond(self) -> int:
        """The shares beyond its request that its node is to guarantee: wished for, and promised."""
        return min(self.target, self.promised) - self.request


@dataclass(frozen=True, slots=True)
class PodGuarantees:
    """What the annotations of a pod say of its guarantees, parsed once."""

    pod: Pod
    wish: Wish
    promised: Answer | None
    """By the scheduler extender; None: there is none, and the node decides alone."""
    held: Answer
    """As the pod shows it, whoever wrote it."""

    @classmethod
    def of(cls, pod: Pod) -> PodGuarantees:
        """Parse the annotations of a pod."""
        wish = read_wish(pod.annotations, MEMORY_GUARANTEE)
        promised, held = (read_answer(pod.annotations, key) for key in (MEMORY_PROMISED, MEMORY_HELD))
        return cls(pod, wish, promised if MEMORY_PROMISED in pod.annotations else None, held)

    def size(self, container: str, gpu: int, request: int) -> Size:
        """Return the size of a container with so many shares of the GPU at a position."""
        wish = self.wish.of(container)
        wanted = max(request, wish or 0)
        promised = wanted if self.promised is None else max(request, self.promised.guarantees.get(container, 0))
        return Size(container, gpu, request, wish, promised, max(request, self.held.guarantees.get(container, 0)))


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the pods of a namespace may be guaranteed beyond their requests, in sum."""

    namespace: str
    bound: int | None
    """None: the namespace has no label with a number."""
    used: int = 0

    @classmethod
    def of(cls, namespace: str, labels: Mapping[str, str], used: int = 0) -> Allowance:
        """Return the allowance of a namespace with these labels."""
        text = labels.get(RESIZE_BOUND, "")
        return cls(namespace, int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None, used)

    def refusal(self, more: int) -> str:
        """Return why its pods may not be guaranteed so many more shares; empty if they may."""
        if self.bound is None:
            return (
                f"namespace {self.namespace} has no label {RESIZE_BOUND}, and ResourceQuota does not see a guarantee "
                "that grows while a pod runs: ask an administrator to label it"
            )
        if self.used + more <= self.bound:
            return ""
        return (
            f"the pods of namespace {self.namespace} may have {units(self.bound)} beyond their requests (label "
            f"{RESIZE_BOUND}), and have {self.used}"
        )


def units(shares: int) -> str:
    """Return an amount of GPU memory for people who know its resource, but not the size of a share."""
    return f"{shares} share{'' if shares == 1 else 's'}"


# --- The file that tells a program in a container its memory ----------------------------------------------------------

MEMORY_DIRECTORY = "/run/gpushare"
"""In the container: a read-only mount of a directory that no other container has. The agent of the node replaces the
file there atomically whenever something changes."""
MEMORY_FILE = "memory.json"
IN_CONTAINER = f"{MEMORY_DIRECTORY}/{MEMORY_FILE}"


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """The memory of a container on its GPU, in MiB."""

    guaranteed_mib: int
    limit_mib: int
    """The most that it may use now: beyond the guarantee only what nobody else is guaranteed."""
    most_mib: int
    """The limit that its owner asked for: `limit_mib` never exceeds it."""
    return_mib: int = 0
    """The memory beyond the guarantee that is needed back; 0: none."""
    return_by: str = ""
    """RFC 3339: when the pod may be evicted if it is not back; empty: it is not asked, or nobody evicts it."""
    needed_by: str = ""
    """``namespace/name`` of the pod that needs it, the first of several; empty: of another namespace, or not known."""


def write_memory_file(memory: MemoryFile) -> str:
    """Return the text of the file."""
    document: dict[str, object] = {
        "version": 1,
        "guaranteed_mib": memory.guaranteed_mib,
        "limit_mib": memory.limit_mib,
        "most_mib": memory.most_mib,
        "return": None,
    }
    if memory.return_mib:
        document["return"] = {
            "mib": memory.return_mib,
            "by": memory.return_by or None,
            "needed_by": memory.needed_by or None,
        }
    return json.dumps(document, indent=1) + "\n"
