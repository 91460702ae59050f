"""What deploy/optional/capacity.yaml lets the extender's account do, asked of a real API server."""

from functools import partial
from typing import Any

import pytest

from gpu_device_plugin.features.capacity.contract import kept
from gpu_device_plugin.features.capacity.rules.node_requests import (
    IMAGE,
    PRIORITY_CLASS,
    Wanted,
    buffer_of,
    named,
    pod_of,
)
from gpu_device_plugin.model.contract.keys import STARTUP_TAINT
from gpu_device_plugin.scheduler.rules.node_constraints import Terms, Toleration
from tests.builders import container, node, pod
from tests.deploy.manifests import DEPLOY, Json, documents
from tests.deploy.policies_world import API, EXTENDER, MERGE, PERSON, PolicyWorld, Request, create, denial, path_of
from tests.patience import REAL_S, eventually

pytestmark = pytest.mark.timeout(600)

POLICY = "gpushare-capacity"
TAINTS = [{"key": key, "effect": "NoSchedule"} for key in (STARTUP_TAINT, "dedicated", "node.kubernetes.io/not-ready")]
"""The API server adds the last one to every new node."""


def on_node(**body: Any) -> Request:
    return Request("PATCH", "/api/v1/nodes/new", body, MERGE)


def annotated(**annotations: str) -> Request:
    return on_node(metadata={"annotations": annotations})


WANTED = Wanted(
    Terms((Toleration("dedicated", "Exists"),), {"pool": "gpus"}),
    {"gpu-device-plugin/product": ["Tesla-T4"]},
    ("old",),
    ("default/p",),
)
EXTENDERS_POD = {"apiVersion": "v1", "kind": "Pod", "name": "extender", "uid": "0b5d1f3a-0000-4000-8000-000000000001"}


def stand_in(
    meta: Json | None = None, container: Json | None = None, namespace: str = "gpushare", **changed: Any
) -> Request:
    """Make a pod that stands for room: as the extender does, but for what is changed."""
    ((name, template),) = named([WANTED]).items()
    body = pod_of(name, namespace, template, [EXTENDERS_POD])
    spec = {**body["spec"], **changed}
    spec["containers"] = [{**spec["containers"][0], **(container or {})}, *spec["containers"][1:]]
    return create({**body, "metadata": {**body["metadata"], **(meta or {})}, "spec": spec})


def made(number: int, meta: Json | None = None, **changed: Any) -> Request:
    """Make the template (0) or the buffer (1) by which a node is asked for, but for what is changed."""
    ((name, template),) = named([WANTED]).items()
    body = buffer_of(name, "gpushare", template, [EXTENDERS_POD], "v1beta1")[number]
    body = {**body, "metadata": {**body["metadata"], **(meta or {})}}
    return Request("POST", path_of(body), {**body, "spec": {**body["spec"], **changed}} if number else body)


def bound(name: str, *, old_path: bool = False) -> Request:
    path = f"/api/v1/namespaces/gpushare/{'bindings' if old_path else f'pods/{name}/binding'}"
    target = {"apiVersion": "v1", "kind": "Node", "name": "new"}
    return Request("POST", path, {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target})


def removed(resource: str, name: str) -> Request:
    group = "/apis/autoscaling.x-k8s.io/v1beta1" if resource == "capacitybuffers" else "/api/v1"
    return Request("DELETE", f"{group}/namespaces/gpushare/{resource}/{name}", {})


HOST = [{"name": "host", "hostPath": {"path": "/"}}]
A_CONTAINER: Json = {"name": "more", "image": "registry.k8s.io/pause:3.10"}

