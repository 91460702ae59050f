"""Run the node agent of the demo, which reads in a folder of the demo's making whose the processes on the GPUs are.

The processes of the demo's pods are fake, and `/proc` knows none of them. It writes who uses what on its node as often
as that changes: a cluster would be asked too much. All else is as `gpu-device-plugin node` does it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from gpu_device_plugin import logs
from gpu_device_plugin.commandline import ending
from gpu_device_plugin.feature_list import FeatureSpec
from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS
from gpu_device_plugin.features.use.node import UseReports
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.programs.agent.node_program import NodeProgram
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources

PROGRAM = "gpu_device_plugin.programs.demo.demo_agent"


def main(argv: Sequence[str]) -> int:
    """Run the agent with the folder and the settings (as JSON) in `argv` until SIGTERM; return its exit code."""
    return ending(PROGRAM, partial(_run, argv))


def _run(argv: Sequence[str]) -> int:
    logs.quiet_grpc(os.environ)
    proc, flags = argv
    # The settings in the environment are those of an agent in earnest.
    sources = Sources(NODE_SETTINGS, json.loads(flags), environ={})
    texts = sources.texts()
    settings = sources.read(texts=texts)
    logs.configure(settings.log_level, settings.log_format, sys.stderr, colour=False)
    return NodeProgram(sources, texts, settings, NODE_FEATURES, agent=partial(_agent, Path(proc))).main()


def _agent(proc: Path, settings: NodeSettings, features: Iterable[FeatureSpec]) -> NodeAgent:
    agent = NodeAgent(settings, features, proc=proc)
    agent.features.of(UseReports).soon_s = agent.features.of(UseReports).seldom_s = 0.2
    return agent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
