"""`kubectl inspect gpushare`, from the command line to what is printed, over a kubectl made for the test."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.kubernetes.client.api_client import Timing
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import reaching
from gpu_device_plugin.kubernetes.objects.decoding import NODES
from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.inspect.arguments import parse
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.report.commands import refusal
from gpu_device_plugin.testing.cluster.cluster_kinds import field_selector
from gpu_device_plugin.testing.cluster.cluster_store import merge
from tests.cluster_double.selectors import label_selector
from tests.cluster_double.store import strategic_merge
from tests.patience import stretched, until
from tests.programs.inspect.proxied import ProxiedApi, failure, forbidden
from tests.reporting import COMMANDS
from tests.reports import SINCE, part, written

PROG = "kubectl inspect gpushare"
GOLDEN = Path(__file__).parents[2] / "golden" / "inspect"

NO_AGENT = "no node agent that serves HTTP runs."

KINDS = {"pods": "Pod", "nodes": "Node", "events": "Event", "configmaps": "ConfigMap", "namespaces": "Namespace"}
KINDS |= {"resourceclaims": "ResourceClaim", "poddisruptionbudgets": "PodDisruptionBudget"}
KINDS |= {"resourceslices": "ResourceSlice", "deviceclasses": "DeviceClass"}
KINDS |= {"deployments": "Deployment", "statefulsets": "StatefulSet", "notebooks": "Notebook"}
FIELDS: dict[str, Callable[[Any], str]] = {
    "involvedObject.uid": lambda one: one["involvedObject"]["uid"],
    "metadata.name": lambda one: one["metadata"]["name"],
    "spec.driver": lambda one: one["spec"].get("driver", ""),
    "spec.nodeName": lambda one: one["spec"].get("nodeName", ""),
    "status.phase": lambda one: one["status"].get("phase", ""),
}
ABSENT = failure(404, "NotFound", "the server could not find the requested resource")


@dataclass
class World:
    """A cluster that a kubectl knows: the objects in a file."""

    home: Path
    script: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script = {
            "objects": [],
            "namespace": "default",
            "server": "https://10.0.0.1:6443",
            "fail": "",
            "broken": "",
            "garbage": "",
            "forbidden": [],
            "expire": False,
            "hang": False,
            "page": 500,
            "groups": [],
            "refuse": "",
            "refused": "",
            "answers": {},
            "mover": "",
            "user": "alice",
            "meanwhile": {},
        }
        self.api = ProxiedApi(self.home, self._answer)
        self.has()

    @property
    def kubectl(self) -> Path:
        return self.api.kubectl

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The requests that reached the cluster, but for those about its version and the user."""
        return [each for each in self.api.requests if not each[1].endswith(("/version", "/selfsubjectreviews"))]

    def has(self, *objects: Mapping[str, Any], **behaviour: object) -> None:
        """Put these objects into the cluster beside those that are there, and let it behave so."""
        self.script["objects"] += objects
        self.script.update(behaviour)
        self._save(self.script)
        self.api.configured(self.script["server"], self.script["namespace"])

    def inspect(self, *words: str, environ: Mapping[str, str] | None = None) -> int:
        return main(words, kubectl=str(self.kubectl), environ=environ or {})

    def proxied(self, path: str) -> tuple[int, Any]:
        """Return the answer of a pod, for a path with its place."""
        return failure(503, "ServiceUnavailable", f"error trying to reach service: {path}")

    # --- As an API server ---------------------------------------------------------------------------------------------

    def _save(self, script: Mapping[str, Any]) -> None:
        (self.home / "new.json").write_text(json.dumps(script), encoding="utf-8")
        (self.home / "new.json").rename(self.home / "script.json")

    def _answer(  # noqa: PLR0911 - one for each kind of answer
        self, method: str, path: str, query: Mapping[str, str], body: bytes
    ) -> tuple[int, Any]:
        script = json.loads((self.home / "script.json").read_text())
        api = urlsplit(script["server"]).path.rstrip("/")
        if not path.startswith(f"{unquote(api)}/"):
            return ABSENT
        path = path.removeprefix(unquote(api))
        if path == "/version":
            return 200, {"gitVersion": "v1.36.2"}
        if method == "POST":
            user = {"status": {"userInfo": {"username": script["user"]}}}
            return (200, user) if script["user"] else ABSENT
        if script["hang"]:
            (self.home / "hanging").write_text((self.home / "proxy").read_text())
            time.sleep(3600)
        if (trouble := self._trouble(script, query)) is not None:
            return trouble
        if "/proxy/" in path:
            return self.proxied(path)
        group, _, rest = path.partition("/v1/")
        group, place = group.removeprefix("/apis/").removeprefix("/api"), rest.split("/")
        if group and group not in script["groups"]:
            return ABSENT
        namespace = place[1] if place[0] == "namespaces" and len(place) > 2 else None
        plural, *name = place[2:] if namespace else place
        if method == "PATCH":
            return self._patched(script, (group, plural, namespace), name, json.loads(body))
        verb = "get" if name else "list"
        if [verb, plural, namespace or ""] in script["forbidden"]:
            return forbidden(verb, plural, group, namespace, *name)
        return self._found(script, (plural, namespace), name, query)

    @staticmethod
    def _trouble(script: Mapping[str, Any], query: Mapping[str, str]) -> tuple[int, Any] | None:
        if "continue" in query and script["expire"]:
            return failure(410, "Expired", "The provided continue parameter is too old")
        if script["fail"]:
            return failure(500, "InternalError", script["fail"])
        return (200, script["garbage"].encode()) if script["garbage"] else None

    @staticmethod
    def _found(
        script: Mapping[str, Any], place: tuple[str, str | None], name: list[str], query: Mapping[str, str]
    ) -> tuple[int, Any]:
        """Return an object by its name, or a page of those that are selected."""
        plural, namespace = place
        if plural == script["broken"]:
            return failure(500, "InternalError", "no leader")
        kind = KINDS[plural]
        found = [
            one
            for one in script["objects"]
            if one.get("kind") == kind and namespace in (None, one["metadata"].get("namespace"))
        ]
        if name:
            named = [one for one in found if one["metadata"]["name"] == name[0]]
            return (200, named[0]) if named else failure(404, "NotFound", f'{plural} "{name[0]}" not found')
        if "labelSelector" in query:
            try:
                found = list(filter(label_selector(query["labelSelector"]), found))
            except ValueError:
                return failure(400, "BadRequest", "found '=', expected: ',' or 'end of string'")
        if "fieldSelector" in query:
            found = list(filter(field_selector(query["fieldSelector"], FIELDS), found))
        start, limit = int(query.get("continue", 0)), min(int(query.get("limit", 0)) or 10**6, script["page"])
        limit = limit if int(query.get("limit", 0)) else 10**6
        more = str(start + limit) if start + limit < len(found) else ""
        return 200, {"kind": f"{kind}List", "metadata": {"continue": more}, "items": found[start : start + limit]}

    def _patched(
        self, script: dict[str, Any], place: tuple[str, str, str | None], names: list[str], patch: dict[str, Any]
    ) -> tuple[int, Any]:
        """Change an object; somebody else may do so just before, and a mover after."""
        (group, plural, namespace), (name, *subresource) = place, names
        if name == script["refuse"]:
            resource = "/".join((plural, *subresource))
            refused = script["refused"]
            return (
                failure(403, "Forbidden", refused) if refused else forbidden("patch", resource, group, namespace, name)
            )
        assert (subresource == ["status"]) == ("status" in patch)
        assert (subresource == ["scale"]) == ("spec" in patch)
        (before,) = [
            one
            for one in script["objects"]
            if one["kind"] == KINDS[plural]
            and one["metadata"]["name"] == name
            and namespace in (None, one["metadata"].get("namespace"))
        ]
        if script["meanwhile"]:
            meta = {"resourceVersion": "2", "annotations": script["meanwhile"]}
            changed = merge(before, {"metadata": meta})
            script["objects"][script["objects"].index(before)] = changed
            before, script["meanwhile"] = changed, {}
        version = before["metadata"].get("resourceVersion", "")
        if patch.get("metadata", {}).get("resourceVersion", version) != version:
            self._save(script)
            return failure(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": it has been modified')
        # Of a status the conditions are merged by their type.
        after = strategic_merge(before, patch) if "conditions" in patch.get("status", {}) else merge(before, patch)
        if plural == "pods":
            after = merge(after, {"metadata": {"annotations": script["answers"]}})
        script["objects"][script["objects"].index(before)] = after
        wish = (after["metadata"].get("annotations") or {}).get("gpu-device-plugin/move-to")
        if wish and script["mover"]:
            self._moved(script, before, after, json.loads(wish))
        self._save(script)
        return 200, after

    def _moved(self, script: dict[str, Any], before: dict[str, Any], after: dict[str, Any], to: dict[str, Any]) -> None:
        """Do what the mover of the script does about a wish."""
        if script["mover"].startswith("no: "):
            answers = {"gpu-device-plugin/move-to": None, "gpu-device-plugin/move-refused": script["mover"][4:]}
            refused = merge(after, {"metadata": {"annotations": answers}})
            script["objects"][script["objects"].index(after)] = refused
            return
        script["objects"].remove(after)
        new = json.loads(json.dumps(before))
        name, uid = (before["metadata"][key] for key in ("name", "uid"))
        new["metadata"] |= {"name": f"{name}-new", "uid": f"{uid}-new"}
        new["spec"]["nodeName"] = script["mover"] if script["mover"] != "obeys" else to["node"]
        new["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] = next(iter(to["gpus"]))
        script["objects"].append(new)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def gpu(index: int, shares: int = 15, **more: object) -> dict[str, object]:
    uuid = f"GPU-{index}1a2b3c4-0000-0000-0000-000000000000"
    listed = {"uuid": uuid, "index": index, "model": "Tesla T4", "memoryMiB": 15360, "reservedMiB": 0, "shares": shares}
    return {**listed, "healthy": True, **more}


def node(
    name: str, *gpus: Mapping[str, object], share_mib: int = 1024, spec: object = None, **status: Any
) -> dict[str, Any]:
    """A node with our agent on it."""
    said = {"version": 1, "shareMiB": share_mib, "policy": "binpack", "driver": "580.95", "gpus": gpus, "links": []}
    shares = sum(int(str(one["shares"])) for one in gpus)
    amounts = {"aliyun.com/gpu-mem": str(shares), "aliyun.com/gpu-count": str(len(gpus))}
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": {"gpu-device-plugin/gpus": json.dumps(said)},
        },
        "spec": spec or {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            **status,
        },
    }


