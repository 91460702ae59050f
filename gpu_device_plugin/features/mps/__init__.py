"""Limits memory by NVIDIA's MPS: which GPU gets a daemon, what its clients get, and who runs it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gpu_device_plugin.settings.common import LogSettings
from gpu_device_plugin.settings.forms import DIRECTORY, OPTIONAL_ADDRESS, Address, one_of, size
from gpu_device_plugin.settings.knobs import Form, Settings, knob

_MPS_DIR = "/run/gpushare/mps"
_MEANING = (
    "Directory of the files and sockets between agent, MPS supervisor and containers; the same path on the node and in "
    "containers."
)
_LONGEST = 60


def _short(text: str) -> Path:
    path = DIRECTORY.read(text)
    if len(text.encode()) > _LONGEST:
        raise ValueError(
            f"{text!r} is too long: the daemons' sockets are below it, and the path of a socket has at most 107 "
            f"bytes; choose a directory of at most {_LONGEST}"
        )
    return path


class MpsSettings(Settings):
    """Where the agent meets the supervisor, and what MPS limits."""

    mps_dir: Path = knob(_MPS_DIR, DIRECTORY, _MEANING, in_profile=False)
    mps_compute: str = knob(
        "off",
        one_of("off", "by-share"),
        "Limit on multiprocessors under MPS: off (none), or by-share (in proportion to the GPU's memory).",
        live=True,
    )


class MpsSupervisorSettings(LogSettings):
    """The settings of an MPS supervisor."""

    COMMAND: ClassVar[str] = "mps"

    mps_dir: Path = knob(_MPS_DIR, Form("DIR", _short), _MEANING)
    shm_size_mib: int = knob(
        "1GiB",
        size(0),
        "Size of the /dev/shm that all MPS clients of the node share, a tmpfs in shm of mps_dir. 0MiB: nothing is "
        "mounted; what is there already serves.",
    )
    http: Address | None = knob(
        "",
        OPTIONAL_ADDRESS,
        "Address of /metrics, /healthz and /readyz, such as :9446. Empty or off: none.",
    )
