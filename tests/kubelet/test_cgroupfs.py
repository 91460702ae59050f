"""A container's cgroup is found in the trees that kubelets and container runtimes make."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner, owner_of
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree

UID = "8dbc6bd1-07c9-4f21-a4f4-3b4fd6e0c6a1"
SYSTEMD = UID.replace("-", "_")
HASH = "0123456789abcdef" * 2
"""The UID of a static pod, as the kubelet has it."""
ID = "ab" * 32
OTHER = "cd" * 32
OWNER = CgroupOwner(UID, ID)
SCOPE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice"

SHAPES = {
    "cgroupfs, guaranteed": f"kubepods/pod{UID}/{ID}",
    "cgroupfs, burstable": f"kubepods/burstable/pod{UID}/{ID}",
    "below a cgroupRoot": f"kubelet-1/kubepods/besteffort/pod{UID}/{ID}",
    "below a cgroupRoot of its own name": f"kubepods/kubepods/pod{UID}/{ID}",
    "systemd, containerd": f"{SCOPE}/cri-containerd-{ID}.scope",
    "systemd, guaranteed": f"kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    "systemd, docker": f"{SCOPE}/docker-{ID}.scope",
    "systemd, CRI-O with runc": f"{SCOPE}/crio-{ID}.scope",
    "systemd, CRI-O with crun": f"{SCOPE}/crio-{ID}.scope/container",
    "kind": f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
    f"kubelet-kubepods-besteffort-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    "a host that sees into kind": f"docker.slice/docker-{OTHER}.scope/kubelet.slice/kubelet-kubepods.slice/"
    f"kubelet-kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    "cgroup v1": f"memory/kubepods/burstable/pod{UID}/{ID}",
    "k3s below its unit": f"system.slice/k3s.service/kubepods/burstable/pod{UID}/{ID}",
}


def made(root: Path, *paths: str) -> Path:
    """Make directories, as the kernel does with files in them."""
    for path in paths:
        (root / path).mkdir(parents=True, exist_ok=True)
    for each in (root, *(directory for directory in root.rglob("*") if directory.is_dir())):
        (each / "cgroup.procs").touch()
    return root


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_cgroup_of_a_container_is_found_in_every_shape(tmp_path: Path, shape: str) -> None:
    pod = next(str(each) for each in Path(shape).parents if owner_of(each.name) is not None)
    around = (f"{pod}/{OTHER}", "system.slice/kubelet.service", "init.scope", f"{pod}/{OTHER[:-1]}", "dev-hugepages")
    root = made(tmp_path, shape, *around)
    assert CgroupTree(root).leaves({OWNER}) == {OWNER: str(root / shape)}


STRAYS = {
    "below containerd's unit": f"system.slice/containerd.service/{Path(SCOPE).name}:cri-containerd:{ID}",
    "at the root": f"{Path(SCOPE).name}:cri-containerd:{ID}",
    "cgroup v1": f"memory/system.slice/k3s.service/{Path(SCOPE).name}:cri-containerd:{ID}",
    "kind": f"docker.slice/docker-{OTHER}.scope/system.slice/containerd.service/{Path(SCOPE).name}:cri-containerd:{ID}",
    "docker": f"{Path(SCOPE).name}/{ID}",
}


@pytest.mark.parametrize("shape", STRAYS.values(), ids=STRAYS)
def test_a_container_outside_of_the_kubelets_tree_is_found(tmp_path: Path, shape: str) -> None:
    """The kubelet's driver is systemd, and the runtime's cgroupfs: the kubelet's cgroup of the pod stays empty."""
    above = {"cgroup v1": "memory/", "kind": f"docker.slice/docker-{OTHER}.scope/"}
    prefix = next((above[name] for name, each in STRAYS.items() if each == shape and name in above), "")
    root = made(tmp_path, shape, prefix + SCOPE, "system.slice/kubelet.service", "init.scope")
    tree = CgroupTree(root)
    assert tree.leaves({OWNER}) == {OWNER: str(root / shape)}
    assert tree.leaves({OWNER, CgroupOwner(UID, OTHER)}) == {OWNER: str(root / shape)}


