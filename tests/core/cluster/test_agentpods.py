"""Which pod is the agent of a node, among pods that anybody may have labelled."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.core.cluster.agentpods import HOME, AgentPod, Agents, agents

OURS = AgentPod("ours", "agent-1", "node-1", 9445, created="2026-01-01T00:00:00Z")


def test_the_agents_of_the_only_namespace_are_taken() -> None:
    second = replace(OURS, name="agent-2", node="node-2")
    assert agents([OURS, second]) == Agents({"node-1": OURS, "node-2": second})


def test_the_newest_pod_of_a_node_is_its_agent() -> None:
    newer = replace(OURS, name="agent-0", created="2026-01-02T00:00:00Z")
    assert agents([newer, OURS]).by_node == agents([OURS, newer]).by_node == {"node-1": newer}


def test_a_pod_that_ends_waits_or_has_no_metrics_is_no_agent() -> None:
    for other in (replace(OURS, running=False), replace(OURS, node=""), replace(OURS, port=None)):
        assert agents([other]) == Agents({}, "no node agent with metrics runs")


def test_a_tenants_pods_with_the_labels_are_no_agents() -> None:
    at_home = replace(OURS, namespace=HOME)
    tenants = replace(OURS, namespace="a-tenant", created="2027-01-01T00:00:00Z")
    assert agents([at_home, tenants]).by_node == {"node-1": at_home}


def test_between_two_other_namespaces_nothing_is_believed() -> None:
    """A tenant can end the fresh figures of an installation in another namespace, and cannot forge them."""
    found = agents([OURS, replace(OURS, namespace="a-tenant")])
    assert found.by_node == {}
    assert found.rivals == ("a-tenant", "ours")
    assert found.why.startswith("pods in several namespaces")
