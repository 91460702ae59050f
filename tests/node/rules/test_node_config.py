"""What follows for a node from its settings, labels, GPUs and way of serving."""

from dataclasses import fields, replace
from typing import Any

import pytest

from gpu_device_plugin.features.conflicts.rules import OTHERS, Detection
from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitMeans
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import OF_GPU, WHOLE_GPUS, Shares, TooManySharesError
from gpu_device_plugin.node.rules.gpu_health import Cause, GpuHealth, Problem
from gpu_device_plugin.node.rules.node import Block
from gpu_device_plugin.node.rules.node_config import (
    NodeConfig,
    NodeFacts,
    derive,
    ignored_labels,
    out_of_service,
    share_size,
)
from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode
from gpu_device_plugin.settings.node import NodeSettings
from tests import mig
from tests.nodes import inventory, node
from tests.resources import MEM

FAILED = GpuHealth((Problem(Cause.LOST, "it is gone"),))


def config(before: NodeConfig | None = None, **inputs: Any) -> NodeConfig:
    """Derive the configuration of a node with two GPUs of 8 GiB, if nothing else is given."""
    known: dict[str, Any] = {"inventory": inventory(8, 8), "started": True, "watched": True}
    given = {"resources": (Kind.MEMORY,)} | known | inputs
    settings = NodeSettings(**{each.name: given.pop(each.name) for each in fields(NodeSettings) if each.name in given})
    facts = NodeFacts(**{each.name: given.pop(each.name) for each in fields(NodeFacts) if each.name in given})
    return derive(settings, facts, before or NodeConfig(shares=Shares(1024)), **given)


def labels(**values: str) -> dict[str, str]:
    names = {"policy": "ack.node.gpu.placement", "cgpu": "cgpu.disable.isolation"}
    return {names.get(name, f"gpu-device-plugin/{name.replace('_', '-')}"): value for name, value in values.items()}


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_only_another_listing_or_use_of_mig_cuts_the_gpus_anew() -> None:
    first = config()
    assert [len(shared.shares) for shared in first.shares.gpus] == [8, 8]
    sick = config(first, health={"GPU-1": FAILED})
    assert sick.shares is first.shares
    assert (sick.blocks, first.blocks) == ({"GPU-1": Block("; ".join(FAILED.reasons))}, {})
    assert [len(shared.shares) for shared in config(first, inventory=inventory(8, 8, 4)).shares.gpus] == [8, 8, 4]
    assert config(first, mig=MigMode.SHARE).shares.mig is MigMode.SHARE
    assert config(first, labels=labels(mig="whole")).shares.mig is MigMode.WHOLE


def test_gpus_that_come_to_too_many_are_not_shared_and_the_others_are() -> None:
    first = config(inventory=inventory(3000))
    assert first.too_many == ""
    full = config(first, inventory=inventory(3000, 3000))
    assert [shared.gpu.uuid for shared in full.shares.gpus] == ["GPU-0"]
    assert "splits the GPUs of this node into 6000 shares" in full.too_many
    assert config(full, inventory=inventory(3000, 3000), health={"GPU-0": FAILED}).too_many == full.too_many
    with pytest.raises(TooManySharesError, match="6000 shares"):
        config(inventory=inventory(3000, 3000))


def test_each_mig_profile_that_is_given_whole_has_a_resource() -> None:
    whole = config(inventory=mig.inventory((10, 20), 8), mig="whole", mig_domain="x.com")
    assert whole.resources == (
        MEM,
        Resource(Kind.INSTANCE, "x.com/mig-1g.10gb", "1g.10gb"),
        Resource(Kind.INSTANCE, "x.com/mig-2g.20gb", "2g.20gb"),
    )
    assert config(inventory=mig.inventory((10, 20), 8)).resources == (MEM,)


def test_a_cordon_is_of_a_gpu_or_of_all_instances_of_one_in_mig_mode() -> None:
    there = config(inventory=mig.inventory((10, 20), 8), mig="share", cordons={"GPU-0": Cordon("alice")})
    instances = [shared.gpu for shared in there.shares.gpus if shared.gpu.instance is not None]
    assert all(there.blocks[gpu.uuid].new_pods for gpu in instances)
    plain = config(inventory=inventory(8, 8), cordons={"GPU-1": Cordon("alice"), "GPU-9": Cordon()})
    assert plain.blocks == {"GPU-1": Block(new_pods="cordoned by alice")}
    assert config(plain, inventory=inventory(8, 8)).blocks == {}


