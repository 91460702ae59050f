"""A real kubelet without an API server, in a mount and a PID namespace of its own, with its pods as files."""

import asyncio
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.request
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse, DeviceSpec, Mount
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.pod_specs import Container, Pod, PodSpec
from tests.e2e.archives import write_image
from tests.patience import eventually, stretched
from tests.ports import free_port
from tests.real_node import child_of, containerd_configuration, kubelet_configuration, make_cgroups, removed_cgroups

_TOOLS = ("containerd", "ctr", "runc", "unshare", "nsenter", "busybox")
_NODE = "real"
_IMAGE = "docker.io/local/test:1"
_FOREVER = "2147483647"

# What a container prints is how the test sees what it received.
_TELL = "env; awk '{print \"mount\", $2, $4}' /proc/mounts; for d in /dev/*; do echo device $d; done; echo told"


class RealKubelet:
    """The kubelet in the folder KUBE_BIN, started by the first `be_up`; `async with` removes everything around it."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="real"))
        self._manifests = self._root / "manifests"
        self._containerd_socket = f"{self._root}/containerd.sock"
        self._port = free_port()
        self._holder: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self._kubelet: subprocess.Popen[bytes] | None = None
        self._inside = 0
        """The namespaces' first process, as seen from outside."""
        self._cgroup = f"test-kubelet-{os.getpid()}"
        self._specs: dict[str, PodSpec] = {}

    @staticmethod
    def missing() -> str:
        """Say why a real kubelet cannot be run here; empty if it can."""
        if not (folder := os.environ.get("KUBE_BIN")):
            return "KUBE_BIN is unset: it names a folder with Kubernetes binaries, to run this on a real kubelet too"
        if not (Path(folder) / "kubelet").is_file():
            return f"KUBE_BIN={folder} holds no kubelet"
        if absent := [tool for tool in _TOOLS if not shutil.which(tool)]:
            return f"a real kubelet needs {', '.join(absent)} on the PATH"
        if os.geteuid() != 0:
            return "a real kubelet has to be started by root"
        return ""

    @functools.cached_property
    def minor(self) -> int:
        said = subprocess.run([_kubelet(), "--version"], capture_output=True, text=True, check=True).stdout
        found = re.fullmatch(r"Kubernetes v1\.(\d+)\..*\s*", said)
        assert found is not None, f"{_kubelet()} --version says {said!r}"
        return int(found[1])

    @property
    def device_plugin_dir(self) -> Path:
        return self._seen("/var/lib/kubelet/device-plugins")

    @property
    def registration_socket(self) -> Path:
        return self.device_plugin_dir / "kubelet.sock"

    @property
    def pod_resources_socket(self) -> Path:
        return self._seen("/var/lib/kubelet/pod-resources/kubelet.sock")

    @property
    def checkpoint(self) -> Path:
        return self.device_plugin_dir / "kubelet_internal_checkpoint"

    async def __aenter__(self) -> Self:
        return self

    async def _make_a_place(self) -> None:
        for name in ("manifests", "logs", "cni"):
            (self._root / name).mkdir()
        make_cgroups(self._cgroup)
        # The kubelet's directory for device plugins cannot be configured, so /var/lib is another one for it. All
        # processes end with the first of their PID namespace.
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
        script = (
            "mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount -t tmpfs none /var/log && echo up && "
            # The first process of a PID namespace inherits orphans, and a shell that waits buries them.
            "while :; do sleep 60 & wait; done"
        )
        self._holder = subprocess.Popen([*namespaces, "sh", "-c", script], stdout=subprocess.PIPE)  # noqa: ASYNC220
        assert self._holder.stdout is not None
        await asyncio.to_thread(self._holder.stdout.readline)
        self._inside = child_of(self._holder.pid)
        configuration = containerd_configuration(
            root=f"{self._root}/root",
            state=f"{self._root}/state",
            address=self._containerd_socket,
            sandbox=_IMAGE,
            networks=f"{self._root}/cni",
            runtimes=("runc",),
        )
        (self._root / "containerd.toml").write_text(configuration)
        self._containerd = self._spawn("containerd", "containerd", "--config", str(self._root / "containerd.toml"))
        image = self._root / "image.tar"
        _write_image(image)
        await eventually(lambda: self._run(*self._ctr(), "version"))
        assert await self._run(*self._ctr(), "image", "import", str(image)), "the test image could not be imported"
        (self._root / "kubelet.json").write_text(json.dumps(self._configuration()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holder is not None:
            os.kill(self._inside, signal.SIGKILL)
            await asyncio.to_thread(self._holder.communicate)
        for process in (self._containerd, self._kubelet):
            if process is not None:
                await asyncio.to_thread(process.wait)
        await eventually(lambda: removed_cgroups(self._cgroup))
        shutil.rmtree(self._root, ignore_errors=True)

    async def admit(self, spec: PodSpec) -> Pod:
        uid = await self.begin(spec)
        await eventually(lambda: self._settled(uid))
        return await self.look(uid)

    async def begin(self, spec: PodSpec) -> str:
        uid = str(uuid.uuid4())
        # The kubelet adds the node to the names of pods that come from files.
        self._specs[uid] = replace(spec, name=f"{spec.name}-{_NODE}", uid=uid)
        manifest = self._manifests / f"{uid}.json"
        unseen = self._root / "unseen"
        unseen.write_text(json.dumps(_manifest(spec, uid)))
        unseen.rename(manifest)
        return uid

    async def look(self, uid: str) -> Pod:
        spec = self._specs[uid]
        found = (await self._pods()).get(uid, {})
        status = found.get("status", {})
        statuses = {
            one["name"]: one for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        }
        return Pod(
            spec,
            uid=uid,
            created=0,
            phase=status.get("phase", "Pending"),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            containers=tuple(
                self._container(container.name, statuses.get(container.name, {}), spec, uid)
                for container in spec.containers
            ),
        )

    async def container_ids(self, uid: str) -> dict[str, str]:
        """Return the IDs of a pod's containers by name, as the kubelet tells the API."""
        status = (await self._pods())[uid]["status"]
        return {each["name"]: each["containerID"].removeprefix("containerd://") for each in status["containerStatuses"]}

    async def delete(self, uid: str) -> None:
        (self._manifests / f"{uid}.json").unlink()
        await eventually(lambda: self._unknown(uid))
        del self._specs[uid]

    async def finish(self, uid: str) -> None:
        for status in (await self._pods())[uid]["status"]["containerStatuses"]:
            container = status["containerID"].removeprefix("containerd://")
            assert await self._run(*self._ctr(), "task", "kill", "--signal", "SIGTERM", container)
        await eventually(lambda: self._succeeded(uid))

    async def clear(self) -> None:
        """Remove every pod."""
        await self.be_up()
        for uid in tuple(self._specs):
            await self.delete(uid)

    async def be_up(self) -> None:
        """Start the kubelet if it is not there."""
        if self._holder is None:
            await self._make_a_place()
        if self._kubelet is None or self._kubelet.poll() is not None:
            await self.start()

    async def stop(self) -> None:
        if self._kubelet is not None and self._kubelet.poll() is None:
            os.kill(child_of(self._kubelet.pid), signal.SIGTERM)
            await asyncio.to_thread(self._kubelet.wait)
        self._kubelet = None

    async def start(self) -> None:
        self._kubelet = self._spawn(
            "kubelet",
            _kubelet(),
            f"--config={self._root}/kubelet.json",
            f"--hostname-override={_NODE}",
        )
        await eventually(self._serves)
        for uid in tuple(self._specs):
            await eventually(lambda uid=uid: self._settled(uid))  # type: ignore[misc]

    async def died(self) -> bool:
        assert self._kubelet is not None
        try:
            await asyncio.to_thread(self._kubelet.wait, 20)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _seen(self, path: str) -> Path:
        return Path(f"/proc/{self._inside}/root{path}")

    def _spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        enter = ["nsenter", f"--target={self._inside}", "--mount", "--pid"]
        with (self._root / f"{name}.log").open("ab") as log:
            return subprocess.Popen([*enter, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    async def _run(self, *command: str) -> bool:
        return await asyncio.to_thread(self._spawn("run", *command).wait) == 0

    def _ctr(self) -> tuple[str, ...]:
        return ("ctr", "-a", self._containerd_socket, "-n", "k8s.io")

    async def _succeeded(self, uid: str) -> bool:
        return (await self.look(uid)).phase == "Succeeded"

    async def _pods(self) -> dict[str, dict[str, Any]]:
        def ask() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/pods", timeout=stretched()) as answer:
                found: dict[str, Any] = json.load(answer)
                return found

        try:
            found = await asyncio.to_thread(ask)
        except OSError:
            return {}
        return {one["metadata"]["uid"]: one for one in found["items"] or ()}

    async def _unknown(self, uid: str) -> bool:
        return uid not in await self._pods()

    async def _serves(self) -> bool:
        try:
            for path in (self.registration_socket, self.pod_resources_socket):
                _, writer = await asyncio.open_unix_connection(path)
                writer.close()
                await writer.wait_closed()
        except OSError:  # no file yet, or one that the process before left behind
            return False
        return True

    async def _settled(self, uid: str) -> bool:
        pod = await self.look(uid)
        if pod.phase == "Failed":
            return True
        apps = [container for container in pod.containers if container.spec.kind is not ContainerKind.INIT]
        return pod.phase == "Running" and all(container.running and container.started for container in apps)

    def _container(self, name: str, status: dict[str, Any], spec: PodSpec, uid: str) -> Container:
        (container,) = (one for one in spec.containers if one.name == name)
        state = status.get("state", {})
        waiting = state.get("waiting")
        told = self._told(spec, uid, name)
        return Container(
            container,
            received=_received(told),
            started="told" in told,
            running="running" in state,
            restarts=status.get("restartCount", 0),
            waiting=f"{waiting.get('reason')}: {waiting.get('message')}" if waiting else None,
        )

    def _told(self, spec: PodSpec, uid: str, container: str) -> list[str]:
        logs = (self._root / "logs" / f"{spec.namespace}_{spec.name}_{uid}" / container).glob("*.log")
        # Each line begins with a time, the stream and a flag.
        return [line.split(" ", 3)[-1] for log in sorted(logs)[-1:] for line in log.read_text().splitlines()]

    def _configuration(self) -> dict[str, Any]:
        return kubelet_configuration(
            containerd=self._containerd_socket,
            cgroup=self._cgroup,
            address="127.0.0.1",
            port=free_port(),
            readOnlyPort=self._port,
            healthzPort=0,
            staticPodPath=str(self._manifests),
            podLogsDir=str(self._root / "logs"),
            fileCheckFrequency="1s",
            registerNode=False,
        )


def _kubelet() -> str:
    return f"{os.environ['KUBE_BIN']}/kubelet"


def _manifest(spec: PodSpec, uid: str) -> dict[str, Any]:
    def written(container: Any) -> dict[str, Any]:
        stay = "" if container.kind is ContainerKind.INIT else f"; trap 'exit 0' TERM; sleep {_FOREVER} & wait"
        return {
            "name": container.name,
            "image": _IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "sh", "-c", _TELL + stay],
            "resources": {"limits": {resource: str(wanted) for resource, wanted in container.limits.items()}},
        } | ({"restartPolicy": "Always"} if container.kind is ContainerKind.SIDECAR else {})

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": spec.name, "namespace": spec.namespace, "uid": uid},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "initContainers": [written(one) for one in spec.containers if one.kind is not ContainerKind.APP],
            "containers": [written(one) for one in spec.containers if one.kind is ContainerKind.APP],
        },
    }


def _received(told: Sequence[str]) -> ContainerAllocateResponse:
    envs: dict[str, str] = {}
    mounts: list[Mount] = []
    devices: list[DeviceSpec] = []
    for line in told:
        match line.split(" "):
            case ["mount", path, options]:
                mounts.append(Mount(container_path=path, read_only="ro" in options.split(",")))
            case ["device", path]:
                devices.append(DeviceSpec(container_path=path))
            case _ if "=" in line:
                name, _, value = line.partition("=")
                envs[name] = value
    return ContainerAllocateResponse(envs=envs, mounts=mounts, devices=devices)


def _write_image(path: Path) -> None:
    """Write an image archive with nothing in it but busybox, which is the sandbox's image too."""
    links = dict.fromkeys(("/bin/sh", "/bin/env", "/bin/awk"), PurePosixPath("busybox"))
    config = {"Entrypoint": ["/bin/busybox", "sleep", _FOREVER], "Env": ["PATH=/bin"]}
    write_image(path, [_IMAGE], {"/bin/busybox": Path(shutil.which("busybox") or ""), **links}, config)