def test_a_container_that_ended_is_sought_in_its_pod_only(tmp_path: Path, opened: Opened) -> None:
    root = made(tmp_path, f"{SCOPE}/cri-containerd-{OTHER}.scope", "system.slice/containerd.service")
    opened.clear()
    assert CgroupTree(root).leaves({OWNER}) == {}
    assert not any("system.slice" in str(path) for path in opened)


def test_the_monitor_of_a_container_is_not_the_container(tmp_path: Path) -> None:
    root = made(tmp_path, f"{SCOPE}/crio-conmon-{ID}.scope")
    assert CgroupTree(root).leaves({OWNER}) == {}
    made(tmp_path, f"{SCOPE}/crio-{ID}.scope")
    assert (CgroupTree(root).leaves({OWNER}) or {})[OWNER].endswith(f"/crio-{ID}.scope")


def test_what_a_container_makes_below_its_cgroup_is_not_its_leaf(tmp_path: Path) -> None:
    """A container may have a writable cgroup, and imitate there whatever it likes."""
    leaf = f"kubepods/pod{UID}/{OTHER}"
    root = made(tmp_path, f"{leaf}/container", f"{leaf}/{ID}", f"{leaf}/kubepods/pod{UID}/{ID}")
    tree, owner = CgroupTree(root), CgroupOwner(UID, OTHER)
    assert tree.leaves({OWNER, owner}) == {owner: str(root / leaf)}


@pytest.mark.parametrize("paths", [(), ("init.scope", "user.slice/kubepods.service"), (f"pod{UID}/{ID}",)])
def test_a_pod_that_sees_only_its_own_cgroups_sees_no_tree(tmp_path: Path, paths: tuple[str, ...]) -> None:
    assert CgroupTree(made(tmp_path, *paths)).leaves({OWNER}) is None


def test_a_missing_mount_is_no_error(tmp_path: Path) -> None:
    assert CgroupTree(tmp_path / "none").leaves({OWNER}) is None
    assert CgroupTree(tmp_path / "none").leaves(()) == {}


def test_links_are_not_followed(tmp_path: Path) -> None:
    """With cgroup v1 controllers have second names, which are links."""
    root = made(tmp_path / "cgroup", f"cpu,cpuacct/kubepods/pod{UID}/{ID}")
    (root / "cpu").symlink_to("cpu,cpuacct")
    (root / "kubepods").symlink_to(tmp_path)
    (found,) = (CgroupTree(root).leaves({OWNER}) or {}).values()
    assert found == str(root / f"cpu,cpuacct/kubepods/pod{UID}/{ID}")


def test_both_trees_of_a_node_whose_driver_was_changed_are_searched(tmp_path: Path) -> None:
    other = CgroupOwner(HASH, OTHER)
    root = made(tmp_path, f"{SCOPE}/cri-containerd-{ID}.scope", f"kubepods/pod{HASH}/{OTHER}")
    assert set(CgroupTree(root).leaves({OWNER, other}) or ()) == {OWNER, other}


def test_a_restarted_container_has_another_cgroup(tmp_path: Path) -> None:
    root = made(tmp_path, f"kubepods/pod{UID}/{ID}")
    tree, again = CgroupTree(root), CgroupOwner(UID, OTHER)
    assert tree.leaves({OWNER})
    (root / f"kubepods/pod{UID}/{ID}/cgroup.procs").unlink()
    (root / f"kubepods/pod{UID}/{ID}").rmdir()
    assert tree.leaves({OWNER}) == {}
    made(root, f"kubepods/pod{UID}/{OTHER}")
    assert tree.leaves({again}) == {again: str(root / f"kubepods/pod{UID}/{OTHER}")}


