"""Pods that were made to be much work for whoever has to decide on them; the API server would take each.

All annotations of a pod may have 256 KiB together, and an object 1.5 MB.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    AVOID_MODEL,
    AVOID_UUID,
    ELASTIC,
    GPU_POLICY,
    IDX,
    INIT_ALLOCATION,
    LONGEST,
    LONGEST_OF_CONTAINER,
    LONGEST_WORD,
    MEMORY_GUARANTEE,
    MEMORY_LIMIT,
    MOVE_TO,
    PLACES,
    READ_BY_AGENT,
    SPLIT_LABEL,
    USE_MODEL,
    USE_UUID,
)
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.builders import Json

MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def pod(
    *app: Mapping[str, str],
    inits: Sequence[Mapping[str, str]] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    node: str | None = None,
) -> Json:
    """Return a pod with a container for each of these limits."""

    def containers(limits: Sequence[Mapping[str, str]], prefix: str) -> list[dict[str, Any]]:
        return [
            {"name": f"{prefix}{index}", "image": "a", "resources": {"limits": dict(each)}}
            for index, each in enumerate(limits)
        ]

    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "u",
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
        },
        "spec": {
            "containers": containers(app, "c"),
            "initContainers": containers(inits, "i"),
            **({} if node is None else {"nodeName": node}),
        },
    }


def _memory(*amounts: int) -> list[dict[str, str]]:
    return [{MEMORY: str(amount)} for amount in amounts]


_ONE, _GPU = {MEMORY: "1"}, {COUNT: "1"}
_FOUR = {MEMORY: "4"}
_LONG_NAMES = ",".join(f"x{n}" + "-q" * 1950 for n in range(64))
_MANY_NAMES = ",".join(f"n{n}" for n in range(37_000))
_NAMES = ",".join(f"model-{n}" for n in range(64))
_UUIDS = ",".join(f"GPU-{n:08x}-1f0a-4e7b-b2d4-000000000000" for n in range(64))

PODS: Mapping[str, Json] = MappingProxyType(
    {
        "a name that is as long as it may be, 64 times": pod(_FOUR, annotations={AVOID_MODEL: _LONG_NAMES}),
        "a name that is as long as it may be, 64 times, and a UUID": pod(
            _FOUR, annotations={AVOID_MODEL: _LONG_NAMES, AVOID_UUID: "x"}
        ),
        "37,000 names": pod(_FOUR, annotations={USE_MODEL: _MANY_NAMES}),
        "64 models and 64 GPUs to avoid": pod(_FOUR, annotations={AVOID_MODEL: _NAMES, AVOID_UUID: _UUIDS}),
        "64 models to have, 64 to avoid, and a UUID": pod(
            _FOUR, annotations={USE_MODEL: f"{_NAMES[:-9]},v100", AVOID_MODEL: _NAMES, AVOID_UUID: "x"}
        ),
        "64 GPUs to have": pod(_FOUR, annotations={USE_UUID: _UUIDS}),
        "16 containers, of a model": pod(*_memory(*range(1, 17)), annotations={USE_MODEL: "v100"}),
        "a policy of 250,000 characters": pod(_FOUR, annotations={GPU_POLICY: "x" * 250_000}),
        "a promise of 25,000 GPUs": pod(
            _FOUR, annotations={ALLOCATION: json.dumps({"0": {str(n): 1 for n in range(25_000)}})}
        ),
        "a promise that begins 250,000 times": pod(_FOUR, annotations={ALLOCATION: "[" * 250_000}),
        "a split over as many GPUs as there are shares, beside a whole GPU": pod(
            {MEMORY: str(1 << 20)}, _GPU, labels={SPLIT_LABEL: str(1 << 20)}
        ),
        "a split over 64 GPUs, beside a whole GPU": pod({MEMORY: "64"}, _GPU, labels={SPLIT_LABEL: "64"}),
        "a split over 8 GPUs, beside 8 whole ones": pod({MEMORY: "64"}, *[_GPU] * 8, labels={SPLIT_LABEL: "8"}),
        "more whole GPUs than 64 bits hold": pod(*[{COUNT: str(2**63 - 1)}] * 3),
        "as many shares as 63 bits hold": pod({MEMORY: str(2**63 - 1)}),
        "16 containers, all different": pod(*_memory(*range(1, 17))),
        "16 containers of odd sizes": pod(*_memory(3, 5, 7, 9, 11, 13, 2, 4, 6, 8, 10, 12, 3, 5, 7, 9)),
        "15 containers of odd sizes, beside a whole GPU": pod(
            *_memory(3, 5, 7, 9, 11, 13, 2, 4, 6, 8, 10, 12, 3, 5, 7), _GPU
        ),
        "14 containers of 5": pod(*_memory(*[5] * 14)),
        "16 containers of 6 and 7": pod(*_memory(*[6, 7] * 8)),
        "16 containers of 3, 4 and 5": pod(*_memory(*[3, 4, 5] * 5, 3)),
        "8 containers with a GPU each": pod(*[_GPU] * 8),
        "10,000 containers": pod(*[_ONE] * 10_000),
        "10,000 init containers": pod(_ONE, inits=[_ONE] * 10_000),
        "8,000 init containers with a promise": pod(
            _ONE,
            inits=[_ONE] * 8000,
            annotations={ALLOCATION: json.dumps({str(n): {"0": 1} for n in range(4000)}), INIT_ALLOCATION: "{}"},
        ),
        "8,000 containers that ask for both": pod(*[{**_ONE, **_GPU}] * 8000),
        "8,000 containers that ask for nothing": pod(*[{MEMORY: "0"}] * 8000, _FOUR),
        "10,000 containers of which one asks": pod(*[{"cpu": "1"}] * 10_000, _FOUR),
        "5,000 limits that are no numbers": pod(*[{MEMORY: "9" * 19 + "." + "9" * 9 + "E"}] * 5000),
    }
)

_LONG = "the annotation gpu-device-plugin/{} is longer than 4096 characters; name fewer"
_CONTAINERS = f"more than {MOST_CONTAINERS} of its containers have a limit of {MEMORY} or {COUNT}; use fewer"

CLEARLY_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "a name that is as long as it may be, 64 times": _LONG.format("avoid-model"),
        "37,000 names": _LONG.format("use-model"),
        "a policy of 250,000 characters": (
            "the annotation gpu-device-plugin/gpu-policy is none of fit, binpack, spread; write one of them"
        ),
        "a split over as many GPUs as there are shares, beside a whole GPU": (
            "the pod label aliyun.com/gpu-count asks for 1048576 GPUs, and no node can have more than 128"
        ),
        "more whole GPUs than 64 bits hold": (
            "it requests 9223372036854775807 whole GPUs, and no node can have more than 128"
        ),
        "as many shares as 63 bits hold": (
            "gpu-mem counts shares of GPU memory (1 GiB each unless configured otherwise): write 10, not 10Gi"
        ),
        "10,000 containers": _CONTAINERS,
        "8,000 containers that ask for both": _CONTAINERS,
        "8,000 containers that ask for nothing": _CONTAINERS,
    }
)
"""Those of `PODS` that no node can ever serve, and why."""


def written(number: int, node: str | None = None) -> Json:
    """Return a pod on which every annotation that programs read is as long as they read it, unlike any other pod's."""

    def text(key: str) -> str:
        most = LONGEST.get(key, LONGEST_WORD)
        if key in PLACES:
            begin, end = '{"0":{"0":4}', "}"
        elif key == MOVE_TO:
            begin, end = '{"node":"n","gpus":{"0":4}', "}"
        elif key in {MEMORY_LIMIT, MEMORY_GUARANTEE}:
            begin, end = '{"c0":8', "}"
        elif key in ELASTIC:
            begin, end = '{"guarantees":{"c0":5}', "}"
        else:
            return f"{key[-9:]}-{number}-".ljust(most, "q")[:most]
        most = min(most, LONGEST_OF_CONTAINER.get(key, most))
        return begin + " " * (most - len(begin) - len(end)) + end

    made = pod(_FOUR, annotations={key: text(key) for key in READ_BY_AGENT - {IDX}}, node=node)
    return _named(made, f"written-{number}")


def crowd(number: int, node: str | None = None) -> Json:
    """Return a pod of as many containers as may have GPUs, with the longest names, unlike any other pod's."""
    made = pod(*[_ONE] * MOST_CONTAINERS, node=node)
    for at, container in enumerate(made["spec"]["containers"]):
        container["name"] = f"c{at}-{number}-".ljust(63, "q")
    return _named(made, f"crowd-{number}")


def _named(made: Json, name: str) -> Json:
    made["metadata"] |= {"name": name, "uid": f"{name}-".ljust(36, "0")}
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return made


_WISHED = (USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID)
WAITING = (62_500, LONGEST[USE_MODEL])
"""Characters of each of the four annotations of `waiting`: as many as the API server takes, and as are read."""


def waiting(number: int, characters: int) -> Json:
    """Return a pod with four lists of so many characters, unlike those of any other pod."""
    names = "".join(f"{n}-{number}," for n in range(64))
    text = (names + f"{number}-q" * (characters // 3))[:characters]
    made = pod(_FOUR, annotations={key: f"{key[-9:]}{text}"[:characters] for key in _WISHED})
    return _named(made, f"waiting-{number}")
