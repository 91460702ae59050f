"""`kubectl inspect gpushare doctor`, over a kubectl made for the test: what the API shows is what the checks see."""

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from gpu_device_plugin.kubernetes.kubectl import reaching
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NOT_ENDED, PODS
from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.programs.doctor.rules.component_checks import ADMISSION_POLICIES
from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, Karpenter, Lease
from gpu_device_plugin.programs.inspect.cluster_reading import symptoms_in
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.report.rules.finding import Unknown
from tests.claim_values import claim_json, part_json
from tests.names import MEM
from tests.programs.inspect.proxied import ProxiedApi, failure, forbidden
from tests.reports import SINCE, written
from tests.reports import part as reported
from tests.resources import RESOURCES

MISSING = "the right to get pods/proxy in the namespace gpushare is missing"
PROXY = "/api/v1/namespaces/gpushare/pods/scheduler-0:9402/proxy/metrics"


def listed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {}, "items": list(items)}


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(
    name: str, offered: dict[str, str] | None = None, *, labels: dict[str, str] | None = None, said: object = None
) -> dict[str, Any]:
    offered = offered or {}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": labels or {},
            "annotations": {} if said is None else {"gpu-device-plugin/gpus": json.dumps(said)},
        },
        "status": {"capacity": offered, "allocatable": {**offered, "cpu": "7910m"}},
    }


def ours(name: str, component: str, on: str, image: str, *, ready: bool = True) -> dict[str, Any]:
    """A pod of ours."""
    labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": component}
    condition = {"type": "Ready", "status": str(ready), "message": "" if ready else "containers with unready status"}
    beside = (
        [{"name": "kube-scheduler", "image": "registry.k8s.io/kube-scheduler:v1.36.2@sha256:0f"}]
        if component == "scheduler"
        else []
    )
    ours = {"name": component, "image": image, "ports": [{"name": "http", "containerPort": 9402}]}
    return {
        "metadata": {"name": name, "namespace": "gpushare", "uid": name, "labels": labels},
        "spec": {"nodeName": on, "containers": [*beside, ours]},
        "status": {"conditions": [condition]},
    }


def pod(name: str, on: str = "", mem: int = 0, *, spec: dict[str, Any] | None = None, **meta: object) -> dict[str, Any]:
    limits = {MEM: str(mem)} if mem else {}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    scheduled = [{"type": "PodScheduled", "status": "True"}] if on else []
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": ago(100), **meta},
        "spec": {"nodeName": on, "schedulerName": "gpushare-scheduler", "containers": [container], **(spec or {})},
        "status": {"conditions": scheduled},
    }


GPU = {"uuid": "GPU-a", "index": 0, "model": "T4", "memoryMiB": 15360, "shares": 15, "healthy": True}
SAID = {"version": 1, "shareMiB": 1024, "policy": "binpack", "gpus": [GPU]}
PROMISED = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1795169580643598847"}
BY_AGENT = {
    "manager": "gpu-device-plugin",
    "fieldsV1": {"f:metadata": {"f:annotations": {"f:ALIYUN_COM_GPU_MEM_ASSUME_TIME": {}}}},
}
METRICS = """\
gpushare_extender_leader 1.0
gpushare_extender_verb_duration_seconds_count{outcome="fit",verb="filter"} 3.0
gpushare_extender_verb_duration_seconds_count{outcome="none",verb="filter"} 2.0
gpushare_extender_verb_duration_seconds_count{outcome="ok",verb="bind"} 9.0
"""


