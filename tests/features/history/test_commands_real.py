"""`top --history` and `incident` over a real kubectl, through the proxy of a real API server (KUBE_BIN)."""

import asyncio
import socket
from pathlib import Path

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, ObjectKind
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.programs.web.figures import AgentFigures
from tests.histories import summary
from tests.kubernetes.conftest import RealServer
from tests.patience import REAL_S, eventually
from tests.programs.web.harness import served_by
from tests.programs.web.test_real import kubeconfig
from tests.remembering import Answers, agent_pod, remembered

pytestmark = pytest.mark.timeout(REAL_S * 3)


def own_address() -> str:
    """Return an address of this machine that is no loopback, which the proxy refuses; skip the test without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but that of the loopback")
        return str(asking.getsockname()[0])


async def test_agents_are_read_through_a_real_api_server(
    real: RealServer, real_kubectl: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flag, address, agent = f"--kubeconfig={kubeconfig(tmp_path, real.config)}", own_address(), Answers(remembered())

    async def inspect(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*words, flag], kubectl=real_kubectl, environ={})
        said = capfd.readouterr()
        return code, said.out + said.err

    async with Client(real.config) as client, agent.serving(address) as port:
        await client.create(ObjectKind("namespaces"), {"metadata": {"name": "gpushare"}})
        for name in ("t4-1", "bare-1"):
            labels = {"gpushare": "true"}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            await client.create(NODES, body)
        body = agent_pod("t4-1", port)
        body.pop("status", None)
        await client.create(PODS, body, namespace="gpushare")
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        await client.patch(PODS, "agent-t4-1", {"status": status}, namespace="gpushare", subresource="status")

        code, told = await inspect("top", "--history")
        assert (code, "t4-1, read at 2026-11-23T09:29:45Z" in told, "13.5 of 15 GiB" in told) == (0, True, True)
        assert "warning: not read: bare-1: the agent of the node cannot be asked" in told
        assert "history/" in agent.asked, "the slash at the end passes the proxy"
        assert "ml/train-0/main" in (await inspect("top", "--history", "-n", "ml"))[1]
        code, told = await inspect("top", "--history", "-n", "nobody", "t4-1")
        assert (code, told.startswith("No node remembers a pod of nobody")) == (0, True), told
        assert summary().name in (await inspect("incident", "t4-1"))[1]
        assert "GPU 0  pid 4711  default/web-0/main" in (await inspect("incident", summary().name))[1]

        async with served_by(client, figures=AgentFigures(client)) as page:
            await eventually(lambda: page.server.page_state.complete)
            status_code, found = await page.get("api/v1/history/t4-1?gpu=0")
            assert (status_code, [each["pod"] for each in found["containers"]]) == (200, ["web-0", "train-0"])
            assert (await page.get("api/v1/history/t4-1?gpu=7"))[0] == 404
