"""The port between this program and a GPU driver: its calls, their results and their errors.

The port is used inside the driver process, whose memory counts as the agent's. Its values cross a pipe as JSON, so they
are plain dictionaries whose keys are the fields of the types that each method names; a field that is left out is
unknown. Neither this module nor any other that the driver process loads for NVML imports dataclasses or typing at run
time, which would cost 2 MB; fake hardware is for tests and demos, and may.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # type checkers treat it like typing's, and the import would cost 0.7 MB
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeAlias

    Record: TypeAlias = dict[str, Any]
    """The fields of one of the model's types, by which `hardware/messages.py` checks them in the agent."""

    class Driver(Protocol):
        """An open driver. `wait_events` is called from one thread, and all other methods from another.

        Each raises HardwareError when the driver as a whole no longer answers. The end of the process closes it: a
        hanging call cannot keep the kernel from closing the device nodes.
        """

        def inventory(self) -> Record:
            """List the GPUs, as a `hardware.messages.Listing`. A GPU that cannot be listed is left out.

            Called once, before any other method: a new listing needs a reopened driver, because NVML lists the GPUs
            only when it is loaded.

            Raises:
                HardwareError: no GPU can be listed.
            """

        def probe(self) -> list[Record]:
            """Read every GPU of the inventory, as a `node.rules.gpu_health.Probe` with the `error` of a failure.

            A MIG instance that exists no more is left out: the record of its GPU names the instances that there are.
            """

        def use(self, *, utilisation: bool) -> list[Record]:
            """Read the processes on every GPU of the inventory, each as a `features.use.rules.process_use.GpuReading`.

            With `utilisation` also their use of the multiprocessors. MIG instances that exist no more are left out.
            """

        def condition(self, groups: list[str]) -> list[Record]:
            """Read the condition of every GPU, each as a `model.telemetry.GpuTelemetry`, of these groups only.

            `groups` are values of `model.telemetry.TelemetryGroup`. A value that this driver or GPU does not tell
            is left out, as is one beyond `MOST_OF_CONDITION`. GPUs that are lost and MIG instances are left out.
            """

        def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
            """Read the memory limits of cgroups, each given as (UUID of the GPU, path of the cgroup's directory).

            They are `hardware.messages.CgroupLimit`s.
            """

        def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
            """Set the memory limits of cgroups, each given as (UUID, path, hard MiB or None for no limit, soft MiB).

            A limit that is as wanted already is left alone, because the driver adds every soft limit to the cgroups
            above. Returned is what is read back, or the code with which setting failed, as
            `hardware.messages.CgroupLimit`s. Only a process with CAP_SYS_ADMIN may set limits.
            """

        def wait_events(self, timeout_s: float) -> list[Record]:
            """Wait at most `timeout_s` for an event.

            Returns:
                XIDs (`node.rules.gpu_health.Xid`), each followed by a reading of its GPU, and readings of GPUs
                with other events; empty if there was no event.
            """


AUTO, NVML = "auto", "nvml"
DRIVERS = (AUTO, NVML, "amdgpu", "xe")
"""The sources of real GPUs: every driver that the node has, NVIDIA's library, or one of the kernel's drivers."""
MOST_MIB = 1 << 26
"""The most memory of a GPU: 64 TiB. A much larger number would make more shares than fit into memory."""
MOST_INSTANCES = 16
"""The most MIG instances of a GPU: today none can have more than seven."""
MOST_PROCESSES = 4096
"""The most processes of a GPU that are told."""
PERCENT = 100
_COUNTER = (1 << 63) - 1
MOST_OF_CONDITION = {
    **dict.fromkeys(("temperature_c", "memory_temperature_c", "slowdown_c"), 300),
    "fan_percent": 300,
    **dict.fromkeys(("power_mw", "power_limit_mw", "power_limit_default_mw"), 100_000_000),
    **dict.fromkeys(("sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz", "memory_clock_max_mhz"), 100_000),
    "throttle": 0xFC,
    **dict.fromkeys(("sm_percent", "memory_percent", "encoder_percent", "decoder_percent"), PERCENT),
    **dict.fromkeys(("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"), 64),
    **dict.fromkeys(("energy_mj", "pcie_replays", "pcie_sent_bytes", "pcie_received_bytes"), _COUNTER),
    **dict.fromkeys(("nvlink_errors", "ecc_corrected", "ecc_uncorrected"), _COUNTER),
    **dict.fromkeys(("retired_pages", "remapped_rows"), _COUNTER),
}
"""The most that each number of a `model.telemetry.GpuTelemetry` can be; the least is 0."""

NO_LIBRARY = "no-library"
UNUSABLE_LIBRARY = "unusable-library"
NO_DRIVER = "no-driver"
VERSION_MISMATCH = "version-mismatch"
NO_PERMISSION = "no-permission"
CONTEXT_LOST = "context-lost"
HUNG = "hung"
CRASHED = "crashed"
OTHER = "other"

ADVICE = {
    NO_LIBRARY: "is the driver installed on this node? A container needs the runtime class nvidia, too",
    UNUSABLE_LIBRARY: "the file is damaged, or is not for this image; reinstall the driver, or use the image for "
    "this node's architecture",
    NO_DRIVER: "load the NVIDIA kernel module on this node; the agent finds the GPUs once it is loaded",
    VERSION_MISMATCH: "the driver was changed, and a container started before has the old library; restart it, "
    "and reboot the node if the old kernel module stays loaded",
    NO_PERMISSION: "run as root; a container needs the device nodes, too: runtime class nvidia, "
    "NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility",
    CONTEXT_LOST: "the container has lost its access to the GPU device nodes, as after systemctl daemon-reload; "
    "restart the container to restore it",
    HUNG: "if this persists, look for the driver in the kernel log (NVRM for NVIDIA's) and reset the GPU or reboot the "
    "node",
    CRASHED: "it is restarted",
    OTHER: "nvidia-smi on the node may show more",
}
"""Advice for people, by kind of error."""


class HardwareError(Exception):
    """The driver as a whole cannot be used. The message names the attempt, its result and the remedy."""

    def __init__(self, kind: str, what: str, advice: str = "") -> None:
        super().__init__(f"{what}; {advice or ADVICE[kind]}")
        self.kind = kind
        """One of the keys of `ADVICE`."""
        self.what = what
        self.advice = advice
        """What a person can do, where that of `ADVICE`, which is for NVML, would be wrong; empty: it is right."""


def cgroup_version(root: str = "") -> int | None:
    """Return the version of control groups on this node; where both are in use, NVIDIA's toolkit sees version 1.

    In a container, runtimes mount the layout of its node: the hierarchy of version 2, or a folder with those of
    version 1.
    """
    cgroups = f"{root}/sys/fs/cgroup"
    if os.path.exists(f"{cgroups}/cgroup.controllers"):  # noqa: PTH110 - pathlib costs 1 MB
        return 2
    return 1 if os.path.isdir(cgroups) else None  # noqa: PTH112 - as above