def pod(
    name: str,
    mem: int = 0,
    *,
    count: int = 0,
    on: str = "",
    idx: int | None = None,
    namespace: str = "default",
    spec: Mapping[str, object] | None = None,
    **status: object,
) -> dict[str, Any]:
    """A pod that asks for shares or whole GPUs of one container, with the place that a scheduler wrote on it."""
    limits = {
        **({"aliyun.com/gpu-mem": str(mem)} if mem else {}),
        **({"aliyun.com/gpu-count": str(count)} if count else {}),
    }
    container = {"name": "main", "resources": {"limits": limits}, "env": [{"name": "TOKEN", "value": "s3cret"}]}
    annotations = {} if idx is None else {"ALIYUN_COM_GPU_MEM_IDX": str(idx), "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"nodeName": on, "schedulerName": "gpushare-scheduler", "containers": [container], **(spec or {})},
        "status": {"phase": "Running" if on else "Pending", **status},
    }


def golden(number: int) -> Sequence[Mapping[str, Any]]:
    """Return the cluster of Alibaba's plugins, of which the original printed the golden files."""
    nodes = [
        node("node-a", gpu(0), gpu(1), addresses=[{"type": "InternalIP", "address": "192.168.0.71"}]),
        node("node-b", gpu(0), addresses=[{"type": "InternalIP", "address": "192.168.0.70"}]),
    ]
    for each in nodes:
        each["metadata"]["annotations"] = {}
    pods = [
        pod("binpack-1-0", 3, on="node-a", idx=0),
        pod("binpack-1-1", 2, on="node-a", idx=0),
        pod("big-0", 9, on="node-a", idx=1, namespace="team-x"),
        pod("solo-0", 4, on="node-b", idx=0),
    ]
    if number == 2:
        multi = pod("multi-0", 4, on="node-a")
        multi["metadata"]["annotations"] = {"scheduler.framework.gpushare.allocation": '{"0":{"0":2,"1":2}}'}
        pods += [pod("lost-0", 3, on="node-b"), multi]
    return [*nodes, *pods]


