"""The kubelet double's directories: its start removes old plugin sockets, and its own sockets outlive its process."""

from __future__ import annotations

import contextlib
import shutil
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import grpc.aio

    from gpu_device_plugin.testing.versions import Version


def wipe(device_plugin_dir: Path, checkpoint: Path, version: Version) -> None:
    """Remove the files that a kubelet removes at its start."""
    for entry in device_plugin_dir.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a stopping plugin removes its own sockets meanwhile
            mode = entry.stat(follow_symlinks=False).st_mode
            unwanted = not stat.S_ISDIR(mode) if version.wipes_every_file else stat.S_ISSOCK(mode)
            if unwanted and entry != checkpoint:
                entry.unlink()


async def serve(server: grpc.aio.Server, socket: Path, listening: Path) -> None:
    """Start a server at `socket`, which stays behind as a dead file after the server stops, like a kubelet's.

    grpcio unlinks its listening path when it stops. So the server listens in the folder `listening`, and `socket` is a
    hard link to that socket.
    """
    shutil.rmtree(hidden := listening / socket.parent.name, ignore_errors=True)
    hidden.mkdir()
    server.add_insecure_port(f"unix:{hidden / 's'}")
    await server.start()
    _link(hidden / "s", socket)


def _link(socket: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    name.hardlink_to(socket)
