"""Real programs instead of our doubles, which takes minutes: `make e2e` runs these tests, and `make test` does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.guide_world import EXAMPLES, documents
from tests.docs.pages import DOCS, blocks, text_of
from tests.e2e import archives, real_cluster
from tests.e2e.cluster import Cluster, containers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
OURS = {"agent", "extender"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("E2E"):
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="takes minutes and real programs: make e2e"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node that is ready, and knows the images that the manifests name."""
    if "E2E_NODE" in os.environ:
        yield existing()
    elif reason := real_cluster.missing():
        pytest.skip(f"{reason}; or KUBECONFIG and E2E_NODE name a cluster and a node of it: docs/testing.md")
    else:
        with real_cluster.RealCluster() as own:
            load_images(own)
            own.start_kubelet()
            made = Cluster(real_cluster.NODE, finding_our_plugin(own.environ), own)
            runtime_class = next(text for text in yaml_of(DOCS / "install.md") if "RuntimeClass" in text)
            made.kubectl("apply", "--filename=-", given=runtime_class)
            ready = ("wait", "--for=condition=Ready", f"node/{made.node}", "--timeout=10s")
            made.until(lambda: made.run("kubectl", *ready).returncode == 0, "the node is ready")
            yield made


def existing() -> Cluster:
    """Return the cluster of KUBECONFIG, if nothing of ours is installed there."""
    environ = os.environ
    there = Cluster(
        environ["E2E_NODE"],
        finding_our_plugin(environ),
        image=environ.get("E2E_IMAGE", ""),
        pod_image=environ.get("E2E_POD_IMAGE", "docker.io/library/busybox:1.37"),
    )
    if there.run("kubectl", "get", "namespace", "gpushare").returncode == 0:
        pytest.exit("something of ours is installed in this cluster: remove it first, docs/install.md")
    return there


def finding_our_plugin(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Let kubectl find the plugin that is installed beside the Python that runs the tests."""
    return {**environ, "PATH": os.pathsep.join([environ["PATH"], str(Path(sys.executable).parent)])}


def yaml_of(page: Path) -> list[str]:
    return [block.text for block in blocks(text_of(page), "yaml")]


def load_images(own: real_cluster.RealCluster) -> None:
    """Let the node know every image that the manifests name, made of what this machine has."""
    shipped = {each["name"]: each["image"] for path in DEPLOY.glob("*.yaml") for each in containers(documents(path))}
    shown = {each["image"] for path in EXAMPLES.glob("*.yaml") for each in containers(documents(path))}
    archive = own.home / "image.tar"
    archives.write_workload(archive, [real_cluster.PAUSE, *sorted(shown)])
    own.load(archive)
    archives.write_program(archive, [shipped["kube-scheduler"]], own.kube / "kube-scheduler")
    own.load(archive)
    archives.write_ours(archive, sorted({shipped[name] for name in OURS}))
    own.load(archive)
