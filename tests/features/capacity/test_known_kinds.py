"""How kinds of nodes are kept as text."""

import json
from dataclasses import replace

import pytest

from gpu_device_plugin.features.capacity.known_kinds import read_kind, write_kind
from gpu_device_plugin.features.capacity.rules.node_kinds import kind_of
from tests.features.capacity.rules.test_node_kinds import A100, NONE, SLICED, T4
from tests.scheduler.rules.test_fitting import node


def test_a_kind_is_kept_as_text() -> None:
    for kind in (T4, A100, kind_of(SLICED, {}, (), NONE)):
        text = write_kind(kind)
        assert text is not None
        again = read_kind(text)
        assert again == kind
        assert again.key == kind.key
    assert len({T4.key, A100.key, replace(T4, taints=()).key}) == 3
    assert replace(T4, node=node(8, models=("Tesla T4",))).key == T4.key, "one GPU is broken"


def test_of_a_node_with_all_labels_of_node_feature_discovery_the_others_are_kept() -> None:
    """These take some five thousand characters of a node with GPUs."""
    features = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE-{n:03}": "true" for n in range(100)}
    text = write_kind(replace(T4, labels={**T4.labels, **features}))

    assert text is not None
    assert read_kind(text) == T4


def test_a_kind_is_not_kept_that_cannot_be() -> None:
    assert write_kind(replace(T4, labels={"a": "b" * 5000})) is None
    assert write_kind(replace(T4, node=replace(T4.node, gpus=replace(T4.node.gpus, divided=True)))) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"gpus": {}}', "[" * 100_000, '{"gpus": 1}'])
def test_what_others_have_written_is_no_kind(text: str) -> None:
    assert read_kind(text) is None


@pytest.mark.parametrize(
    "changed",
    [{"gpus": "{}"}, {"labels": None}, {"taints": [["a"]]}, {"taints": 1}, {"allocatable": [1]}, {"others": 1}],
)
def test_nor_is_a_kind_with_a_part_that_is_none(changed: dict[str, object]) -> None:
    text = write_kind(T4)
    assert text is not None
    assert read_kind(json.dumps(json.loads(text) | changed)) is None
