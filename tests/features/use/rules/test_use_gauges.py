"""Each figure of a container has its line, and one that is unknown none."""

import re
from dataclasses import replace

import pytest

from gpu_device_plugin.model.contract.node_use import ContainerUse, NodeUse
from gpu_device_plugin.model.limits import Enforcement, LimitStatus
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from tests.nodes import node, uuid
from tests.reports import AgentMetrics, lines

PART = ContainerUse("shop", "web-0", "main", 0, 4096, 3072, 25, Enforcement.DRIVER, LimitStatus.DIFFERS, 2048)


def containers(*parts: ContainerUse) -> list[str]:
    """Return the lines of containers without the labels that say which container on which GPU it is."""
    who = re.compile(rf'(container="main"|gpu="{uuid(0)}"|namespace="shop"|pod="web-0"),?')
    shown = AgentMetrics(NodeMetrics(node(16)), NodeUse("", parts=parts))
    return [who.sub("", line.removeprefix("container_gpu_")) for line in lines(shown, "container_")]


def test_a_container_has_a_line_for_each_figure() -> None:
    assert containers(PART) == [
        "memory_allocated_bytes{} 4.294967296e+09",
        "memory_used_bytes{} 3.221225472e+09",
        "utilization_ratio{} 0.25",
        'memory_limit_bytes{enforcement="driver",state="differs"} 2.147483648e+09',
    ]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (replace(PART, used_mib=0), "memory_used_bytes{} 0.0"),
        (replace(PART, used_mib=None), "memory_used_bytes"),
        (replace(PART, sm_percent=None), "utilization_ratio"),
        (
            replace(PART, found_mib=None, held=LimitStatus.MISSING),
            'limit_bytes{enforcement="driver",state="missing"} 4.294967296e',
        ),
        (replace(PART, found_mib=None, held=None), 'memory_limit_bytes{enforcement="driver",state="unverified"} 4.29'),
        (replace(PART, enforcement=None), "memory_limit_bytes"),
        (ContainerUse("shop", "web-0", "main", 0, 0, 100), "memory_allocated_bytes{} 0.0"),
        (ContainerUse("shop", "web-0", "", 0, 4096, 100), "memory_allocated_bytes"),
    ],
    ids=[
        *("nothing is used", "use unknown", "utilization unknown", "the limit asked for", "not read yet", "no limit"),
        *("given nothing", "of the pod"),
    ],
)
def test_a_figure_that_is_not_known_has_no_line_and_zero_has_one(part: ContainerUse, expected: str) -> None:
    assert any(expected in line for line in containers(part)) is ("{" in expected)


def test_a_container_of_an_idle_pod_has_a_line_that_says_for_how_long() -> None:
    idle = replace(PART, idle_since="2026-11-22T09:56:00Z")
    metrics = AgentMetrics(NodeMetrics(node(16)), NodeUse("2026-11-22T10:56:30Z", parts=(idle,)))
    assert [line.rpartition(" ")[2] for line in lines(metrics, "container_gpu_idle")] == ["3630.0"]
    assert lines(replace(metrics, use=NodeUse("2026-11-22T10:56:30Z", parts=(PART,))), "container_gpu_idle") == []


def test_a_borrower_has_lines_for_what_it_borrows_and_while_it_is_asked() -> None:
    borrower = replace(PART, used_mib=7168, limit_mib=12288, found_mib=None)
    assert containers(borrower)[2] == "memory_borrowed_bytes{} 3.221225472e+09"
    assert 'memory_limit_bytes{enforcement="driver",state="differs"} 1.2884901888e+10' in containers(borrower)
    asked = replace(borrower, asked_at="2026-11-22T09:56:00Z", needed_by="ml/train")
    assert containers(asked)[-1] == "memory_return_asked{} 1.0"
    for parts, short in (((borrower,), "0.0"), ((asked, asked), "1.0")):
        assert lines(AgentMetrics(NodeMetrics(node(16)), NodeUse("", parts=parts)), "pods_short") == [
            f"pods_short_of_memory {short}"
        ]