@pytest.mark.parametrize(
    ("before", "holders", "ended", "expected"),
    [
        (None, {"a"}, [], 1024),
        (2048, set(), [], 1024),
        (2048, {"a"}, [], 2048),
        (2048, {"a"}, ["a", "b"], 1024),
        (2048, {"a", "c"}, ["a", "b"], 2048),
        (2048, None, [], 2048),
        (None, None, [], 1024),
    ],
)
def test_the_share_size_waits_while_a_pod_holds_shares_or_may(
    before: int | None, holders: set[str] | None, ended: list[str], expected: int
) -> None:
    assert share_size(1024, before, holders, ended) == expected


def test_a_gpu_is_out_of_service_for_its_health_or_in_mig_mode() -> None:
    shares = node(4, 4, 4).shares
    gpus = [replace(shared, gpu=replace(shared.gpu, mig=shared.position > 0)) for shared in shares.gpus]
    shares = replace(shares, gpus=tuple(gpus))
    assert out_of_service({"GPU-0": ["too hot", "too old"], "GPU-1": [], "GPU-2": ["lost"]}, shares) == {
        "GPU-0": "too hot; too old",
        "GPU-1": "it is in MIG mode now",
        "GPU-2": "lost",
    }


def test_an_instance_that_is_gone_and_a_gpu_in_mig_mode_that_was_never_offered_are_out_of_service() -> None:
    order = (*mig.gpus(0, ()), mig.instance(0, 5), *mig.gpus(1, 4))
    shares = Shares(1024).with_inventory(replace(mig.inventory((), 4), order=order), mig=MigMode.SHARE)
    assert out_of_service({"GPU-0": ["lost"], "MIG-0-5": ["lost"]}, shares) == {
        "GPU-0": "it is in MIG mode now",
        "MIG-0-5": "the MIG instance no longer exists",
    }


# --- Settings and labels ----------------------------------------------------------------------------------------------


def test_labels_override_settings_one_by_one() -> None:
    plain = config(policy="spread", serve="dra")
    assert (plain.policy, plain.wanted_mode, plain.labelled) == ("spread", ServingMode.DRA, False)
    labelled = config(policy="spread", serve="dra", labels=labels(policy="binpack", serve="auto", cgpu="true"))
    assert (labelled.policy, labelled.wanted_mode, labelled.labelled) == ("binpack", ServingMode.DEVICE_PLUGIN, True)
    assert (labelled.delivery.cgpu_disable, plain.delivery.cgpu_disable) == (True, False)


def test_labels_that_nobody_understands_are_told_together_and_change_nothing() -> None:
    wrong = labels(policy="best", set_limits="hard", mig="shared", serve="both")
    assert set(ignored_labels(wrong)) == set(wrong)
    assert ignored_labels(wrong)["gpu-device-plugin/mig"] == (
        "the node label gpu-device-plugin/mig=shared is ignored: its value is none of off, whole, share"
    )
    understood = labels(policy="fit", set_limits="auto", mig="off", serve="auto")
    assert ignored_labels(understood) == ignored_labels({**understood, "gpu-device-plugin/mig": ""}) == {}
    found = config(labels=wrong)
    assert found == replace(config(labels={}), remarks=found.remarks)
    assert found.remarks == tuple(ignored_labels(wrong).values())


def test_exclusions_of_no_gpu_and_gpus_none_of_which_is_shared_are_remarked() -> None:
    assert config(inventory=Inventory(), exclude_gpus=("9",)).remarks == ()
    (unknown,) = config(exclude_gpus=("9",)).remarks
    assert unknown.startswith("--exclude-gpus names 9, but this node has no such GPU")
    swapped = replace(inventory(8, 8), order=tuple(reversed(inventory(8, 8).gpus)))
    (misread,) = config(inventory=swapped, exclude_gpus=("0",)).remarks
    assert misread.startswith("--exclude-gpus names 0, by which nvidia-smi counts GPU-0")
    excluded = config(exclude_gpus=("0", "1"))
    assert excluded.remarks == (excluded.why_none,) == (excluded.shares.why_none,)


