"""Which pod is the agent of a node, among pods that anybody may have labelled."""

from dataclasses import replace

from gpu_device_plugin.kubernetes.agent_reader import AgentPod, Agents, agents
from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE

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
        "no node agent that serves HTTP runs in the namespace gpushare; pods in other namespaces are ignored (a, b, c)"
    )
    assert agents([*tenants, OURS], "ours") == Agents({"node-1": OURS})
