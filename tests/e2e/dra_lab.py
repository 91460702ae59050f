"""Claims on GPUs, on real Kubernetes: what a person does, and a cluster whose node serves claims."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e import real_cluster, starting
from tests.e2e.cluster import ROOT, Cluster
from tests.patience import REAL_S

Json = dict[str, Any]

DEPLOY = ROOT / "deploy"
IMAGE = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
"""A name that the lab knows, of an image with a shell."""
H200 = {"model": "H200", "memory": "16GiB"}
"""15 shares of 1 GiB."""
DESCRIPTION = "/var/lib/kubelet/device-plugins/fake-gpus.json"
"""On the node, where the agent's pod sees it too."""
LONG_S = REAL_S * 4


def why_not() -> str:
    """Say why this machine cannot run these tests; empty if it can."""
    return starting.why_not() or real_cluster.missing() or real_cluster.missing_cdi()


def minor() -> int:
    """Return the minor version of the Kubernetes in KUBE_BIN."""
    kubelet = f"{os.environ['KUBE_BIN']}/kubelet"
    said = subprocess.run([kubelet, "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split(".")[1])


def pod(name: str, template: str = "", *, claim: str = "", limits: Json | None = None, **more: str) -> Json:
    """Return a pod that stays, with a claim made of a template, a claim of this name, or limits; `more` of its spec."""
    resources: Json = {"limits": limits} if limits else {}
    spec: Json = {"terminationGracePeriodSeconds": 1, **more}
    if template or claim:
        which = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        spec["resourceClaims"] = [{"name": "gpu", **which}]
        resources["claims"] = [{"name": "gpu"}]
    command = ["sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"]
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command, "resources": resources}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec | {"containers": [container]}}


def claim(
    name: str, *, device_class: str = "gpushare", memory: str = "2Gi", config: Any = None, **exactly: Any
) -> Json:
    """Return a claim of a person's own."""
    wanted: Json = {"deviceClassName": device_class, **exactly}
    if device_class == "gpushare" and memory:
        wanted["capacity"] = {"requests": {"memory": memory}}
    devices: Json = {"requests": [{"name": "gpu", "exactly": wanted}]}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": "gpu-device-plugin", "parameters": config}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def run(cluster: Cluster, *bodies: Json) -> None:
    """Create objects, and wait until every pod among them runs."""
    cluster.apply_all(bodies)
    names = [body["metadata"]["name"] for body in bodies if body["kind"] == "Pod"]
    cluster.until(lambda: all(phase(cluster, name) == "Running" for name in names), f"{names} run", LONG_S)


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get("pod", name)["status"].get("phase"))


def environ(cluster: Cluster, name: str) -> dict[str, str]:
    lines = cluster.kubectl("exec", name, "--", "env").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def uuid_of(cluster: Cluster, name: str) -> str:
    return environ(cluster, name)["NVIDIA_VISIBLE_DEVICES"]


def delete(cluster: Cluster, *names: str) -> None:
    cluster.kubectl("delete", "pod", *names, "--timeout=120s")


def waits(cluster: Cluster, name: str, *words: str) -> None:
    """Wait until an Event of a pod says one of these."""
    selector = f"--field-selector=involvedObject.name={name}"
    cluster.until(
        lambda: any(each in event.get("message", "") for event in cluster.items("events", selector) for each in words),
        f"an Event of {name} says {' or '.join(map(repr, words))}",
        LONG_S,
    )


def serve(cluster: Cluster, way: str) -> None:
    cluster.kubectl("label", "--overwrite", "node", cluster.node, f"gpu-device-plugin/serve={way}")


def devices(cluster: Cluster) -> dict[str, Json]:
    found = cluster.items("resourceslices")
    return {device["name"]: device for body in found for device in body["spec"].get("devices", ())}


def told(cluster: Cluster, name: str) -> list[Json]:
    """Return what the status of a claim says of its devices, once it says something."""

    def found() -> list[Json]:
        devices: list[Json] = cluster.get("resourceclaim", name)["status"].get("devices", [])
        return devices

    return cluster.until(found, f"the claim {name} says what it holds", LONG_S)


def health(cluster: Cluster, name: str) -> str:
    """Return the health of the one device of a pod, as the pod's status has it."""
    (status,) = cluster.get("pod", name)["status"]["containerStatuses"]
    return str(status.get("allocatedResourcesStatus", [{"resources": [{}]}])[0]["resources"][0].get("health"))


def describe(cluster: Cluster, *gpus: Json) -> None:
    """Let the fake GPUs of the node be these."""
    on_node(cluster, f"cat > {DESCRIPTION}.new && mv {DESCRIPTION}.new {DESCRIPTION}", json.dumps({"gpus": gpus}))


def on_node(cluster: Cluster, command: str, given: str = "") -> str:
    assert cluster.own is not None
    done = cluster.own.on_node("sh", "-c", command, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def agent(cluster: Cluster) -> str:
    """Return the name of the agent's pod, which runs and is ready."""

    def ready() -> str:
        pods = cluster.items("pods", "--namespace=gpushare", "--selector=app.kubernetes.io/component=node")
        live = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        states = [each["status"].get("containerStatuses", [{}])[0].get("ready") for each in live]
        return str(live[0]["metadata"]["name"]) if states == [True] else ""

    return cluster.until(ready, "one agent runs and is ready", LONG_S)


@contextmanager
def installed(*gpus: Json, published: int) -> Iterator[Cluster]:
    """Have a cluster whose node serves claims, by our manifests; `published`: the number of devices."""
    with starting.started() as cluster:
        describe(cluster, *gpus)
        cluster.apply(DEPLOY / "daemonset.yaml", DEPLOY / "optional/dra.yaml", DEPLOY / "optional/dra-templates.yaml")
        cluster.kubectl(
            *("--namespace=gpushare", "patch", "daemonset", "gpushare-node"),
            *("--patch-file", str(DEPLOY / "patches/dra-agent.yaml")),
        )
        cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_GPUS={DESCRIPTION}")
        serve(cluster, "dra")
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        cluster.until(lambda: len(devices(cluster)) == published, "the node's devices are published", LONG_S)
        yield cluster


def clear(cluster: Cluster) -> None:
    """Remove all pods and claims."""
    cluster.kubectl("delete", "pods,resourceclaims", "--all", "--timeout=180s", "--grace-period=1")
    cluster.until(lambda: not cluster.items("resourceclaims"), "all claims are gone", LONG_S)
