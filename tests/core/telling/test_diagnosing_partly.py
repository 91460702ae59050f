"""The checks that are left to a reader with few rights."""

from __future__ import annotations

from gpu_device_plugin.core.contract.keys import OVER_USE
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.telling.diagnosing import Severity
from gpu_device_plugin.core.telling.diagnosing_cluster import CHECKS
from gpu_device_plugin.core.telling.diagnosing_partly import examine_partly
from tests.core.telling.test_diagnosing_cluster import WELL

WELL_POD = Pod("u1", "ml", "a", "n1", "Running")
OVER = Pod("u2", "ml", "b", "n1", "Running", annotations={OVER_USE: "container main uses 9 MiB, was given 5 MiB"})


def test_what_is_not_examined_comes_first_with_the_missing_rights() -> None:
    rights, *others = examine_partly(WELL, [], ["no nodes", "no pods"], "ask Ann", nodes=False, namespace="ml")
    assert (rights.severity, rights.check, rights.advice) == (Severity.UNKNOWN, "rights", "ask Ann")
    assert rights.found.startswith("not examined: ")
    assert rights.found.endswith("; no nodes; no pods")
    named = set(rights.found.removeprefix("not examined: ").partition(";")[0].split(", "))
    examined = {finding.check for finding in others} - {"memory use"}
    assert not named & examined
    assert named < set(CHECKS)


def test_with_nodes_more_is_examined_and_with_all_pods_more_again() -> None:
    def left_out(*, nodes: bool, namespace: str) -> int:
        return len(examine_partly(WELL, [], [], "", nodes=nodes, namespace=namespace)[0].found.split(","))

    assert (
        left_out(nodes=False, namespace="ml")
        > left_out(nodes=True, namespace="ml")
        > left_out(nodes=True, namespace="")
    )


def test_without_nodes_over_use_is_what_agents_wrote_on_pods() -> None:
    def told(*pods: Pod, namespace: str = "ml") -> list[tuple[Severity, str]]:
        found = examine_partly(WELL, pods, [], "", nodes=False, namespace=namespace)
        return [(each.severity, each.found) for each in found if each.check == "memory use"]

    assert told(WELL_POD) == [
        (Severity.OK, "no agent wrote on a pod in namespace ml that it uses more GPU memory than it was granted")
    ]
    assert told(namespace="")[0][1].startswith("no agent wrote on a pod that it")
    ((severity, found),) = told(WELL_POD, OVER)
    assert severity is Severity.WARNING
    assert found.startswith("ml/b: It uses more GPU memory than it was granted: container main uses 9 MiB")
