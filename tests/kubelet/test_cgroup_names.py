"""The pod and the container of a process are found in the names of its cgroups, in every shape that runtimes give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner, owner_of, owner_of_process

UID = "0f5d3a31-9a3b-4c6e-8c5b-6a7b8c9d0e1f"
UNDERSCORED = UID.replace("-", "_")
ID = "5ad9" * 16
OTHER_ID = "77c0" * 16
STATIC = "6a1d" * 8
"""The hash of a static pod's file."""

OURS = CgroupOwner(UID, ID)

SLICE = f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice"
"""Of a guaranteed pod, which has no level for its class."""
BURSTABLE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod"

MIXED = f"kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}"
"""The kubelet's driver is systemd, and containerd's cgroupfs, for which all of this is one name."""

V1 = f"""\
12:hugetlb:/kubepods/burstable/pod{UID}/{ID}
11:memory:/kubepods/burstable/pod{UID}/{ID}
4:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}
1:name=systemd:/kubepods/burstable/pod{UID}/{ID}
"""
HYBRID = f"""\
9:name=systemd:{SLICE}/cri-containerd-{ID}.scope
5:devices:{SLICE}/cri-containerd-{ID}.scope
0::/
"""


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{ID}\n", OURS),
        (f"0::/kubepods/besteffort/pod{UID}/{ID}\n", OURS),
        (f"0::/kubepods/pod{UID}/{ID}\n", OURS),
        (f"0::{BURSTABLE}{UNDERSCORED}.slice/cri-containerd-{ID}.scope\n", OURS),
        (f"0::{SLICE}/cri-containerd-{ID}.scope\n", OURS),
        (f"0::{SLICE}/crio-{ID}.scope\n", OURS),
        (f"0::{SLICE}/crio-{ID}.scope/container\n", OURS),
        (f"0::{SLICE}/docker-{ID}.scope\n", OURS),
        (f"0::{KIND}{UNDERSCORED}.slice/cri-containerd-{ID}.scope\n", OURS),
        (V1, OURS),
        (HYBRID, OURS),
        (f"0::/kubepods/burstable/pod{STATIC}/{ID}\n", CgroupOwner(STATIC, ID)),
        (f"0::{BURSTABLE}{STATIC}.slice/cri-containerd-{ID}.scope\n", CgroupOwner(STATIC, ID)),
        (f"0::/../../kubepods/besteffort/pod{UID}/{ID}\n", OURS),
        (f"0::/system.slice/containerd.service/{MIXED}\n", OURS),
        (f"0::/{MIXED}\n", OURS),
        (f"0::/docker/{OTHER_ID}/system.slice/containerd.service/{MIXED}/app\n", OURS),
        (f"5:memory:/system.slice/k3s.service/{MIXED}\n1:name=systemd:/system.slice/k3s.service/{MIXED}\n", OURS),
        (f"0::/kubepods/burstable/pod{UID}/crio-{ID}\n", OURS),
        (f"0::/kubepods-burstable-pod{UNDERSCORED}.slice/{ID}\n", OURS),
    ],
    ids=[
        "cgroupfs", "cgroupfs, best effort", "cgroupfs, guaranteed", "systemd", "systemd, guaranteed",
        "CRI-O", "CRI-O with a cgroup within", "docker", "kind", "v1", "hybrid", "static pod", "static pod, systemd",
        "from a cgroup namespace of one's own", "containerd with cgroupfs below a kubelet with systemd", "at the root",
        "in a container of the node's", "v1, k3s", "CRI-O, cgroupfs", "docker with cgroupfs below systemd",
    ],
)  # fmt: skip
def test_the_owner_is_found_in_every_shape(text: str, owner: CgroupOwner) -> None:
    assert owner_of_process(text) == owner


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/init.scope\n",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        "0::/system.slice/nvidia-persistenced.service\n",
        f"0::/system.slice/docker-{ID}.scope\n",  # a container of docker's own
        f"0::/../cri-containerd-{ID}.scope\n",  # the agent's own pod, seen from within
        f"0::/kubepods/burstable/pod{UID}0/{ID}\n",  # longer than a UID
        f"0::/kubepods/burstable/pod{UID[:-1]}/{ID}\n",
        f"0::/kubepods/burstable/pod{UID.upper()}/{ID}\n",
        "12:memory:/\n1:name=systemd:/\n",
    ],
)
def test_a_process_outside_of_pods_has_no_owner(text: str) -> None:
    assert owner_of_process(text) is None


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
        f"/kubepods/burstable/pod{UID}/{ID[:-1]}",
        f"/kubepods/burstable/pod{UID}/{ID}0",
        f"/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}0",
        f"/kubepods/{ID}/pod{UID}",  # what stands before the pod is not its container
    ],
)
def test_without_an_id_of_a_container_the_pod_is_known(path: str) -> None:
    assert owner_of(path) == CgroupOwner(UID)


def test_a_cgroup_that_a_container_makes_within_its_own_changes_nothing() -> None:
    """The first names are the kubelet's and the runtime's; a container may make others only below its own."""
    foreign = f"pod{STATIC}/{OTHER_ID}"
    assert owner_of_process(f"0::/kubepods/burstable/pod{UID}/{ID}/{foreign}\n") == OURS


def test_one_controller_without_the_container_does_not_hide_it() -> None:
    assert owner_of_process(f"3:cpuset:/kubepods/pod{UID}\n2:memory:/kubepods/pod{UID}/{ID}\n") == OURS
    assert owner_of_process(f"3:cpuset:/kubepods/pod{UID}\n2:memory:/kubepods/pod{UID}\n") == CgroupOwner(UID)


@given(st.text() | st.text("0123456789abcdefpod-_/.:\n", max_size=300))
def test_any_text_has_an_owner_or_none(text: str) -> None:
    """An owner that is found has a UID and an ID of the right alphabet, so that it can name no other thing."""
    owner = owner_of_process(text)
    if owner is not None:
        assert set(owner.pod_uid) <= set("0123456789abcdef-")
        assert len(owner.pod_uid) in {32, 36}
        assert len(owner.container_id) in {0, 64}


@pytest.mark.parametrize("unit", ["pod", "/", "-", "a" * 63, f"pod{UID}", f"/pod{UID[:-1]}", ID + "x"])
def test_a_long_path_costs_no_more_than_its_length(unit: str) -> None:
    """No pattern tries a place twice: 20 times the length of the longest path that Linux knows is done at once."""
    owner_of_process("0::/" + unit * (80_000 // len(unit)))
