"""The checks of how containers get GPUs and memory limits: device nodes, runtimes, CDI, cgroups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.variables import DRIVER_LIMIT, MEMORY_LIMIT
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.node.grants import CONTROL_NODES
from gpu_device_plugin.core.node.rungs import REFUSE, Abilities, rungs, told, wanted
from gpu_device_plugin.core.telling.diagnosing import Finding, Unknown, error, note, ok, warning
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.core.model.gpus import Gpu
    from gpu_device_plugin.core.node.rungs import Rungs
    from gpu_device_plugin.core.telling.node_symptoms import NodeSymptoms

_LIMITING_TOOLKIT = (1, 20, 1)
_DRIVER = wanted(Rung.DRIVER, {})
_MPS_TOO = "; NVIDIA's MPS limits each process with this driver too: limits: mps"


def device_nodes(node: NodeSymptoms) -> Iterator[Finding]:
    """Check the device nodes of the GPUs, and their links for systemd."""
    if node.invented:
        yield ok("invented GPUs have none")
        return
    wrong = {path: why for path, why in node.device_nodes.items() if why}
    uvm = CONTROL_NODES[1]
    if uvm in wrong and node.in_container:
        # A container with NVIDIA_DRIVER_CAPABILITIES=utility has NVML and not this device node.
        yield Unknown(f"{uvm} is for CUDA, and this container does not have it", "run the doctor on the node")
    elif uvm in wrong:
        yield error(f"{uvm} {wrong[uvm]}", "nvidia-modprobe -u -c 0 on the node creates it; CUDA containers need it")
    for why in sorted({why for path, why in wrong.items() if path != uvm}):
        paths = ", ".join(path for path in wrong if path != uvm and wrong[path] == why)
        yield error(f"{paths} {why}", "nvidia-smi as root on the node creates it, and nvidia-persistenced keeps it")
    if right := [path for path, why in node.device_nodes.items() if not why]:
        yield ok(", ".join(right))
    if node.unlinked_nodes and not {"device-specs", "cdi"} & set(node.devices):
        yield warning(
            f"/dev/char does not lead to {', '.join(node.unlinked_nodes)}: with systemd cgroups a systemctl "
            "daemon-reload takes GPUs from running containers",
            "nvidia-ctk system create-dev-char-symlinks --create-all on the node, or --devices device-specs or cdi",
        )


def runtime(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that a container runtime is configured with NVIDIA's."""
    if isinstance(node.runtimes, Unknown):
        if node.in_container and not node.driver_problem and not node.invented:
            yield ok("it gave this container the driver")
        else:
            yield node.runtimes
        return
    if node.invented:
        yield ok("invented GPUs need none")
        return
    fit = [runtime for runtime in node.runtimes if runtime.handlers]
    for runtime in fit:
        name = runtime.handlers[0]
        how = "is its default" if runtime.default else f"needs runtimeClassName: {name} on every GPU pod"
        yield ok(f"{runtime.engine} knows NVIDIA's runtime as {name}, which {how} ({runtime.path})")
    if not fit and "envvar" in node.devices:
        seen = ", ".join(f"{runtime.engine} ({runtime.path})" for runtime in node.runtimes) or "no container runtime"
        yield error(
            f"no container runtime that is configured here knows NVIDIA's: {seen}",
            "install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=containerd (docker, crio), and "
            "restart that; or --devices cdi",
        )


def cdi(node: NodeSymptoms) -> Iterator[Finding]:
    """Compare the CDI files with the GPUs, if `--devices` includes cdi."""
    if "cdi" not in node.devices:
        if not isinstance(node.cdi_devices, Unknown):
            yield note(
                f"{counted(len(node.cdi_devices), 'device')} in CDI files; without cdi in --devices none is requested"
            )
        return
    if isinstance(node.cdi_devices, Unknown):
        yield node.cdi_devices
        return
    wanted = [f"{node.cdi_kind}={gpu.uuid}" for gpu in node.given]
    missing = [name for name in wanted if name not in node.cdi_devices]
    if missing:
        yield error(
            f"no CDI file names {', '.join(missing)}",
            "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml, and once more after "
            "every change of cards or driver; --cdi-kind sets the kind that is requested",
        )
    else:
        instances = " and MIG instances" if any(gpu.instance is not None for gpu in node.given) else ""
        every = "the GPU" if len(wanted) == 1 and not instances else f"all {len(wanted)} GPUs{instances}"
        yield ok(f"CDI files name {every} by UUID")
    if not isinstance(node.runtimes, Unknown) and not any(runtime.cdi for runtime in node.runtimes):
        yield warning(
            "no container runtime that is configured here uses CDI",
            "containerd before 2.0: enable_cdi = true; Docker: the feature cdi; CRI-O and containerd 2 need nothing",
        )


