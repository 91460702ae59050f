"""Plans in sentences, tables and JSON."""

from dataclasses import replace

import pytest

from gpu_device_plugin.features.capacity.report import (
    gpu_lines,
    move_lines,
    plan_document,
    staying_lines,
    verdict,
)
from gpu_device_plugin.features.capacity.rules.movable import Fits, Move, UnmovableReason
from gpu_device_plugin.features.capacity.rules.plans import Plan, plan_each
from tests.features.capacity.rules.clusters import node, resident
from tests.features.capacity.rules.test_movable import FIVE, FOUR, WHOLE, on, waiting
from tests.searches import plan

GOAL = "make room for ns/w"
STAYING = resident("p", [FOUR], node("n", [8]))
assert STAYING is not None
MOVES = tuple(Move(STAYING, "n", f"m{at}", ()) for at in range(3))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "No set of moves was found to make room for ns/w."),
        ((), "No move is needed to make room for ns/w."),
        (MOVES[:1], "1 move makes room for ns/w."),
        (MOVES, "3 moves make room for ns/w. There may be a plan with fewer."),
    ],
)
def test_what_is_known_of_a_plan(found: Plan, said: str) -> None:
    assert verdict(found, GOAL) == said


def test_moves_and_gpus_are_tables_and_json() -> None:
    """The pod of 5 goes to the other node, where 8 are in whole use; then another comes to its GPU."""
    fixed = on(on(node("b", [8, 8]), "whole", WHOLE), "fixed", FOUR, stays=UnmovableReason.NO_CONTROLLER)
    sites = (on(node("a", [8]), "p", FOUR), fixed)
    wanted = replace(waiting("w", FIVE), nodes=frozenset({"a"}))
    ((pod, found, then),) = plan_each(sites, [wanted], {})
    assert [line.text for line in move_lines(found or (), 100)] == [
        "MOVE  POD   FROM     TO",
        "1     ns/p  a GPU 0  b GPU 1",
    ]
    assert [line.text for line in gpu_lines(sites, then, 100)] == [
        "NODE  GPU  BEFORE                        AFTER",
        "a     0    ns/p (4 GiB), 4 GiB free      ns/w (new) (5 GiB), 3 GiB free",
        "b     1    ns/fixed (4 GiB), 4 GiB free  ns/fixed (4 GiB), ns/p (4 GiB), nothing free",
    ]
    assert gpu_lines(sites, sites, 100) == []
    assert staying_lines(then) == ["  no controller would replace it: ns/fixed"]
    document = plan_document([(str(pod), found), ("nothing", None)], sites, then)
    assert document["plans"][0]["exact"]
    assert document["plans"][0]["moves"] == [
        {"pod": "ns/p", "from": {"node": "a", "gpus": [0]}, "to": {"node": "b", "gpus": {"1": 4}}}
    ]
    assert document["plans"][1] == {
        "for": "nothing",
        "found": False,
        "fewestPossible": None,
        "exact": False,
        "moves": [],
    }
    assert document["gpus"][1]["after"] == {"ns/fixed": 4, "ns/p": 4}
    assert document["stays"] == [{"pod": "ns/fixed", "node": "b", "why": "no controller would replace it"}]


def test_gpus_in_whole_use_have_no_room_and_bare_numbers_are_shares_of_unknown_size() -> None:
    sites = (on(node("a", [8]), "p", WHOLE), node("b", [8]))
    unsized = tuple(
        replace(site, node=replace(site.node, gpus=replace(site.node.gpus, share_mib=None))) for site in sites
    )
    found = plan(unsized, Fits(waiting("w", FIVE).ask, nodes=frozenset({"a"})))
    ((_, _, then),) = plan_each(unsized, [replace(waiting("w", FIVE), nodes=frozenset({"a"}))], {})
    assert found is not None
    assert len(found) == 1
    assert [line.text.split("  ")[-1] for line in gpu_lines(unsized, then, 100)][1:] == [
        "ns/w (new) (5), 3 free",
        "ns/p (whole), nothing free",
    ]
