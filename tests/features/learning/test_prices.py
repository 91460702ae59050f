"""What the policy fit has learned, for people."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.learning.prices import DISCLAIMER, price_document, price_lines
from gpu_device_plugin.features.learning.rules.fair_learning import LearningResult, Trial
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind, WorkloadMix
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from tests.searches import studied

A10 = NodeType((24, 24), ("NVIDIA A10", "NVIDIA A10"), 32_000, 131_072)
T4 = NodeType((16,), ("Tesla T4",), 32_000, 131_072)
MIX = {
    PodKind(13, 1, 4000, 8192, GpuSelector(("A10",))): 2.0,
    PodKind(8, 1, 2000, 8192): 5.0,
    PodKind(0, 2, 16_000, 65_536, GpuSelector(("A10",))): 1.0,
    PodKind(0, 0, 500, 512): 2.0,
}


def taught(
    pods: int, mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int], **study: Any
) -> tuple[dict[str, Any], LearningResult]:
    """Return the document of so many pods whose kinds come so often, and the study; `study` changes it."""
    counted = WorkloadMix()
    for kind, often in mix.items():
        for _ in range(round(10 * often)):
            counted.add([kind], 0.0)
    found = replace(studied(counted, nodes), pods=pods, **study)
    return price_document(found, nodes), found


def texts(taught: tuple[dict[str, Any], LearningResult], width: int = 80) -> list[str]:
    return [line.text for line in price_lines(*taught, width)]


def test_a_lesson_is_a_table_of_the_sizes_that_come_with_sentences() -> None:
    """Beside 13 of 24 shares one pod of 8 fits, and 3 stay free; 8 fill a GPU. Of 9 GPUs asked for, 2 are for 13."""
    found, study = taught(40, MIX, {A10: 1, T4: 2})
    assert [(gpu["model"], gpu["shares"], gpu["number"]) for gpu in found["gpus"]] == [
        ("NVIDIA A10", 24, 2),
        ("Tesla T4", 16, 2),
    ]
    a10, t4 = found["gpus"]
    assert [(price["shares"], price["strands"]) for price in a10["pods"]] == [(8, 0), (13, 3), (24, 0)]
    assert [price["comes"] for price in a10["pods"]] == pytest.approx([5 / 9, 2 / 9, 2 / 9], abs=1e-4)
    assert a10["pods"][2]["price"] == 1.0
    assert [(price["shares"], price["strands"]) for price in t4["pods"]] == [(8, 0)]
    assert t4["pods"][0]["price"] == pytest.approx(0.5)
    assert a10["wanted"] > 1 > t4["wanted"]
    assert a10["pods"][1]["price"] == pytest.approx(2 / 3, abs=0.02)
    lines = texts((found, study))
    assert lines[0].split() == ["GPU", "SHARES", "WANTED", "POD", "COMES(%)", "PRICE", "STRANDS"]
    assert lines[1].split()[:4] == ["NVIDIA", "A10", "x", "2"]
    assert [line.split()[0] for line in lines[2:4]] == ["13", "whole"]
    assert lines[-1] == DISCLAIMER
    assert "A pod of 13 of the 24 shares of NVIDIA A10 strands 3, and is priced as 0.6" in "\n".join(lines)
    assert "40 pods of 4 kinds seen. For each share they request 0.32 CPUs and 1.13 GiB of memory." in lines
    assert any("% of the requests are for several GPUs at once" in line for line in lines)


def test_few_pods_teach_nothing_yet() -> None:
    (line,) = texts(taught(1, MIX, {T4: 1}))
    assert line == "only 1 pod seen; fit needs 20, and acts as binpack until then."
    (line,) = texts(taught(2, MIX, {T4: 1}))
    assert line == "only 2 pods seen; fit needs 20, and acts as binpack until then."
    assert taught(19, MIX, {T4: 1})[0]["learned"] is False
    assert taught(20, MIX, {T4: 1})[0]["learned"] is True


def test_without_pods_or_gpus_there_are_no_prices() -> None:
    assert taught(0, {}, {})[0]["gpus"] == []
    assert taught(30, {}, {T4: 1})[0]["gpus"][0]["pods"] == []
    assert texts(taught(30, {PodKind(0, 0, 500): 1.0}, {T4: 1}))[-1] == DISCLAIMER


def test_only_the_most_frequent_sizes_are_shown() -> None:
    mix = {PodKind(size, 1): 100.0 - size for size in range(1, 25)}
    assert [price["shares"] for price in taught(30, mix, {A10: 1})[0]["gpus"][0]["pods"]] == list(range(1, 21))


def test_hostile_names_do_not_reach_the_terminal() -> None:
    evil = NodeType((16,), ("\x1b[31mred",), 32_000, 131_072)
    assert not any("\x1b" in line for line in texts(taught(30, {PodKind(13, 1): 1.0}, {evil: 1})))


def test_programs_get_the_same_as_json() -> None:
    found, _ = taught(40, {PodKind(8, 1, 2000, 8192): 1.0}, {T4: 2})
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
                "pods": [{"shares": 8, "comes": 1.0, "price": 0.5, "strands": 0}],
            }
        ],
    }


def test_a_lesson_says_how_it_did_beside_binpack_and_whether_it_is_in_force() -> None:
    cluster = MIX, {A10: 1, T4: 2}
    good = taught(40, *cluster, trial=Trial(0.97, 0.951))
    bad = taught(40, *cluster, trial=Trial(0.882, 0.974))
    told = "Such pods got {} of the GPUs of a few empty nodes by these prices, and {} by binpack{}."
    assert told.format("97.0%", "95.1%", "") in texts(good, 300)
    why = ", so that the policy fit is binpack"
    assert told.format("88.2%", "97.4%", why) in texts(bad, 300)
    assert (good[0]["inForce"], bad[0]["inForce"]) == (True, False)
    assert bad[0]["trial"] == {"fit": 0.882, "binpack": 0.974}
    assert taught(19, *cluster, trial=Trial(0.97, 0.951))[0]["inForce"] is False


def test_a_lesson_names_the_namespaces_that_count_little() -> None:
    one = taught(40, MIX, {A10: 1, T4: 2}, distrusted=("\x1b[31mred",))
    many = taught(40, MIX, {A10: 1, T4: 2}, distrusted=tuple(f"team-{number}" for number in range(7)))
    told = "count as no more than 2% of the requests: learning from them would cost the pods of other namespaces GPUs."
    (line,) = [line for line in texts(one, 300) if "count as" in line]
    assert "\x1b" not in line
    assert f"Pods of team-0, team-1, team-2, team-3, team-4 and 2 more {told}" in texts(many, 300)
    assert many[0]["distrusted"][6] == "team-6"


def test_a_lesson_of_pods_of_which_few_run_says_so_and_is_not_in_force() -> None:
    few, enough = taught(40, MIX, {A10: 1, T4: 2}, running=0.004), taught(40, MIX, {A10: 1, T4: 2}, running=0.2)
    told = "The namespaces of these pods have 0.4% of the cluster in use, too little to decide whose pods count: "
    assert f"{told}the policy fit is binpack." in texts(few, 300)
    assert not any("whose pods count" in line for line in texts(enough, 300))
    assert (few[0]["inForce"], enough[0]["inForce"]) == (False, True)
