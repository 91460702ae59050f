"""What the manifests of the scheduler ask for is what kube-scheduler and the extender accept, need and use."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from gpu_device_plugin import cli
from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.scheduler.extender_routes import PREFIX
from gpu_device_plugin.settings.extender import ExtenderSettings
from tests.configmap import FOLDER, texts_of
from tests.deploy import manifests
from tests.deploy.calls import AGENT, Right, rights_granted, rights_needed
from tests.deploy.manifests import DEPLOY, Json, documents
from tests.docs import pages

SECOND = DEPLOY / "scheduler.yaml"
LOOPBACK = DEPLOY / "optional" / "extender-loopback.yaml"
ALONE = DEPLOY / "optional" / "extender-alone.yaml"
MANIFESTS = (SECOND, LOOPBACK, ALONE)
IDLE = DEPLOY / "optional" / "idle.yaml"
CAPACITY = DEPLOY / "optional" / "capacity.yaml"
CONFIG = DEPLOY / "optional" / "kube-scheduler-config.yaml"
PAGE = DEPLOY.parent / "docs" / "scheduler.md"

ACCOUNT = {"kind": "ServiceAccount", "name": "gpu-device-plugin-scheduler", "namespace": "gpushare"}
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)


def objects(manifest: Path, *kinds: str) -> list[Json]:
    return [each for each in documents(manifest) if each["kind"] in kinds]


def workload(manifest: Path) -> Json:
    (found,) = objects(manifest, "Deployment", "DaemonSet")
    return found


def pod_of(manifest: Path) -> Json:
    return manifests.pod_of(workload(manifest))


def container(manifest: Path, name: str = "extender") -> Json:
    (found,) = (each for each in pod_of(manifest)["containers"] if each["name"] == name)
    assert isinstance(found, dict)
    return found


def settings(manifest: Path) -> ExtenderSettings:
    """The settings that the extender makes of a manifest, the pod's name filled in as the kubelet does."""
    asked = container(manifest)
    environ = {each["name"]: each.get("value", "pod-a") for each in asked.get("env", ())}
    sources = cli.sources_of(EXTENDER_SETTINGS, cli.parse(asked["args"]), environ)
    assert sources.config == FOLDER
    return sources.read(texts=texts_of(config_map(manifest, "gpushare-extender")))


def config_map(manifest: Path, name: str) -> Json:
    (found,) = (each for each in objects(manifest, "ConfigMap") if each["metadata"]["name"] == name)
    return found


def configuration() -> Json:
    """What the kube-scheduler of deploy/scheduler.yaml is told."""
    found: Json = yaml.safe_load(config_map(SECOND, "gpushare-scheduler")["data"]["config.yaml"])
    return found


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


# --- The extender ----------------------------------------------------------------------------------------------------


@every_manifest
def test_e16_nobody_but_the_scheduler_can_have_pods_bound(manifest: Path) -> None:
    """On loopback, or with a certificate that the scheduler alone has; and every argument is one that is accepted."""
    found = settings(manifest)
    assert not found.exposed
    assert (found.client_ca is None) == (found.listen.host == "127.0.0.1") == (manifest != ALONE)


@every_manifest
def test_the_settings_are_mounted_as_a_directory_that_follows_the_configmap(manifest: Path) -> None:
    """A mount of a single key (subPath) would never change."""
    mount = {"name": "settings", "mountPath": FOLDER, "readOnly": True}
    assert mount in container(manifest)["volumeMounts"]
    assert {"name": "settings", "configMap": {"name": "gpushare-extender"}} in pod_of(manifest)["volumes"]
    chosen = yaml.safe_load(config_map(manifest, "gpushare-extender")["data"]["default.yaml"])
    assert chosen == {"gpu_policy": "fit", "node_policy": "fit"}
    assert (EXTENDER_SETTINGS().gpu_policy, EXTENDER_SETTINGS().node_policy) == ("fit", "fit")


@every_manifest
def test_one_is_active_by_the_schedulers_election_or_by_an_own_one(manifest: Path) -> None:
    """Loopback ties an extender to one scheduler, and of those one leads. Behind a Service they have to agree."""
    found = settings(manifest)
    assert found.leader_election == (manifest == ALONE)
    assert found.scheduler_lease == {SECOND: "gpushare-scheduler", LOOPBACK: "kube-scheduler", ALONE: ""}[manifest]
    assert found.lease_namespace == ("kube-system" if manifest == LOOPBACK else "")
    if found.leader_election:
        assert found.holder() == "pod-a"
        assert found.namespace(Path("/var/run/secrets/none")) == "kube-system", "in a pod it is that of the pod"


