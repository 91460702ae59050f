"""Pictures by matplotlib, which is loaded only for them: where they go, and how all of them look.

They are read in black and white, too: what colour says, a hatch or the style of a line says as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
# "Color Universal Design" (Okabe and Ito, 2008).
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
_STYLE = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.facecolor": "white",
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    # Texts stay texts, and the same figures make the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "gpu-device-plugin",
}


def plot_path(text: str) -> Path:
    """Return where a picture goes, before anything is computed for it.

    Raises:
        UsageError: it is no name of a picture, its folder is missing, or matplotlib is.
    """
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot: {text[:200]!r} does not end in {' or '.join(SUFFIXES)}; name such a file")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: {text[:200]}: there is no folder {path.parent}; make it first, or name another")
    if path.is_dir():
        raise UsageError(f"--plot: {text[:200]}: this is a folder; name a file")
    try:
        import matplotlib  # noqa: F401, ICN001, PLC0415 - only pictures need it
    except ImportError:
        raise UsageError(
            "--plot: matplotlib draws, and is missing; pip install 'gpu-device-plugin[simulate]'"
        ) from None
    return path


@contextmanager
def picture(path: Path, title: str, subtitle: str, size: tuple[float, float]) -> Iterator[Figure]:
    """Give a figure of so many inches to draw into, and write it.

    Raises:
        UsageError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - only pictures need it
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):  # type: ignore[arg-type] # a key is any text here
        figure = Figure(figsize=size, layout="constrained")
        # Blank lines keep the room of the subtitle.
        figure.suptitle(f"{title}\n\n", x=0.01, ha="left", fontsize=14, fontweight="bold")
        figure.text(0.01, 1 - 0.42 / size[1], subtitle, ha="left", va="top", fontsize=10, color="#444444")
        yield figure
        form = path.suffix.lower()[1:]
        # Without a date the same figures make the same file.
        metadata = {"Date": None, "Title": title} if form == "svg" else {"Title": title}
        written = io.BytesIO()
        figure.savefig(written, format=form, dpi=120, metadata=metadata)
        content = written.getvalue()
        try:
            path.write_bytes(_TAG.sub(_rounded, content) if form == "svg" else content)
        except OSError as error:
            raise UsageError(f"--plot: {path} cannot be written: {error.strerror or error}") from None


_TAG = re.compile(rb"<[^>]*>")
_LONG = re.compile(rb"(\.[0-9]{2})[0-9]+")


def _rounded(tag: re.Match[bytes]) -> bytes:
    """Return a tag of SVG with hundredths of a point, which are enough, and a third smaller."""
    return _LONG.sub(rb"\1", tag[0])


def legend_below(figure: Figure, axes: Axes) -> None:
    """Show below everything what the colours and hatches of a diagram mean."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
