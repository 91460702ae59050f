"""A tag is published from the repository that release.env names, with its own version, and with its changes told."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_device_plugin import __version__
from tools.publishing import PARAMETERS
from tools.release import CHANGELOG, INIT
from tools.tagged import NotPublishedError, notes, publishable, written

ROOT = Path(__file__).parents[2]
HERE = "https://git.example/People/gpu"
TOLD = f"# Changelog\n\n## {__version__}, 2026-02-03\n\nMore.\n\nAnd more.\n\n## 0.0.1, 2026-01-01\n\nAll.\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of a release, by its owner."""
    (tmp_path / INIT).parent.mkdir()
    shutil.copy(ROOT / INIT, tmp_path / INIT)
    (tmp_path / CHANGELOG).write_text(TOLD, encoding="utf-8")
    owned(tmp_path, HERE, "registry.example:5000/people")
    return tmp_path


def owned(tree: Path, repository: str, registry: str) -> None:
    (tree / PARAMETERS).write_text(f"REPOSITORY={repository}\nREGISTRY={registry}\n", encoding="utf-8")


def test_a_tag_that_may_be_published_has_the_changes_of_its_version_as_notes(tree: Path) -> None:
    assert publishable(tree, f"v{__version__}", "https://git.example/people/GPU") == "More.\n\nAnd more."


@pytest.mark.parametrize("tag", [__version__, "v9.9.9", f"v{__version__}-rc1", "vague"])
def test_a_tag_of_another_version_is_not_published(tree: Path, tag: str) -> None:
    with pytest.raises(NotPublishedError, match=rf"the tag is {tag}, and the programs have version {__version__}"):
        publishable(tree, tag, HERE)


def test_a_copy_of_the_repository_does_not_publish_under_the_names_of_another(tree: Path) -> None:
    with pytest.raises(NotPublishedError, match=r"REPOSITORY=https://git\.example/People/gpu, and this is https://git"):
        publishable(tree, f"v{__version__}", "https://git.example/other/gpu")


@pytest.mark.parametrize("registry", ["ghcr.io/OWNER", "https://ghcr.io/people", "ghcr.io/people/", "-/people"])
def test_a_registry_that_cannot_begin_an_images_name_is_refused_before_the_build(tree: Path, registry: str) -> None:
    owned(tree, HERE, registry)
    with pytest.raises(NotPublishedError, match="cannot begin the name of an image"):
        publishable(tree, f"v{__version__}", HERE)


@pytest.mark.parametrize(
    "text",
    ["", TOLD.replace(f"{__version__}, 2026", f"After {__version__}, 2026"), f"## {__version__}, 2026-02-03\n\n"],
)
def test_a_release_without_its_changes_is_not_published(text: str) -> None:
    with pytest.raises(NotPublishedError, match=f"has no section of {__version__}"):
        notes(text, __version__)


def test_another_version_that_begins_alike_is_another() -> None:
    assert notes("## 1.2.30, x\n\nNo.\n\n## 1.2.3, x\n\nYes.\n", "1.2.3") == "Yes."


@pytest.mark.parametrize("value", ["1", "a\nEOF\nb<<c\n", ""])
def test_a_value_of_several_lines_reaches_the_runner_whole(value: str) -> None:
    """By the rule of its documentation: NAME<<END, the lines, END ("Workflow commands", multiline strings)."""
    first, *lines, last = written("notes", value).splitlines()
    assert first == f"notes<<{last}"
    assert "\n".join(lines) == value
    assert last not in lines


def asked(**variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    command = [sys.executable, "-m", "tools.tagged"]
    return subprocess.run(command, cwd=ROOT, env={**own, **variables}, capture_output=True, text=True, check=False)


def test_this_tree_says_what_hinders_its_publication() -> None:
    runner = {
        "GITHUB_SERVER_URL": "https://git.example",
        "GITHUB_REPOSITORY": "people/gpu",
        "GITHUB_REF_NAME": "v9.9.9",
    }
    done = asked(**runner)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("not published: the tag is v9.9.9")
