"""The command line: from words to a program, and to an exit code."""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_device_plugin import __version__, cli
from gpu_device_plugin.__main__ import kubectl_plugin
from gpu_device_plugin.__main__ import main as begin
from gpu_device_plugin.commandline import ending
from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.features.limits import LimitHelperSettings
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.knobs import Knob, UsageError, knobs_of


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_device_plugin", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


FIRST = (
    "begin with a command, node, extender, mps, limits, web, inspect, doctor, simulate, cost or demo; "
    "see gpu-device-plugin --help"
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["help"], "usage: gpu-device-plugin [-h] [--version] COMMAND"),
        (["help", "cost"], "usage: gpu-device-plugin cost --prometheus URL"),
        (["help", "inspect"], "usage: gpu-device-plugin inspect [COMMAND] [flags]"),
        (["version"], f"gpu-device-plugin {__version__}"),
        (["-v"], f"gpu-device-plugin {__version__}"),
    ],
)
def test_help_and_version_are_words_too(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["node", "--polcy=spread"], "--polcy: there is no such argument; did you mean --policy?"),
        (["node", "surplus"], "surplus: there is no such argument; see gpu-device-plugin node --help"),
        (["node", "-policy=spread"], "-policy: there is no such argument; did you mean --policy?"),
        (["node", "a.yaml"], "a.yaml: there is no such argument; did you mean --config=a.yaml?"),
        (["--policy=spread", "node"], "--policy: there is no such argument; write it after node"),
        (
            ["extender", "--share-size=1GiB"],
            "--share-size: there is no such argument; it belongs to gpu-device-plugin node",
        ),
        (["node", "--policy"], "--policy needs a value; see gpu-device-plugin node --help"),
        ([], FIRST),
        (["--wide", "inspect"], FIRST),
        (["--hlep"], "--hlep: there is no such argument; did you mean --help?"),
        (["--gpus", "fake:1xT4", "node"], f"fake:1xT4: there is no such command; {FIRST}"),
        (["start"], f"start: there is no such command; {FIRST}"),
        (["nod"], "nod: there is no such command; did you mean node?"),
        (["docotr"], "docotr: there is no such command; did you mean doctor?"),
        (
            ["why", "a"],
            "why: there is no such command; it is one of kubectl inspect gpushare, or gpu-device-plugin inspect why a",
        ),
        (["agent"], "agent: there is no such command; did you mean node?"),
        (["dashboard"], "dashboard: there is no such command; did you mean web?"),
        (["node", "--gpus=4xT4"], "--gpus: '4xT4' names no GPUs; did you mean fake:4xT4?"),
        (
            ["doctor", "n1"],
            "n1: there is no such argument; it examines this machine; see also kubectl inspect gpushare doctor",
        ),
        (["cordn"], "cordn: there is no such command; did you mean gpu-device-plugin inspect cordon?"),
        (["help", "nod"], "nod: there is no such command; did you mean node?"),
        (
            ["extender", "--api=/nowhere"],
            "api: kubeconfig /nowhere cannot be read: No such file or directory; is it the path that kubectl uses?",
        ),
        (["demo", "--gpus=/nowhere.yaml"], "--gpus: /nowhere.yaml: cannot be read: No such file or directory"),
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


def test_every_mistake_in_settings_has_a_line_of_its_own() -> None:
    """Whoever mends one need not start the program again to be told of the next."""
    done = run("node", "--policy=x", "--share-size=1GB", GPUSHARE_POLCY="spread")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "gpu-device-plugin: GPUSHARE_POLCY: there is no such setting; did you mean GPUSHARE_POLICY?",
        "gpu-device-plugin: --share-size: '1GB' is not an amount of memory; did you mean 1GiB?",
        "gpu-device-plugin: --policy: 'x' is unknown; write fit or binpack or spread",
    ]


def test_help_says_how_a_setting_is_named_in_a_file() -> None:
    """As its flag, and not as its variable, which a file refuses."""
    said = " ".join(run("node", "--help").stdout.split())
    assert "each named like its flag without the leading dashes and with _ for -, as in share_size: 1GiB" in said


def test_what_a_file_is_called_does_not_steer_the_terminal() -> None:
    done = run("node", "--config=/no/\x9b2J\u2028here", PYTHONUTF8="1")
    assert "/no/\\x9b2J\\u2028here" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"gpu-device-plugin {__version__}\n")


@pytest.mark.parametrize(
    ("command", "knobs"),
    [
        ("node", knobs_of(NODE_SETTINGS)),
        ("extender", knobs_of(EXTENDER_SETTINGS)),
        ("mps", knobs_of(MpsSupervisorSettings)),
        ("limits", knobs_of(LimitHelperSettings)),
    ],
)
def test_help_explains_every_setting_with_its_variable_and_default(command: str, knobs: tuple[Knob, ...]) -> None:
    done = run(command, "--help", COLUMNS="500")
    assert done.returncode == 0
    for knob in knobs:
        assert knob.flag in done.stdout
        assert f"{knob.help} [{knob.variable}; {knob.default or 'empty'}]" in done.stdout


