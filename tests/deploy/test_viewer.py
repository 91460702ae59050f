"""With the role for viewers all that looks sees what an administrator sees; with less it says what is missing."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import ALLOCATION
from gpu_device_plugin.report.commands import VIEWED
from tests.builders import container, node, pod
from tests.deploy.manifests import DEPLOY, documents
from tests.deploy.test_apply import Kubectl, api_server
from tests.patience import REAL_S, stretched, until

CLUSTER_ROLE, ROLE = documents("viewer")
COMMANDS = (
    *(("-o", "json"), ("-d",), ("why", "waits"), ("why", "trains", "-n", "team"), ("plan",), ("doctor",), ("NODE",)),
)


def test_viewers_change_nothing() -> None:
    rules = [*CLUSTER_ROLE["rules"], *ROLE["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_what_people_are_sent_to_these_roles_for_is_in_them() -> None:
    rules = [*CLUSTER_ROLE["rules"], *ROLE["rules"]]
    assert {resource for rule in rules for resource in rule["resources"]} == VIEWED


# --- A real API server -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str
    refused: str
    """What the API server said to kubectl where it refused a read."""


class World:
    """A cluster with everything of deploy/, a node, a pod with GPU memory, and one that waits."""

    def __init__(self, kubectl: Kubectl, home: Path) -> None:
        self.kubectl = kubectl
        self._home = home
        tools = home / "bin"
        tools.mkdir()
        # kubectl's errors are kept: a program may read something that it can do without, and not say so.
        self._log = home / "refused.log"
        wrapper = tools / "kubectl"
        real = shlex.quote(kubectl.program)
        wrapper.write_text(
            f'#!/bin/sh\n{real} "$@" 2> {shlex.quote(str(home))}/err.$$\ncode=$?\n'
            f"cat {shlex.quote(str(home))}/err.$$ >&2\n"
            f"cat {shlex.quote(str(home))}/err.$$ >> {shlex.quote(str(self._log))}\nexit $code\n",
            encoding="utf-8",
        )
        wrapper.chmod(0o755)
        self._path = os.pathsep.join([str(tools), os.defpath])

    def create(self, *objects: Any) -> None:
        file = self._home / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}), encoding="utf-8")
        self.kubectl("create", "--validate=false", f"--filename={file}")  # a node has only the fields that matter here

    def inspect(self, *words: str, user: str = "") -> Said:
        self._log.write_text("", encoding="utf-8")
        command = [sys.executable, "-m", "gpu_device_plugin", "inspect", *words, *([f"--as={user}"] if user else ())]
        environ = {"PATH": self._path, "KUBECONFIG": str(self.kubectl.kubeconfig), "HOME": str(self._home)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=stretched(120))
        refused = [line for line in self._log.read_text(encoding="utf-8").splitlines() if "orbidden" in line]
        return Said(done.returncode, done.stdout, done.stderr, "\n".join(refused))

    def may(self, user: str, *words: str) -> bool:
        """Whether a user may do it, in the API server's own words."""
        command = [self.kubectl.program, f"--kubeconfig={self.kubectl.kubeconfig}", "auth", "can-i", *words]
        done = subprocess.run(
            [*command, f"--as={user}"], capture_output=True, text=True, check=False, timeout=stretched(60)
        )
        assert done.stdout.strip() in {"yes", "no"}, done.stderr
        return done.stdout.strip() == "yes"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("viewer")
    with api_server(home, "namespace-controller", "clusterrole-aggregation-controller") as kubectl:
        made = World(kubectl, home)
        kubectl("create", "namespace", "team")
        annotations = {ALLOCATION: json.dumps({"0": {"0": 10}})}
        # The policies would not let an administrator write what only an agent writes: they come later.
        made.create(
            node("gpu-1", mem=15, count=1, labels={"gpushare": "true"}),
            pod("trains", container(mem=10), namespace="team", node="gpu-1", annotations=annotations),
            pod("waits", container(mem=9)),
        )
        for name in ("gpushare-viewer", "view"):
            kubectl("create", "clusterrolebinding", f"test-{name}", f"--clusterrole={name}", f"--user={name}")
        kubectl("create", "rolebinding", "team", "--clusterrole=view", "--user=team", "--namespace=team")
        kubectl("create", "clusterrole", "two", "--verb=list", "--resource=nodes,pods")
        kubectl("create", "clusterrolebinding", "two", "--clusterrole=two", "--user=two")
        kubectl("apply", f"--filename={DEPLOY}")
        # The doctor asks it, by the API server, whether a scheduler calls it; and looks for its lease.
        labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "scheduler"}
        made.create(pod("gpushare-scheduler-0", namespace="gpushare", labels=labels))
        words = ("create", "rolebinding", "metrics", "--role=gpushare-viewer-metrics", "--user=gpushare-viewer")
        kubectl(*words, "--namespace=gpushare")
        yield made


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_viewer_sees_what_an_administrator_sees(world: World, words: tuple[str, ...]) -> None:
    words = tuple("gpu-1" if word == "NODE" else word for word in words)
    administrator = world.inspect(*words)
    viewer = world.inspect(*words, user="gpushare-viewer")
    assert viewer == administrator
    assert (viewer.refused, viewer.err) == ("", "")
    assert viewer.status == (4 if words == ("doctor",) else 0)  # no agent runs


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
@pytest.mark.parametrize("resource", ["nodes", "pods", "events", "resourceclaims"])
def test_the_page_may_follow_what_it_shows(world: World, verb: str, resource: str) -> None:
    assert world.may("gpushare-viewer", verb, resource, "--all-namespaces")


