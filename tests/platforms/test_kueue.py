"""Kueue's own manager gives Jobs quota in our resources, lends it, and takes it back; our extender places the pods."""

import base64
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from tests.deploy.manifests import Json, documents, parsed
from tests.names import COUNT, MEM
from tests.platforms.world import PLATFORMS, SHARES, Platform, needed, platform
from tests.ports import free_ports

JOB = documents(PLATFORMS / "kueue-job.yaml")[0]
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
INSTANCE = "aliyun.com/mig-1g.10gb"
CONFIG = "controller_manager_config.yaml"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    program, release = needed("kueue", "kueue.yaml")
    home = tmp_path_factory.mktemp("kueue")
    with platform(home) as running:
        for name in ("a", "b"):
            running.node(name)
        with manager(running, program, install(running, Path(release))):
            yield running


def install(world: Platform, release: Path) -> Json:
    """Apply Kueue's release but for what runs in pods; return the manager's configuration."""
    parts = [each for each in parsed(release.read_text(encoding="utf-8")) if each]
    (config,) = (yaml.safe_load(each["data"][CONFIG]) for each in parts if each["kind"] == "ConfigMap")
    world.apply(each for each in parts if each["kind"] not in {"Deployment", "APIService"})
    return dict(config)


@contextmanager
def manager(world: Platform, program: str, config: Json) -> Iterator[None]:
    """Run Kueue's manager, and do for it what the kubelet and the controller of EndpointSlices do for a pod."""
    webhook, health, metrics = free_ports(3)
    certificates = world.home / "webhooks"
    certificates.mkdir()
    config |= {
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"port": webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "resources": {"transformations": [{"input": INSTANCE, "strategy": "Replace", "outputs": {MEM: "9"}}]},
    }
    file = world.home / "kueue-config.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    slice_ = {
        "metadata": {"name": "webhooks", "labels": {"kubernetes.io/service-name": "kueue-webhook-service"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": "", "port": webhook}],
    }
    world.create("/apis/discovery.k8s.io/v1/namespaces/kueue-system/endpointslices", slice_)
    gates = "--feature-gates=VisibilityOnDemand=false"  # its API is served by the pod
    kubeconfig = str(world.kubectl.kubeconfig)
    with world.running("kueue", program, f"--config={file}", gates, KUBECONFIG=kubeconfig) as process:

        def made() -> Json:
            assert process.poll() is None, "Kueue's manager has ended"
            secret = world.call("GET", "/api/v1/namespaces/kueue-system/secrets/kueue-webhook-server-cert")
            return secret.get("data") or {}

        for name, text in world.until(made, "Kueue makes its certificate").items():
            (certificates / name).write_bytes(base64.b64decode(text))
        world.until(lambda: answers(world), "Kueue's webhooks answer")
        yield


def own_address() -> str:
    """Return an address of this machine that is not its loopback, which no EndpointSlice may have; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback, and an API server calls no webhook there")
        return str(probe.getsockname()[0])


def answers(world: Platform) -> bool:
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        world.create("/apis/kueue.x-k8s.io/v1beta2/resourceflavors", flavor)
    except AssertionError:
        return False
    world.call("DELETE", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/probe")
    return True


@pytest.fixture
def queues(world: Platform) -> Iterator[Platform]:
    """The queues of the manifest, whose Jobs are gone after the test."""
    world.apply(documents(PLATFORMS / "kueue.yaml"))
    world.until(lambda: all(active(each) for each in world.items(QUEUES)), "the queues are active")
    yield world
    for namespace in ("team-a", "team-b"):
        world.call("DELETE", f"{JOBS.format(namespace)}?propagationPolicy=Background")
        world.until(lambda namespace=namespace: world.pods(namespace) == [], "the Jobs' pods are gone")  # type: ignore[misc]
    world.until(lambda: [*used(world, "team-a").values(), *used(world, "team-b").values()] == [0] * 4, "all is free")


def active(queue: Json) -> bool:
    conditions = queue.get("status", {}).get("conditions", ())
    return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)


def used(world: Platform, queue: str) -> dict[str, int]:
    """Return how much of our resources a queue has given out."""
    status = world.call("GET", f"{QUEUES}/{queue}")["status"]
    resources = [one for flavor in status.get("flavorsReservation", ()) for one in flavor["resources"]]
    return {one["name"]: int(one["total"]) for one in resources if one["name"].startswith("aliyun.com/")}


def jobs(world: Platform, team: str, count: int = 1, limits: Mapping[str, int] = MappingProxyType({})) -> None:
    """Submit Jobs of a namespace, with the limits of the example or with others."""
    for _ in range(count):
        body = {**JOB, "metadata": {**JOB["metadata"], "namespace": team}}
        template = body["spec"]["template"]["spec"]
        if limits:
            main = template["containers"][0]
            resources = {**main["resources"], "limits": dict(limits)}
            template = {**template, "containers": [{**main, "resources": resources}]}
        body["spec"] = {**body["spec"], "template": {"spec": template}}
        world.create(JOBS.format(team), body)


def running(world: Platform, team: str) -> set[tuple[str, str]]:
    """Return node and GPU of every pod of a namespace that has one, each promised by our extender."""
    bound = [
        pod for pod in world.pods(team) if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]
    ]
    places = [world.place(pod) for pod in bound]
    assert len(places) == len(set(places)), "every pod takes a whole GPU of shares"
    return set(places)


def held(world: Platform, team: str) -> int:
    """Return how many Jobs of a namespace Kueue holds back."""
    return sum(bool(job["spec"].get("suspend")) for job in world.items(JOBS.format(team)))


def counts(world: Platform) -> dict[str, tuple[int, int]]:
    """Return for each team how many pods run, and how many Jobs are held back."""
    return {team: (len(running(world, team)), held(world, team)) for team in ("team-a", "team-b")}


def test_jobs_are_admitted_within_the_quota_borrow_what_is_free_and_give_it_back(queues: Platform) -> None:
    """Each Job asks for all shares of one GPU. 32 of 64 are a team's own, and it may borrow 16."""
    jobs(queues, "team-a", 8)
    queues.until(lambda: counts(queues)["team-a"] == (6, 2), "six Jobs of team-a run, two of them on borrowed quota")
    amounts = {COUNT: 0, MEM: 6 * SHARES}
    queues.until(lambda: used(queues, "team-a") == amounts, "the queue's status says so")
    jobs(queues, "team-b", 4)
    queues.until(
        lambda: counts(queues) == {"team-a": (4, 4), "team-b": (4, 0)}, "team-b has its own back, on eight GPUs in all"
    )
    assert running(queues, "team-a") | running(queues, "team-b") == {
        (node, str(at)) for node in "ab" for at in range(4)
    }


def test_whole_gpus_have_a_quota_of_their_own(queues: Platform) -> None:
    jobs(queues, "team-a", 3, {COUNT: 1})
    queues.until(lambda: counts(queues)["team-a"] == (2, 1), "two whole GPUs are the quota")
    amounts = {COUNT: 2, MEM: 0}
    queues.until(lambda: used(queues, "team-a") == amounts, "the queue's status says so")


def test_a_mig_instance_counts_as_its_memory_where_kueue_is_told_so(queues: Platform) -> None:
    jobs(queues, "team-a", limits={INSTANCE: 1})
    queues.until(lambda: used(queues, "team-a") == {COUNT: 0, MEM: 9}, "the instance is counted as memory")


def test_a_quota_is_a_sum_and_a_job_that_fits_on_no_gpu_holds_it(queues: Platform) -> None:
    """The reason why the page tells to set waitForPodsReady."""
    jobs(queues, "team-a", limits={MEM: SHARES + 1})
    queues.until(lambda: used(queues, "team-a")[MEM] == SHARES + 1, "the Job has its quota")

    def told() -> bool:
        conditions = [each for pod in queues.pods("team-a") for each in pod["status"].get("conditions", ())]
        return any("the largest GPU has only 8 GiB" in each.get("message", "") for each in conditions)

    queues.until(told, "the extender says why the pod waits")
