"""`make release` in one command: every place names the version, the files are whole, and half a release is none."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email import message_from_string
from functools import cache
from pathlib import Path
from typing import Self

import pytest
import yaml
from pathspec import GitIgnoreSpec

from gpu_device_plugin import __version__
from hatch_build import description
from tests.deploy.templates import Chart
from tests.sharing import made_once
from tools import release
from tools.publishing import Published
from tools.release import CHANGELOG, IMAGE, PLACES, ReleaseError, changelog, parsed

ROOT = Path(__file__).parents[2]
VERSION = "9.9.9"
ASIDE = {
    CHANGELOG: "is about versions",
    "constraints.txt": "names packages of others",
    "requirements.lock": "names packages of others",
    "requirements-build.lock": "names packages of others",
}
OF_THE_PAST = {"docs/limits.md": "one of an agent of {}"}
"""What a page says of what a version did, whichever is the current one."""


@cache
def sources() -> list[str]:
    """Every file of the repository: all that is not ignored."""
    ignored = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text(encoding="utf-8").splitlines())
    found = []
    for folder, folders, files in os.walk(ROOT):
        where = Path(folder).relative_to(ROOT)
        folders[:] = [name for name in folders if name != ".git" and not ignored.match_file(f"{where / name}/")]
        found += [(where / name).as_posix() for name in files if not ignored.match_file(where / name)]
    return sorted(name for name in found if name != ".git")


def environ() -> dict[str, str]:
    """Return the environment, in which git asks no configuration of this machine who commits, and where."""
    who = {f"GIT_{role}_{what}": "tester@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    nobodys = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SOURCE_DATE"))}
    return {**own, **nobodys, **who}


def files_of(version: str) -> set[str]:
    """All files of a release but their checksums."""
    return {
        f"gpu-device-plugin-{version}-manifests.tar.gz",
        f"gpu_device_plugin-{version}-py3-none-any.whl",
        f"gpu_device_plugin-{version}.tar.gz",
        f"gpushare-{version}.tgz",
        f"gpu-device-plugin-{version}.cdx.json",
        "inspect-gpushare.krew.yaml",
        "install.yaml",
        "kubectl-inspect_gpushare",
        "kubectl-inspect_gpushare.cdx.json",
        f"kubectl-inspect_gpushare-{version}.tar.gz",
    }


# --- Places ----------------------------------------------------------------------------------------------------------


def test_no_other_file_names_the_version() -> None:
    """A test names versions as examples, or imports the one there is."""
    named = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?!\d|\.\d)")
    found = {}
    for name in sources():
        if name not in ASIDE and not name.startswith("tests/") and not name.endswith(".png"):
            text = (ROOT / name).read_text(encoding="utf-8")
            for form in (*PLACES.get(name, ()), OF_THE_PAST.get(name, "{}, which is nowhere")):
                text = text.replace(form.format(__version__), "")
            found[name] = [line for line in text.splitlines() if named.search(line)]
    assert {name: lines for name, lines in found.items() if lines} == {}, "belongs into PLACES of tools/release.py"


@pytest.mark.parametrize("name", PLACES)
def test_every_place_names_the_version(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [form for form in PLACES[name] if form.format(__version__) not in text] == []


@pytest.mark.parametrize("version", ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.3-rc1", "1.2.03", "1.2.x", " 1.2.3"])
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(ReleaseError, match=r"write VERSION=x\.y\.z"):
        parsed(version)


# --- The changelog ---------------------------------------------------------------------------------------------------


def test_what_was_not_yet_released_is_the_version_of_that_day() -> None:
    before = "# Changes\n\n## After 1.2.3, not yet released\n\nMore.\n\n## 1.2.3, 2026-01-01\n\nAll.\n"
    after = "# Changes\n\n## 1.3.0, 2026-02-03\n\nMore.\n\n## 1.2.3, 2026-01-01\n\nAll.\n"
    assert changelog(before, "1.3.0", "2026-02-03") == after


def test_a_version_that_was_never_released_says_with_which_its_changes_came() -> None:
    before = "## After 1.2.3, not yet released\n\nMore.\n\n## 1.2.3, not yet released\n\nAll.\n"
    after = "## 1.3.0, 2026-02-03\n\nMore.\n\n## 1.2.3, first released as 1.3.0\n\nAll.\n"
    assert changelog(before, "1.3.0", "2026-02-03") == after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Changes\n\nThey are told here.\n",
        "## 1.2.3, 2026-01-01\n\nAll.\n",
        "## After 1.2.3, not yet released\n\n## 1.2.3, 2026-01-01\n\nAll.\n",
        "## 1.2.3, 2026-01-01\n\nAll.\n\n## 1.2.2, not yet released\n\nOld.\n",
    ],
)
def test_no_changes_are_no_release(text: str) -> None:
    with pytest.raises(ReleaseError, match="nothing to release"):
        changelog(text, "1.3.0", "2026-02-03")


# --- Releases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkout:
    """A repository."""

    root: Path

    @classmethod
    def begun(cls, folder: Path) -> Self:
        """Make one of one commit, of all that is here, which a release can tell of."""
        for name in sources():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        made = cls(folder)
        log = made.read(CHANGELOG)
        if "not yet released" not in log:
            log = log.replace("\n## ", "\n## Next, not yet released\n\nAll.\n\n## ", 1)
            (folder / CHANGELOG).write_text(log, encoding="utf-8")
        made.git("init", "--quiet")
        made.commit("begun")
        return made

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def release(self, *version: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "tools.release", *version)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self.root, env=environ(), capture_output=True, text=True, check=False)

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    @property
    def sums(self) -> dict[str, str]:
        lines = self.read("dist/SHA256SUMS").splitlines()
        return {name: digest for digest, name in (line.split("  ") for line in lines)}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Make a release for real."""

    def make(folder: Path) -> None:
        checkout = Checkout.begun(folder)
        recorded = checkout.root / "tests/data/recorded"
        if not (recorded / "unreleased").exists():
            shutil.copytree(recorded / __version__, recorded / "unreleased")
        checkout.commit("something to release")
        done = checkout.release(VERSION)
        assert done.returncode == 0, done.stderr
        assert f"git push origin HEAD v{VERSION}" in done.stdout

    if shutil.which("git") is None:
        pytest.skip("git is not on the PATH: no release can be made")
    return Checkout(made_once(tmp_path_factory, "released", make))


