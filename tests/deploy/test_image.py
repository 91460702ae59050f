"""What the Dockerfile names exists, and what it installs is pinned; `make e2e` builds it."""

import json
import re
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.node_agent import IMAGE
from gpu_device_plugin import cli
from tools.sbom import locked

ROOT = Path(__file__).parents[2]
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
AGAIN = "run: make locks"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def wanted() -> dict[str, list[str]]:
    """Return the lock files, and what each has to satisfy."""
    described = project()
    programs, build = described["project"]["dependencies"], described["build-system"]["requires"]
    release = [*programs, *build, *described["dependency-groups"]["release"]]
    return {"requirements.lock": programs, "requirements-build.lock": build, "requirements-release.lock": release}


every_lock = pytest.mark.parametrize("file", wanted())


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest) pairs: comments dropped and lines joined as its format says."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = [line.split(maxsplit=1) for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


def the(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def copied() -> list[str]:
    """The sources taken from the repository."""
    return [word for rest in the("COPY") if not rest.startswith("--from") for word in rest.split()[:-1]]


def commands() -> list[str]:
    """What is run by a shell, without what the builder is told of it."""
    return [re.sub(r"^(--\S+ +)+", "", rest) for rest in the("RUN") if not rest.startswith("[")]


def test_what_is_copied_exists_and_reaches_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in copied():
        assert (ROOT / name).exists(), name
        assert name == "./" or f"!{name}" in ignored, name
    assert "**/__pycache__" in ignored


def test_the_wheel_finds_everything_it_is_made_of() -> None:
    described = project()["project"]
    needed = {"pyproject.toml", "hatch_build.py", "gpu_device_plugin", "README.md", *described["license-files"]}
    assert needed <= set(copied())


def test_agents_are_measured_as_the_image_runs_them() -> None:
    assert {f"{name}={value}" for name, value in IMAGE.items()} <= set(the("ENV")[0].split())
    compiled = re.findall(r"python3 (\S* ?\S+ )-m compileall -q (-o \d)", " ".join(commands()))
    assert compiled == [("-X no_debug_ranges ", f"-o {IMAGE['PYTHONOPTIMIZE']}")] * 2


def test_the_image_runs_the_program_that_the_wheel_installs() -> None:
    assert the("ENTRYPOINT") == ['["gpu-device-plugin"]']
    assert "gpu-device-plugin" in project()["project"]["scripts"]
    assert "PATH=/opt/gpu-device-plugin/bin:$PATH" in the("ENV")[0].split()


def test_what_cannot_be_imported_is_noticed_when_the_image_is_built() -> None:
    """The command line imports a program when it is asked for it; one that misses a library would start as an image."""
    version, imports = (json.loads(rest) for rest in the("RUN") if rest.startswith("["))
    assert version == ["gpu-device-plugin", "--version"]
    source = (ROOT / "gpu_device_plugin" / "cli.py").read_text(encoding="utf-8")
    lazily = re.findall(
        r"^    from (gpu_device_plugin\.(?:programs\.\w+|features\.\w+(?:\.\w+)?)) import ([a-z_]+)(?: as \w+)?"
        r"(?:  #.*)?$",
        source,
        re.MULTILINE,
    )
    programs = {f"{package}.{name}" for package, name in lazily} | {path for _, path, *_ in cli._services().values()}
    tools = (name for name, run in cli.PROGRAMS.items() if run is cli._tool)
    programs |= {f"gpu_device_plugin.programs.{name}.{name}_program" for name in tools}
    assert imports[-1].removeprefix("import ").split(", ") == sorted(programs)
    assert len(programs) > 5


def test_the_image_asks_for_no_gpu_and_runs_as_nobody() -> None:
    """The extender and `kubectl inspect` need neither. The manifest of the agent, which needs both, says so."""
    assert "NVIDIA" not in "".join(the("ENV"))
    assert the("USER") == ["65532:65532"]


@pytest.mark.parametrize("command", commands())
def test_commands_are_valid_shell(command: str) -> None:
    subprocess.run(["sh", "-n", "-c", command], check=True)


def test_packages_come_by_their_hashes_or_from_no_index_at_all() -> None:
    installs = [each for command in commands() for each in command.split("&&") if re.search(r" (install|wheel) ", each)]
    assert len(installs) == 4
    for each in installs:
        assert "--no-deps" in each
        assert "--require-hashes" in each or "--no-index" in each


# --- The locks -------------------------------------------------------------------------------------------------------


def needed() -> set[str]:
    """Everything that the programs need, by what the packages that are installed here say of themselves."""
    found: set[str] = set()
    waiting = [("gpu-device-plugin", frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        for text in distribution(name).requires or ():
            asked = Requirement(text)
            if asked.name not in found and _applies(asked, extras):
                found.add(asked.name)
                waiting.append((asked.name, frozenset(asked.extras)))
    return {canonicalize_name(name) for name in found}


def _applies(asked: Requirement, extras: frozenset[str]) -> bool:
    """Whether it is needed with any Python that the image may be built with."""
    where = {"sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython"}
    return asked.marker is None or any(
        asked.marker.evaluate({**where, "python_version": python, "python_full_version": f"{python}.0", "extra": extra})
        for python in PYTHONS
        for extra in ("", *extras)
    )


def test_the_lock_has_all_that_the_programs_need_and_nothing_else() -> None:
    assert locked(ROOT).keys() == needed(), AGAIN


@every_lock
def test_a_lock_satisfies_the_project_in_the_versions_that_the_tests_run_with(file: str) -> None:
    lock = locked(ROOT, file)
    for asked in map(Requirement, wanted()[file]):
        version, _ = lock[canonicalize_name(asked.name)]
        assert asked.specifier.contains(version), f"{asked}: {AGAIN}"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins: dict[str, str] = {canonicalize_name(each.name): str(each.specifier) for each in map(Requirement, lines)}
    assert {name: f"=={lock[name][0]}" for name in lock} == {name: pins.get(name) for name in lock}, AGAIN


@every_lock
def test_a_lock_is_as_uv_writes_it(file: str) -> None:
    """With hashes for every package, wheels alone, and no address of an index."""
    text = (ROOT / file).read_text(encoding="utf-8")
    head = "# This file was autogenerated by uv via the following command:\n#    make locks\n--only-binary :all:\n\n"
    assert re.fullmatch(head + r"([a-z0-9-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n)+", text), AGAIN
    assert [*locked(ROOT, file)] == sorted(locked(ROOT, file))


def test_a_package_with_compiled_code_has_wheels_for_both_machines() -> None:
    """uv refuses any other; a package of pure Python has one for all."""
    uv = project()["tool"]["uv"]
    both = [f"sys_platform == 'linux' and platform_machine == '{machine}'" for machine in MACHINES]
    assert uv["required-environments"] == both
    lock = locked(ROOT)
    compiled = {
        name
        for name in lock
        if not any(
            line == "Root-Is-Purelib: true" for line in (distribution(name).read_text("WHEEL") or "").split("\n")
        )
    }
    assert {"grpcio", "protobuf", "msgspec"} <= compiled
    assert {name for name in compiled if len(lock[name][1]) < 2} == set()
