"""Apply the patches in deploy/patches as `kubectl patch --patch-file` does: lists of a pod are merged by their keys."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

Json = dict[str, Any]


def patched(body: Json, patch: Json) -> Json:
    """Return a workload with what a patch adds to its pod and its one container; whatever else it has is refused."""
    made = deepcopy(body)
    pod, more = made["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    assert set(patch) == {"spec"}
    assert set(more) <= {"containers", "volumes", "nodeSelector"}
    pod["volumes"] = _merged(pod["volumes"], more.get("volumes", []), "name")
    pod["nodeSelector"] |= more.get("nodeSelector", {})
    (container,) = pod["containers"]
    for added in more.get("containers", ()):
        assert set(added) <= {"name", "env", "volumeMounts", "securityContext"}
        assert added["name"] == container["name"]
        container["env"] = _merged(container["env"], added.get("env", []), "name")
        container["volumeMounts"] = _merged(container["volumeMounts"], added.get("volumeMounts", []), "mountPath")
        security = added.get("securityContext", {"capabilities": {}})
        assert set(security) == {"capabilities"}
        container["securityContext"]["capabilities"] |= security["capabilities"]
    return made


def _merged(old: list[Json], new: list[Json], key: str) -> list[Json]:
    """Merge two lists by a key of their entries. The API server leaves out what is false."""
    found = {each[key]: each for each in old}
    for each in new:
        found[each[key]] = {**found.get(each[key], {}), **each}
    return [{name: value for name, value in each.items() if value is not False} for each in found.values()]
