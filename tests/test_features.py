"""Each feature of the agent can be left out: pods get their GPUs, and only what is the feature's own is missing."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

from gpu_device_plugin.feature_list import FeatureSpec, settings_of
from gpu_device_plugin.features.history.rules.ring import condition_gauges
from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS
from gpu_device_plugin.model.contract.keys import NODE_GPUS, NODE_LIMITS, NODE_USE
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from gpu_device_plugin.settings.knobs import SettingsError, knobs_of
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from tests import names
from tests.node.cluster_harness import Cluster, cluster, promise
from tests.node.harness import T4, gpus_of, pod, without
from tests.nodes import node


class Traces(NamedTuple):
    """Families of metrics, paths, annotations of the node, variables of containers, and settings."""

    families: set[str] = set()  # noqa: RUF012 - never changed
    routes: set[str] = set()  # noqa: RUF012 - never changed
    annotations: set[str] = set()  # noqa: RUF012 - never changed
    variables: set[str] = set()  # noqa: RUF012 - never changed
    settings: set[str] = set()  # noqa: RUF012 - never changed


CONDITIONS = {
    f"{gauge.name.removesuffix('_total')}_total" if gauge.grows else gauge.name
    for gauge, _ in condition_gauges(NodeMetrics(node(8)), {})
}
NAMES = [spec.name for spec in NODE_FEATURES]

OWN: Mapping[str, Traces] = {
    "use_reports": Traces(
        {
            "gpushare_container_gpu_idle_seconds",
            "gpushare_container_gpu_memory_allocated_bytes",
            "gpushare_container_gpu_memory_borrowed_bytes",
            "gpushare_container_gpu_memory_limit_bytes",
            "gpushare_container_gpu_memory_return_asked",
            "gpushare_container_gpu_memory_used_bytes",
            "gpushare_container_gpu_utilization_ratio",
            "gpushare_gpu_memory_unattributed_bytes",
            "gpushare_gpu_memory_used_bytes",
            "gpushare_pods_short_of_memory",
        },
        {"/use"},
        {NODE_USE},
    ),
    "use": Traces(settings={"usage_interval"}),
    "conflicts": Traces(settings={"allow_other_plugins"}),
    "eviction": Traces(settings={"eviction_grace"}),
    "gpu_failures": Traces(settings={"on_gpu_failure", "gpu_failure_grace"}),
    "over_use": Traces({"gpushare_containers_over"}, settings={"over_use", "over_use_slack", "over_use_grace"}),
    "borrowing": Traces(settings={"borrowers", "return_grace", "memory_dir"}),
    "limits": Traces(
        {"gpushare_limit_states"},
        set(),
        {NODE_LIMITS},
        {"GPUSHARE_MEMORY_LIMIT_BY"},
        {"limits", "limits_fallback", "soft_limit", "cu_mask", "extra_grant"},
    ),
    "mps": Traces({"gpushare_mps_ready"}, settings={"mps_dir", "mps_compute"}),
    "idle": Traces(settings={"idle_after", "idle_below"}),
    "history": Traces(CONDITIONS, {"/history"}, settings={"condition"}),
    "incidents": Traces(set(), {"/incidents"}),
    "cordon": Traces(settings={"cordon_on"}),
    "claims": Traces(settings={"cdi_dir"}),
}
"""What is a feature's own; of the others nothing is seen on a node where nothing happens."""


def absent(*names: str) -> set[str]:
    """Return the names of the features that an agent without these does not have."""
    return {spec.name for spec in NODE_FEATURES} - {spec.name for spec in without(*names)}


async def traces(there: Cluster, variables: set[str]) -> Traces:
    """Return what an agent with some pods shows."""
    agent = there.node.agent
    assert agent is not None
    await there.node.until(lambda: NODE_GPUS in annotations_of_node(there))
    if any(spec.name == "use_reports" for spec in there.node.features):
        await there.node.until(lambda: NODE_USE in annotations_of_node(there))
    families = re.findall(r"^# HELP (\w+)", await there.metrics(), re.MULTILINE)
    routes = {route.path.rstrip("/") for feature in agent.features for route in feature.routes()}
    settings = {knob.name for knob in knobs_of(type(agent.settings.value))}
    return Traces(set(families), routes, annotations_of_node(there), variables, settings)


def annotations_of_node(there: Cluster) -> set[str]:
    return set(there.api.get("nodes", "node")["metadata"]["annotations"])


async def run(features: Sequence[FeatureSpec]) -> Traces:
    """Give a container shares and another one a GPU, restart the kubelet, and do it again."""
    async with cluster([T4 | {"temperature": 40}] * 4) as there:
        there.node.features = features
        there.node.settings |= {"http": "127.0.0.1:0", "usage_interval": "50ms"}
        await there.start_agent()
        for turn in ("first", "second"):
            shared = await there.run(pod(f"{turn}-shares", mem=5), promise(0, 5))
            whole = await there.run(pod(f"{turn}-whole", count=1))
            assert len(gpus_of(shared, names.MEM)) == len(gpus_of(whole, names.COUNT)) == 1
            assert shared.only.received.envs["GPUSHARE_MEMORY_LIMIT_MIB"] == "5120"
            assert whole.only.received.envs["NVIDIA_VISIBLE_DEVICES"] not in shared.only.received.envs.values()
            if turn == "first":
                await there.node.kubelet.restart()
                await there.node.ready()
        return await traces(there, set(shared.only.received.envs))