@pytest.mark.parametrize("command", ["node", "extender", "mps", "limits"])
def test_help_loads_nothing_that_takes_long(command: str) -> None:
    """What the programs need is loaded when they run."""
    code = (
        "import sys; from gpu_device_plugin import cli\n"
        f"try:\n    cli.main(['{command}', '--help'])\nexcept SystemExit:\n    pass\n"
        "slow = {'aiohttp', 'asyncio', 'google', 'grpc', 'msgspec', 'pynvml', 'watchdog', 'yaml'}"
        "\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("reading", "absent"),
    [
        (
            "cli.sources_of(cli._services()['extender'][0], cli.parse(['extender']), {}).read()",
            r"features\.\w+\.(?!settings\b)",
        ),
        ("cli.parse(['inspect'])", r"node\.|features\.(?:node|extender)_features\b"),
    ],
)
def test_other_programs_load_of_the_agents_features_at_most_the_settings(reading: str, absent: str) -> None:
    """Those may stand in an environment or file that serves all programs."""
    code = f"import sys; from gpu_device_plugin import cli; {reading}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "gpu_device_plugin.settings.common" in done.stdout
    assert re.findall(rf"^gpu_device_plugin\.(?:{absent}).*", done.stdout, re.MULTILINE) == []


def test_flags_become_settings(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("policy: spread\n", encoding="utf-8")
    arguments = cli.parse(["node", f"--config={tmp_path}/node.yaml", "--share-size", "256MiB", "--pre-start"])
    read = cli.sources_of(NODE_SETTINGS, arguments, {"GPUSHARE_RESERVE": "1GiB", "HOME": "/root"}).read()
    assert (read.policy, read.share_size_mib, read.reserve_mib) == ("spread", 256, 1024)
    assert read.pre_start


def test_the_name_of_a_flag_in_0_1_0_is_not_known_any_more() -> None:
    assert "did you mean --domain?" in run("extender", "--drain=1m").stderr


def test_what_follows_inspect_is_left_to_that_program() -> None:
    """The same words, whether it is called by our name or as a plugin of kubectl."""
    seen: list[list[str]] = []

    def program(arguments: argparse.Namespace) -> int:
        seen.append(arguments.words)
        return 3

    assert cli.main(["inspect", "-d", "--help", "--", "inspect"], {"inspect": program}) == 3
    assert cli.inspect_plugin(["-d", "--help", "--", "inspect"], {"inspect": program}) == 3
    assert seen == [["-d", "--help", "--", "inspect"]] * 2


def test_kubectl_finds_the_plugin_by_its_name() -> None:
    """It looks for kubectl-inspect-gpushare when it is asked for `kubectl inspect gpushare`."""
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["scripts"] == {
        "gpu-device-plugin": f"{begin.__module__}:{begin.__qualname__}",
        "kubectl-inspect-gpushare": f"{kubectl_plugin.__module__}:{kubectl_plugin.__qualname__}",
    }


def test_misuse_of_the_plugin_is_told_under_the_name_that_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    def program(_arguments: argparse.Namespace) -> int:
        raise UsageError("there is no node called nod; did you mean node?")

    assert cli.inspect_plugin(["nod"], {"inspect": program}) == 2
    assert capsys.readouterr().err == "kubectl inspect gpushare: there is no node called nod; did you mean node?\n"


def signalled(
    number: str, module: str, *argv: str, entry: str = "main", first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Start a program, which gets a signal as soon as it imports one of our modules."""
    code = (
        f"import os, signal, sys\n{first}\n"
        f"from gpu_device_plugin.__main__ import {entry}\n"
        "class Kill:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == 'gpu_device_plugin.{module}':\n"
        f"            os.kill(os.getpid(), signal.{number})\n"
        f"sys.meta_path.insert(0, Kill())\n"
        f"sys.argv = ['gpu-device-plugin', *{argv}]\n"
        f"sys.exit({entry}())"
    )
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "module"),
    [("node", "cli"), ("node", "programs.agent.node_program"), ("extender", "programs.extender.extender_program")],
)
def test_sigterm_ends_a_program_that_is_still_being_loaded(command: str, module: str) -> None:
    """As PID 1 it would be passed over by the kernel if nobody handled it. It comes with the program's first import."""
    assert signalled("SIGTERM", module, command).returncode == 143


@pytest.mark.parametrize(
    ("entry", "module"),
    [
        ("main", "cli"),
        ("main", "programs.doctor.doctor_program"),
        ("kubectl_plugin", "settings.extender"),
        ("kubectl_plugin", "programs.inspect.inspect_program"),
    ],
)
def test_ctrl_c_is_no_traceback_while_a_program_is_being_loaded(entry: str, module: str) -> None:
    ended = signalled("SIGINT", module, "doctor", entry=entry)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_background_job_ignores_ctrl_c() -> None:
    """A shell without job control starts it with SIGINT ignored, which stays so."""
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert signalled("SIGINT", "cli", "--version", first=ignored).returncode == 0


def test_a_switch_can_be_turned_off_against_the_environment() -> None:
    arguments = cli.parse(["node", "--pre-start=false"])
    assert not cli.sources_of(NODE_SETTINGS, arguments, {"GPUSHARE_PRE_START": "true"}).read().pre_start


@pytest.mark.parametrize("code", [0, 1])
def test_a_program_decides_its_exit_code(code: int) -> None:
    assert cli.main(["demo"], {"demo": lambda _arguments: code}) == code


def test_an_error_in_the_program_itself_is_exit_code_1_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def program(_arguments: argparse.Namespace) -> int:
        raise LookupError("a bug")

    assert cli.main(["node"], {"node": program}) == 1
    assert "LookupError: a bug" in caplog.text


def test_another_error_of_the_system_is_told_with_its_traceback() -> None:
    def run() -> int:
        raise PermissionError(1, "x")

    with pytest.raises(PermissionError):
        ending("program", run)


def test_ctrl_c_is_no_traceback() -> None:
    def program(_arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert cli.main(["demo"], {"demo": program}) == 130
