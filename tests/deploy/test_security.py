"""What the pods need beyond the Pod Security level `restricted` is told with its reason, and no role reads secrets."""

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from tests.deploy.kustomize import render
from tests.deploy.manifests import DEPLOY, Json, documents, pod_of
from tests.deploy.policies_world import (
    AGENT_A,
    AGENT_B,
    AGENT_UNBOUND,
    PolicyWorld,
    Request,
    User,
    annotate,
    furnish,
)
from tests.deploy.policies_world import PODS as POD_LIST
from tests.kubernetes.conftest import processes, programs

PAGE = (DEPLOY.parent / "docs" / "security.md").read_text(encoding="utf-8")
OBJECTS = [
    each for path in sorted((*DEPLOY.glob("*.yaml"), *DEPLOY.glob("optional/*.yaml"))) for each in documents(path)
]
PODS = {
    (each["kind"], each["metadata"]["name"]): pod_of(each)
    for each in OBJECTS
    if each["kind"] in {"DaemonSet", "Deployment"}
}
AGENT = ("DaemonSet", "gpushare-node")
LOOPBACK = ("DaemonSet", "gpushare-extender")
MPS = ("DaemonSet", "gpushare-mps")
LIMITS = ("DaemonSet", "gpushare-limits")


def containers(pod: Json) -> list[Json]:
    return [*pod["containers"], *pod.get("initContainers", ())]


def securities(pod: Json) -> list[Json]:
    """What is in force in each container: what it says itself goes before what the pod says for all."""
    return [{**pod.get("securityContext", {}), **each.get("securityContext", {})} for each in containers(pod)]


def handlers(pod: Json) -> Iterator[Json]:
    for each in containers(pod):
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            yield each.get(name, {})
        yield from each.get("lifecycle", {}).values()


ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
ALLOWED_CAPABILITIES = {"NET_BIND_SERVICE"}

CHECKS: Mapping[str, Callable[[Json], list[str]]] = {
    "host namespaces": lambda pod: [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)],
    "privileged": lambda pod: ["privileged" for each in securities(pod) if each.get("privileged")],
    "unrestricted capabilities": lambda pod: [
        "capabilities"
        for each in securities(pod)
        if each.get("capabilities", {}).get("drop") != ["ALL"]
        or not ALLOWED_CAPABILITIES.issuperset(each["capabilities"].get("add", ()))
    ],
    "restricted volume types": lambda pod: [
        f"{kind} {source.get('path', volume['name'])}"
        for volume in pod.get("volumes", ())
        for kind, source in volume.items()
        if kind != "name" and kind not in ALLOWED_VOLUMES
    ],
    "hostPort": lambda pod: [
        f"hostPort {port['containerPort']}"
        for each in containers(pod)
        for port in each.get("ports", ())
        # The API server writes it into pods on the network of their node.
        if port.get("hostPort", pod.get("hostNetwork"))
    ],
    "probe or lifecycle host": lambda pod: sorted(
        {
            f"host: {found['host']}"
            for handler in handlers(pod)
            for kind in ("httpGet", "tcpSocket")
            if (found := handler.get(kind, {})).get("host")
        }
    ),
    "seccompProfile": lambda pod: [
        "seccompProfile"
        for each in securities(pod)
        if each.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}
    ],
    "allowPrivilegeEscalation != false": lambda pod: [
        "allowPrivilegeEscalation" for each in securities(pod) if each.get("allowPrivilegeEscalation") is not False
    ],
    "runAsNonRoot != true": lambda pod: [
        f"runAsUser: {each.get('runAsUser')}" for each in securities(pod) if not each.get("runAsNonRoot")
    ],
    "runAsUser=0": lambda pod: ["runAsUser: 0" for each in securities(pod) if each.get("runAsUser") == 0],
}
"""By what the API server calls each: the controls of `baseline` and `restricted`, as Kubernetes 1.36 has them for Linux
(https://kubernetes.io/docs/concepts/security/pod-security-standards/), but for those that no pod of ours comes near.
Where they allow more than is used, so much is allowed as is used."""


SINCE = {"probe or lifecycle host": (1, 34)}
"""Controls that are younger than Pod Security Admission, and in which version they came."""


def offences(pod: Json) -> list[str]:
    return sorted({found for check in CHECKS.values() for found in check(pod)})


