"""Checks of hardware and of how containers reach it: driver, GPUs, runtimes, CDI, cgroups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gpu_device_plugin.model.gpus import NVIDIA
from gpu_device_plugin.node.rules.container_grants import CONTROL_NODES
from gpu_device_plugin.programs.doctor.rules.symptoms import NodeSymptoms
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, grouped, note, ok, warning

_UNPRIVILEGED = (
    "--devices cdi and accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml"
)

_MADE_BY = (
    "nvidia-smi as root on the node creates it, and nvidia-persistenced keeps it",
    "see dmesg: the kernel makes it with the driver",
)
"""Advice on a device node, of NVIDIA's driver and of the kernel's own."""
_LOWERS_SINCE = (7, 3)
"""The Linux from which on limits below the use are applied at once."""
_ELSE = "AMD's GPUs need the driver amdgpu there, and Intel's xe"
UNREAD_ADVICE = (
    "see dmesg, and for NVIDIA GPUs whether nvidia-smi shows it; reset it or restart the node, then restart the agent"
)


def driver(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that the driver answers, and lists a GPU."""
    if node.driver_missing:
        yield _no_driver(node)
        return
    if node.driver_problem:
        yield error("driver-unusable", "{problem}", "see also the agent's log", problem=node.driver_problem)
        return
    for why in node.inventory.unread:
        yield error("gpu-unread", "{why}", UNREAD_ADVICE, why=why)
    models = Counter(gpu.product for gpu in node.inventory.gpus if gpu.instance is None)
    version = node.inventory.driver_version or "of an unknown version"
    if not models and node.inventory.unread:
        return
    if not models:
        more = {"why": node.left_out} if node.left_out else {}
        text = "driver {version} lists no GPU" + ": {why}" * len(more)
        tool = "nvidia-smi -L on the node" if node.of_nvidia else "the agent's log"
        yield error("no-gpu", text, f"see {tool}, and whether lspci shows the cards", version=version, **more)
        return
    cards = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    invented = " (invented)" if node.invented else ""
    yield ok("driver", "driver {version}, {gpus}", version=version, gpus=f"{cards}{invented}")


def _no_driver(node: NodeSymptoms) -> Finding:
    if node.in_container:
        return error(
            "no-driver-in-container",
            "this container has no NVIDIA driver (libnvidia-ml.so.1 is not there)",
            "its pod needs runtimeClassName: nvidia, and the node the driver: nvidia-smi there lists its GPUs then; "
            f"{_ELSE}",
        )
    return error(
        "no-driver",
        "no NVIDIA driver is installed on this machine (libnvidia-ml.so.1 is not there)",
        "install it (docs.nvidia.com/datacenter/tesla), until nvidia-smi lists the GPUs; "
        f"{_ELSE}; on a machine without GPUs try gpu-device-plugin demo, or the agent with --gpus fake:4xT4",
    )


