"""The pod of a process is read from /proc, which changes while it is read."""

import os
import shutil
from pathlib import Path

import pytest

from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.kubelet.procfs import ProcessOwners, boot_id, boot_time, in_nodes_namespace, running_pods

UID = "0f5d3a31-9a3b-4c6e-8c5b-6a7b8c9d0e1f"
ID = "5ad9" * 16
POD = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
OURS = CgroupOwner(UID, ID)
TICKS = os.sysconf("SC_CLK_TCK")


def process(
    proc: Path, pid: int | str, cgroup: str | None = POD, *, parent: int = 1, start: int = 500, name: str = "python"
) -> None:
    """Write what the kernel shows of a process; a second one of the same PID takes the place of the first."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(
        f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 9 9 184467440737095\n"
    )
    if cgroup is not None:
        (folder / "cgroup").write_text(cgroup)


def test_a_process_in_a_pod_has_an_owner_and_one_of_the_host_has_none(tmp_path: Path) -> None:
    process(tmp_path, 11)
    process(tmp_path, 12, "0::/system.slice/sshd.service\n")
    assert ProcessOwners(tmp_path).owners([11, 12]) == {11: OURS, 12: None}


@pytest.mark.parametrize("name", ["a) S 1 (b", "tr ee", ")", "x\ny) R 9"])
def test_a_programs_name_may_contain_anything(tmp_path: Path, name: str) -> None:
    process(tmp_path, 11, name=name)
    assert ProcessOwners(tmp_path).owners([11]) == {11: OURS}


def test_processes_that_are_gone_are_left_out(tmp_path: Path) -> None:
    process(tmp_path, 11)
    process(tmp_path, 12, cgroup=None)  # it ended after its stat was read
    assert ProcessOwners(tmp_path).owners([10, 11, 12]) == {11: OURS}


def test_a_process_is_asked_for_its_cgroup_once(tmp_path: Path) -> None:
    process(tmp_path, 11)
    processes = ProcessOwners(tmp_path)
    processes.owners([11])
    (tmp_path / "11" / "cgroup").unlink()
    assert processes.owners([11]) == {11: OURS}


def test_another_process_with_the_same_pid_is_another_one(tmp_path: Path) -> None:
    process(tmp_path, 11)
    processes = ProcessOwners(tmp_path)
    processes.owners([11])
    process(tmp_path, 11, "0::/\n", start=900)
    assert processes.owners([11]) == {11: None}
    (tmp_path / "11" / "stat").unlink()
    assert processes.owners([11]) == {}


def test_a_process_that_started_after_the_pid_was_named_is_another_one(tmp_path: Path) -> None:
    process(tmp_path, 11, start=500)
    processes = ProcessOwners(tmp_path)
    assert processes.owners([11], named_at=500 / TICKS) == {11: OURS}
    assert processes.owners([11], named_at=490 / TICKS) == {}


def test_no_more_than_so_many_are_remembered_and_those_are_asked_for_last(tmp_path: Path) -> None:
    for pid in (11, 12, 13):
        process(tmp_path, pid)
    processes = ProcessOwners(tmp_path, most=2)
    processes.owners([11, 12])
    processes.owners([11])
    assert processes.owners([13]) == {13: OURS}
    for pid in (11, 12, 13):
        (tmp_path / str(pid) / "cgroup").unlink()
    assert processes.owners([11, 12, 13]) == {11: OURS, 13: OURS}


@pytest.mark.parametrize(
    "stat", ["", "11 (a) S", "11 (a) S x 11 11 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5 9", "\0" * 4000]
)
def test_a_damaged_file_names_nobody(tmp_path: Path, stat: str) -> None:
    process(tmp_path, 11)
    (tmp_path / "11" / "stat").write_text(stat)
    assert ProcessOwners(tmp_path).owners([11]) == {}


def test_a_file_that_is_too_long_or_cannot_be_read_names_nobody(tmp_path: Path) -> None:
    """The second is as that of a process which ends between the opening and the reading of its file."""
    process(tmp_path, 11, "0::/" + "a" * (1 << 16))
    process(tmp_path, 12, cgroup=None)
    (tmp_path / "12" / "cgroup").mkdir()
    assert ProcessOwners(tmp_path).owners([11, 12]) == {}


def test_this_process_is_found_in_the_kernels_proc() -> None:
    """It started before now, and no pod's name is expected of a test's process: that it is there suffices."""
    assert ProcessOwners().owners([os.getpid()], named_at=boot_time()).keys() == {os.getpid()}


# --- Whose PIDs they are ----------------------------------------------------------------------------------------------

OWN = "0::/\n"
HOST = "0::/../../../init.scope\n"


def namespace(proc: Path, inode: int) -> None:
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(f"pid:[{inode}]")


@pytest.mark.parametrize(
    ("inode", "processes", "ours"),
    [
        (4026531836, {}, True),  # the machine's first namespace
        (4026532511, {"self": (OWN, 0), 1: (OWN, 0)}, False),  # the first process of its container
        (None, {"self": (OWN, 7), 7: (OWN, 1), 1: (OWN, 0)}, False),  # started by an init in its container
        # The containers of the pod share a namespace: PID 1 is its pause container, and we were started from outside.
        (None, {"self": (OWN, 0), 1: (f"0::/../{ID}\n", 0)}, False),
        # The node is a container, as with kind: PID 1 is the node's systemd, our parent is containerd's shim.
        (4026532511, {"self": (OWN, 340), 340: ("0::/../containerd.service\n", 1), 1: (HOST, 0)}, True),
        (None, {}, None),
        (None, {"self": (OWN, 7), 1: (HOST, 0)}, None),  # the parent is not there
        (None, {"self": (OWN, 7), 7: (OWN, 8), 8: (OWN, 7), 1: (HOST, 0)}, None),  # a ring of parents
    ],
)
def test_whether_we_see_the_nodes_processes_is_told_by_our_ancestors(
    tmp_path: Path, inode: int | None, processes: dict[int | str, tuple[str, int]], *, ours: bool | None
) -> None:
    if inode is not None:
        namespace(tmp_path, inode)
    for pid, (cgroup, parent) in processes.items():
        process(tmp_path, pid, cgroup, parent=parent)
    assert in_nodes_namespace(tmp_path) is ours


# --- The pods of the node ---------------------------------------------------------------------------------------------


def test_a_pod_runs_as_long_as_a_process_of_it_does(tmp_path: Path) -> None:
    namespace(tmp_path, 4026531836)
    process(tmp_path, 11)
    process(tmp_path, 12, "0::/system.slice/kubelet.service\n")
    process(tmp_path, 13, cgroup=None)
    assert running_pods(tmp_path) == frozenset({OURS.pod_uid})
    shutil.rmtree(tmp_path / "11")
    assert running_pods(tmp_path) == frozenset()


def test_who_does_not_see_the_nodes_processes_does_not_know_which_pods_run(tmp_path: Path) -> None:
    process(tmp_path, 11)
    assert running_pods(tmp_path) is None


def test_every_boot_has_an_id(tmp_path: Path) -> None:
    assert boot_id(tmp_path) == ""
    file = tmp_path / "sys" / "kernel" / "random" / "boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("7d1c\n")
    assert boot_id(tmp_path) == "7d1c"
    assert len(boot_id()) == 36
