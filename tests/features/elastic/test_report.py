"""What the owner of a pod is told of its memory: guaranteed, limited, promised, and why not more."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.report import not_resizable, resizes, settled, why_not
from gpu_device_plugin.features.elastic.rules.promising import sizes
from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
)
from gpu_device_plugin.model.contract.nodegpus import ListedInstance
from gpu_device_plugin.model.contract.reservations import Answer, write_answer
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from tests.names import COUNT, MEM
from tests.reporting import causes
from tests.reports import part, report
from tests.resources import RESOURCES
from tests.views import node_view

MAIN = Container("main", ContainerKind.APP, 0, {MEM: 4})
PLACE = {ALLOCATION: '{"0": {"0": 4}, "1": {"0": 4}}'}
WEB = Pod("uid", "default", "web", "a", "Running", running=True, annotations=PLACE, containers=(MAIN,))

BORROWS = "Its limit is 12 GiB, of which it borrows what others do not need"


def answer(wish: str = "6", main: int = 0, why: str = "") -> str:
    return write_answer(Answer({"main": main} if main else {}, wish, why))


def pod(**annotations: str) -> Pod:
    """Return the pod with annotations by the last word of their keys."""
    keys = {"guarantee": MEMORY_GUARANTEE, "limit": MEMORY_LIMIT, "promised": MEMORY_PROMISED, "held": MEMORY_HELD}
    return replace(WEB, annotations=PLACE | {keys[name]: text for name, text in annotations.items()})


@pytest.mark.parametrize(
    ("wishes", "held", "why", "said"),
    [
        ({}, 4, "", True),
        ({"guarantee": "4"}, 4, "", True),
        ({"guarantee": "2"}, 4, "", True),
        ({"guarantee": "6"}, 4, "the agent of its node has not answered yet", False),
        ({"guarantee": "6", "held": answer(why="GPU 0 is full")}, 4, "the agent of its node says: GPU 0 is full", True),
        ({"guarantee": "6", "held": answer("5", why="before")}, 4, "the agent of its node has not answered yet", False),
        ({"guarantee": "6", "held": answer(main=6)}, 6, "", True),
        ({"guarantee": "6", "promised": "{}"}, 4, "the scheduler extender has not answered yet", False),
        ({"guarantee": "6", "promised": answer(why="no room")}, 4, "the scheduler extender says: no room", True),
        ({"guarantee": "6", "promised": answer(main=6)}, 4, "the agent of its node has not answered yet", False),
        ({"guarantee": "6", "promised": answer(main=6), "held": answer(main=6)}, 6, "", True),
        ({"promised": answer(main=6), "held": answer(main=6)}, 6, "the agent of its node has not answered yet", False),
        ({"guarantee": "many", "held": "broken"}, 4, "", True),
    ],
)  # fmt: skip
def test_a_wish_holds_or_there_is_a_reason(wishes: dict[str, str], held: int, why: str, *, said: bool) -> None:
    (size,) = sizes(pod(**wishes), RESOURCES)
    assert (size.held, why_not(pod(**wishes), size), size.held == size.target) == (held, why, not why)
    assert settled(why) is said


@pytest.mark.parametrize(
    ("wishes", "enforcement", "told"),
    [
        ({}, None, []),
        ({"promised": "{}"}, None, []),
        ({"held": "{}"}, None, []),
        (
            {"limit": "{", "guarantee": "4"},
            None,
            [
                "The annotation gpu-device-plugin/memory-limit is not JSON; it is ignored.",
                "Container 'main' is guaranteed 4 GiB, its request.",
            ],
        ),
        ({"guarantee": "6", "held": answer(main=6)}, None, ["Container 'main' is guaranteed 6 GiB."]),
        (
            {"guarantee": "6", "promised": answer(why="no room")},
            None,
            ["Container 'main' is guaranteed 4 GiB and requests 6 GiB: the scheduler extender says: no room."],
        ),
        (
            {"guarantee": "2"},
            None,
            [
                "Container 'main' remains guaranteed its request, 4 GiB: the kubelet takes nothing back while it runs.",
                "Its limit is 2 GiB, less than its guarantee.",
            ],
        ),
        (
            {"limit": "12"},
            Enforcement.ADVISORY,
            [
                "Container 'main' is guaranteed 4 GiB, its request.",
                f"{BORROWS}; nothing enforces it: the program has to follow /run/gpushare/memory.json.",
            ],
        ),
    ],
)
def test_the_owner_is_told_what_holds(wishes: dict[str, str], enforcement: Enforcement | None, told: list[str]) -> None:
    enforcements = {} if enforcement is None else {0: GpuEnforcement(enforcement, "why")}
    view = node_view("a", (15,), report=report(enforcements=enforcements))
    assert list(map(str, resizes(pod(**wishes), RESOURCES, view))) == told


def test_what_kept_the_container_at_its_start_counts() -> None:
    view = node_view("a", (15,), report=report(part("web", enforcement=Enforcement.MPS), part("other")))
    facts = list(map(str, resizes(pod(limit="12"), RESOURCES, view)))
    assert facts[1].endswith("; MPS keeps the limit that the pod was created with.")
    assert "or the node's setting borrowers is off" in facts[2], "the report says that it may use no more"
    assert str(list(resizes(pod(limit="12"), RESOURCES, node_view("a", (15,))))[1]).endswith("do not need.")


def test_who_may_not_borrow_at_the_last_report_is_told_so() -> None:
    view = node_view("a", (15,), report=report(part("web", enforcement=Enforcement.ADVISORY)))
    (_, _, fact) = map(str, resizes(pod(limit="40"), RESOURCES, view))
    assert fact.endswith("the limit is newer, or the node's setting borrowers is off.")
    assert "all of its GPU, of which it borrows" in str(list(resizes(pod(limit="40"), RESOURCES, view))[1])


def test_a_wish_on_a_pod_without_shares_changes_nothing() -> None:
    (fact,) = resizes(replace(pod(limit="8"), containers=(MIG,)), RESOURCES, None)
    assert str(fact).startswith("Its memory annotations have no effect: ")


def test_shares_of_an_instance_neither_grow_nor_borrow() -> None:
    view = node_view("a", (15,))
    instance = ListedInstance("GPU-0", 0, 0, "1g.10gb", 1)
    listed = tuple(replace(gpu, instance=instance) for gpu in view.candidate.gpus.gpus)
    there = replace(view, candidate=replace(view.candidate, gpus=replace(view.candidate.gpus, gpus=listed)))
    assert str(list(resizes(pod(limit="8"), RESOURCES, there))[-1]).startswith("It has shares of a MIG instance")


def test_without_its_node_amounts_are_units() -> None:
    assert [str(each) for each in resizes(pod(guarantee="6", limit="8"), RESOURCES, None)] == [
        "Container 'main' is guaranteed 4 shares and requests 6 shares: the agent of its node has not answered yet.",
        "Its limit is 8 shares, of which it borrows what others do not need.",
    ]


def test_why_tells_it_of_a_pod_on_its_node() -> None:
    found, _ = causes(pod(guarantee="6"), SchedulingStatus(), RESOURCES, {"a": node_view("a", (15,))})
    assert "resize-waits" in {finding.code for finding in found}


INIT = Container("prepare", ContainerKind.INIT, 0, {MEM: 4})
LATER, SEVERAL = "change its requests, or wait", "several of its containers have shares; name one with"
MIG, FIXED = replace(MAIN, limits={"nvidia.com/mig-1g.10gb": 1}), "whose allocation Kubernetes never changes"
SPLIT = {ALLOCATION: '{"0": {"0": 2, "1": 2}}'}


@pytest.mark.parametrize(
    ("change", "container", "claims", "why"),
    [
        ({}, "", False, ""),
        ({}, "main", False, ""),
        ({"phase": "Failed"}, "", False, "it has ended"),
        ({"deleting": True}, "", False, "it is being deleted"),
        ({"running": False, "phase": "Pending"}, "", False, f"it is not running yet (Pending); {LATER}"),
        ({"containers": (MAIN, replace(MAIN, name="b"))}, "", False, f"{SEVERAL} -c: b, main"),
        ({}, "other", False, "it has no container 'other' with GPUs; there is main"),
        ({"containers": ()}, "main", False, "it has no container 'main' with GPUs; there is none"),
        ({"containers": (INIT, MAIN)}, "", False, ""),
        ({"containers": (INIT, MAIN)}, "prepare", False, "init containers cannot be resized"),
        ({"annotations": {}}, "", False, "its annotations name no GPU"),
        ({"annotations": SPLIT}, "", False, "it has shares of several GPUs, which cannot be resized"),
        ({"containers": (replace(MAIN, limits={COUNT: 1}),)}, "", False, "it has whole GPUs, which cannot be resized"),
        ({"containers": (MIG,)}, "", False, "it has whole MIG instances, which cannot be resized"),
        ({"containers": (replace(MAIN, limits={}),)}, "", True, f"it has its GPUs through ResourceClaims, {FIXED}"),
        ({"containers": (replace(MAIN, limits={}),)}, "", False, f"it asks for no {MEM}"),
    ],
)  # fmt: skip
def test_only_running_containers_with_shares_of_one_gpu_are_resized(
    change: dict[str, Any], container: str, why: str, *, claims: bool
) -> None:
    assert not_resizable(replace(WEB, **change), RESOURCES, container, claims=claims) == why
