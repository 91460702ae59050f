"""A real API server and a real kubectl, for the programs that read clusters through them (KUBE_BIN)."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.kubernetes.conftest import RealServer, processes, programs
from tests.programs.inspect.proxied import close_all


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with processes(tmp_path_factory.mktemp("apiserver"), programs()) as server:
        yield server


@pytest.fixture
def real_kubectl() -> str:
    """The path of kubectl, from KUBE_BIN or the PATH; without one the test is skipped."""
    path = os.pathsep.join([os.environ.get("KUBE_BIN", ""), os.environ.get("PATH", "")])
    kubectl = shutil.which("kubectl", path=path)
    if kubectl is None:
        pytest.skip("kubectl is missing in KUBE_BIN and on the PATH")
    return kubectl


@pytest.fixture(autouse=True)
def _servers_end() -> Iterator[None]:
    """End the API servers that a test made in this process."""
    yield
    close_all()
