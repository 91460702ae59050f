"""`kubectl inspect gpushare` on a terminal: it fits, it is drawn again, and it leaves the terminal as it was."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.report.rules.columns import columns
from tests.patience import stretched, until
from tests.programs.inspect.test_inspect_program import World, gpu, node, pod
from tests.reporting import COMMANDS
from tests.reports import part, written

PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGHUP, signal.{}); "
    "from gpu_device_plugin.__main__ import kubectl_plugin; sys.exit(kubectl_plugin())"
)
COMMAND = [sys.executable, "-c", PROGRAM.format("SIG_DFL")]
"""As a shell starts it, also where the tests run under nohup."""
NOHUP = [sys.executable, "-c", PROGRAM.format("SIG_IGN")]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _plain_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}


class Terminal:
    """A terminal, and a command that runs in it."""

    def __init__(
        self, world: World, words: Sequence[str], size: tuple[int, int], environ: dict[str, str], command: Sequence[str]
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [*command, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**_plain_environ(), "PATH": f"{world.home}:{os.environ['PATH']}", "TERM": "xterm", **environ},
            start_new_session=True,
        )
        self._slave = slave
        self.written = ""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """Read until a text comes, and return everything since the last call."""
        since = len(self.written)
        deadline = time.monotonic() + stretched(20)
        while text not in self.written[since:]:
            assert self._read(deadline - time.monotonic()), f"{text!r} never came in {self.written[since:]!r}"
        return self.written[since:]

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        if ready:
            self.written += os.read(self._master, 65536).decode()
        return bool(ready)

    def end(self) -> int:
        """Wait for the end of the command; return its exit code."""
        deadline = time.monotonic() + stretched(20)
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self._read(0.05)
        while self._read(0.0):
            pass
        return self.process.returncode

    def hang_up(self) -> None:
        """Take the terminal away, as when its window is closed."""
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDONLY)

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def world(tmp_path: Any) -> World:
    return World(tmp_path)


@contextlib.contextmanager
def terminal(
    world: World,
    *words: str,
    width: int = 80,
    height: int = 24,
    environ: dict[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[Terminal]:
    opened = Terminal(world, words, (width, height), environ or {}, command)
    try:
        yield opened
    finally:
        opened.close()


def plain(text: str) -> list[str]:
    return [line.rstrip() for line in _ESCAPES.sub("", text).replace("\r", "").splitlines()]


def eight(name: str = "gpu-1", **annotations: str) -> dict[str, Any]:
    made = node(name, *(gpu(at) for at in range(8)))
    made["metadata"]["annotations"] |= annotations
    return made


# --- The overview -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["-d"]])
def test_a_table_that_does_not_fit_is_folded(world: World, words: list[str]) -> None:
    world.has(eight(), pod("a", 5, on="gpu-1", idx=0))
    with terminal(world, *words) as shown:
        assert shown.end() == 0
        lines = plain(shown.written)
        assert lines[0].split() == ["NODE", "GPU", "MODEL", "GIVEN", "USED", "FREE", "LIMITS"]
        assert lines[1].split()[:2] == ["gpu-1", "0"]
        assert lines[2].split()[:2] == ["1-7", "7x"]
        assert (["default/a", "gpu-1", "0", "5G"] in [line.split()[:4] for line in lines]) == bool(words)
        assert max(map(columns, lines)) <= 80


@pytest.mark.parametrize("words", [["-o", "gpushare"], []])
def test_gpushares_layout_stays_where_it_is_asked_for_or_fits(world: World, words: list[str]) -> None:
    world.has(eight() if words else node("gpu-1", gpu(0)))
    with terminal(world, *words) as shown:
        assert shown.end() == 0
        assert plain(shown.written)[0].startswith("NAME   IPADDRESS  GPU0(Allocated/Total)")


def test_gpushares_layout_stays_where_the_output_is_no_terminal(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.has(eight())
    assert world.inspect() == 0
    plain_one = capsys.readouterr().out
    assert world.inspect("-o", "gpushare") == 0
    assert capsys.readouterr().out == plain_one
    assert plain_one.splitlines()[0].count("(Allocated/Total)") == 8


def test_nodes_are_selected_by_labels(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    other = node("gpu-2", gpu(0))
    other["metadata"]["labels"] = {"zone": "a"}
    world.has(node("gpu-1", gpu(0)), other)
    assert world.inspect("-l", "zone=a") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:2]] == ["gpu-2"]
    assert world.inspect("-l", "zone=z") == 0
    assert "No node with the labels zone=z shares GPUs." in capsys.readouterr().err


# --- One namespace, and few rights ------------------------------------------------------------------------------------


def test_the_pods_of_one_namespace_are_shown_with_their_use(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    uses = written(part("ml/big", used=1024, granted=9216), gpus={0: GpuUse(1024)})
    world.has(eight(**uses), pod("big", 9, on="gpu-1", idx=0, namespace="ml"), pod("a", 5, on="gpu-1", idx=1))
    assert world.inspect("-n", "ml") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["POD", "NODE", "GPU", "GIVEN", "USED", "%", "LIMIT"]
    assert row.split() == ["ml/big", "gpu-1", "0", "9G", "1G", "11", "-"]
    world.has(pod("want", 3, namespace="ml"))
    assert world.inspect("-n", "ml") == 0
    assert capsys.readouterr().out.splitlines()[2].split() == [
        "ml/want",
        "-",
        "-",
        "aliyun.com/gpu-mem:",
        "3",
        *"---",
        "waits",
    ]
    nobodys = {"kind": "Namespace", "metadata": {"name": "nobody"}}
    world.has(*world.script["objects"], nobodys)
    assert world.inspect("-n", "nobody") == 0
    assert capsys.readouterr().err == "No pod of nobody has a GPU.\n"
    assert world.inspect("-n", "nobdy") == 1
    assert capsys.readouterr().err.endswith('namespaces "nobdy" not found; is nobdy spelt right?\n')
    world.has(forbidden=[["get", "namespaces", ""]])
    assert world.inspect("-n", "nobdy") == 0
    assert capsys.readouterr().err == "No pod of nobdy has a GPU.\n"


def test_with_the_right_to_pods_of_one_namespace_alone_these_are_shown(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = [["list", "nodes", ""], ["list", "pods", ""]]
    world.has(eight(), pod("a", 5, on="gpu-1", idx=1), forbidden=denied)
    for words in ([], ["-n", "default"]):
        assert world.inspect(*words) == 0
        printed = capsys.readouterr()
        assert printed.out.splitlines()[1].split() == [
            "default/a",
            "gpu-1",
            "1",
            "5",
            "shares",
            "-",
            "-",
            "-",
            "Running",
        ]
        assert "warning: the right to list nodes in the whole cluster is missing" in printed.err
        assert "ClusterRole gpushare-viewer" in printed.err


def test_nodes_that_fail_to_be_read_are_no_missing_right(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(eight(), pod("a", 5, on="gpu-1", idx=1), broken="nodes")
    assert world.inspect("-n", "default") == 0
    printed = capsys.readouterr()
    assert "default/a" in printed.out
    assert "list nodes: 500 InternalError: no leader: only the pods of default are shown" in printed.err
    assert "gpushare-viewer" not in printed.err
    assert world.inspect("why", "a") == 0
    assert "incomplete: list nodes: 500 InternalError: no leader; " in (told := capsys.readouterr().out)
    assert "rights" not in told


def test_with_the_right_to_nodes_and_to_pods_of_one_namespace_gpus_may_be_fuller(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.has(node("gpu-1", gpu(0)), pod("a", 5, on="gpu-1", idx=0), forbidden=[["list", "pods", ""]])
    assert world.inspect() == 0
    printed = capsys.readouterr()
    assert "5/15" in printed.out
    assert "only pods of default are counted, so GPU usage may be under-reported" in printed.err


def test_machines_get_no_gpus_that_seem_freer_than_they_are(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(node("gpu-1", gpu(0)), forbidden=[["list", "pods", ""]])
    for words in (["-o", "json"], ["-o", "yaml"], ["-o", "wide"]):
        assert world.inspect(*words) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "the right to list pods in the whole cluster is missing, and GPUs would seem freer" in printed.err
    assert world.inspect("top") == 1
    assert "without -w the overview shows what it can; an administrator grants it" in capsys.readouterr().err


def test_without_any_right_kubectls_message_and_ours_stand(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    denied = [["list", kind, where] for kind in ("nodes", "pods") for where in ("", "default")]
    world.has(node("gpu-1", gpu(0)), forbidden=denied)
    assert world.inspect() == 1
    assert "the right to list nodes in the whole cluster is missing" in capsys.readouterr().err
    assert world.inspect("-n", "default") == 1


def test_the_doctor_examines_what_may_be_read(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(
        node("gpu-1", gpu(0)), pod("a", 5, on="gpu-1", idx=0), forbidden=[["list", "nodes", ""], ["list", "pods", ""]]
    )
    assert world.inspect("doctor") in {0, 3}
    printed = capsys.readouterr().out
    assert printed.startswith("unknown  rights")
    assert "the right to list nodes in the whole cluster is missing; the right to list pods in the whole" in printed
    assert "--clusterrole=gpushare-viewer" in printed
    assert "no agent wrote on a pod in namespace default that it uses more" in printed
    world.has(forbidden=[["list", "pods", ""], ["list", "pods", "default"]])
    assert world.inspect("doctor") == 1


def test_a_word_that_is_nearly_a_command_is_no_node(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.inspect("doctro") == 1
    assert 'nodes "doctro" not found; did you mean doctor?' in capsys.readouterr().err
    world.api.refuse("error: no login\n")
    assert world.inspect("doctro") == 1
    said = "no login. doctro is taken for the name of a node; did you mean doctor?\n"
    assert capsys.readouterr().err.endswith(f"kubectl proxy: {said}")


# --- Why, and the doctor ----------------------------------------------------------------------------------------------


def test_why_answers_over_many_nodes_in_one_screen(world: World) -> None:
    nodes = [eight(f"n{at:03}") for at in range(120)]
    pods = [pod(f"p{at}-{g}", 10, on=f"n{at:03}", idx=g) for at in range(120) for g in range(8)]
    world.has(*nodes, *pods, pod("want", 8))
    with terminal(world, "why", "want", height=24) as shown:
        assert shown.end() == 0
        lines = plain(shown.written)
    assert len(lines) <= 24
    assert "  120  no GPU has 8 GiB free" in lines
    assert any("There would be room if this pod ended" in line for line in lines)
    assert lines[-1].endswith("--all-nodes shows each, GPU by GPU.")
    with terminal(world, "why", "want", "--all-nodes") as shown:
        assert shown.end() == 0
        assert len(plain(shown.written)) > 1000


def test_the_doctor_has_colours_for_who_wants_them(world: World) -> None:
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "doctor") as shown:
        assert shown.end() == 3
        assert "\x1b[33mwarning" in shown.written
        assert "\x1b[32mok" in shown.written
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with terminal(world, "doctor", environ={name: value}) as shown:
            assert shown.end() == 3
            assert "warning" in shown.written
            assert "\x1b" not in shown.written
    with terminal(world, "doctor", "--json") as shown:
        assert shown.end() == 3
        assert "\x1b" not in shown.written


# --- Top --------------------------------------------------------------------------------------------------------------


def test_top_is_drawn_again_when_the_cluster_changes(world: World) -> None:
    world.has(node("gpu-1", gpu(0)), pod("a", 5, on="gpu-1", idx=0), pod("want", 3))
    with terminal(world, "top", "--interval", "0.5", "--sort-by", "given") as shown:
        first = shown.until("default/a")
        assert "1 pod is pending" in first
        world.has(pod("b", 4, on="gpu-1", idx=0))
        assert "9G/15G" in shown.until("default/b")
        shown.press("q")
        assert shown.end() == 0


@pytest.mark.parametrize("how", ["q", "Q", "\x03", "\x04", signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_top_leaves_the_terminal_as_it_was(world: World, how: str | signal.Signals) -> None:
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "-w") as shown:
        shown.until("gpu-1")
        assert shown.attributes() != shown.before
        if isinstance(how, str):
            shown.press(how)
        else:
            shown.process.send_signal(how)
        # Of a signal the sender sees that it ended the program; Ctrl-C is how a person ends it.
        assert shown.end() == (-how if how in {signal.SIGTERM, signal.SIGHUP} else 0)
        assert shown.attributes() == shown.before
        begun, ended = shown.written.count("\x1b[?1049h"), shown.written.count("\x1b[?1049l")
        assert begun == ended == 1
        for mode in (25, 1000, 1003, 1004, 1006, 2004):  # the cursor, and reports of the mouse, of focus and of pastes
            on, off = (shown.written.rfind(f"\x1b[?{mode}{way}") for way in "hl")
            assert (on > off) == (mode == 25)


def test_top_goes_on_after_a_hangup_under_nohup(world: World) -> None:
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "top", "--interval", "0.5", command=NOHUP) as shown:
        shown.until("gpu-1")
        shown.process.send_signal(signal.SIGHUP)
        world.has(pod("later", 3, on="gpu-1", idx=0))
        shown.until("default/later")
        shown.press("q")
        assert shown.end() == 0


def test_top_ends_with_its_terminal_where_hangups_are_ignored(world: World) -> None:
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "top", "--interval", "0.5", command=NOHUP) as shown:
        shown.until("gpu-1")
        shown.hang_up()
        assert shown.process.wait(stretched(20)) in {0, 1}  # nobody reads how it ended


def test_top_stops_and_goes_on(world: World) -> None:
    """As after Ctrl-Z and fg."""
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "top") as shown:
        shown.until("gpu-1")
        shown.process.send_signal(signal.SIGTSTP)
        shown.until("\x1b[?1049l")
        until(lambda: Path(f"/proc/{shown.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        assert shown.attributes() == shown.before
        shown.process.send_signal(signal.SIGCONT)
        shown.until("\x1b[?1049h")
        shown.until("gpu-1")
        shown.press("q")
        assert shown.end() == 0
        assert shown.attributes() == shown.before


def test_top_leaves_no_kubectl_behind(world: World) -> None:
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "top", "--interval", "0.5") as shown:
        shown.until("gpu-1")
        world.has(hang=True)
        hanging = world.home / "hanging"
        until(lambda: hanging.exists() and hanging.read_text())
        shown.press("q")
        assert shown.end() == 0
        until(lambda: not Path(f"/proc/{hanging.read_text()}").exists())


def test_top_fits_every_size_that_the_terminal_takes(world: World) -> None:
    world.has(eight(), *(pod(f"p{at}", at + 1, on="gpu-1", idx=at) for at in range(8)))
    with terminal(world, "top", width=100, height=40) as shown:
        shown.until("default/p7")
        shown.resize(60, 12)
        shown.process.send_signal(signal.SIGWINCH)
        shown.until("\x1b[12;1H\x1b[1;35;49m q ")  # the last line
        shown.press("q")
        assert shown.end() == 0


def test_top_has_the_size_of_its_terminal_whatever_the_environment_says(world: World) -> None:
    world.has(node("gpu-1", gpu(0)))
    with terminal(world, "top", width=60, height=12, environ={"COLUMNS": "200", "LINES": "50"}) as shown:
        shown.until("\x1b[12;1H\x1b[1;35;49m q ")  # the last line
        shown.press("q")
        assert shown.end() == 0
        assert "\x1b[13;1H" not in shown.written


def test_top_writes_what_its_terminal_can_show(world: World) -> None:
    world.has(node("gpu-1", gpu(0)), pod("a" * 100, 5, on="gpu-1", idx=0), pod("\u540d", 5, on="gpu-1", idx=0))
    with terminal(world, "top", environ={"PYTHONIOENCODING": "ascii"}) as shown:
        shown.until("all rows")
        shown.press("q")
        assert shown.end() == 0
        assert "default/aaa" in shown.written
        assert "default/?" in shown.written
        assert "\\u" not in shown.written


def test_top_explains_a_pod_beside_a_node_that_cannot_be_read(world: World) -> None:
    strange = node("gpu-1", gpu(0))
    strange["metadata"]["annotations"]["gpu-device-plugin/use"] = "{{"
    world.has(strange, pod("a", 5, on="gpu-1", idx=0))
    with terminal(world, "top", width=120) as shown:
        shown.until("default/a ")
        shown.press("\r")
        shown.until("default/a is on node gpu-1")
        shown.press("q")
        assert shown.end() == 0


def test_top_keeps_the_last_picture_while_the_cluster_cannot_be_read(world: World) -> None:
    world.has(node("gpu-1", gpu(0)), pod("a", 5, on="gpu-1", idx=0))
    with terminal(world, "top", "--interval", "0.5", width=120) as shown:
        shown.until("default/a")
        world.has(fail="Unable to connect to the server")
        drawn = shown.until("Not current: ")
        shown.until("default/a")
        assert "Unable to connect" in drawn + shown.written
        world.has(pod("b", 4, on="gpu-1", idx=0), fail="")
        shown.until("default/b")
        shown.press("q")
        assert shown.end() == 0


def test_top_has_no_colours_for_who_wants_none(world: World) -> None:
    world.has(node("gpu-1", gpu(0, healthy=False)))
    for environ, coloured in (({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
        with terminal(world, "top", environ=environ) as shown:
            shown.until("all rows")
            shown.press("q")
            assert shown.end() == 0
        codes = {each for found in re.findall(r"\x1b\[([0-9;]*)m", shown.written) for each in found.split(";")}
        assert bool(codes & {str(each) for each in (*range(30, 39), *range(40, 49))}) == coloured


def test_top_says_what_to_install(world: World) -> None:
    without = [*COMMAND[:2], f"import sys; sys.modules['textual'] = None; {COMMAND[2]}", "top"]
    with terminal(world, command=without) as shown:
        assert shown.end() == 2
        assert "run pip install 'gpu-device-plugin[top]'" in shown.written


def test_only_top_on_a_terminal_loads_textual(world: World) -> None:
    world.has(node("gpu-1", gpu(0)), pod("a", 5, on="gpu-1", idx=0))
    commands = [[], ["-o", "yaml"], ["top", "--history"], ["incident"], ["why", "a"], ["resize", "a"], ["wake"]]
    commands += [["plan", "--nodes-free=1"], ["cordon", "gpu-1", "0", "--dry-run"], ["uncordon", "gpu-1", "0"]]
    commands += [["prices"], ["doctor"], ["uninstall", "--dry-run"], ["--help"]]
    assert {each[0] for each in commands if each} >= {*COMMANDS} - {"overview", "web"}
    loads = (
        "import sys; from gpu_device_plugin.programs.inspect.inspect_program import main; import gpu_device_plugin.cli"
    )
    runs = (
        f"for words in {commands}:\n    try: main(words, kubectl={str(world.kubectl)!r})\n    except SystemExit: pass"
    )
    seen = "print(*sorted(set(sys.modules) & {'textual', 'rich'}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{loads}\n{runs}\n{seen}"], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == ""


def test_top_without_a_terminal_prints_one_picture_after_the_other(world: World) -> None:
    world.has(node("gpu-1", gpu(0)), pod("a", 5, on="gpu-1", idx=0))
    process = subprocess.Popen(
        [*COMMAND, "top", "--interval", "0.5"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{world.home}:{os.environ['PATH']}"},
    )
    assert process.stdout is not None
    heads = 0
    printed = ""
    while heads < 2:
        line = process.stdout.readline()
        printed += line
        heads += line.startswith("GPU shares, read at")
    process.send_signal(signal.SIGINT)
    assert process.wait(stretched(20)) == 0
    process.stdout.close()
    assert "\x1b" not in printed
    assert "default/a" in printed


def test_top_of_one_node_and_of_one_that_is_not_there(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(node("gpu-1", gpu(0)), node("gpu-2", gpu(0)))
    with terminal(world, "top", "gpu-2") as shown:
        assert "gpu-1" not in shown.until("1 node, 1 GPU")
        shown.press("q")
        assert shown.end() == 0
    assert main(["top", "gpu-9"], kubectl=str(world.kubectl), environ={}) == 1
    assert 'nodes "gpu-9" not found' in capsys.readouterr().err
