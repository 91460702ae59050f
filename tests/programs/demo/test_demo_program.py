"""The demo: it shows what happens, and its exit code says whether it happened as told."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path
from typing import ClassVar, Self

import pytest

from gpu_device_plugin import cli
from gpu_device_plugin.programs.demo.demo_program import play
from gpu_device_plugin.programs.demo.scenes import SCENES
from gpu_device_plugin.programs.demo.stage import DemoStage, Look, frame
from gpu_device_plugin.programs.demo.story import SceneContent, Story
from gpu_device_plugin.programs.demo.world import DemoError, World
from tests.nodes import node
from tests.patience import stretched

DEMO = [sys.executable, "-m", "gpu_device_plugin", "demo"]
ESCAPE = "\x1b"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(),
        env={**os.environ, "PYTHONUTF8": "1", **environ},
    )


def broken(printed: str) -> list[str]:
    """Return the checks that did not hold."""
    return re.findall(r"^NO  .*$", printed, re.MULTILINE)


def scenes_of(printed: str) -> list[str]:
    return [title.rstrip(" ─") for title in re.findall(r"^\d+/\d+ (.*)$", printed, re.MULTILINE)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files whose name is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="gd") as name:
        yield Path(name)


# --- Printed once ----------------------------------------------------------------------------------------------------


def test_once_prints_every_scene_and_every_check_holds() -> None:
    """Settings for an agent in earnest are not meant for this one.

    7,591 MiB of a P4 are for containers: 1,447 beside six parts of 1,024 MiB, 4,519 beside six halves of them.
    """
    done = run("--once", GPUSHARE_POLICY="spread", GPUSHARE_NO_SUCH="setting")
    assert (done.returncode, done.stderr, broken(done.stdout)) == (0, "", [])
    assert scenes_of(done.stdout) == list(SCENES)
    assert ESCAPE not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.startswith("You will see several services share one GPU, ")
    assert "GPU memory: 8 GiB" in done.stdout
    assert "\nAll checks passed; no device was allocated twice.\n\nNext:\n" in done.stdout
    commands = [line.rpartition("/")[2].strip() for line in done.stdout.splitlines()[-6::2]]
    assert commands == ["gpu-device-plugin demo --page", "gpu-device-plugin simulate", "make deploy IMAGE=..."]
    scenes = re.split(r"^(?=\d+/\d+ )", done.stdout, flags=re.MULTILINE)
    for number, lines in {
        3: ("web-7: 1.4 of 1 GiB\n", "web-1..6: 0.5 of 1 GiB each\n"),
        4: ("6/7  healthy  web-1: 1.0 of 1 GiB\n", "web-2..6: 0.5 of 1 GiB each\n"),
        13: ("ok  large, which was pending for 8 GiB, is running here.\n",),
    }.items():
        assert [line for line in lines if line not in scenes[number]] == []
    for number, sentence in {
        3: "container main uses 1,447 MiB of GPU 0, was granted 1,024 MiB",
        4: "evicted: container main uses 4,519 MiB of GPU 0, was granted 1,024 MiB",
        8: "its replacement stays pending",
    }.items():
        assert sentence in " ".join(scenes[number].split())


def test_the_story_fits_a_node_with_a_single_gpu() -> None:
    """14 shares for 7 services are 2 each, and then nothing is left to be taken whole."""
    done = run("--once", "--gpus", "fake:1xT4")
    assert (done.returncode, done.stderr, broken(done.stdout)) == (0, "", [])
    for text in ("aliyun.com/gpu-mem: 2.", "Every GPU is shared", "web-1..7: 1.0 of 2 GiB each"):
        assert text in done.stdout


async def played(gpus: str, *titles: str) -> str:
    """Play these scenes, and return what they print."""
    stream = io.StringIO()
    scenes = {title: scene for title, scene in SCENES.items() if title in titles}
    assert len(scenes) == len(titles)
    assert await play(gpus, DemoStage(stream, live=False, colour=False), scenes) == 0, stream.getvalue()
    return stream.getvalue()


BEGIN, SHARE, EXCEED, RUN_SHORT, _RETURNS, _GOES, WHOLE, REFUSED, FAILS, RECOVERS, *_ = SCENES
OVER_USE = (BEGIN, SHARE, EXCEED, RUN_SHORT)


async def test_the_story_fits_large_gpus() -> None:
    """139 shares for 7 services are 19 each; 89 of 139 are taken of all the others."""
    printed = await played("fake:8xH200", BEGIN, SHARE, WHOLE, REFUSED)
    for text in ("133/139", "After 6 notebooks of 89 GiB a pod requests", "50 GiB free"):
        assert text in printed


async def test_gpus_of_other_drivers_are_told_of_without_words_of_nvidias() -> None:
    printed = await played("fake:2xRX7900XTX", BEGIN, SHARE, FAILS, RECOVERS)
    for text in (
        "0  Radeon RX 7900 XTX  24.0 GiB",
        "environment of web-1: GPUSHARE_MEMORY_LIMIT_MIB=3072\n",
        "ok  Each has its 3072 MiB limit in its environment.\n",
        "The driver reports an uncorrectable memory error on GPU ",
        "ok  The GPU is back in service.\n",
    ):
        assert text in printed
    assert not re.search("NVIDIA|XID|MIG", printed)


def described(tmp_path: Path, text: str) -> str:
    file = tmp_path / "gpus.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


async def test_gpus_with_a_script_of_their_own_are_not_broken(tmp_path: Path) -> None:
    """XID 13 is the application's fault, and comes in an hour."""
    gpus = described(tmp_path, "gpus: [2xT4]\nevents: [{at: 1h, gpu: 0, xid: 13}]\n")
    assert (await played(gpus, *OVER_USE, FAILS, RECOVERS)).count("Skipped: ") == 4


