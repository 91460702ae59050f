"""AMD and Intel are one folder of the driver port: what else of the package names them stands here, with the reason."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import gpu_device_plugin

PACKAGE = Path(gpu_device_plugin.__file__).parent

WORDS = frozenset({"amd", "amdgpu", "rocm", "kfd", "xgmi", "hip", "hsa", "xe", "radeon", "instinct"})

OWN = ("hardware/amdgpu/", "features/limits/")
"""The folders that are about them: the driver, and the limits that the kernel holds for it."""
KERNEL = ("model/", "node/", "scheduler/", "report/")
"""The packages that place and allocate GPUs, whoever made them."""

CODE: Mapping[str, str] = {
    "hardware/child.py": "opens the driver that the node has",
    "programs/doctor/doctor_program.py": "reads what the kernel of the node has, for the checks",
    "programs/simulate/vendor_nodes.py": "nodes without our agent, by the labels of their vendor's labeller",
}
"""The modules whose code has such a name, of its own or of a folder of `OWN`, and why."""
TEXTS: Mapping[str, str] = {
    "hardware/driver.py": "the names of the sources of GPUs",
    "settings/forms.py": "the same, for a setting",
    "settings/node.py": "what the setting means, as users read it",
    "hardware/fake/fake_telemetry.py": "fake GPUs tell what the driver of their model tells",
    "hardware/fake/gpu_models.py": "the names of models, and their drivers",
    "model/gpus.py": "the names of models: tables show them without the maker",
    "features/conflicts/report.py": "the resources of other device plugins, to be found beside ours",
    "features/conflicts/rules.py": "the names and signs of other device plugins and DRA drivers",
    "programs/doctor/rules/container_checks.py": "the advice of checks",
    "programs/simulate/entries.py": "the names of models",
    "programs/simulate/vendor_nodes.py": "resources and labels of other plugins",
}
"""The modules that have such a word in a string that the program uses, and why."""


def words_of(text: str) -> set[str]:
    """Return which of `WORDS` a text has, as words of a sentence, of a name or of a path."""
    pieces = re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+", text)
    return {piece.lower() for piece in pieces} & WORDS | set(re.findall(r"[a-z0-9]+", text.lower())) & WORDS


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield the names in a module's code: what it imports, defines, reads and passes."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "asname", "arg", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield the strings in a module's code; docstrings, as comments, are nothing that a program uses."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def who_names_them(package: Path) -> dict[str, set[str]]:
    """Return where code, text or path have such a word, by the module's path; without the folders of `OWN`."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        if name.startswith(OWN) or "vendor" in path.parts or path.suffix not in {".py", ".js", ".json", ".html"}:
            continue
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text) if path.suffix == ".py" else None
        places = {
            "path": [name],
            "code": identifiers(tree) if tree is not None else (),
            "text": strings(tree) if tree is not None else [text],
        }
        where = {place for place, texts in places.items() if any(words_of(each) for each in texts)}
        if where:
            found[name] = where
    return found


def allowed(name: str) -> set[str]:
    """Return where a module may have such a word."""
    return {place for place, names in {"code": CODE, "text": TEXTS}.items() if name in names}


def test_nobody_else_names_them() -> None:
    found = who_names_them(PACKAGE)
    assert {name: more for name, where in found.items() if (more := where - allowed(name))} == {}


def test_an_exception_that_is_not_needed_goes() -> None:
    found = who_names_them(PACKAGE)
    unused = {name: allowed(name) - found.get(name, set()) for name in sorted({*CODE, *TEXTS})}
    assert {name: places for name, places in unused.items() if places} == {}


def test_the_kernel_knows_them_by_the_names_of_their_models_alone() -> None:
    assert [name for name in sorted({*CODE, *TEXTS}) if name.startswith(KERNEL)] == ["model/gpus.py"]
    assert all((PACKAGE / folder).is_dir() for folder in (*OWN, *KERNEL))


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("from gpu_device_plugin.hardware import amdgpu\n", "code"),
        ("def to_rocm(gpu): ...\n", "code"),
        ("class XeGpu: ...\n", "code"),
        ("kfdNode = gpu.HSA_PATH\n", "code"),
        ("if driver == 'amdgpu': ...\n", "text"),
        ("f'{gpu} of AMD'\n", "text"),
        ("PATHS = ('/sys/class/kfd/kfd',)\n", "text"),
        ("HSA = {'HSA_CU_MASK': 1}['HIP_VISIBLE_DEVICES']\n", "text"),
    ],
)
def test_a_module_that_names_them_is_found(module: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "fitting.py").write_text(module, encoding="utf-8")
    assert place in who_names_them(tmp_path).get("scheduler/fitting.py", set())


def test_a_folder_of_their_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "features" / "rocm").mkdir(parents=True)
    (tmp_path / "features" / "rocm" / "__init__.py").touch()
    assert who_names_them(tmp_path) == {"features/rocm/__init__.py": {"path"}}


def test_other_words_and_what_only_explains_are_no_names(tmp_path: Path) -> None:
    text = '"""As amdgpu does."""\nimage = "linux/amd64"  # AMD\nexec("axe " + chip.ship)\n'
    (tmp_path / "other.py").write_text(text, encoding="utf-8")
    assert who_names_them(tmp_path) == {}
