"""Render a Helm chart as Helm does, as far as ours makes use of it; whatever else it may say is refused.

Of Go's templates: text, `if` with `else`, `with`, `range` (over a list, or a map as `$key, $value`), `define`,
pipelines, parentheses, `.Files.Get` and comments. A value that values.yaml does not have is an error; Helm would write
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import Json, Objects, by_name, documents, parsed

_ACTION = re.compile(r"(\s*\{\{- |\{\{ ?)(/\*.*?\*/|.*?)(?: -\}\}\s*| ?\}\})", re.DOTALL)
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\(|\)|\||,|:=|\d+|[$\w.]+)')


class ChartError(Exception):
    """What the chart's own `fail` says."""


@dataclass(frozen=True)
class Block:
    """Text with actions in it, up to the `end` of what begins it."""

    action: str
    then: list[str | Block] = field(default_factory=list)
    otherwise: list[str | Block] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """A chart on disk."""

    root: Path

    def values(self, changed: Json) -> Json:
        """Return the values that a release has in which these were set."""
        return _merged(documents(self.root / "values.yaml")[0], changed)

    def render(self, changed: Json | None = None, *, namespace: str = "default", kube: str = "v1.36.3") -> Objects:
        """Return the objects of a release.

        Args:
            changed: values other than the chart's own.
            namespace: that of the release.
            kube: the version of the API server.
        """
        texts = [text for path, text in self.texts(changed, namespace, kube).items() if path.endswith(".yaml")]
        return by_name([each for text in texts for each in parsed(text) if each is not None])

    def texts(self, changed: Json | None = None, namespace: str = "default", kube: str = "v1.36.3") -> dict[str, str]:
        """Return what each template becomes."""
        (described,) = documents(self.root / "Chart.yaml")
        top = {
            "Values": self.values(changed or {}),
            "Release": {"Namespace": namespace},
            "Chart": {"AppVersion": described["appVersion"]},
            "Capabilities": {"KubeVersion": {"Version": kube}},
            "Files": {"Get": lambda name: (self.root / name).read_text(encoding="utf-8")},
        }
        templates = _templates(self.root)
        named = {_words(each.action)[1][1:-1]: each.then for blocks in templates.values() for each in _defined(blocks)}
        return {
            name: Rendering(named, {"$": top}).of(blocks, top)
            for name, blocks in sorted(templates.items())
            if not name.startswith("_")
        }


@cache
def _templates(root: Path) -> dict[str, list[str | Block]]:
    return {path.name: parse(path.read_text(encoding="utf-8")) for path in (root / "templates").iterdir()}


def _merged(old: Json, new: Json) -> Json:
    """Lists are replaced, as Helm does."""
    both = {key for key in old.keys() & new.keys() if isinstance(old[key], dict) and isinstance(new[key], dict)}
    return {**old, **new, **{key: _merged(old[key], new[key]) for key in both}}


# --- Reading ---------------------------------------------------------------------------------------------------------


def parse(text: str) -> list[str | Block]:
    """Read a template."""
    open_blocks = [Block("")]
    parts = [open_blocks[0].then]
    at = 0
    for found in _ACTION.finditer(text):
        parts[-1].append(text[at : found.start()])
        at = found.end()
        action = found[2].strip()
        if action.startswith("/*"):
            continue
        match _words(action)[:1]:
            case ["end"]:
                open_blocks.pop()
                parts.pop()
            case ["else"]:
                assert action == "else", action
                parts[-1] = open_blocks[-1].otherwise
            case ["if" | "with" | "range" | "define"]:
                block = Block(action)
                parts[-1].append(block)
                open_blocks.append(block)
                parts.append(block.then)
            case _:
                parts[-1].append(Block(action))
    (whole,) = open_blocks
    return [*whole.then, text[at:]]


def _defined(blocks: list[str | Block]) -> list[Block]:
    return [each for each in blocks if isinstance(each, Block) and each.action.startswith("define ")]


@cache
def _words(expression: str) -> list[str]:
    words = _TOKEN.findall(expression)
    assert "".join(words) == re.sub(r'\s+(?=(?:[^"]|"[^"]*")*$)', "", expression), f"not understood: {expression}"
    return words


# --- Rendering -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rendering:
    """One template in the making."""

    named: Mapping[str, list[str | Block]]
    variables: Json

    def of(self, blocks: list[str | Block], dot: Any) -> str:
        return "".join(each if isinstance(each, str) else self._one(each, dot) for each in blocks)

    def _one(self, block: Block, dot: Any) -> str:
        keyword, *rest = _words(block.action)
        match keyword:
            case "define":
                return ""
            case "if":
                return self.of(block.then if self.value(rest, dot) else block.otherwise, dot)
            case "with":
                found = self.value(rest, dot)
                return self.of(block.then, found) if found else self.of(block.otherwise, dot)
            case "range":
                return "".join(self._each(block, rest, dot))
        return str(self.value([keyword, *rest], dot))

    def _each(self, block: Block, words: list[str], dot: Any) -> Iterator[str]:
        if ":=" not in words:
            for each in self.value(words, dot):
                yield self.of(block.then, each)
            return
        key, comma, value, _, *rest = words
        assert comma == ","
        for name, each in sorted(self.value(rest, dot).items()):
            inner = Rendering(self.named, {**self.variables, key: name, value: each})
            yield inner.of(block.then, each)

    def value(self, words: list[str], dot: Any) -> Any:
        """Evaluate a pipeline: each command's result is the last argument of the next."""
        commands: list[list[Any]] = [[]]
        rest = iter(words)
        for word in rest:
            if word == "|":
                commands.append([])
            elif word == "(":
                commands[-1].append((self.value(list(_to_parenthesis(rest)), dot),))
            else:
                commands[-1].append(word)
        carried: list[Any] = []
        for first, *others in commands:
            arguments = [self._operand(each, dot) for each in others] + carried
            if isinstance(first, str) and (first in FUNCTIONS or first == "include"):
                function = self._include if first == "include" else FUNCTIONS[first]
                carried = [function(*arguments)]
            elif callable(found := self._operand(first, dot)):
                carried = [found(*arguments)]
            else:
                assert not arguments, words
                carried = [found]
        return carried[0]

    def _include(self, name: str, dot: Any) -> str:
        return self.of(self.named[name], dot)

    def _operand(self, word: Any, dot: Any) -> Any:
        match word:
            case (value,):
                return value
            case str() if word.startswith('"'):
                return yaml.safe_load(word)
            case str() if word.isdecimal():
                return int(word)
        start, *path = word.split(".")
        found = dot if start == "" else self.variables[start]
        for step in path:
            found = found[step] if step else found
        return found


def _to_parenthesis(words: Iterator[str]) -> Iterator[str]:
    depth = 1
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0:
            return
        yield word
    raise AssertionError("a parenthesis is not closed")


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False, width=10_000).removesuffix("\n").removesuffix("\n...")


def _fail(sentence: str) -> str:
    raise ChartError(sentence)


def _regex_find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "toYaml": _to_yaml,
    "nindent": lambda spaces, text: "\n" + re.sub(r"^(?=.)", " " * spaces, text, flags=re.MULTILINE),
    "default": lambda otherwise, value: value or otherwise,
    "regexFind": _regex_find,
    "printf": lambda form, *values: form % values,
    "replace": lambda old, new, text: text.replace(old, new),
    "fail": _fail,
    "dict": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "merge": lambda winning, other: _merged(other, winning),
    "or": lambda one, other: one or other,
    "not": lambda value: not value,
    "eq": lambda one, other: one == other,
    "ne": lambda one, other: one != other,
}
