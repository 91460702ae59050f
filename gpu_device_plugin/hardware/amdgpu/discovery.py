"""Find the GPUs of amdgpu and xe: their boards, partitions, identities, sizes and models."""

from __future__ import annotations

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.amdgpu import dmem, pci_devices, topology
from gpu_device_plugin.hardware.amdgpu.kernel_files import MIB, number
from gpu_device_plugin.hardware.amdgpu.pci_devices import AMDGPU, DEVICES, DRIVERS_FOLDER, XE
from gpu_device_plugin.hardware.driver import HardwareError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.amdgpu.topology import Node
    from gpu_device_plugin.hardware.driver import Record

MOST_GPUS = 128
"""As in model.gpus, whose module imports dataclasses."""
_MOST_NUMA_NODES = 1 << 12
_CAPACITY = f"{dmem.ROOT}/dmem.capacity"
_MODELS = "/usr/share/libdrm/amdgpu.ids"
"""Models by device and revision, as libdrm brings them."""
_MAKERS = {AMDGPU: "AMD", XE: "Intel"}
_LONGEST_NAME = 64
_ALL_ONES = (1 << 64) - 1
_DIVIDED = ("DPX", "TPX", "QPX", "CPX")
"""The modes of a board that is divided into partitions. Others are SPX, and none where it cannot be divided."""
_APU_METRICS = (b"\2", b"\3")
_FIRST_GPU, _FORMER_APUS, _MI300A = 0x2000, 0x98, 0x74A0


class Board:
    """A graphics board: one PCI device, with what the kernel tells of it as a whole."""

    def __init__(self, pci: str, driver: str, regions: Mapping[str, int]) -> None:
        """Take its PCI address, such as ``0000:c1:00.0``, its driver, ``amdgpu`` or ``xe``, and its regions."""
        self.pci = pci
        self.driver = driver
        self.folder = f"{DEVICES}/{pci}"
        """The folder of its attributes, for `KernelFiles`."""
        self.regions = regions
        """The bytes of its regions of the cgroup controller dmem, by names such as ``drm/0000:c1:00.0/vram``; none: the
        kernel has none, or this process does not see the node's cgroups."""
        self.mode = ""
        """How it was divided into partitions when it was listed, such as ``SPX``; empty: it cannot be divided."""
        self.nodes: list[str] | None = None
        """The names of its device nodes then; None: it is not listed."""


class ListedGpu:
    """A GPU that is listed: all of a board, or a partition of one."""

    def __init__(self, board: Board, record: Record, gpu_id: int | None, *, partition: bool, hive: int = 0) -> None:
        """Take its board and how it is listed."""
        self.board = board
        self.record = record
        """Its `model.gpus.Gpu`."""
        self.gpu_id = gpu_id
        """Its number in KFD's files; None: KFD does not know it, or may not be read."""
        self.partition = partition
        """It is one of several partitions of its board, which share memory limits, temperatures and errors."""
        self.hive = hive
        """The group of GPUs that xGMI connects; 0: it has no xGMI."""

    @property
    def uuid(self) -> str:
        """Its UUID, see `model.gpus.Gpu`."""
        uuid: str = self.record["uuid"]
        return uuid


class Found:
    """What one look at the kernel's files found."""

    def __init__(self, gpus: list[ListedGpu], unread: list[str], troubles: list[str]) -> None:
        """Take the GPUs, a sentence on each that could not be read, and one on each that is left out for good."""
        self.gpus = gpus
        self.unread = unread
        self.troubles = troubles


