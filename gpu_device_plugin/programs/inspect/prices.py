"""`kubectl inspect gpushare prices`: what room is worth to the policy fit, learned from the pods of the cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import NOT_ENDED
from gpu_device_plugin.core.report.text.prices import price_document, price_lines
from gpu_device_plugin.programs.commandline import OK
from gpu_device_plugin.programs.kubectl import GRANT, ClusterUnreadableError
from gpu_device_plugin.programs.terminal import width
from gpu_device_plugin.view.learned_mix import lesson_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.report.text.columns import Line
    from gpu_device_plugin.programs.kubectl import Kubectl


def prices(
    arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]
) -> tuple[Sequence[str | Line], int]:
    """Return the prices as lines, and the exit code.

    Raises:
        ClusterUnreadableError: nodes and pods cannot be read.
    """
    try:
        raw_nodes, raw_pods = kubectl.items("/api/v1/nodes"), kubectl.items("/api/v1/pods", NOT_ENDED)
    except ClusterUnreadableError:
        if not (lacking := kubectl.denied("nodes") or kubectl.denied("pods")):
            raise
        raise ClusterUnreadableError(f"{lacking}: prices are learned from all of them; {GRANT}") from None
    found = lesson_of(raw_nodes, raw_pods, resources)
    if arguments.output == "json":
        return json.dumps(price_document(found), indent=2).splitlines(), OK
    return price_lines(found, width()), OK
