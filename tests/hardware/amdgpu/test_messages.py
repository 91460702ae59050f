"""The agent understands what the driver over the kernel's files tells, and draws the right conclusions."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from gpu_device_plugin.hardware import messages
from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.amdgpu.health import Uevents
from gpu_device_plugin.model.telemetry import GpuProcess, TelemetryGroup
from gpu_device_plugin.node.rules.gpu_health import GpuHealth, Probe, step
from tests.hardware.amdgpu.test_health import DEVICE, WEDGED, message
from tests.hardware.amdgpu.trees import b580, mi300x, write

PCI = "0000:0c:00.0"


def test_every_record_is_of_the_type_that_the_port_names(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2, partitions=2)
    b580(tmp_path)
    folder = f"/sys/bus/pci/devices/{PCI}"
    write(
        tmp_path,
        {
            "/sys/class/kfd/kfd/proc/70/vram_1001": 5 << 20,
            "/proc/self/ns/pid@": "pid:[4026531836]",
            f"{folder}/ras/umc_err_count": "ue: 2\nce: 40",
            f"{folder}/ras/gpu_vram_bad_pages": "0x1 : 0x1000 : P",
            f"{folder}/gpu_busy_percent": 7,
            f"{folder}/pp_dpm_pcie": "0: 32.0GT/s, x16 619Mhz *",
        },
    )
    drm = Drm(["amdgpu", "xe"], str(tmp_path))

    def read(part: str, content: object) -> messages.Message:
        return messages.read(json.dumps({part: content}).encode())

    answer = read("answer", {"inventory": drm.inventory(), "probes": drm.probe()}).answer
    assert answer is not None
    assert answer.inventory is not None
    assert [probe.uuid for probe in answer.probes] == [gpu.uuid for gpu in answer.inventory.gpus]
    assert [probe.remap_pending for probe in answer.probes] == [True, True, None, None, None]
    use = read("use", drm.use(utilisation=True)).use
    assert use is not None
    assert [reading.processes for reading in use] == [(), (GpuProcess(70, 5),), (), (), ()]
    condition = read("condition", drm.condition([*TelemetryGroup])).condition
    assert condition is not None
    assert [each.repair_pending for each in condition] == [True, True, None, None, None]


def test_a_gpu_that_asks_for_a_recovery_is_in_service_again_once_its_driver_was_bound_anew(tmp_path: Path) -> None:
    """The process that hears the event is replaced meanwhile, as happens while a GPU is unhealthy."""
    mi300x(tmp_path)
    health = GpuHealth()

    def opened() -> Drm:
        drm = Drm(["amdgpu"], str(tmp_path))
        drm.inventory()
        return drm

    def take(records: list[dict[str, object]]) -> None:
        nonlocal health
        for record in messages.read(json.dumps({"events": records}).encode()).events or ():
            assert isinstance(record, Probe)
            health = step(health, record)

    def after(drm: Drm, event: bytes) -> None:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, ours:
            drm._events = Uevents(theirs)
            ours.send(event)
            take(drm.wait_events(10))

    first = opened()
    after(first, WEDGED)
    take(first.probe())
    assert health.reasons == ("the driver asks for a reset of the GPU; it returns to service after that",)
    second = opened()
    for _ in range(5):
        take(second.probe())
    assert not health.healthy
    after(second, message("unbind", DEVICE))
    third = opened()
    take(third.probe())
    assert not health.healthy
    take(third.probe())
    assert health.healthy
