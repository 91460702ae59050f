"""Which pod is the agent of a node, among pods that anybody may have labelled, and whose turn it is to be read."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.report.rules.agent_pods import AGENT_NAMESPACE, AgentPod, Agents, Attempt, agents, due, shared

OURS = AgentPod("ours", "agent-1", "node-1", 9445, created="2026-01-01T00:00:00Z")


def test_the_agents_of_the_namespace_are_taken() -> None:
    second = replace(OURS, name="agent-2", node="node-2")
    assert agents([OURS, second], "ours") == Agents({"node-1": OURS, "node-2": second})


def test_the_newest_pod_of_a_node_is_its_agent() -> None:
    newer = replace(OURS, name="agent-0", created="2026-01-02T00:00:00Z")
    assert agents([newer, OURS], "ours").by_node == agents([OURS, newer], "ours").by_node == {"node-1": newer}


def test_a_pod_that_ends_waits_or_has_no_port_is_no_agent() -> None:
    for other in (replace(OURS, running=False), replace(OURS, node=""), replace(OURS, port=None)):
        assert agents([other], "ours") == Agents({}, "no node agent that serves HTTP runs")


def test_a_tenants_pods_with_the_labels_are_no_agents() -> None:
    at_home = replace(OURS, namespace=AGENT_NAMESPACE)
    tenants = replace(OURS, namespace="a-tenant", created="2027-01-01T00:00:00Z")
    assert agents([at_home, tenants]).by_node == {"node-1": at_home}


def test_pods_of_other_namespaces_are_not_believed_even_if_they_are_the_only_ones() -> None:
    """Nor can they end the figures of the agents."""
    tenants = [replace(OURS, namespace=name) for name in ("d", "c", "b", "a")]
    assert agents(tenants).by_node == {}
    assert agents(tenants).why == (
        "no node agent that serves HTTP runs in the namespace gpushare; pods in other namespaces are not believed "
        "(a, b, c)"
    )
    assert agents([*tenants, OURS], "ours") == Agents({"node-1": OURS})


# --- Turns ----------------------------------------------------------------------------------------------------------

PACE = {"every_s": 10.0, "longest_s": 300.0}


def test_who_was_never_read_comes_first_then_who_waits_longest() -> None:
    last = {"a": Attempt(85), "b": Attempt(80), "c": Attempt(91)}
    assert due("abcd", last, 100, **PACE) == ["d", "b", "a"]


def test_equal_ones_come_by_name() -> None:
    assert due(("z", "x", "y"), {}, 0, **PACE) == ["x", "y", "z"]


def test_who_does_not_answer_is_asked_ever_more_rarely_up_to_a_bound() -> None:
    pauses = []
    for failures in (0, 1, 2, 3, 4, 5, 10_000):
        last = {"a": Attempt(0, failures)}
        pauses.append(next(second for second in range(1000) if due("a", last, second, **PACE)))
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


def test_who_comes_first_leaves_the_others_the_turns_that_are_kept_for_them() -> None:
    assert shared("abcdef", "uvwxyz", 0, 4) == ["a", "b", "c", "d"]
    assert shared("abcdef", "uvwxyz", 1, 4) == ["a", "b", "c", "u"]
    assert shared("abcdef", "uvwxyz", 9, 4) == ["u", "v", "w", "x"]


def test_turns_that_one_group_does_not_need_are_the_other_s() -> None:
    assert shared("ab", "uvwxyz", 1, 4) == ["a", "b", "u", "v"]
    assert shared("abcdef", "u", 3, 4) == ["a", "b", "c", "u"]
    assert shared("", "uv", 0, 4) == ["u", "v"]
    assert shared("ab", "", 3, 4) == ["a", "b"]
