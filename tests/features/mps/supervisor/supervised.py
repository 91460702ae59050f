"""The MPS supervisor as a process of its own, over doubles of NVIDIA's programs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, WANTED_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.supervisor.nvidia import MpsProcesses
from gpu_device_plugin.features.mps.supervisor.places import Places
from tests.features.mps.supervisor.mps_double import MpsPrograms
from tests.patience import stretched, until

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000000"
STOPPED = MpsGpu(MpsStatus.STOPPED)


class Node:
    """The directory of MPS, the programs, and the supervisor once it is started."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "mps"
        self.programs = MpsPrograms(root / "bin", (A, B))
        self.log = root / "log"
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Start the supervisor."""
        environ = {
            "PATH": f"{self.programs.directory}",
            "GPUSHARE_MPS_DIR": str(self.directory),
            "GPUSHARE_SHM_SIZE": "0MiB",
            # Variables of MPS that the supervisor inherits do not reach its daemons.
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1M",
        }
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "gpu_device_plugin", "mps", "--log-format=json", *arguments],
                env=environ,
                stderr=log,
            )

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the supervisor with a signal; return its exit code."""
        assert self._supervisor is not None
        self._supervisor.send_signal(number)
        code = self._supervisor.wait(stretched(100))
        self._supervisor = None
        return code

    def want(self, **limits: int) -> None:
        """Say as the agent does which GPUs (``a``, ``b``) need a daemon, with which limit in MiB."""
        self.write(MPS_FILES.write_wanted({{"a": A, "b": B}[name]: mib for name, mib in limits.items()}))

    def write(self, text: str) -> None:
        self.directory.mkdir(exist_ok=True)
        new = self.directory / ".wanted.new"
        new.write_text(text, encoding="utf-8")
        new.replace(self.directory / WANTED_FILE)

    def state(self) -> tuple[Mapping[str, MpsGpu], float]:
        try:
            return MPS_FILES.read_state((self.directory / STATE_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}, 0.0

    def gpu(self, uuid: str = A) -> MpsGpu:
        """Return what the agent is told; what is not named is stopped."""
        return self.state()[0].get(uuid, STOPPED)

    def becomes(self, status: MpsStatus, why: str = "", *, uuid: str = A) -> MpsGpu:
        """Wait until a GPU has this status, with a reason that contains `why`."""

        def is_so() -> MpsGpu | None:
            assert self._supervisor is None or self._supervisor.poll() is None, self.log.read_text()
            gpu = self.gpu(uuid)
            return gpu if gpu.status is status and why in gpu.why else None

        found = until(is_so, f"{uuid} is {status}: {why}; {self.gpu(uuid)}")
        assert found is not None
        return found

    def rounds(self, count: int = 3) -> None:
        """Let the supervisor write its state as often as that."""
        for _ in range(count):
            self._beat()

    def _beat(self) -> None:
        before = self.state()[1]
        until(lambda: self.state()[1] != before, "the supervisor goes on")

    def daemons(self, uuid: str = A) -> tuple[int, ...]:
        """Return the PIDs of a GPU's daemons."""
        daemons, _ = MpsProcesses(Path("/proc")).of(Places(self.directory).of(uuid).pipe)
        return tuple(each.pid for each in daemons)

    def said(self, words: str) -> bool:
        """Return whether the log has these words."""
        return words in self.log.read_text(encoding="utf-8")

    def close(self) -> None:
        """End everything that is left."""
        if self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.wait()
        for pid in (*self.daemons(A), *self.daemons(B)):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def node(root: Path) -> Iterator[Node]:
    made = Node(root)
    try:
        yield made
    finally:
        made.close()
