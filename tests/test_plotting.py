"""Where pictures go, and what a user without matplotlib is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_device_plugin.plotting import picture, plot_path
from gpu_device_plugin.settings.knobs import UsageError

SIMULATE = ("simulate", "--nodes", "mem=10", "--pods", "mem=4", "--seeds", "1")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("use.pdf", "does not end in .svg or .png; name such a file"),
        ("use", "does not end in .svg or .png; name such a file"),
        ("", "'' does not end in .svg or .png"),
        ("none/use.svg", "there is no folder none; make it first, or name another"),
        ("folder.svg", "folder.svg: this is a folder; name a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_at_once(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError) as error:
        plot_path(name)
    assert str(error.value).startswith("--plot: ")
    assert said in str(error.value)


def test_a_disk_that_takes_nothing_is_told() -> None:
    with pytest.raises(UsageError, match="cannot be written: "), picture(Path("/proc/x.svg"), "Title", "", (2, 2)):
        pass


def run(*words: str, matplotlib: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the program with a package of matplotlib's name that does this."""
    (tmp_path / "matplotlib.py").write_text(matplotlib, encoding="utf-8")
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    program = f"{path}from gpu_device_plugin.__main__ import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


def test_without_matplotlib_a_picture_is_refused_with_how_to_install_it(tmp_path: Path) -> None:
    missing = "raise ImportError('there is none')"
    ended = run(*SIMULATE, "--plot", "use.svg", matplotlib=missing, tmp_path=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == (
        "gpu-device-plugin: --plot: matplotlib draws, and is missing; pip install 'gpu-device-plugin[simulate]'\n"
    )


def test_matplotlib_is_loaded_for_pictures_alone(tmp_path: Path) -> None:
    ended = run(*SIMULATE, matplotlib="raise SystemExit('it was loaded')", tmp_path=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_same_figures_make_the_same_file_of_texts(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "c.PNG"):
        with picture(tmp_path / name, "The title", "What it is about", (4, 3)) as figure:
            figure.subplots().plot([0, 1], [0, 1], label="a line")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert "<title>The title</title>" in text
    assert ">What it is about</text>" in text
    assert (tmp_path / "c.PNG").read_bytes().startswith(b"\x89PNG")
