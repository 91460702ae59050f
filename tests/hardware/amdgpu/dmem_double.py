"""A double of the kernel's controller dmem: plain folders and files with its rules (kernel/cgroup/dmem.c)."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_device_plugin.hardware.amdgpu import dmem

_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class DmemDouble:
    """A tree of cgroups whose files tell what a kernel would.

    Writing is what it takes over; reading goes to the files. `applies_below_use`: it is Linux 7.3 or newer, which
    takes a limit below the use; an older one answers the write with success, and keeps the limit that it had.
    """

    def __init__(self, root: Path, regions: Iterable[str], *, applies_below_use: bool = False) -> None:
        """Make the root, in which nothing is enabled, for these regions of 16 GiB."""
        self.root = root
        self.regions = list(dict.fromkeys(regions))
        self.applies_below_use = applies_below_use
        self.writes: list[str] = []
        """Each as ``path below the root: text``."""
        self.refuses: Mapping[str, int] = {}
        """The error number with which a write to a file of this name fails."""
        root.mkdir(parents=True)
        self._write(root / "cgroup.controllers", "cpu dmem memory")
        self._write(root / "cgroup.subtree_control", "")
        self._write(root / "dmem.capacity", "".join(f"{region} {16 << 30}\n" for region in regions))

    def starts(self, path: str) -> Path:
        """Make a cgroup, with those above it."""
        place = self.root
        for name in Path(path).parts:
            place /= name
            if not place.is_dir():
                place.mkdir()
                self._write(place / "cgroup.type", "domain")
                self._write(place / "cgroup.procs", "")
                self._write(place / "cgroup.subtree_control", "")
                self._offer(place)
        return place

    def ends(self, place: Path) -> None:
        """Remove a cgroup."""
        shutil.rmtree(place)

    def uses(self, place: Path, region: str, amount: int) -> None:
        """Have the processes of a cgroup use so many bytes."""
        self._set(place / "dmem.current", region, str(amount))

    def disable(self, place: Path) -> None:
        """Take the controller off what is below a cgroup, and with it all limits there."""
        self._write(place / "cgroup.subtree_control", "")
        for below in place.iterdir():
            if below.is_dir():
                self.disable(below)
                for file in below.glob("dmem.*"):
                    file.unlink()

    def write(self, path: str, text: str) -> None:
        """Do what the kernel does when a text is written to a file."""
        place = Path(path)
        self.writes.append(f"{place.relative_to(self.root)}: {text}")
        if not place.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if number := self.refuses.get(place.name):
            raise OSError(number, os.strerror(number), path)
        if place.name == "cgroup.subtree_control":
            self._enable(place, text)
        else:
            self._limit(place, text)

    def _enable(self, place: Path, text: str) -> None:
        assert text == "+dmem"
        folder = place.parent
        if folder != self.root:
            if not (folder / "dmem.max").exists():
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            if (folder / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        self._write(place, "dmem")
        for below in folder.iterdir():
            if below.is_dir():
                self._offer(below)

    def _offer(self, place: Path) -> None:
        offered = "dmem" in (place.parent / "cgroup.subtree_control").read_text().split()
        if offered and not (place / "dmem.max").exists():
            for name, amount in (("max", "max"), ("min", "0"), ("low", "0"), ("current", "0")):
                self._write(place / f"dmem.{name}", "".join(f"{region} {amount}\n" for region in self.regions))

    def _limit(self, place: Path, text: str) -> None:
        region, _, amount = text.partition(" ")
        if region not in self.regions or "\n" in text:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if amount != "max":
            scale = _SUFFIXES.get(amount[-1:], 1)
            amount = str(int(amount.rstrip("KMG")) * scale)
            used = int(self._amount(place.with_name("dmem.current"), region))
            if place.name == "dmem.max" and int(amount) < used and not self.applies_below_use:
                return
        self._set(place, region, amount)

    def _amount(self, file: Path, region: str) -> str:
        return dict(line.split() for line in file.read_text().splitlines())[region]

    def _set(self, file: Path, region: str, amount: str) -> None:
        lines = dict(line.split() for line in file.read_text().splitlines()) | {region: amount}
        self._write(file, "".join(f"{name} {value}\n" for name, value in lines.items()))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")


@contextmanager
def real_cgroups(place: Path) -> Iterator[Path]:
    """Mount cgroup v2 at a place, and make a folder in it; skip the test where that cannot be.

    The root goes on offering the controller hugetlb, which plays the part of dmem: other tests may need it.
    """
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "cgroup2", "none", str(place)], check=False).returncode:
        pytest.skip("mounting cgroup v2 needs root")
    top = Path(tempfile.mkdtemp(prefix="gpushare-test-", dir=place))
    try:
        if "hugetlb" not in (place / "cgroup.controllers").read_text().split():
            pytest.skip("this kernel offers the controller hugetlb to no cgroup of version 2")
        yield top
    finally:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
        subprocess.run(["umount", str(place)], check=True)


@contextmanager
def doubled(double: DmemDouble) -> Iterator[DmemDouble]:
    """Have what is written go to the double."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dmem, "_write", double.write)
        yield double
