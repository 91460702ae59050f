"""A directory with doubles of NVIDIA's programs for MPS, and what happens to the GPUs behind them."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.features.mps.supervisor import mps_programs

PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-smi")


class MpsPrograms:
    """The programs, for the variable PATH of a supervisor, and the machine that they pretend to be on."""

    def __init__(self, directory: Path, uuids: Iterable[str]) -> None:
        """Write the programs into `directory`; the GPUs are in the compute mode DEFAULT."""
        self.directory = directory
        directory.mkdir(exist_ok=True)
        source = Path(mps_programs.__file__).read_text(encoding="utf-8")
        for name in PROGRAMS:
            (directory / name).write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
            (directory / name).chmod(0o755)
        self._save("modes", dict.fromkeys(uuids, "DEFAULT"))

    def remove(self, program: str) -> None:
        """Take one of the programs away, as a container without the driver's libraries for it has none."""
        (self.directory / program).unlink()

    @property
    def modes(self) -> dict[str, str]:
        """The compute modes by UUID."""
        found: dict[str, str] = self._read("modes")
        return found

    def set_mode(self, uuid: str, mode: str) -> None:
        """Set a compute mode as an administrator would."""
        self._save("modes", {**self.modes, uuid: mode})

    def trouble(self, **troubles: str) -> None:
        """Let programs or commands fail: ``hang`` for any command, else the sentence of a failure.

        ``start`` is the start of the daemon, ``nvidia_smi`` the other program; ``one_user="yes"`` an older driver. What
        is not named works.
        """
        self._save("troubles", troubles)

    def serve(self, uuid: str, servers: dict[int, tuple[str, Iterable[int]]]) -> None:
        """Say which servers a daemon has: by PID the status (ACTIVE, FAULT) and the PIDs of the clients."""
        known = {} if not (self.directory / "servers.json").exists() else self._read("servers")
        told = {str(pid): {"status": status, "clients": list(clients)} for pid, (status, clients) in servers.items()}
        self._save("servers", {**known, uuid: told})

    def calls(self, name: str) -> list[list[str]]:
        """Return the arguments of every recorded ``start``, ``quit``, ``mode`` or command that set something."""
        try:
            lines = (self.directory / "calls.log").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [words for first, *words in map(json.loads, lines) if first == name]

    def _read(self, name: str) -> Any:
        return json.loads((self.directory / f"{name}.json").read_text(encoding="utf-8"))

    def _save(self, name: str, value: Any) -> None:
        new = self.directory / f".{name}.test"
        new.write_text(json.dumps(value), encoding="utf-8")
        new.replace(self.directory / f"{name}.json")
