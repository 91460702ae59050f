"""Which calls of the Kubernetes API a program makes, read from the source of all that it imports."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_device_plugin
from gpu_device_plugin.cluster import api

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(gpu_device_plugin.__path__[0])

# What the client's methods are to RBAC.
VERBS = {
    "get": "get",
    "pages": "list",
    "newest": "list",
    "watch": "watch",
    "create": "create",
    "patch": "patch",
    "replace": "update",
}
KINDS = {name: kind for name, kind in vars(api).items() if isinstance(kind, api.Kind)}

Right = tuple[str, str, str]
"""API group, resource (with its subresource) and verb."""


def sources(*modules: str) -> dict[str, ast.Module]:
    """Return the parsed source of these modules and of all that they import of ours, also where it is used only."""
    found: dict[str, ast.Module] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found and (path := _path(module)) is not None:
            found[module] = ast.parse(path.read_text(encoding="utf-8"))
            waiting += _imported(found[module])
    return found


def _path(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    return path if path.exists() else None


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that are imported to run, which those for types alone are not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _imported(node)


def rights_needed(*modules: str) -> set[Right]:
    """Return what RBAC has to grant for the calls that these modules, and what they import, make."""
    trees = sources(*modules)
    followed = {name for tree in trees.values() for name in _followed(tree)}
    return {
        (KINDS[kind].group, KINDS[kind].plural + subresource, verb)
        for tree in trees.values()
        for kind, subresource, verb in _calls(tree, followed)
    }


def _followed(tree: ast.AST) -> Iterator[str]:
    """Yield the kinds that reflectors are made for."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Reflector":
            yield from (arg.id for arg in call.args if isinstance(arg, ast.Name) and arg.id in KINDS)


def _calls(tree: ast.AST, followed: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in VERBS):
            continue
        subresource = "".join(
            f"/{ast.literal_eval(keyword.value)}" for keyword in call.keywords if keyword.arg == "subresource"
        )
        match call.args:
            case [ast.Name(id=kind), *_] if kind in KINDS:
                yield kind, subresource, VERBS[call.func.attr]
            case [ast.Attribute(attr="_kind"), *_]:
                for kind in followed:
                    yield kind, subresource, VERBS[call.func.attr]


def rights_granted(rules: Iterable[dict[str, list[str]]]) -> set[Right]:
    """Return what the rules of a role grant."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
