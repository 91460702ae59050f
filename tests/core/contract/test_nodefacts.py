"""What a node says of itself."""

from __future__ import annotations

import json

import pytest

from gpu_device_plugin.core.contract.keys import NODE_GPUS, PLACEMENT_LABEL
from gpu_device_plugin.core.contract.nodefacts import AWAY, NodeFacts, read_facts
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS, Links, by_division, read_node_gpus

SAID = json.dumps({"version": 1, "shareMiB": 1024, "policy": "spread", "gpus": [{"index": 0, "shares": 14}]})


def test_a_node_without_any_gpu_is_no_problem() -> None:
    assert read_facts({}, {}, 0, 0) == NodeFacts(NO_GPUS, policy=None, problem="")


def test_the_agent_is_believed_before_the_capacity() -> None:
    """The capacity is late by some seconds, and says nothing of the single GPU."""
    assert read_facts({NODE_GPUS: SAID}, {}, 28, 2) == NodeFacts(read_node_gpus(SAID), "spread")


def test_what_is_known_of_the_links_of_other_nodes_is_used() -> None:
    known: dict[str, Links] = {}
    linked = json.dumps({**json.loads(SAID), "links": [[0, 1, "nvlink", 4]]})
    one, other = (read_facts({NODE_GPUS: linked}, {}, 0, 0, known) for _ in range(2))
    assert one.gpus.links is other.gpus.links
    assert list(known.values()) == [one.gpus.links]


def test_a_node_of_gpushare_is_divided() -> None:
    assert read_facts({"other": "x"}, {}, 30, 2) == NodeFacts(by_division(30, 2))


def test_an_annotation_that_cannot_be_read_is_a_problem_and_not_a_reason_to_divide() -> None:
    assert read_facts({NODE_GPUS: "{"}, {}, 30, 2) == NodeFacts(
        problem="the node's annotation gpu-device-plugin/gpus is not JSON"
    )


@pytest.mark.parametrize(
    ("label", "agents", "policy"),
    [
        ("binpack", "spread", "binpack"),
        ("spread", "binpack", "spread"),
        (None, "spread", "spread"),
        ("best", "spread", "spread"),
        ("", "spread", "spread"),
        ("binpack", "best", "binpack"),
        ("best", "better", None),
        (None, None, None),
    ],
)
def test_the_label_says_the_policy_before_the_agent(label: str | None, agents: str | None, policy: str | None) -> None:
    said = json.dumps({"version": 1, "shareMiB": 1024, "policy": agents, "gpus": []})
    labels = {} if label is None else {PLACEMENT_LABEL: label}
    assert read_facts({NODE_GPUS: said}, labels, 0, 0).policy == policy


def test_the_label_counts_where_the_gpus_are_divided_or_not_known() -> None:
    labels = {PLACEMENT_LABEL: "spread"}
    assert read_facts({}, labels, 30, 2) == NodeFacts(by_division(30, 2), "spread")
    assert read_facts({NODE_GPUS: ""}, labels, 30, 2).policy == "spread"


def test_nothing_is_placed_on_a_node_whose_agent_said_that_it_ends() -> None:
    facts = read_facts({NODE_GPUS: json.dumps({**json.loads(SAID), "away": True})}, {}, 14, 1)
    assert (facts.problem, facts.gpus.gpus) == (AWAY, read_node_gpus(SAID).gpus)