def test_a_release_is_a_commit_and_a_tag_and_leaves_the_tree_clean(released: Checkout) -> None:
    assert released.git("log", "--format=%s") == f"Version {VERSION}\nsomething to release\nbegun"
    assert released.git("describe", "--exact-match") == f"v{VERSION}"
    assert released.git("status", "--porcelain") == ""
    assert len(released.git("worktree", "list").splitlines()) == 1


def test_a_release_changes_what_names_the_version_and_nothing_else(released: Checkout) -> None:
    changed = set(released.git("diff", "--name-only", "--no-renames", "HEAD~1").splitlines())
    recorded = {name for name in changed if name.startswith("tests/data/recorded/")}
    assert changed - recorded == {*PLACES, CHANGELOG}
    assert {Path(name).parent.name for name in recorded} == {"unreleased", VERSION}
    assert re.match(rf"(?s).*?\n## {VERSION}, \d{{4}}-\d\d-\d\d\n", released.read(CHANGELOG))
    assert "not yet released" not in released.read(CHANGELOG)


def test_the_checksums_hold_for_every_file(released: Checkout) -> None:
    dist = released.root / "dist"
    assert set(released.sums) == files_of(VERSION)
    assert {*released.sums, "SHA256SUMS"} == {path.name for path in dist.iterdir()}
    for name, digest in released.sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_a_tag_that_is_built_again_gives_the_same_bytes(released: Checkout, tmp_path: Path) -> None:
    again = Checkout(tmp_path / "again")
    shutil.copytree(released.root, again.root)
    (again.root / "dist/gpushare-0.0.1.tgz").touch()
    done = again.release()
    assert done.returncode == 0, done.stderr
    assert again.sums == released.sums
    assert {path.name for path in (again.root / "dist").iterdir()} == {*again.sums, "SHA256SUMS"}


