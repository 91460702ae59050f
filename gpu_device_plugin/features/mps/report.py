"""The doctor's checks of the MPS supervisor: in a cluster, and on one node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.limits.rules.enforcement import asked_enforcement, asked_of
from gpu_device_plugin.features.mps import MpsSettings
from gpu_device_plugin.features.mps.contract import STATE_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.report.rules.finding import Finding, error, ok, warning
from gpu_device_plugin.report.rules.node_view import ExaminedNode

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_START_MPS = (
    "kubectl apply -f deploy/optional/mps.yaml, patch the agents with deploy/patches/mps-agent.yaml, and see "
    "kubectl -n gpushare get pods -l app.kubernetes.io/component=mps -o wide"
)


def supervisors(
    nodes: Iterable[ExaminedNode], ready: AbstractSet[str], by_profile: Mapping[str, str]
) -> Iterator[Finding]:
    """Check that a supervisor is `ready` on each node whose limits are to be those of MPS; see `asked_of`."""
    wanting = []
    for node in nodes:
        present = None if node.report.limits is None else node.report.limits.enforcement
        # ACK's label cgpu prefers the driver's and the kernel's limits.
        stronger = present in {Enforcement.DRIVER, Enforcement.DMEM}
        asked = asked_of(node, by_profile) is Enforcement.MPS and not stronger
        if node.shares_gpus and (asked or present is Enforcement.MPS):
            wanting.append(node.name)
    if missing := tuple(name for name in wanting if name not in ready):
        text = "no MPS supervisor is ready on {nodes}, where MPS should limit memory"
        yield error("no-supervisor", text, _START_MPS, nodes=missing)
    elif wanting:
        yield ok("supervisors", "a supervisor is ready on {nodes:node}", nodes=len(wanting))


def supervisor(
    settings: NodeSettings,
    labels: Mapping[str, str],
    daemons: Mapping[str, MpsGpu] | str,
    names: Mapping[str, str],
    left: Iterable[str],
) -> Iterator[Finding]:
    """Check the supervisor of a node, if its limits are to be those of MPS, and its daemon on each GPU.

    GPUs are `left` by a supervisor, as its file says, which no longer runs and did not give them back; `names` are
    those of GPUs for people. All are by UUID.
    """
    if asked_enforcement(labels, settings.of(LimitSettings).limits) is not Enforcement.MPS:
        file = str(settings.of(MpsSettings).mps_dir / STATE_FILE)
        for uuid in left:
            yield warning(
                "mps-left",
                "{gpu} was run by an MPS supervisor that is gone, and may still be in the compute mode "
                "EXCLUSIVE_PROCESS, in which a second program fails",
                "nvidia-smi -i {uuid} -c DEFAULT; then remove {file}",
                gpu=names.get(uuid, f"GPU ? ({uuid})"),
                uuid=uuid,
                file=file,
            )
        return
    if isinstance(daemons, str):
        yield error("no-supervisor", "MPS should limit memory here, but {why}", _START_MPS, why=daemons)
        return
    ill = {uuid: gpu for uuid, gpu in daemons.items() if gpu.status in {MpsStatus.FAULT, MpsStatus.FAILED}}
    for uuid, gpu in sorted(ill.items()):
        yield warning(
            f"mps-{gpu.status}",
            "the MPS daemon of {gpu} is in the state {state}",
            "a daemon in FAULT serves again once its clients have ended, and one that failed is started again; see "
            "the supervisor's log",
            gpu=names.get(uuid, f"GPU ? ({uuid})"),
            state=": ".join(filter(None, (gpu.status, gpu.why))),
        )
    if not ill:
        yield ok("supervisor", "the supervisor runs, with {gpus:GPU}", gpus=len(daemons))
