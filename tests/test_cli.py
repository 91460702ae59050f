"""The command line: from words to a program, and to an exit code."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin import __version__, cli
from gpu_device_plugin.settings import KNOBS, UsageError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_device_plugin", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["node", "--polcy=spread"], "--polcy: there is no such argument; did you mean --policy?"),
        (["node", "--xyzzy"], "--xyzzy: there is no such argument; see gpu-device-plugin node --help"),
        (["node", "extra"], "extra: there is no such argument; see gpu-device-plugin node --help"),
        (["demo", "--onec"], "--onec: there is no such argument; did you mean --once?"),
        (["node", "--policy"], "argument --policy: expected one argument; see gpu-device-plugin node --help"),
        (["node", "--pol", "spread"], "--pol: there is no such argument; did you mean --policy?"),
        ([], "the following arguments are required: COMMAND; see gpu-device-plugin --help"),
        (["node", "--share-size=1GB"], None),
        (["node", "--config=/does/not/exist.yaml"], None),
        (["node", "--gpus=fake:1xT4", "--device-plugin-dir=/does/not/exist"], None),
        (["node", "--gpus=fake:1xT5", "--device-plugin-dir=/"], None),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(arguments: list[str], said: str | None) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpu-device-plugin: ")
    if said:
        assert done.stderr == f"gpu-device-plugin: {said}\n"


def test_an_unknown_command_names_the_known_ones() -> None:
    done = run("nod")
    assert done.returncode == 2
    assert "node" in done.stderr
    assert "demo" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_variable_is_misuse_too() -> None:
    done = run("node", GPUSHARE_POLCY="spread")
    assert done.returncode == 2
    assert done.stderr == "gpu-device-plugin: GPUSHARE_POLCY: there is no such setting; did you mean GPUSHARE_POLICY?\n"


def test_the_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"gpu-device-plugin {__version__}\n")


def test_help_explains_every_setting_with_its_variable_and_default() -> None:
    done = run("node", "--help", COLUMNS="500")
    assert done.returncode == 0
    for knob in KNOBS:
        assert knob.flag in done.stdout
        assert f"{knob.help} [{knob.variable}; {knob.default or 'empty'}]" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_is_there_for_everything(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: gpu-device-plugin")


def test_help_loads_nothing_that_takes_long() -> None:
    """What the programs need is loaded when they run."""
    code = (
        "import sys; from gpu_device_plugin import cli\n"
        "try:\n    cli.main(['node', '--help'])\nexcept SystemExit:\n    pass\n"
        "slow = {'aiohttp', 'asyncio', 'google', 'grpc', 'msgspec', 'prometheus_client', 'pynvml', 'watchdog', 'yaml'}"
        "\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_flags_become_settings(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("policy: spread\n", encoding="utf-8")
    arguments = cli.parse(["node", f"--config={tmp_path}/node.yaml", "--share-size", "256MiB", "--pre-start"])
    settings = cli.sources_of(arguments, {"GPUSHARE_RESERVE": "1GiB", "HOME": "/root"}).read()
    assert (settings.policy, settings.share_size_mib, settings.reserve_mib) == ("spread", 256, 1024)
    assert settings.pre_start


def test_a_switch_can_be_turned_off_against_the_environment() -> None:
    arguments = cli.parse(["node", "--pre-start=false"])
    assert not cli.sources_of(arguments, {"GPUSHARE_PRE_START": "true"}).read().pre_start


@pytest.mark.parametrize("code", [0, 1])
def test_a_program_decides_its_exit_code(code: int) -> None:
    assert cli.main(["demo"], {"demo": lambda _arguments: code}) == code


def test_a_program_can_find_misuse_that_settings_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    def program(_arguments: argparse.Namespace) -> int:
        raise UsageError("--gpus: 'fake:4xT5' names no known GPU; did you mean T4?")

    assert cli.main(["node"], {"node": program}) == 2
    assert capsys.readouterr().err == "gpu-device-plugin: --gpus: 'fake:4xT5' names no known GPU; did you mean T4?\n"


def test_an_error_in_the_program_itself_is_exit_code_1_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def program(_arguments: argparse.Namespace) -> int:
        raise LookupError("a bug")

    assert cli.main(["node"], {"node": program}) == 1
    assert "LookupError: a bug" in caplog.text


def test_ctrl_c_is_no_traceback() -> None:
    def program(_arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert cli.main(["demo"], {"demo": program}) == 130
