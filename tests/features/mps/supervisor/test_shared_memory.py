"""The shared memory of MPS, mounted in a mount namespace of the test's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.supervisor.places import share

CODE = """
import sys
from pathlib import Path
from gpu_device_plugin.features.mps.supervisor.places import share
where = Path(sys.argv[1])
share(where, 8)
share(where, 8)  # as after a restart
(where / "here").write_text("x")
print(Path("/dev/shm/here").read_text(), oct(where.stat().st_mode & 0o7777))
print(sum(str(where) == line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()))
print([line for line in Path("/proc/self/mounts").read_text().splitlines() if line.split()[1] == str(where)][0])
"""


def can_unshare() -> bool:
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_clients_and_servers_have_one_tmpfs_of_a_bounded_size(tmp_path: Path) -> None:
    """Mounted once, however often the supervisor starts, and as our own /dev/shm too."""
    if not can_unshare():
        pytest.skip("no mount namespace can be made here")
    words = ["unshare", "--mount", sys.executable, "-c", CODE, str(tmp_path / "mps" / "shm")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shared, count, mounted = done.stdout.splitlines()
    assert (shared, count) == ("x 0o1777", "1")
    assert "tmpfs" in mounted
    assert {"nosuid", "nodev", "noexec", "size=8192k"} <= set(mounted.split()[3].split(","))
    assert not Path("/dev/shm/here").exists()


def test_no_other_program_gets_another_dev_shm(tmp_path: Path) -> None:
    """Where somebody tries the supervisor in a shell of a node, as root: here inside a namespace for the whole test."""
    if not can_unshare():
        pytest.skip("no mount namespace can be made here")
    code = "from pathlib import Path; from gpu_device_plugin.features.mps.supervisor.places import share; "
    where = tmp_path / "mps" / "shm"
    tried = f"{sys.executable} -c '{code}share(Path(\"{where}\"), 8)' && cat /proc/self/mountinfo"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", tried], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mounts = [line.split()[4] for line in done.stdout.splitlines() if "size=8192k" in line]
    assert mounts == [str(where)]


def test_without_a_size_nothing_is_mounted_and_everybody_may_write(tmp_path: Path) -> None:
    share(tmp_path / "mps" / "shm", 0)
    assert (tmp_path / "mps" / "shm").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "mps").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "mps" / "shm").stat().st_dev == tmp_path.stat().st_dev