@pytest.mark.parametrize(
    ("cluster", "words", "printed"),
    [
        (1, [], "summary-1.txt"),
        (2, [], "summary-2.txt"),
        (1, ["-d"], "details-1.txt"),
        (2, ["-d"], "details-2.txt"),
        (1, ["node-b"], "onenode-1.txt"),
    ],
)
def test_the_original_prints_the_same(
    world: World, capsys: pytest.CaptureFixture[str], cluster: int, words: list[str], printed: str
) -> None:
    """Byte by byte, but for the order of the rows, which is random there."""
    world.has(*golden(cluster))
    assert world.inspect(*words) == 0
    assert capsys.readouterr().out.encode() == (GOLDEN / printed).read_bytes()


@pytest.fixture
def shared(world: World) -> World:
    """A node with two GPUs and three pods, one with none, and a pod that waits."""
    world.has(
        node("node-a", gpu(0), gpu(1)),
        {"kind": "Node", "metadata": {"name": "plain", "uid": "uid-plain"}, "spec": {}, "status": {}},
        pod("web-0", 5, on="node-a", idx=0),
        pod("web-1", 5, on="node-a", idx=0),
        pod("big", 9, on="node-a", idx=1, namespace="ml"),
        pod("done", 9, on="node-a", idx=1, phase="Succeeded"),
        pod(
            "want",
            8,
            conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}],
        ),
    )
    return world


# --- The overview -----------------------------------------------------------------------------------------------------