class _LeftOutError(Exception):
    """Why the GPUs of a board are not listed: now, or `for_good`."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


def find(files: KernelFiles, drivers: list[str]) -> Found:
    """Look for the GPUs of these drivers.

    KFD's topology may be unreadable, see `topology.read`; whole GPUs are listed without it.

    Raises:
        HardwareError: none of the drivers is loaded.
    """
    boards = _boards(files, drivers)
    nodes, forbidden = topology.read(files) if AMDGPU in drivers else ([], 0)
    by_board = topology.by_board(nodes, [board.pci for board in boards if board.driver == AMDGPU])
    gpus: list[ListedGpu] = []
    unread, troubles = list[str](), list[str]()
    for board in boards:
        try:
            listed, unlisted = _listed(files, board, by_board.get(board.pci, {}), forbidden)
            gpus += listed
            unread += unlisted
        except _LeftOutError as why:
            (troubles if why.for_good else unread).append(f"the GPU at {board.pci} is left out, {why}")
    troubles += _tell_apart(gpus)
    if forbidden:
        sentence = (
            f"this container's device cgroup forbids {forbidden} of KFD's nodes: run it privileged, to see partitions, "
            "compute units and the processes of ROCm"
        )
        (unread if any(gpu.partition for gpu in gpus) else troubles).append(sentence)
    if len(gpus) > MOST_GPUS:
        troubles.append(f"{len(gpus) - MOST_GPUS} GPUs are left out, a node has {MOST_GPUS} at most")
    gpus = gpus[:MOST_GPUS]
    for index, gpu in enumerate(gpus):
        gpu.record["index"] = index
    return Found(gpus, unread, troubles)


def regions(files: KernelFiles) -> Mapping[str, Mapping[str, int]]:
    """Return the bytes of the regions of the cgroup controller dmem, by PCI address and name.

    Only the root of the node's cgroups has the file. A region can be listed twice.
    """
    by_board: dict[str, dict[str, int]] = {}
    for line in files.text(_CAPACITY).splitlines():
        name, _, size = line.strip().rpartition(" ")
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == "drm" and parts[2].startswith("vram") and (amount := number(size)):
            by_board.setdefault(parts[1], {})[name] = amount
    return by_board


def _boards(files: KernelFiles, drivers: list[str]) -> list[Board]:
    if not any(files.names(f"{DRIVERS_FOLDER}/{driver}") for driver in drivers):
        which = " or ".join(drivers)
        raise HardwareError(
            driver.NO_DRIVER,
            f"the kernel driver {which} is not loaded ({DRIVERS_FOLDER}/{drivers[0]} is missing)",
            f"load it on this node with modprobe {drivers[0]}; the agent finds the GPUs once it is loaded",
        )
    known = regions(files)
    boards = [Board(pci, driver, known.get(pci, {})) for driver in drivers for pci in pci_devices.bound(files, driver)]
    return sorted(boards, key=lambda board: (len(board.pci), board.pci))


def _listed(
    files: KernelFiles, board: Board, nodes: Mapping[int, Node], forbidden: int
) -> tuple[list[ListedGpu], list[str]]:
    """Return the GPUs of a board, and a sentence on each that cannot be listed.

    KFD has these nodes of it, by the numbers of the partitions.

    Raises:
        _LeftOutError: there are none.
    """
    product = _product(files, board)
    if _is_apu(files, board):
        raise _LeftOutError(f"it is part of an APU ({product}) and uses the memory of the machine", for_good=True)
    identity = _identity(files, board)
    board.nodes = files.names(f"{board.folder}/drm")
    mode = board.mode = pci_devices.mode(files, board.pci)
    numa = files.number(f"{board.folder}/numa_node")
    board_hive = files.number(f"{board.folder}/xgmi_hive_info/xgmi_hive_id") or 0
    divided = len(nodes) > 1 or mode in _DIVIDED
    if divided and (not nodes or mode == "SPX"):
        advice = "; run this container privileged" if forbidden else ""
        raise _LeftOutError(f"KFD's topology does not show its partitions (mode {mode}){advice}")
    whole_mib = _whole_mib(files, board, nodes)
    gpus, unread = [], []
    parts = [
        (number, node, f"/sys/class/drm/{node.render}/device", _partition_mib(node, nodes, whole_mib))
        for number, node in sorted(nodes.items())
    ]
    for partition, node, folder, mib in parts if divided else [(0, nodes.get(0), board.folder, whole_mib)]:
        renders, cards = (_device_nodes(files, folder, kind) for kind in ("renderD", "card"))
        if not renders or not 0 < mib <= driver.MOST_MIB:
            which = f"partition {partition} of the GPU" if divided else "the GPU"
            lack = f"the kernel says that it has {mib} MiB of memory" if renders else "it has no render node"
            unread.append(f"{which} at {board.pci} is left out, {lack}")
            continue
        control = ["kfd"] if node is not None or (forbidden and board.driver == AMDGPU) else []
        record = {
            "uuid": f"{identity}-p{partition}" if divided else identity,
            "product": product,
            "total_mib": mib,
            "reserved_mib": 0,
            "device_paths": [f"/dev/{name}" for name in (*control, *renders, *cards)],
            "pci_bus_id": board.pci,
            "numa_node": numa if numa is not None and 0 <= numa < _MOST_NUMA_NODES else None,
            "mig": False,
            "memory_limits": bool(board.regions) and not divided,
            "architecture": node and node.architecture,
            "instance": None,
            "driver": board.driver,
            "compute_units": node and node.compute_units,
            "unified": False,
        }
        hive = (node and node.hive) or board_hive
        gpus.append(ListedGpu(board, record, node.gpu_id if node else None, partition=divided, hive=hive))
    return gpus, unread


def _device_nodes(files: KernelFiles, place: str, kind: str) -> list[str]:
    """Return the device node of a kind, below /dev, of the device in this folder; none if it has none."""
    names = (name for name in files.names(f"{place}/drm") if name.startswith(kind))
    return [f"dri/{name}" for name in names if name.removeprefix(kind).isdecimal()][:1]


def _whole_mib(files: KernelFiles, board: Board, nodes: Mapping[int, Node]) -> int:
    """Return the memory of a board: by amdgpu, else by KFD, else by dmem, the only one to tell it for xe; 0: unknown.

    Raises:
        _LeftOutError: only dmem can tell it, and does not.
    """
    size = files.number(f"{board.folder}/mem_info_vram_total") or sum(node.memory for node in nodes.values())
    if not size and board.driver != AMDGPU and not board.regions:
        lack = "it has no memory of its own: the cgroup controller dmem has no region of it"
        if not files.text(_CAPACITY):
            lack = (
                "only the cgroup controller dmem tells its memory: it needs Linux 6.14 with CONFIG_CGROUP_DMEM, and "
                "the node's /sys/fs/cgroup in this container"
            )
        raise _LeftOutError(lack, for_good=True)
    return (size or sum(board.regions.values())) // MIB


def _partition_mib(node: Node, nodes: Mapping[int, Node], whole_mib: int) -> int:
    """Return the memory of a partition: what KFD says, unless all of them together had more than their board."""
    excess = sum(each.memory for each in nodes.values()) // MIB > whole_mib > 0
    return whole_mib // len(nodes) if excess else node.memory // MIB


def _is_apu(files: KernelFiles, board: Board) -> bool:
    """Return whether a GPU is part of a processor, whose memory it uses: what it calls VRAM is a part set aside.

    Neither sizes nor a missing unique_id tell: consumer GPUs have none either, and the part can be of any size. Either
    of two facts does. Its PCI device ID: AMD's GPUs have those from 0x2000 on; below are its processors, as are 0x98xx
    (of 2013 to 2016) and MI300A (by libdrm's list of models). And the format of `gpu_metrics`, of which the kernel's
    header has 2 and 3 for APUs; MI300A has 1.
    """
    if board.driver != AMDGPU:
        return False
    device = files.number(f"{board.folder}/device")
    if device is not None and (device < _FIRST_GPU or device >> 8 == _FORMER_APUS or device == _MI300A):
        return True
    try:
        return files.content(f"{board.folder}/gpu_metrics")[2:3] in _APU_METRICS
    except OSError:
        return False


def _identity(files: KernelFiles, board: Board) -> str:
    """Return the UUID of a board: by its unique ID as ROCm writes it, or by its PCI address where it has none.

    Raises:
        _LeftOutError: the ID cannot be read now, as in a reset; another identity would make another GPU of it.
    """
    try:
        text = files.content(f"{board.folder}/unique_id").decode("ascii", "replace").strip("\0 \n")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise _LeftOutError(f"its unique_id cannot be read, as during a reset: {error.strerror}") from error
    unique_id = number(f"0x{text}")
    if unique_id == _ALL_ONES:
        raise _LeftOutError("it does not answer: its unique_id is all ones")
    return f"GPU-{unique_id:016X}" if unique_id else f"PCI-{board.pci}"


def _tell_apart(gpus: list[ListedGpu]) -> list[str]:
    """Name GPUs of boards with one unique ID by their addresses, and return a sentence on each such board."""
    boards: dict[str, set[str]] = {}
    for gpu in gpus:
        boards.setdefault(gpu.uuid, set()).add(gpu.board.pci)
    alike = {pci for pcis in boards.values() if len(pcis) > 1 for pci in pcis}
    for gpu in gpus:
        if gpu.board.pci in alike:
            _, dash, partition = gpu.uuid.partition("-p")
            gpu.record["uuid"] = f"PCI-{gpu.board.pci}{dash}{partition}"
    return [f"the GPU at {pci} has the unique_id of another one, so its UUID is its address" for pci in sorted(alike)]


def _product(files: KernelFiles, board: Board) -> str:
    """Return the model: by the board, else by libdrm's list of models, else the PCI IDs."""
    vendor, device, revision = (
        files.number(f"{board.folder}/{name}") or 0 for name in ("vendor", "device", "revision")
    )
    name = files.text(f"{board.folder}/product_name")
    if not name and board.driver == AMDGPU:
        listed = (line.split(",", 2) for line in files.text(_MODELS).splitlines())
        known = [f"{device:04X}", f"{revision:02X}"]
        name = next((line[2] for line in listed if [part.strip().upper() for part in line[:2]] == known), "")
    name = "".join(char for char in name if char.isprintable()).strip()[:_LONGEST_NAME]
    maker = _MAKERS[board.driver]
    return name if name.startswith(maker) else f"{maker} {name or f'GPU {vendor:04x}:{device:04x}'}"
