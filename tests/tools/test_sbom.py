"""The bills of materials name everything, by the rules of CycloneDX 1.6 that matter to a reader."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import sbom
from tools.onefile.archive import DISTRIBUTIONS, NAME

ROOT = Path(__file__).parents[2]
TIME_S = 1_800_000_000


@pytest.fixture(
    params=[(sbom.NAME, True), (NAME, False)],
    ids=["programs", "plugin"],
)
def bill(request: pytest.FixtureRequest) -> Any:
    subject, hashed = request.param
    packages = sbom.locked(ROOT) if hashed else DISTRIBUTIONS
    return json.loads(sbom.bill(subject, "9.9.9", packages, ROOT, TIME_S, hashed=hashed))


def test_its_head_is_that_of_the_format(bill: Any) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert bill["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"
    assert bill["metadata"]["component"]["version"] == "9.9.9"


def test_every_component_has_version_purl_and_licence(bill: Any) -> None:
    for each in bill["components"]:
        kind = "npm" if each["name"] == "lit-html" else "pypi"
        assert each["purl"] == f"pkg:{kind}/{each['name']}@{each['version']}"
        (licence,) = each["licenses"]
        assert licence.get("expression") or licence["license"]["name"]


def test_references_lead_to_components(bill: Any) -> None:
    known = [bill["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in bill["components"])]
    assert len(set(known)) == len(known)
    assert [each["ref"] for each in bill["dependencies"]] == known
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} <= set(known)
    assert any(each["dependsOn"] for each in bill["dependencies"][1:])


def test_the_programs_are_all_of_the_lock_with_its_checksums() -> None:
    locked = sbom.locked(ROOT)
    assert {"aiohttp", "grpcio", "msgspec", "nvidia-ml-py", "pyyaml"} <= locked.keys()
    made = json.loads(sbom.bill(sbom.NAME, "9.9.9", locked, ROOT, TIME_S))
    *packages, vendored = made["components"]
    assert (vendored["name"], vendored["version"]) == ("lit-html", "3.3.3")
    assert {each["name"]: each["version"] for each in packages} == {
        name: version for name, (version, _) in locked.items()
    }
    for each in packages:
        (source,) = each["externalReferences"]
        assert {found["content"] for found in source["hashes"]} == set(locked[each["name"]][1]) != set()


def test_what_the_program_itself_needs_is_what_it_depends_on() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    names = [re.split(r"[^A-Za-z0-9_.-]", each)[0] for each in needed]
    made = json.loads(sbom.bill(sbom.NAME, "9.9.9", sbom.locked(ROOT), ROOT, TIME_S, direct=names))
    vendored, *direct = made["dependencies"][0]["dependsOn"]
    assert vendored == "pkg:npm/lit-html@3.3.3"
    assert len(direct) == len(names) < len(made["components"])


def test_equal_commits_make_equal_bills() -> None:
    def made(time_s: int) -> str:
        return sbom.bill(NAME, "9.9.9", DISTRIBUTIONS, ROOT, time_s, hashed=False)

    assert made(TIME_S) == made(TIME_S) != made(TIME_S + 1)