def well() -> dict[str, Any]:
    """The pages of a cluster in which everything is installed and works."""
    config = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    lease = {"holderIdentity": "scheduler-0_x", "leaseDurationSeconds": 15, "renewTime": ago(2)}
    template = {"spec": {"runtimeClassName": "nvidia"}}
    return {
        "/version": {"gitVersion": "v1.36.2"},
        "/api/v1/nodes": listed(node("node-a", {MEM: "15"}, labels={"gpushare": "true"}, said=SAID), node("plain")),
        "/api/v1/pods": listed(
            ours("agent-a", "node", "node-a", "registry.example:5000/gpu-device-plugin:0.1.0"),
            ours("scheduler-0", "scheduler", "node-a", "gpu-device-plugin:0.1.0"),
            pod("web", "node-a", 4, annotations=PROMISED),
        ),
        "/apis/apps/v1/daemonsets": listed({"spec": {"template": template}}),
        "/apis/node.k8s.io/v1/runtimeclasses": listed({"metadata": {"name": "nvidia"}}),
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies": listed(
            *({"metadata": {"name": name}} for name in sorted(ADMISSION_POLICIES))
        ),
        "/apis/coordination.k8s.io/v1/namespaces/gpushare/leases": listed(
            {"metadata": {"name": "gpushare-scheduler"}, "spec": lease}, {"metadata": {"name": "other"}, "spec": {}}
        ),
        "/api/v1/namespaces/gpushare/configmaps": listed(
            {"metadata": {"name": "gpushare-scheduler"}, "data": {"config.yaml": config, "notes": "none"}},
            {"metadata": {"name": "gpushare-scheduler"}},
        ),
        PROXY: METRICS,
    }


def kubectl(tmp_path: Path, pages: dict[str, Any]) -> str:
    """Return a kubectl of a cluster with a page at each path, and an error as of an API server at all others."""

    def answer(_method: str, path: str, query: Mapping[str, str], _body: bytes) -> tuple[int, Any]:
        with (tmp_path / "asked").open("a") as asked:
            print(path, file=asked)
        chosen = urlencode({name: text for name, text in query.items() if name in {"fieldSelector", "labelSelector"}})
        page = pages.get(f"{path}?{chosen}", pages.get(path))
        if page is None:
            return (200, {"gitVersion": "v1.36.2"}) if path == "/version" else failure(404, "NotFound", path)
        if isinstance(page, tuple):
            return page
        return 200, page.encode() if isinstance(page, str) else page

    return str(ProxiedApi(tmp_path, answer).kubectl)


def read(tmp_path: Path, pages: dict[str, Any]) -> ClusterSymptoms:
    return asyncio.run(_read(kubectl(tmp_path, pages)))


async def _read(program: str) -> ClusterSymptoms:
    async with reaching((), program) as access:
        return await symptoms_in(access, RESOURCES, await access.items(NODES), await access.items(PODS, NOT_ENDED))


def test_of_a_cluster_that_is_well_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = kubectl(tmp_path, well())
    assert main(["doctor"], kubectl=program, environ={}) == 0
    printed = capsys.readouterr().out
    assert "ok       extender                 schedulers called it 5 times since it started" in printed.splitlines()
    assert printed.endswith("19 findings: 19 ok.\n")
    assert main(["doctor", "--json"], kubectl=program, environ={}) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["severity"] == "ok"
    assert {"check": "placement", "code": "placement", "parameters": {"pods": 1}}.items() <= next(
        finding for finding in document["findings"] if finding["check"] == "placement"
    ).items()


