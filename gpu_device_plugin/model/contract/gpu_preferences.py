"""The GPU preferences in a pod's annotations: required and excluded GPUs, and policies."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract.keys import (
    AVOID_MODEL,
    AVOID_UUID,
    GPU_POLICY,
    LONGEST,
    NODE_POLICY,
    USE_MODEL,
    USE_UUID,
    Clause,
    MalformedAnnotationError,
    too_long,
)
from gpu_device_plugin.model.placing import POLICIES

_MOST_NAMES = 64
"""Most names in one annotation; every model of the cluster is compared with each."""
_MOST_MODELS = 1000
"""Most models in the cache; a full cache is cleared. Clusters have a handful."""


def _words(text: str) -> str:
    """Return the words of a name in lower case, with a space before and after each."""
    return f" {' '.join(re.findall(r'[0-9a-z]+', text.lower()))} "


@dataclass(frozen=True, slots=True)
class GpuSelector:
    """The preferences in the annotations of one pod."""

    use_models: tuple[str, ...] = ()
    """Only GPUs of one of these models; empty: of any."""
    avoid_models: tuple[str, ...] = ()
    """No GPU of any of these models."""
    use_uuids: Collection[str] = frozenset()
    """Only these GPUs, and MIG instances of them; empty: any."""
    avoid_uuids: Collection[str] = frozenset()
    """None of these GPUs, nor MIG instances of them."""
    gpu_policy: str | None = None
    """The policy by which a GPU of a node is chosen, a name in `POLICIES`; None: the node or the settings decide."""
    node_policy: str | None = None
    """The policy by which a node is chosen, likewise."""
    named: frozenset[str] = field(init=False, repr=False, compare=False)
    """All of `use_uuids` and `avoid_uuids`."""
    _use: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """`use_models` as `_words`."""
    _avoid: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _models: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    """A cache: whether a model is allowed."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Computed once: there may be 256 names."""

    def __post_init__(self) -> None:
        uuids = frozenset(self.use_uuids), frozenset(self.avoid_uuids)
        named = self.use_models, self.avoid_models, *uuids, self.gpu_policy, self.node_policy
        object.__setattr__(self, "_hash", hash(named))
        object.__setattr__(self, "named", uuids[0] | uuids[1])
        object.__setattr__(self, "_use", tuple(map(_words, self.use_models)))
        object.__setattr__(self, "_avoid", tuple(map(_words, self.avoid_models)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def choosy(self) -> bool:
        """Whether they may exclude a GPU."""
        return bool(self.use_models or self.avoid_models or self.use_uuids or self.avoid_uuids)

    @property
    def of_models(self) -> GpuSelector:
        """The same wishes for models, and no others."""
        others = self.use_uuids or self.avoid_uuids or self.gpu_policy or self.node_policy
        return GpuSelector(self.use_models, self.avoid_models) if others else self

    def allow_model(self, model: str) -> bool:
        """Return whether the pod may have GPUs of a model, which is empty on a node that does not name its GPUs.

        Case and the characters between words are ignored: ``a100-sxm4`` matches ``NVIDIA A100-SXM4-80GB``, ``A10``
        does not.
        """
        found = self._models.get(model)
        if found is None:
            if len(self._models) >= _MOST_MODELS:
                self._models.clear()
            words = _words(model)
            used = not self._use or any(name in words for name in self._use)
            found = self._models[model] = used and not any(name in words for name in self._avoid)
        return found

    def allow_uuid(self, uuid: str, card: str = "") -> bool:
        """Return whether the pod may have one GPU, or MIG instance, as far as its UUID decides.

        The UUID of a GPU in MIG mode, `card`, stands for all of its instances.
        """
        return (not self.use_uuids or uuid in self.use_uuids or card in self.use_uuids) and not (
            uuid in self.avoid_uuids or card in self.avoid_uuids
        )


NO_PREFERENCES = GpuSelector()


def read_preferences(annotations: Mapping[str, str]) -> GpuSelector:
    """Parse the wishes in a pod's annotations.

    Raises:
        MalformedAnnotationError: one of ours cannot be parsed; a guess could give the pod the wrong GPU.
    """
    preferences = GpuSelector(
        use_models=_list(annotations, USE_MODEL),
        avoid_models=_list(annotations, AVOID_MODEL),
        use_uuids=frozenset(_list(annotations, USE_UUID)),
        avoid_uuids=frozenset(_list(annotations, AVOID_UUID)),
        gpu_policy=_policy(annotations, GPU_POLICY),
        node_policy=_policy(annotations, NODE_POLICY),
    )
    return NO_PREFERENCES if preferences == NO_PREFERENCES else preferences


def _list(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    if key not in annotations:
        return ()
    if too_long(key, annotations[key]):
        text = "the annotation {key} is longer than {most} characters; name fewer"
        raise MalformedAnnotationError(Clause("names-too-long", text, (("key", key), ("most", LONGEST[key]))))
    named = tuple(dict.fromkeys(word.strip() for word in annotations[key].split(",") if word.strip()))
    if not named or not all(_words(name).strip() for name in named):
        text = "the annotation {key} names nothing; write names with commas between them"
        raise MalformedAnnotationError(Clause("names-nothing", text, (("key", key),)))
    if len(named) > _MOST_NAMES:
        text = "the annotation {key} names more than {most}; name fewer"
        raise MalformedAnnotationError(Clause("names-too-many", text, (("key", key), ("most", _MOST_NAMES))))
    return named


def _policy(annotations: Mapping[str, str], key: str) -> str | None:
    policy = annotations.get(key)
    if policy is not None and policy not in POLICIES:
        text, known = "the annotation {key} is none of {known}; write one of them", ", ".join(POLICIES)
        raise MalformedAnnotationError(Clause("no-such-policy", text, (("key", key), ("known", known))))
    return policy
