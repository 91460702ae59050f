"""What the Dockerfile names exists; building it needs a container engine, which a test does not have."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = ("ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "ENTRYPOINT", "CMD")


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


def test_every_line_is_an_instruction() -> None:
    assert {name for name, _ in instructions()} == set(INSTRUCTIONS)


def test_the_base_image_is_a_choice_made_once() -> None:
    assert the("ARG") == ["BASE=python:3.13-slim-bookworm"]
    assert the("FROM") == ["${BASE} AS build", "${BASE}"]


def test_what_is_copied_exists_and_reaches_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in copied():
        assert (ROOT / name).exists(), name
        assert name == "./" or f"!{name}" in ignored, name


def test_the_wheel_finds_everything_it_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {"pyproject.toml", "constraints.txt", "gpu_device_plugin", project["readme"], *project["license-files"]}
    assert needed <= set(copied())


def test_the_image_runs_the_program_that_the_wheel_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert the("ENTRYPOINT") == ['["gpu-device-plugin"]']
    assert "gpu-device-plugin" in project["scripts"]
    assert "PATH=/opt/gpu-device-plugin/bin:$PATH" in the("ENV")[0].split()


def test_the_runtime_is_asked_for_nvml_and_nothing_more() -> None:
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} <= set(the("ENV")[0].split())


@pytest.mark.parametrize("number", [0, 1])
def test_commands_are_valid_shell_and_compile_what_they_install(number: int) -> None:
    command = the("RUN")[number]
    subprocess.run(["sh", "-n", "-c", command], check=True)
    assert "-m compileall -q -o 2 --invalidation-mode unchecked-hash" in command


def test_byte_code_on_this_machine_stays_out_of_the_image() -> None:
    assert "**/__pycache__" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
