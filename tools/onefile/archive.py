"""Pack the kubectl plugin into one file, from a checkout and the packages of the environment that runs this.

The bytes depend on these sources alone: entries are sorted, and have the time that is given.
"""

from __future__ import annotations

import io
import sys
import time as clock
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "kubectl-inspect_gpushare"
"""krew's name for ``kubectl inspect-gpushare``; installed as ``kubectl-inspect-gpushare`` it is ``kubectl inspect
gpushare``."""
PACKAGE = "gpu_device_plugin"
PROGRAMS = ("inspect", "web")
"""The programs that the archive runs."""
DISTRIBUTIONS = {
    # `web` serves and watches with aiohttp, which runs without its compiled parts.
    "aiohttp": "aiohttp",
    "aiohappyeyeballs": "aiohappyeyeballs",
    "aiosignal": "aiosignal",
    "attrs": "attr",
    "frozenlist": "frozenlist",
    "idna": "idna",
    "multidict": "multidict",
    "propcache": "propcache",
    "typing_extensions": "typing_extensions.py",
    "yarl": "yarl",
    # Output and configurations in YAML.
    "PyYAML": "yaml",
}
"""The package or module of each distribution that goes in; of each only Python sources and licences."""
_HERE = Path(__file__).parent
_START = b"#!/usr/bin/env python3\n"


def archive(tree: Path, time_s: int) -> bytes:
    """Return the archive.

    Args:
        tree: the checkout whose package goes in.
        time_s: the time of its entries, in seconds since the epoch.
    """
    moment = clock.gmtime(max(time_s, 315532800))[:6]  # zip knows no time before 1980
    packed = io.BytesIO()
    packed.write(_START)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as into:
        for name, content in sorted(files(tree).items()):
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            into.writestr(entry, content)
    return packed.getvalue()


def files(tree: Path) -> Mapping[str, bytes]:
    """Return the files of the archive, by their names in it."""
    found = {
        "__main__.py": (_HERE / "main.py").read_bytes(),
        "msgspec.py": (_HERE / "msgspec_standin.py").read_bytes(),
        f"licenses/{PACKAGE}/LICENSE": (tree / "LICENSE").read_bytes(),
    }
    for module in modules():
        path = tree / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        found[path.relative_to(tree).as_posix()] = path.read_bytes()
    page = tree / PACKAGE / "programs" / "web" / "page"
    for each in filter(Path.is_file, page.rglob("*")):
        name = f"licenses/{each.parent.name}/LICENSE" if each.name == "LICENSE" else each.relative_to(tree).as_posix()
        found[name] = each.read_bytes()
    for name, top in DISTRIBUTIONS.items():
        found |= dict(_sources(name, top))
    return found


def modules() -> list[str]:
    """Return the modules of our package that the programs import, at once or when they need them, sorted."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    wanted = {f"{PACKAGE}.__main__"}
    for program in PROGRAMS:
        top = f"{PACKAGE}.programs.{program}"
        wanted |= {top, *graph.find_descendants(top)}
    # The command line names the settings of all programs, and imports a program when it runs it.
    programs = graph.find_children(f"{PACKAGE}.programs") - {f"{PACKAGE}.programs.{each}" for each in PROGRAMS}
    inside = {child for each in (*programs, f"{PACKAGE}.node") for child in graph.find_children(each)}
    others = {each for each in inside if not each.endswith(".rules")}
    others |= {f"{PACKAGE}.features.{each}" for each in ("limits.helper_program", "mps.supervisor", "node_features")}
    for each in others:
        graph.remove_module(each)
        for below in [name for name in graph.modules if name.startswith(f"{each}.")]:
            graph.remove_module(below)
    needed = set(wanted)
    for each in wanted:
        needed |= graph.find_upstream_modules(each)
    parents = {module.rsplit(".", depth)[0] for module in needed for depth in range(1, module.count(".") + 1)}
    return sorted(needed | parents)


def _sources(distribution: str, top: str) -> Iterator[tuple[str, bytes]]:
    """Yield the Python sources and the licences of an installed distribution."""
    for each in metadata.files(distribution) or ():
        path = Path(str(each.locate()))
        if each.parts[0] == top and each.suffix == ".py":
            yield each.as_posix(), path.read_bytes()
        elif ".dist-info" in each.parts[0] and each.stem.upper().startswith(("LICENSE", "NOTICE", "COPYING")):
            yield f"licenses/{distribution}/{each.name}", path.read_bytes()


def main() -> None:
    """Write the archive of this checkout to the path in argv."""
    to = Path(sys.argv[1])
    to.write_bytes(archive(Path(__file__).parents[2], int(clock.time())))
    to.chmod(0o755)


if __name__ == "__main__":
    main()