def listed(heading: str) -> list[str]:
    """The first column of the table below a heading of the page, without the marks."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]
    return [row.replace("`", "").removesuffix(", read-only") for row in rows]


def test_what_the_agent_needs_beyond_restricted_is_listed_with_its_reason() -> None:
    """Variables are no matter of Pod Security; that it is shown every GPU is said there all the same."""
    beyond = [each for each in listed("What the agent needs on its node") if not each.startswith("NVIDIA_")]
    assert sorted(beyond) == offences(PODS[AGENT])


def test_what_the_agent_needs_besides_on_nodes_of_other_vendors_is_listed_too() -> None:
    more = {*offences(pod_of(render("amd")[("DaemonSet", "gpushare", "gpushare-node")]))} - {*offences(PODS[AGENT])}
    assert {*listed("What the agent needs on AMD and Intel nodes")} == more


def test_the_limit_helper_has_no_capability_on_nodes_of_other_vendors() -> None:
    helper = pod_of(render("amd", options=["limits"])["DaemonSet", "gpushare", "gpushare-limits"])
    assert {*offences(PODS[LIMITS])} - {*offences(helper)} == {"capabilities"}
    assert {*offences(helper)} <= {*offences(PODS[LIMITS])}


@pytest.mark.parametrize("name", sorted(PODS.keys() - {AGENT, LOOPBACK, MPS, LIMITS}), ids=" ".join)
def test_everybody_else_is_restricted(name: tuple[str, str]) -> None:
    assert offences(PODS[name]) == []


def test_on_the_loopback_of_its_node_the_extender_needs_what_the_page_says() -> None:
    assert sorted(listed("What the extender needs")) == offences(PODS[LOOPBACK])


def test_the_mps_supervisor_is_privileged_and_needs_no_network_of_the_node() -> None:
    """It sets compute modes, mounts for others, and knows clients by their PIDs; and it calls no API."""
    assert offences(PODS[MPS]) == [
        "allowPrivilegeEscalation",
        "capabilities",
        "hostPID",
        "hostPath /run/gpushare/mps",
        "privileged",
        "runAsUser: 0",
        "seccompProfile",
    ]
    assert PODS[MPS]["automountServiceAccountToken"] is False


def test_the_limit_helper_needs_what_the_page_says_and_no_api() -> None:
    assert sorted(listed("What the limit helper needs")) == offences(PODS[LIMITS])
    assert PODS[LIMITS]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", PODS, ids=" ".join)
async def test_the_api_server_finds_the_same(api: PolicyWorld, name: tuple[str, str]) -> None:
    metadata = {"name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    # Runtime classes are made elsewhere, and no matter of Pod Security.
    spec = {key: value for key, value in PODS[name].items() if key != "runtimeClassName"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    await api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    status, answer = await api.ask(None, Request("POST", "/api/v1/namespaces/restricted/pods", pod))
    known = version_of(programs()["kube-apiserver"])
    found = {each for each, check in CHECKS.items() if check(PODS[name]) and known >= SINCE.get(each, (1, 25))}
    assert status == (403 if found else 201), answer
    assert {
        control for control in CHECKS if re.search(rf"[:,] {re.escape(control)} \(", answer.get("message", ""))
    } == found


# --- Roles -----------------------------------------------------------------------------------------------------------

ROLES = [each for each in OBJECTS if each["kind"] in {"Role", "ClusterRole"}]
KUBERNETES_OWN = {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}
"""What Kubernetes' documentation gives a second kube-scheduler; the last one reads one ConfigMap of kube-system."""


REMOVED = {("resourceslices",), ("capacitybuffers",), ("podtemplates", "pods")}


def test_no_role_reads_secrets_or_configuration_or_anything_without_naming_it() -> None:
    for rule in (rule for role in ROLES for rule in role["rules"]):
        assert rule.keys() <= {"apiGroups", "resources", "resourceNames", "verbs"}
        unread = {"secrets", "serviceaccounts/token", "pods/exec"}
        assert not (unread if "resourceNames" in rule else {*unread, "configmaps"}) & {*rule["resources"]}
        # A DRA driver removes slices of its own, which a policy sees to; what asks for nodes is in our namespace.
        removed = {"delete"} if tuple(rule["resources"]) in REMOVED else set()
        assert not {"*", "escalate", "bind", "impersonate", "delete", "deletecollection"} & {
            *rule["apiGroups"],
            *rule["resources"],
            *{*rule["verbs"]} - removed,
        }


def test_roles_that_are_bound_are_our_own_or_those_of_a_scheduler() -> None:
    bound = {each["roleRef"]["name"] for each in OBJECTS if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}}
    # Administrators bind those to people.
    for_people = {"gpushare-viewer", "gpushare-viewer-metrics"}
    assert bound == {each["metadata"]["name"] for each in ROLES} - for_people | KUBERNETES_OWN


# --- Reading ---------------------------------------------------------------------------------------------------------


NODE_A = "fieldSelector=spec.nodeName%3Dnode-a"


def version_of(program: str) -> tuple[int, int]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.findall(r"[0-9]+", said)[:2]
    return int(major), int(minor)


async def test_an_api_server_with_our_authorization_file_shows_agents_the_pods_of_their_nodes_alone(
    tmp_path: Path,
) -> None:
    """In a list, a watch and the look for one pod; nobody else notices anything."""
    binaries = programs()
    if version_of(binaries["kube-apiserver"]) < (1, 32):
        pytest.skip("the API server looks at selectors from Kubernetes 1.32 on")
    for file in (DEPLOY / "authorization").iterdir():
        text = file.read_text(encoding="utf-8").replace("/etc/kubernetes", str(tmp_path))
        (tmp_path / file.name).write_text(text, encoding="utf-8")
    with processes(tmp_path, binaries, f"--authorization-config={tmp_path / 'authorization.yaml'}") as server:
        async with aiohttp.ClientSession() as http:
            world = PolicyWorld(server.config, http)
            await furnish(world)

            async def status(user: User | None, path: str) -> int:
                token = world.tokens[user.token] if user else server.config.token
                headers = {"Authorization": f"Bearer {token}"}
                async with http.get(server.config.url + path, headers=headers, ssl=server.config.tls()) as answer:
                    return answer.status

            for path in (f"/api/v1/pods?{NODE_A}", f"/api/v1/pods?{NODE_A}&watch=1&timeoutSeconds=1"):
                assert [await status(user, path) for user in (AGENT_A, AGENT_B, AGENT_UNBOUND, None)] == [
                    200,
                    500,
                    500,
                    200,
                ]
            one = f"{POD_LIST}?{NODE_A},metadata.name%3Dplaced"
            assert [await status(user, one) for user in (AGENT_A, AGENT_B)] == [200, 500]
            for path in ("/api/v1/pods", f"{POD_LIST}/placed", "/api/v1/pods?fieldSelector=spec.nodeName!%3Dnode-b"):
                assert [await status(user, path) for user in (AGENT_A, None)] == [500, 200]
            assert await status(AGENT_A, "/api/v1/nodes/node-a") == 200
            assert (await world.ask(AGENT_A, annotate("plain", {"ALIYUN_COM_GPU_MEM_IDX": "0"})))[0] == 200
