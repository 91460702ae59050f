"""Stand in for nvidia-cuda-mps-control and nvidia-smi: `mps_double` copies this file under these names.

It is protocol 2 of MPS (drivers up to 610), as NVIDIA's documentation and its device plugin show it. Only the standard
library is used, because it runs outside of the package.
"""

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(sys.argv[0]).absolute().parent
ABSENT = "Cannot find MPS control daemon process"
SECOND = "An instance of this daemon is already running"


def _state(name: str) -> Any:
    """Return what the test has written in a file; a missing one is an empty mapping."""
    try:
        return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _save(name: str, value: Any) -> None:
    new = HERE / f".{name}.{os.getpid()}"
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(HERE / f"{name}.json")


def _record(*words: str) -> None:
    with (HERE / "calls.log").open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")


def _all_of(peer: socket.socket) -> bytes:
    return b"".join(iter(lambda: peer.recv(65536), b""))


def _die(sentence: str, code: int = 1) -> int:
    sys.stdout.write(f"{sentence}\n")
    return code


# --- nvidia-smi -------------------------------------------------------------------------------------------------------


def smi(words: list[str]) -> int:
    """Tell or set the compute mode of one GPU."""
    trouble = _state("troubles").get("nvidia_smi", "")
    if trouble == "hang":
        time.sleep(3600)
    if trouble:
        return _die(trouble, 9)
    modes = _state("modes")
    flag, uuid, *rest = words
    if flag != "-i" or uuid not in modes:
        return _die("No devices were found", 6)
    if rest == ["--query-gpu=compute_mode", "--format=csv,noheader"]:
        return _die(modes[uuid].title(), 0)
    if rest[:1] == ["-c"] and rest[1] in {"DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED"}:
        _record("mode", uuid, rest[1])
        _save("modes", {**modes, uuid: rest[1]})
        return _die(f"Set compute mode to {rest[1]} for GPU 00000000:01:00.0.\nAll done.", 0)
    return _die(f"Invalid combination of input arguments: {' '.join(words)}", 2)


# --- nvidia-cuda-mps-control ------------------------------------------------------------------------------------------


def control(words: list[str]) -> int:
    """Start the daemon, or give it the commands on the standard input."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    troubles = _state("troubles")
    if "-d" in words or "-f" in words:
        if troubles.get("one_user") and "-multiuser-server" in words:
            return _die("Unrecognized option: -multiuser-server")
        if trouble := troubles.get("start"):
            return _die(trouble)
        return _start(pipe, background="-d" in words)
    for line in sys.stdin.read().splitlines():
        name = line.partition(" ")[0]
        if troubles.get(name) == "hang":
            time.sleep(3600)
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(pipe / "control"))
                peer.sendall(line.encode())
                peer.shutdown(socket.SHUT_WR)
                answer = json.loads(_all_of(peer) or b"[1, null]")
        except OSError:
            return _die(ABSENT)
        if answer[1] is not None:
            sys.stdout.write(answer[1])
        if answer[0]:
            return int(answer[0])
    return 0


def _start(pipe: Path, *, background: bool) -> int:
    lock = os.open(pipe / "control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _die(SECOND)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(pipe / "control"))
    listener.listen()
    (pipe / "control").chmod(0o666)
    if background and os.fork():
        return 0
    log = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log"
    log.write_text(f"Starting control daemon using socket {pipe}/control\n", encoding="utf-8")
    (pipe / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}", encoding="utf-8")
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    _record("start", uuid, str(os.getpid()))
    daemon = Daemon(uuid)
    while not daemon.quits:
        peer, _ = listener.accept()
        with peer:
            line = _all_of(peer).decode()
            peer.sendall(json.dumps(daemon.answer(line)).encode())
    while daemon.servers() and any(each["clients"] for each in daemon.servers().values()):
        time.sleep(0.05)
    for name in ("control", "nvidia-cuda-mps-control.pid"):
        (pipe / name).unlink(missing_ok=True)
    _record("quit", uuid)
    return 0


class Daemon:
    """Answers commands. Servers and clients are what the test says there are."""

    def __init__(self, uuid: str) -> None:
        """Begin without a server."""
        self.uuid = uuid
        self.quits = False

    def servers(self) -> dict[str, Any]:
        """Return the servers by PID, each with its status and the PIDs of its clients."""
        found: dict[str, Any] = _state("servers").get(self.uuid, {})
        return found

    def answer(self, line: str) -> tuple[int, str]:  # noqa: PLR0911 - a table of commands
        """Return exit code and output of one command."""
        name, *words = line.split() or [""]
        servers = self.servers()
        if name in {"get_client_list", "get_server_status", "set_device_pinned_mem_limit"} and words[0] not in servers:
            return 1, f"Server with PID {words[0]} not found\n"
        match name, words:
            case "get_default_active_thread_percentage", []:
                return 0, "100.0\n"
            case "get_server_list", []:
                return 0, "".join(f"{pid}\n" for pid in servers)
            case "get_server_status", [pid]:
                return 0, f"{servers[pid]['status']}\n"
            case "get_client_list", [pid]:
                return 0, "".join(f"{client}\n" for client in servers[pid]["clients"])
            case ("set_default_device_pinned_mem_limit", [_, _]) | ("set_device_pinned_mem_limit", [_, _, _]):
                _record(name, *words)
                return 0, ""
            case "quit", _:
                self.quits = True
                return 0, ""
        return 1, f"Unknown command: {line}\n"


if __name__ == "__main__":
    program = smi if Path(sys.argv[0]).name == "nvidia-smi" else control
    sys.exit(program(sys.argv[1:]))
