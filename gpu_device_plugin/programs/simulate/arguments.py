"""The command line of `gpu-device-plugin simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.commandline import add_settings
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import knobs_of

if TYPE_CHECKING:
    import argparse

_USAGE = """%(prog)s [--nodes NODES] [--pods PODS] [--policy NAMES] [--seeds N] [--from-empty] [--skip-misfits]
       [--until rejected|PERCENT | --departures PERCENT | --nodes-needed [NODE]]
       [--burst [PERCENTS]] [-o table|json] [--plot FILE.svg|FILE.png]"""
_DESCRIPTION = (
    "Answer before you buy or change: what would fit, what would another policy have done, how many nodes do these "
    "pods need. Nothing in the cluster is changed."
)
_EPILOG = (
    "NODES and PODS are a file (JSON of kubectl get nodes,pods -A -o json; a Deployment, Job or Pod in YAML; for "
    "--burst pods with their recorded use), the word cluster, or entries such as "
    "'10x gpus=4 mem=24 cpu=64 memory=256Gi', '10x 8x H100' and '40x mem=8 cpu=4; 5x count=2'. "
    "Exit code 0: simulated; 1: the cluster cannot be read; 2: the input cannot be used."
)


def add_simulate(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command with its flags."""
    parser = commands.add_parser(
        "simulate",
        help="what would fit, under which policy, on how many nodes",
        description=_DESCRIPTION,
        usage=_USAGE,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--nodes",
        metavar="NODES",
        help="a file, entries, or the cluster [cluster; none for --pods with --nodes-needed NODE]",
    )
    parser.add_argument(
        "--pods", metavar="PODS", help="a file, entries, or the cluster: its pending pods [the source of the nodes]"
    )
    parser.add_argument(
        "--policy", default="fit,binpack", metavar="NAMES", help="of fit, binpack, spread [fit,binpack]"
    )
    parser.add_argument("--seeds", default="3", metavar="N", help="how many orders of pods and nodes to try [3]")
    question = parser.add_mutually_exclusive_group()
    question.add_argument(
        "--until",
        metavar="rejected|PERCENT",
        help="let pods of the list arrive repeatedly, until one finds no room, or they have requested PERCENT of the "
        "free GPU memory; by default each pod arrives once",
    )
    question.add_argument(
        "--departures", metavar="PERCENT", help="let pods arrive and leave; they request PERCENT of the free GPU memory"
    )
    question.add_argument(
        "--nodes-needed",
        nargs="?",
        const="",
        metavar="NODE",
        help="find how many nodes of the kind NODE, such as '4x H100 cpu=64', take all pods beside those in --nodes; "
        "without NODE, how many empty ones of the kind in --nodes",
    )
    parser.add_argument(
        "--burst",
        nargs="?",
        const="100,99,95,90,75,50",
        metavar="PERCENTS",
        help="guarantee pods with recorded use only what they did not exceed in these percentages of the time, and "
        "let them borrow the rest [100,99,95,90,75,50]",
    )
    parser.add_argument(
        "--return-grace", default="30s", metavar="DURATION", help="how long a borrower has to return memory [30s]"
    )
    parser.add_argument(
        "--skip-misfits", action="store_true", help="leave out the pods that fit on no node, not even on an empty one"
    )
    parser.add_argument("--from-empty", action="store_true", help="running GPU pods leave, and arrive again")
    parser.add_argument("-o", "--output", default="table", choices=("table", "json"), help="the form of the result")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the result too, as FILE.svg or FILE.png (needs matplotlib)"
    )
    for name in ("context", "kubeconfig"):
        parser.add_argument(f"--{name}", metavar="VALUE", help="passed on to kubectl")
    add_settings(parser, knobs_of(ResourceSettings))