def gpus(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that no GPU is unhealthy."""
    for gpu in node.inventory.gpus:
        if why := node.unhealthy.get(gpu.uuid):
            advice = "docs/operations.md has the remedy (A GPU is unhealthy)"
            yield error("gpu-unhealthy", "{gpu} is unhealthy: {why}", advice, gpu=node.name(gpu), why=why)
    if node.inventory.gpus and not node.unhealthy:
        kinds = Counter(gpu.instance is None for gpu in node.inventory.gpus)
        text = "{gpus} healthy" + (", and {instances:MIG instance}" if kinds[False] else "")
        yield ok("gpus-healthy", text, gpus=kinds[True], instances=kinds[False])


# --- Containers -------------------------------------------------------------------------------------------------------


def device_nodes(node: NodeSymptoms) -> Iterator[Finding]:
    """Check the device nodes of the GPUs, and their links for systemd."""
    if node.invented:
        yield ok("invented", "fake GPUs have none")
        return
    if node.driver_missing:
        return  # which makes them
    wrong = {path: why for path, why in node.device_nodes.items() if why}
    uvm = CONTROL_NODES[1]
    if uvm in wrong and node.in_container:
        # A container with NVIDIA_DRIVER_CAPABILITIES=utility has NVML and not this device node.
        text = "{path} is for CUDA, and this container does not have it"
        yield Unknown("uvm-hidden", text, "run the doctor on the node", path=uvm)
    elif uvm in wrong:
        advice = "nvidia-modprobe -u -c 0 on the node creates it; CUDA containers need it"
        yield error("no-uvm", "{path} {why}", advice, path=uvm, why=wrong[uvm])
    own = {path for gpu in node.inventory.gpus if gpu.driver != NVIDIA for path in gpu.device_paths}
    faults = grouped(((why, path in own), path) for path, why in wrong.items() if path != uvm)
    for (why, of_kernel), names in sorted(faults.items()):
        paths = ", ".join(names)
        if of_kernel and node.in_container:
            yield Unknown("nodes-hidden", "{paths} {why} here", "run the doctor on the node", paths=paths, why=why)
        else:
            yield error("no-device-node", "{paths} {why}", _MADE_BY[of_kernel], paths=paths, why=why)
    if right := [path for path, why in node.device_nodes.items() if not why]:
        yield ok("device-nodes", "{paths}", paths=", ".join(right))
    if node.unlinked_nodes and not {"device-specs", "cdi"} & set(node.settings.devices):
        text = (
            "/dev/char does not lead to {paths}: with systemd cgroups a systemctl daemon-reload takes GPUs from "
            "running containers"
        )
        advice = "nvidia-ctk system create-dev-char-symlinks --create-all on the node, or --devices device-specs or cdi"
        yield warning("device-nodes-unlinked", text, advice, paths=", ".join(node.unlinked_nodes))


def kernel(node: NodeSymptoms) -> Iterator[Finding]:
    """Check what the kernel has for GPUs of its own drivers, and the rights to see and to use them."""
    gpus = [] if node.invented else [gpu for gpu in node.inventory.gpus if gpu.driver != NVIDIA]
    if not gpus:
        return
    release = tuple(int(number) for number in re.findall("[0-9]+", node.kernel.release)[:2])
    late = release < _LOWERS_SINCE and any(gpu.memory_limits for gpu in gpus)
    text = "Linux {release}" + "; before 7.3 it ignores a memory limit that is below the use" * late
    yield ok("kernel", text, release=node.kernel.release)
    if node.kernel.topology_hidden:
        text = "partitions of GPUs and links between them may not be read here, so only whole GPUs are shared"
        yield warning("topology-hidden", text, "run the agent privileged, as deploy/overlays/amd does")
    if not node.kernel.traces:
        text = "without the capabilities SYS_PTRACE and DAC_READ_SEARCH not all use of GPUs by processes is seen"
        yield note("use-hidden", text, "deploy/overlays/amd gives it to the agent")
    if groups := sorted(set(node.node_groups.values())):
        yield note(
            "device-group",
            "{paths:device node is|device nodes are} open only to root and to group {groups} of this node",
            f"a pod whose containers do not run as root needs spec.securityContext.supplementalGroups: {groups}",
            paths=len(node.node_groups),
            groups=" and ".join(map(str, groups)),
        )


def runtime(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that the container runtime that the kubelet uses is configured with NVIDIA's."""
    if isinstance(node.runtimes, Unknown):
        if node.in_container and not node.driver_problem and not node.invented:
            yield ok("runtime-gave-driver", "it gave this container the driver")
        else:
            yield node.runtimes
        return
    if node.invented:
        yield ok("invented", "fake GPUs need none")
        return
    fit = [runtime for runtime in node.runtimes if runtime.handlers]
    for runtime in fit:
        how = "is its default" if runtime.default else "needs runtimeClassName: {handler} on every GPU pod"
        yield ok(
            "runtime-default" if runtime.default else "runtime-by-class",
            f"{{engine}} knows NVIDIA's runtime as {{handler}}, which {how} ({{path}})",
            engine=runtime.engine,
            handler=runtime.handlers[0],
            path=runtime.path,
        )
    if fit or "envvar" not in node.settings.devices:
        return
    if files := tuple(path for runtime in node.runtimes for path in runtime.without_effect):
        text = "containerd does not read NVIDIA's runtime from {paths} (its configuration is {path})"
        advice = (
            'other files count if its own imports them (imports = ["/etc/containerd/conf.d/*.toml"]); containerd 1 '
            "takes all of a plugin from the last file that has it, and version = 3 has other names of plugins. "
            "containerd config dump on the node shows what counts; restart it after a change"
        )
        yield error("runtime-without-effect", text, advice, paths=files, path=node.runtimes[0].path)
    else:
        present = tuple(f"{runtime.engine} ({runtime.path})" for runtime in node.runtimes)
        text = "the container runtime that the kubelet uses does not know NVIDIA's: {runtimes}"
        advice = (
            "install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=containerd (docker, crio), and "
            "restart that; or --devices cdi"
        )
        yield error("no-nvidia-runtime", text, advice, runtimes=present or "no container runtime")


def cdi(node: NodeSymptoms) -> Iterator[Finding]:
    """Compare the CDI files with the GPUs, if `--devices` includes cdi."""
    if "cdi" not in node.settings.devices:
        if not isinstance(node.cdi_devices, Unknown):
            text = "{devices:device} in CDI files; without cdi in --devices none is requested"
            yield note("cdi-unused", text, devices=len(node.cdi_devices))
        return
    if isinstance(node.cdi_devices, Unknown):
        yield node.cdi_devices
        return
    wanted = [f"{node.settings.cdi_kind}={gpu.uuid}" for gpu in node.given]
    if missing := tuple(device for device in wanted if device not in node.cdi_devices):
        advice = (
            "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml, and once more after "
            "every change of cards or driver; --cdi-kind sets the kind that is requested"
        )
        yield error("cdi-devices-missing", "no CDI file names {devices}", advice, devices=missing)
    else:
        yield ok(
            "cdi", "CDI files name {devices:GPU or MIG instance|GPUs and MIG instances} by UUID", devices=len(wanted)
        )
    if not isinstance(node.runtimes, Unknown) and not any(runtime.cdi for runtime in node.runtimes):
        yield warning(
            "no-runtime-with-cdi",
            "the container runtime that the kubelet uses does not use CDI",
            "containerd before 2.0: enable_cdi = true; Docker: the feature cdi; CRI-O and containerd 2 need nothing",
        )


def images(node: NodeSymptoms, obeyed: bool) -> Iterator[Finding]:  # noqa: FBT001 - a field of the symptoms
    """Check whether an image can get GPUs by its own environment variables."""
    if not obeyed:
        text = "NVIDIA_VISIBLE_DEVICES of images and pods counts for privileged containers only"
        yield ok("variables-privileged-only", text)
    elif isinstance(node.runtimes, Unknown) or not any(runtime.default for runtime in node.runtimes):
        yield note(
            "images-see-gpus-with-class",
            "a container that is run with NVIDIA's runtime and asks for no GPU sees every GPU, if its image or pod "
            "sets NVIDIA_VISIBLE_DEVICES=all",
            f"deploy/policies.yaml refuses it in pods; against images help {_UNPRIVILEGED}",
        )
    else:
        yield warning(
            "images-see-gpus",
            "NVIDIA's runtime is the default here, so every container of an image with NVIDIA_VISIBLE_DEVICES=all (all "
            "of CUDA's) sees every GPU, also if it asks for none",
            f"do not make it the default and use runtimeClassName: nvidia; or {_UNPRIVILEGED}",
        )


def cgroups(_: NodeSymptoms, version: int) -> Iterator[Finding]:
    """Check the version of control groups."""
    if version == 2:
        yield ok("cgroup-v2", "version 2")
    else:
        text = (
            "version {version}: no memory limits of the driver, and kubelets from 1.35 on do not start on it unless "
            "failCgroupV1 is false"
        )
        yield warning("cgroup-v1", text, "boot with systemd.unified_cgroup_hierarchy=1", version=version)