ALLOWED = {
    "keep autoscalers from a node": on_node(metadata={"annotations": dict(kept({}, "no room"))}),
    "hold room": annotated(**{"gpu-device-plugin/held-room": "{}"}),
    "remove its taint": on_node(spec={"taints": TAINTS[1:]}),
    "make a stand-in": stand_in(),
    "make a stand-in that asks for nothing": stand_in(container={"resources": {}}),
    "make a template": made(0),
    "make a buffer": made(1),
    "bind another pod of its namespace": bound("waiting"),
    "remove a template": removed("podtemplates", "gpu-room-old"),
    "remove a buffer": removed("capacitybuffers", "gpu-room-old"),
}
REFUSED = {
    "another annotation": annotated(**{"gpu-device-plugin/gpus": "{}"}),
    "a label": on_node(metadata={"labels": {"gpushare": "false"}}),
    "another taint": on_node(spec={"taints": TAINTS[::2]}),
    "a cordon": on_node(spec={"unschedulable": True}),
    # Whoever removes nodes whose machine or owner is gone would remove these.
    "another machine": on_node(spec={"providerID": "fake://other"}),
    "an owner": on_node(metadata={"ownerReferences": [EXTENDERS_POD]}),
    "a stand-in that a scheduler places": stand_in(schedulerName="default-scheduler"),
    "a pod on a node": stand_in(nodeName="new"),
    "any pod": create(pod("any", container())),
    "a stand-in of another name": stand_in(meta={"name": "gpushare-node-x"}),
    "a stand-in with no mark": stand_in(meta={"labels": {}}),
    "a stand-in that nobody can remove": stand_in(meta={"finalizers": ["example.com/held"]}),
    "a stand-in of a DaemonSet": stand_in(meta={"ownerReferences": [{**EXTENDERS_POD, "kind": "DaemonSet"}]}),
    "a stand-in of another priority": stand_in(priorityClassName="system-node-critical"),
    "a stand-in with the agents' account": stand_in(serviceAccountName="gpushare-node"),
    "a stand-in with a token": stand_in(automountServiceAccountToken=True),
    "a stand-in with the host's files": stand_in(
        volumes=HOST, container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    ),
    "a stand-in with a volume that none mounts": stand_in(volumes=HOST),
    "a stand-in in the host's network": stand_in(hostNetwork=True),
    "a stand-in among the host's processes": stand_in(hostPID=True),
    "a stand-in in the host's IPC": stand_in(hostIPC=True),
    "a stand-in as root": stand_in(securityContext={"runAsUser": 0}),
    "a privileged stand-in": stand_in(container={"securityContext": {"privileged": True}}),
    "a stand-in with a capability": stand_in(
        container={"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}}
    ),
    "a stand-in of another image": stand_in(container={"image": "example.com/any:1"}),
    "a stand-in that runs a command": stand_in(container={"command": ["sh"]}),
    "a stand-in with variables": stand_in(container={"env": [{"name": "A", "value": "b"}]}),
    "a stand-in with a port of the host": stand_in(container={"ports": [{"containerPort": 1, "hostPort": 1}]}),
    "a stand-in of two containers": stand_in(containers=[stand_in().body["spec"]["containers"][0], A_CONTAINER]),
    "a stand-in with an init container": stand_in(initContainers=[A_CONTAINER]),
    "a stand-in with a runtime of its own": stand_in(runtimeClassName="kata"),
    "a template of another name": made(0, meta={"name": "any"}),
    "a buffer of another name": made(1, meta={"name": "any"}, podTemplateRef={"name": "any"}),
    "a buffer of a thousand nodes": made(1, replicas=1000),
    "a buffer of another's template": made(1, podTemplateRef={"name": "other"}),
    "a buffer of another's workload": made(1, scalableRef={"apiGroup": "apps", "kind": "Deployment", "name": "other"}),
    "a stand-in bound": bound("gpu-room-old"),
    "a stand-in bound on the old path": bound("gpu-room-old", old_path=True),
    "a template of another removed": removed("podtemplates", "other"),
    "a buffer of another removed": removed("capacitybuffers", "other"),
}


async def furnish(api: PolicyWorld) -> None:
    new: Json = node("new", mem=32)
    new["spec"] = {"taints": TAINTS}
    await api.make(new)
    await api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushare"}})
    for name in ("default", "gpushare-node"):
        account = {"name": name, "namespace": "gpushare"}
        await api.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    await api.make(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}
    )
    await _buffers(api)
    for each in documents(DEPLOY / "optional" / "capacity.yaml"):
        if each["kind"] == "PriorityClass":
            await api.make(each)
    ((_, template),) = named([WANTED]).items()
    for name in ("gpu-room-old", "other"):
        for each in buffer_of(name, "gpushare", template, [], "v1beta1"):
            await api.make(each)
    await api.make(pod_of("gpu-room-old", "gpushare", template, []))
    await api.make(pod("waiting", container(), namespace="gpushare"))
    for each in documents(DEPLOY / "optional" / "capacity.yaml"):
        if each["kind"].startswith("ValidatingAdmissionPolicy"):
            await api.make(each)
    await api.until(EXTENDER, REFUSED["any pod"], partial(refused))