def test_krew_gets_the_plugin_with_its_checksum_and_its_licence(released: Checkout, tmp_path: Path) -> None:
    manifest = yaml.safe_load(released.read("dist/inspect-gpushare.krew.yaml"))
    (platform,) = manifest["spec"]["platforms"]
    name = platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == released.sums[name]
    folder = unpacked(released, name, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"LICENSE", platform["bin"]}
    assert os.access(folder / platform["bin"], os.X_OK)
    assert os.access(released.root / "dist" / platform["bin"], os.X_OK)


def unpacked(released: Checkout, name: str, folder: Path) -> Path:
    with tarfile.open(released.root / "dist" / name) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_the_wheel_has_the_programs_and_says_who_made_them(released: Checkout) -> None:
    with zipfile.ZipFile(released.root / f"dist/gpu_device_plugin-{VERSION}-py3-none-any.whl") as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = message_from_string(wheel.read(f"gpu_device_plugin-{VERSION}.dist-info/METADATA").decode())
    assert names == {name for name in sources() if name.startswith("gpu_device_plugin/")}
    assert (metadata["Version"], metadata["Author"]) == (VERSION, "The gpu-device-plugin authors")
    assert "kubernetes" in metadata["Keywords"].split(",")


def test_the_source_has_every_file_that_its_description_names(released: Checkout, tmp_path: Path) -> None:
    top = unpacked(released, f"gpu_device_plugin-{VERSION}.tar.gz", tmp_path) / f"gpu_device_plugin-{VERSION}"
    text = message_from_string((top / "PKG-INFO").read_text("utf-8")).get_payload()
    assert isinstance(text, str)
    named = re.findall(r"\(`([\w/.-]+)[^`]*`\)", text)
    assert len(named) > 10
    assert [name for name in named if not (top / name).exists()] == []
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link] == []
    there = {name.replace("recorded/unreleased/", f"recorded/{VERSION}/") for name in sources()}
    assert {name for name in there if not (top / name).exists()} == set()


def test_the_chart_is_packed_as_helm_packs_one(released: Checkout, tmp_path: Path) -> None:
    with tarfile.open(released.root / f"dist/gpushare-{VERSION}.tgz") as tar:
        names = tar.getnames()
    assert names[0] == "gpushare/Chart.yaml"
    chart = Chart(unpacked(released, f"gpushare-{VERSION}.tgz", tmp_path) / "gpushare")
    assert yaml.safe_load((chart.root / "Chart.yaml").read_text("utf-8"))["version"] == VERSION
    registry = Published.of(ROOT).registry
    made = str(chart.render())
    assert f"{registry}/{IMAGE.format(VERSION)}" in made
    assert made.replace(f"{registry}/", "") == str(Chart(released.root / "deploy/chart").render())


def test_the_manifests_are_those_of_the_repository_with_the_images_of_the_version(
    released: Checkout, tmp_path: Path
) -> None:
    top = unpacked(released, f"gpu-device-plugin-{VERSION}-manifests.tar.gz", tmp_path) / f"gpu-device-plugin-{VERSION}"
    found = {path.relative_to(top).as_posix(): path.read_text("utf-8") for path in top.rglob("*.yaml")}
    manifests = [path for path in (ROOT / "deploy").rglob("*.yaml") if "chart" not in path.parts]
    assert set(found) == {path.relative_to(ROOT).as_posix() for path in manifests}
    images = {image for text in found.values() for image in re.findall(r"image: (gpu-device-plugin:\S+)", text)}
    assert images == {IMAGE.format(VERSION)}


def dirty(checkout: Checkout) -> None:
    (checkout.root / "new.txt").touch()
    (checkout.root / "Makefile").write_text("", encoding="utf-8")


