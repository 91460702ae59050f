"""When a node changes over to the way in which it is to serve."""

import pytest

from gpu_device_plugin.features.claims.node import choose_mode
from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode

PLUGIN, DRA = ServingMode.DEVICE_PLUGIN, ServingMode.DRA


@pytest.mark.parametrize(
    ("wanted", "before", "pods", "claims", "expected"),
    [
        (PLUGIN, None, [], [], Serving(PLUGIN)),
        (DRA, None, [], [], Serving(DRA)),
        (PLUGIN, None, ["pod a/b"], [], Serving(PLUGIN)),
        (DRA, None, [], ["claim a/b"], Serving(DRA)),
        (DRA, None, ["pod a/b"], ["claim a/b"], Serving(DRA)),
        (DRA, PLUGIN, [], ["claim a/b"], Serving(DRA)),
        (PLUGIN, DRA, ["pod a/b"], [], Serving(PLUGIN)),
        (DRA, DRA, ["pod a/b"], [], Serving(DRA)),
    ],
)
def test_nobody_is_in_the_way(
    wanted: ServingMode, before: ServingMode | None, pods: list[str], claims: list[str], expected: Serving
) -> None:
    found = choose_mode(wanted, before, {PLUGIN: pods, DRA: claims})
    assert found == expected
    assert not found.waits


@pytest.mark.parametrize("before", [None, PLUGIN])
def test_a_node_waits_for_those_who_hold_gpus_in_the_other_way(before: ServingMode | None) -> None:
    found = choose_mode(DRA, before, {PLUGIN: ["pod b/1", "pod a/1"], DRA: []})
    assert found.mode is PLUGIN
    assert found.waits
    assert found.waits == (
        "this node will serve through dra instead of device-plugin later: pod a/1, pod b/1 still hold its GPUs, and "
        "new pods get none until they have ended"
    )


def test_one_holder_and_many_are_told() -> None:
    assert choose_mode(PLUGIN, DRA, {PLUGIN: [], DRA: ["claim a/b"]}).waits == (
        "this node will serve through device-plugin instead of dra later: claim a/b still holds its GPUs, and new "
        "pods get none until it has ended"
    )
    many = choose_mode(PLUGIN, DRA, {PLUGIN: [], DRA: [f"claim a/{n}" for n in range(7)]})
    assert "claim a/0, claim a/1, claim a/2 and 4 more still hold" in many.waits
    three = choose_mode(PLUGIN, DRA, {PLUGIN: [], DRA: [f"claim a/{n}" for n in range(3)]})
    assert "claim a/0, claim a/1, claim a/2 still hold" in three.waits
