"""Make a release: `make release VERSION=x.y.z`; or only its files, from the current commit: `make dist`.

A release is made in a worktree of its own, so that a failure leaves nothing behind. Only when every file is built does
the branch move to the commit with the new version, and that commit get its tag. Nothing is pushed.

The files depend only on the commit, including its time: every build of a tag has the same checksums, with the packages
of constraints.txt and the same zlib.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tools import publishing, sbom
from tools.onefile import archive as onefile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[1]

INIT = "gpu_device_plugin/__init__.py"
IMAGE = "gpu-device-plugin:{}"
PLACES = {
    INIT: ('__version__ = "{}"',),
    "Dockerfile": ('image.version="{}"',),
    "Makefile": (IMAGE,),
    "README.md": (IMAGE,),
    "README.zh.md": (IMAGE,),
    "deploy/chart/Chart.yaml": ("version: {}", "appVersion: {}"),
    "deploy/daemonset.yaml": (IMAGE,),
    "deploy/overlays/fake-gpus/example.yaml": (IMAGE,),
    "deploy/optional/extender-alone.yaml": (IMAGE,),
    "deploy/optional/extender-loopback.yaml": (IMAGE,),
    "deploy/optional/limits.yaml": (IMAGE,),
    "deploy/optional/mps.yaml": (IMAGE,),
    "deploy/optional/web.yaml": (IMAGE,),
    "deploy/scheduler.yaml": (IMAGE,),
    "docs/install-image.md": (IMAGE,),
    "docs/install.md": (IMAGE,),
    "tests/e2e/test_overlays.py": (IMAGE,),
}
"""Every file that names the version, and in which form. Tests and pages that name other versions are not listed."""

CHANGELOG = "CHANGELOG.md"
RECORDED = "tests/data/recorded"
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """Why there is no release; the repository is unchanged."""


# --- What a release changes -------------------------------------------------------------------------------------------


def version_of(tree: Path) -> str:
    """Return the version of the programs in `tree`, which is that of the last release."""
    (found,) = re.findall(r'^__version__ = "(.+)"$', (tree / INIT).read_text(encoding="utf-8"), re.MULTILINE)
    return str(found)


def parsed(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; raise `ReleaseError` for anything but three of them."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise ReleaseError(f"{version!r} is no version: write VERSION=x.y.z, three numbers")
    return tuple(int(number) for number in version.split("."))


def changelog(text: str, version: str, date: str) -> str:
    """Return the changelog with its unreleased section headed `version` and `date`.

    Older sections of versions that were never released get the note that `version` released them first.
    """
    first, *_ = re.findall(r"^## .*$(?s:.*?)(?=^## |\Z)", text, re.MULTILINE) or [""]
    heading, _, told = first.partition("\n")
    if not heading.endswith(", not yet released") or not told.strip():
        raise ReleaseError(
            f"{CHANGELOG} has nothing to release: its first section is not one of changes `not yet released`"
        )
    text = text.replace(heading, f"## {version}, {date}", 1)
    return re.sub(r"^(## .+), not yet released$", rf"\1, first released as {version}", text, flags=re.MULTILINE)


def bump(tree: Path, version: str, date: str) -> None:
    """Write the version into every file of `tree` that names it."""
    old = version_of(tree)
    for name, forms in PLACES.items():
        text = (tree / name).read_text(encoding="utf-8")
        for form in forms:
            if form.format(old) not in text:
                raise ReleaseError(f"{name} does not say {form.format(old)}: PLACES in tools/release.py is out of date")
            text = text.replace(form.format(old), form.format(version))
        (tree / name).write_text(text, encoding="utf-8")
    log = tree / CHANGELOG
    log.write_text(changelog(log.read_text(encoding="utf-8"), version, date), encoding="utf-8")
    if (tree / RECORDED / "unreleased").exists():
        (tree / RECORDED / "unreleased").rename(tree / RECORDED / version)


# --- What it is made of -----------------------------------------------------------------------------------------------


def packed(
    folder: Path, names: Iterable[str], top: str, time: int, instead: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return a .tar.gz of these files in `folder`, under `top`; equal contents, modes and `time` give equal bytes.

    Files named in `instead` have that text.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            content = instead[name].encode() if name in instead else (folder / name).read_bytes()
            entry = tarfile.TarInfo(f"{top}/{name}" if top else name)
            runs = (folder / name).stat().st_mode & 0o100
            entry.size, entry.mtime, entry.mode = len(content), time, 0o755 if runs else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=time)


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files below `folder`, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def build(tree: Path, out: Path, time: int) -> None:
    """Make the files of a release of `tree` in the folder `out`.

    Args:
        tree: a checkout that holds committed files alone.
        out: an empty folder.
        time: that of the commit, in seconds since the epoch; every file in an archive has it.
    """
    version, deploy = version_of(tree), tree / "deploy"
    hatchling = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    _run(hatchling, tree, SOURCE_DATE_EPOCH=str(time))
    # `helm package` makes an archive of the chart's folder, Chart.yaml first; that needs no helm.
    chart = files_below(deploy / "chart")
    chart.sort(key="Chart.yaml".__ne__)
    published = publishing.Published.of(tree)
    instead = publishing.chart(deploy / "chart", published)
    (out / f"gpushare-{version}.tgz").write_bytes(packed(deploy / "chart", chart, "gpushare", time, instead))
    manifests = [name for name in files_below(deploy) if not name.startswith("chart/")]
    top = f"gpu-device-plugin-{version}/deploy"  # the pages' commands run in the folder above `deploy`
    (out / f"gpu-device-plugin-{version}-manifests.tar.gz").write_bytes(packed(deploy, manifests, top, time))
    _build_plugin(tree, out, time)
    (out / "install.yaml").write_text(publishing.install(deploy, published), encoding="utf-8")
    direct = [
        _package(each)
        for each in tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    ]
    whole = sbom.bill(sbom.NAME, version, sbom.locked(tree), tree, time, direct=direct)
    (out / f"gpu-device-plugin-{version}.cdx.json").write_text(whole, encoding="utf-8")
    sums = [f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n" for name in files_below(out)]
    (out / SUMS).write_text("".join(sums), encoding="utf-8")


def _build_plugin(tree: Path, out: Path, time: int) -> None:
    """Make the kubectl plugin, the same packed for krew, krew's manifest, and its bill of materials."""
    version, published = version_of(tree), publishing.Published.of(tree)
    plugin = out / onefile.NAME
    plugin.write_bytes(onefile.archive(tree, time))
    plugin.chmod(0o755)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(plugin, folder)
        shutil.copyfile(tree / "LICENSE", Path(folder, "LICENSE"))
        content = packed(Path(folder), ["LICENSE", onefile.NAME], "", time)
    name = f"{onefile.NAME}-{version}.tar.gz"
    (out / name).write_bytes(content)
    manifest = publishing.krew(version, name, hashlib.sha256(content).hexdigest(), published)
    (out / "inspect-gpushare.krew.yaml").write_text(manifest, encoding="utf-8")
    bill = sbom.bill(onefile.NAME, version, onefile.DISTRIBUTIONS, tree, time, hashed=False)
    (out / f"{onefile.NAME}.cdx.json").write_text(bill, encoding="utf-8")


