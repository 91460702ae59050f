"""The stand-in for msgspec decodes every structure of the kubectl plugin as msgspec does."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu_device_plugin.kubernetes.reflector
import gpu_device_plugin.kubernetes.writers.evictions
import gpu_device_plugin.programs.inspect.inspect_program
import gpu_device_plugin.report.followed_cluster  # noqa: F401 - what the archive has
from tests.tools import standin_worker

ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "tools" / "onefile" / "msgspec_standin.py"


def structures() -> list[type]:
    """Every struct in a module that the archive contains."""
    found = {
        kind
        for name, module in sorted(sys.modules.items())
        if re.match(r"gpu_device_plugin\.(report|kubernetes|programs\.inspect|features\.\w+\.commands)\b", name)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == name
    }
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


STRUCTURES = structures()


class Worker:
    """The stand-in at work in a process of its own."""

    def __init__(self, folder: Path) -> None:
        shutil.copyfile(STANDIN, folder / "msgspec.py")
        # Other packages come last, so that the stand-in hides the original.
        places = [str(folder), str(ROOT), *sys.path, str(Path(msgspec.__file__).parents[1])]
        begin = f"import sys; sys.path[:] = {places!r}; import runpy; "
        run = f"runpy.run_path({standin_worker.__file__!r}, run_name='__main__')"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", begin + run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def outcome(self, kind: type, text: bytes) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"module": kind.__module__, "name": kind.__name__, "text": text.hex()}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    made = Worker(tmp_path_factory.mktemp("standin"))
    yield made
    made.close()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.sampled_from([0.5, -2.25, 3.0]) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)


def values(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a type as JSON has them, and now and then of another."""
    right = _values(kind, depth)
    return st.one_of(right, right, right, right, right, right, right, ANYTHING) if depth else right


def _values(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    simple = {
        str: TEXTS,
        bool: st.booleans(),
        int: st.integers(-9, 9),
        float: st.sampled_from([0.5, 2.0]),
        type(None): st.none(),
    }
    if kind in simple:
        return simple[kind]
    if kind in {Any, msgspec.Raw}:
        return ANYTHING
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([values(each, depth + 1) for each in arguments])
    if origin in {list, tuple}:
        return st.lists(values(arguments[0], depth + 1), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXTS, values(arguments[1], depth + 1), max_size=2)
    if issubclass(kind, msgspec.Struct):
        fields = {each.encode_name: values(each.type, depth + 1) for each in msgspec.structs.fields(kind)}
    else:
        assert dataclasses.is_dataclass(kind)
        hints = typing.get_type_hints(kind)
        fields = {each.name: values(hints[each.name], depth + 1) for each in dataclasses.fields(kind)}
    return st.fixed_dictionaries({}, optional={**fields, "unknown": ANYTHING}) if fields else st.just({})


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}")
def test_every_structure_is_decoded_alike(kind: type, worker: Worker) -> None:
    @settings(max_examples=5, deadline=None)
    @given(values(kind))
    def alike(value: object) -> None:
        text = json.dumps(value).encode()
        assert worker.outcome(kind, text) == standin_worker.outcome(kind, text)

    alike()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"metadata": {}}}',
        b"nul",
        b"NaN",
        b'"\xff"',
        b'\xef\xbb\xbf{"metadata": {}}',
        b"{'metadata': {}}",
        b'{"metadata": {"name": "a\tb"}}',
        b'{"metadata": {"name": 1}}',
        b'{"metadata": {"name": "a", "name": "b"}}',
        b'{"metadata": {"labels": {"a": 1}}}',
        b'{"metadata": null}',
        b"{}",
        b"null",
    ],
)
def test_texts_that_are_not_well_are_refused_alike(text: bytes, worker: Worker) -> None:
    (named,) = [kind for kind in STRUCTURES if kind.__name__ == "Named" and kind.__module__.endswith("objects")]
    ours, theirs = worker.outcome(named, text), standin_worker.outcome(named, text)
    # The original reads on only as far as it must, so it may find another fault of the same text first.
    assert ours == theirs or not {"value"} & {*ours, *theirs}


def test_there_are_structures() -> None:
    assert len(STRUCTURES) > 30
