"""What each XID, an error number of NVIDIA's driver, means for the health of its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Verdict(StrEnum):
    """The consequence of an XID for the GPU on which it happened."""

    APPLICATION = "application"
    """A fault of the running program, or confined to it. The GPU is unaffected."""
    INFORMATION = "information"
    """No action is needed, or the driver names it as its recovery action."""
    LOST = "lost"
    """The driver cannot reach the GPU, which is healthy again once it answers."""
    RESET = "reset"
    """The GPU must be reset before it can be trusted."""
    REBOOT = "reboot"
    """More than a reset is needed: a reboot, or work on the machine."""


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One line of the XID table."""

    meaning: str
    verdict: Verdict


def _lines(verdict: Verdict, lines: Mapping[int, str]) -> dict[int, XidMeaning]:
    return {code: XidMeaning(meaning, verdict) for code, meaning in lines.items()}


# Verdicts follow the column "Resolution Bucket (Immediate Action)" of NVIDIA's XID catalogue for Ampere and newer,
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: RESTART_APP -> APPLICATION, IGNORE ->
# INFORMATION, RESET_GPU -> RESET, RESTART_BM, RESTART_VM and CHECK_MECHANICALS -> REBOOT. The other cells:
#   45       WORKFLOW_XID_45: a program was torn down; if the GPU was at fault, another XID says so.
#   48       WORKFLOW_XID_48: "a GPU reset or node reboot is needed to clear this error".
#   74       WORKFLOW_NVLINK_ERR: the same words.
#   78       UPDATE_SWFW: a virtual GPU did not start.
#   79       RESTART_BM, but the problem ends when the GPU answers again, which only a reboot brings about: LOST.
#   142      no immediate action is given; it belongs to the video encoder like its neighbours.
#   144-150  the action depends on a subcode that NVML does not pass on; the drivers that know these codes report the
#            action themselves (XID 154 and the recovery action), and so does XID 154.
#   159      CHECK_UVM; 162-166, 168, 170: power smoothing, confidential computing, memory set aside: no action given.
#   167,169  no action given; their neighbours 158 and 62 want a reset.
#   171,172  details to a 48.
XIDS: Mapping[int, XidMeaning] = MappingProxyType(
    _lines(
        Verdict.APPLICATION,
        {
            8: "a program made the GPU stop processing",
            11: "invalid or corrupted push buffer",
            13: "graphics engine exception, such as an access out of bounds",
            25: "invalid or illegal push buffer",
            31: "GPU memory page fault",
            32: "invalid or corrupted push buffer, seen by the DMA controller",
            45: "work removed because its program ended",
            60: "video processor exception",
            69: "graphics engine class error",
            78: "a virtual GPU did not start",
            80: "corrupted data sent to the GPU",
            94: "memory error confined to one program; reset the GPU when convenient",
            142: "video encoder error",
        }
        | dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error")
        | dict.fromkeys((68, 83, 84, 88, 89, 96, 97, 98), "video decoder error")
        | dict.fromkeys((82, *range(99, 106)), "JPEG decoder error")
        | dict.fromkeys((86, 139), "optical flow accelerator error"),
    )
    | _lines(
        Verdict.INFORMATION,
        {
            14: "fake error injected by a program",
            37: "driver firmware error",
            38: "driver firmware watchdog",
            43: "a program made a mistake and was stopped",
            44: "graphics engine fault during a context switch",
            63: "a memory row or page was marked for replacement",
            66: "illegal access by the driver",
            67: "illegal access by the driver",
            92: "many correctable memory errors",
            93: "the board's information ROM has reached its write limit",
            106: "test message",
            107: "test message",
            108: "NVLink remote translation error",
            121: "corrected error on the link to the CPU",
            137: "a program made an illegal access over NVLink",
            141: "CUDA fast path error",
            152: "deep learning accelerator memory error",
            153: "deep learning accelerator timeout",
            154: "the driver changed the recovery action it asks for",
            157: "a damaged resource could not be retired",
            159: "error on the link to the CPU",
            160: "a memory channel was retired",
            161: "a memory channel could not be retired",
            168: "memory was set aside because of errors while ECC is off",
            171: "details of an uncorrectable memory error",
            172: "details of an uncorrectable memory error",
        }
        | dict.fromkeys(range(144, 151), "NVLink error")
        | dict.fromkeys(range(162, 166), "power smoothing")
        | dict.fromkeys((166, 170), "confidential computing"),
    )
    | _lines(Verdict.LOST, {79: "GPU has fallen off the bus"})
    | _lines(
        Verdict.RESET,
        {
            46: "GPU stopped processing",
            48: "uncorrectable (double bit) memory error",
            62: "internal micro-controller halted",
            64: "a memory row or page could not be replaced",
            74: "NVLink error",
            95: "memory error that reached several programs",
            109: "context switch timeout",
            110: "security fault",
            119: "GPU firmware (GSP) does not answer",
            120: "GPU firmware (GSP) error",
            136: "NVLink training failed",
            140: "unrecovered memory error",
            143: "GPU initialisation error",
            155: "NVLink was shut down by software",
            156: "a damaged resource was retired",
            158: "GPU fatal timeout",
            167: "PCIe fatal timeout",
            169: "internal micro-controller halted",
        },
    )
    | _lines(
        Verdict.REBOOT,
        {54: "auxiliary power is not connected to the board", 151: "key rotation error"},
    )
)

# Fail closed: codes missing from the catalogue come from newer drivers, which report a recovery action, so that a
# harmless one costs a few readings; ignoring a grave one would cost every pod placed on the GPU.
UNKNOWN = XidMeaning("unknown to this version", Verdict.RESET)
