"""What the processes of an agent cost a machine on which nothing else uses their files."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Documentation/admin-guide/mm/pagemap.rst of Linux: present, swapped, page of a file or shared.
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_VSYSCALL = 1 << 63
"""From here on addresses are the kernel's, and pagemap does not know them."""


def tree(root: int) -> list[int]:
    """Return the process `root` and all that descend from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything; the state and the parent follow it.
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
        except OSError:
            continue  # ended meanwhile
    found = [root]
    for pid in found:
        found.extend(children[pid])
    return found


def alone_mib(pids: list[int]) -> float:
    """Return the memory of some processes together in MiB, every page counted once.

    This is the PSS that they have where no other process maps the same files. The PSS of this machine is less: other
    interpreters, and the benchmark with its own gRPC, would pay for a part of it.
    """
    own, of_files = 0, set[tuple[str, int]]()
    for pid in pids:
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
            for mapping in Path(f"/proc/{pid}/maps").read_text().splitlines():
                addresses, _, offset, device, inode, *_ = mapping.split()
                begin, end = (int(address, 16) for address in addresses.split("-"))
                if begin >= _VSYSCALL:
                    continue
                pagemap.seek(begin // _PAGE * 8)
                first = int(offset, 16) // _PAGE
                for number, (entry,) in enumerate(struct.iter_unpack("Q", pagemap.read((end - begin) // _PAGE * 8))):
                    if entry & _OF_FILE and entry & _PRESENT and inode != "0":
                        of_files.add((f"{device} {inode}", first + number))
                    elif entry & (_PRESENT | _SWAPPED):
                        own += 1
    return (own + len(of_files)) * _PAGE / 2**20


def pss_mib(pids: list[int]) -> float:
    """Return the proportional set size of some processes together, in MiB, as this machine has it."""
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids)
    return sum(int(line.split()[1]) for rollup in rollups for line in rollup if line.startswith("Pss:")) / 1024


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time that some processes have used, in seconds."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")
