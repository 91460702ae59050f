"""`make deploy` renders deploy/ with an image and an overlay, which changes what its cluster needs, and no more."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin import __version__, cli
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from tests.deploy.kustomize import NAMES, OVERLAYS, kustomization_in, render
from tests.deploy.manifests import AGENT, DEPLOY, Json, by_name, documents, parsed, pod_of
from tests.deploy.templates import Chart
from tests.deploy.test_apply import Kubectl, api_server
from tests.deploy.test_patches import in_order
from tests.docs.pages import DOCS, blocks, text_of
from tests.names import MEM
from tools.publishing import INSTALLED

ROOT = DEPLOY.parent
SCHEDULER = ("Deployment", "gpushare", "gpushare-scheduler")
CLASS = ("RuntimeClass", "", "nvidia")
EXAMPLE = ("Pod", "default", "gpushare-example")
OPTIONS = ["capacity", "dra", "dra-mutating-policy", "evict", "idle", "limits", "mig", "mps"]
OPTIONS += ["mutating-policy", "networkpolicy", "web"]
FAKE = {"fake-gpus", "kind", "k3d", "minikube"}
DIGEST = f"sha256:{'0123456789abcdef' * 4}"

every_overlay = pytest.mark.parametrize("overlay", NAMES)


# --- What they change -------------------------------------------------------------------------------------------------


def changes(overlay: str) -> Json:
    """Return what an overlay makes of the pods of agent and scheduler, and the objects that it adds."""
    plain, made = render(), render(overlay)
    assert made.keys() >= plain.keys()
    untouched = plain.keys() - {AGENT, SCHEDULER}
    assert [name for name in untouched if made[name] != plain[name]] == []
    found: Json = {"added": made.keys() - plain.keys()}
    for name, key in (("agent", AGENT), ("scheduler", SCHEDULER)):
        before, after = pod_of(plain[key]), pod_of(made[key])
        found[name] = {
            field: after.get(field) for field in before.keys() | after.keys() if before.get(field) != after.get(field)
        }
    found["replicas"] = made[SCHEDULER]["spec"]["replicas"]
    return {field: value for field, value in found.items() if value}


@pytest.mark.parametrize("overlay", sorted(FAKE))
def test_fake_gpus_need_neither_a_driver_nor_a_runtime_class(overlay: str) -> None:
    found = changes(overlay)
    (container,) = found["agent"].pop("containers")
    assert found == {"agent": {"runtimeClassName": None}, "added": {EXAMPLE}, "replicas": 1}
    assert container["args"] == [*pod_of(render()[AGENT])["containers"][0]["args"], "--gpus=fake:4xT4"]
    sources = cli.sources_of(NODE_SETTINGS, cli.parse(container["args"]), {"NODE_NAME": "node-a"})
    assert sources.flags["gpus"] == "fake:4xT4"


def test_the_example_runs_our_own_image_and_asks_for_shares() -> None:
    pod = render("kind", [{"name": "gpu-device-plugin", "newName": "registry.example/ours", "newTag": "1"}])[EXAMPLE]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example/ours:1"
    assert container["resources"] == {"limits": {MEM: 4}}
    compile(container["command"][2], "example", "exec")


@pytest.mark.parametrize(
    ("overlay", "found"),
    [
        ("default-runtime", {"agent": {"runtimeClassName": None}, "replicas": 2}),
        ("runtime-class", {"added": {CLASS}, "replicas": 2}),
        ("eks", {"added": {CLASS}, "replicas": 2}),
        ("aks", {"added": {CLASS}, "replicas": 2}),
        ("k3s", {"replicas": 1}),
    ],
)
def test_a_runtime_class_is_added_where_there_is_none_and_not_named_where_none_works(overlay: str, found: Json) -> None:
    assert changes(overlay) == found


@pytest.mark.parametrize(
    ("overlay", "handler"), [("runtime-class", "nvidia"), ("eks", "nvidia"), ("aks", "nvidia-container-runtime")]
)
def test_the_runtime_class_leads_to_the_runtime_of_the_nodes(overlay: str, handler: str) -> None:
    """By the names that their containerd has for it: docs/install.md has the sources."""
    assert render(overlay)[CLASS]["handler"] == handler


@pytest.mark.parametrize(
    ("overlay", "role", "agent"),
    [("rke", "controlplane", {"runtimeClassName": None}), ("rke2", "control-plane", {})],
)
def test_with_rancher_the_scheduler_runs_on_the_control_plane(overlay: str, role: str, agent: Json) -> None:
    found = changes(overlay)
    etcd = {"key": "node-role.kubernetes.io/etcd", "operator": "Exists"}
    assert found.get("agent", {}) == agent
    assert found["scheduler"] == {
        "nodeSelector": {f"node-role.kubernetes.io/{role}": "true"},
        "tolerations": [*pod_of(render()[SCHEDULER])["tolerations"], etcd],
    }


@pytest.mark.parametrize("overlay", ["gpu-operator", "gke"])
def test_beside_the_gpu_operator_the_agent_leaves_nodes_of_virtual_machines_alone(overlay: str) -> None:
    (term,) = changes(overlay)["agent"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "nvidia.com/gpu.workload.config", "operator": "NotIn", "values": ["vm-passthrough", "vm-vgpu"]}
    ]
    assert changes(overlay).keys() == {"agent", "replicas"}


@pytest.mark.parametrize(
    ("overlay", "values"),
    [
        ("default-runtime", {"runtimeClassName": ""}),
        ("amd", {"runtimeClassName": "", "privileged": True, "verifyLimits": True}),
        ("k0s", {"kubeletRootDir": "/var/lib/k0s/kubelet"}),
        (
            "microk8s",
            {
                "kubeletDir": "/var/snap/microk8s/common/var/lib/kubelet",
                "affinity": pod_of(render("gpu-operator")[AGENT])["affinity"],
            },
        ),
    ],
)
def test_the_agent_is_as_the_chart_makes_it_with_these_values(overlay: str, values: Json) -> None:
    assert render(overlay)[AGENT] == Chart(DEPLOY / "chart").render({"agent": values})[AGENT]


# --- Nodes of other vendors

AMD_AGENT, LIMITS = ("DaemonSet", "gpushare", "gpushare-node-amd"), ("DaemonSet", "gpushare", "gpushare-limits")
AMD_LIMITS = ("DaemonSet", "gpushare", "gpushare-limits-amd")


def test_the_agent_of_amd_nodes_is_privileged_has_two_capabilities_and_sees_cgroups() -> None:
    found = changes("amd")
    (container,) = found["agent"].pop("containers")
    (plain,) = pod_of(render()[AGENT])["containers"]
    assert found["agent"].pop("runtimeClassName") is None
    volume = found["agent"].pop("volumes")[-1]
    assert found == {"replicas": 2, "agent": {}}
    assert volume == {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}}
    assert container["volumeMounts"][-1] == {"name": "cgroup", "mountPath": "/sys/fs/cgroup", "readOnly": True}
    security = {key: value for key, value in plain["securityContext"].items() if key != "allowPrivilegeEscalation"}
    capabilities = {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert container["securityContext"] == {**security, "privileged": True, "capabilities": capabilities}
    assert {key for key in container if container[key] != plain[key]} == {"securityContext", "volumeMounts"}
    assert pod_of(render("amd")[AGENT])["hostPID"] is True


def test_the_limit_helper_of_amd_nodes_writes_cgroups_and_has_no_capability() -> None:
    made = render("amd", options=["limits"])[LIMITS]
    values = {"agent": {"runtimeClassName": ""}, "limits": {"enabled": True, "dmem": True}}
    assert made == Chart(DEPLOY / "chart").render(values)[LIMITS]
    (container,) = pod_of(made)["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (container["securityContext"]["runAsUser"], container["securityContext"]["privileged"]) == (0, False)
    assert container["volumeMounts"][-1] == {"name": "cgroup", "mountPath": "/sys/fs/cgroup"}
    assert "runtimeClassName" not in pod_of(made)


@pytest.mark.parametrize("overlay", ["mixed", "mixed-limits"])
def test_in_a_mixed_cluster_each_node_has_one_agent(overlay: str) -> None:
    """And one limit helper at most; neither DaemonSet takes the pods of the other for its own."""
    made = render(overlay, options=["limits"])
    pairs = [(AGENT, AMD_AGENT)] + ([(LIMITS, AMD_LIMITS)] if overlay == "mixed-limits" else [])
    assert made.keys() - render(options=["limits"]).keys() == {amd for _, amd in pairs}
    (not_amd, _) = _terms(made[AGENT])
    assert not_amd == {"key": "gpushare-vendor", "operator": "NotIn", "values": ["amd"]}
    assert _terms(made[LIMITS])[0] == not_amd
    for usual, amd in pairs:
        alone = render("amd", options=["limits"])[usual]
        labels = {**alone["spec"]["selector"]["matchLabels"], "gpushare-vendor": "amd"}
        assert made[amd]["spec"]["selector"]["matchLabels"] == labels
        assert made[amd]["spec"]["template"]["metadata"]["labels"] == labels
        assert pod_of(made[amd]) == {**pod_of(alone), "nodeSelector": {SWITCH_LABEL: "true", "gpushare-vendor": "amd"}}
        assert pod_of(made[usual])["runtimeClassName"] == "nvidia"


def _terms(daemon_set: Json) -> list[Json]:
    affinity = pod_of(daemon_set)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    found: list[Json] = term["matchExpressions"]
    return found


def test_the_nodes_of_virtual_machines_stay_left_out_where_the_mixed_overlay_comes_last() -> None:
    (theirs,) = _terms(render("gpu-operator")[AGENT])
    assert theirs in _terms(render("mixed")[AGENT])


@every_overlay
def test_the_label_stays_the_switch_and_every_overlay_says_what_comes_next(overlay: str) -> None:
    assert pod_of(render(overlay)[AGENT])["nodeSelector"] == {SWITCH_LABEL: "true"}
    text = (OVERLAYS / overlay / "kustomization.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"{SWITCH_LABEL}=true" in text
    assert "\n# Next:\n#   kubectl " in text


def test_the_overlay_without_a_runtime_class_is_for_every_daemonset_of_ours() -> None:
    made = render("default-runtime", options=OPTIONS)
    workloads = [each for each in made.values() if each["kind"] == "DaemonSet"]
    assert {each["metadata"]["name"] for each in workloads} == {"gpushare-node", "gpushare-mps", "gpushare-limits"}
    assert all("runtimeClassName" not in pod_of(each) for each in workloads)


def test_without_an_overlay_it_is_what_a_release_installs() -> None:
    assert kustomization_in(DEPLOY)["resources"] == list(INSTALLED)
    assert len(render()) == sum(len(documents(DEPLOY / name)) for name in INSTALLED)


# --- make -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the targets read of a clone."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    return tmp_path


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False, env=environ)


@pytest.mark.parametrize("target", ["image", "push", "deploy", "manifests"])
def test_without_an_image_it_says_what_to_write(clone: Path, target: str) -> None:
    done = make(clone, target)
    assert done.returncode != 0
    assert done.stderr.startswith(f"Name the image: make {target} IMAGE=REGISTRY/gpu-device-plugin:{__version__}\n")
    assert done.stdout == ""


def test_an_unknown_overlay_is_answered_with_those_that_there_are(clone: Path) -> None:
    done = make(clone, "deploy", "IMAGE=a:1", "OVERLAY=kid")
    assert done.returncode != 0
    assert done.stderr.startswith(
        f"There is no overlay kid. OVERLAY is one of: {' '.join(NAMES)}; or the relative path of a "
    )


def test_a_folder_is_named_with_and_without_a_last_slash(clone: Path) -> None:
    for overlay in ("kind", "kind/", "deploy/overlays/kind", "deploy/overlays/kind/"):
        assert make(clone, "manifests", "IMAGE=a:1", "KUBECTL=echo", f"OVERLAY={overlay}").returncode == 0
        (made,) = documents(clone / "build" / "deploy" / "kustomization.yaml")
        assert made["components"] == ["../../deploy/overlays/kind"]
    absolute = make(clone, "manifests", "IMAGE=a:1", "KUBECTL=echo", f"OVERLAY={clone}/deploy/overlays/kind")
    assert absolute.stderr.startswith(f"There is no overlay {clone}/deploy/overlays/kind. OVERLAY is one of: ")


IMAGE_NAMES = [
    "a b",
    'a"b',
    "a:",
    ":1",
    "http://r.example/a:1",
    "r.example/A:1",
    "a//b",
    "a@sha256:abc",
    "a;b",
    "a:1:2",
]


@pytest.mark.parametrize(
    ("target", "image"),
    [*(("manifests", each) for each in IMAGE_NAMES), *((each, "a b") for each in ("image", "push", "deploy"))],
)
def test_what_is_no_name_of_an_image_is_refused_before_anything_happens(clone: Path, target: str, image: str) -> None:
    done = make(clone, target, f"IMAGE={image}", "KUBECTL=echo", "CONTAINER_TOOL=echo")
    assert done.returncode != 0
    assert done.stderr.startswith(f"IMAGE={image} is no name of an image. Write lower-case letters, as in IMAGE=")
    assert done.stdout == ""


@pytest.mark.parametrize("variable", ["IMAGE", "OVERLAY", "WITH", "KUBERNETES", "KUBE_SCHEDULER"])
def test_no_quote_reaches_a_shell(clone: Path, variable: str) -> None:
    done = make(clone, "manifests", "IMAGE=a:1", f"{variable}=a'; touch made; '")
    assert done.stderr.endswith(f"*** {variable} has a single quote.  Stop.\n")
    assert not (clone / "made").exists()


@pytest.mark.parametrize("version", ["1.31", "v1.31", "latest"])
def test_a_version_without_all_its_numbers_is_no_tag_of_kube_scheduler(clone: Path, version: str) -> None:
    done = make(clone, "manifests", "IMAGE=a:1", "KUBECTL=echo", f"KUBERNETES={version}")
    assert done.returncode != 0
    assert done.stderr.startswith(f"KUBERNETES={version} is no version of Kubernetes. Write all three numbers, as in ")


@pytest.mark.parametrize("version", ["1.31.4", "v1.31.4-eks-3025e55", "v1.31.4+k3s1"])
def test_a_version_is_given_as_kubectl_shows_it(clone: Path, version: str) -> None:
    make(clone, "manifests", "IMAGE=a:1", "KUBECTL=echo", f"KUBERNETES={version}")
    assert documents(clone / "build" / "deploy" / "kustomization.yaml")[0]["images"][1]["newTag"] == "v1.31.4"


@pytest.mark.parametrize("target", ["deploy", "undeploy"])
def test_without_a_cluster_it_says_which_file_kubectl_read(
    clone: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    kubectl = clone / "kubectl"
    kubectl.write_text("#!/bin/sh\necho asked again >&2\necho refused >&2\nexit 1\n", encoding="utf-8")
    kubectl.chmod(0o755)
    monkeypatch.setenv("KUBECONFIG", "/nope")
    done = make(clone, target, "IMAGE=a:1", f"KUBECTL={kubectl}")
    assert done.returncode != 0
    assert done.stderr.startswith(f"refused\n{kubectl} reaches no cluster with KUBECONFIG=/nope.\n")
    assert done.stdout == ""


@pytest.mark.parametrize("target", ["deploy", "undeploy", "manifests"])
def test_without_kubectl_it_says_how_to_name_another(clone: Path, target: str) -> None:
    done = make(clone, target, "IMAGE=a:1", "KUBECTL=no-such-program get")
    assert done.returncode != 0
    assert done.stderr.startswith("There is no program no-such-program. Install kubectl, or say what yours is, as in ")


def test_targets_in_one_command_run_in_its_order(clone: Path) -> None:
    tool = clone / "tool"
    tool.write_text("#!/bin/sh\n[ $1 = push ] && exec ls built\ntouch built\n", encoding="utf-8")
    tool.chmod(0o755)
    done = make(clone, "--silent", "--jobs=4", "image", "push", "IMAGE=a:1", f"CONTAINER_TOOL={tool}")
    assert (done.returncode, done.stdout) == (0, "built\n")


def test_an_unknown_option_is_answered_with_those_that_there_are(clone: Path) -> None:
    done = make(clone, "deploy", "IMAGE=a:1", "WITH=web wep")
    assert done.returncode != 0
    assert done.stderr.startswith(f"There is no wep to install. WITH is some of: {' '.join(OPTIONS)}; as in WITH=")


def test_an_option_that_is_written_twice_is_installed_once(clone: Path) -> None:
    make(clone, "manifests", "IMAGE=a:1", "KUBECTL=echo", "WITH=web mps web")
    (made,) = documents(clone / "build" / "deploy" / "kustomization.yaml")
    assert made["resources"] == ["../../deploy", "../../deploy/optional/mps.yaml", "../../deploy/optional/web.yaml"]


def test_image_and_push_call_the_tool_of_your_choice(clone: Path) -> None:
    built = make(clone, "--silent", "image", "IMAGE=r.example/ours:1", "CONTAINER_TOOL=echo", "ARGS=--build-arg BASE=b")
    assert built.stdout == "build --tag r.example/ours:1 --build-arg REVISION=unknown --build-arg BASE=b .\n"
    assert make(clone, "--silent", "push", "IMAGE=r.example/ours:1", "CONTAINER_TOOL=echo").stdout == (
        "push r.example/ours:1\n"
    )


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ("ours", {"newName": "ours", "newTag": "latest"}),
        ("r.example:5000/a/ours", {"newName": "r.example:5000/a/ours", "newTag": "latest"}),
        ("r.example:5000/a/ours:1", {"newName": "r.example:5000/a/ours", "newTag": "1"}),
        (f"r.example/ours@{DIGEST}", {"newName": "r.example/ours", "digest": DIGEST}),
        (f"r.example/ours:1@{DIGEST}", {"newName": "r.example/ours", "digest": DIGEST}),
    ],
)
def test_an_image_is_read_as_docker_reads_it(clone: Path, image: str, line: Json) -> None:
    make(clone, "manifests", f"IMAGE={image}", "KUBECTL=echo", "KUBERNETES=v1.31.4", "OVERLAY=gke", "WITH=web")
    (made,) = documents(clone / "build" / "deploy" / "kustomization.yaml")
    scheduler = "registry.k8s.io/kube-scheduler"
    assert made == {
        "resources": ["../../deploy", "../../deploy/optional/web.yaml"],
        "components": ["../../deploy/overlays/gke"],
        "images": [
            {"name": "gpu-device-plugin", **line},
            {"name": scheduler, "newName": scheduler, "newTag": "v1.31.4"},
        ],
    }


@pytest.mark.parametrize(
    ("server", "tag"),
    [("v1.36.3", "v1.36.3"), ("v1.33.5-eks-3025e55", "v1.33.5"), ("v1.34.1+k3s1", "v1.34.1"), ("", None)],
)
def test_kube_scheduler_is_of_the_clusters_version(clone: Path, server: str, tag: str | None) -> None:
    """Without an answer of the cluster it is that of the manifests."""
    kubectl = clone / "kubectl"
    versions = '{"clientVersion": {\\n  "gitVersion": "v1.99.0"\\n}'
    if server:
        versions += f',\\n"serverVersion": {{\\n  "gitVersion": "{server}"\\n}}}}'
    kubectl.write_text(f"#!/bin/sh\n[ \"$1\" != version ] || printf '{versions}\\n'\n", encoding="utf-8")
    kubectl.chmod(0o755)
    make(clone, "manifests", "IMAGE=a:1", f"KUBECTL={kubectl}", "KUBE_SCHEDULER=mirror.example/kube-scheduler")
    line = documents(clone / "build" / "deploy" / "kustomization.yaml")[0]["images"][1]
    assert (line["newName"], line.get("newTag")) == ("mirror.example/kube-scheduler", tag)


# --- The real kubectl and a real API server ---------------------------------------------------------------------------


def kubectl_program() -> str:
    found = shutil.which("kubectl", path=os.pathsep.join([os.environ.get("KUBE_BIN", ""), os.environ["PATH"]]))
    if found is None:
        pytest.skip("kubectl is neither in KUBE_BIN nor on the PATH")
    return found


def manifests(clone: Path, overlay: str, *options: str) -> Path:
    """Return the file that `make manifests` writes."""
    chosen = (f"OVERLAY={overlay}", f"WITH={' '.join(options)}", "KUBERNETES=v1.31.4")
    done = make(clone, "manifests", "IMAGE=r.example/ours:1", *chosen, f"KUBECTL={kubectl_program()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "install.yaml has kube-scheduler:v1.31.4\n"
    return clone / "install.yaml"


@pytest.mark.parametrize(
    ("overlay", "options"),
    [
        ("", ()),
        *((name, ()) for name in NAMES),
        *(("default-runtime", (each,)) for each in OPTIONS),
        *((name, ("limits",)) for name in ("amd", "mixed", "mixed-limits")),
    ],
)
def test_kubectl_renders_the_same(clone: Path, overlay: str, options: tuple[str, ...]) -> None:
    images = [
        {"name": "gpu-device-plugin", "newName": "r.example/ours", "newTag": "1"},
        {"name": "registry.k8s.io/kube-scheduler", "newTag": "v1.31.4"},
    ]
    made = by_name(parsed(manifests(clone, overlay, *options).read_text(encoding="utf-8")))
    expected = render(overlay, images, options)
    assert made.keys() == expected.keys()
    for each in (made, expected):
        in_order(each[AGENT])
    assert [name for name in made if _in_one_line(made[name]) != _in_one_line(expected[name])] == []


def _in_one_line(body: Any) -> Any:
    """Of a policy return the expressions without their line breaks: kustomize doubles those of folded text."""
    match body:
        case {"kind": str(kind)} if not kind.endswith("AdmissionPolicy"):
            return body
        case dict():
            return {key: _in_one_line(value) for key, value in body.items()}
        case list():
            return [_in_one_line(each) for each in body]
        case str():
            return " ".join(body.split())
    return body


def test_a_folder_of_your_own_adds_to_an_overlay(clone: Path) -> None:
    """As docs/install.md says: settings that stay yours."""
    folder = clone / "mine"
    folder.mkdir()
    (shown,) = (block.text for block in blocks(text_of(DOCS / "install.md"), "yaml") if "Component" in block.text)
    (folder / "kustomization.yaml").write_text(shown.replace("../gpu-device-plugin/", "../"), encoding="utf-8")
    made = parsed(manifests(clone, "./mine").read_text(encoding="utf-8"))
    (settings,) = (each for each in made if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "gpushare-node"))
    assert parsed(settings["data"]["default.yaml"]) == [{"policy": "spread", "share_size": "256MiB"}]
    assert "RuntimeClass" in {each["kind"] for each in made}


def test_the_mixed_overlay_follows_that_of_the_nvidia_nodes_in_a_folder_of_your_own(clone: Path) -> None:
    folder = clone / "mine"
    folder.mkdir()
    components = [f"../deploy/overlays/{name}" for name in ("microk8s", "mixed")]
    mine = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "components": components}
    (folder / "kustomization.yaml").write_text(json.dumps(mine), encoding="utf-8")
    made = by_name(parsed(manifests(clone, "./mine").read_text(encoding="utf-8")))
    theirs = render("microk8s")[AGENT]
    assert pod_of(made[AGENT])["volumes"] == pod_of(theirs)["volumes"]
    assert _terms(made[AGENT])[1:] == _terms(theirs)
    assert "affinity" not in pod_of(made[AMD_AGENT])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with api_server(tmp_path_factory.mktemp("overlays"), "namespace-controller") as running:
        running("create", "namespace", "gpushare")  # a dry run makes none for what is in it
        yield running


@pytest.mark.parametrize(
    ("overlay", "options"),
    [*((name, ()) for name in NAMES), *((name, OPTIONS) for name in ("runtime-class", "amd", "mixed-limits"))],
)
def test_an_api_server_accepts_it(server: Kubectl, clone: Path, overlay: str, options: list[str]) -> None:
    made = manifests(clone, overlay, *options)
    said = server("apply", "--server-side", "--dry-run=server", "--validate=strict", f"--filename={made}")
    assert len(said) == len(parsed(made.read_text(encoding="utf-8")))
    assert all(line.endswith("serverside-applied (server dry run)") for line in said)
