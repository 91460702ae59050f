"""The port between this program and a GPU driver: what a driver is asked, and how it says why it cannot answer.

The port is used inside a child process that counts in the agent's memory. Its values cross a pipe as JSON, so they are
plain dictionaries whose keys are the fields of `core.model.gpus` and `core.node.health`; and nothing here or in the
modules that the child loads imports dataclasses, enum or typing at run time, which would cost 2 MB.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for typing's, without the 0.7 MB of importing it
if TYPE_CHECKING:
    from typing import Protocol, TypeAlias, TypedDict

    class GpuRecord(TypedDict):
        """The fields of `core.model.gpus.Gpu`."""

        uuid: str
        index: int
        product: str
        total_mib: int
        reserved_mib: int
        minor: int | None
        pci_bus_id: str | None
        numa_node: int | None
        mig: bool
        memory_limits: bool

    class LinkRecord(TypedDict):
        """The fields of `core.model.gpus.Link`."""

        a: str
        b: str
        closeness: int
        nvlinks: int

    class InventoryRecord(TypedDict):
        """The fields of `core.model.gpus.Inventory`, and what was noticed on the way."""

        gpus: list[GpuRecord]
        links: list[LinkRecord]
        driver_version: str | None
        cgroup: int | None
        left_out: int
        """GPUs that could not be listed."""
        troubles: list[str]
        """Those GPUs, and abilities that this driver lacks, as sentences."""

    class ProbeRecord(TypedDict, total=False):
        """The fields of `core.node.health.Probe`; those left out are unknown."""

        uuid: str
        error: str
        lost: bool
        ecc_uncorrected: int | None
        remap_pending: bool | None
        remap_failed: bool | None
        recovery_action: int | None
        processes: int | None
        used_mib: int
        mig: bool | None

    class XidRecord(TypedDict):
        """The fields of `core.node.health.Xid`."""

        uuid: str
        code: int

    EventRecord: TypeAlias = XidRecord | ProbeRecord

    class Driver(Protocol):
        """A driver, opened. `wait_events` is called from one thread and everything else from another.

        It is closed by the end of the process, which no hanging call can keep from closing the device nodes.
        """

        def inventory(self) -> InventoryRecord:
            """List the GPUs. A GPU that cannot be listed is left out, and `troubles` says so.

            Called once and first: to look again, open the driver again. NVML lists the GPUs only when it is loaded.

            Raises:
                HardwareError: no GPU can be listed.
            """

        def probe(self) -> list[ProbeRecord]:
            """Read every GPU of the inventory; a GPU that cannot be read has its `error` in its record.

            Raises:
                HardwareError: the driver as a whole does not answer any more.
            """

        def wait_events(self, timeout_s: float) -> list[EventRecord]:
            """Wait until something is reported, at most `timeout_s`.

            Returns:
                XIDs, each followed by a reading of its GPU, and readings of GPUs to which something else happened;
                nothing if nothing was reported.

            Raises:
                HardwareError: the driver as a whole does not answer any more.
            """


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
    NO_LIBRARY: "is the driver installed on this node, and does this container run with the runtime class nvidia?",
    UNUSABLE_LIBRARY: "the file is damaged, or is not for this image; install the driver anew, or use the image of "
    "this node's architecture",
    NO_DRIVER: "load the NVIDIA kernel module on this node; the GPUs are picked up when it is there",
    VERSION_MISMATCH: "the driver was changed and this container still has the old library; restart the container, and "
    "reboot the node if the old kernel module stays loaded",
    NO_PERMISSION: "give this container the device nodes: runtime class nvidia, NVIDIA_VISIBLE_DEVICES=all and "
    "NVIDIA_DRIVER_CAPABILITIES=utility",
    CONTEXT_LOST: "the container has lost its access to the GPU device nodes, as after systemctl daemon-reload; "
    "a new container gets it back",
    HUNG: "if it stays so, look for NVRM in the kernel log and reset the GPU or reboot the node",
    CRASHED: "it is started again",
    OTHER: "nvidia-smi on the node may tell more",
}
"""For each kind of error what a person can do."""


class HardwareError(Exception):
    """The driver as a whole cannot be used. Its text says what was tried, what came of it and what to do."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{what}; {ADVICE[kind]}")
        self.kind = kind
        """One of the keys of `ADVICE`."""
        self.what = what
