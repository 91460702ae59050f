"""The image can be built where there is no registry, as docs/install-image.md says, and is what it says of itself."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin import __version__
from tests.deploy.test_image import MACHINES, PYTHONS
from tests.patience import stretched
from tests.real_node import child_of
from tools.sbom import locked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "install-image.md"
NAME = f"localhost/gpu-device-plugin:{__version__}"
PACKAGE = ROOT / "gpu_device_plugin"
PROGRAMS = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("[!_]*.py")
    if path.relative_to(PACKAGE).parts[0] in ("features", "node", "programs")
)

# Debian 12 and the slim images made of it have glibc 2.36; a wheel for 2.28 runs on RHEL 8 too.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Image:
    """The image, built and mounted."""

    root: Path
    config: dict[str, Any]
    layers: dict[str, int]
    """Compressed sizes in bytes, the base first."""

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._entering(*command), capture_output=True, text=True, check=False, timeout=stretched(120)
        )

    def says(self, sentence: str, *command: str) -> str:
        """Run a program until it logs this sentence; return what it had logged by then."""
        said = ""
        with subprocess.Popen(self._entering(*command), stderr=subprocess.PIPE, text=True) as program:
            assert program.stderr is not None
            while sentence not in said and (line := program.stderr.readline()):
                said += line
            # The end of `unshare` would not reach it: a change of user undoes --kill-child.
            with contextlib.suppress(IndexError, OSError):  # it has ended by itself
                os.kill(child_of(program.pid), signal.SIGKILL)
        assert sentence in said, said
        return said

    def _entering(self, *command: str) -> list[str]:
        """Run as a user that nobody knows, with the image's own environment, on a root that cannot be written.

        Without a container engine: the image's files become the root of a process that has no rights. /run stands for
        what the kubelet would mount.
        """
        enter = (
            'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; mount -t proc none "$0/proc"; '
            'mount --bind /dev "$0/dev"; mount -t tmpfs -o mode=1777 none "$0/run"; '
            'exec chroot --userspec=54321:54321 --groups= "$0" env -i "$@"'
        )
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", enter, str(self.root)]
        return [*unshare, *self.config["Env"], *command]


def lacking() -> str:
    """What keeps this machine from building, or nothing."""
    absent = [name for name in ("buildah", "debootstrap", "unshare") if shutil.which(name) is None]
    if absent:
        return f"building the image needs {', '.join(absent)}: apt-get install buildah debootstrap"
    return "" if os.geteuid() == 0 else "building the image needs root, for debootstrap"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if lacking():
        pytest.skip(lacking())
    work = tmp_path_factory.mktemp("image")
    (work / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{work}/storage"\nrunroot = "{work}/run"\n', encoding="utf-8"
    )
    environ = {
        **os.environ,
        "work": str(work),
        "CONTAINERS_STORAGE_CONF": str(work / "storage.conf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def buildah(*arguments: str) -> str:
        done = subprocess.run(["buildah", *arguments], env=environ, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    (script,) = (block for block in blocks() if "buildah build" in block)
    try:
        subprocess.run(["bash", "-euc", script], cwd=ROOT, env=environ, check=True)
        with tarfile.open(work / "image.tar") as archive:
            (described,) = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        # As a container runtime understands the name in the manifests.
        assert f"docker.io/library/gpu-device-plugin:{__version__}" in described["RepoTags"]
        buildah("push", "--quiet", NAME, f"oci:{work}/oci:it")
        container = buildah("from", "--pull-never", NAME)
        yield Image(Path(buildah("mount", container)), *pushed(work / "oci"))
    finally:
        # Containers and images too; vfs mounts nothing.
        shutil.rmtree(work, ignore_errors=True)


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def pushed(layout: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read what a registry would be given: the configuration, and the sizes of the layers."""

    def blob(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((layout / "blobs" / digest.replace(":", "/")).read_text(encoding="utf-8"))
        return found

    (described,) = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    manifest = blob(described["digest"])
    return blob(manifest["config"]["digest"])["config"], {each["digest"]: each["size"] for each in manifest["layers"]}


@pytest.mark.parametrize("command", [("gpu-device-plugin",), ("kubectl-inspect-gpushare",)])
def test_it_starts_for_any_user_on_a_root_file_system_that_cannot_be_written(
    image: Image, command: tuple[str, ...]
) -> None:
    asked = "--version" if command[0] == "gpu-device-plugin" else "--help"
    done = image.run(*command, asked)
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout or "gpushare" in done.stdout
    assert "Read-only file system" in image.run("touch", "/tmp/there").stderr


def test_the_extender_and_the_agent_run_so_as_far_as_they_can_without_a_cluster(image: Image) -> None:
    """Here nobody answers at the API's address, and the GPUs are invented."""
    alone = ("--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--api=http://127.0.0.1:9")
    said = image.says("the nodes are not listed", "gpu-device-plugin", "extender", *alone)
    kubelets = ("--device-plugin-dir=/run", "--pod-resources-socket=/run/pod-resources.sock", "--api=off")
    said += image.says("not registered, trying again", "gpu-device-plugin", "node", "--gpus=fake:2xT4", *kubelets)
    assert "Traceback" not in said


def test_every_program_can_be_imported(image: Image) -> None:
    modules = ", ".join(f"gpu_device_plugin.{name}" for name in PROGRAMS)
    done = image.run("/opt/gpu-device-plugin/bin/python", "-W", "error", "-c", f"import {modules}")
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_less_than_110_mb_compressed(image: Image) -> None:
    """23 MB of ours; the slim image of Python is smaller than the base that debootstrap makes."""
    assert sum(image.layers.values()) < 110_000_000, image.layers
    assert list(image.layers.values())[-1] < 40_000_000, image.layers


def test_there_is_no_pip_and_no_compiler_in_it(image: Image) -> None:
    assert image.run("/opt/gpu-device-plugin/bin/python", "-c", "import pip").returncode == 1
    assert image.run("python3", "-c", "import pip, ensurepip").returncode == 1
    absent = "pip pip3 hatchling cc gcc g++ c++ ld make"
    found = image.run("sh", "-c", f"for name in {absent}; do command -v $name; done; command -v gpu-device-plugin")
    assert found.stdout.split() == ["/opt/gpu-device-plugin/bin/gpu-device-plugin"]


def test_every_module_of_ours_is_compiled(image: Image) -> None:
    """Those of the packages too, and of the standard library what is ever imported."""
    python = next((image.root / "opt/gpu-device-plugin/lib").glob("python3.*"))
    modules = [path for path in python.rglob("*.py") if "testdata" not in path.parts]
    tag = f"cpython-{python.name.removeprefix('python').replace('.', '')}.opt-2.pyc"
    missing = [str(path) for path in modules if not (path.parent / "__pycache__" / f"{path.stem}.{tag}").exists()]
    assert len(modules) > 300
    assert missing == []
    assert [*image.root.glob(f"usr/lib/{python.name}/asyncio/__pycache__/base_events.{tag}")] != []


def test_what_is_installed_is_what_is_locked(image: Image) -> None:
    ask = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    found = image.run("/opt/gpu-device-plugin/bin/python", "-c", ask).stdout.lower().replace("_", "-").split()
    pinned = {f"{name}=={version}" for name, (version, _) in locked(ROOT).items()}
    assert set(found) == pinned | {f"gpu-device-plugin=={__version__}"}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_locked_wheels_exist_for_every_machine_and_python(machine: str, python: str, tmp_path: Path) -> None:
    """So the image can be built for ARM as well, though not here."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", f"--target={tmp_path}"),
            *("--require-hashes", "--only-binary=:all:", f"--python-version={python}"),
            *(f"--platform={platform}_{machine}" for platform in PLATFORMS),
            *("--requirement", str(ROOT / "requirements.lock")),
        ],
        check=True,
    )
