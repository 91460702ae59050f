"""The page about claims: what it shows stands in its manifests, and Kubernetes does with them what it says."""

import re

import pytest
import yaml

from gpu_device_plugin.features.claims import contract as dra
from gpu_device_plugin.features.claims.contract import Claim, Parameters, share_config
from tests.docs.pages import DOCS, ROOT, blocks, sections, text_of

PAGE = text_of(DOCS / "dra.md")
MANIFESTS = sorted((DOCS / "claims").iterdir())
TEMPLATES = ROOT / "deploy" / "optional" / "dra-templates.yaml"


def test_yaml_that_is_shown_stands_in_the_manifests() -> None:
    manifests = "".join(text_of(path) for path in MANIFESTS)
    shown = [block.text for block in blocks(PAGE, "yaml") if "aliyun.com/gpu-mem" not in block.text]
    assert len(shown) >= 8
    for text in shown:
        assert text in manifests


def test_every_manifest_is_applied_on_the_page() -> None:
    applied = {
        ROOT / path
        for block in blocks(PAGE, "console")
        for command, _ in block.commands
        for path in re.findall(r"-f (docs/claims/\S+)", command)
    }
    assert applied == set(MANIFESTS)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_each_pod_names_a_template_that_is_there(path: object) -> None:
    found = [each for each in MANIFESTS if each == path]
    documents = [each for file in (*found, TEMPLATES) for each in yaml.safe_load_all(text_of(file))]
    names = {each["metadata"]["name"] for each in documents if each["kind"] == "ResourceClaimTemplate"}
    for pod in (each for each in documents if each["kind"] == "Pod"):
        assert {claim["resourceClaimTemplateName"] for claim in pod["spec"].get("resourceClaims", ())} <= names


def test_the_parameters_are_those_that_the_driver_reads() -> None:
    (template, _) = yaml.safe_load_all(text_of(DOCS / "claims" / "parameters.yaml"))
    (config,) = template["spec"]["spec"]["devices"]["config"]
    assert config["opaque"]["driver"] == dra.DRIVER
    claim = Claim("u", "default", "c", parameters=(Parameters(config["opaque"]["parameters"]),))
    read = share_config(claim, "gpu")
    assert (read.limits, read.frameworks) == ("mps", ("pytorch",))
    rows = re.findall(r"^\| `(\w+)` \|", sections(PAGE)["Parameters"], re.MULTILINE)
    assert rows == ["limits", "computePercent", "frameworks", "memoryLimit", dra.TAKE_WHOLE]


def test_the_attributes_are_those_of_the_contract() -> None:
    rows = re.findall(r"^\| (`.*?) \|", sections(PAGE)["Ask for it"], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    ours = {
        dra.TYPE, dra.AS_WHOLE, dra.UUID, dra.PRODUCT, dra.ARCHITECTURE, dra.DRIVER_VERSION, dra.INDEX, dra.NUMA_NODE,
        dra.NVLINK_GROUP, dra.LIMITS, dra.PARENT_UUID, dra.PROFILE, dra.GPU_INSTANCE, dra.PCI_BUS_ID.rpartition("/")[2],
        dra.KERNEL_DRIVER, dra.COMPUTE_UNITS,
    }  # fmt: skip
    assert named == ours