def test_without_gpus_the_table_is_empty(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert shared.inspect("plain") == 0
    assert capsys.readouterr().err == "Node plain shares no GPUs.\n"
    shared.script["objects"].clear()
    shared.has()
    assert shared.inspect() == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "NAME  IPADDRESS  GPU Memory"
    assert printed.err == "No node shares GPUs; run kubectl inspect gpushare doctor to see why.\n"


def test_one_node_is_read_alone(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither other nodes nor pods of other nodes are asked for."""
    phases = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
    assert shared.inspect("node-a") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["node-a", "10.0.0.7", "10/15", "9/15", "19/30"]
    assert [call[-1] for call in shared.calls] == [
        "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-a&limit=500",
        f"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a%2C{phases}&limit=500",
    ]


def test_an_unknown_node_is_named_on_stderr(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert shared.inspect("-d", "nope") == 1
    assert capsys.readouterr() == (
        "",
        'kubectl inspect gpushare: nodes "nope" not found; kubectl get nodes lists the existing ones\n',
    )


def test_a_name_is_no_selector(shared: World) -> None:
    """Names that no node can have are not found, whatever characters are in them."""
    assert shared.inspect("a,metadata.name!=b") == 1
    assert "metadata.name%3Da%5C%2Cmetadata.name%21%5C%3Db" in shared.calls[0][-1]


def test_json_and_yaml_tell_the_same(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert shared.inspect("-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert shared.inspect("-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == told
    (node_a,) = told["nodes"]
    assert (node_a["name"], node_a["usedShares"], node_a["ready"]) == ("node-a", 19, True)
    assert [one["name"] for one in node_a["gpus"][0]["pods"]] == ["web-0", "web-1"]


def test_what_cannot_be_read_is_left_out_and_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    broken = node("broken", gpu(0))
    broken["metadata"]["annotations"] = {"gpu-device-plugin/gpus": "?"}
    half, limit = pod("half", on="node-a"), "the limit of aliyun.com/gpu-mem is not a whole number"
    half["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": "500m"}
    world.has(
        node("node-a", gpu(0)),
        broken,
        {"kind": "Node", "metadata": {"name": "nobody"}, "spec": {}, "status": {}},
        {"kind": "Pod", "metadata": {"name": "nobody"}, "spec": {**half["spec"], "nodeName": "x"}, "status": {}},
        half,
    )
    assert world.inspect() == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split()[0] == "node-a"
    assert printed.err.splitlines() == [
        "warning: a node is left out: not a node: its uid or its name is missing",
        "warning: a pod is left out: not a pod: its uid or its name is missing",
        f"warning: pod default/half: container 'main': {limit}, and it is ignored",
        "warning: node broken: the node's annotation gpu-device-plugin/gpus is not JSON",
    ]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["--domain", "example.com", "--memory-resource", "mem", "--count-resource=gpus"], {}),
        (["--domain=example.com"], {"GPUSHARE_MEMORY_RESOURCE": "mem", "GPUSHARE_COUNT_RESOURCE": "gpus"}),
    ],
)
def test_resources_may_have_other_names(
    world: World, capsys: pytest.CaptureFixture[str], words: list[str], environ: Mapping[str, str]
) -> None:
    """Variables of other programs are none of our business."""
    amounts = {"example.com/mem": "30", "example.com/gpus": "2"}
    there = {"kind": "Node", "metadata": {"name": "n", "uid": "u"}, "spec": {}, "status": {"capacity": amounts}}
    user = pod("web", on="n", idx=1)
    user["spec"]["containers"][0]["resources"]["limits"] = {"example.com/mem": "3"}
    world.has(there, user)
    assert world.inspect(*words, environ={**environ, "GPUSHARE_NONSENSE": "1"}) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["n", "unknown", "0/15", "3/15", "3/30"]


# --- Real use and limits ----------------------------------------------------------------------------------------------


def reporting(name: str, *parts: ContainerUse, **more: Any) -> dict[str, Any]:
    """A node whose agent reports who uses what."""
    made = node(name, gpu(0), gpu(1))
    made["metadata"]["annotations"] |= written(*parts, **more)
    return made


def test_names_in_a_report_cannot_control_the_terminal(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The codec drops such names, and what gets past it is escaped: here another annotation of a pod."""
    hostile = node("node-a", gpu(0))
    text = written(part("web-0", used=9000, over_since=SINCE))["gpu-device-plugin/use"]
    hostile["metadata"]["annotations"]["gpu-device-plugin/use"] = text.replace("web-0", "w\\u001b[2Jx")
    evil = pod("web-0", 5, on="node-a", idx=0)
    evil["metadata"]["annotations"]["gpu-device-plugin/over-use"] = "\x1b]0;owned\x07 and \u202emore"
    world.has(hostile, evil)
    for words in (["-d"], ["-o", "wide"], ["-o", "json"], [], ["why", "web-0"]):
        assert world.inspect(*words) == 0
        printed = capsys.readouterr()
        assert (printed.out + printed.err).replace("\n", "").isprintable(), words
    assert r"\x1b]0;owned\x07 and \u202emore" in printed.out


def test_a_pod_that_waits_is_told_that_a_node_refuses_shares(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    refused = GpuEnforcement(
        Enforcement.ADVISORY, "no MPS", refusal="the label asks for mps: the node has no MPS supervisor"
    )
    world.has(reporting("node-a", enforcements={0: refused, 1: refused}), pod("want", 8))
    assert world.inspect("why", "want") == 0
    why = "its agent refuses shares of GPU 0, 1: the label asks for mps: the node has no MPS supervisor"
    assert f"node-a: its GPUs have room, but {why}" in capsys.readouterr().out.splitlines()


def test_what_our_programs_write_on_a_pod_is_no_misspelt_wish(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    want = pod("want", 8)
    want["metadata"]["annotations"] = {"gpu-device-plugin/frameworks": "jax", "gpu-device-plugin/over-use": "x"}
    world.has(node("a", gpu(0)), want)
    assert world.inspect("why", "want") == 0
    assert "Ignored" not in capsys.readouterr().out


# --- kubectl ----------------------------------------------------------------------------------------------------------


def test_a_long_list_comes_in_pages(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    shared.has(page=1)
    assert shared.inspect() == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "19/30"
    assert [re.findall("continue=([0-9]+)", call[-1]) for call in shared.calls] == [[], ["1"], [], ["1"], ["2"]]


def test_a_list_that_has_expired_is_read_in_one_piece(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The API server keeps a list for some minutes, and then answers 410."""
    shared.has(page=1, expire=True)
    assert shared.inspect() == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "19/30"
    assert shared.calls[2][-1] == "/api/v1/nodes?limit=0"


def test_what_kubectl_complains_of_is_shown(shared: World, capfd: pytest.CaptureFixture[str]) -> None:
    shared.api.refuse("error: You must be logged in to the server (Unauthorized)\n")
    assert shared.inspect() == 1
    (line,) = capfd.readouterr().err.splitlines()
    why = "You must be logged in to the server (Unauthorized)"
    assert line == f"kubectl inspect gpushare: {shared.kubectl} proxy: {why}"


def test_a_cluster_that_does_not_answer_is_told(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    shared.has(fail="etcd is away")
    assert shared.inspect() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "kubectl inspect gpushare: list nodes: 500 InternalError: etcd is away"


def test_a_kubectl_that_was_killed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.kubectl.write_text("#!/bin/sh\nkill -KILL $$\n", encoding="utf-8")
    assert world.inspect() == 1
    assert capsys.readouterr().err.endswith("kubectl proxy: ended by SIGKILL\n")


@pytest.mark.parametrize("garbage", ["<html>Sign in</html>", "[]", '{"items": 7}', "\\xff"])
def test_garbage_is_no_cluster(shared: World, capsys: pytest.CaptureFixture[str], garbage: str) -> None:
    shared.has(garbage=garbage)
    assert shared.inspect() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "list nodes: the answer is not a list of objects" in printed.err


async def test_a_request_that_hangs_is_given_up(shared: World) -> None:
    shared.has(hang=True)
    async with reaching((), str(shared.kubectl), timing=Timing(request_s=0.1)) as access:
        with pytest.raises(ApiError, match="list nodes: no answer in time"):
            await access.items(NODES)


def test_without_kubectl_it_says_where_to_get_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.kubectl.chmod(0o644)
    assert world.inspect() == 1
    assert "kubectl: Permission denied; the cluster is read through it" in capsys.readouterr().err
    world.kubectl.unlink()
    assert world.inspect("why", "x") == 1
    assert "kubectl: is not on the PATH; the cluster is read through it: install it" in capsys.readouterr().err


def test_flags_of_kubectl_are_handed_on(shared: World) -> None:
    """They come after the plugin's name, for kubectl allows none before."""
    words = ["--context", "prod", "-s", "https://x", "--as-group=a", "--as-group=b", "--insecure-skip-tls-verify"]
    assert shared.inspect("-d", *words, "node-a") == 0
    passed = ["--as-group=a", "--as-group=b", "--context=prod", "--server=https://x", "--insecure-skip-tls-verify=true"]
    assert [call[:5] for call in shared.api.calls] == [passed] * 2


# --- Why a pod gets no GPU --------------------------------------------------------------------------------------------


def test_a_pod_with_the_annotations_of_another_system_is_told_what_to_write(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = pod("fraction")
    asking["metadata"]["annotations"] = {"gpu-fraction": "0.5", "kai.scheduler/x": "y"}
    world.has(node("node-a", gpu(0)), asking)
    assert world.inspect("why", "fraction") == 0
    printed = capsys.readouterr().out
    assert "Its annotation gpu-fraction is KAI's and run:ai's: neither gpushare-scheduler nor an agent here" in printed
    assert "Its annotation kai.scheduler/x is KAI's" in printed


def test_a_pod_that_has_its_place_is_told_where(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    """In the namespace of the context, or of the flag."""
    shared.has(namespace="ml")
    assert shared.inspect("why", "big", "--context=prod") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ml/big is on node node-a (Running)."
    assert shared.api.calls[0] == ["--context=prod", "config", "view", "--output=json"]
    assert shared.inspect("why", "-n", "default", "web-0") == 0
    assert capsys.readouterr().out.splitlines()[0] == "default/web-0 is on node node-a (Running)."


WHOLE = "nvidia.com/mig-1g.10gb"


def parted(name: str, *gpus: Mapping[str, object], number: int = 2, first: int = 0, **more: Any) -> dict[str, Any]:
    """A node with our agent on it, which gives MIG instances whole, those from a number on."""
    found = node(name, *gpus)
    said = json.loads(found["metadata"]["annotations"]["gpu-device-plugin/gpus"])
    place = {"parent": "GPU-m", "gpu": 1, "profile": "1g.10gb", "resource": WHOLE, **more}
    said["instances"] = [
        gpu(len(gpus) + n, 9, uuid=f"MIG-{first + n}", mig={**place, "number": first + n, "gi": 7 + first + n})
        for n in range(number)
    ]
    found["metadata"]["annotations"]["gpu-device-plugin/gpus"] = json.dumps(said)
    return found


def asking_mig(name: str, resource: str = WHOLE, *, on: str = "", uuid: str = "", **more: str) -> dict[str, Any]:
    found = pod(name, on=on)
    found["spec"]["containers"][0]["resources"] = {"limits": {resource: "1", **more}}
    if uuid:
        found["metadata"]["annotations"]["gpu-device-plugin/mig-instances"] = json.dumps({"main": [uuid]})
    return found


def test_a_pod_that_waits_for_an_instance_is_told_who_has_them(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    gated = asking_mig("gated")
    gated["spec"]["schedulingGates"] = [{"name": "quota"}]
    held = asking_mig("x", on="node-a", uuid="MIG-0"), asking_mig("y", on="node-a")
    world.has(parted("node-a"), *held, asking_mig("z"), gated)
    assert world.inspect("why", "z") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"default/z waits for 1 of {WHOLE}.",
        f"1 node offers {WHOLE}, and none has enough free.",
        "  node-a: 2/2 in use: default/x (1:0), default/y (not known which)",
        "gpushare-scheduler has not looked at it yet; if this persists, no scheduler of this name runs.",
    ]
    assert world.inspect("why", "x") == 0
    assert capsys.readouterr().out.splitlines() == [
        "default/x is on node node-a (Running).",
        "  GPU 0 (MIG 1:0 1g.10gb, MIG-0): the whole instance",
        f"The explanation is incomplete: the agent of node node-a cannot be asked: {NO_AGENT}",
    ]
    assert world.inspect("why", "y") == 0
    assert "is not known yet" in capsys.readouterr().out
    assert world.inspect("why", "gated") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"default/gated waits for 1 of {WHOLE}.",
        "No scheduler looks at it before its scheduling gates are removed: quota.",
    ]


def test_a_pod_that_waits_for_instances_and_memory_is_told_of_both(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    both = asking_mig("z", "nvidia.com/mig-2g.20gb", **{"aliyun.com/gpu-mem": "20"})
    world.has(parted("node-a", gpu(0)), both)
    assert world.inspect("why", "z") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == [
        "default/z waits for 20 GiB of one GPU and 1 of nvidia.com/mig-2g.20gb.",
        "No node that shares its GPUs offers nvidia.com/mig-2g.20gb.",
        f"The nodes offer {WHOLE} (2 on node-a).",
    ]
    assert any("each of them sets NVIDIA_VISIBLE_DEVICES" in line for line in told)
    assert any(line.startswith("node-a: ") for line in told)


@pytest.mark.parametrize("words", [["pod/big", "-n", "ml"], ["po", "big", "--namespace=ml"], ["ml/big"]])
def test_a_pod_may_be_named_as_kubectl_takes_it_and_as_the_tables_have_it(
    shared: World, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert shared.inspect("why", *words) == 0
    assert capsys.readouterr().out.startswith("ml/big is on node node-a (Running).")


def test_without_a_kubeconfig_the_namespace_is_the_default_one(
    shared: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a pod, where kubectl uses the service account."""
    shared.has(namespace="")
    assert shared.inspect("why", "web-0") == 0
    assert capsys.readouterr().out.startswith("default/web-0 is on node node-a")


def test_a_pod_that_is_not_there(shared: World, capfd: pytest.CaptureFixture[str]) -> None:
    assert shared.inspect("why", "big") == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        (
            f'{PROG}: pod default/big cannot be read: pods "big" not found; if it '
            "is in another namespace, name that with -n"
        )
    ]
    assert shared.inspect("why", "big", "-n", "a/../b") == 1
    assert shared.calls[-1][-1] == "/api/v1/namespaces/a%2F..%2Fb/pods/big"


RIGHTS = [["list", "pods", ""], ["list", "nodes", ""], ["list", "events", "default"], ["list", "pods", "default"]]
"""What somebody lacks who may get pods of his namespace and nothing else."""


def test_who_may_only_get_his_pod_is_told_what_it_says_itself_and_which_rights_are_missing(
    shared: World, capfd: pytest.CaptureFixture[str]
) -> None:
    shared.has(forbidden=RIGHTS)
    assert shared.inspect("why", "want") == 0
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [
        "default/want waits for aliyun.com/gpu-mem: 8 of one GPU.",
        "gpushare-scheduler says (Unschedulable): 0/2 nodes",
        (
            "The explanation is incomplete: the right to list events in the namespace default is missing; the right to "
            "list nodes in the whole cluster is missing; the right to list pods in the whole cluster is missing "
            "(docs/inspect.md has the commands with which an administrator grants all rights that this command needs)."
        ),
    ]
    assert printed.err == ""
    assert shared.inspect("why", "web-0") == 0
    assert capfd.readouterr().out.splitlines()[:2] == [
        "default/web-0 is on node node-a (Running).",
        "  GPU 0: 5 shares",
    ]


def event(uid: str, reason: str, message: str, minute: int, kind: str = "Warning") -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"name": f"{uid}.{minute}", "namespace": "default"},
        "involvedObject": {"uid": uid},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T00:{minute:02}:00Z",
    }


def test_the_latest_warnings_about_a_pod_are_told(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Without what stands on the pod itself, what is usual, and what somebody wrote who is no friend of terminals."""
    shared.has(
        event("uid-want", "FailedScheduling", "0/2 nodes", 5),
        event("uid-want", "Scheduled", "all is well", 6, "Normal"),
        event("uid-web-0", "BackOff", "of another pod", 7),
        event("uid-want", "Oldest", "a", 0),
        *(event("uid-want", "FailedMount", f"volume\n{number} \x9b", number) for number in (1, 2, 3)),
        event("uid-want", "Long", "x" * 2000, 4),
        {**event("uid-want", "Broken", "b", 9), "message": 7},
    )
    assert shared.inspect("why", "want") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Event")]
    assert told == [
        r"Event FailedMount: volume 2 \x9b",
        r"Event FailedMount: volume 3 \x9b",
        f"Event Long: {'x' * 497}...",
    ]


def test_a_pod_that_asks_by_another_name_is_told_what_to_write(
    shared: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = pod("one")
    asking["spec"]["containers"][0]["resources"] = {"requests": {"aliyun.com/gpu-memory": "8", "cpu": "1"}}
    shared.has(asking)
    assert shared.inspect("why", "one") == 0
    told = capsys.readouterr().out
    assert "which no agent offers: did you mean aliyun.com/gpu-mem?" in told
    assert "cpu" not in told


@pytest.mark.parametrize(
    "change", [{"metadata": {"name": "odd", "namespace": "default"}}, {"spec": {"schedulerName": 7}}]
)
def test_a_pod_that_is_none(world: World, capsys: pytest.CaptureFixture[str], change: Mapping[str, Any]) -> None:
    world.has({**pod("odd", 4), **change})
    assert world.inspect("why", "odd") == 1
    assert capsys.readouterr().err.startswith("kubectl inspect gpushare: not a pod: ")


def test_what_else_keeps_a_pod_from_a_node_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Node b is cordoned, has a taint that the pod tolerates and one that it does not, and not the label it wants."""
    taints = [{"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    away = node(
        "node-b", gpu(0), spec={"unschedulable": True, "taints": taints}, allocatable={"aliyun.com/gpu-mem": "0"}
    )
    terms = {"tolerations": [{"key": "a", "operator": "Exists"}], "nodeSelector": {"zone": "x"}}
    gates = {"schedulingGates": [{"name": "quota"}]}
    world.has(away, pod("want", 8, spec={**terms, **gates}))
    assert world.inspect("why", "want") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "No scheduler looks at it before its scheduling gates are removed: quota."
    assert (
        "node-b: its GPUs have room, but it is cordoned; the pod does not tolerate its taint b:NoExecute; the pod "
        "requires the node label zone=x; its agent offers no aliyun.com/gpu-mem at the moment; see the agent's log"
    ) in lines


# --- The policy of the extender ---------------------------------------------------------------------------------------


def others_node(name: str) -> dict[str, Any]:
    """A node of another device plugin, which says how much memory it has on how many GPUs, and nothing else."""
    made = node(name, gpu(0), gpu(1))
    made["metadata"]["annotations"] = {}
    return made


def configured(text: str, namespace: str = "gpushare") -> dict[str, Any]:
    metadata = {"name": "gpushare-extender", "namespace": namespace, "uid": "u"}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"default.yaml": text}}


def chosen_gpu(world: World, capsys: pytest.CaptureFixture[str]) -> tuple[int | None, list[str]]:
    """Return which GPU of the node would be chosen, None if that is not known, and what is said of the policy."""
    assert world.inspect("why", "want") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "would be chosen" in line]
    assert len(rows) <= 1
    return int(rows[0].split()[0]) if rows else None, [line for line in lines if "policy" in line]


def test_a_gpu_is_chosen_by_the_policy_that_is_configured(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """GPU 0 is used and GPU 1 is not: spread takes GPU 1, and binpack, which is built in, would take GPU 0."""
    used = pod("there", 4, on="n", idx=0)
    world.has(others_node("n"), used, pod("want", 8), configured("gpu_policy: spread\nnode_policy: spread\n"))
    assert chosen_gpu(world, capsys) == (1, [])


CONFIG_MAPS = [["list", "configmaps", ""]]
ASSUMED: dict[str, tuple[list[dict[str, Any]], list[list[str]], str]] = {
    "nobody may read it": (
        [configured("gpu_policy: spread")],
        CONFIG_MAPS,
        "the ConfigMap gpushare-extender cannot be read (list configmaps: 403 Forbidden",
    ),
    "it cannot be used": (
        [configured("gpu_policy: best")],
        [],
        "the ConfigMap gpushare-extender cannot be used (gpushare/gpushare-extender, default.yaml, line 1, gpu_policy:",
    ),
    "no extender": ([], [], "there is a ConfigMap gpushare-extender in no namespace, instead of in one namespace"),
    "two extenders": (
        [configured("gpu_policy: spread", place) for place in "ab"],
        [],
        "there is a ConfigMap gpushare-extender in a, b, instead of in one namespace",
    ),
}


@pytest.mark.parametrize(("objects", "forbidden", "why"), ASSUMED.values(), ids=ASSUMED)
def test_where_the_policy_is_not_known_it_is_said_which_one_is_assumed(
    world: World,
    capsys: pytest.CaptureFixture[str],
    objects: list[dict[str, Any]],
    forbidden: list[list[str]],
    why: str,
) -> None:
    used = pod("there", 4, on="n", idx=0)
    world.has(others_node("n"), used, pod("want", 8), *objects, forbidden=forbidden)
    gpu_chosen, said = chosen_gpu(world, capsys)
    assert gpu_chosen is None, "only the extender knows what it has learned"
    (sentence,) = said
    assert sentence.startswith(f"Nodes that publish no policy are assumed to have the policy fit: {why}")


def test_where_nodes_say_which_gpu_they_prefer_nobody_asks_for_the_extenders(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may not read ConfigMaps is not told of it in vain."""
    world.has(node("n", gpu(0), gpu(1)), pod("want", 8), forbidden=CONFIG_MAPS)
    assert chosen_gpu(world, capsys) == (0, [])
    wishing = pod("want", 8)
    wishing["metadata"]["annotations"] = {"gpu-device-plugin/gpu-policy": "spread"}
    world.script["objects"].clear()
    world.has(others_node("n"), wishing, forbidden=CONFIG_MAPS)
    assert chosen_gpu(world, capsys) == (0, [])
    assert not [call for call in world.calls if "configmaps" in call[-1]]


def test_wishes_that_nobody_reads_are_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """One misspelt, one of our domain and like none, one that is a label; what others write is theirs."""
    written = {"gpu-device-plugin/use-modell": "T4", "gpu-device-plugin/zzz": "1", "example.com/use-model": "T4"}
    wish = pod("want", 8)
    wish["metadata"] |= {"annotations": written, "labels": {"gpu-device-plugin/gpu-policy": "spread"}}
    world.has(node("a", gpu(0)), wish)
    assert world.inspect("why", "want") == 0
    printed = capsys.readouterr().out.replace("gpu-device-plugin", "gdp")
    assert [line for line in printed.splitlines() if line.startswith("Ignored")] == [
        "Ignored: the annotation gdp/use-modell means nothing (did you mean gdp/use-model?).",
        (
            "Ignored: the annotation gdp/zzz means nothing (there are gdp/avoid-model, gdp/avoid-uuid, gdp/frameworks, "
            "gdp/gpu-policy, gdp/memory-guarantee, gdp/memory-limit, gdp/node-policy, gdp/use-model, gdp/use-uuid)."
        ),
        "Ignored: gdp/gpu-policy is a label of this pod; write it as an annotation.",
    ]


def test_of_very_many_annotations_that_nobody_reads_the_first_are_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod can have thousands, and each is compared with all that there are."""
    wish = pod("want", 8)
    wish["metadata"]["annotations"] = {f"gpu-device-plugin/{'x' * 50}{n:04}": "" for n in range(3000)}
    world.has(node("a", gpu(0)), wish)
    assert world.inspect("why", "want") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Ignored")]
    assert len(told) == 6
    assert told[5] == "Ignored: 2995 more annotations like these mean nothing."


def test_the_nearest_ten_nodes_are_told_or_all(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(*(node(f"n{n:02}", gpu(0, shares=4)) for n in range(12)), pod("want", 8))
    for words, number in (([], 10), (["--all-nodes"], 12)):
        assert world.inspect("why", "want", *words) == 0
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("n")]
        assert len(told) == number


# --- What people may write, and see -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["wy", "x"], "wy x: there is no such command; did you mean why?"),
        (
            ["a", "b"],
            "a b: name one node, kubectl inspect gpushare NODE, or why POD",
        ),
        (["why"], "the following arguments are required: POD; see kubectl inspect gpushare why --help"),
        (["why", "a", "b"], "why a b: too many arguments; name one pod"),
        (
            ["why", "a", "-d"],
            "-d goes with no command (the overview), and not with why; leave it out",
        ),
        (["--all-nodes"], "--all-nodes goes with why, and not with no command (the overview); leave it out"),
        (
            ["doctor", "-n", "x"],
            "-n goes with no command (the overview), top, why, resize, plan, wake, and not with doctor; leave it out",
        ),
        (["-n", "x", "node-a"], "-n: the pods of a namespace are shown wherever they run; leave out the node and -l"),
        (["-n", "x", "-o", "json"], "-n: -d and -o show the pods of all namespaces; leave one of the two out"),
        (["why", "a", "-l", "zone=b"], "-l goes with no command (the overview), top, and not with why; leave it out"),
        (["doctor", "-w"], "-w goes with no command (the overview), top, and not with doctor; leave it out"),
        (["--sort-by", "used"], "--sort-by goes with top, and not with no command (the overview); leave it out"),
        (["--interval", "2"], "--interval goes with top, and not with no command (the overview); leave it out"),
        (["top", "--interval", "x"], "--interval: choose 0.5 to 3600 seconds; see kubectl inspect gpushare top --help"),
        (["plan", "--nodes-free=two"], "--nodes-free: write 1, for example; see"),
        (["top", "--interval", "0"], "--interval: choose 0.5 to 3600 seconds; see kubectl inspect gpushare top --help"),
        (["web", "-o", "json"], "-o goes with no command (the overview), incident, plan, prices, and not with web"),
        (
            ["top", "-d"],
            "-d goes with no command (the overview), and not with top; leave it out",
        ),
        (["tpo", "x"], "tpo x: there is no such command; did you mean top?"),
        (["--contxt=x"], "--contxt: there is no such argument; did you mean --context?"),
        (["-A"], "-A: the overview shows the pods of all namespaces; leave it out"),
        (["--all-namespaces"], "--all-namespaces: the overview shows the pods of all namespaces; leave it out"),
        (["web", "gpu-1"], "web: too many arguments; see kubectl inspect gpushare web --help"),
        (["plan", "--yes"], "--yes: there is nothing to confirm; write --apply too, or leave it out"),
        (
            ["web", "-d"],
            "-d goes with no command (the overview), and not with web; leave it out",
        ),
        (["--port=1"], "--port goes with web, and not with no command (the overview); leave it out"),
        (["doctor", "--no-browser"], "--no-browser goes with web, and not with doctor; leave it out"),
        (["web", "--port=70000"], "--port: choose one from 0 to 65535, or leave it out; see"),
        (["web"], "web: this build has no page; install the package gpu-device-plugin"),
        (["prices", "n1"], "prices: too many arguments; see kubectl inspect gpushare prices --help"),
        (["prices", "-o", "wide"], "-o/--output: invalid choice: 'wide' (choose from 'json'); see"),
        (["--all=really"], "--all goes with uninstall, and not with no command (the overview); leave it out"),
        (["--json"], "--json goes with doctor, and not with no command (the overview); leave it out"),
        (["doctor", "node"], "doctor: too many arguments; see kubectl inspect gpushare doctor --help"),
        (["-x"], "-x: there is no such argument; see kubectl inspect gpushare --help"),
        (
            ["cost"],
            "cost: there is no such command; did you mean gpu-device-plugin cost? (node/cost is a node of this ",
        ),
        (
            ["simulate", "--nodes", "4xT4"],
            "simulate: there is no such command; did you mean gpu-device-plugin simulate?",
        ),
        (
            ["get", "nodes"],
            "get: there is no such command; kubectl inspect gpushare shows all nodes (node/get is a node",
        ),
        (["describe", "pod"], "describe: there is no such command; kubectl inspect gpushare why POD explains one; "),
        (
            ["drain", "n1"],
            "drain: there is no such command; did you mean kubectl inspect gpushare cordon NODE GPU --drain?",
        ),
        (["why", ""], "an argument is empty: is a variable of your shell not set?"),
        (["-n", ""], "an argument is empty: is a variable of your shell not set?"),
        (["-o", "yml"], "-o/--output: invalid choice: 'yml' (choose from 'gpushare', 'wide', 'json', 'yaml'); did you"),
        (["plan", "want"], "plan want: did you mean plan --for want?"),
        (["incident", "--since", "1h"], "--since: there is no such argument; see kubectl inspect gpushare incident"),
        (["logs", "x"], "logs: there is no such command; did you mean kubectl logs?"),
        (["--domain", "UPPER"], "--domain: 'UPPER' is not a domain that the kubelet accepts; "),
    ],
)
def test_misuse_is_one_sentence(
    world: World, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert world.inspect(*words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"kubectl inspect gpushare: {sentence}")
    assert (printed.out, printed.err.count("\n"), world.api.calls) == ("", 1, [])


def test_what_is_not_there_is_told_with_where_to_look(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (("why", "deployment/web"), "a pod is wanted here: kubectl get pods lists those of a workload\n"),
        (("-l", "a==b=c"), "; write -l zone=b, for example\n"),
        (("top", "nowhere"), 'nodes "nowhere" not found; kubectl get nodes lists the existing ones\n'),
    ):
        assert world.inspect(*words) == 1
        assert capsys.readouterr().err.endswith(said)


def test_what_answers_may_be_no_api_server_at_all() -> None:
    lists = Call("list", "nodes")
    no_api = NotFoundError(lists, "404 Not Found", status=404)
    there = "no Kubernetes API server answers there: see the server in kubectl config view"
    assert refusal(no_api) == f"list nodes: 404 Not Found; {there}"
    assert refusal(NotFoundError(lists, "404 NotFound: x", reason="NotFound", said="x"), "advice") == "x; advice"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["help"], "usage: kubectl inspect gpushare [COMMAND] [flags]"),
        (["help", "why"], "usage: kubectl inspect gpushare why [-h]"),
        (["cost", "--help"], "usage: kubectl inspect gpushare [COMMAND] [flags]"),
        (["version"], "gpu-device-plugin 0."),
    ],
)
def test_help_and_version_are_words_too(
    world: World, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        world.inspect(*words)
    assert capsys.readouterr().out.startswith(said)
    assert world.api.calls == []


@pytest.mark.parametrize("words", [["-o", "table"], ["-d", "-o", "json"]])
def test_misuse_of_an_option_is_one_sentence_too(
    world: World, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert world.inspect(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_of_a_pods_environment_is_ever_printed(shared: World, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-d"], ["-o", "wide"], ["-o", "json"], ["-o", "yaml"], ["why", "want"], ["why", "web-0"]):
        assert shared.inspect(*words) == 0
    assert "s3cret" not in "".join(capsys.readouterr())


# --- As a process -----------------------------------------------------------------------------------------------------

INSPECT = [
    sys.executable,
    "-c",
    "import sys; from gpu_device_plugin.__main__ import kubectl_plugin; sys.exit(kubectl_plugin())",
]


def environ(world: World, **more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{world.home}:{os.environ['PATH']}", **more}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["-n", "ml", "why", "big"], ["why", "big", "-n", "ml"]),
        (["--sort-by", "free", "top", "node-a"], ["top", "--sort-by=free", "node-a"]),
        (["--context", "why", "node-a"], ["--context=why", "node-a"]),
        (["-w", "node-a"], ["top", "-w", "node-a"]),
        (["overview", "-d"], ["-d"]),
        (["node/top"], ["overview", "top"]),
    ],
)
def test_flags_may_stand_before_the_command(words: list[str], meant: list[str]) -> None:
    assert parse(PROG, words, COMMANDS) == parse(PROG, meant, COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_help_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(PROG, [command, "--help"], COMMANDS)
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {PROG} {command} ")
    assert ("--sort-by" in said) == (command == "top")
    assert said.count("\n") <= 50


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_needs_neither_cluster_nor_kubectl(tmp_path: Path, word: str) -> None:
    done = subprocess.run([*INSPECT, word], capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("usage: kubectl inspect gpushare ", "gpu-device-plugin "))


def test_it_takes_the_kubectl_on_the_path_and_writes_what_the_terminal_can(shared: World) -> None:
    """A scheduler of a name that ASCII does not have, and a terminal that has nothing else."""
    shared.has(pod("odd", 8, spec={"schedulerName": "planer-ü"}))
    done = subprocess.run(
        [*INSPECT, "why", "odd"],
        capture_output=True,
        text=True,
        check=False,
        env=environ(shared, PYTHONIOENCODING="ascii"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("planer-? has not looked at it yet")


def test_a_reader_that_has_read_enough_is_no_error_message(shared: World) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*INSPECT], stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=environ(shared))
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_no_bug_of_the_program(shared: World) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*INSPECT], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environ(shared)
        )
    assert done.returncode == 1
    assert done.stderr.endswith(": the output cannot be written: No space left on device\n")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_it_and_kubectl(shared: World) -> None:
    """A terminal sends SIGINT to both; here only the program gets it, and takes kubectl along."""
    shared.has(hang=True)
    running = subprocess.Popen(
        [*INSPECT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(shared)
    )
    hanging = shared.home / "hanging"
    until(lambda: running.poll() is not None or (hanging.exists() and hanging.read_text()))
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    printed = running.communicate(timeout=stretched())
    assert (running.returncode, printed) == (130, ("", ""))
    with pytest.raises(ProcessLookupError):
        os.kill(int(hanging.read_text()), 0)


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_served_with_the_flags_of_kubectl_and_the_names_of_resources(world: World) -> None:
    served: list[tuple[list[str], dict[str, object]]] = []

    def web(flags: list[str], resources: Sequence[Resource], **more: object) -> int:
        served.append((flags, {"names": [each.name for each in resources], **more}))
        return 7

    words = ["web", "--context=prod", "--as", "ann", "--domain=example.com", "--port=8080", "--no-browser"]
    assert main(words, prog=PROG, kubectl="the-kubectl", environ={}, web=web) == 7
    ((flags, more),) = served
    assert sorted(flags) == ["--as=ann", "--context=prod"]
    assert more.pop("parts") is REPORT
    assert more == {
        "names": ["example.com/gpu-mem", "example.com/gpu-count"],
        "port": 8080,
        "browser": False,
        "agents_namespace": "gpushare",
        "prog": PROG,
        "kubectl": "the-kubectl",
    }
    assert world.api.calls == []
