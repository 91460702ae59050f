"""Each feature of the extender can be left out: pods get their GPUs, and what is its own is not there."""

import json
from typing import Any

import pytest

from gpu_device_plugin.feature_list import FeatureList, settings_of
from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.verbs import Verbs
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import knobs_of
from tests.node.harness import without
from tests.scheduler.contexts import context
from tests.scheduler.harness import world
from tests.scheduler.test_verbs import World, running, wanting

NAMES = [spec.name for spec in EXTENDER_FEATURES]
SETTINGS = {
    "idle": {"idle_warning"},
    "capacity": {"grow", "node_start", "keep_nodes", "rebalance"},
}


@pytest.mark.parametrize("gone", [*([name] for name in NAMES), NAMES], ids=" ".join)
async def test_without_a_feature_pods_get_their_gpus_whoever_began_to_bind_them(gone: list[str]) -> None:
    async with world() as w:
        w.features = without(*gone, features=EXTENDER_FEATURES)
        w.node("a", 8, 8)
        await w.start()
        w.pod("shared", mem=5)
        w.pod("whole", count=1)
        await w.schedule()
        assert (sum(w.places("shared").values()), len(w.places("whole"))) == (5, 1)
        await w.restart()
        w.pod("next", mem=3)
        await w.schedule()
        w.pod("late", mem=1)
        await w.schedule()
        assert w.places("next") == dict.fromkeys(w.places("shared"), 3)
        assert w.reason("late") == "Unschedulable"
        assert {gauge.name for gauge, _ in w.only.extender.state().gauges()} >= {"gpushare_extender_pods"}


@pytest.mark.parametrize("name", NAMES)
def test_with_a_feature_its_settings_go(name: str) -> None:
    def settings(*gone: str) -> set[str]:
        left = without(*gone, features=EXTENDER_FEATURES)
        return {knob.name for knob in knobs_of(settings_of(left, ExtenderSettings))}

    assert settings() - settings(name) == SETTINGS.get(name, set())


def test_a_feature_that_does_nothing_changes_nothing() -> None:
    parts = context()
    parts.features.add(SchedulerFeature())
    request = json.dumps({"Pod": wanting(8), "NodeNames": [f"n{at}" for at in range(100)]}).encode()
    answers = [Verbs(each, lambda: "").filter(request) for each in (parts, context())]
    assert answers[0] == answers[1]


def test_without_the_search_for_victims_a_proposal_stands_where_the_pod_fits_once_all_have_gone() -> None:
    """On a, GPU 0 is free then; on b the two that would go are on different GPUs; from c nobody would go."""
    world = World().node("a", 8, 8).node("b", 8, 8).node("c", 8)
    world.runs(running("a0", "a", 0, 4), running("a1", "a", 1, 4), running("b0", "b", 0, 4), running("b1", "b", 1, 4))
    world.runs(running("b2", "b", 0, 2), running("b3", "b", 1, 2))
    proposals = {"a": ["u-a0"], "b": ["u-b0", "u-b1"], "c": [], "unknown": ["u-x"]}
    assert world.preempt(wanting(8, priority=10), **proposals) == {"a": ["u-a0"], "b": ["u-b0", "u-b2"]}
    world.verbs = Verbs(context(world.fleet), lambda: "")
    assert world.preempt(wanting(8, priority=10), **proposals) == {"a": ["u-a0"]}


def test_at_a_point_features_act_in_their_order_also_those_that_come_later() -> None:
    class Acts(SchedulerFeature):
        def remove_node(self, name: str) -> None:
            acted.append((self, name))

        def ranker(self) -> Any:
            return ranker if self is second else None

    acted: list[object] = []
    first, second, ranker = Acts(), Acts(), object()
    features = FeatureList[SchedulerFeature](SchedulerFeature(), first)
    assert features.first(SchedulerFeature.ranker) is None
    features.each(SchedulerFeature.remove_node, "n")
    features.add(second)
    features.each(SchedulerFeature.remove_node, "m")
    assert acted == [(first, "n"), (first, "m"), (second, "m")]
    assert features.first(SchedulerFeature.ranker) is ranker
    assert not features.at(SchedulerFeature.put_pod)
