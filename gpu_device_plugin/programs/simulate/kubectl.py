"""The cluster's nodes and pods by one command of kubectl, with the rights of the person who runs it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ClusterUnreadableError(Exception):
    """The cluster could not be read. The message is for the user and says what to do."""


def listed(flags: Sequence[str], most: int, program: str = "kubectl") -> bytes:
    """Return all nodes and pods as JSON. kubectl's messages, and a login's questions, go to our stderr.

    Args:
        flags: of kubectl, which select the cluster.
        most: the most bytes that are read.
        program: the command that is run.

    Raises:
        ClusterUnreadableError: there is no kubectl, it failed, or it printed more.
    """
    words = ["get", "nodes,pods", "--all-namespaces", "--output=json"]
    try:
        # The program is what the user calls kubectl, and no shell reads the words.
        with subprocess.Popen([program, *flags, *words], stdout=subprocess.PIPE) as running:  # noqa: S603
            if running.stdout is None:  # pragma: no cover - it is a pipe
                return b""
            found = running.stdout.read(most + 1)
            if len(found) > most:
                running.kill()
    except OSError as error:
        why = "is not on the PATH" if isinstance(error, FileNotFoundError) else os.strerror(error.errno or 0)
        raise ClusterUnreadableError(
            f"{program}: {why}; the cluster is read through it: install it (https://kubernetes.io/docs/tasks/tools/), "
            "or give --nodes and --pods as files"
        ) from error
    if len(found) > most:
        raise ClusterUnreadableError(
            f"the cluster's nodes and pods are more than {most >> 20} MiB of JSON; write those that matter into a file "
            "and give it as --nodes"
        )
    if running.returncode:
        raise ClusterUnreadableError(
            f"kubectl could not list nodes and pods (exit code {running.returncode}); its message stands above. See "
            "whether kubectl get nodes,pods -A works; you need the right to list both in the whole cluster"
        )
    return found