def _package(requirement: str) -> str:
    """Return the name of the package that a requirement names."""
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]


# --- The steps --------------------------------------------------------------------------------------------------------


def release(tree: Path, version: str) -> None:
    """Commit and tag `version` in the checkout `tree`, with its files in dist/.

    Raises:
        ReleaseError: why not; the checkout is unchanged.
    """
    numbers, old = parsed(version), version_of(tree)
    if changed := _git(tree, "status", "--porcelain"):
        raise ReleaseError(f"the tree is not clean; commit these, or put them away:\n{changed}")
    tagged = re.findall(r"^v(\d+\.\d+\.\d+)$", _git(tree, "tag"), re.MULTILINE)
    newest = max([old, *tagged], key=parsed)
    if numbers <= parsed(newest):
        raise ReleaseError(f"{version} is not newer than {newest}")
    now = dt.datetime.now(dt.UTC)
    with _worktree(tree) as apart, tempfile.TemporaryDirectory() as out:
        bump(apart, version, f"{now:%Y-%m-%d}")
        _git(apart, "add", "--all")
        _git(apart, "commit", "--quiet", "--message", f"Version {version}")
        build(apart, Path(out), _time_of(apart))
        made = _git(apart, "rev-parse", "HEAD")
        _git(tree, "tag", "--annotate", f"v{version}", "--message", f"Version {version}", made)
        try:
            _git(tree, "merge", "--quiet", "--ff-only", made)
        except ReleaseError:
            _git(tree, "tag", "--delete", f"v{version}")
            raise
        _keep(Path(out), tree / "dist")


def dist(tree: Path) -> None:
    """Build the files of the current commit of the checkout `tree` into dist/."""
    with _worktree(tree) as apart, tempfile.TemporaryDirectory() as out:
        build(apart, Path(out), _time_of(apart))
        _keep(Path(out), tree / "dist")


@contextmanager
def _worktree(tree: Path) -> Iterator[Path]:
    """Check the commit of `tree` out into a temporary folder, which has none of the ignored files."""
    with tempfile.TemporaryDirectory() as above:
        apart = Path(above) / "tree"
        _git(tree, "worktree", "add", "--quiet", "--detach", str(apart))
        try:
            yield apart
        finally:
            _git(tree, "worktree", "remove", "--force", str(apart))


def _time_of(tree: Path) -> int:
    return int(_git(tree, "log", "-1", "--format=%ct"))


def _keep(made: Path, folder: Path) -> None:
    """Replace the contents of `folder`, so that its checksums cover every file in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in files_below(made):
        shutil.copy(made / name, folder / name)


def _git(tree: Path, *arguments: str) -> str:
    return _run(["git", *arguments], tree)


def _run(command: list[str], tree: Path, **variables: str) -> str:
    """Run a program in `tree` and return its output; raise `ReleaseError` with that output if it fails."""
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout.rstrip()


def main() -> str | None:
    """Return the reason of a refusal, for the exit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("version", nargs="?", help="x.y.z; without it only the files of the current commit are built")
    version = parser.parse_args().version
    try:
        if version is None:
            dist(ROOT)
        else:
            release(ROOT, version)
    except ReleaseError as refusal:
        return f"no release: {refusal}"
    print((ROOT / "dist" / SUMS).read_text(encoding="utf-8"), end="")
    if unfilled := publishing.Published.of(ROOT).unfilled:
        print(f"warning: {unfilled}.", file=sys.stderr)
    if version is not None:
        print(f"dist/ has the files of {version}. Look at them and at `git show v{version}`, then:")
        print(f"  git push origin HEAD v{version}")
        print("or, to undo it:")
        print(f"  git tag --delete v{version} && git reset --hard HEAD~1")
    return None


if __name__ == "__main__":
    sys.exit(main())
