"""A node agent whose node has invented processes: ``python -m bench.series PROC node ...``.

PROC stands for /proc. Everything else is as with ``gpu-device-plugin node ...``.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin import cli, logs
from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def processes(proc: Path, pods: Sequence[str]) -> list[dict[str, object]]:
    """Make up one process for each of these pods (UIDs); return what a fake driver says of each."""
    found: list[dict[str, object]] = []
    for number, uid in enumerate(pods):
        pid = 10_000_000 + number  # more than Linux gives
        folder = proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) S 1 1 1 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 5 9 9\n")
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/{number:064x}\n")
        found.append({"pid": pid, "used": "700MiB", "sm": 1})
    return found


def main(proc: Path, argv: Sequence[str]) -> int:
    """Run the agent until it is stopped; return its exit code."""

    def node(arguments: argparse.Namespace) -> int:
        logs.quiet_grpc({})
        sources, texts, settings = cli._begin(NODE_SETTINGS, arguments)
        from gpu_device_plugin.node.agent import NodeAgent  # noqa: PLC0415 - as the command does
        from gpu_device_plugin.programs.agent import node_program as program  # noqa: PLC0415 - as the command does

        agent = partial(NodeAgent, proc=proc)
        return program.NodeProgram(sources, texts, settings, NODE_FEATURES, agent=agent).main()

    return cli.main(argv, {**cli.PROGRAMS, "node": node})


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