def images(node: NodeSymptoms) -> Iterator[Finding]:
    """Check whether an image can get GPUs by its own environment variables."""
    if isinstance(node.obeys_images, Unknown):
        yield node.obeys_images
    elif not node.obeys_images:
        yield ok("NVIDIA_VISIBLE_DEVICES of images and pods counts for privileged containers only")
    elif isinstance(node.runtimes, Unknown) or not any(runtime.default for runtime in node.runtimes):
        yield note(
            "a container that is run with NVIDIA's runtime and asks for no GPU sees every GPU, if its image or pod "
            "sets NVIDIA_VISIBLE_DEVICES=all",
            "deploy/policies.yaml refuses it in pods; against images help --devices cdi and "
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml",
        )
    else:
        yield warning(
            "NVIDIA's runtime is the default here, so every container of an image with NVIDIA_VISIBLE_DEVICES=all (all "
            "of CUDA's) sees every GPU, also if it asks for none",
            "do not make it the default and use runtimeClassName: nvidia; or --devices cdi and "
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml",
        )


def cgroups(node: NodeSymptoms) -> Iterator[Finding]:
    """Check the version of control groups."""
    if isinstance(node.cgroup, Unknown):
        yield node.cgroup
    elif node.cgroup == 2:
        yield ok("version 2")
    else:
        yield warning(
            f"version {node.cgroup}: no memory limits of the driver, and kubelets from 1.35 on do not start on it "
            "unless failCgroupV1 is false",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )


def limits(node: NodeSymptoms) -> Iterator[Finding]:
    """Check by which means the memory limits of containers hold, and why."""
    if node.extra_grant_problem:
        yield error(f"the agent does not start: {node.extra_grant_problem}", "correct it, or empty extra_grant")
        return
    if node.invented:
        yield ok("invented GPUs have none")
        return
    if node.driver_problem:
        yield Unknown("advisory as long as no driver answers")
        return
    want = wanted(node.limits, node.labels)
    if want.ignored:
        yield warning(want.ignored, "correct the label, or remove it")
    gpus = dict(enumerate(node.given))
    given_whole = {n for n, gpu in gpus.items() if gpu.instance is not None and node.mig_in_force is MigMode.WHOLE}
    abilities = Abilities(node.inventory.cgroup, node.mps, node.extra_grant)
    made = rungs(gpus, abilities, want, refuse=node.limits_fallback == REFUSE, partitions=given_whole)
    found = {gpu.rung for gpu in made.gpus.values()}
    version = f"driver {node.inventory.driver_version}"
    if made.missing:
        tell = error if node.limits_fallback == REFUSE and want.required else warning
        yield tell(
            f"{made.missing} ({version})",
            "provide what is missing, or ask for other means by the setting limits or the node label "
            "gpu-device-plugin/set-limits; limits_fallback: advisory shares without",
        )
    elif Rung.ADVISORY in found or not gpus:
        yield note(
            f"{told(made.gpus) or 'there is no GPU'} ({version})",
            f"a container reads in {MEMORY_LIMIT} how much memory it may use, and nothing holds it to that"
            + ("" if _on_instances_alone(gpus, made) else _MPS_TOO),
        )
    elif found - {Rung.PARTITION} == {Rung.DRIVER}:
        yield _by_the_driver(version, node.toolkit)
    else:
        yield (note if Rung.CUSTOM in found else ok)(told(made.gpus))
    yield from _left_from_before(node, version)


def _on_instances_alone(gpus: Mapping[int, Gpu], made: Rungs) -> bool:
    """Return whether limits are advisory on MIG instances, and on nothing else."""
    advisory = [gpus[position] for position, gpu in made.gpus.items() if gpu.rung is Rung.ADVISORY]
    return bool(advisory) and all(gpu.instance is not None for gpu in advisory)


def _by_the_driver(version: str, toolkit: str | Unknown) -> Finding:
    if isinstance(toolkit, Unknown):
        return Unknown(
            f"{version} can limit memory (cgroup), if nvidia-container-toolkit is 1.20.1 or newer: {toolkit.found}",
            toolkit.advice,
        )
    if _numbers(toolkit) < _LIMITING_TOOLKIT:
        return note(
            f"advisory: {version} can limit memory (cgroup), and only nvidia-container-toolkit asks it to, from 1.20.1 "
            f"on (now {toolkit or 'none'})",
            "install a newer nvidia-container-toolkit on the node",
        )
    return ok(f"cgroup: {version} and nvidia-container-toolkit {toolkit} hold containers to their memory")


def _left_from_before(node: NodeSymptoms, version: str) -> Iterator[Finding]:
    """Find containers that the toolkit's hook keeps from starting again: earlier agents always set its variables."""
    whole = [gpu for gpu in node.inventory.gpus if gpu.instance is None]
    fit = [gpu for gpu in whole if not gpu.mig] or whole
    unable = rungs(dict(enumerate(fit)), Abilities(node.inventory.cgroup), _DRIVER, refuse=False).missing
    toolkit = node.toolkit
    old = isinstance(toolkit, str) and _numbers(toolkit) < _LIMITING_TOOLKIT
    if not node.with_driver_limits or not unable or old:
        return
    first, *more = node.with_driver_limits
    several = f" and {counted(len(more), 'other')}" if more else ""
    which = "1.20.1 or newer" if isinstance(toolkit, Unknown) else str(toolkit)
    yield warning(
        f"nvidia-container-toolkit {which} in its CDI modes does not start containers with {DRIVER_LIMIT} on this "
        f"node, and an earlier agent gave it to {first}{several}: {version} has no memory limits, or cgroups are not "
        "of version 2",
        "delete these pods, so that they are made again without it, before a container of theirs restarts",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])