@every_manifest
def test_probes_ask_where_the_extender_answers(manifest: Path) -> None:
    asked, found = container(manifest), settings(manifest).http
    assert found is not None
    # The name by which Prometheus finds it, if it can reach it.
    name = "http-loopback" if manifest == LOOPBACK else "http"
    port = {each["name"]: each["containerPort"] for each in asked["ports"]}[name]
    assert found.port == port
    # A kubelet asks the pod's address, which is the node's where the pod has none of its own.
    host = {"host": "127.0.0.1"} if manifest == LOOPBACK else {}
    assert found.host == host.get("host", "")
    assert {kind: asked[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "startupProbe": {"path": "/healthz", "port": name, **host},
        "livenessProbe": {"path": "/healthz", "port": name, **host},
        "readinessProbe": {"path": "/readyz", "port": name, **host},
    }


@every_manifest
def test_the_extender_depends_on_no_gpu_and_on_no_service_of_its_namespace(manifest: Path) -> None:
    """A pod that asks for what it places could never be placed, and one that is shown GPUs needs a driver."""
    pod = pod_of(manifest)
    assert not any("aliyun.com" in str(each["resources"]) for each in pod["containers"])
    assert "runtimeClassName" not in pod
    assert "NVIDIA" not in str(container(manifest).get("env"))
    assert pod["enableServiceLinks"] is False
    resources = container(manifest)["resources"]
    assert (resources["requests"].keys(), resources["limits"].keys()) == ({"cpu", "memory"}, {"memory"})


# --- What kube-scheduler is told -------------------------------------------------------------------------------------


def test_the_second_scheduler_has_a_name_and_a_lease_of_its_own() -> None:
    """By default both are those of the cluster's scheduler."""
    config = configuration()
    assert config["leaderElection"] == {
        "leaderElect": True,
        "resourceName": "gpushare-scheduler",
        "resourceNamespace": "gpushare",
    }
    assert config["profiles"] == [{"schedulerName": "gpushare-scheduler"}]
    mutation = (DEPLOY / "optional" / "mutating-policy.yaml").read_text(encoding="utf-8")
    assert "schedulerName: 'gpushare-scheduler'" in mutation
    assert "schedulerName: gpushare-scheduler" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("manifest", [SECOND, LOOPBACK], ids=lambda path: path.name)
def test_the_scheduler_calls_the_extender_where_it_listens(manifest: Path) -> None:
    config = configuration() if manifest == SECOND else documents(CONFIG)[0]
    (extender,) = config["extenders"]
    url, listen = urlsplit(extender["urlPrefix"]), settings(manifest).listen
    assert (url.scheme, url.hostname, url.port) == ("http", listen.host, listen.port)
    assert url.path == PREFIX
    assert extender["enableHTTPS"] is False


def test_nothing_is_placed_without_the_extender_and_only_what_concerns_it_is_asked() -> None:
    config = configuration()
    (extender,) = config["extenders"]
    assert extender["ignorable"] is False
    assert extender["nodeCacheCapable"] is True
    assert extender["managedResources"] == [
        {"name": resource.name, "ignoredByScheduler": False} for resource in EXTENDER_SETTINGS().offered
    ]
    assert {each: extender[f"{each}Verb"] for each in ("filter", "prioritize", "preempt", "bind")} == {
        "filter": "filter",
        "prioritize": "prioritize",
        "preempt": "preempt",
        "bind": "bind",
    }
    assert config["percentageOfNodesToScore"] == 2


@every_manifest
def test_the_extender_gives_up_before_the_scheduler_does(manifest: Path) -> None:
    """So that people read why a pod was not bound, and not that somebody did not answer."""
    (extender,) = configuration()["extenders"]
    timeout_s = settings(manifest).bind_timeout_s
    assert timeout_s < float(extender["httpTimeout"].removesuffix("s"))
    assert timeout_s < pod_of(manifest)["terminationGracePeriodSeconds"], "bindings under way have the time to end"


def test_the_clusters_own_scheduler_is_told_the_same() -> None:
    second, own = configuration(), documents(CONFIG)[0]
    assert own.pop("clientConnection") == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    own_ones = {"leaderElection", "profiles", "percentageOfNodesToScore"}
    assert own.pop("percentageOfNodesToScore") == 0, "for all pods of the cluster it keeps kube-scheduler's default"
    assert own == {key: value for key, value in second.items() if key not in own_ones}


def test_kube_scheduler_reads_the_configuration_that_is_mounted() -> None:
    asked = container(SECOND, "kube-scheduler")
    (mount,), volumes = asked["volumeMounts"], pod_of(SECOND)["volumes"]
    config = config_map(SECOND, "gpushare-scheduler")
    assert asked["command"] == ["kube-scheduler", f"--config={mount['mountPath']}/{next(iter(config['data']))}"]
    assert {"name": mount["name"], "configMap": {"name": config["metadata"]["name"]}} in volumes
    assert re.fullmatch(r"registry\.k8s\.io/kube-scheduler:v1\.\d+\.\d+", asked["image"])


def test_d1_a_scheduler_does_not_go_on_leading_beside_a_dead_extender() -> None:
    """Its liveness is the extender's; its own is seen to by the lease. It is killed before a hung extender is."""
    scheduler, extender = container(SECOND, "kube-scheduler"), container(SECOND)
    http = settings(SECOND).http
    assert http is not None
    for probe in ("startupProbe", "livenessProbe"):
        assert scheduler[probe]["httpGet"] == {"path": "/healthz", "port": http.port}

    def patience_s(probe: Json) -> int:
        found: int = probe["periodSeconds"] * probe["failureThreshold"]
        return found

    assert patience_s(scheduler["livenessProbe"]) <= patience_s(extender["livenessProbe"])
    assert scheduler["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "https", "scheme": "HTTPS"}
    assert {"name": "https", "containerPort": 10259} in scheduler["ports"]


def test_the_lease_is_given_away_when_the_extender_has_bound_what_it_had_begun() -> None:
    """kube-scheduler is told to end after the extender; both have the time for it, the wait included."""
    scheduler, found = container(SECOND, "kube-scheduler"), settings(SECOND)
    assert found.http is not None
    assert scheduler["lifecycle"] == {"preStop": {"httpGet": {"path": "/quiet", "port": found.http.port}}}
    assert "lifecycle" not in container(SECOND)
    assert pod_of(SECOND)["terminationGracePeriodSeconds"] > found.bind_timeout_s + 1 + 2


# --- What the page tells of it ---------------------------------------------------------------------------------------


def test_the_pod_that_the_page_links_to_goes_to_the_second_scheduler() -> None:
    assert "(pods.md#ask-for-memory)" in PAGE.read_text(encoding="utf-8")
    shown = yaml.safe_load(pages.blocks(pages.text_of(PAGE.with_name("pods.md")), "yaml")[0].text)
    assert shown["kind"] == "Pod"
    assert shown["spec"]["schedulerName"] == configuration()["profiles"][0]["schedulerName"]
    (asked,) = shown["spec"]["containers"]
    assert asked["resources"]["limits"] == {EXTENDER_SETTINGS().offered[0].name: 4}


# --- RBAC ------------------------------------------------------------------------------------------------------------

ROLE = "gpushare-extender"


def roles(manifest: Path, kind: str, *names: str) -> set[Right]:
    rules = [rule for each in objects(manifest, kind) if each["metadata"]["name"] in names for rule in each["rules"]]
    return rights_granted(rules)


@every_manifest
def test_f12_rbac_grants_what_the_extender_calls_and_nothing_else(manifest: Path) -> None:
    """Of leases it reads the scheduler's; with `scheduler.yaml` its account has the scheduler's own rights."""
    granted = roles(manifest, "ClusterRole", ROLE) | roles(manifest, "Role", ROLE)
    needed = rights_needed("gpu_device_plugin.programs.extender.extender_program")
    leases = {right for right in needed if right[1] == "leases"}
    assert leases
    own = leases if manifest == ALONE else {("coordination.k8s.io", "leases", "get")} if manifest == LOOPBACK else set()
    if_asked = roles(IDLE, "ClusterRole", "gpushare-extender-idle")
    if_asked |= roles(CAPACITY, "ClusterRole", "gpushare-capacity") | roles(CAPACITY, "Role", "gpushare-capacity")
    assert granted | if_asked == needed - leases | own
    assert not granted & if_asked, "what only some clusters need is granted apart"


def test_the_agent_and_the_extender_are_told_apart() -> None:
    agent, extender = rights_needed(*AGENT), rights_needed("gpu_device_plugin.programs.extender.extender_program")
    assert ("", "pods/binding", "create") in extender - agent
    assert ("", "nodes/status", "patch") in agent - extender


@pytest.mark.parametrize("manifest", [SECOND, ALONE], ids=lambda path: path.name)
def test_a_lease_may_be_made_and_only_the_own_one_be_changed(manifest: Path) -> None:
    (role,) = objects(manifest, "Role")
    named = configuration()["leaderElection"]["resourceName"] if manifest == SECOND else settings(manifest).lease_name
    assert role["metadata"]["namespace"] == ACCOUNT["namespace"]
    assert role["rules"] == [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [named],
            "verbs": ["get", "update"],
        },
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    ]


@every_manifest
def test_every_role_is_bound_to_the_account_of_the_pod(manifest: Path) -> None:
    assert pod_of(manifest)["serviceAccountName"] == ACCOUNT["name"]
    (account,) = objects(manifest, "ServiceAccount")
    assert {"kind": "ServiceAccount", **{key: account["metadata"][key] for key in ("name", "namespace")}} == ACCOUNT
    bindings = objects(manifest, "ClusterRoleBinding", "RoleBinding")
    assert all(each["subjects"] == [ACCOUNT] for each in bindings)
    bound = {(each["metadata"].get("namespace", ""), each["roleRef"]["name"]) for each in bindings}
    made = {
        (each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in objects(manifest, "ClusterRole", "Role")
    }
    # What Kubernetes' documentation gives a second kube-scheduler.
    kubernetes = {
        ("", "system:kube-scheduler"),
        ("", "system:volume-scheduler"),
        ("kube-system", "extension-apiserver-authentication-reader"),
    }
    assert bound == made | (kubernetes if manifest == SECOND else set())


# --- What fits together ----------------------------------------------------------------------------------------------


@every_manifest
def test_all_of_it_is_in_the_agents_namespace(manifest: Path) -> None:
    """The manifest of the agent makes it."""
    (quota,) = objects(manifest, "ResourceQuota")
    (expression,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert expression["values"] == [pod_of(manifest)["priorityClassName"]] == ["system-cluster-critical"]
    (namespace,) = objects(DEPLOY / "daemonset.yaml", "Namespace")
    assert namespace["metadata"]["name"] == ACCOUNT["namespace"]
    elsewhere = [
        (each["kind"], each["metadata"]["namespace"])
        for each in documents(manifest)
        if each["metadata"].get("namespace", "gpushare") != "gpushare"
    ]
    lease = [("Role", "kube-system"), ("RoleBinding", "kube-system")]
    assert elsewhere == {SECOND: lease[1:], LOOPBACK: lease, ALONE: []}[manifest]


@every_manifest
def test_selectors_find_the_pods_and_no_others(manifest: Path) -> None:
    labels = workload(manifest)["spec"]["template"]["metadata"]["labels"]
    (agent,) = objects(DEPLOY / "daemonset.yaml", "DaemonSet")
    assert labels != agent["spec"]["template"]["metadata"]["labels"]
    assert workload(manifest)["metadata"]["labels"] == labels
    assert workload(manifest)["spec"]["selector"] == {"matchLabels": labels}
    for each in objects(manifest, "PodDisruptionBudget"):
        assert each["spec"]["selector"] == {"matchLabels": labels}
    for each in objects(manifest, "Service"):
        assert each["spec"]["selector"] == labels
    affinity = pod_of(manifest)["affinity"].get("podAntiAffinity")
    if affinity is not None:
        (apart,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert apart["podAffinityTerm"] == {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": labels},
        }


def test_where_only_the_leader_is_ready_neither_updates_nor_drains_wait_for_the_other() -> None:
    """A rolling update and a PodDisruptionBudget would, for ever."""
    assert workload(SECOND)["spec"]["replicas"] == workload(ALONE)["spec"]["replicas"] == 2
    (budget,) = objects(SECOND, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert workload(ALONE)["spec"]["strategy"] == {"type": "Recreate"}
    assert objects(ALONE, "PodDisruptionBudget") == []


def test_the_service_leads_to_the_verbs_over_tls() -> None:
    (service,) = objects(ALONE, "Service")
    (port,) = service["spec"]["ports"]
    found = settings(ALONE)
    named = {each["name"]: each["containerPort"] for each in container(ALONE)["ports"]}
    assert named[port["targetPort"]] == found.listen.port == port["port"] == port["nodePort"]
    (mount,) = (each for each in container(ALONE)["volumeMounts"] if each["mountPath"] != FOLDER)
    assert {"name": mount["name"], "secret": {"secretName": "gpushare-extender-tls"}} in pod_of(ALONE)["volumes"]
    # The names that Kubernetes gives the parts of a Secret for TLS.
    files = [Path(mount["mountPath"], name) for name in ("tls.crt", "tls.key", "ca.crt")]
    assert [found.tls_cert, found.tls_key, found.client_ca] == files


@pytest.mark.parametrize("kind", ["ResourceQuota", "ServiceAccount", "ClusterRole"])
def test_what_the_manifests_share_is_the_same_in_each(kind: str) -> None:
    """Each can be applied by itself, and going from one to another changes nothing of it."""
    first, *others = (next(iter(objects(manifest, kind))) for manifest in MANIFESTS)
    assert others == [first, first]
