"""What the policy fit has learned, for people."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.core.value.fair_learning import Trial
from gpu_device_plugin.core.value.workload_mix import NodeType, PodKind, WorkloadMix
from gpu_device_plugin.model.contract.gpu_preferences import GpuPreferences
from gpu_device_plugin.view.learned_mix import DISCLAIMER, Lesson, lesson, price_document, price_lines
from tests.searches import studied

if TYPE_CHECKING:
    from collections.abc import Mapping

A10 = NodeType((24, 24), ("NVIDIA A10", "NVIDIA A10"), 32_000, 131_072)
T4 = NodeType((16,), ("Tesla T4",), 32_000, 131_072)
MIX = {
    PodKind(13, 1, 4000, 8192, GpuPreferences(("A10",))): 2.0,
    PodKind(8, 1, 2000, 8192): 5.0,
    PodKind(0, 2, 16_000, 65_536, GpuPreferences(("A10",))): 1.0,
    PodKind(0, 0, 500, 512): 2.0,
}


def taught(pods: int, mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int]) -> Lesson:
    """Return the lesson of so many pods whose kinds come so often."""
    counted = WorkloadMix()
    for kind, often in mix.items():
        for _ in range(round(10 * often)):
            counted.add([kind], 0.0)
    return lesson(replace(studied(counted, nodes), pods=pods), nodes)


def changed(found: Lesson, **study: Any) -> Lesson:
    return replace(found, study=replace(found.study, **study))


def test_a_lesson_is_a_table_of_the_sizes_that_come_with_sentences() -> None:
    """Beside 13 of 24 shares one pod of 8 fits, and 3 stay free; 8 fill a GPU. Of 9 GPUs asked for, 2 are for 13."""
    found = taught(40, MIX, {A10: 1, T4: 2})
    assert [(gpu.model, gpu.shares, gpu.number) for gpu in found.gpus] == [("NVIDIA A10", 24, 2), ("Tesla T4", 16, 2)]
    a10, t4 = found.gpus
    assert [(price.shares, price.strands) for price in a10.pods] == [(8, 0), (13, 3), (24, 0)]
    assert [price.comes for price in a10.pods] == pytest.approx([5 / 9, 2 / 9, 2 / 9], abs=1e-4)
    assert a10.pods[2].price == 1.0
    assert [(price.shares, price.strands) for price in t4.pods] == [(8, 0)]
    assert t4.pods[0].price == pytest.approx(0.5)
    assert a10.wanted > 1 > t4.wanted
    assert a10.pods[1].price == pytest.approx(2 / 3, abs=0.02)
    lines = [line.text for line in price_lines(found, 80)]
    assert lines[0].split() == ["GPU", "SHARES", "WANTED", "POD", "COMES(%)", "PRICE", "STRANDS"]
    assert lines[1].split()[:4] == ["NVIDIA", "A10", "x", "2"]
    assert [line.split()[0] for line in lines[2:4]] == ["13", "whole"]
    assert lines[-1] == DISCLAIMER
    assert "A pod of 13 of the 24 shares of NVIDIA A10 strands 3, and is priced as 0.6" in "\n".join(lines)
    assert "40 pods of 4 kinds came. Beside each share they ask for 0.32 CPUs and 1.13 GiB of memory." in lines
    assert any("% of the demand is for several GPUs at once" in line for line in lines)


def test_few_pods_teach_nothing_yet() -> None:
    (line,) = price_lines(taught(1, MIX, {T4: 1}), 80)
    assert line.text == "1 pod teaches too little: until 20 have come, the policy fit is binpack."
    (line,) = price_lines(taught(2, MIX, {T4: 1}), 80)
    assert line.text == "2 pods teach too little: until 20 have come, the policy fit is binpack."
    assert price_document(taught(19, MIX, {T4: 1}))["learned"] is False
    assert price_document(taught(20, MIX, {T4: 1}))["learned"] is True


def test_without_pods_or_gpus_there_are_no_prices() -> None:
    assert taught(0, {}, {}).gpus == ()
    assert taught(30, {}, {T4: 1}).gpus[0].pods == ()
    assert [line.text for line in price_lines(taught(30, {PodKind(0, 0, 500): 1.0}, {T4: 1}), 80)][-1] == DISCLAIMER


def test_only_the_most_frequent_sizes_are_shown() -> None:
    mix = {PodKind(size, 1): 100.0 - size for size in range(1, 25)}
    assert [price.shares for price in taught(30, mix, {A10: 1}).gpus[0].pods] == list(range(1, 21))


def test_hostile_names_do_not_reach_the_terminal() -> None:
    evil = NodeType((16,), ("\x1b[31mred",), 32_000, 131_072)
    lines = price_lines(taught(30, {PodKind(13, 1): 1.0}, {evil: 1}), 80)
    assert not any("\x1b" in line.text for line in lines)


def test_programs_get_the_same_as_json() -> None:
    found = price_document(taught(40, {PodKind(8, 1, 2000, 8192): 1.0}, {T4: 2}))
    assert found == {
        "version": 1,
        "pods": 40,
        "kinds": 1,
        "learned": True,
        "inForce": True,
        "trial": {"fit": 1.0, "binpack": 1.0},
        "distrusted": [],
        "cpuMilliPerShare": 250.0,
        "memoryMiBPerShare": 1024.0,
        "ofSeveralGpus": 0.0,
        "gpus": [
            {
                "model": "Tesla T4",
                "shares": 16,
                "number": 2,
                "wanted": 1.0,
                "pods": ({"shares": 8, "comes": 1.0, "price": 0.5, "strands": 0},),
            }
        ],
    }


def test_a_lesson_says_how_it_did_beside_binpack_and_whether_it_is_in_force() -> None:
    found = taught(40, MIX, {A10: 1, T4: 2})
    good, bad = changed(found, trial=Trial(0.97, 0.951)), changed(found, trial=Trial(0.882, 0.974))
    told = "Such pods got {} of the GPUs of a few empty nodes by these prices, and {} by binpack{}."
    assert told.format("97.0%", "95.1%", "") in [line.text for line in price_lines(good, 300)]
    why = ", so that the policy fit is binpack"
    assert told.format("88.2%", "97.4%", why) in [line.text for line in price_lines(bad, 300)]
    assert (price_document(good)["inForce"], price_document(bad)["inForce"]) == (True, False)
    assert price_document(bad)["trial"] == {"fit": 0.882, "binpack": 0.974}
    assert price_document(changed(good, pods=19))["inForce"] is False


def test_a_lesson_names_the_namespaces_that_count_little() -> None:
    found = taught(40, MIX, {A10: 1, T4: 2})
    one = changed(found, distrusted=("\x1b[31mred",))
    many = changed(found, distrusted=tuple(f"team-{number}" for number in range(7)))
    told = "count as no more than 2% of the demand: what they teach would cost the pods of other namespaces GPUs."
    (line,) = [line.text for line in price_lines(one, 300) if "count as" in line.text]
    assert "\x1b" not in line
    assert f"Pods of team-0, team-1, team-2, team-3, team-4 and 2 more {told}" in [
        line.text for line in price_lines(many, 300)
    ]
    assert price_document(many)["distrusted"][6] == "team-6"


def test_a_lesson_of_pods_of_which_few_run_says_so_and_is_not_in_force() -> None:
    found = taught(40, MIX, {A10: 1, T4: 2})
    few, enough = changed(found, running=0.004), changed(found, running=0.2)
    told = (
        "The namespaces of these pods have 0.4% of the cluster in use, which is too little to tell whose pods count: "
    )
    assert f"{told}the policy fit is binpack." in [line.text for line in price_lines(few, 300)]
    assert not any("whose pods count" in line.text for line in price_lines(enough, 300))
    assert (few.in_force, enough.in_force) == (False, True)
