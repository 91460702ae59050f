"""Read from NVML how the GPUs of a node are connected."""

from __future__ import annotations

from gpu_device_plugin.hardware.nvml import nvml_calls

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpu_device_plugin.hardware.driver import Record

# nvmlGpuTopologyLevel_t -> core.model.gpus.Closeness
_CLOSENESS = {0: 6, 10: 5, 20: 4, 30: 3, 40: 2, 50: 1}
_NVLINK = 7
# Written as a number: pynvml's NVML_P2P_CAPS_INDEX_READ, its neighbour, is a tuple by mistake (13.615.71).
_P2P_NVLINK = 2
_P2P_OK = 0


def links(nvml: Any, gpus: list[Record], handles: dict[str, Any]) -> Iterator[Record]:
    """Yield the connection of each pair of GPUs, whose `handles` are by UUID."""
    ends = {gpu["uuid"]: _nvlink_ends(nvml, handles[gpu["uuid"]]) for gpu in gpus}
    for position, one in enumerate(gpus):
        for other in gpus[position + 1 :]:
            a, b = sorted((one, other), key=lambda gpu: gpu["uuid"])
            pair = handles[a["uuid"]], handles[b["uuid"]]
            direct = ends[a["uuid"]].count(b["pci_bus_id"] or "")
            # They may reach each other over NVLink, but not directly: all their links end in NVSwitches.
            switched = min(len(ends[a["uuid"]]), len(ends[b["uuid"]]))
            reached = direct or _safely(nvml, "nvmlDeviceGetP2PStatus", *pair, _P2P_NVLINK) == _P2P_OK
            nvlinks = direct or (switched if reached else 0)
            level = -1 if nvlinks else _safely(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair)
            closeness = _NVLINK if nvlinks else _CLOSENESS.get(level, 0)
            yield {"a": a["uuid"], "b": b["uuid"], "closeness": closeness, "nvlinks": nvlinks}


def _nvlink_ends(nvml: Any, handle: Any) -> list[str]:
    """Return the PCI address at the other end of each active NVLink, as NVML writes it."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = _safely(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break  # no such link, or no NVLink at all
        if active and (pci := _safely(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)):
            ends.append(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
    return ends


def _safely(nvml: Any, function: str, *arguments: Any) -> Any:
    """Like `nvml_calls.optional`; None also for a lost GPU, as its own reading reports it."""
    try:
        return nvml_calls.optional(nvml, function, *arguments)
    except nvml.NVMLError:
        return None
