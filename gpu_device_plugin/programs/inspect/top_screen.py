"""`kubectl inspect gpushare top` on a terminal: sort, filter and scroll its tables, and open the `why` of a pod.

Nothing else imports this module, nor Textual, which the image does not have.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from gpu_device_plugin.programs.inspect.top_picture import head, tables
from gpu_device_plugin.report.rules.columns import Line, Tone, columns
from gpu_device_plugin.report.rules.printing import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Click

    from gpu_device_plugin.programs.inspect.top_picture import Picture

    Again = Callable[[Picture], Awaitable[Picture]]
    """Reads the newest picture; a fault becomes the problem of the one given."""
    Why = Callable[[str], Awaitable[Iterable[str | Line]]]
    """Explains a pod, ``namespace/name``."""

_NARROWEST = 40
_LOOK_S = 1.0
"""How often it is looked whether the terminal is there."""
_STYLES: Mapping[Tone, Style] = {
    Tone.PLAIN: Style(),
    Tone.HEADING: Style(bold=True),
    Tone.GOOD: Style(color="green"),
    Tone.WARNING: Style(color="yellow"),
    Tone.BAD: Style(color="red"),
    Tone.FAINT: Style(dim=True),
}
_SORTED_BY: Mapping[str, str] = {
    "POD": "name",
    "NODE": "node",
    "GIVEN": "given",
    "USED": "used",
    "FREE": "free",
    "%": "percent",
    "STATE": "over",
}
"""The key of `SORTS` of a column, by its heading, of which the first letter is the key to press."""
_ENDS: Sequence[BindingType] = (
    Binding("q,Q", "app.quit", "quit"),
    Binding("ctrl+c,ctrl+d", "app.quit", show=False, priority=True),
    Binding("ctrl+z", "app.suspend_process", show=False, priority=True),
)


async def draw(picture: Picture, again: Again, why: Why, *, interval_s: float, environ: Mapping[str, str]) -> int:
    """Draw until the user ends it.

    `interval_s` is the time between the end of a reading and the begin of the next.

    Returns:
        0: a person has ended it; the negative number of the signal that has, by which the program is to end, too.
    """
    if not environ.get("NO_COLOR"):
        os.environ.pop("NO_COLOR", None)  # Textual takes an empty one for a wish
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)  # they do not change with the terminal
    if isinstance(sys.__stderr__, TextIOWrapper):  # which Textual draws on; six characters for one would break lines
        sys.__stderr__.reconfigure(errors="replace")
    app, loop = Top(picture, again, why, interval_s), asyncio.get_running_loop()
    # A signal that is ignored stays so: nohup ignores SIGHUP.
    taken = [each for each in _CODES if signal.getsignal(each) != signal.SIG_IGN]
    for number in taken:
        loop.add_signal_handler(number, partial(app.exit, return_code=_CODES[number]))

    async def until_it_is_gone() -> None:
        """End it with its terminal, also where SIGHUP is ignored: Textual would go on."""
        while sys.stdin.isatty():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_LOOK_S)
        app.exit()

    watching = asyncio.create_task(until_it_is_gone())
    try:
        await app.run_async()
    finally:
        watching.cancel()
        for number in taken:
            loop.remove_signal_handler(number)
    return app.return_code or 0


_CODES = {signal.SIGINT: 0, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP}


class Top(App[None]):
    """What is said of the whole cluster, its GPUs, and their pods."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    Table { height: auto; margin-top: 1; scrollbar-size: 1 1; }
    #pods { height: 1fr; }
    Input { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *_ENDS,
        Binding("slash", "seek", "filter", key_display="/"),
        Binding("enter", "why", "why"),
        Binding("escape", "seek_nothing", "all rows"),
        *(Binding(heading[0].lower(), f"sort('{by}')", show=False) for heading, by in _SORTED_BY.items()),
        Binding("i", "sort('idle')", "sort", key_display=" ".join([*(each[0].lower() for each in _SORTED_BY), "i"])),
    ]

    def __init__(self, picture: Picture, again: Again, why: Why, interval_s: float) -> None:
        """Show the picture first, and then what `again` returns; see `draw`."""
        super().__init__(ansi_color=True)  # the colours that the terminal has
        self.theme = "ansi-dark"
        self._picture, self._again, self._why, self._interval_s = picture, again, why, interval_s
        self._head, self._filter = Static(), Input(placeholder="only rows with ...", compact=True)
        self._gpus, self._pods = Table(), Table(id="pods")

    def compose(self) -> ComposeResult:
        """Put one below the other."""
        yield from (self._head, self._gpus, self._pods, self._filter, Footer())

    def on_mount(self) -> None:
        """Begin to follow the cluster."""
        self._pods.focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            found, shown = await self._again(self._picture), self._picture
            self._picture = replace(found, sort=shown.sort, backwards=shown.backwards, sought=shown.sought)
            self._redraw()

    def on_resize(self) -> None:
        """Fit the terminal, as soon as its new size is that of the application."""
        self.call_later(self._redraw)

    def _redraw(self) -> None:
        width = max(_NARROWEST, self.size.width - 1)  # beside the scroll bar
        said = head(self._picture, width)
        upper, lower, pods = tables(self._picture, width)
        self._head.update(_text(said))
        self._gpus.show(upper, self._picture.sort)
        self._pods.show(lower, self._picture.sort, pods)
        # Pods get what nodes leave, and half of the screen at least.
        left = max(4, self.size.height - len(said) - 3 - self._filter.display)
        self._gpus.styles.max_height = max(2, left - min(len(lower), left // 2))

    # --- What a person does -------------------------------------------------------------------------------------------

    def action_sort(self, by: str) -> None:
        """Sort by a key of `SORTS`; if it is already sorted so, the other way round."""
        self._shown(sort=by, backwards=by == self._picture.sort and not self._picture.backwards)

    def _shown(self, **how: Any) -> None:
        self._picture = replace(self._picture, **how)
        self._redraw()
        self._gpus.to(0)
        self._pods.to(0)

    def action_seek(self) -> None:
        """Ask for the text that the rows to show have."""
        self._filter.display = True
        self._filter.focus()
        self._redraw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the rows that have it, while it is typed."""
        self._shown(sought=event.value)

    def on_input_submitted(self) -> None:
        """Go on with these rows."""
        self._pods.focus()

    def action_seek_nothing(self) -> None:
        """Show all rows."""
        self._filter.clear()
        self._filter.display = False
        self._pods.focus()
        self._redraw()

    def action_why(self) -> None:
        """Explain the pod of the row that is chosen."""
        if self._pods.chosen:
            self.push_screen(Explained(self._why(self._pods.chosen)))


class Table(ScrollView, can_focus=True):
    """Rows below a heading that stays; only those in sight are drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"move({how})", show=False)
        for key, how in (
            *(("up", "-1"), ("down", "1"), ("home", "-99999999"), ("end", "99999999")),
            *(("pageup", "-1, True"), ("pagedown", "1, True")),
        )
    ]

    _lines: Sequence[Line] = ()
    _names: Sequence[str] = ()
    _sort = ""
    _at = 0

    @property
    def chosen(self) -> str:
        """The name of the row under the cursor; empty: there is none."""
        return self._names[self._at] if self._names else ""

    def show(self, lines: Sequence[Line], sort: str, names: Sequence[str] = ()) -> None:
        """Show these lines, the heading first, marked as it is sorted; and keep the row that is chosen.

        `names` are those of the rows; without names none can be chosen.
        """
        before, self._lines, self._sort, self._names = self.chosen, lines, sort, names
        self._at = min(self._at, max(0, len(names) - 1))
        if before in names and self.chosen != before:
            self._at = names.index(before)
        self.virtual_size = Size(max(columns(line.text) for line in lines), len(lines))
        self.refresh(layout=True)

    def action_move(self, rows: int, pages: bool = False) -> None:  # noqa: FBT001, FBT002 - as a binding gives it
        """Move the cursor, and what is in sight with it."""
        self.to((self._at if self._names else self.scroll_offset.y) + rows * (self.size.height - 2 if pages else 1))

    def to(self, at: int) -> None:
        """Choose a row and bring it into sight; where none can be chosen, bring it to the top."""
        if self._names:
            self._at = at = max(0, min(at, len(self._names) - 1))
            at = min(max(self.scroll_offset.y, at + 2 - self.size.height), at)
        self.scroll_to(y=at, animate=False)
        self.refresh()

    async def on_click(self, event: Click) -> None:
        """Sort by the column of a heading, or choose a row; a second click opens it."""
        if event.y == 0:
            x = event.x + self.scroll_offset.x
            found = re.finditer(r"\S+", self._lines[0].text)
            heading = min(found, key=lambda each: max(each.start() - x, x - each.end()), default=None)
            if heading is not None and heading[0] in _SORTED_BY:
                await self.run_action(f"app.sort('{_SORTED_BY[heading[0]]}')")
        elif (at := event.y + self.scroll_offset.y - 1) < len(self._names):
            self.to(at)
            if event.chain > 1:
                await self.run_action("app.why")

    def render_line(self, y: int) -> Strip:
        """Return a line of what is in sight."""
        at = y + self.scroll_offset.y if y else 0
        line = self._lines[at] if at < len(self._lines) else Line("")
        style = self.rich_style + _STYLES[line.tone] + Style(reverse=bool(self._names) and at == self._at + 1)
        parts = [Segment(line.text, style)] if y else [*self._heading(line.text, style)]
        x = self.scroll_offset.x
        return Strip(parts).crop_extend(x, x + self.size.width, style)

    def _heading(self, text: str, style: Style) -> Iterable[Segment]:
        for part in re.split(r"(\S+)", text):
            of = style + Style(reverse=_SORTED_BY.get(part) == self._sort)
            yield Segment(part[:1], of + Style(underline=part in _SORTED_BY))
            yield Segment(part[1:], of)


class Explained(ModalScreen[None]):
    """What `why` says of a pod."""

    CSS = "Explained { background: $background; }"
    BINDINGS: ClassVar[list[BindingType]] = [*_ENDS, Binding("escape,enter", "app.pop_screen", "back")]

    def __init__(self, told: Awaitable[Iterable[str | Line]]) -> None:
        """Show what is being told."""
        super().__init__()
        self._told, self._text = told, Static("Reading ...", markup=False)

    def compose(self) -> ComposeResult:
        """Let a long one scroll."""
        yield from (VerticalScroll(self._text), Footer())

    def on_mount(self) -> None:
        """Read, and be closed meanwhile if the user wishes."""
        self.run_worker(self._tell())

    async def _tell(self) -> None:
        self._text.update(_text(Line(line) if isinstance(line, str) else line for line in await self._told))


def _text(lines: Iterable[Line]) -> Text:
    return Text("\n").join(Text(printable(line.text), _STYLES[line.tone]) for line in lines)
