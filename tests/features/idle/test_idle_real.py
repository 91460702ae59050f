"""Idle GPUs come back on a real API server with Kubernetes' controllers (KUBE_BIN), by the rights that we ship."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES, EXTENDER_SETTINGS
from gpu_device_plugin.features.idle.scheduler import IdleActions
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ForbiddenError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, ObjectKind
from gpu_device_plugin.kubernetes.writers.workloads import NOTEBOOK, SCALED, pods_of, workload_of
from gpu_device_plugin.model.contract.keys import (
    IDLE_SINCE,
    NODE_USE,
    NOTEBOOK_STOPPED,
    REPLICAS_BEFORE_IDLE,
    WHEN_IDLE,
)
from gpu_device_plugin.model.contract.node_use import NodeUse, write_node_use
from gpu_device_plugin.model.pods import Owner
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.settings.sources import Sources
from tests.builders import GPU_COUNT, GPU_MEM, container, pod
from tests.cluster_double.owned import owned, workload
from tests.deploy.manifests import DEPLOY
from tests.deploy.test_apply import Kubectl, api_server
from tests.patience import REAL_S, eventually
from tests.scheduler.harness import NODE_GPUS, QUICK, gpus

pytestmark = pytest.mark.timeout(REAL_S * 4)

Json = dict[str, Any]

DEPLOYMENTS = SCALED["Deployment"]
ACCOUNT = "system:serviceaccount:gpushare:gpu-device-plugin-scheduler"
NOTEBOOKS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "notebooks.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "names": {"kind": "Notebook", "listKind": "NotebookList", "plural": "notebooks", "singular": "notebook"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
CRDS = ObjectKind("customresourcedefinitions", "apiextensions.k8s.io")
STATEFUL_SETS = SCALED["StatefulSet"]


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    controllers = ("deployment", "replicaset", "statefulset", "garbage-collector", "serviceaccount")
    with api_server(tmp_path_factory.mktemp("idle"), *(f"{name}-controller" for name in controllers)) as running:
        for path in ("daemonset.yaml", "scheduler.yaml", "policies.yaml", "optional/idle.yaml"):
            running("apply", "--validate=false", f"--filename={DEPLOY / path}")
        yield running


def config_of(kubectl: Kubectl, token: str = "") -> ClusterConfig:
    """Return how to reach the API server as an administrator, or with another token."""
    document = yaml.safe_load(kubectl.kubeconfig.read_text(encoding="utf-8"))
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    ca = kubectl.kubeconfig.parent / cluster["certificate-authority"]
    return ClusterConfig(cluster["server"], ca_file=ca, token=token or user["token"])


@dataclass
class Cluster:
    """What the test acts on."""

    admin: Client

    async def get(self, kind: ObjectKind, name: str) -> Json:
        found: Json = json.loads(await self.admin.get(kind, name, namespace="default"))
        return found

    async def pods_of(self, app: str) -> list[Json]:
        pages = self.admin.pages(PODS, namespace="default", labels=f"app={app}")
        found = [json.loads(bytes(item)) async for page in pages for item in page.items or ()]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    async def replicas(self, app: str, number: int) -> list[Json]:
        """Wait until the controllers have made so many pods."""

        async def there() -> bool:
            return len(await self.pods_of(app)) == number

        await eventually(there, f"{number} pods of {app}", quiet_s=REAL_S)
        return await self.pods_of(app)

    async def run_idle(self, app: str, number: int, when: str) -> None:
        """Bind the pods of a workload, as a scheduler does, and let them be idle."""
        for each in await self.replicas(app, number):
            name = each["metadata"]["name"]
            await self.run_pod(name, when)

    async def run_pod(self, name: str, when: str) -> None:
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
        await self.admin.create(PODS, binding, namespace="default", name=name, subresource="binding")
        running = {"status": {"phase": "Running"}}
        await self.admin.patch(PODS, name, running, namespace="default", subresource="status")
        idle = {IDLE_SINCE: rfc3339(time.time() - 3600), WHEN_IDLE: when}
        await self.admin.patch(PODS, name, {"metadata": {"annotations": idle}}, namespace="default")


async def test_idle_gpus_come_back_and_wake_on_a_real_api_server(
    kubectl: Kubectl, capfd: pytest.CaptureFixture[str]
) -> None:
    token = "".join(kubectl("create", "token", "gpu-device-plugin-scheduler", "--namespace=gpushare"))
    async with Client(config_of(kubectl)) as admin, Client(config_of(kubectl, token)) as theirs:
        its = Cluster(admin)
        await admin.create(CRDS, NOTEBOOKS)
        notes = {NODE_GPUS: gpus("n", 40), NODE_USE: write_node_use(NodeUse(rfc3339(time.time())))}
        await admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "annotations": notes}})
        amounts = {GPU_MEM: "40", GPU_COUNT: "1"}
        await admin.patch(NODES, "n", {"status": {"capacity": amounts}}, subresource="status")
        await admin.create(DEPLOYMENTS, workload("web", container(mem=2), replicas=2), namespace="default")
        await admin.create(
            STATEFUL_SETS, workload("db", container(mem=2), kind="StatefulSet", replicas=1), namespace="default"
        )
        meta = {"name": "lab", "namespace": "default"}
        lab = json.loads(
            await admin.create(
                NOTEBOOK, {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "metadata": meta}, namespace="default"
            )
        )
        of_lab = owned(workload("lab", container(mem=2), kind="StatefulSet", replicas=1), lab)
        await admin.create(STATEFUL_SETS, of_lab, namespace="default")
        await admin.create(PODS, pod("alone", container(mem=2)), namespace="default")

        settings = Sources(
            EXTENDER_SETTINGS, {"listen": "127.0.0.1:0", "http": "", "idle_warning": "1s"}, environ={}
        ).read()
        extender = Extender(
            settings,
            config_of(kubectl, token),
            features=EXTENDER_FEATURES,
            timings=replace(QUICK),
            when_read=lambda: None,
        )
        extender.features.of(IdleActions).look_s = 0.1
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(extender.run())
            await its.run_idle("web", 2, "scale-to-zero")
            await its.run_idle("db", 1, "scale-to-zero")
            await its.run_idle("lab", 1, "scale-to-zero")
            await its.run_pod("alone", "evict")

            async def reclaimed() -> bool:
                web, db = await its.get(DEPLOYMENTS, "web"), await its.get(STATEFUL_SETS, "db")
                stopped = (await its.get(NOTEBOOK, "lab"))["metadata"].get("annotations", {})
                alone = (await its.get(PODS, "alone"))["metadata"]
                zero = web["spec"]["replicas"] == db["spec"]["replicas"] == 0
                return zero and NOTEBOOK_STOPPED in stopped and "deletionTimestamp" in alone

            await eventually(reclaimed, "idle GPUs come back", running=lambda: [running], quiet_s=REAL_S)
            assert await its.replicas("web", 0) == []
            for kind, name, number in ((DEPLOYMENTS, "web", "2"), (STATEFUL_SETS, "db", "1"), (NOTEBOOK, "lab", "1")):
                annotations = (await its.get(kind, name))["metadata"]["annotations"]
                assert annotations[REPLICAS_BEFORE_IDLE] == number

            async def told() -> bool:
                lines = await asyncio.to_thread(kubectl, "get", "events", "--output=jsonpath={..reason}")
                return {"GPUIdleWarning", "GPUIdleScaled", "GPUIdleEvicted"} <= set(" ".join(lines).split())

            await eventually(told, "the Events are there", quiet_s=REAL_S)
            running.cancel()

        program = shutil.which("kubectl", path=os.environ.get("KUBE_BIN"))
        flags = [f"--kubeconfig={kubectl.kubeconfig}", "-n", "default"]
        assert await asyncio.to_thread(main, ["wake", *flags], kubectl=str(program), environ={}) == 0
        assert sorted(line.partition(" ")[0] for line in capfd.readouterr().out.splitlines()) == [
            "default/deployment/web",
            "default/notebook/lab",
            "default/statefulset/db",
        ]
        for name in ("deployment/web", "statefulset/db", "notebook/lab"):
            assert await asyncio.to_thread(main, ["wake", name, *flags], kubectl=str(program), environ={}) == 0
        assert len(await its.replicas("web", 2)) == 2
        for kind, name in ((DEPLOYMENTS, "web"), (STATEFUL_SETS, "db"), (NOTEBOOK, "lab")):
            left = (await its.get(kind, name))["metadata"].get("annotations", {})
            assert {REPLICAS_BEFORE_IDLE, NOTEBOOK_STOPPED}.isdisjoint(left)
        await refused_to_a_thief(theirs)


async def refused_to_a_thief(theirs: Client) -> None:
    """What a stolen token of the account cannot do, although it may patch workloads."""
    image = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "evil"}]}}}}
    for body in (image, {"metadata": {"labels": {"a": "b"}}}, {"metadata": {"annotations": {"a": "b"}}}):
        with pytest.raises(ForbiddenError, match="gpushare-own-workloads"):
            await theirs.patch(DEPLOYMENTS, "web", body, namespace="default")
    with pytest.raises(ForbiddenError, match="gpushare-own-workloads"):
        await theirs.patch(NOTEBOOK, "lab", {"spec": {"template": {}}}, namespace="default")
    for name, namespace, replicas in (("web", "default", 9), ("gpushare-scheduler", "gpushare", 0)):
        scale: Json = {"spec": {"replicas": replicas}}
        with pytest.raises(ForbiddenError, match="gpushare-own-workloads"):
            await theirs.patch(DEPLOYMENTS, name, scale, namespace=namespace, subresource="scale")


async def test_pods_that_a_workload_does_not_select_are_not_its_pods_on_a_real_api_server(kubectl: Kubectl) -> None:
    """Whoever may make pods may write any controller on them."""
    token = "".join(kubectl("create", "token", "gpu-device-plugin-scheduler", "--namespace=gpushare"))
    body = workload("busy", container(mem=2), kind="StatefulSet", replicas=1)
    body["spec"]["selector"]["matchExpressions"] = [
        {"key": "app", "operator": "In", "values": ["busy", "other"]},
        {"key": "app", "operator": "NotIn", "values": ["web"]},
        {"key": "app", "operator": "Exists"},
        {"key": "former", "operator": "DoesNotExist"},
    ]
    async with Client(config_of(kubectl)) as admin, Client(config_of(kubectl, token)) as theirs:
        its = Cluster(admin)
        made = json.loads(await admin.create(STATEFUL_SETS, body, namespace="default"))
        (real,) = await its.replicas("busy", 1)
        forged = pod("forged", container(mem=2), labels={"app": "busy", "former": "yes"})
        await admin.create(PODS, owned(forged, made), namespace="default")
        owner = Owner("StatefulSet", "busy", made["metadata"]["uid"], "apps/v1")
        found = await workload_of(theirs, owner, "default", timeout_s=REAL_S)
        assert await pods_of(theirs, found) == {real["metadata"]["uid"]}
