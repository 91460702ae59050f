"""Render deploy/ with an overlay as kustomize does, as far as ours makes use of it; anything else is refused.

Of a kustomization: `resources`, `components`, `patches` that have the form of JSON Patch or delete, `nameSuffix`,
`replicas` and `images`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.deploy.manifests import AGENT, DEPLOY, Json, Objects, by_name, documents, parsed, patched, pod_of

OVERLAYS = DEPLOY / "overlays"
NAMES = sorted(path.name for path in OVERLAYS.iterdir())
FILES = ("kustomization.yaml", "Kustomization")
_FILES = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("optional/*.yaml")]
_FIELDS = {"apiVersion", "kind", "resources", "components", "patches", "nameSuffix", "replicas", "images"}


def render(overlay: str = "", images: list[Json] | None = None, options: Iterable[str] = ()) -> Objects:
    """Return what `make deploy` applies, by default without an overlay, and with the images of the manifests."""
    top: Json = {"resources": [DEPLOY], "images": images or []}
    top["resources"] += [path for each in options if (path := DEPLOY / "optional" / f"{each}.yaml").exists()]
    if overlay:
        top["components"] = [OVERLAYS / overlay]
    made = by_name(_built(Path("/"), top, []))
    for path in (DEPLOY / "patches" / f"{each}-agent.yaml" for each in options):
        if path.exists():
            made[AGENT] = patched(made[AGENT], documents(path)[0])
    return made


def kustomization_in(folder: Path) -> Json:
    """Return the kustomization of a folder; a field that is not understood is an error."""
    (path,) = (folder / name for name in FILES if (folder / name).exists())
    found: Json = documents(path)[0]
    assert set(found) <= _FIELDS, path
    return found


def _built(folder: Path, kustomization: Json, objects: list[Json]) -> list[Json]:
    """Return the objects with those of a kustomization, after its changes of all of them."""
    for name in kustomization.get("resources", ()):
        path = folder / name
        objects = objects + (_built(path, kustomization_in(path), []) if path.is_dir() else documents(path))
    for name in kustomization.get("components", ()):
        component = kustomization_in(folder / name)
        assert component["kind"] == "Component"
        objects = _built(folder / name, component, objects)
    for patch in kustomization.get("patches", ()):
        objects = _changed(objects, **patch)
    for each in objects if "nameSuffix" in kustomization else ():
        each["metadata"]["name"] += kustomization["nameSuffix"]
    for each in kustomization.get("replicas", ()):
        (target,) = _chosen(objects, kind="Deployment", name=each["name"])
        target["spec"]["replicas"] = each["count"]
    for each in kustomization.get("images", ()):
        for container in (one for body in objects for one in _containers(body)):
            container["image"] = _image(container["image"], **each)
    return objects


def _changed(objects: list[Json], target: Json, patch: str) -> list[Json]:
    """Return the objects with one patch."""
    targets = _chosen(objects, **target)
    # An overlay fits each part of deploy/, of which some need not be among what is installed.
    assert targets or _chosen([each for path in _FILES for each in documents(path)], **target)
    (change,) = parsed(patch)
    if isinstance(change, dict):
        assert change["$patch"] == "delete"
        return [each for each in objects if not any(each is one for one in targets)]
    for each in targets:
        for operation in change:
            _patch(each, **operation)
    return objects


def _chosen(objects: list[Json], kind: str, name: str = ".*", labelSelector: str = "!") -> list[Json]:  # noqa: N803 - as below
    """Return the objects that a target means; of selectors of labels, those of one that is not there are known."""
    assert labelSelector.startswith("!")
    return [
        each
        for each in objects
        if re.fullmatch(kind, each["kind"])
        and re.fullmatch(name, each["metadata"]["name"])
        and labelSelector[1:] not in each["metadata"].get("labels", {})
    ]


def _patch(target: Any, op: str, path: str, value: Any = None) -> None:
    """Do one operation of RFC 6902."""
    *steps, last = path.replace("~1", "/").split("/")[1:]
    for step in steps:
        target = target[int(step)] if isinstance(target, list) else target[step]
    match op, target:
        case "add", list():
            assert last == "-"
            target.append(value)
        case "add", dict():
            target[last] = value
        case "replace", dict() if last in target:
            target[last] = value
        case "remove", dict():
            del target[last]
        case _:
            raise AssertionError(f"not understood: {op} {path}")


def _containers(body: Json) -> list[Json]:
    match body["kind"]:
        case "Pod":
            return list(body["spec"]["containers"])
        case "DaemonSet" | "Deployment":
            return list(pod_of(body)["containers"])
    return []


def _image(image: str, name: str, newName: str = "", newTag: str = "", digest: str = "") -> str:  # noqa: N803 - kustomize's
    old, _, tag = image.rpartition(":")
    if old != name:
        return image
    return f"{newName or old}@{digest}" if digest else f"{newName or old}:{newTag or tag}"
