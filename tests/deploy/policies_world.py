"""A real API server with our admission policies, a few pods and nodes, and accounts to try them with."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.model.contract.keys import MOVE_TO, RESIZE_BOUND, USE_MODEL
from tests.builders import container, node, pod
from tests.deploy.manifests import Json, documents
from tests.patience import REAL_S, eventually

VALIDATING, MUTATING = "policies", "optional/mutating-policy"

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
API = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"

PLACED = {
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "ALIYUN_COM_GPU_MEM_POD": "4",
    "ALIYUN_COM_GPU_MEM_DEV": "16",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1795169580643598847",
}
"""What a scheduler writes on a pod."""


@dataclass(frozen=True)
class User:
    """Who asks: an account that the administrator speaks for, or one with a token of its own."""

    name: str
    groups: tuple[str, ...] = ("system:masters",)
    """By default with every right that RBAC knows: what is refused then is refused by a policy."""
    token: str = ""
    """Which of the world's tokens; empty to be impersonated."""


PERSON = User("ada")
EXTENDER = User("system:serviceaccount:gpushare:gpu-device-plugin-scheduler")
SCHEDULER = User("system:kube-scheduler")
TENANT = User("eve", ("tenants",))
"""Has the rights that an owner of pods has in a namespace: he may write them, and evict none."""
MOVER = User("mia", ("tenants", "movers"))
"""May evict pods besides."""
CONTROLLER = User("system:serviceaccount:kube-system:replicaset-controller")
KUBELET = User("system:node:node-a", ("system:nodes", "system:masters"))
AGENT_A = User("agent of node-a", token="node-a")  # noqa: S106 - the name of a token
AGENT_B = User("agent of node-b", token="node-b")  # noqa: S106
AGENT_UNBOUND = User("agent without a pod", token="no pod")  # noqa: S106


@dataclass(frozen=True)
class Request:
    """One request; all of the tables' are dry runs, so that none depends on another."""

    method: str
    path: str
    body: Json
    content_type: str = "application/json"


def create(body: Json) -> Request:
    return Request("POST", f"/api/v1/namespaces/{body['metadata']['namespace']}/pods", body)


def patch(name: str, body: Json, subresource: str = "", content_type: str = MERGE) -> Request:
    return Request("PATCH", f"{PODS}/{name}{subresource and '/'}{subresource}", body, content_type)


def annotate(name: str, annotations: Mapping[str, str | None], subresource: str = "") -> Request:
    return patch(name, {"metadata": {"annotations": dict(annotations)}}, subresource)