def test_a_viewer_reads_metrics_in_our_namespace_alone(world: World) -> None:
    assert world.may("gpushare-viewer", "get", "pods", "--subresource=proxy", "--namespace=gpushare")
    assert not world.may("gpushare-viewer", "get", "pods", "--subresource=proxy", "--namespace=team")
    assert not world.may("view", "get", "pods", "--subresource=proxy", "--namespace=gpushare")


def test_a_viewer_reads_no_secrets_nor_other_configuration(world: World) -> None:
    assert world.may("gpushare-viewer", "get", "configmaps/gpushare-extender", "--all-namespaces")
    for what in ("secrets", "configmaps", "configmaps/another"):
        assert not world.may("gpushare-viewer", "get", what, "--namespace=gpushare")


def test_who_has_the_role_view_in_the_whole_cluster_sees_the_gpus_too(world: World) -> None:
    until(lambda: world.may("view", "list", "nodes"), "the controller adds our role to view", quiet_s=REAL_S)
    assert world.inspect("-o", "json", user="view") == world.inspect("-o", "json")


def test_the_role_view_in_one_namespace_shows_the_pod_and_names_what_is_missing(world: World) -> None:
    said = world.inspect("why", "trains", "-n", "team", user="team")
    assert said.status == 0
    assert "team/trains" in said.out or "gpu-1" in said.out
    assert "the right to list nodes in the whole cluster is missing" in said.out
    assert "the right to list pods in the whole cluster is missing" in said.out
    for words in ((), ("doctor",)):
        said = world.inspect(*words, user="team")
        assert "nodes" in said.out + said.err, said


def test_the_doctor_names_each_missing_right(world: World) -> None:
    said = world.inspect("doctor", "--json", user="two")
    assert said.status == 4, said.err
    unknown = {each["found"] for each in json.loads(said.out)["findings"] if each["severity"] == "unknown"}
    for missing in (
        "list daemonsets.apps in the whole cluster",
        "list configmaps in the namespace gpushare",
        "list leases.coordination.k8s.io in the namespace gpushare",
        "list validatingadmissionpolicies.admissionregistration.k8s.io in the whole cluster",
    ):
        assert any(f"the right to {missing} is missing" in found for found in unknown), (missing, unknown)
