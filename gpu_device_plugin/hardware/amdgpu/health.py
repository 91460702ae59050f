"""Read whether the GPUs of the kernel's drivers work, and hear the kernel's events about them."""

from __future__ import annotations

import _socket
import errno
import time

from gpu_device_plugin.hardware.amdgpu import dmem, pci_devices
from gpu_device_plugin.hardware.amdgpu.pci_devices import AMDGPU, DRIVERS_FOLDER

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.hardware.amdgpu.discovery import Board, ListedGpu
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record

NO_EVENTS = (
    "the kernel's events cannot be heard here, so failures of GPUs are found only by reading every GPU in turn, "
    "and a recovery that a driver asks for is not seen"
)
# The recoveries that node.rules.gpu_health explains, by the kernel's names. All but "none" mean that the GPU does
# nothing until then; "unknown" leaves the method to us.
_RECOVERIES = {"none": 0, "rebind": 1, "bus-reset": 6, "vendor-specific": -1}
_RESET = 1
_ASLEEP = {"suspended", "suspending", "resuming"}
_BLOCK = "_err_count"
# Both answer EPERM during a reset. Not every chip has the first, which needs no question to the hardware.
_TELLS_RESET = "unique_id", "gpu_busy_percent"
_KOBJECT_UEVENT, _KERNELS_GROUP = 15, 1  # of netlink; group 2 is udev's
_MOST_BYTES = 1 << 13
"""Bytes of an event: the kernel's own buffer has 2,048 for the variables."""
PAUSE_S = 1.0
"""How long to wait after events were lost: no busy loop if that goes on."""


def is_bound(files: KernelFiles, board: Board) -> bool:
    """Return whether its driver still has a board."""
    return bool(files.link(f"{DRIVERS_FOLDER}/{board.driver}/{board.pci}"))


def suspended(files: KernelFiles, board: Board) -> bool:
    """Return whether the kernel has put a board to sleep: to read more would wake it, or answers EPERM."""
    return files.text(f"{board.folder}/power/runtime_status") in _ASLEEP


def errors(files: KernelFiles, board: Board) -> Record:
    """Return the errors that the blocks of a board with RAS have counted, as fields of `model.telemetry.GpuTelemetry`.

    None: it has no such block, or they cannot be read now. Not ``xgmi_error``: a read would clear it.
    """
    folder = f"{board.folder}/ras"
    blocks = {name: files.pairs(f"{folder}/{name}") for name in files.names(folder) if name.endswith(_BLOCK)}
    if not all("ue:" in counts for counts in blocks.values()):
        blocks = {}  # during a reset a sentence is in place of the counts, which are not 0
    links = blocks.pop(f"xgmi_wafl{_BLOCK}", None)
    return {
        "nvlink_errors": None if links is None else links["ue:"] + links.get("ce:", 0),
        "ecc_corrected": sum(counts.get("ce:", 0) for counts in blocks.values()) if blocks else None,
        "ecc_uncorrected": sum(counts["ue:"] for counts in blocks.values()) if blocks else None,
    }


def bad_pages(files: KernelFiles, board: Board) -> Mapping[str, int] | None:
    """Return how many pages of memory are retired (``R``), wait for that (``P``), or could not be (``F``)."""
    try:
        content = files.content(f"{board.folder}/ras/gpu_vram_bad_pages")
    except OSError:
        return None
    states = [line.rpartition(b":")[2].strip() for line in content.splitlines()]
    return {state: states.count(state.encode()) for state in "RPF"}


def used_bytes(files: KernelFiles, gpu: ListedGpu) -> int | None:
    """Return the memory in use on a GPU, with the driver's own. None: not told, as of a partition: its board is."""
    if gpu.partition:
        return None
    if gpu.board.driver == AMDGPU:
        return files.number(f"{gpu.board.folder}/mem_info_vram_used")
    if not files.text(f"{dmem.ROOT}/dmem.capacity"):  # only the root has it, and only its counts are those of all
        return None
    current = files.pairs(f"{dmem.ROOT}/dmem.current")
    sizes = [current[region] for region in gpu.board.regions if region in current]
    return sum(sizes) if sizes else None


