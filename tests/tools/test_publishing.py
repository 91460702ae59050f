"""The files of a release that name where it is published."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, documents, parsed
from tools.publishing import INSTALLED, PARAMETERS, Published, chart, install, krew

ROOT = Path(__file__).parents[2]
OURS = Published("https://git.example/people/gpu", "registry.example/people")


def test_the_parameters_are_read_from_one_file(tmp_path: Path) -> None:
    (tmp_path / PARAMETERS).write_text("# a comment\nREPOSITORY=https://a/b/c\nREGISTRY=d/b\n", encoding="utf-8")
    assert Published.of(tmp_path) == Published("https://a/b/c", "d/b")


@pytest.mark.parametrize("text", ["", "REPOSITORY=https://a/b/c\n", "REGISTRY = d/b\nREPOSITORY=https://a/b/c\n"])
def test_a_missing_parameter_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / PARAMETERS).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="REGISTRY: write NAME=value"):
        Published.of(tmp_path)


def test_no_other_file_names_owner_or_registry() -> None:
    mine = Published.of(ROOT)
    named = re.compile(re.escape(mine.registry))
    found = [
        path
        for folder in ("deploy", "tools", ".github", "gpu_device_plugin")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in {".yaml", ".yml", ".py", ".json"}
        if named.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_one_manifest_installs_what_all_of_them_do() -> None:
    text = install(DEPLOY, OURS)
    written = [each for name in INSTALLED for each in documents(DEPLOY / name)]
    made = parsed(text)

    def key(each: Any) -> tuple[str, str, str]:
        return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]

    assert [key(each) for each in made] == [key(each) for each in written]
    different = [(one, other) for one, other in zip(made, written, strict=True) if one != other]
    assert {key(one)[0] for one, _ in different} == {"DaemonSet", "Deployment"}
    images = {image for image in re.findall(r"image: (\S+)", text) if "kube-scheduler" not in image}
    assert all(image.startswith("registry.example/people/gpu-device-plugin:") for image in images)


def test_every_manifest_of_deploy_is_installed_by_it() -> None:
    assert set(INSTALLED) == {path.name for path in (ROOT / "deploy").glob("*.yaml")}


def test_the_published_chart_installs_the_published_image_unless_told_otherwise() -> None:
    folder = ROOT / "deploy" / "chart"
    made = chart(folder, OURS)
    ours = "registry.example/people/gpu-device-plugin"
    assert yaml.safe_load(made["values.yaml"])["image"]["repository"] == ours
    assert f"| `image.repository` | `{ours}` |" in made["README.md"]
    for name, text in made.items():
        assert text.replace("registry.example/people/", "") == (folder / name).read_text(encoding="utf-8")


def test_krew_finds_the_plugin() -> None:
    manifest = yaml.safe_load(krew("9.9.9", "plugin-9.9.9.tar.gz", "ab" * 32, OURS))
    assert manifest["metadata"]["name"] == "inspect-gpushare"
    assert manifest["spec"]["version"] == "v9.9.9"
    assert len(manifest["spec"]["shortDescription"]) <= 50
    (platform,) = manifest["spec"]["platforms"]
    assert platform["uri"] == "https://git.example/people/gpu/releases/download/v9.9.9/plugin-9.9.9.tar.gz"
    assert platform["sha256"] == "ab" * 32
    # krew wants the name of the plugin with underscores for its dashes.
    assert platform["bin"] == "kubectl-" + manifest["metadata"]["name"].replace("-", "_")
    assert {each["from"] for each in platform["files"]} == {platform["bin"], "LICENSE"}


def test_an_owner_that_was_not_filled_in_is_told() -> None:
    assert OURS.unfilled == ""
    assert Published("https://github.com/people/gpu", "ghcr.io/OWNER").unfilled == (
        "release.env still names OWNER in REGISTRY: install.yaml and krew's manifest lead nowhere"
    )
    assert "REPOSITORY and REGISTRY" in Published("https://github.com/OWNER/gpu", "ghcr.io/OWNER").unfilled
