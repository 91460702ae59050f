"""A claim with a limit beyond its amount borrows, is told so by a file, and is asked to return what others hold."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpu_device_plugin.features.elastic.contract import MemoryFile
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.kubelet._proto import dra_v1_pb2
from gpu_device_plugin.testing.pod_specs import Pod, PodSpec
from tests.features.claims.dra_harness import Claims, claims
from tests.memory import read_memory_file
from tests.scheduler_double.dra_scheduler import exactly

T4 = {"model": "T4"}
"""14 shares of 1 GiB, and 15,360 MiB."""
CONTAINER = "5ad9" * 16
TWELVE = {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig", "memoryLimit": "12Gi"}


@asynccontextmanager
async def borrowers(folder: Path, policy: str = "report") -> AsyncIterator[Claims]:
    """Run an agent that reads the use often and writes files."""
    async with claims([T4], usage_interval="50ms", memory_dir=str(folder), borrowers=policy) as here:
        here.node.show_processes()
        await here.start()
        yield here


def edits(here: Claims, claim: str) -> Any:
    """Return what the CDI file of a claim has."""
    uid = here.api.get("resourceclaims", claim)["metadata"]["uid"]
    (path,) = here.kubelet.cdi.glob(f"*{uid}*")
    return json.loads(path.read_text(encoding="utf-8"))["devices"][0]["containerEdits"]


def file_of(here: Claims, claim: str) -> Path:
    (mount,) = edits(here, claim)["mounts"]
    assert (mount["containerPath"], mount["options"][0]) == ("/run/gpushare", "ro")
    return Path(mount["hostPath"]) / "memory.json"


def use(here: Claims, pod: str, gib: int) -> None:
    """Let the container of a pod use so much."""
    uid = here.api.get("pods", pod)["metadata"]["uid"]
    status = {"name": "main", "containerID": f"containerd://{CONTAINER}", "state": {"running": {}}}
    here.api.patch("pods", pod, {"status": {"containerStatuses": [status], "phase": "Running"}}, subresource="status")
    here.node.process(11, Pod(PodSpec(pod, ()), uid, 0), CONTAINER)
    here.node.hardware({**T4, "processes": [{"pid": 11, "used": f"{gib}GiB"}], "used": f"{gib}GiB"})


async def test_a_claim_with_a_limit_borrows_and_returns(tmp_path: Path) -> None:
    async with borrowers(tmp_path / "memory", "evict") as here:
        started = await here.run_claim("small", exactly(memory="4Gi"), parameters=TWELVE)
        assert started.error == ""
        envs = started.environ
        assert (envs["GPUSHARE_MEMORY_LIMIT_MIB"], envs["GPUSHARE_MEMORY_GUARANTEED_MIB"]) == ("12288", "4096")
        told = file_of(here, "small")
        assert read_memory_file(told.read_text(encoding="utf-8")) == MemoryFile(4096, 12288, 12288)
        await here.node.until(lambda: bool(here.status("small")))
        assert here.status("small")[0]["data"]["memoryLimitMiB"] == 12288

        use(here, "small", 12)
        watch = here.node.agent.features.of(Use) if here.node.agent is not None else None
        assert watch is not None
        await here.node.until(lambda: any(each.used_mib == 12288 for each in watch.reading.value.containers))
        here.wish("large", exactly(memory="8Gi"))
        assert here.allocate("large") == ""
        refused = await here.kubelet.start_pod("large")
        assert "this is retried" in refused.error
        await here.node.until(lambda: read_memory_file(told.read_text(encoding="utf-8")).return_mib > 0)
        asked = read_memory_file(told.read_text(encoding="utf-8"))
        assert (asked.limit_mib, asked.most_mib) == (4096, 12288)
        await here.node.until(lambda: bool(here.events("GPUMemoryAsked")))

        use(here, "small", 4)
        await here.node.until(lambda: not read_memory_file(told.read_text(encoding="utf-8")).return_mib)
        assert (await here.kubelet.start_pod("large")).error == ""


async def test_the_directory_is_made_again_where_a_boot_removed_it(tmp_path: Path) -> None:
    async with borrowers(tmp_path / "memory") as here:
        await here.run_claim("small", exactly(memory="4Gi"), parameters=TWELVE)
        told = file_of(here, "small")
        told.unlink()
        told.parent.rmdir()
        uid = here.api.get("resourceclaims", "small")["metadata"]["uid"]
        # A kubelet that has started again asks for every claim before it starts containers.
        await here.dra.claims.prepare(dra_v1_pb2.Claim(uid=uid, namespace="default", name="small"))
        assert told.exists()


async def test_where_nobody_may_borrow_the_limit_is_the_amount(tmp_path: Path) -> None:
    async with borrowers(tmp_path / "memory", "off") as here:
        started = await here.run_claim("small", exactly(memory="4Gi"), parameters=TWELVE)
        assert started.error == ""
        assert started.environ["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"
        assert "mounts" not in edits(here, "small")


async def test_a_whole_gpu_refuses_a_limit(tmp_path: Path) -> None:
    async with borrowers(tmp_path / "memory") as here:
        started = await here.run_claim("whole", exactly("whole-gpu"), parameters=TWELVE)
        assert "has the parameter memoryLimit, which works only for shares of a single GPU" in started.error
