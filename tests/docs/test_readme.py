"""What README.md and docs/ tell a newcomer is so."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin import __version__
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.sources import Sources
from tests.docs import pages
from tests.docs.pages import DOCS, ROOT, blocks, text_of

README = text_of(pages.README)
PAGES = pages.pages()


def commands() -> list[str]:
    return [command for block in blocks(README, "console") for command, _ in block.commands]


def make(*arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, env=environ
    )
    return done.stdout


# --- Links -----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text_of(page), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [pages.README]
    while waiting:
        page = waiting.pop()
        if page.suffix != ".md" or page in reached or not page.exists():
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text_of(page))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(PAGES) - reached == set()


# --- In Chinese ------------------------------------------------------------------------------------------------------


def test_the_chinese_readme_shows_the_same() -> None:
    """The same blocks, links and names of things, in the same order; the words between them are its own."""
    other = text_of(pages.README_ZH)
    assert blocks(other) == blocks(README)

    def links(text: str) -> list[str]:
        return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("README")]

    def tables(text: str) -> list[list[str]]:
        return [re.findall(r"`([^`]+)`", line) for line in text.splitlines() if line.startswith("| `")]

    assert links(other) == links(README)
    assert tables(other) == tables(README)
    assert len(re.findall(r"^#+ ", other, re.MULTILINE)) == len(re.findall(r"^#+ ", README, re.MULTILINE))


# --- Commands --------------------------------------------------------------------------------------------------------


def test_every_target_of_make_that_is_named_is_explained_by_make_help() -> None:
    explained = {line.split("\t")[0] for line in make("help").splitlines()}
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", README))
    assert {"demo", "test"} <= named <= explained


@pytest.mark.parametrize(
    ("written", "run"),
    [
        ("make demo", "gpu-device-plugin demo"),
        ("make demo ARGS=--once", "gpu-device-plugin demo --once"),
        ("make demo GPUS=nvml", "gpu-device-plugin demo --gpus nvml"),
        ("make demo GPUS=fake:8xH200", "gpu-device-plugin demo --gpus fake:8xH200"),
    ],
)
def test_the_demos_commands_run_the_demo(written: str, run: str) -> None:
    """Only shown what it would run, because the set-up before it takes minutes."""
    assert written in README
    assert " ".join(make("--dry-run", *written.split()[1:]).splitlines()[-1].split()).endswith(f"/{run}")


def test_the_demo_installs_what_the_programs_need_and_the_tests_the_rest() -> None:
    """Linters and a generator of sites are no part of a first look; each command does all of its own set-up."""
    installed = {
        target: [line for line in make("--dry-run", "VENV=no-such", target).splitlines() if "pip install" in line]
        for target in ("demo", "test")
    }
    assert ["--editable ." in line for line in installed["demo"]] == [True]
    assert not any("--group" in line for line in installed["demo"])
    assert installed["test"][0] == installed["demo"][0]
    assert any("--group dev" in line for line in installed["test"])


def test_files_and_versions_in_commands_are_those_of_the_repository() -> None:
    for path in re.findall(r"kubectl apply -f (\S+)", "\n".join(commands())):
        assert (ROOT / path).is_file()
    tags = set(re.findall(r"gpu-device-plugin:(\S+)", "\n".join(commands())))
    assert tags == {__version__}


# --- What is written in YAML, and of the settings --------------------------------------------------------------------


def test_manifests_parse_and_ask_for_resources_that_are_offered() -> None:
    offered = {resource.name for resource in NODE_SETTINGS().offered}
    pods: list[Any] = [yaml.safe_load(block.text) for block in blocks(README, "yaml")]
    assert pods
    for pod in pods:
        assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
        for container in pod["spec"]["containers"]:
            limits = container["resources"]["limits"]
            assert limits.keys() <= offered
            assert all(isinstance(amount, int) and amount > 0 for amount in limits.values())
    assert set(re.findall(r"aliyun\.com/gpu-[a-z]+", README)) == offered


def test_the_file_of_settings_that_is_shown_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(text_of(DOCS / "settings.md"), "yaml")
    file = tmp_path / "node.yaml"
    file.write_text(shown.text, encoding="utf-8")
    assert Sources(NODE_SETTINGS, flags={"config": str(file)}, environ={}).read().policy == "spread"