@pytest.mark.parametrize("names", [[name] for name in NAMES] + [NAMES], ids=[*NAMES, "all"])
async def test_an_agent_without_features_lacks_nothing_but_what_is_their_own(names: list[str]) -> None:
    everything, left = await run(NODE_FEATURES), await run(without(*names))
    own = [OWN.get(each, Traces()) for each in absent(*names)]
    for found, kept, owned in zip(everything, left, zip(*own, strict=True), strict=True):
        assert found - kept == set().union(*owned)
        assert kept <= found


@pytest.mark.parametrize("name", OWN)
def test_a_setting_of_a_feature_that_is_left_out_is_refused_as_one_that_never_was(name: str, tmp_path: Path) -> None:
    left, file = settings_of(without(name), NodeSettings), tmp_path / "node.yaml"
    known = {knob.name: knob for knob in knobs_of(NODE_SETTINGS)}
    for each in OWN[name].settings:
        variable, text = known[each].variable, known[each].default
        Sources(NODE_SETTINGS, {}, {variable: text}).read()
        with pytest.raises(SettingsError, match=rf"^{variable}: there is no such setting; "):
            Sources(left, {}, {variable: text}).read()
        file.write_text(f"{each}: '{text}'\n", encoding="utf-8")
        Sources(NODE_SETTINGS, {"config": str(file)}, {}).read()
        with pytest.raises(SettingsError, match=rf"line 1, {each}: there is no such setting; "):
            Sources(left, {"config": str(file)}, {}).read()
        assert known[each].flag not in {knob.flag for knob in knobs_of(left)}


@pytest.mark.parametrize(("name", "limits"), [("limits", "driver"), ("limits", "mps"), ("mps", "mps")])
async def test_without_limits_or_mps_a_container_gets_nothing_of_them(name: str, limits: str, tmp_path: Path) -> None:
    async with cluster([T4 | {"memory_limits": True}]) as there:
        there.node.features = without(name)
        there.node.settings |= {"limits": limits, "limits_fallback": "advisory", "mps_dir": str(tmp_path)}
        await there.start_agent()
        received = (await there.run(pod("a", mem=5), promise(0, 5))).only.received
        by = received.envs.get("GPUSHARE_MEMORY_LIMIT_BY")
        assert by == ("advisory" if name == "mps" else None)
        assert not [each for each in received.envs if each.startswith(("NVIDIA_GPU_MEMORY", "CUDA_MPS"))]
        assert not received.mounts
    assert not os.listdir(tmp_path)  # noqa: PTH208 - nothing else runs any more


async def test_an_agent_without_mps_refuses_shares_where_mps_is_required() -> None:
    async with cluster([T4]) as there:
        there.node.features = without("mps")
        there.node.settings |= {"limits": "mps"}
        await there.start_agent()
        assert there.node.agent is not None
        assert (
            "asks for mps: this agent has no mps; containers are refused" in there.node.agent.config.value.means.missing
        )
        assert (await there.run(pod("a", mem=5), promise(0, 5))).phase == "Failed"


def test_settings_of_a_feature_are_had_by_their_type_where_the_agent_has_it() -> None:
    for spec in NODE_FEATURES:
        if spec.settings is not None:
            assert isinstance(NODE_SETTINGS().of(spec.settings), NodeSettings)
            with pytest.raises(LookupError, match=f"this program has no {spec.settings.__name__}; "):
                settings_of(without(spec.name), NodeSettings)().of(spec.settings)


def test_no_two_features_have_a_setting_of_one_name() -> None:
    names = list(NodeSettings.__dataclass_fields__)
    own = {spec.settings for spec in NODE_FEATURES if spec.settings is not None}
    names += [name for each in own for name in each.__annotations__]
    assert sorted(names) == sorted(NODE_SETTINGS.__dataclass_fields__)


def test_a_feature_comes_after_those_that_it_needs() -> None:
    for number, spec in enumerate(NODE_FEATURES):
        assert {each.name for each in NODE_FEATURES[:number]} >= set(spec.needs)


def test_a_feature_imports_others_only_if_they_come_before_it() -> None:
    """But for rules and contracts, which are everybody's."""
    graph = grimp.build_graph("gpu_device_plugin", cache_dir=None)
    folders = list(dict.fromkeys(spec.path.rpartition(":")[0].rpartition(".")[0] for spec in NODE_FEATURES))
    for number, folder in enumerate(folders):
        for module in graph.find_descendants(folder):
            imported = graph.find_modules_directly_imported_by(module)
            later = [each for each in imported if each.startswith(tuple(f"{name}." for name in folders[number + 1 :]))]
            assert [each for each in later if each.split(".")[3] not in {"rules", "contract"}] == [], module
