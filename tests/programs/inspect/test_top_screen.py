"""`kubectl inspect gpushare top` as a person uses it, at a terminal without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from gpu_device_plugin.programs.inspect.top_picture import Picture
from gpu_device_plugin.programs.inspect.top_screen import Top
from gpu_device_plugin.report.rules.columns import Line, Tone
from gpu_device_plugin.report.rules.terminal_tables import PodRow
from tests.views import node_view, pod_on

WAITS = PodRow("ml/[red]want\x1b", "", "-", "aliyun.com/gpu-mem: 3", 0, state="waits")
FEW = Picture(
    (node_view("a", (15,), pod_on("x", {0: 9})), node_view("b", (15,), pod_on("y", {0: 12}))),
    1,
    "12:00:00",
    queue=[WAITS],
)
MANY = Picture(
    [node_view(f"n{at:02}", (15,) * 8, *(pod_on(f"p{at:02}-{g}", {g: g + 1}) for g in range(8))) for at in range(30)],
    0,
    "12:00:00",
)


class Person:
    """Somebody before the screen."""

    def __init__(self, pilot: Pilot[None], cluster: Cluster) -> None:
        self._pilot, self._cluster = pilot, cluster

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def click(self, what: str, times: int = 1) -> None:
        """Click on the last place that shows a text."""
        y, x = max((y, line.find(what)) for y, line in enumerate(self.lines()) if what in line)
        await self._pilot.click(offset=(x, y), times=times)
        await self._pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)
        await self._pilot.pause()

    async def after(self, picture: Picture | str) -> None:
        """Wait until the cluster was read again, and is so or unreadable for a reason."""
        if isinstance(picture, str):
            self._cluster.problem = picture
        else:
            self._cluster.problem, self._cluster.picture = "", picture
        await self._cluster.read.get()  # the one that had begun
        await self._cluster.read.get()
        await self._pilot.pause()

    def lines(self) -> list[str]:
        """Return what is seen."""
        return [strip.text.rstrip() for strip in self._pilot.app.screen._compositor.render_strips()]

    def pods(self) -> list[str]:
        """Return the first words of the rows of pods."""
        lines = self.lines()
        (heading,) = [at for at, line in enumerate(lines) if line.startswith("POD")]
        below = 1 + self._pilot.app.query_one(Input).display
        return [line.split()[0] for line in lines[heading + 1 : -below] if line]


class Cluster:
    """What is read."""

    def __init__(self, picture: Picture) -> None:
        self.picture, self.problem = picture, ""
        self.read: asyncio.Queue[None] = asyncio.Queue(1)
        self.asked: list[str] = []

    async def again(self, picture: Picture) -> Picture:
        await self.read.put(None)
        return replace(picture, problem=self.problem) if self.problem else self.picture

    async def why(self, pod: str) -> Sequence[str | Line]:
        self.asked.append(pod)
        return [f"{pod} waits because of [b]nothing", Line("and so on", Tone.BAD)]


@asynccontextmanager
async def person(picture: Picture, size: tuple[int, int] = (90, 30)) -> AsyncIterator[Person]:
    cluster = Cluster(picture)
    app = Top(picture, cluster.again, cluster.why, 0.01)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Person(pilot, cluster)


async def test_rows_are_sorted_by_the_first_letter_of_a_column_and_twice_the_other_way_round() -> None:
    async with person(FEW) as user:
        assert user.pods() == ["default/x", "default/y", "ml/[red]want\\x1b"]
        await user.press("g")
        assert user.pods() == ["default/y", "default/x", "ml/[red]want\\x1b"]
        await user.press("g")
        assert user.pods() == ["ml/[red]want\\x1b", "default/x", "default/y"]
        await user.press("n")
        assert user.pods() == ["ml/[red]want\\x1b", "default/x", "default/y"]
        await user.press("p")
        assert user.pods() == ["default/x", "default/y", "ml/[red]want\\x1b"]


async def test_rows_are_sorted_by_a_click_on_a_heading() -> None:
    async with person(FEW) as user:
        await user.click("GIVEN")
        assert user.pods()[0] == "default/y"
        await user.click("LIMIT")
        assert user.pods()[0] == "default/y"
        await user.click("POD")
        assert user.pods()[0] == "default/x"


async def test_a_new_picture_is_sorted_and_sought_as_the_one_before() -> None:
    async with person(FEW) as user:
        await user.press("g", "slash", "d", "e", "f", "enter")
        assert user.pods() == ["default/y", "default/x"]
        await user.after(
            replace(FEW, nodes=[node_view("c", (15, 15), *(pod_on(f"z{at}", {at: at + 1}) for at in (0, 1)))])
        )
        assert user.pods() == ["default/z1", "default/z0"]


async def test_rows_with_a_text_are_shown_alone_until_escape() -> None:
    async with person(FEW) as user:
        await user.press("slash", "W", "A", "q")
        assert "No row has 'WAq'." in user.lines()
        await user.press("backspace")
        assert user.pods()[0] == "ml/[red]want\\x1b"
        await user.press("escape")
        assert len(user.pods()) == 3


@pytest.mark.parametrize("how", ["key", "mouse"])
async def test_the_why_of_a_pod_is_opened_and_left(how: str) -> None:
    async with person(FEW) as user:
        if how == "key":
            await user.press("down", "down", "enter")
        else:
            await user.click("ml/[red]want", times=2)
        assert user.lines()[:2] == ["ml/[red]want\\x1b waits because of [b]nothing", "and so on"]
        assert user._cluster.asked == ["ml/[red]want\x1b"]
        await user.press("escape")
        assert user.lines()[0] == "GPU shares, read at 12:00:00; 1 pod is pending"


async def test_without_a_pod_there_is_no_why() -> None:
    async with person(replace(FEW, namespace="nobody", queue=())) as user:
        assert "No pod has a GPU here." in user.lines()
        await user.press("enter", "down", "pagedown")
        assert user._cluster.asked == []


async def test_a_lost_server_is_told_and_the_last_picture_stays() -> None:
    async with person(FEW) as user:
        await user.after("Unable to connect")
        assert user.lines()[1] == "Not current: Unable to connect"
        assert user.pods()[0] == "default/x"
        await user.after(replace(FEW, at="12:00:05"))
        assert user.lines()[0].startswith("GPU shares, read at 12:00:05")
        assert not [line for line in user.lines() if "Not current" in line]


async def test_the_chosen_pod_stays_chosen_where_others_come_and_go() -> None:
    async with person(FEW) as user:
        await user.press("down")
        await user.after(replace(FEW, nodes=[FEW.nodes[1]]))
        await user.press("enter")
        assert user._cluster.asked == ["default/y"]
        await user.press("escape")
        await user.after(replace(FEW, nodes=[FEW.nodes[0]], queue=()))
        await user.press("enter")
        assert user._cluster.asked == ["default/y", "default/x"]


async def test_long_tables_are_scrolled_with_the_heading_in_place() -> None:
    async with person(MANY) as user:
        assert user.pods()[0] == "default/p00-0"
        await user.press("pagedown", "pagedown")
        first = user.pods()[0]
        assert first > "default/p00-0"
        await user.press("up")
        assert user.pods()[0] == first
        await user.press("end")
        assert user.pods()[-1] == "default/p29-7"
        await user.press("home")
        assert user.pods()[0] == "default/p00-0"
        await user.press("shift+tab", "end")
        assert user.pods()[0] == "default/p00-0"
        gpus = [line.split() for line in user.lines()[: user.lines().index("") + 20]]
        assert ["7", "Tesla", "T4", "8G/15G", "-", "7G", "-"] in gpus


@pytest.mark.parametrize("height", [10, 14, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 200])
async def test_it_fits_the_terminal(height: int, width: int) -> None:
    async with person(MANY, (100, 40)) as user:
        await user.resize(width, height)
        lines = user.lines()
        assert len(lines) == height
        assert lines[-1].split()[:3] == ["q", "quit", "/"]
        if height >= 14:
            assert len(user.pods()) >= 2
            assert [line for line in lines if line.startswith("n00 ")]


async def test_it_ends_from_every_screen() -> None:
    for keys in (["q"], ["enter", "q"], ["slash", "ctrl+c"], ["enter", "ctrl+d"]):
        async with person(FEW) as user:
            await user.press(*keys)
            assert not user._pilot.app.is_running