def test_what_the_agents_report_of_limits_and_use_is_examined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings want MPS, whose supervisor is there and not ready; one container uses more than it was granted."""
    pages = well()
    labels = {"gpushare": "true", "gpu-device-plugin/config": "strict", "gpu-device-plugin/limits": "advisory"}
    there = node("node-a", {MEM: "15"}, labels=labels, said=SAID)
    refused = GpuEnforcement(Enforcement.ADVISORY, "why", refusal="the setting limits=mps asks for it: none")
    there["metadata"]["annotations"] |= written(reported("web", used=9000, over_since=SINCE), enforcements={0: refused})
    pages["/api/v1/nodes"] = listed(there)
    pages["/api/v1/pods"]["items"].append(ours("mps-a", "mps", "node-a", "gpu-device-plugin:0.1.0", ready=False))
    texts = {"default.yaml": "policy: spread\nlimits: auto\n", "strict.yaml": 'limits: "mps"\n', "other.yaml": ""}
    pages["/api/v1/namespaces/gpushare/configmaps"]["items"].append(
        {"metadata": {"name": "gpushare-node"}, "data": texts}
    )
    seen = read(tmp_path, pages)
    assert seen.limits_by_profile == {"default": "auto", "strict": "mps"}
    assert [(each.name, each.ready) for each in seen.supervisors] == [("gpushare/mps-a", False)]
    assert [each.name for each in seen.extenders] == ["gpushare/scheduler-0"]
    assert main(["doctor", "--json"], kubectl=kubectl(tmp_path, pages), environ={}) == 4
    found = {finding["code"]: finding["parameters"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["shares-refused"]["node"] == "node-a"
    assert found["no-supervisor"] == {"nodes": ["node-a"]}
    assert found["over-use"]["containers"] == ["default/web/main"]


def test_of_a_cluster_with_nothing_in_it_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {"/api/v1/nodes": listed(node("plain")), "/api/v1/pods": listed()}
    assert main(["doctor"], kubectl=kubectl(tmp_path, pages), environ={}) == 4
    printed = capsys.readouterr()
    assert "error    nodes" in printed.out
    assert "Warning" not in printed.err, "what kubectl says of single pages is told where it belongs"


def test_pages_that_cannot_be_read_are_unknown_with_the_reason(tmp_path: Path) -> None:
    pages = {"/api/v1/nodes": listed(), "/api/v1/pods": listed(), "/apis/apps/v1/daemonsets": "<html>"}
    seen = read(tmp_path, pages)
    assert str(seen.daemonset) == "list daemonsets: the answer is not a list of objects"
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    assert str(seen.runtime_classes) == f"list runtimeclasses: 404 NotFound: {path}"
    for fact in (seen.leases, seen.configurations, seen.policies):
        assert isinstance(fact, Unknown)


def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    """In the words of a real API server."""
    denied = forbidden("list", "daemonsets", "apps", None)
    seen = read(tmp_path, {**well(), "/apis/apps/v1/daemonsets": denied})
    assert isinstance(seen.daemonset, Unknown)
    assert (seen.daemonset.code, str(seen.daemonset)) == (
        "right-missing",
        "the right to list daemonsets.apps in the whole cluster is missing",
    )
    assert seen.daemonset.advice.startswith("ask an administrator of the cluster for it; docs/doctor.md has")


def test_the_roles_of_viewers_give_the_rights_that_are_needed(tmp_path: Path) -> None:
    """One holds in the whole cluster, the other in the namespace of our pods."""
    read(tmp_path, well())
    roles = yaml.safe_load_all((Path(__file__).parents[3] / "deploy/viewer.yaml").read_text(encoding="utf-8"))
    given = {
        (verb, f"{resource}.{group}" if group else resource)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    for path in set((tmp_path / "asked").read_text(encoding="utf-8").split()) - {"/version"}:
        found = re.fullmatch(r"/apis?(?:/([^/]+))?/v1(?:/namespaces/gpushare)?/(\w+)(?:/.+)?", path)
        assert found is not None, path
        group, resource = found.groups()
        proxied = "/pods/" in path
        name = f"{resource}/proxy" if proxied else f"{resource}.{group}" if group else resource
        assert ("get" if proxied else "list", name) in given


def test_nodes_are_read_with_all_that_concerns_us(tmp_path: Path) -> None:
    pages = well()
    pages["/api/v1/nodes"] = listed(
        node("node-a", labels={"gpushare": "true"}, said={**SAID, "version": 9}),
        node("node-b", {"nvidia.com/gpu": "8"}, labels={"gpushare": "true"}),
        node("node-c", {MEM: "0"}),
        node("node-d", labels={"gpu-device-plugin/count": "2"}),
        node("node-e", labels={"gpushare": "", "gpu-device-plugin/config": "large"}),
        node("plain"),
    )
    a, b, c, d, e = read(tmp_path, pages).nodes
    assert (a.shares_gpus, a.annotated, "another version" in a.gpus.fault) == (True, True, True)
    assert (b.shares_gpus, b.annotated) == (True, False)
    assert [sighting.signs for sighting in b.other_plugins] == [("the node offers 8 nvidia.com/gpu",)]
    assert (c.shares_gpus, c.capacity, c.allocatable) == (False, {MEM: 0}, {MEM: 0})
    assert (d.annotated, d.capacity, d.labels.get("gpushare")) == (True, {}, None)
    assert (e.shares_gpus, e.annotated, e.labels) == (
        False,
        False,
        {"gpushare": "", "gpu-device-plugin/config": "large"},
    )


def test_parts_are_told_from_each_other_and_from_the_originals(tmp_path: Path) -> None:
    pages = well()
    theirs = pod(
        "gpushare-device-plugin-ds-x", "node-a", labels={"app": "gpushare", "component": "gpushare-device-plugin"}
    )
    extender = pod(
        "gpushare-schd-extender-y", "node-a", labels={"app": "gpushare", "component": "gpushare-schd-extender"}
    )
    pinned = ours("scheduler-1", "scheduler", "node-b", "gpu-device-plugin@sha256:0f", ready=False)
    other = pod("web-1", "node-a", labels={"app": "gpushare", "component": "web"})
    pages["/api/v1/pods"]["items"] += [theirs, extender, pinned, other]
    seen = read(tmp_path, pages)
    assert [(one.name, one.version, one.ready, one.original) for one in seen.agents] == [
        ("gpushare/agent-a", "0.1.0", True, False),
        ("default/gpushare-device-plugin-ds-x", "", False, True),
    ]
    assert [(one.name, one.version, one.why, one.asked) for one in seen.extenders] == [
        ("gpushare/scheduler-0", "0.1.0", "", 5),
        ("default/gpushare-schd-extender-y", "", "", None),
        ("gpushare/scheduler-1", "", "containers with unready status", None),
    ]
    assert seen.own_scheduler
    assert [one.kube_scheduler for one in seen.extenders] == ["v1.36.2", None, "v1.36.2"]
    assert [one.kube_scheduler for one in seen.agents] == [None, None]


def status(
    name: str, waiting: dict[str, Any] | None = None, *, ready: bool = False, last: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the kubelet says of a container."""
    state: dict[str, Any] = {"waiting": waiting} if waiting else {"running": {"startedAt": ago(9)}}
    return {"name": name, "ready": ready, "state": state, "lastState": {"terminated": last} if last else {}}


