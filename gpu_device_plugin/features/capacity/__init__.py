"""Nodes and room for pods that wait: nodes are asked for, kept and filled up, pods moved, and room held for them."""

from __future__ import annotations

from gpu_device_plugin.settings.forms import SWITCH, duration, number, one_of
from gpu_device_plugin.settings.knobs import Settings, knob


class CapacitySettings(Settings):
    """Whether nodes are asked for and kept, and pods moved."""

    grow: str = knob(
        "off",
        one_of("off", "auto", "buffers", "stand-ins"),
        "Ask the cluster's autoscaler for the nodes that pending pods need, GPU by GPU: through CapacityBuffers, "
        "through placeholder pods, or through whichever the cluster supports (auto). Needs "
        "deploy/optional/capacity.yaml.",
    )
    node_start_s: float = knob(
        "10m",
        duration(),
        "How long a new node may take to offer its GPUs; until then no other is requested in its place.",
        live=True,
    )
    keep_nodes: bool = knob(
        "false",
        SWITCH,
        "Keep autoscalers from removing nodes whose pods fit on no other GPUs, and hold room for the pods that do. "
        "Needs deploy/optional/capacity.yaml.",
    )
    rebalance: int = knob(
        "0",
        number(0, 10_000),
        "How many pods the extender may move per hour to make room for pending pods. Needs "
        "deploy/optional/capacity.yaml.",
    )
