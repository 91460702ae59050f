"""What the supervisor needs of NVIDIA's MPS and driver: the port that `nvidia` implements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpu_device_plugin.programs.mps.places import Place


class MpsError(Exception):
    """Something could not be done; the message is a sentence without a full stop."""


class MpsDriver(Protocol):
    """Control daemons and compute modes of the GPUs of this machine. Every call ends within a deadline of its own."""

    async def start(self, place: Place) -> None:
        """Start the control daemon of a GPU; it outlives this program unless the container's runtime ends it.

        Raises:
            MpsError: it was not started.
        """

    async def command(self, place: Place, text: str) -> str:
        """Give the daemon of a GPU one command; return its answer.

        Raises:
            MpsError: the daemon refuses, is not there, or does not answer in time.
        """

    async def compute_mode(self, uuid: str) -> str:
        """Return the compute mode of a GPU as `nvidia-smi -c` takes it; empty: the driver does not name the GPU.

        Raises:
            MpsError: the driver does not tell it.
        """

    async def set_compute_mode(self, uuid: str, mode: str) -> None:
        """Set the compute mode of a GPU.

        Raises:
            MpsError: it was not set.
        """

    def alive(self, place: Place) -> bool:
        """Return whether there is a process of the GPU's daemon."""

    def kill(self, place: Place) -> None:
        """Send SIGKILL to the daemon of a GPU and to its server."""
