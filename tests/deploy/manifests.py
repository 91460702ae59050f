"""The files of deploy/: read once, as often as they are asked for."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
Name = tuple[str, str, str]
"""Of an object: kind, namespace (empty where it has none) and name."""
Objects = dict[Name, Json]

DEPLOY = Path(__file__).parents[2] / "deploy"
AGENT = ("DaemonSet", "gpushare", "gpushare-node")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml, which is ten times as fast


def parsed(text: str) -> list[Any]:
    """Return the documents of a text in YAML."""
    return list(yaml.load_all(text, Loader=_LOADER))


@cache
def _read(path: Path) -> list[Any]:
    return parsed(path.read_text(encoding="utf-8"))


def documents(path: Path | str) -> list[Json]:
    """Return the documents of a file, by its path or by its name below deploy/; they are the caller's to change."""
    return deepcopy(_read(DEPLOY / f"{path}.yaml" if isinstance(path, str) else path))


def objects(path: Path | str) -> Objects:
    """Return the objects of a file by their names; two of one name are an error."""
    return by_name(documents(path))


def the(kind: str, path: Path | str) -> Json:
    """Return the one object of a kind in a file."""
    (found,) = (each for each in documents(path) if each["kind"] == kind)
    return found


def by_name(listed: list[Json]) -> Objects:
    """Key objects by their names; two of one name are an error."""
    found: Objects = {}
    for each in listed:
        key = (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        assert key not in found, key
        found[key] = each
    return found


def pod_of(workload: Json) -> Json:
    """Return what a DaemonSet or a Deployment makes its pods of."""
    pod: Json = workload["spec"]["template"]["spec"]
    return pod


def patched(body: Json, patch: Json) -> Json:
    """Return a workload with what a patch adds to its pod and its one container; whatever else it has is refused.

    As `kubectl patch --patch-file` does: lists of a pod are merged by their keys.
    """
    made = deepcopy(body)
    pod, more = pod_of(made), pod_of(patch)
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


def agent(patch: str = "") -> Json:
    """Return the agent's DaemonSet, with one of the patches of deploy/patches."""
    found = the("DaemonSet", "daemonset")
    return patched(found, documents(f"patches/{patch}")[0]) if patch else found
