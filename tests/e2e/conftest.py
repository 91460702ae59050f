"""Real programs instead of our doubles, which takes minutes: `make e2e` runs these tests, and `make test` does not."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.starting import ASK, finding_our_plugin, started

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("E2E"):
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=ASK))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with a failure what the cluster looked like at that moment."""
    report = yield
    if report.failed and isinstance(there := item.funcargs.get("cluster"), Cluster):
        report.sections.append(("The cluster", there.state()))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node that is ready, and knows the images that the manifests name."""
    if "E2E_NODE" in os.environ:
        yield existing()
    else:
        with started() as own:
            yield own


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