PULLING = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x:9":\n  not found'}
CRASHING = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=extender"}


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ([], ("", "", "containers with unready status")),
        (
            [status("extender", ready=True), status("kube-scheduler")],
            ("kube-scheduler", "", "containers with unready status"),
        ),
        (
            [status("extender"), status("kube-scheduler", PULLING)],
            ("kube-scheduler", "ImagePullBackOff", 'Back-off pulling image "x:9": not found'),
        ),
        ([status("extender", {"reason": "ContainerCreating"})], ("extender", "ContainerCreating", "")),
        (
            [status("extender", CRASHING, last={"reason": "Error", "exitCode": 2})],
            ("extender", "CrashLoopBackOff", "back-off 5m0s restarting failed container=extender"),
        ),
        ([status("extender", CRASHING, last={"reason": "OOMKilled"})], ("extender", "OOMKilled", "")),
        (
            [status("extender", CRASHING, last={"reason": "StartError", "message": "no libnvidia-ml.so.1"})],
            ("extender", "StartError", "no libnvidia-ml.so.1"),
        ),
    ],
)
def test_of_a_pod_that_is_not_ready_the_container_is_found_that_holds_it_up(
    tmp_path: Path, statuses: list[dict[str, Any]], told: tuple[str, str, str]
) -> None:
    pages = well()
    ill = ours("scheduler-0", "scheduler", "node-a", "gpu-device-plugin:0.1.0", ready=False)
    ill["status"]["containerStatuses"] = statuses
    pages["/api/v1/pods"] = listed(ill)
    (seen,) = read(tmp_path, pages).extenders
    assert (seen.container, seen.reason, seen.why) == told


def test_of_a_pod_that_finds_no_node_the_scheduler_says_why(tmp_path: Path) -> None:
    pages = well()
    lost = ours("agent-b", "node", "", "gpu-device-plugin:0.1.0")
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    lost["status"]["conditions"] = [why]
    pages["/api/v1/pods"] = listed(lost)
    (seen,) = read(tmp_path, pages).agents
    assert (seen.ready, seen.reason, seen.why) == (False, "Unschedulable", "0/2 nodes are available")


def test_calls_of_an_extender_are_unknown_where_others_answer_or_nobody_does_or_a_right_is_missing(
    tmp_path: Path,
) -> None:
    assert read(tmp_path, {**well(), PROXY: "go_goroutines 7\n"}).extenders[0].asked is None
    denied = forbidden("get", "pods/proxy", "", "gpushare", "scheduler-0:9402")
    for answer, expected in ((failure(503, "ServiceUnavailable", "no route"), "None"), (denied, MISSING)):
        assert str(read(tmp_path, {**well(), PROXY: answer}).extenders[0].asked) == expected


