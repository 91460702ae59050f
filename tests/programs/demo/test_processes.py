"""The fake processes of the demo, as the agent reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.node.cgroups import CgroupOwner
from gpu_device_plugin.kubelet import procfs
from gpu_device_plugin.programs.demo.pods import Processes, container_id
from gpu_device_plugin.testing.pods import Container, ContainerSpec, Pod, PodSpec

if TYPE_CHECKING:
    from pathlib import Path

GPU = "GPU-1"
WEB, OTHER = "0f6c7e2c-96d1-4c2e-8a0b-4d2ad3c5d7a1", "5a0e9a54-3a0f-4bd0-9f8e-2f9f3e2b7c11"


def pod(uid: str) -> Pod:
    spec = ContainerSpec("main")
    return Pod(PodSpec(f"pod-{uid[:2]}", (spec,)), uid, 1, containers=(Container(spec),))


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "proc")


def pid_of(processes: Processes, uid: str) -> int:
    ((event,),) = [processes.events({(uid, GPU): 1})]
    listed = event["processes"]
    assert isinstance(listed, list)
    pid = listed[0]["pid"]
    assert isinstance(pid, int)
    return pid


def test_an_agent_finds_the_pod_and_the_container_of_each_process(processes: Processes) -> None:
    """By the time at which the driver named them they have all begun, so that none is taken for a later process."""
    processes.keep({WEB: pod(WEB), OTHER: pod(OTHER)})
    pids = {uid: pid_of(processes, uid) for uid in (WEB, OTHER)}
    owners = procfs.Processes(processes.proc).owners(pids.values(), named_at=procfs.boot_time())
    assert owners == {pid: CgroupOwner(uid, container_id(pod(uid))) for uid, pid in pids.items()}


def test_an_agent_believes_that_it_sees_all_processes(processes: Processes) -> None:
    assert procfs.in_nodes_namespace(processes.proc) is True


def test_a_process_stays_until_its_pod_has_none(processes: Processes) -> None:
    processes.keep({WEB: pod(WEB), OTHER: pod(OTHER)})
    first = pid_of(processes, WEB)
    processes.keep({WEB: pod(WEB)})
    assert pid_of(processes, WEB) == first
    assert sorted(path.name for path in processes.proc.iterdir()) == [str(first), "self"]
    processes.keep({})
    assert procfs.Processes(processes.proc).owners([first]) == {}


def test_a_new_process_has_a_pid_of_its_own(processes: Processes) -> None:
    processes.keep({WEB: pod(WEB)})
    first = pid_of(processes, WEB)
    processes.keep({})
    processes.keep({OTHER: pod(OTHER)})
    assert pid_of(processes, OTHER) != first


def test_the_events_list_the_processes_gpu_by_gpu(processes: Processes) -> None:
    processes.keep({WEB: pod(WEB), OTHER: pod(OTHER)})
    web, other = pid_of(processes, WEB), pid_of(processes, OTHER)
    assert processes.events({(WEB, GPU): 512, (OTHER, GPU): 1447, (WEB, "GPU-2"): 3}) == [
        {"at": 0, "gpu": GPU, "processes": [{"pid": web, "used": "512MiB"}, {"pid": other, "used": "1447MiB"}]},
        {"at": 0, "gpu": "GPU-2", "processes": [{"pid": web, "used": "3MiB"}]},
    ]
