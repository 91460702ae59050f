"""Apply the patches in deploy/patches as `kubectl patch --patch-file` does: lists of a pod are merged by their keys."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

Json = dict[str, Any]


def patched(body: Json, patch: Json) -> Json:
    """Return a workload with the containers' mounts and the volumes of a patch; whatever else it has is refused."""
    made = deepcopy(body)
    pod, more = made["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    (container,), (added,) = pod["containers"], more["containers"]
    assert set(patch) == {"spec"}
    assert set(more) == {"containers", "volumes"}
    assert set(added) == {"name", "volumeMounts"}
    assert added["name"] == container["name"]
    container["volumeMounts"] += added["volumeMounts"]
    pod["volumes"] += more["volumes"]
    return made