def bind(name: str, annotations: Mapping[str, str] | None = None, *, old_path: bool = False) -> Request:
    """Bind a pod to node-a as schedulers do, or over the path that they used before there were subresources."""
    path = "/api/v1/namespaces/default/bindings" if old_path else f"{PODS}/{name}/binding"
    metadata = {"name": name, **({"annotations": dict(annotations)} if annotations else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-a"}
    return Request("POST", path, {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})


def end(name: str, namespace: str = "default") -> Request:
    return Request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {})


def evict(name: str, namespace: str = "default", **options: object) -> Request:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    meta = {"name": name, "namespace": namespace}
    return Request(
        "POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
    )


def debug(name: str, env: list[Json], **more: object) -> Request:
    """Add a debugging container, as `kubectl debug` does."""
    added = {"name": "debugger", "image": "example.com/tools:1", "env": env, **more}
    return patch(name, {"spec": {"ephemeralContainers": [added]}}, "ephemeralcontainers", STRATEGIC)


def annotate_node(name: str) -> Request:
    return Request(
        "PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"gpu-device-plugin/gpus": "{}"}}}, MERGE
    )


def event(node: str, **other: object) -> Json:
    """Return an Event as an agent writes it about its node."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{node}-", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "gpu-device-plugin",
        "reportingInstance": node,
        "action": "Watching",
        "reason": "GPUUnhealthy",
        "note": "XID 48",
        "type": "Warning",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        **other,
    }


def tell(body: Json) -> Request:
    return Request("POST", EVENTS, body)


def tell_again(name: str) -> Request:
    """Count a repetition, as the agents do."""
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}
    return Request("PATCH", f"{EVENTS}/{name}", {"series": series}, MERGE)


SHORT_NAMES = tuple(f"{number:x}" for number in range(30_000))
"""So short that one object can have very many of them."""


def notes(number: int) -> dict[str, str]:
    """Return annotations as somebody writes them who wants many."""
    return {f"note-{each}": "" for each in range(number)}


def setting(body: Json, **env: str) -> Json:
    """Return a container like `body` that sets variables."""
    return {**body, "env": [{"name": name, "value": value} for name, value in env.items()]}


CLUSTERED = frozenset(
    f"{kind}{more}"
    for kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy", "ClusterRole")
    for more in ("", "Binding")
) | {
    "CustomResourceDefinition",
    "Namespace",
    "Node",
    "PersistentVolume",
    "DeviceClass",
    "ResourceSlice",
    "RuntimeClass",
    "PriorityClass",
}
"""The kinds of objects that are in no namespace."""


def path_of(body: Json) -> str:
    """Return where the API has the objects of this one's kind and namespace."""
    version, kind = body["apiVersion"], body["kind"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    namespace = "" if kind in CLUSTERED else f"/namespaces/{body['metadata'].get('namespace', 'default')}"
    plural = re.sub(r"ys$", "ies", f"{kind.lower()}s")
    return f"{root}{namespace}/{re.sub('sss$', 'sses', plural)}"


@dataclass
class PolicyWorld:
    """The API server, and how to ask it."""

    config: ClusterConfig
    http: aiohttp.ClientSession
    tokens: dict[str, str] = field(default_factory=dict)
    mutates: bool = True
    """The API server knows MutatingAdmissionPolicy v1."""

    async def ask(self, user: User | None, request: Request, *, dry_run: bool = True) -> tuple[int, Json]:
        """Return status and body of the answer; None asks as the administrator."""
        headers = [("Content-Type", request.content_type)]
        if user is not None and user.token:
            headers.append(("Authorization", f"Bearer {self.tokens[user.token]}"))
        else:
            headers.append(("Authorization", f"Bearer {self.config.token}"))
            if user is not None:
                headers.append(("Impersonate-User", user.name))
                headers += [("Impersonate-Group", group) for group in user.groups]
        url = self.config.url + request.path + ("?dryRun=All" if dry_run else "")
        async with self.http.request(
            request.method, url, json=request.body, headers=headers, ssl=self.config.tls()
        ) as answer:
            found: Json = await answer.json()
            return answer.status, found

    async def call(
        self, method: str, path: str, body: Json | None = None, content_type: str = "application/json"
    ) -> Json:
        """Do something as the administrator; return the answer."""
        return (await self.ask(None, Request(method, path, body or {}, content_type), dry_run=False))[1]

    async def make(self, body: Json, query: str = "") -> Json:
        """Create an object as the administrator, unless it is there already; return it."""
        path = path_of(body)
        found = await self.call("GET", f"{path}/{body['metadata']['name']}")
        if found["kind"] == "Status":
            found = await self.call("POST", path + query, body)
            assert found["kind"] != "Status", found
        return found

    async def until(self, user: User, request: Request, condition: Callable[[Json], bool]) -> None:
        """Ask again until the answer is as wanted: policies take effect a moment after they are made."""
        answer: Json = {}

        async def so() -> bool:
            nonlocal answer
            _, answer = await self.ask(user, request)
            return condition(answer)

        await eventually(so, quiet_s=REAL_S, pause_s=0.2)


def denial(answer: Json) -> tuple[str, str]:
    """Return which policy refused, and what it said. Of several that would, the API server names one."""
    form = r"ValidatingAdmissionPolicy '(.+?)' with binding '.+?' denied request: (.+)"
    found = re.search(form, answer.get("message", ""))
    return (found[1], found[2]) if found else ("", "")


async def furnish(world: PolicyWorld) -> None:
    """Make what was there before the policies: nodes, pods, and the agents with their account, rights and tokens."""
    for name, labels in (("node-a", ()), ("node-b", SHORT_NAMES)):
        await world.make(node(name, mem=32, labels=dict.fromkeys(labels, "")))
    apart = {"name": "apart", "labels": {"gpu-device-plugin/set-scheduler": "false"}}
    bounded = {"name": "bounded", "labels": {RESIZE_BOUND: "8"}}
    for metadata in (apart, bounded):
        await world.make({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    sharing = container(mem=4)
    old = {**setting(sharing, NVIDIA_VISIBLE_DEVICES="all")}
    for body in (
        pod("waiting", sharing),
        pod("placed", sharing, node="node-a", annotations=PLACED, labels={"app": "x"}),
        pod("promised", sharing, annotations=PLACED),
        pod("plain", node="node-a"),
        pod("sliced", container(limits={"aliyun.com/mig-1g.10gb": "1"}), node="node-a"),
        {
            **(claiming := pod("claiming", {**container(), "resources": {"claims": [{"name": "gpu"}]}}, node="node-a")),
            "spec": {**claiming["spec"], "resourceClaims": [{"name": "gpu", "resourceClaimName": "a-gpu"}]},
        },
        pod("free"),
        {
            **(older := pod("older", old, node="node-a", annotations={"cdi.k8s.io/old": "nvidia.com/gpu=all"})),
            "spec": {**older["spec"], "volumes": [{"name": "null", "hostPath": {"path": "/dev/null"}}]},
        },
        pod("noted", sharing, node="node-a", annotations=notes(1000)),
        pod("wordy", sharing, node="node-a", annotations={USE_MODEL: "x" * 65_000}),
        pod("overloaded", sharing, node="node-a", annotations=notes(5000)),
        pod("endless", sharing, node="node-a", annotations=dict.fromkeys(SHORT_NAMES, "")),
        pod("labelled", sharing, node="node-a", labels=dict.fromkeys(SHORT_NAMES, "")),
        pod("moving", sharing, node="node-a", annotations={MOVE_TO: '{"node": "node-b", "gpus": {"0": 4}}'}),
        {
            **(critical := pod("critical", sharing, namespace="kube-system", node="node-a")),
            "spec": {**critical["spec"], "priorityClassName": "system-node-critical"},
        },
        pod("crowded", *(container(f"c{number}", mem=1) for number in range(250)), node="node-a"),
    ):
        await world.make(body)
    for name, regarding in (("ours", "node-a"), ("theirs", "node-b")):
        told = event(regarding)
        await world.make({**told, "metadata": {"name": name, "namespace": "default"}})
    for name, resource in (("tenants", "pods"), ("movers", "pods/eviction")):
        rules = [{"apiGroups": [""], "resources": [resource, f"{resource}/status"], "verbs": ["create", "patch"]}]
        group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        of_rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        await world.make({**of_rbac, "kind": "ClusterRole", "rules": rules})
        await world.make({**of_rbac, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [group]})
    await _volumes(world)
    await _agents(world)
    found = await world.call("GET", API)
    world.mutates = any(each["name"] == "mutatingadmissionpolicies" for each in found["resources"])


async def _volumes(world: PolicyWorld) -> None:
    """Make a volume that is free, one that a claim has, and a claim without a volume."""
    spec: Json = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "hostPath": {"path": "/data"},
    }
    taken = {"namespace": "default", "name": "claim", "uid": "0b5d1f3a-0000-4000-8000-000000000001"}
    for name, more in (("free", {}), ("taken", {"claimRef": taken})):
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
        await world.make({**body, "spec": {**spec, **more}})
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    meta = {"name": "waiting", "namespace": "default"}
    await world.make({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim})


async def _agents(world: PolicyWorld) -> None:
    """Make the agents' account with all rights that it can be given, and a token for each as kubelets ask it."""
    for each in [*documents("daemonset"), *documents("optional/evict")]:
        if each["kind"] in {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}:
            await world.make(each)
    for name in ("node-a", "node-b"):
        agent = pod(f"agent-{name}", namespace="gpushare", node=name)
        agent["spec"]["serviceAccountName"] = "gpushare-node"
        made = await world.make(agent)
        uid = made["metadata"]["uid"]
        world.tokens[name] = await _token(
            world, {"boundObjectRef": {"kind": "Pod", "name": f"agent-{name}", "uid": uid}}
        )
    world.tokens["no pod"] = await _token(world, {})


async def _token(world: PolicyWorld, spec: Json) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = "/api/v1/namespaces/gpushare/serviceaccounts/gpushare-node/token"
    token: str = (await world.call("POST", path, body))["status"]["token"]
    return token


async def apply_policies(world: PolicyWorld) -> None:
    for each in [*documents(VALIDATING), *(documents(MUTATING) if world.mutates else ())]:
        await world.make(each)
