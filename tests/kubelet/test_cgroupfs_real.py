"""The cgroups and the checkpoint that a real kubelet makes are read; with KUBE_BIN."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_device_plugin.kubelet import checkpoint
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse, Mount
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner, owner_of_process
from gpu_device_plugin.kubelet.cgroupfs import ROOT, CgroupTree
from gpu_device_plugin.model.contract.variables import LIMITS
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind, Names
from tests.kubelet.kubelet_under_test import healthy
from tests.kubelet.pod_lines import pod
from tests.kubelet.real_kubelet import RealKubelet
from tests.kubelet.scripted_plugin import Script, ScriptedPlugin
from tests.patience import eventually

RESOURCE = "test.example.com/limited"


def limited(_: Sequence[str]) -> ContainerAllocateResponse:
    """Answer as for a share, with the mount that the agent's own pod may ask for."""
    mount = Mount(container_path=str(ROOT), host_path=str(ROOT), read_only=True)
    return ContainerAllocateResponse(envs={LIMITS: "driver", "SECRET": "s" * 300}, mounts=[mount])


def process_in(leaf: str) -> int:
    return int((Path(leaf) / "cgroup.procs").read_text().split()[0])


def owner_by_kernel(pid: int) -> CgroupOwner | None:
    return owner_of_process(Path(f"/proc/{pid}/cgroup").read_text())


def seen_by(pid: int) -> CgroupTree:
    """Return the cgroups as a process in a container sees them."""
    return CgroupTree(Path(f"/proc/{pid}/root{ROOT}"))


async def test_the_containers_of_a_real_kubelet_are_found() -> None:
    if reason := RealKubelet.missing():
        pytest.skip(reason)
    async with RealKubelet() as kubelet:
        await kubelet.be_up()
        plugin = ScriptedPlugin(
            kubelet.device_plugin_dir, RESOURCE, {"a": True, "b": True}, script=Script(allocate=limited)
        )
        await plugin.start()
        try:
            await eventually(lambda: believed(kubelet))
            limits = {RESOURCE: 1}
            given = [await kubelet.admit(pod(name, limits)) for name in ("one", "other")]
            plain = await kubelet.admit(pod("plain", {}))
            ids = {each.uid: await kubelet.container_ids(each.uid) for each in (*given, plain)}
            owners = {CgroupOwner(uid, made) for uid, containers in ids.items() for made in containers.values()}
            tree = CgroupTree()
            leaves = tree.leaves(owners)
            assert leaves is not None
            assert leaves.keys() == owners
            for owner, leaf in leaves.items():
                assert Path(leaf).name == owner.container_id
                pid = process_in(leaf)
                assert owner_by_kernel(pid) == owner
                inside = seen_by(pid).leaves(owners)
                # Only with the node's cgroups mounted into it does a container find the others, by the same paths.
                if owner.pod_uid == plain.uid:
                    assert inside is None
                else:
                    assert inside == {each: f"/proc/{pid}/root{path}" for each, path in leaves.items()}

            allocations = checkpoint.read(kubelet.checkpoint, Names({RESOURCE: Kind.MEMORY})).allocations
            told = {(allocation.pod_uid, allocation.container): allocation.enforcement for allocation in allocations}
            assert told == {(each.uid, name): Enforcement.DRIVER for each in given for name in ids[each.uid]}

            await kubelet.delete(given[0].uid)
            await eventually(
                lambda: {owner.pod_uid for owner in tree.leaves(owners) or ()} == {given[1].uid, plain.uid}
            )
        finally:
            await plugin.stop()


async def believed(kubelet: RealKubelet) -> bool:
    return await healthy(kubelet, RESOURCE) == {"a", "b"}
