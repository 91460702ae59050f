"""`kubectl apply -f deploy/` installs everything in one go, again changes nothing, and deleting leaves nothing."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, documents
from tests.kubeconfig import kubeconfig
from tests.kubernetes.conftest import processes
from tests.patience import stretched
from tools.publishing import Published, install

SHIPPED = sorted(path for path in DEPLOY.iterdir() if path.suffix in {".yaml", ".yml", ".json"})
"""What kubectl reads of a directory, in its order; folders within it are left alone (-R would read them)."""

SINCE = {
    ("v1", "ConfigMap"): 0,
    ("v1", "Namespace"): 0,
    ("v1", "ResourceQuota"): 0,
    ("v1", "Service"): 0,
    ("v1", "ServiceAccount"): 0,
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"): 36,
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding"): 36,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): 30,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): 30,
    ("apps/v1", "DaemonSet"): 9,
    ("apps/v1", "Deployment"): 9,
    ("networking.k8s.io/v1", "NetworkPolicy"): 7,
    ("policy/v1", "PodDisruptionBudget"): 21,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): 8,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): 8,
    ("rbac.authorization.k8s.io/v1", "Role"): 8,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): 8,
    ("resource.k8s.io/v1", "DeviceClass"): 34,
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): 34,
    ("scheduling.k8s.io/v1", "PriorityClass"): 14,
}
"""The minor version of Kubernetes that has a kind in this version without a feature gate, by its API reference."""
OLDEST = 30
NO_KINDS_OF_KUBERNETES = {
    ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"): "a file that kube-scheduler reads",
}
OF_NO_USE_BEFORE = {"dra.yaml": "rights and policies on the objects of an API group that an older API server lacks"}
"""Files with older kinds too, which serve nothing where the newer ones are unknown."""


def kinds(path: Path) -> set[tuple[str, str]]:
    return {(each["apiVersion"], each["kind"]) for each in documents(path)}


def test_the_namespace_comes_before_all_that_is_in_it() -> None:
    namespace, *others = documents(SHIPPED[0])
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", "gpushare")
    everything = [*others, *(each for path in SHIPPED[1:] for each in documents(path))]
    assert {each["metadata"].get("namespace") for each in everything} == {"gpushare", "kube-system", None}
    assert "Namespace" not in {each["kind"] for each in everything}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_what_is_applied_in_one_go_is_known_to_kubernetes_1_30(path: Path) -> None:
    assert {each: SINCE[each] for each in kinds(path) if SINCE[each] > OLDEST} == {}


def test_what_an_ordinary_cluster_may_not_know_is_optional() -> None:
    """And each file there is of one sort, so that one that cannot be applied takes nothing with it."""
    optional = {path.name: kinds(path) for path in (DEPLOY / "optional").iterdir()}
    newer = {name for name, found in optional.items() if any(SINCE.get(each, 99) > OLDEST for each in found)}
    assert newer == {
        "dra.yaml",
        "dra-mutating-policy.yaml",
        "dra-templates.yaml",
        "kube-scheduler-config.yaml",
        "mutating-policy.yaml",
    }
    for name in newer - OF_NO_USE_BEFORE.keys():
        assert all(SINCE.get(each, 99) > OLDEST for each in optional[name])
    assert set.union(*optional.values()) - SINCE.keys() == NO_KINDS_OF_KUBERNETES.keys()


def test_what_only_a_cluster_with_the_operator_knows_has_a_folder_of_its_own() -> None:
    """And it can be applied as a whole: what programs read as files is one folder deeper."""
    found = {path.name: kinds(path) for path in (DEPLOY / "monitoring").iterdir() if path.is_file()}
    assert found == {
        "dashboard.yaml": {("v1", "ConfigMap")},
        "podmonitor.yaml": {("monitoring.coreos.com/v1", "PodMonitor")},
        "prometheusrule.yaml": {("monitoring.coreos.com/v1", "PrometheusRule")},
    }


# --- A real API server -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kubectl:
    """A cluster of an API server and what empties namespaces; nothing else of it runs, and nobody else uses it."""

    program: str
    kubeconfig: Path

    def __call__(self, *arguments: str) -> list[str]:
        """Run kubectl as the administrator, and return what it prints; a warning is a failure."""
        command = [self.program, f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=stretched(240))
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    def everything(self) -> dict[str, str]:
        """Return the version of every object there is, by kind and name, but for what comes and goes by itself."""
        listable = self("api-resources", "--verbs=list", "--output=name")
        passing = {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses", "endpoints"}
        asked = ",".join(sorted({*listable} - passing))
        of_each = "{{.kind}} {{.metadata.namespace}} {{.metadata.name}},{{.metadata.resourceVersion}}"
        lines = self(
            "get", asked, "--all-namespaces", f"--output=go-template={{{{range .items}}}}{of_each}\n{{{{end}}}}"
        )
        return dict(line.split(",") for line in lines)


@contextmanager
def api_server(home: Path, *controllers: str, flags: Sequence[str] = ()) -> Iterator[Kubectl]:
    """Run an API server with these of Kubernetes' controllers; skip the test where a program is missing."""
    folder = os.environ.get("KUBE_BIN", "")
    if not folder:
        pytest.skip("set KUBE_BIN to a folder with the programs of Kubernetes and etcd to apply deploy/")
    path = os.pathsep.join([folder, os.environ.get("PATH", "")])
    names = ("kube-apiserver", "kube-controller-manager", "kubectl", "etcd", "openssl")
    programs = {name: shutil.which(name, path=path) for name in names}
    if missing := [name for name, found in programs.items() if found is None]:
        pytest.skip(f"to apply deploy/ needs {', '.join(missing)} in KUBE_BIN or on the PATH")
    found = {name: str(program) for name, program in programs.items()}
    with processes(home, found, "--authorization-mode=RBAC", *flags) as server:
        file = kubeconfig(server.config, home / "kubeconfig")
        command = [found["kube-controller-manager"], f"--kubeconfig={file}", "--leader-elect=false"]
        with (home / "controllers.log").open("wb") as log:
            running = subprocess.Popen(
                [*command, f"--controllers={','.join(controllers)}", "--secure-port=0"], stdout=log, stderr=log
            )
        try:
            yield Kubectl(found["kubectl"], file)
        finally:
            running.terminate()
            running.wait(20)


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with api_server(tmp_path_factory.mktemp("apply"), "namespace-controller") as running:
        yield running


