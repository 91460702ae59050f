"""Make container images of programs that this machine has, where no registry and no builder is at hand."""

import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tools.sbom import locked

Content = Path | bytes | PurePosixPath
"""A file of this machine; what a file contains; or where a link leads."""

ROOT = Path(__file__).parents[2]
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}

_PYTHON = "/opt/python"
_UNUSED = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "site-packages", "dist-packages"}
"""Of the standard library."""

_COMMAND = f"""\
#!{_PYTHON}/bin/python3
import sys
from gpu_device_plugin.__main__ import main
sys.exit(main())
""".encode()

# As the first process it ends when it is told to, which a first process does not by itself.
_SLEEP = b"""\
#!/bin/sh
trap 'exit 0' TERM
busybox sleep "$@" &
wait
"""
# As the first process it is a job or an init container: a test has to look at it before it ends.
_NVIDIA_SMI = b"""\
#!/bin/sh
echo "GPUs: $NVIDIA_VISIBLE_DEVICES"
[ $$ = 1 ] || exit 0
exec sleep infinity
"""


def write_image(path: Path, names: Iterable[str], files: Mapping[str, Content], config: Mapping[str, object]) -> None:
    """Write an archive of an image of one layer, such as `ctr image import` reads."""
    with tempfile.NamedTemporaryFile(dir=path.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w") as archive:
            _fill(archive, files)
        layer.seek(0)
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
        described = json.dumps(
            {
                "architecture": MACHINE[os.uname().machine],
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        name = f"{hashlib.sha256(described).hexdigest()}.json"
        manifest = [{"Config": name, "RepoTags": list(names), "Layers": [f"{digest}/layer.tar"]}]
        with tarfile.open(path, mode="w") as image:
            image.add(layer.name, f"{digest}/layer.tar")
            _fill(image, {name: described, "manifest.json": json.dumps(manifest).encode()})


def _fill(archive: tarfile.TarFile, files: Mapping[str, Content]) -> None:
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} - {"/", "."}
    for folder in sorted(folders):
        # Whoever a container runs as may look into all of them, wherever they come from.
        archive.addfile(_member(folder, type=tarfile.DIRTYPE))
    for name, content in files.items():
        if isinstance(content, Path):
            # Byte code is valid for a source of this time and size.
            member = _member(name, size=content.stat().st_size, mtime=int(content.stat().st_mtime))
            with content.open("rb") as opened:
                archive.addfile(member, opened)
        elif isinstance(content, bytes):
            archive.addfile(_member(name, size=len(content)), io.BytesIO(content))
        else:
            archive.addfile(_member(name, type=tarfile.SYMTYPE, linkname=str(content)))


def _member(name: str, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name.lstrip("/"))
    member.mode = 0o755
    for field, value in fields.items():
        setattr(member, field, value)
    return member


# --- What is in them --------------------------------------------------------------------------------------------------


def write_workload(path: Path, names: Iterable[str]) -> None:
    """Write an image that stands for those of the pods of a test: a shell, and what there looks like nvidia-smi."""
    # busybox as the shell would take its own sleep, whatever lies in /bin.
    shell, busybox = _installed("sh"), _installed("busybox")
    files: dict[str, Content] = {
        "/bin/sh": shell,
        "/bin/busybox": busybox,
        "/bin/env": PurePosixPath("busybox"),
        "/bin/sleep": _SLEEP,
        "/bin/nvidia-smi": _NVIDIA_SMI,
        **_libraries([shell, busybox]),
    }
    write_image(path, names, files, {"Entrypoint": ["/bin/nvidia-smi"], "Env": ["PATH=/bin"]})


def write_pause(path: Path, name: str) -> None:
    """Write an image whose program only waits, as that of a sandbox does. It is the first process of its pod, or, in a
    pod with the node's PID namespace, one of many."""
    shell, busybox = _installed("sh"), _installed("busybox")
    files: dict[str, Content] = {
        "/bin/sh": shell,
        "/bin/busybox": busybox,
        "/bin/sleep": _SLEEP,
        **_libraries([shell, busybox]),
    }
    write_image(path, [name], files, {"Entrypoint": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin"]})


def write_program(path: Path, names: Iterable[str], program: Path) -> None:
    """Write an image of one program."""
    files: dict[str, Content] = {f"/usr/local/bin/{program.name}": program, **_libraries([program])}
    write_image(path, names, files, {"Entrypoint": [f"/usr/local/bin/{program.name}"], "Env": ["PATH=/usr/local/bin"]})


def write_ours(path: Path, names: Iterable[str], sources: Path = ROOT) -> None:
    """Write the image that the Dockerfile describes, of the Python and the packages with which the tests run.

    Args:
        path: of the archive.
        names: of the image.
        sources: a checkout of this repository.
    """
    lib = f"{_PYTHON}/{sys.platlibdir}/python{sys.version_info.major}.{sys.version_info.minor}"
    stdlib = Path(sysconfig.get_path("stdlib"))
    files: dict[str, Content] = {
        f"{_PYTHON}/bin/python3": Path(sys.executable).resolve(),
        "/usr/local/bin/gpu-device-plugin": _COMMAND,
        **{f"{lib}/{name}": found for name, found in _tree(stdlib) if not _UNUSED.intersection(Path(name).parts)},
        **{f"{lib}/site-packages/{name}": found for name, found in _packages()},
        **{
            f"{lib}/site-packages/gpu_device_plugin/{name}": each for name, each in _tree(sources / "gpu_device_plugin")
        },
        "/tmp/.keep": b"",
    }
    native = [each for name, each in files.items() if isinstance(each, Path) and (".so" in name or "/bin/" in name)]
    files |= _libraries(native)
    config = {
        "Entrypoint": ["gpu-device-plugin"],
        "Cmd": ["--help"],
        "User": "65532:65532",
        "Env": [f"PATH=/usr/local/bin:{_PYTHON}/bin", "PYTHONDONTWRITEBYTECODE=1"],
    }
    write_image(path, names, files, config)


def _packages() -> Iterator[tuple[str, Path]]:
    """Return the files of the packages that our programs need, by where they are within site-packages."""
    for name in locked(ROOT):
        for each in importlib.metadata.distribution(name).files or ():
            if ".." not in each.parts and (found := Path(str(each.locate()))).is_file():
                yield str(each), found


def _tree(folder: Path) -> Iterator[tuple[str, Path]]:
    for found in sorted(folder.rglob("*")):
        if found.is_file() and not _UNUSED.intersection(found.relative_to(folder).parts):
            yield str(found.relative_to(folder)), found


def _installed(program: str) -> Path:
    found = shutil.which(program)
    assert found is not None, program
    return Path(found).resolve()


def _libraries(programs: Iterable[Path]) -> dict[str, Content]:
    """Return the shared libraries that these programs load, by where they are looked for."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"(?:=>\s+|^\s+)(/\S+) \(0x", told, re.MULTILINE))
    # What a package brings along is found beside the module that needs it.
    return {each: Path(each).resolve() for each in sorted(found) if "site-packages" not in each}
