"""Read small files of sysfs, procfs and cgroupfs below a root, and bound what is read."""

from __future__ import annotations

import os
from itertools import islice

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
_LARGEST = 1 << 16
"""Bytes of a file. A device's attribute has one page of 4,096 at most, and the list of regions a line for each GPU."""
_MOST_NAMES = 1 << 16
_LONGEST_NUMBER = 20
"""Characters of a number of 64 bits, decimal, or hexadecimal with 0x."""


class KernelFiles:
    """The kernel's files below `root`. A file that cannot be read has no content; `problem` tells why."""

    def __init__(self, root: str = "") -> None:
        """Read below `root`, where /sys, /proc and /dev are those of the node."""
        self.root = root

    def content(self, path: str, most: int = _LARGEST) -> bytes:
        """Return the content of a file, or its first bytes.

        Raises:
            OSError: it cannot be read.
        """
        opened = os.open(f"{self.root}{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            parts = []
            while most and (part := os.read(opened, most)):
                parts.append(part)
                most -= len(part)
            return b"".join(parts)
        finally:
            os.close(opened)

    def problem(self, path: str) -> int:
        """Return the error number with which reading a file fails; 0: it can be read."""
        try:
            self.content(path)
        except OSError as error:
            return error.errno or -1
        return 0

    def text(self, path: str) -> str:
        """Return the content of a file without blanks around it; empty if it cannot be read.

        Some recorded files are padded to a page.
        """
        try:
            return self.content(path).decode("utf-8", "replace").strip("\0 \n\t")
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the number in a file, decimal or with 0x; None if there is none."""
        return number(self.text(path))

    def pairs(self, path: str) -> Mapping[str, int]:
        """Return the numbers in a file with a key and a value in each line, by key."""
        lines = (line.split() for line in self.text(path).splitlines())
        return {line[0]: value for line in lines if len(line) == 2 and (value := number(line[1])) is not None}

    def names(self, path: str, most: int = _MOST_NAMES) -> list[str]:
        """Return the names in a directory, sorted; none if it cannot be read.

        Of more than `most` those that the kernel lists first.
        """
        try:
            # A process may have a million open files, whose names would take more memory than the agent has.
            with os.scandir(f"{self.root}{path}") as entries:
                return sorted(entry.name for entry in islice(entries, most))
        except OSError:
            return []

    def link(self, path: str) -> str:
        """Return what a symbolic link names; empty if there is no such link."""
        try:
            return os.readlink(f"{self.root}{path}")  # noqa: PTH115 - pathlib costs 1 MB
        except OSError:
            return ""


def number(text: str) -> int | None:
    """Return the number that a text is, decimal or with 0x; None if it is none, or has more than 64 bits."""
    text = text.strip()
    try:
        return int(text, 16 if text.startswith("0x") else 10) if len(text) <= _LONGEST_NUMBER else None
    except ValueError:
        return None