def silent(checkout: Checkout) -> None:
    (checkout.root / CHANGELOG).write_text("## 0.1.0, 2026-01-01\n\nAll.\n", encoding="utf-8")
    checkout.commit("nothing to tell")


def elsewhere(checkout: Checkout) -> None:
    (checkout.root / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    checkout.commit("another Dockerfile")


def broken(checkout: Checkout) -> None:
    (checkout.root / "hatch_build.py").write_text("raise SystemExit('cannot be built')\n", encoding="utf-8")
    checkout.commit("another build")


def tagged(checkout: Checkout) -> None:
    checkout.git("tag", "v10.0.0")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    if shutil.which("git") is None:
        pytest.skip("git is not on the PATH: no release can be made")
    return Checkout.begun(tmp_path_factory.mktemp("begun"))


@pytest.mark.parametrize(
    ("prepare", "version", "said"),
    [
        (dirty, VERSION, r"the tree is not clean; commit these, or put them away:\n ?M Makefile\n\?\? new\.txt"),
        (None, __version__, "is not newer than"),
        (tagged, VERSION, "9.9.9 is not newer than 10.0.0"),
        (silent, VERSION, "nothing to release"),
        (elsewhere, VERSION, "Dockerfile does not say image.version="),
        (broken, VERSION, "cannot be built"),
    ],
)
def test_a_release_that_is_refused_leaves_nothing(
    begun: Checkout,
    prepare: Callable[[Checkout], None] | None,
    version: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = begun.git("rev-parse", "HEAD")
    if prepare is not None:
        prepare(begun)
    before = [begun.git(*words.split()) for words in ("rev-parse HEAD", "status --porcelain", "tag")]
    monkeypatch.setattr(release, "ROOT", begun.root)
    monkeypatch.setattr(sys, "argv", ["release", version])
    monkeypatch.setattr(os, "environ", environ())
    refusal = release.main()
    after = [begun.git(*words.split()) for words in ("rev-parse HEAD", "status --porcelain", "tag")]
    assert re.match(rf"no release: .*{said}", str(refusal), re.DOTALL), refusal
    assert after == before
    assert not (begun.root / "dist").exists()
    assert len(begun.git("worktree", "list").splitlines()) == 1
    begun.git("reset", "--quiet", "--hard", start)
    begun.git("clean", "--quiet", "--force", "-d")
    if begun.git("tag"):
        begun.git("tag", "--delete", *begun.git("tag").split())


def test_make_says_which_version_it_wants() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "--assume-old=.venv/.ready", "release"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == "Name the version: make release VERSION=x.y.z\n"


# --- The description on PyPI -----------------------------------------------------------------------------------------

README = "A [page](docs/a.md#b), [one\nmore](LICENSE), [a part](#part), [elsewhere](https://example.com/x)."


def test_where_nobody_knows_the_repository_a_link_is_a_path() -> None:
    shown = "A page (`docs/a.md#b`), one\nmore (`LICENSE`), [a part](#part), [elsewhere](https://example.com/x)."
    assert description(README, "") == shown


def test_links_lead_to_the_repository_where_it_is_known() -> None:
    pages = "https://git.example/x/blob/v1.2.3/"
    shown = f"A [page]({pages}docs/a.md#b), [one\nmore]({pages}LICENSE), [a part](#part), [elsewhere](https://example.com/x)."
    assert description(README, pages) == shown


def test_an_older_python_is_refused_before_pip_downloads_anything() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (build,) = project["build-system"]["requires"]
    assert build.endswith("; python_version >= '3.11'"), "an older one gets no package for the build"
    assert project["project"]["requires-python"] == ">=3.11"
    older = f"import sys; sys.version_info = (3, 10); sys.path.insert(0, {str(ROOT)!r}); import hatch_build"
    done = subprocess.run([sys.executable, "-c", older], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-device-plugin needs Python 3.11 or newer, and this is ")
    assert done.stderr.count("\n") == 1
