"""Which calls of the Kubernetes API a program makes, read from the source of all that it imports."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import gpu_device_plugin
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind

PACKAGE = Path(gpu_device_plugin.__path__[0])

# What the client's methods are to RBAC.
VERBS = {
    "get": "get",
    "pages": "list",
    "objects": "list",
    "newest": "list",
    "watch": "watch",
    "create": "create",
    "review": "create",
    "patch": "patch",
    "replace": "update",
    "delete": "delete",
}
Right = tuple[str, str, str]
"""API group, resource (with its subresource) and verb."""

WITHOUT_A_ROLE: set[Right] = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
"""What Kubernetes grants to every account (``system:basic-user``): to ask what itself may do."""


def sources(*modules: str) -> dict[str, ast.Module]:
    """Return the parsed source of these modules and of all that they import of ours, also where it is used only."""
    found: dict[str, ast.Module] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        if (tree := _parsed(module)) is not None:
            found[module] = tree
            waiting += _imported(tree)
    return found


_NAMED = re.compile(rf"{PACKAGE.name}(\.\w+)+:\w+")
"""A class that is imported by this name, such as a feature."""
AGENT = ("gpu_device_plugin.programs.agent.node_program", "gpu_device_plugin.features.node_features")
"""The modules from which the agent and all its features are imported."""


@cache
def _parsed(module: str) -> ast.Module | None:
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else None


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that are imported to run, which those for types alone are not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value):
            yield node.value.partition(":")[0]
        yield from _imported(node)


@cache
def rights_needed(*modules: str) -> set[Right]:
    """Return what RBAC has to grant for the calls that these modules, and what they import, make.

    Raises:
        AssertionError: a call is written in a way that is not understood.
    """
    trees = sources(*modules)
    # A reflector may be made for a kind that a feature names.
    followed = {
        kind
        for module, tree in trees.items()
        for made in ("Reflector", "FollowedKind")
        for kind in _given_to(made, module, tree)
    }
    calls = {right for module, tree in trees.items() for right in _calls(module, tree, followed)}
    return calls - WITHOUT_A_ROLE


def _kinds(module: str) -> dict[str, ObjectKind]:
    """Return the kinds that a module can name."""
    return {name: kind for name, kind in vars(import_module(module)).items() if isinstance(kind, ObjectKind)}


def _tables(module: str) -> dict[str, Mapping[object, ObjectKind]]:
    """Return the tables of kinds that a module can name: a call with an entry of one may be of each."""
    named = vars(import_module(module)).items()
    return {
        name: table
        for name, table in named
        if isinstance(table, Mapping) and table and all(isinstance(each, ObjectKind) for each in table.values())
    }


def _given_to(function: str, module: str, tree: ast.Module) -> Iterator[ObjectKind]:
    """Yield the kinds that a function or a class is called with."""
    kinds = _kinds(module)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == function:
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            yield from (kinds[arg.id] for arg in given if isinstance(arg, ast.Name) and arg.id in kinds)


def _calls(module: str, tree: ast.Module, followed: Iterable[ObjectKind]) -> Iterator[Right]:
    kinds, tables = _kinds(module), _tables(module)
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in VERBS):
            continue
        match call.args:
            case [ast.Name(id=name), *_] if name in kinds:
                asked: Iterable[ObjectKind] = (kinds[name],)
            case [ast.Attribute(attr="_kind"), *_]:
                asked = followed
            case [ast.Subscript(value=ast.Name(id=table)), *_] if table in tables:
                asked = tables[table].values()
            case _:
                assert not _is_client(call.func.value), f"of which kind? {ast.unparse(call)}"
                continue
        subresource = "".join(
            f"/{ast.literal_eval(keyword.value)}" for keyword in call.keywords if keyword.arg == "subresource"
        )
        for kind in asked:
            yield kind.group, kind.plural + subresource, VERBS[call.func.attr]


def _is_client(value: ast.expr) -> bool:
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"client", "_client"}
    return False


def rights_granted(rules: Iterable[dict[str, list[str]]]) -> set[Right]:
    """Return what the rules of a role grant."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
