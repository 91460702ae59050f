"""Build pods that another object owns, and the workloads that own pods, in the JSON of the Kubernetes API."""

from gpu_device_plugin.model.contract.keys import STATIC_POD
from tests.builders import Json, pod


def mirror(body: Json, uid: str) -> Json:
    """Return the mirror pod that a kubelet makes of a static pod on the node that `body` names.

    `uid` is the one by which the kubelet knows the static pod: 32 hexadecimal digits, a hash of its manifest.
    """
    meta, node = body["metadata"], body["spec"]["nodeName"]
    annotations = {**meta.get("annotations", {}), "kubernetes.io/config.source": "file", STATIC_POD: uid}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": f"uid-of-{node}", "controller": True}
    return {**body, "metadata": {**meta, "annotations": annotations, "ownerReferences": [owner]}}


def workload(
    name: str, *containers: Json, kind: str = "Deployment", replicas: int | None = None, namespace: str = "default"
) -> Json:
    """Return a Deployment, ReplicaSet or StatefulSet of pods with the label ``app`` and these containers."""
    template = pod(name, *containers, labels={"app": name})
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
        },
    }


def owned(body: Json, owner: Json) -> Json:
    """Return an object with this controller, which has a UID."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [{**reference, "controller": True}]}}