async def _buffers(api: PolicyWorld) -> None:
    """Have the API server serve CapacityBuffers, with a default as the Cluster Autoscaler's definition has one."""
    free: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    strategy = {"provisioningStrategy": {"type": "string", "default": "buffer.x-k8s.io/active-capacity"}}
    schema = {"type": "object", "properties": {"spec": {**free, "properties": strategy}}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "CapacityBuffer", "plural": "capacitybuffers", "singular": "capacitybuffer"}
    of = "autoscaling.x-k8s.io"
    meta = {
        "name": f"capacitybuffers.{of}",
        "annotations": {"api-approved.kubernetes.io": "https://example.com/a-test"},
    }
    spec = {"group": of, "names": names, "scope": "Namespaced", "versions": [version]}
    await api.make(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}
    )

    async def served() -> bool:
        groups = (await api.call("GET", "/apis"))["groups"]
        return any(group["name"] == of for group in groups)

    await eventually(served, quiet_s=REAL_S, pause_s=0.2)


def refused(answer: Json) -> bool:
    return denial(answer)[0] == POLICY


async def test_the_account_does_for_the_capacity_what_it_must_and_nothing_else(api: PolicyWorld) -> None:
    await furnish(api)
    try:
        for what, request in ALLOWED.items():
            status, answer = await api.ask(EXTENDER, request)
            assert status < 300, (what, answer)
        for what, request in REFUSED.items():
            status, answer = await api.ask(EXTENDER, request)
            assert refused(answer), (what, answer)
            status, answer = await api.ask(PERSON, request)
            assert status < 300, (what, answer)
    finally:  # other modules try the other policies on the same API server
        await api.call("DELETE", f"{API}/validatingadmissionpolicybindings/{POLICY}")
        await api.until(EXTENDER, create(pod("any", container())), lambda answer: not refused(answer))


def test_a_stand_in_is_of_the_image_that_the_policy_knows() -> None:
    (policy,) = (each for each in documents("optional/capacity") if each["kind"] == "ValidatingAdmissionPolicy")
    (found,) = (each["expression"] for each in policy["spec"]["variables"] if each["name"] == "otherwise")

    assert f"c.image == '{IMAGE}'" in found


def test_stand_ins_have_the_priority_class_of_the_manifest() -> None:
    (found,) = (each for each in documents(DEPLOY / "optional" / "capacity.yaml") if each["kind"] == "PriorityClass")

    assert (found["metadata"]["name"], found["value"]) == (PRIORITY_CLASS, -10)


def test_twice_as_many_nodes_as_the_extender_asks_for_are_the_most_by_pods_and_by_buffers() -> None:
    """By the policy a buffer asks for one node, and by the template of its own name."""
    quotas = (each["spec"] for each in documents("optional/capacity") if each["kind"] == "ResourceQuota")

    hard = {name: most for spec in quotas for name, most in spec["hard"].items()}
    assert hard == {"pods": "200", "count/podtemplates": "200"}
