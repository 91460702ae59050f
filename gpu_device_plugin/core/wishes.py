"""Which GPUs a pod's owner wants it to have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.annotations import (
    AVOID_MODEL,
    AVOID_UUID,
    GPU_POLICY,
    NODE_POLICY,
    USE_MODEL,
    USE_UUID,
    MalformedAnnotationError,
)
from gpu_device_plugin.core.policy import POLICIES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_MOST_NAMES = 64
"""In one annotation; every node is compared with each."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the annotations on a pod say of the GPUs it wants."""

    use_models: tuple[str, ...] = ()
    """Only GPUs of one of these models; empty: of any."""
    avoid_models: tuple[str, ...] = ()
    """No GPU of any of these models."""
    use_uuids: Collection[str] = frozenset()
    """Only these GPUs; empty: any."""
    avoid_uuids: Collection[str] = frozenset()
    """None of these GPUs."""
    gpu_policy: str | None = None
    """Which GPU within a node, a name in `POLICIES`; None: as the node or the configuration says."""
    node_policy: str | None = None
    """Which node, likewise."""

    @property
    def choosy(self) -> bool:
        """Whether some GPU might be refused."""
        return bool(self.use_models or self.avoid_models or self.use_uuids or self.avoid_uuids)

    def allow_model(self, model: str) -> bool:
        """Return whether GPUs of a model may be given to the pod. On a node that does not name its GPUs it is empty."""
        return (not self.use_models or any(is_model(model, wanted) for wanted in self.use_models)) and not any(
            is_model(model, unwanted) for unwanted in self.avoid_models
        )

    def allow_uuid(self, uuid: str) -> bool:
        """Return whether one GPU may be given to the pod as far as its UUID decides."""
        return (not self.use_uuids or uuid in self.use_uuids) and uuid not in self.avoid_uuids


NO_WISHES = Wishes()


def read_wishes(annotations: Mapping[str, str]) -> Wishes:
    """Read a pod's annotations.

    Raises:
        MalformedAnnotationError: one of ours cannot be understood; to guess could give the pod the wrong GPU.
    """
    wishes = Wishes(
        use_models=_list(annotations, USE_MODEL),
        avoid_models=_list(annotations, AVOID_MODEL),
        use_uuids=frozenset(_list(annotations, USE_UUID)),
        avoid_uuids=frozenset(_list(annotations, AVOID_UUID)),
        gpu_policy=_policy(annotations, GPU_POLICY),
        node_policy=_policy(annotations, NODE_POLICY),
    )
    return NO_WISHES if wishes == NO_WISHES else wishes


def is_model(product: str, wanted: str) -> bool:
    """Return whether a GPU's product name is of the model that a person means.

    Upper and lower case are the same, and so are all characters between words: ``a100-sxm4`` is an
    ``NVIDIA A100-SXM4-80GB``, ``A10`` is not.
    """
    return f" {_words(wanted)} " in f" {_words(product)} "


def _words(text: str) -> str:
    return " ".join(re.findall(r"[0-9a-z]+", text.lower()))


def _list(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    if key not in annotations:
        return ()
    named = tuple(dict.fromkeys(word.strip() for word in annotations[key].split(",") if word.strip()))
    if not named or not all(map(_words, named)):
        raise MalformedAnnotationError(f"the annotation {key} names nothing; write names with commas between them")
    if len(named) > _MOST_NAMES:
        raise MalformedAnnotationError(f"the annotation {key} names more than {_MOST_NAMES}; name fewer")
    return named


def _policy(annotations: Mapping[str, str], key: str) -> str | None:
    policy = annotations.get(key)
    if policy is not None and policy not in POLICIES:
        raise MalformedAnnotationError(f"the annotation {key} is none of {', '.join(POLICIES)}; write one of them")
    return policy