class Health:
    """Reads GPUs, and remembers for which boards the kernel asked for a recovery.

    No file tells that afterwards. So a process that did not hear the event says that it does not know (None), and the
    agent believes the earlier one until the board is lost, as it is while its driver is bound anew.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._actions: dict[str, int] = {}
        """The recovery that is asked for, by PCI address."""

    def read(self, gpus: Sequence[ListedGpu]) -> list[Record]:
        """Return a reading of each GPU, without its processes and use. Partitions have the errors of their board."""
        boards = {gpu.board.pci: gpu.board for gpu in gpus}
        readings = {pci: self._board(board) for pci, board in boards.items()}
        return [{"uuid": gpu.uuid, **readings[gpu.board.pci]} for gpu in gpus]

    def take(self, board: Board, event: Mapping[str, str]) -> list[Record]:
        """Record an event of a board, and return what it says of it beyond a new reading, without the UUIDs."""
        if wedged := event.get("WEDGED"):
            mildest = wedged.split(",")[0]
            self._actions[board.pci] = _RECOVERIES.get(mildest, _RESET)
        elif event["ACTION"] in {"unbind", "remove"}:
            self._actions.pop(board.pci, None)
            return [_lost("was taken from it")]  # even if it is back already
        return []

    def _board(self, board: Board) -> Record:
        if (lost := self._taken(board)) is not None:
            return lost
        asked = {"recovery_action": self._actions.get(board.pci)}
        if suspended(self._files, board):
            return asked
        if (failure := self._failure(board)) is not None:
            return failure
        pages = bad_pages(self._files, board)
        return {
            **asked,
            "ecc_uncorrected": errors(self._files, board)["ecc_uncorrected"],
            "remap_pending": None if pages is None else pages["P"] > 0,
            "remap_failed": None if pages is None else pages["F"] > 0,
        }

    def _taken(self, board: Board) -> Record | None:
        """Return what is read of a board that its driver has no more, or has bound anew; None: it is as it was."""
        if not is_bound(self._files, board):
            return _lost("has it no more")
        nodes = self._files.names(f"{board.folder}/drm")
        if board.nodes is None or nodes == board.nodes:
            return None
        # Bound anew, two boards may have changed their nodes: a pod would get the other one.
        why = "has other device nodes for it now" if nodes else "has no device node for it"
        return {**_lost(why), "mig_changed": bool(nodes)}

    def _failure(self, board: Board) -> Record | None:
        """Return what is read of a board that does not answer, or is another GPU by now; None: it works."""
        files, folder = self._files, board.folder
        try:
            silent = files.content(f"{folder}/config", 2) == b"\xff\xff"
        except OSError:
            silent = False
        if silent:
            return _lost("cannot reach it: the bus answers with ones only")
        problem = next((n for name in _TELLS_RESET if (n := files.problem(f"{folder}/{name}")) != errno.ENOENT), 0)
        if problem == errno.ENODEV:
            return _lost("has it no more")
        if problem == errno.EPERM:
            return {"error": "its kernel driver resets it", "lost": False}
        mode = pci_devices.mode(files, board.pci)
        if mode and board.mode and mode != board.mode:
            # What was listed is another GPU now, with a part of the memory; `mig_changed` has the GPUs listed again.
            return {**_lost(f"divides it by mode {mode}, and did by {board.mode}"), "mig_changed": True}
        return None


def _lost(why: str) -> Record:
    return {"error": f"its kernel driver {why}", "lost": True}


def parse(message: bytes) -> Mapping[str, str]:
    """Return the variables of a kernel's event; none if the message is not of that form."""
    first, *rest = message.split(b"\0")
    pairs = (part.decode("utf-8", "replace").partition("=") for part in rest)
    variables = {key: value for key, separator, value in pairs if separator}
    return variables if first == f"{variables.get('ACTION')}@{variables.get('DEVPATH')}".encode() else {}


def concerned(event: Mapping[str, str], boards: Mapping[str, Board]) -> Board | None:
    """Return the board, of these by PCI address, that an event concerns in a way that is worth a reading."""
    if "SYNTH_UUID" in event:  # a program wrote it, such as udevadm trigger
        return None
    *above, name = event.get("DEVPATH", "").split("/")
    if "WEDGED" in event:  # of the DRM device below the board: .../0000:03:00.0/drm/card0
        return next((boards[each] for each in reversed(above) if each in boards), None)
    return boards.get(name) if event.get("ACTION") in {"add", "remove", "bind", "unbind"} else None


class Uevents:
    """The kernel's events about devices. It sends them to every network namespace of the node's own user namespace."""

    def __init__(self, socket: _socket.socket) -> None:
        """Listen to `socket`, see `listening`."""
        self._socket = socket

    def wait(self, timeout_s: float, boards: Mapping[str, Board]) -> tuple[Board, Mapping[str, str]] | None:
        """Wait for an event of one of the boards, by PCI address; None if there was none.

        Raises:
            OSError: events were lost.
        """
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                message, _, _, sender = self._socket.recvmsg(_MOST_BYTES)
            except TimeoutError:
                return None
            if sender and sender[0] != 0:  # another process sent it
                continue
            event = parse(message)
            if (board := concerned(event, boards)) is not None:
                return board, event
        return None


def listening() -> Uevents | None:
    """Return the kernel's events from now on; None: they cannot be heard here."""
    # The module socket would import enum for its constants.
    try:
        socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
        socket.bind((0, _KERNELS_GROUP))
    except OSError:
        return None
    return Uevents(socket)
