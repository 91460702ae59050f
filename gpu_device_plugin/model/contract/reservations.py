"""What is held for the containers of a running pod beside their requests, as the annotations of the pod say it.

Each annotation has one writer. A guarantee grows when the extender has promised it (`MEMORY_PROMISED`) and the agent
holds it (`MEMORY_HELD`); it shrinks when the agent has given it up, and then the extender promises less. So the agent
never holds more than is promised, and the promise alone counts. Amounts are shares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from gpu_device_plugin.model.contract.keys import (
    LONGEST,
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_PROMISED,
    MalformedAnnotationError,
    compact,
    too_long,
)
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.gpus import MOST_SHARES

_LONGEST_WISH = 512
"""Characters of a wish in an answer; of a longer one the beginning stands there."""
_LONGEST_WHY = 512
_PLAIN = re.compile(r"[ -~\n\t\r]")
"""JSON writes it with at most two characters."""
_LONGEST_AMOUNT = 24
"""Characters of a malformed amount that a sentence repeats."""
BLANKS = " \t\r\n"
"""Of JSON. An admission policy reads wishes too: what it would read otherwise is malformed here."""


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
        fields = json_object(key, bounded(annotations, key)) if key in annotations else {}
        guarantees, texts = fields.get("guarantees", {}), [fields.get(name, "") for name in ("wish", "why")]
        if not fields or not isinstance(guarantees, dict) or not all(isinstance(text, str) for text in texts):
            return NO_ANSWER
        return Answer(by_container(key, guarantees), *texts)
    except MalformedAnnotationError:
        return NO_ANSWER


def guarantees(annotations: Mapping[str, str]) -> Mapping[str, int]:
    """Return the shares that count for each container of a pod beside its request.

    Those that an extender promised; where the node's agent decides alone, those that it holds. What stands on a pod as
    held beyond its promise is not the agent's, but somebody else's who wants memory kept free.
    """
    return read_answer(annotations, MEMORY_PROMISED if MEMORY_PROMISED in annotations else MEMORY_HELD).guarantees


def bounded(annotations: Mapping[str, str], key: str) -> str:
    """Return an annotation of memory. Raises MalformedAnnotationError: it is too long."""
    if too_long(key, annotations[key]):
        raise MalformedAnnotationError(f"the annotation {key} is longer than {LONGEST[key]} characters")
    return annotations[key]


def json_object(key: str, text: str) -> Mapping[str, Any]:
    """Parse an annotation that names nothing twice. Raises MalformedAnnotationError: it is no JSON object, or does."""
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


def by_container(key: str, amounts: Mapping[str, object]) -> Mapping[str, int]:
    """Return shares by container. Raises MalformedAnnotationError: there are too many, or one is no such number."""
    # Strangers write it, and each reading of use parses it.
    if len(amounts) > MOST_CONTAINERS:
        raise MalformedAnnotationError(f"the annotation {key} names more than {MOST_CONTAINERS} containers")
    return {name: shares_in(key, amount) for name, amount in amounts.items()}


def shares_in(key: str, value: object) -> int:
    """Return a number of shares, or the number in a text. Raises MalformedAnnotationError: it is none."""
    if isinstance(value, str) and len(value) <= 16 and (digits := value.strip(BLANKS)).isascii() and digits.isdigit():
        value = int(digits)
    if type(value) is int and 1 <= value <= MOST_SHARES:
        return value
    text = json.dumps(value)
    found = text if len(text) <= _LONGEST_AMOUNT else "a value"
    raise MalformedAnnotationError(
        f"the annotation {key} holds {found}, which is not a whole number of shares of GPU memory; write it like 12, "
        "or "
        '{"main": 12}'
    )