COUNT = sum(len(documents(path)) for path in SHIPPED)
APPLY = ("apply", "--validate=strict", f"--filename={DEPLOY}")
"""An unknown field, or one written twice, is an error."""


@pytest.fixture
def everything_before(kubectl: Kubectl) -> Iterator[dict[str, str]]:
    """What was there before; after the test, and one command more, nothing else is."""
    before = kubectl.everything()
    yield before
    kubectl("delete", "--ignore-not-found", f"--filename={DEPLOY}")
    assert kubectl.everything().keys() == before.keys()


def test_one_command_installs_everything_and_when_repeated_changes_nothing(
    kubectl: Kubectl, everything_before: dict[str, str]
) -> None:
    assert {line.rpartition(" ")[2] for line in kubectl(*APPLY)} == {"created"}
    made = kubectl.everything()
    assert len(made.keys() - everything_before.keys()) == COUNT
    assert kubectl("diff", f"--filename={DEPLOY}") == []
    kubectl(*APPLY)
    assert changes(made, kubectl.everything()) == []
    # Of a field that the API server writes in another way ("10000" is "10k"), kubectl wants to know whose it is.
    kubectl(*APPLY, "--server-side", "--force-conflicts")
    assert kubectl.everything().keys() == made.keys()
    assert kubectl("diff", f"--filename={DEPLOY}") == []


def test_the_one_manifest_of_a_release_installs_the_same(
    kubectl: Kubectl, everything_before: dict[str, str], tmp_path: Path
) -> None:
    """But for the images, which are the published ones; what it installed, deploy/ updates and removes."""
    whole = tmp_path / "install.yaml"
    text = install(DEPLOY, Published("https://git.example/people/gpu", "registry.example/people"))
    whole.write_text(text, encoding="utf-8")
    said = kubectl("apply", "--validate=strict", f"--filename={whole}")
    assert {line.rpartition(" ")[2] for line in said} == {"created"}
    assert len(kubectl.everything().keys() - everything_before.keys()) == COUNT
    assert kubectl("diff", f"--filename={whole}") == []
    made = kubectl.everything()
    kubectl(*APPLY)
    workloads = ["DaemonSet gpushare gpushare-node", "Deployment gpushare gpushare-scheduler"]
    assert changes(made, kubectl.everything()) == workloads


def changes(old: dict[str, str], new: dict[str, str]) -> list[str]:
    return sorted({name for name, _ in old.items() ^ new.items()})
