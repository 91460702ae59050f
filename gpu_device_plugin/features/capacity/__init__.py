"""Nodes and room for pods that wait: nodes are asked for, kept and filled up, pods moved, and room held for them."""

from __future__ import annotations

from gpu_device_plugin.settings.forms import SWITCH, duration, number, one_of
from gpu_device_plugin.settings.knobs import Settings, knob


class CapacitySettings(Settings):
    """Whether nodes are asked for and kept, and pods moved."""

    grow: str = knob(
        "off",
        one_of("off", "auto", "buffers", "stand-ins"),
        "Ask the cluster's autoscaler for the nodes that pending pods need GPU by GPU: by CapacityBuffers, by pods "
        "that stand in for the room, or by whichever the cluster supports (auto). Needs deploy/optional/capacity.yaml.",
    )
    node_start_s: float = knob(
        "10m",
        duration(),
        "How long a new node may take to offer its GPUs; until then no other is asked for in its place.",
        live=True,
    )
    keep_nodes: bool = knob(
        "false",
        SWITCH,
        "Keep autoscalers from removing nodes whose pods fit on no other GPUs, and hold room for the pods of others. "
        "Needs deploy/optional/capacity.yaml.",
    )
    rebalance: int = knob(
        "0",
        number(0, 10_000),
        "Pods that the extender may move in an hour to make room for pending pods. Needs "
        "deploy/optional/capacity.yaml.",
    )
