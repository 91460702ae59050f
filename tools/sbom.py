"""The software bills of materials of a release, in CycloneDX 1.6: what our programs and the plugin consist of."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAME = "gpu-device-plugin"
_NAMESPACE = uuid.UUID("6e3f1f0e-6d0c-5f5e-9f6e-0a8d1d0f9b11")
"""Of the serial numbers; any constant does."""
VENDORED = Path("gpu_device_plugin/programs/web/page/vendor/lit-html/lit-html.js")
"""The library of the page, parts of which are in the sources; it names its version."""


def locked(tree: Path, file: str = "requirements.lock") -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Return the version and the SHA-256 checksums of each package that a lock file pins."""
    text = (tree / file).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if named := re.match(r"([A-Za-z0-9_.-]+)==(\S+)", line):
            found[_normal(named[1])] = named[2], tuple(re.findall(r"sha256:([0-9a-f]{64})", line))
    return found


def bill(
    subject: str,
    version: str,
    packages: Iterable[str],
    tree: Path,
    time_s: int,
    *,
    direct: Iterable[str] | None = None,
    hashed: bool = True,
) -> str:
    """Return the bill of one program as JSON.

    Args:
        subject: the name of the program.
        version: of the release.
        packages: the packages in it, by their names on PyPI; all of them are in requirements.lock.
        tree: the checkout.
        time_s: of the commit, in seconds since the epoch.
        direct: those that the program itself uses; None: all.
        hashed: whether the packages are in it as their wheels are; otherwise parts of them are.
    """
    known = locked(tree)
    names = sorted(_normal(name) for name in packages)
    of = {name: f"pkg:pypi/{name}@{known[name][0]}" for name in names}
    vendored = _vendored(tree)
    root = f"pkg:pypi/{NAME}@{version}" if subject == NAME else f"pkg:generic/{subject}@{version}"
    return json.dumps(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{subject} {version} {time_s}')}",
            "version": 1,
            "metadata": {
                "timestamp": dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "component": {
                    "type": "application",
                    "bom-ref": root,
                    "name": subject,
                    "version": version,
                    "purl": root,
                    "licenses": [{"license": {"id": "Apache-2.0"}}],
                },
            },
            "components": [*(_component(name, of[name], known[name], hashed=hashed) for name in names), vendored],
            "dependencies": [
                {
                    "ref": root,
                    "dependsOn": [
                        vendored["purl"],
                        *sorted(of[_normal(name)] for name in (names if direct is None else direct)),
                    ],
                },
                *(
                    {"ref": of[name], "dependsOn": sorted(of[each] for each in _needs(name) if each in of)}
                    for name in names
                ),
                {"ref": vendored["purl"], "dependsOn": []},
            ],
        },
        indent=2,
    )


def _component(name: str, ref: str, known: tuple[str, tuple[str, ...]], *, hashed: bool) -> Mapping[str, Any]:
    version, sums = known
    source: dict[str, Any] = {"type": "distribution", "url": f"https://pypi.org/project/{name}/{version}/"}
    if hashed:
        source["hashes"] = [{"alg": "SHA-256", "content": each} for each in sums]
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": version,
        "purl": ref,
        "licenses": _licences(name),
        "externalReferences": [source],
    }


def _vendored(tree: Path) -> Mapping[str, Any]:
    """Return the component of which the page has parts."""
    (version,) = re.findall(r'litHtmlVersions.*push\("([0-9.]+)"\)', (tree / VENDORED).read_text(encoding="utf-8"))
    purl = f"pkg:npm/lit-html@{version}"
    source = {"type": "distribution", "url": f"https://www.npmjs.com/package/lit-html/v/{version}"}
    return {
        "type": "library",
        "bom-ref": purl,
        "name": "lit-html",
        "version": version,
        "purl": purl,
        "licenses": [{"expression": "BSD-3-Clause"}],
        "externalReferences": [source],
    }


def _licences(name: str) -> list[Mapping[str, Any]]:
    """Return the licences that a package states: an expression of SPDX where it has one, else its words."""
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return [{"expression": about["License-Expression"]}]
    return [{"license": {"name": " ".join(about["License"].split())}}]


def _needs(name: str) -> list[str]:
    """Return the packages that a package needs, whatever the platform."""
    named = (re.match(r"[A-Za-z0-9_.-]+", each) for each in metadata.requires(name) or () if "extra ==" not in each)
    return [_normal(each[0]) for each in named if each]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
