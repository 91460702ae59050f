"""Recorded use is read from a list of ours, and from what Prometheus answers."""

import json
from typing import Any

import pytest

from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.programs.simulate.entries import EntryError
from gpu_device_plugin.programs.simulate.model import Recording, Workload
from gpu_device_plugin.programs.simulate.sources import recorded_in

GIB = 1 << 30


def of(document: Any) -> Workload:
    found = recorded_in(json.dumps(document).encode())
    assert found is not None
    return found.workload


def series(pod: str, *gib: float, granted: bool = False, **labels: str) -> Any:
    metric = {"namespace": "team", "pod": pod, "container": "main", "gpu": "0", **labels}
    values = [[1_700_000_000 + 300 * at, str(int(each * GIB))] for at, each in enumerate(gib)]
    return {"metric": metric | ({"is": "granted"} if granted else {}), "values": values}


def answer(*result: Any) -> Any:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(result)}}


def test_a_list_has_pods_with_their_use() -> None:
    a = {"name": "a", "number": 2, "mem": 6, "use": [1, 2.5], "priority": 7, "cpu": "500m", "memory": "2Gi"}
    found = of({"step": "5m", "pods": [a, {"mem": 6, "use": [3]}]})
    assert found == Workload(
        (PodKind(6, 1, 500, 2048), PodKind(6, 1)),
        (0, 0, 1),
        ("a", "pod 2"),
        (Recording((1, 2.5), 7), Recording((3,))),
        300.0,
    )


def test_prometheus_tells_what_containers_used_and_were_granted() -> None:
    """A container that was granted more in between had the larger amount; `b` ran for a shorter time."""
    found = of(
        answer(
            series("b", 1, 2),
            series("a", 2, 3, 9.5),
            series("a", 8, 8, 10, granted=True),
            series("b", 4, 4, granted=True),
            series("idle", granted=False),
        )
    )
    assert found.names == ("team/a/main", "team/b/main")
    assert found.kinds == (PodKind(10, 1), PodKind(4, 1))
    assert found.recordings == (Recording((2, 3, 9.5)), Recording((1, 2)))
    assert (found.pods, found.step_s) == ((0, 1), 300.0)


def test_containers_with_several_gpus_and_those_without_a_grant_are_left_out_and_counted() -> None:
    found = recorded_in(
        json.dumps(
            answer(
                *(series("a", 1, 2), series("a", 4, granted=True)),
                *(series("two", 1, 2), series("two", 1, 2, gpu="1"), series("two", 4, granted=True)),
                series("trespasser", 1, 2),
            )
        ).encode()
    )
    assert found is not None
    assert (found.workload.names, found.notes) == (
        ("team/a/main",),
        ("2 containers with several GPUs, or without what it was granted, left out",),
    )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"pods": [{"mem": 1, "use": [1]}]}, "step: 'None' is not a duration"),
        ({"step": "1h", "pods": {}}, "it is not a list of pods with their use: Expected `array`"),
        ({"step": "1h", "pods": [{"mem": 1, "use": [1], "gpu": 1}]}, "unknown field `gpu`"),
        ({"step": "1h", "pods": [{"mem": 0, "use": [1]}]}, "pod 1: mem and number are whole numbers from 1 on"),
        ({"step": "1h", "pods": [{"mem": 1, "use": []}]}, "pod 1: use is a list of GiB"),
        ({"step": "1h", "pods": [{"mem": 1, "use": [-1]}]}, "pod 1: use is a list of GiB"),
        ({"step": "1h", "pods": [{"mem": 1, "use": [1], "cpu": "much"}]}, "pod 1: cpu and memory are quantities"),
        (answer(), "no container has its use over several steps"),
        (answer(series("a", 1), series("a", 1, granted=True)), "no container has its use over several steps"),
        (answer({"metric": {}, "values": [[1, "NaN"]]}), "'NaN' is no number of bytes"),
        (answer({"metric": {}, "values": [[1, "x"]]}), "'x' is no number of bytes"),
        ({"data": {"result": 3}}, "it is not an answer of Prometheus to a range query: Expected `array`"),
    ],
)
def test_what_cannot_be_used_is_named(document: Any, said: str) -> None:
    with pytest.raises(EntryError) as error:
        of(document)
    assert said in str(error.value)


def test_too_many_values_are_refused() -> None:
    with pytest.raises(EntryError, match="more than 5,000,000 values"):
        of({"step": "1h", "pods": [{"mem": 1, "use": [1] * 500_000}] * 11})


@pytest.mark.parametrize("text", [b"{}", b'{"items": []}', b"[]", b"{"])
def test_other_files_are_none_of_these(text: bytes) -> None:
    assert recorded_in(text) is None
