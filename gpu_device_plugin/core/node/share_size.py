"""Which share size does an agent begin with?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def share_size(wanted: int, before: int | None, holders: Collection[str] | None, ended: Collection[str]) -> int:
    """Return the share size in MiB: the one of the agent before as long as a container holds shares of it.

    They would be another amount of memory in shares of another size, and some of it might be given out again.

    Args:
        wanted: what the settings say.
        before: the share size of the agent before; None: it is not known.
        holders: UIDs of the pods for which the kubelet's checkpoint shows shares; None: it cannot be read.
        ended: UIDs of the pods that the agent before saw end, see `ended_pods`.
    """
    held = holders is None or not set(holders) <= set(ended)
    return before if held and before is not None else wanted
