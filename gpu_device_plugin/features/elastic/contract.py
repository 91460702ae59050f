"""Memory that changes while a pod runs: what its owner asks for, the answers of scheduler and agent, a program's file.

Each annotation has one writer. A guarantee grows when the extender has promised it (`MEMORY_PROMISED`) and the agent
holds it (`MEMORY_HELD`); it shrinks when the agent has given it up, and then the extender promises less. So the agent
never holds more than is promised, and the promise alone counts. Amounts are shares.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_device_plugin.model.contract.keys import (
    LONGEST,
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    RESIZE_BOUND,
    MalformedAnnotationError,
    compact,
    too_long,
)
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.gpus import MOST_SHARES

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from gpu_device_plugin.model.pods import Pod

_LONGEST_WISH = 512
"""Characters of a wish in an answer; of a longer one the beginning stands there."""
_LONGEST_WHY = 512
_PLAIN = re.compile(r"[ -~\n\t\r]")
"""JSON writes it with at most two characters."""
_LONGEST_AMOUNT = 24
"""Characters of a malformed amount that a sentence repeats."""
_BLANKS = " \t\r\n"
"""Of JSON. An admission policy reads wishes too: what it would read otherwise is malformed here."""


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
        return [f"container {name!r} has no shares of one GPU, which alone can grow" for name in named]


NO_WISH = Wish()


def read_wish(annotations: Mapping[str, str], key: str) -> Wish:
    """Parse `MEMORY_LIMIT` or `MEMORY_GUARANTEE` in a pod's annotations: a number from 1 on, or such by container."""
    if key not in annotations:
        return NO_WISH
    try:
        return _wish(key, _bounded(annotations, key))
    except MalformedAnnotationError as error:
        return Wish(malformed=str(error))


def _wish(key: str, text: str) -> Wish:
    if not text.strip(_BLANKS).startswith("{"):
        return Wish(every=_shares(key, text))
    if "\\" in text:
        raise MalformedAnnotationError(f"the annotation {key} holds a backslash, as no name of a container does")
    return Wish(containers=_by_container(key, _parsed(key, text)))


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
class Answer:
    """The guarantees that one program stands for, and the wish that it answers with them."""

    guarantees: Mapping[str, int] = field(default_factory=dict)
    """Shares by the name of each container that has more than its request."""
    wish: str = ""
    """The text of `MEMORY_GUARANTEE`, or its beginning; empty: none."""
    why: str = ""
    """Why the wish is not fulfilled (yet), as a sentence without a full stop; empty: it is."""

    def answers(self, annotations: Mapping[str, str]) -> bool:
        """Return whether it is about the present wish of the pod with these annotations."""
        return self.wish == _repeated(annotations)


NO_ANSWER = Answer()


def answer_to(annotations: Mapping[str, str], guarantees: Mapping[str, int], why: str = "") -> Answer:
    """Return an answer to the present wish of the pod with these annotations."""
    plain = "".join(each if _PLAIN.fullmatch(each) else "?" for each in why[:_LONGEST_WHY])
    return Answer(guarantees, _repeated(annotations), plain)


def _repeated(annotations: Mapping[str, str]) -> str:
    """Return the wish of a pod up to the first character that JSON writes with six; a readable wish has none."""
    return "".join(takewhile(_PLAIN.fullmatch, annotations.get(MEMORY_GUARANTEE, "")[:_LONGEST_WISH]))


def write_answer(answer: Answer) -> str:
    """Return the value of `MEMORY_PROMISED` or `MEMORY_HELD`."""
    document: dict[str, object] = {
        "guarantees": dict(sorted(answer.guarantees.items())),
        "wish": answer.wish,
        "why": answer.why,
    }
    return compact({key: value for key, value in document.items() if value})


def read_answer(annotations: Mapping[str, str], key: str) -> Answer:
    """Parse `MEMORY_PROMISED` or `MEMORY_HELD` in a pod's annotations; `NO_ANSWER` if that is missing or malformed."""
    try:
        fields = _parsed(key, _bounded(annotations, key)) if key in annotations else {}
        guarantees, texts = fields.get("guarantees", {}), [fields.get(name, "") for name in ("wish", "why")]
        if not fields or not isinstance(guarantees, dict) or not all(isinstance(text, str) for text in texts):
            return NO_ANSWER
        return Answer(_by_container(key, guarantees), *texts)
    except MalformedAnnotationError:
        return NO_ANSWER


def guarantees(annotations: Mapping[str, str]) -> Mapping[str, int]:
    """Return the shares that count for each container of a pod beside its request.

    Those that an extender promised; where the node's agent decides alone, those that it holds. What stands on a pod as
    held beyond its promise is not the agent's, but somebody else's who wants memory kept free.
    """
    return read_answer(annotations, MEMORY_PROMISED if MEMORY_PROMISED in annotations else MEMORY_HELD).guarantees


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
    return f"{shares} unit{'' if shares == 1 else 's'}"


def _bounded(annotations: Mapping[str, str], key: str) -> str:
    if too_long(key, annotations[key]):
        raise MalformedAnnotationError(f"the annotation {key} is longer than {LONGEST[key]} characters")
    return annotations[key]


def _parsed(key: str, text: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text, object_pairs_hook=partial(_once, key))
    except MalformedAnnotationError:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedAnnotationError(f"the annotation {key} is not JSON") from error
    if not isinstance(parsed, dict):
        raise MalformedAnnotationError(f"the annotation {key} is not a JSON object")
    return parsed


def _once(key: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedAnnotationError(f"the annotation {key} names something twice")
    return found


def _by_container(key: str, amounts: Mapping[str, object]) -> Mapping[str, int]:
    # Strangers write it, and each reading of use parses it.
    if len(amounts) > MOST_CONTAINERS:
        raise MalformedAnnotationError(f"the annotation {key} names more than {MOST_CONTAINERS} containers")
    return {name: _shares(key, amount) for name, amount in amounts.items()}


def _shares(key: str, value: object) -> int:
    if isinstance(value, str) and len(value) <= 16 and (digits := value.strip(_BLANKS)).isascii() and digits.isdigit():
        value = int(digits)
    if type(value) is int and 1 <= value <= MOST_SHARES:
        return value
    text = json.dumps(value)
    found = text if len(text) <= _LONGEST_AMOUNT else "a value"
    raise MalformedAnnotationError(
        f"the annotation {key} holds {found}, which is not a whole number of units of GPU memory; write it like 12, or "
        '{"main": 12}'
    )


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
