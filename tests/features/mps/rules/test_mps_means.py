"""What follows from settings, labels and the daemons of MPS for the means of limiting on a node, and for its GPUs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_device_plugin.features.limits.rules.enforcement import WantedEnforcement, derive_means
from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import NOT_THERE, wanted_on
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitMeans
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.node import Block
from gpu_device_plugin.node.rules.node_config import NodeConfig, NodeFacts, derive
from gpu_device_plugin.settings.node import NodeSettings
from tests import mig
from tests.node.contexts import mps
from tests.nodes import inventory, node

READY = MpsGpu(MpsStatus.READY, pipe_directory="/run/x/GPU-0")
DRIVER, MPS, ADVISORY = Enforcement.DRIVER, Enforcement.MPS, Enforcement.ADVISORY
GPU = Gpu("GPU-a", 0, "NVIDIA H200", 143_771, memory_limits=True)


class Desk:
    """A node with two GPUs of 8 GiB, and the supervisor as it was last read."""

    def __init__(self) -> None:
        self.mps = mps(Path("/run/x"), state=NodeState(node(8, 8)))
        self.plan = LimitPlan()

    def config(
        self,
        before: NodeConfig | None = None,
        *,
        there: Inventory | None = None,
        labels: Mapping[str, str] | None = None,
        mps: Mapping[str, MpsGpu] | str = NOT_THERE,
        without_mps: frozenset[str] = frozenset(),
        limits: str = "auto",
        refuse: bool = False,
        mig_mode: MigMode = MigMode.OFF,
        **settings: Any,
    ) -> NodeConfig:
        self.mps.daemons.set(mps)
        self.mps.others.set(without_mps)

        def means(shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> LimitMeans:
            made = derive_means(shares, cgroup, labels, [self.mps], limits=limits, refuse=refuse, **settings)
            self.plan = made[0]
            return made[1]

        facts = NodeFacts(inventory=inventory(8, 8) if there is None else there, started=True, watched=True)
        start = NodeConfig(shares=Shares(1024)) if before is None else before
        return derive(NodeSettings(mig=mig_mode), facts, start, labels=labels, means=means)


def test_daemons_of_mps_labels_and_settings_reach_the_means() -> None:
    desk = Desk()
    by_label = desk.config(
        labels={"ack.node.gpu.schedule": "core_mem"}, mps={"GPU-0": READY}, soft_is_share=True, refuse=True
    )
    assert desk.plan.soft_is_share
    assert {uuid: gpu.enforcement for uuid, gpu in by_label.means.gpus.items()} == {"GPU-0": MPS, "GPU-1": MPS}
    assert by_label.limits.gpus == {0: by_label.means.gpus["GPU-0"], 1: by_label.means.gpus["GPU-1"]}
    assert desk.mps.asked_for == {"GPU-0", "GPU-1"}
    assert (desk.plan.refuse, desk.mps.refuse) == (False, False), "this label requires nothing"
    assert (by_label.means.missing, by_label.blocks) == ("", {})
    assert by_label.notes == (f"memory limits: {by_label.limits_summary}",)
    assert by_label.limits_summary.startswith("mps: the node label ack.node.gpu.schedule=core_mem asks for it")


def test_clients_and_daemons_of_mps_that_come_and_go_change_nothing_of_the_configuration() -> None:
    """Each would publish the whole configuration anew, and have every part of the agent look at it."""
    desk = Desk()
    alone = desk.config(limits="mps", mps={"GPU-0": READY})
    busy = MpsGpu(MpsStatus.READY, pipe_directory="/run/x/GPU-0", clients=3, server_pids=(17, 18), limit_mib=4096)
    for daemons in ({"GPU-0": busy}, {"GPU-0": READY, "GPU-1": MpsGpu(MpsStatus.STARTING)}, {}):
        assert desk.config(alone, limits="mps", mps=daemons) == alone


def test_a_wanted_means_that_is_not_there_bars_the_gpus_or_is_told_alone() -> None:
    desk = Desk()
    refused = desk.config(limits="mps", refuse=True, mps="it ended")
    assert refused.blocks == {uuid: Block(parts=desk.plan.refusals[uuid]) for uuid in ("GPU-0", "GPU-1")}
    assert (desk.plan.refuse, desk.mps.refuse) == (True, True)
    assert refused.means.missing.startswith(
        "GPU 0, 1: the setting limits=mps asks for mps: it ended; containers are refused"
    )
    beside: dict[str, Any] = {"limits": "mps", "mps": {}, "without_mps": frozenset({"GPU-1", "GPU-7"})}
    assert desk.config(**beside, refuse=True).blocks == {
        "GPU-1": Block(parts="it has containers that were started without MPS")
    }
    assert not desk.config(**beside).blocks
    advisory = desk.config(limits="mps", mps="it ended")
    assert not advisory.blocks
    assert desk.mps.asked_for == {"GPU-0", "GPU-1"}
    assert desk.config(there=Inventory(), limits="mps").notes == ()


def test_an_instance_that_is_given_whole_is_a_partition() -> None:
    whole = Desk().config(there=mig.inventory((10, 20), 8), mig_mode=MigMode.WHOLE)
    assert {gpu.enforcement for position, gpu in whole.limits.gpus.items() if position < 2} == {Enforcement.PARTITION}


def test_mps_is_asked_for_where_it_is_the_means_or_would_be_if_it_were_there() -> None:
    """GPU 0 has it, GPU 1 would, GPU 2 has the stronger one, GPU 3 is in MIG mode, and GPU 4 is not judged yet."""
    gpus = [dataclasses.replace(GPU, uuid=f"GPU-{n}", mig=n == 3) for n in range(5)]
    chosen = {
        gpu.uuid: GpuEnforcement(enforcement, "")
        for gpu, enforcement in zip(gpus, (MPS, ADVISORY, DRIVER, ADVISORY), strict=False)
    }
    assert wanted_on(gpus, chosen, WantedEnforcement((DRIVER, MPS), "a label")) == {"GPU-0", "GPU-1"}
    assert wanted_on(gpus, chosen, WantedEnforcement((DRIVER,), "a label")) == frozenset()
