"""What a test does to a cluster: what a person with kubectl does, and it looks at what such a person sees."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.builders import GPU_COUNT, GPU_MEM
from tests.docs.guide_world import documents, pods_of
from tests.e2e.real_cluster import RealCluster
from tests.patience import REAL_S, stretched, until

Json = dict[str, Any]
T = TypeVar("T")

ROOT = Path(__file__).parents[2]
GPUS = "fake:1xP4,3xT4"
"""The GPUs of docs/guide.md: GPU 0 has 7 shares, GPUs 1 to 3 have 14 each."""

_STAY = ["sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"]


@dataclass(frozen=True)
class Given:
    """What a running container was given, read from within it."""

    uuids: tuple[str, ...]
    shares: int
    """In all; 0 of a container that has whole GPUs."""
    limit_mib: int
    """Of each GPU."""
    positions: str
    devices_shares: str
    """How many shares its GPU has, or each of its GPUs."""
    pod_shares: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Given:
        return cls(
            uuids=tuple(sorted(environ["NVIDIA_VISIBLE_DEVICES"].split(","))),
            shares=int(environ.get("ALIYUN_COM_GPU_MEM_CONTAINER", "0")),
            limit_mib=int(environ.get("GPUSHARE_MEMORY_LIMIT_MIB", "0")),
            positions=environ.get("ALIYUN_COM_GPU_MEM_IDX", ""),
            devices_shares=environ.get("ALIYUN_COM_GPU_MEM_DEV", ""),
            pod_shares=int(environ.get("ALIYUN_COM_GPU_MEM_POD", "0")),
        )


@dataclass
class Cluster:
    """A cluster of ours, or one that was there before; of that one other images are told."""

    node: str
    environ: Mapping[str, str]
    own: RealCluster | None = None
    image: str = ""
    """Of ours, where the manifests' name is not known there."""
    pod_image: str = ""
    """For the pods of the guide: something with a shell."""
    broken: str = ""
    """The step without which no later one makes sense, and which failed."""
    applied: list[Path] = field(default_factory=list)
    """Of the guide, and not removed yet."""

    # --- kubectl ------------------------------------------------------------------------------------------------------

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        if self.own is not None:
            command = (*self.own.entering_network, *command)
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=self.environ,
            timeout=stretched(300),
        )

    def kubectl(self, *words: str, given: str = "") -> str:
        """Return what kubectl prints; it has to end well."""
        done = self.run("kubectl", *words, given=given)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def shell(self, command: str) -> str:
        """Do a command of the documentation."""
        done = self.run("bash", "-euo", "pipefail", "-c", command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> Json:
        found: Json = json.loads(self.kubectl("get", *words, "--output=json"))
        return found

    def items(self, *words: str) -> list[Json]:
        found: list[Json] = self.get(*words)["items"]
        return found

    def until(self, look: Callable[[], T], what: str, quiet_s: float = REAL_S) -> T:
        """Look again and again until there is something to be seen."""
        return until(look, what, quiet_s=quiet_s, pause_s=0.5)

    def state(self) -> str:
        """Return what helps to understand a failure."""
        of_ours = ("--namespace=gpushare", "logs", "--tail=30", "--prefix")
        commands = (
            ("get", "nodes,pods", "--all-namespaces", "--output=wide"),
            ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
            ("describe", "pods", "--namespace=default"),
            (*of_ours, "--selector=app.kubernetes.io/component=node"),
            (*of_ours, "--selector=app.kubernetes.io/component=scheduler", "--all-containers"),
        )
        told = (f"$ kubectl {' '.join(words)}\n{self.run('kubectl', *words).stdout[-6000:]}" for words in commands)
        return "\n".join([*told, self.own.logs() if self.own is not None else ""])

    # --- Manifests ----------------------------------------------------------------------------------------------------

    def apply(self, *paths: Path) -> None:
        """Apply manifests, as they are where this cluster needs nothing changed."""
        for path in paths:
            if (adapted := self.adapted(path)) == documents(path):
                self.kubectl("apply", "--filename", str(path))
            else:
                self.apply_all(adapted)

    def apply_all(self, objects: Iterable[Json]) -> None:
        self.kubectl("apply", "--filename=-", given=yaml.safe_dump_all(objects))

    def adapted(self, path: Path, image: str = "") -> list[Json]:
        """Return the objects of a manifest as this cluster needs them; of ours with another image if one is told."""
        return [self._adapt(body, image or self.image) for body in documents(path)]

    def _adapt(self, body: Json, image: str) -> Json:
        for spec in _pod_specs(body) if self.own is None else ():
            spec.pop("runtimeClassName", None)
        for container in containers([body]):
            if container["name"] in {"agent", "extender"}:
                container["image"] = image or container["image"]
            elif container["name"] == "kube-scheduler":
                container["image"] = f"registry.k8s.io/kube-scheduler:{self._server_version()}"
            elif self.own is None:
                container |= {"image": self.pod_image, "command": _STAY}
        return body

    def _server_version(self) -> str:
        version = json.loads(self.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
        return str(version).partition("+")[0]

    # --- Pods with GPUs -----------------------------------------------------------------------------------------------

    def apply_and_settle(self, path: Path) -> None:
        """Apply a manifest of the guide, and wait until the scheduler and the node have done what they can."""
        self.applied.append(path)
        before = {pod["metadata"]["uid"] for pod in self.gpu_pods()}
        self.apply(path)
        expected = sum(len(pods_of(body)) for body in documents(path))

        def settled() -> bool:
            pods = self.gpu_pods()
            new = [pod for pod in pods if pod["metadata"]["uid"] not in before]
            return len(new) >= expected and all(_settled(pod) for pod in pods)

        self.until(settled, f"{expected} pods of {path.name} are placed or refused")

    def all_gpu_pods(self) -> list[Json]:
        """Return the pods that ask for GPUs."""
        return [pod for pod in self.items("pods", "--all-namespaces") if any(map(_asks, containers([pod])))]

    def gpu_pods(self) -> list[Json]:
        """Return those that have not ended."""
        return [pod for pod in self.all_gpu_pods() if pod["status"].get("phase") not in {"Succeeded", "Failed"}]

    def given(self) -> dict[str, Given]:
        """Return what each running container has, by namespace, pod and container."""
        found = {}
        for pod in self.gpu_pods():
            meta = pod["metadata"]
            running = [
                each["name"] for each in pod["status"].get("containerStatuses", ()) if "running" in each["state"]
            ]
            for container in pod["spec"]["containers"]:
                if _asks(container) and container["name"] in running:
                    where = (f"--namespace={meta['namespace']}", meta["name"], f"--container={container['name']}")
                    lines = self.kubectl("exec", *where, "--", "env").splitlines()
                    environ = dict(line.split("=", 1) for line in lines if "=" in line)
                    found[f"{meta['namespace']}/{meta['name']}/{container['name']}"] = Given.of(environ)
        return found

    def gpus(self) -> dict[str, Json]:
        """Return the GPUs that the node says it has, by UUID."""
        notes = self.get("node", self.node)["metadata"]["annotations"]
        return {gpu["uuid"]: gpu for gpu in json.loads(notes["gpu-device-plugin/gpus"])["gpus"]}

    def offered(self, which: str = "allocatable") -> dict[str, int]:
        """Return what the node offers of both resources."""
        amounts = self.get("node", self.node)["status"][which]
        return {name: int(amounts[name]) for name in (GPU_MEM, GPU_COUNT) if name in amounts}

    def measured(self, component: str, port: int, *names: str) -> list[float]:
        """Return what the pods of one of our programs tell Prometheus under these names."""
        pods = self.items("pods", "--namespace=gpushare", f"--selector=app.kubernetes.io/component={component}")
        found = []
        for pod in pods:
            path = f"/api/v1/namespaces/gpushare/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
            lines = (line.rpartition(" ") for line in self.run("kubectl", "get", "--raw", path).stdout.splitlines())
            found += [float(value) for name, _, value in lines if name.partition("{")[0] in names]
        return found

    def tell_to_end(self, pod: Json, container: str) -> None:
        """Let a container of the guide end well, whose command would have ended on real GPUs."""
        meta = pod["metadata"]
        # What is run there may not live to tell how it went.
        self.run(
            *("kubectl", "exec", f"--namespace={meta['namespace']}", meta["name"], f"--container={container}"),
            *("--", "sh", "-c", "kill 1"),
        )

    def clear(self) -> None:
        """Remove what was applied of the guide, and wait until the node has everything back."""
        for path in reversed(self.applied):
            self.kubectl("delete", "--ignore-not-found", "--wait=false", "--filename", str(path))

        for pod in self.all_gpu_pods():
            meta = pod["metadata"]
            self.run("kubectl", "delete", "pod", f"--namespace={meta['namespace']}", meta["name"], "--wait=false")
        made = {body["metadata"]["name"] for path in self.applied for body in documents(path) if _is_namespace(body)}

        def gone() -> bool:
            namespaces = {each["metadata"]["name"] for each in self.items("namespaces")}
            return not self.all_gpu_pods() and not made & namespaces

        self.until(gone, "all pods with GPUs are gone")
        self.applied.clear()


# --- Processes on a node of ours --------------------------------------------------------------------------------------


def process_of(cluster: Cluster, name: str) -> int | None:
    """Return the process of a pod's container, as the node numbers it."""
    if (seen := seen_process_of(cluster, name)) is None:
        return None
    # Of the namespaces that it is in, from ours inwards, the last is the container's.
    (numbers,) = re.findall(r"^NSpid:\s+(.*)$", (seen / "status").read_text(), re.MULTILINE)
    return int(numbers.split()[-2])


def seen_process_of(cluster: Cluster, name: str, *where: str) -> Path | None:
    """Return the folder in our /proc of the process of a pod's container.

    Before the container runs, processes of runc are in its control group, which end.
    """
    statuses = cluster.get("pod", name, *where)["status"].get("containerStatuses") or [{}]
    container = (
        statuses[0].get("containerID", "").rpartition("/")[2] if "running" in statuses[0].get("state", {}) else ""
    )
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if container and container in path.read_text():
                return path.parent
    return None


def _is_namespace(body: Json) -> bool:
    return bool(body["kind"] == "Namespace")


def _pod_specs(body: Json) -> Iterator[Json]:
    if body["kind"] == "Pod":
        yield body["spec"]
    elif "template" in body.get("spec", {}):
        yield body["spec"]["template"]["spec"]


def containers(bodies: Iterable[Json]) -> Iterator[Json]:
    for body in bodies:
        for spec in _pod_specs(body):
            yield from (*spec.get("initContainers", ()), *spec["containers"])


def _asks(container: Json) -> bool:
    return bool({GPU_MEM, GPU_COUNT} & container.get("resources", {}).get("limits", {}).keys())


def _settled(pod: Json) -> bool:
    """Whether a pod runs and its agent has written so, or waits and its scheduler has said why."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    if "nodeName" not in pod["spec"]:
        if pod["status"].get("nominatedNodeName"):
            return False
        return any(each["type"] == "PodScheduled" for each in pod["status"].get("conditions", ()))
    statuses = [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]
    assigned = pod["metadata"].get("annotations", {}).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true"
    return any("running" in each["state"] for each in statuses) and assigned
