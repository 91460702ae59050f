"""`resize` over a real kubectl and a real API server (KUBE_BIN): what it writes, reads and may not do."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, PodReader
from gpu_device_plugin.model.contract.keys import ALLOCATION, ELASTIC, MEMORY_GUARANTEE, MEMORY_HELD, RESIZE_BOUND
from gpu_device_plugin.model.contract.reservations import Answer, write_answer
from gpu_device_plugin.programs.inspect.inspect_program import main
from tests.builders import GPU_MEM, container, pod
from tests.kubernetes.conftest import RealServer
from tests.patience import REAL_S, eventually
from tests.programs.web.test_real import kubeconfig

pytestmark = pytest.mark.timeout(REAL_S * 3)


async def wished(client: Client, text: str) -> None:
    """Wait until the pod has this wish."""

    async def there() -> bool:
        raw = msgspec.Raw(await client.get(PODS, "web", namespace="default"))
        return PodReader((GPU_MEM,), ELASTIC.__contains__).read(raw)[0].annotations.get(MEMORY_GUARANTEE) == text

    await eventually(there, f"the wish {text}", quiet_s=REAL_S)


async def test_a_pod_is_resized_over_a_real_api_server(
    real: RealServer, real_kubectl: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:

    async def resize(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["resize", *words], kubectl=real_kubectl, environ={})
        said = capfd.readouterr()
        return code, said.out + said.err

    flag = f"--kubeconfig={kubeconfig(tmp_path, real.config)}"
    async with Client(real.config) as client:
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
        body: dict[str, Any] = pod("web", container(mem=4))
        body["spec"]["nodeName"] = "a"
        body["metadata"]["annotations"] = {ALLOCATION: '{"0": {"0": 4}}'}
        await client.create(PODS, body, namespace="default")
        assert "is not running yet (Pending)" in (await resize("web", "6", flag))[1]
        name = body["spec"]["containers"][0]["name"]
        running = {"containerStatuses": [{"name": name, "image": "", "imageID": "", "ready": True, "restartCount": 0,
                                          "state": {"running": {}}}], "phase": "Running"}  # fmt: skip
        await client.patch(PODS, "web", {"status": running}, namespace="default", subresource="status")
        asked = asyncio.create_task(resize("web", "6", "--limit=12", flag))
        await wished(client, "6")
        held = {MEMORY_HELD: write_answer(Answer({name: 6}, "6"))}
        await client.patch(PODS, "web", {"metadata": {"annotations": held}}, namespace="default")
        code, said = await asked
        assert (code, said.splitlines()[0]) == (0, f"default/web: Container '{name}' is guaranteed 6 shares.")
        refused = {MEMORY_HELD: write_answer(Answer({name: 6}, "8", f"namespace default has no label {RESIZE_BOUND}"))}
        asked = asyncio.create_task(resize("web", "8", flag))
        await wished(client, "8")
        await client.patch(PODS, "web", {"metadata": {"annotations": refused}}, namespace="default")
        code, said = await asked
        assert (code, said.strip().endswith(f"kubectl label namespace default --overwrite {RESIZE_BOUND}=4")) == (
            1,
            True,
        )
    flag = f"--kubeconfig={kubeconfig(tmp_path, real.stranger)}"
    assert "pod default/web cannot be read" in (await resize("web", "6", flag))[1]