async def test_gpus_described_in_a_file_can_be_broken_and_parts_that_fill_one_leave_nothing_to_take(
    tmp_path: Path,
) -> None:
    """Where a GPU is full, nobody can take more without taking a neighbour's part."""
    gpus = described(tmp_path, "gpus: [{product: Some Card, memory: 7GiB, count: 2}]\n")
    printed = await played(gpus, *OVER_USE, FAILS)
    for text in ("Some Card", "The driver reports XID 48 on ", "ok  web-7 ends; no other service does.\n"):
        assert text in printed
    assert printed.count("Skipped: ") == 1


async def test_a_service_that_shares_its_gpu_with_nobody_is_left_alone() -> None:
    printed = await played("fake:2xP4-2GiB", *OVER_USE)
    assert printed.count("Skipped: no two services share a GPU.") == 2


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="this machine has NVML")
def test_without_nvml_the_agents_own_sentence_says_so() -> None:
    done = run("--once", "--gpus", "nvml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("No GPUs to share: opening NVML")


def test_gpus_of_which_none_can_be_shared_are_none() -> None:
    done = run("--once", "--gpus", "fake:1xT4-1GiB")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("No GPUs to share: GPU 0 is not shared: 1 GiB, of which 449 MiB are reserved, ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "some"), "--gpus: 'some' names no GPUs"),
        (("--gpus", "fake:1xT5"), "--gpus: fake:1xT5: gpus.model: 'T5' is not a known model"),
        (("--gpus", "/does/not/exist.yaml"), "--gpus: /does/not/exist.yaml: cannot be read"),
        (("--page",), "--once ends after the last scene, and --page serves the page until Ctrl-C"),
    ],
)
def test_misuse_is_told_in_a_line(words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--once", *words]) == 2
    printed = capfd.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(f"gpu-device-plugin: {said}")


def test_a_folder_too_deep_for_sockets_is_misuse(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    done = run("--once", TMPDIR=str(deep))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("set TMPDIR=/tmp\n")


def test_a_reader_who_has_read_enough_ends_it_quietly(folder: Path) -> None:
    process = subprocess.Popen(
        [*DEMO, "--once"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1
    assert list(folder.iterdir()) == []


# --- Live in a terminal ----------------------------------------------------------------------------------------------


class Terminal:
    """A demo in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [*DEMO, *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**environ, "TERM": "xterm", "TMPDIR": str(folder), "PYTHONUTF8": "1"},
        )
        self.seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.theirs)
        os.close(self.ours)

    def until(self, text: str) -> None:
        """Read until `text` was written."""
        until_s = time.monotonic() + stretched(60)
        while text.encode() not in self.seen:
            assert time.monotonic() < until_s, self.seen.decode()
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 4096)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, read the rest, and return the exit code."""
        self.process.send_signal(number)
        while self.process.poll() is None or select.select([self.ours], [], [], 0)[0]:
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 4096)
        return self.process.returncode


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_it_draws_in_place_in_a_terminal_and_leaves_nothing_behind(
    folder: Path, number: signal.Signals, code: int
) -> None:
    with Terminal(folder) as terminal:
        terminal.until("\x1b[32m")
        terminal.until("\x1b[J")
        assert terminal.end(number) == code
        seen = terminal.seen
    assert re.search(rb"\x1b\[\d+A\x1b\[J", seen), "it moves up and draws again"
    assert b"\x1b[32m" in seen, "what is healthy is green"
    assert b"Traceback" not in seen
    assert list(folder.iterdir()) == [], "the folder is removed after the agent has ended"
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if names(path, str(folder))]


def test_the_scenes_beside_a_page_wait_for_its_first_reader(folder: Path) -> None:
    with Terminal(folder, "--page") as terminal:
        terminal.until("the scenes begin then")
        terminal.until("#token=")
        assert f"1/{len(SCENES)}".encode() not in terminal.seen
        assert terminal.end(signal.SIGINT) == 130
    assert list(folder.iterdir()) == []


def names(cmdline: Path, text: str) -> bool:
    try:
        return text.encode() in cmdline.read_bytes()
    except OSError:
        return False  # it ended meanwhile


# --- How a scene is shown --------------------------------------------------------------------------------------------


async def _lie(story: Story) -> None:
    story.say("Watch.")
    story.check("Pigs fly.", held=False)
    story.check("Pigs walk.", held=True)


async def test_a_scene_that_comes_out_otherwise_is_exit_code_1_and_named() -> None:
    stream = io.StringIO()
    assert (
        await play("fake:1xT4", DemoStage(stream, live=False, colour=True), {"True": SCENES[BEGIN], "A lie": _lie}) == 1
    )
    printed = stream.getvalue()
    assert "NO  Pigs fly.\nok  Pigs walk.\n" in printed
    assert "\nSome checks failed: see NO in scene 2.\n" in printed


async def test_an_eviction_where_none_should_be_is_exit_code_1() -> None:
    """The scenes in another order: by the second the agent has evicted a service already."""
    stream = io.StringIO()
    scenes = {title: SCENES[title] for title in (BEGIN, SHARE, RUN_SHORT, EXCEED)}
    assert await play("fake:1xT4", DemoStage(stream, live=False, colour=False), scenes) == 1
    printed = stream.getvalue()
    assert "ok  web-7 ends; no other service does.\n" in printed
    assert "NO  No pod is evicted; every service is running.\n" in printed
    assert "\nSome checks failed: see NO in scene 4.\n" in printed


async def test_an_agent_that_ends_is_told_at_once(tmp_path: Path) -> None:
    """It gives up when only a new container can give it its GPUs back."""
    gpus = described(tmp_path, "gpus: [1xT4]\nevents: [{at: 0.5s, failure: context-lost}]\n")

    async def wait(story: Story) -> None:
        await story.expect("The moon comes down.", lambda: False)

    with pytest.raises(DemoError, match="systemctl daemon-reload"):
        await play(gpus, DemoStage(io.StringIO(), live=False, colour=False), {"Begin": SCENES[BEGIN], "Wait": wait})


async def test_gpus_of_which_the_kubelet_was_told_nothing_are_not_drawn_as_broken() -> None:
    """Before its agent has registered. On a terminal without colour what remains is moving the cursor."""
    stream = io.StringIO()
    seen: list[str] = []

    async def wait(story: Story) -> None:
        seen.extend(frame("1/1", story.now, story.world, Look()))
        await SCENES[BEGIN](story)

    assert await play("fake:1xT4", DemoStage(stream, live=True, colour=False), {"Begin": wait}) == 0
    assert not re.search(r"\x1b\[[0-9;]*m", stream.getvalue())
    assert any("0/14  unknown" in line for line in seen), seen
    assert not any("no agent reports its health" in line or "unhealthy" in line for line in seen)


async def test_a_terminal_that_knows_few_characters_gets_few() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert await play("fake:1xT4", DemoStage(stream, live=False, colour=False), {"Begin": SCENES[BEGIN]}) == 0
    stream.seek(0)
    assert "..............  0/14" in stream.read()


class Nowhere(World):
    """A node without GPUs, of whose two shares one is offered."""

    node = node()
    unknown = frozenset()
    devices_listed: ClassVar = {"gpu-mem": frozenset("ab")}

    def __init__(self) -> None:
        self.used = {}

    def held(self) -> dict[str, frozenset[str]]:
        return {}

    def healthy(self, _resource: str) -> int:
        return 1


NOWHERE = Nowhere()


def test_a_scene_is_a_heading_a_caption_a_table_and_what_came_of_it() -> None:
    shown = SceneContent(
        "A scene",
        caption="What happens.",
        quotes=[("somebody", "what he says")],
        checks=[("It is so.", True), ("It is not so.", False)],
    )
    assert not shown.passed
    assert frame("3/9", shown, NOWHERE, Look(width=20, full="#", empty=".")) == [
        "3/9 A scene --------",
        "What happens.",
        "",
        "GPU  MODEL  MEMORY  SHARES    HEALTH",
        "",
        "Allocatable: gpu-mem",
        "1 of 2",
        "somebody: what he",
        "    says",
        "ok  It is so.",
        "NO  It is not so.",
    ]


def test_a_scene_that_is_left_out_says_why_and_is_not_wrong() -> None:
    shown = SceneContent("A scene", caption="Skipped: for a reason.", left_out=True)
    assert shown.passed
    assert frame("3/9", shown, NOWHERE, Look(width=40))[1:] == ["Skipped: for a reason."]


def test_an_amount_stays_on_one_line() -> None:
    shown = SceneContent("A scene", caption="There are 10 GiB free.", left_out=True)
    assert frame("3/9", shown, NOWHERE, Look(width=13))[1:] == ["There are", "10 GiB free."]
