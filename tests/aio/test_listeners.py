"""Who listens on a port, and why we cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_device_plugin.aio.http import ListenError, serving_routes, who_listens


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_program_that_listens_is_named(host: str) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        port = taken.getsockname()[1]
        assert who_listens(port) == f"{Path('/proc/self/comm').read_text().strip()} (process {os.getpid()})"
    assert who_listens(port) == ""


def test_another_program_is_named_by_what_the_kernel_calls_it() -> None:
    code = (
        "import socket, sys\n"
        "open('/proc/self/comm', 'w').write('a\\x1b[31m')\n"
        "taken = socket.create_server(('127.0.0.1', 0))\n"
        "print(taken.getsockname()[1], flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert who_listens(int(other.stdout.readline())) == f"a?[31m (process {other.pid})"
        other.communicate()


def test_a_connection_is_no_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_connection(taken.getsockname()) as peer:
        assert who_listens(peer.getsockname()[1]) == ""


def test_what_may_not_be_seen_is_nobody(tmp_path: Path) -> None:
    """A process whose files are another user's, one that has ended, and a kernel without IPv6."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000:24E5 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100\n"
    )
    (tmp_path / "12").mkdir()
    (tmp_path / "13" / "fd").mkdir(parents=True)
    (tmp_path / "13" / "fd" / "0").write_text("no link")
    assert who_listens(9445, tmp_path) == ""
    (tmp_path / "13" / "fd" / "4").symlink_to("socket:[77]")
    (tmp_path / "13" / "comm").write_text("nginx\n")
    assert who_listens(9445, tmp_path) == "nginx (process 13)"


async def test_an_address_that_is_not_ours_is_said_to_be() -> None:
    with pytest.raises(ListenError) as caught:
        async with serving_routes("192.0.2.1", 9445, []):
            pass
    assert str(caught.value) == (
        "cannot listen on 192.0.2.1:9445: this machine has no such address; choose one of its own, or :9445 for all"
    )