def test_who_promised_a_pod_its_gpu(tmp_path: Path) -> None:
    """The agent writes the same annotations on pods that nobody promised anything; who wrote them is remembered."""
    pages = well()
    beside = {"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}
    pages["/api/v1/pods"]["items"] = [
        pod("bound", "node-a", 4, annotations=PROMISED, managedFields=[beside]),
        pod("found", "node-a", 4, annotations=PROMISED, managedFields=[beside, BY_AGENT]),
        pod("lost", "node-a", 4),
        pod("odd", "node-a", 4, annotations={"ALIYUN_COM_GPU_MEM_IDX": "x"}),
        pod("waits", "", 4, spec={"schedulerName": "nobody"}),
        pod("plain", "node-a"),
        pod("elastic", "node-a", 4, annotations={MEMORY_LIMIT: "12"}),
    ]
    found = read(tmp_path, pages)
    seen = {str(one.pod): one for one in found.pods}
    assert {name: one.promised for name, one in seen.items()} == {
        "default/bound": True,
        "default/found": False,
        "default/lost": False,
        "default/odd": True,
        "default/waits": False,
        "default/elastic": False,
    }
    assert [str(each) for each in found.elastic_pods] == ["default/elastic"]
    waiting = seen["default/waits"]
    assert (waiting.seen, waiting.pod.node_name, waiting.scheduler) == (False, "", "nobody")
    assert 90 < waiting.age_s < 1000
    assert seen["default/bound"].seen


def test_pods_that_choose_gpus_by_a_variable_are_named(tmp_path: Path) -> None:
    def setting(name: str, value: str | None, on: str = "node-a") -> dict[str, Any]:
        container = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}
        return pod(name, on, spec={"containers": [container]})

    pages = well()
    pages["/api/v1/pods"]["items"] += [setting("all", "all"), setting("void", "void"), setting("far", "all", "plain")]
    agent = ours("agent-b", "node", "node-a", "x:0.1.0")
    agent["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pages["/api/v1/pods"]["items"].append(agent)
    assert read(tmp_path, pages).pods_overriding_visible_devices == ("default/all",)


def test_leases_and_configurations_are_those_of_the_parts_that_run(tmp_path: Path) -> None:
    seen = read(tmp_path, well())
    assert not isinstance(seen.leases, Unknown)
    ((name, lease),) = seen.leases.items()
    assert (name, lease.holder, lease.lasts_s) == ("gpushare/gpushare-scheduler", "scheduler-0_x", 15.0)
    assert lease.age_s < 1000
    assert seen.configurations == {
        "gpushare/gpushare-scheduler, config.yaml": "kubescheduler.config.k8s.io/v1",
    }
    pages = well()
    pages["/apis/coordination.k8s.io/v1/namespaces/gpushare/leases"]["items"][0]["spec"] = {}
    assert read(tmp_path, pages).leases == {"gpushare/gpushare-scheduler": Lease("", 0.0, 0.0)}
    pages["/api/v1/pods"] = listed()
    pages["/apis/apps/v1/daemonsets"] = listed()
    nothing = read(tmp_path, pages)
    assert (nothing.leases, nothing.daemonset) == ({}, None)


def test_of_node_groups_that_share_all_nodes_are_read_and_what_karpenter_knows_of_them(tmp_path: Path) -> None:
    group = {"karpenter.sh/nodepool": "gpus"}
    pages = well()
    there = node("node-a", {MEM: "15"}, labels={"gpushare": "true", **group}, said=SAID)
    pages["/api/v1/nodes"] = listed(there, node("plain", labels=group), node("other"))
    seen = read(tmp_path, pages)
    assert [each.name for each in seen.nodes] == ["node-a", "plain"]
    assert isinstance(seen.karpenter, Unknown)

    def pool(name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"template": {"metadata": {"labels": labels}}}}

    bare = {"metadata": {"name": "cpus"}, "spec": {"template": {"spec": {}}}}
    pages["/apis/karpenter.sh/v1/nodepools"] = listed(pool("gpus", {"gpushare": "true"}), pool("x", {"a": "b"}), bare)
    overlays = listed(
        {"metadata": {"name": "gpus"}, "spec": {"capacity": {MEM: "60"}}}, {"metadata": {"name": "price"}}
    )
    pages["/apis/karpenter.sh/v1alpha1/nodeoverlays"] = overlays
    assert read(tmp_path, pages).karpenter == Karpenter(("gpus",), frozenset({MEM}))
    pages["/apis/karpenter.sh/v1/nodepools"] = listed(bare)
    assert read(tmp_path, pages).karpenter == Karpenter()


