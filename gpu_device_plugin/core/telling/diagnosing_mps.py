"""The checks of the MPS supervisor, which has to run where memory limits are to be those of MPS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import DEFAULT_PROFILE
from gpu_device_plugin.core.contract.mpsfiles import MpsStatus
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.node.rungs import AUTO, wanted
from gpu_device_plugin.core.telling.diagnosing import Finding, error, ok, warning
from gpu_device_plugin.core.telling.node_symptoms import ApiSeen
from gpu_device_plugin.core.telling.printing import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms, NodeSeen
    from gpu_device_plugin.core.telling.node_symptoms import NodeSymptoms

_START = (
    "kubectl apply -f deploy/optional/mps.yaml, patch the agents with deploy/patches/mps-agent.yaml, and see "
    "kubectl -n gpushare get pods -l app.kubernetes.io/component=mps -o wide"
)


def asked_rung(labels: Mapping[str, str], setting: str) -> Rung | None:
    """Return the weakest means that a node's labels, or else the setting `limits`, accept; None: any."""
    rungs = wanted(setting if setting in set(Rung) else AUTO, labels).rungs
    return rungs[-1] if rungs else None


def asked_of(node: NodeSeen, cluster: ClusterSymptoms) -> Rung | None:
    """Return the same for a node of the cluster, by its settings profile."""
    by_profile = cluster.limits_by_profile
    default = by_profile.get(DEFAULT_PROFILE, "")
    return asked_rung(node.labels, by_profile.get(node.profile, default))


def supervisors(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that a supervisor is ready on each node whose limits are to be those of MPS."""
    ready = {each.node for each in cluster.supervisors if each.ready}
    wanting = {node.name for node in cluster.nodes if node.labelled and _by_mps(node, cluster)}
    if missing := wanting - ready:
        yield error(f"no MPS supervisor is ready on {listed(missing)}, whose limits are to be those of MPS", _START)
    elif wanting:
        yield ok(f"a supervisor is ready on {counted(len(wanting), 'node')}")


def _by_mps(node: NodeSeen, cluster: ClusterSymptoms) -> bool:
    present = None if node.report.limits is None else node.report.limits.rung
    # ACK's label cgpu prefers the driver's limits.
    return present is Rung.MPS or (asked_of(node, cluster) is Rung.MPS and present is not Rung.DRIVER)


def supervisor(node: NodeSymptoms) -> Iterator[Finding]:
    """Check the supervisor of this node, and its daemon on each GPU."""
    labels = node.api.labels if isinstance(node.api, ApiSeen) else {}
    positions = {gpu.uuid: gpu.index for gpu in node.inventory.gpus}
    if asked_rung(labels, node.limits) is not Rung.MPS:
        for uuid in node.mps_left:
            yield warning(
                f"GPU {positions.get(uuid, '?')} ({uuid}) was run by an MPS supervisor that is gone, and may still be "
                "in the compute mode EXCLUSIVE_PROCESS, in which a second program fails",
                f"nvidia-smi -i {uuid} -c DEFAULT; then remove {node.mps_state_file}",
            )
        return
    if isinstance(node.mps, str):
        yield error(f"the limits are to be those of MPS, and {node.mps}", _START)
        return
    ill = False
    for uuid, gpu in sorted(node.mps.items()):
        if gpu.status in {MpsStatus.FAULT, MpsStatus.FAILED}:
            ill = True
            yield warning(
                f"the MPS daemon of GPU {positions.get(uuid, '?')} ({uuid}) is in the state {gpu.status}"
                f"{f': {gpu.why}' if gpu.why else ''}",
                "a daemon in FAULT serves again once its clients have ended, and one that failed is started again; see "
                "the supervisor's log",
            )
    if not ill:
        yield ok(f"the supervisor runs, with {counted(len(node.mps), 'GPU')}")