def test_a_gpu_with_the_memory_of_the_machine_is_given_whole_or_shares_what_the_setting_says() -> None:
    gpu = Gpu("GPU-u", 0, "NVIDIA GB10", 124610, unified=True)
    there = Inventory((gpu,), order=(gpu,))
    (shared,) = config(inventory=there).shares.gpus
    assert (shared.listed, shared.offered, len(shared.shares)) == (*[frozenset({WHOLE_GPUS})] * 2, 1)
    assert config(inventory=there).remarks == ()
    (shared,) = config(inventory=there.with_unified(64 * 1024)).shares.gpus
    assert (shared.offered, len(shared.shares), shared.gpu.total_mib) == (OF_GPU, 64, 64 * 1024)


def test_a_gpu_that_cannot_be_listed_is_remarked() -> None:
    found = config(inventory=replace(inventory(8), unread=("the GPU GPU-x is left out, it is lost",)))
    assert found.remarks == ("the GPU GPU-x is left out, it is lost",)


def test_gpus_without_device_nodes_are_not_given_by_device_nodes() -> None:
    """On WSL2 and Tegra; a reload of the settings changes nothing of how they are given."""
    wsl = Inventory((Gpu("GPU-w", 0, "NVIDIA GeForce RTX 5070", 8188),))
    found = config(inventory=wsl, devices=("device-specs",))
    assert found.undeliverable.startswith("--devices=device-specs gives containers /dev/nvidiaN, and the driver tells")
    assert found.remarks == (found.undeliverable,)
    assert found.delivery.methods == {"envvar"}
    both = config(inventory=wsl, devices=("device-specs", "cdi"))
    assert both.delivery.methods == {"cdi"}
    for devices in (("envvar",), ("cdi",)):
        assert config(inventory=wsl, devices=devices).undeliverable == ""
    node_there = replace(wsl, gpus=(replace(wsl.gpus[0], device_paths=("/dev/nvidia0",)),))
    assert config(inventory=node_there, devices=("device-specs",)).undeliverable == ""


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_the_means_follow_from_the_shares_and_labels_of_now_and_close_gpus() -> None:
    asked: list[tuple[int, int | None, dict[str, str]]] = []

    def means(shares: Shares, cgroup: int | None, labels: dict[str, str]) -> LimitMeans:
        asked.append((len(shares.gpus), cgroup, labels))
        firm = {shared.gpu.uuid: GpuEnforcement(Enforcement.DRIVER, "so it is") for shared in shares.gpus}
        return LimitMeans(firm, {"GPU-1": "it is not there"}, "GPU 1 has none", names_pods=True)

    found = config(inventory=replace(inventory(8, 8), cgroup=2), labels={"a": "b"}, means=means)
    assert asked == [(2, 2, {"a": "b"})]
    assert found.blocks == {"GPU-1": Block(parts="it is not there")}
    assert found.limits.gpus == {n: GpuEnforcement(Enforcement.DRIVER, "so it is") for n in range(2)}
    assert found.notes == (f"memory limits: {found.limits_summary}",) == ("memory limits: driver: so it is",)
    assert (config().limits.gpus, config().notes, config().blocks) == ({}, (), {})


# --- What is told of the node -----------------------------------------------------------------------------------------


def test_gpus_are_withheld_for_other_plugins_or_while_the_node_changes_over() -> None:
    waiting = Serving(ServingMode.DRA, "this node waits")
    assert (config(serving=waiting).why_not_offered, config(serving=waiting).claims) == ("this node waits", True)
    others = tuple(Detection(other, ("a sign",)).finding for other in OTHERS[:2])
    assert config(serving=waiting, others=others).why_not_offered == "; ".join(others)
    assert (config().why_not_offered, config().claims) == ("", False)


def test_the_condition_names_failed_gpus_while_the_driver_answers() -> None:
    assert config(health={"GPU-1": FAILED}).condition is None, "nobody wants it"
    assert config(node_condition=True, started=False).condition is None, "nothing is known yet"
    bad = config(node_condition=True, health={"GPU-0": GpuHealth(), "GPU-1": FAILED}).condition
    assert bad is not None
    assert (bad.status, bad.message) == ("False", "GPU 1: it is gone")
    paused = config(node_condition=True, watched=False, sentence="the agent is paused")
    assert paused.condition is not None
    assert (paused.condition.status, paused.condition.message) == ("Unknown", "the agent is paused")
    assert paused.why_none == "the agent is paused"
