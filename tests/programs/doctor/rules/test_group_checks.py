"""Node groups of which the next node would share no GPUs, or of which an autoscaler does not know that it does."""

from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import GROUP_LABELS
from gpu_device_plugin.programs.doctor.rules.component_checks import GPU_LABELS, group_of
from gpu_device_plugin.programs.doctor.rules.symptoms import Karpenter
from gpu_device_plugin.report.rules.finding import Unknown
from tests.findings import case
from tests.names import COUNT, MEM
from tests.programs.doctor.rules.test_cluster_checks import PLAIN, node, of

EKS, KARPENTER = GROUP_LABELS[0], "karpenter.sh/nodepool"
HIDDEN = Unknown("hidden", "forbidden")


def member(name: str, switch: str | None, group: str = "gpus", label: str = EKS) -> Any:
    return node(name, switch, labels={label: group}, **({} if switch == "true" else PLAIN))


SHARING = member("a", "true")


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        case(
            "node groups",
            f"warning group-partly-labelled nodes=b, c group={EKS}=gpus",
            nodes=(SHARING, member("b", None), member("c", None), member("d", None, "cpus"), node("e", None, **PLAIN)),
        ),
        # Somebody wants it so; and no group at all is none that is partly labelled.
        case("node groups", nodes=(SHARING, member("b", "false"), node("c"), node("d", None, **PLAIN))),
        # Two clouds' labels may have one value.
        case("node groups", nodes=(SHARING, member("b", None, label=KARPENTER))),
        *(
            case("node groups", "note label-of-gpus nodes=a", nodes=(SHARING, node("a", labels={label: "nvidia"})))
            for label in sorted(GPU_LABELS)
        ),
        case("node groups", nodes=(node("a", None, labels=dict.fromkeys(GPU_LABELS, "nvidia"), **PLAIN),)),
        case(
            "node groups",
            f"warning nodepool-without-shares resource={MEM} pools=gpus, more",
            karpenter=Karpenter(("gpus", "more"), frozenset({COUNT})),
        ),
        case("node groups", karpenter=Karpenter(("gpus",), frozenset({COUNT, MEM}))),
        case("node groups", karpenter=Karpenter((), frozenset())),
        # What may not be read is told where there is a Karpenter.
        case("node groups", karpenter=HIDDEN),
        case("node groups", "unknown hidden", nodes=(member("a", "true", label=KARPENTER),), karpenter=HIDDEN),
    ],
)
def test_groups(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert of(check, "nodes group resource pools", **changes) == expected


def test_the_group_is_named_by_the_first_label_that_does() -> None:
    assert group_of({KARPENTER: "b", EKS: "a", "zone": "z"}) == f"{EKS}=a"
    assert group_of({"zone": "z"}) == ""