class Opened(list[str]):
    """The directories that were opened."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    opened, scandir = Opened(), os.scandir

    def recorded(path: str) -> object:
        opened.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", recorded)
    return opened


def test_a_found_cgroup_is_not_searched_for_again(tmp_path: Path, opened: Opened) -> None:
    tree = CgroupTree(made(tmp_path, f"kubepods/pod{UID}/{ID}"))
    first = tree.leaves({OWNER})
    opened.clear()
    assert tree.leaves({OWNER}) == first
    assert tree.leaves(()) == {}
    assert opened == []


def test_no_other_pods_cgroup_is_opened(tmp_path: Path, opened: Opened) -> None:
    others = [f"kubepods/burstable/pod{index:032x}/{ID}" for index in range(50)]
    root = made(tmp_path, *others, f"kubepods/besteffort/pod{UID}/{ID}")
    opened.clear()
    assert CgroupTree(root).leaves({OWNER})
    kubepods = root / "kubepods"
    wanted = (root, kubepods, kubepods / "burstable", kubepods / "besteffort", kubepods / f"besteffort/pod{UID}")
    assert sorted(opened) == sorted(map(str, wanted))


def test_a_search_for_the_tree_ends(tmp_path: Path, opened: Opened) -> None:
    root = made(tmp_path, *(f"{a}/{b}/c/d/e/f" for a in range(40) for b in range(40)))
    opened.clear()
    assert CgroupTree(root).leaves({OWNER}) is None
    assert len(opened) <= 1_000


def test_a_directory_that_vanishes_or_is_forbidden_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, scandir = made(tmp_path, f"kubepods/pod{UID}/{ID}", "kubepods/burstable", "kubepods/besteffort"), os.scandir
    errors = {"burstable": FileNotFoundError(), "besteffort": PermissionError()}

    def failing(path: str) -> object:
        if error := errors.get(Path(path).name):
            raise error
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert CgroupTree(root).leaves({OWNER})


NAMES = st.sampled_from(
    ("kubepods", "kubepods.slice", "burstable", f"pod{UID}", f"pod{HASH}", ID, OTHER, f"crio-{ID}.scope", "container")
)


@given(paths=st.lists(st.lists(NAMES, min_size=1, max_size=7), max_size=12))
def test_what_is_found_is_a_cgroup_of_that_container_in_that_pod(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]]
) -> None:
    root = made(tmp_path_factory.mktemp("cgroup"), *("/".join(path) for path in paths))
    wanted = {CgroupOwner(uid, each) for uid in (UID, HASH) for each in (ID, OTHER)}
    tree = CgroupTree(root)
    found = tree.leaves(wanted)
    assert tree.leaves(wanted) == found
    for owner, path in (found or {}).items():
        names = Path(path).relative_to(root).parts
        assert any(
            owner_of("/".join(pair)) == owner and "kubepods" in "".join(names[:index])
            for index, pair in enumerate(pairwise(names))
        )


# --- What a cgroup counts ---------------------------------------------------------------------------------------------

LEAF = f"burstable/pod{UID}/{ID}"
CPU = "usage_usec 5\nnr_periods 40\nnr_throttled 12\nthrottled_usec 99\n"


def put(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def counted(oom_kills: int) -> dict[str, int]:
    return {"nr_periods": 40, "nr_throttled": 12, "oom_kill": oom_kills}


def test_what_a_cgroup_counts_is_read_from_its_directory(tmp_path: Path) -> None:
    put(tmp_path, f"kubepods/{LEAF}/cpu.stat", CPU)
    put(tmp_path, f"kubepods/{LEAF}/memory.events", "low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert CgroupTree(tmp_path).counters(str(tmp_path / "kubepods" / LEAF)) == counted(2)


@pytest.mark.parametrize("tree", ["memory", "pids", "cpu"])
def test_with_cgroup_v1_each_controller_has_a_tree(tmp_path: Path, tree: str) -> None:
    (tmp_path / tree / "kubepods" / LEAF).mkdir(parents=True)
    put(tmp_path, f"cpu/kubepods/{LEAF}/cpu.stat", CPU.replace("throttled_usec", "throttled_time"))
    put(tmp_path, f"memory/kubepods/{LEAF}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert CgroupTree(tmp_path).counters(str(tmp_path / tree / "kubepods" / LEAF)) == counted(4)


@pytest.mark.parametrize("content", ["", "nr_periods\n", "nr_periods x\nnr_periods -1\n", "nr_periods 1 2\n", "\xff"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, content: str) -> None:
    leaf = str(tmp_path / "kubepods" / LEAF)
    assert CgroupTree(tmp_path).counters(leaf) == {}
    put(tmp_path, f"kubepods/{LEAF}/cpu.stat", content)
    assert CgroupTree(tmp_path).counters(leaf) == {}