# --- Nodes that serve ResourceClaims ----------------------------------------------------------------------------------


def resource_slice(name: str, *devices: dict[str, Any], of: int = 2, **more: Any) -> dict[str, Any]:
    """A ResourceSlice as our agents write it."""
    pool = {"name": "node-a", "generation": 3, "resourceSliceCount": of}
    spec = {"driver": "gpu-device-plugin", "nodeName": "node-a", "pool": pool, "devices": list(devices), **more}
    return {"metadata": {"name": name, "uid": name}, "spec": spec}


def serving() -> dict[str, Any]:
    """The pages of a cluster whose node serves claims well."""
    there = node("node-a", labels={"gpushare": "true", "gpu-device-plugin/serve": "dra"}, said={**SAID, "claims": True})
    there["status"]["nodeInfo"] = {"containerRuntimeVersion": "containerd://2.1.9", "kubeletVersion": "v1.36.2"}
    shared = {
        "name": "gpu-1b2c3d4e-0000-4820-abfc-000000000000",
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "shared-gpu"}},
        "capacity": {"memory": {"value": "15Gi", "requestPolicy": {"default": "1Gi"}}},
    }
    return well() | {
        "/version": {"gitVersion": "v1.36.3"},
        "/api/v1/nodes": listed(there, node("plain")),
        f"{RESOURCE}/resourceclaims": listed(claim_json("c", part_json(0, "4Gi", "node-a"), pods=("web",))),
        f"{RESOURCE}/resourceslices": listed(resource_slice("00000-a"), resource_slice("00001-a", shared)),
        f"{RESOURCE}/deviceclasses": listed(
            {"metadata": {"name": "gpushare"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
            {"metadata": {"name": "gpushare-whole"}, "spec": {"extendedResourceName": "aliyun.com/gpu-count"}},
        ),
    }


RESOURCE = "/apis/resource.k8s.io/v1"


def of_claims(found: str) -> list[str]:
    return [f"{each['severity']} {each['code']}" for each in json.loads(found)["findings"] if "laims" in each["check"]]


def test_only_slices_of_our_driver_are_read(tmp_path: Path) -> None:
    pages = serving()
    ours_alone = f"{RESOURCE}/resourceslices?fieldSelector=spec.driver%3Dgpu-device-plugin"
    pages[ours_alone] = pages.pop(f"{RESOURCE}/resourceslices")
    found = read(tmp_path, pages)
    assert not isinstance(found.slices, Unknown)
    devices = [[device.get("allowMultipleAllocations") for device in each.content["devices"]] for each in found.slices]
    assert ([each.pool for each in found.slices], devices) == (["node-a", "node-a"], [[], [True]])
    assert {(each.generation, each.count) for each in found.slices} == {(3, 2)}


def test_what_is_wrong_with_claims_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = serving()
    pages[f"{RESOURCE}/resourceslices"]["items"].pop()
    pages[f"{RESOURCE}/deviceclasses"]["items"].pop()
    pages[f"{RESOURCE}/resourceclaims"]["items"].append(claim_json("lost", part_json(0, "4Gi", "plain")))
    status = pages["/api/v1/nodes"]["items"][0]["status"]
    status["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.20"
    status["capacity"] = {"aliyun.com/gpu-count": "0"}
    main(["doctor", "--json"], kubectl=kubectl(tmp_path, pages), environ={})
    assert of_claims(capsys.readouterr().out) == [
        "error claims-orphaned",
        "error slices-incomplete",
        "error no-device-class",
        "error runtime-without-cdi",
        "note kubelet-remembers-plugin",
    ]


def test_what_may_not_be_read_of_claims_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = serving()
    for plural in ("resourceclaims", "resourceslices", "deviceclasses"):
        pages[f"{RESOURCE}/{plural}"] = forbidden("list", plural, "resource.k8s.io", None)
    main(["doctor", "--json"], kubectl=kubectl(tmp_path, pages), environ={})
    assert of_claims(capsys.readouterr().out) == ["unknown right-missing"] * 3
