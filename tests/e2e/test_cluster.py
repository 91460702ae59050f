"""From a label on a node to a running cluster, and back: the documentation's steps, one after the other, on Kubernetes.

With KUBE_BIN on a cluster that is started for it; with KUBECONFIG and E2E_NODE on one that is there: docs/testing.md.
"""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT, NODE_LIMITS, NODE_USE, OVER_USE, PLACEMENT_LABEL
from gpu_device_plugin.model.contract.node_use import NodeUse, read_node_use
from gpu_device_plugin.model.contract.nodelabels import read_node_limits
from tests.builders import GPU_COUNT, GPU_MEM
from tests.docs.guide_world import EXAMPLES, Json, documents
from tests.docs.pages import DOCS, blocks, sections, text_of
from tests.docs.test_guide import APPLY, MIG, SECTIONS, TAINT
from tests.e2e.cluster import GPUS, ROOT, Cluster, Given, containers, process_of, seen_process_of
from tests.e2e.starting import of_another_version, why_not
from tests.patience import REAL_S

DEPLOY = ROOT / "deploy"
SHIPPED = sorted(DEPLOY.glob("*.yaml"))
ALL = {GPU_MEM: 49, GPU_COUNT: 4}
"""Of the GPUs of the guide."""
NOTHING = {GPU_MEM: 0, GPU_COUNT: 0}
BUSY = {GPU_MEM: 42, GPU_COUNT: 2}
"""With GPU 0 in whole use, and parts of GPUs 1 and 2."""
PREFIX = "gpu-device-plugin/"
PROFILE = f"{PREFIX}config"
"""The label of a person's, by which a node names its profile."""
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
CONFIGMAP = ("--namespace=gpushare", "patch", "configmap", "gpushare-node", "--type=merge")

if reason := why_not():
    # Here, so that it is told once and not for each test.
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)


@contextmanager
def needed(cluster: Cluster, step: str) -> Iterator[None]:
    """Do a step without which no later one makes sense."""
    if cluster.broken:
        pytest.skip(f"after '{cluster.broken}' failed")
    try:
        yield
    except BaseException:
        cluster.broken = step
        raise


@pytest.fixture
def shared(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with everything installed, the node labelled, and no pod with a GPU before and after."""
    with needed(cluster, "nothing but what is installed"):
        wait_until_offered(cluster, ALL)
        cluster.until(lambda: nothing_is_booked(cluster), "agent and extenders have nothing in their ledgers")
    yield cluster
    cluster.clear()


# --- Install ---------------------------------------------------------------------------------------------------------


def test_the_doctor_says_what_to_do_where_nothing_is_installed(cluster: Cluster) -> None:
    advice = [each["advice"] for each in findings(cluster) if each["severity"] == "error"]
    assert [each for each in advice if each.startswith("kubectl apply -f deploy/daemonset.yaml")]
    assert [each for each in advice if each.startswith("kubectl label node NODE gpushare=true")]


def test_all_manifests_are_accepted_in_one_go_and_the_scheduler_runs(cluster: Cluster) -> None:
    with needed(cluster, "install"):
        if (adapted := this_version(cluster)) == [body for path in SHIPPED for body in documents(path)]:
            cluster.kubectl("apply", "--filename=deploy/")
        else:
            cluster.apply_all(adapted)
        # The one thing that is not as it is on a node with GPUs.
        cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_GPUS={GPUS}")
        rolled_out(cluster, "deployment/gpushare-scheduler")


def test_a_node_without_the_label_is_left_alone(cluster: Cluster) -> None:
    with needed(cluster, "no label"):
        assert agents(cluster) == []
        assert ours(cluster) == []


def test_the_label_starts_the_agent_and_capacity_appears(cluster: Cluster) -> None:
    with needed(cluster, "label the node"):
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        cluster.until(lambda: len(agents(cluster)) == 1, "there is an agent on the node")
        rolled_out(cluster, "daemonset/gpushare-node")
        wait_until_offered(cluster, ALL)
        assert cluster.offered("capacity") == ALL
        assert {f"{PREFIX}count", f"{PREFIX}product.Tesla-T4", f"{PREFIX}gpus"} <= set(ours(cluster))


def test_the_node_says_by_what_means_it_limits_and_who_uses_what(cluster: Cluster) -> None:
    """The GPUs have no limits of the driver, and there is no supervisor of MPS; the node's processes are seen."""
    with needed(cluster, "limits and use"):
        use = cluster.until(lambda: use_of(cluster), "the node says who uses what")
        assert use is not None
        assert (use.blind, sorted(use.gpus)) == ("", [0, 1, 2, 3])
        meta = cluster.get("node", cluster.node)["metadata"]
        assert meta["labels"][NODE_LIMITS] == "advisory"
        limits = read_node_limits(meta["annotations"][NODE_LIMITS])
        assert {
            position: (gpu.enforcement.value, gpu.refusal) for position, gpu in limits.gpus.items()
        } == dict.fromkeys(range(4), ("advisory", ""))
        chosen = cluster.items("nodes", f"--selector={NODE_LIMITS}=advisory")
        assert [node["metadata"]["name"] for node in chosen] == [cluster.node]


def use_of(cluster: Cluster) -> NodeUse | None:
    """Return what the node's agent last wrote of its use."""
    notes = cluster.get("node", cluster.node)["metadata"]["annotations"]
    return read_node_use(notes[NODE_USE]) if NODE_USE in notes else None


def test_the_doctors_find_nothing_wrong(shared: Cluster) -> None:
    """The one for the cluster, and the one for the node, which does not see all of the node from a container."""
    inside = ("kubectl", "--namespace=gpushare", "exec", "daemonset/gpushare-node", "--", "gpu-device-plugin", "doctor")
    found = findings(shared) + [each for each in findings(shared, *inside) if each["severity"] != "unknown"]
    # The kernel's, which we cannot help.
    assert [each for each in found if each["severity"] not in {"ok", "note"} and each["check"] != "cgroups"] == []


def test_the_doctor_finds_a_pod_that_came_past_the_extender(shared: Cluster) -> None:
    shared.kubectl("create", "--filename=-", given=pod("past", {GPU_MEM: 1}, scheduler="default-scheduler"))
    shared.until(lambda: notes_of(shared, "past").get("ALIYUN_COM_GPU_MEM_IDX") == "0", "the agent tells where it is")
    (found,) = (each for each in findings(shared) if each["check"] == "placement")
    assert found["severity"] == "warning"
    assert "default/past" in found["found"]


def findings(cluster: Cluster, *doctor: str) -> list[Json]:
    told = cluster.run(*(doctor or ("kubectl", "inspect", "gpushare", "doctor")), "--json")
    found: list[Json] = json.loads(told.stdout)["findings"]
    return found


# --- The user guide --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", sorted(SECTIONS.keys() - {MIG}))  # test_mig.py has such GPUs
def test_the_guide(heading: str, shared: Cluster) -> None:
    """A section's commands can be done, and its containers were given what is written on their pods."""
    commands = [each for block in blocks(SECTIONS[heading], "console") for each in block.commands]
    shared.kubectl("label", "--overwrite", "node", shared.node, f"{PLACEMENT_LABEL}=binpack")
    try:
        for command, _ in commands:
            if command.startswith(APPLY):
                shared.apply_and_settle(ROOT / command.removeprefix(APPLY))
            else:
                shared.shell(command.replace("gpu-1", shared.node))
        end_init_containers(shared)
        check(shared)
    finally:
        shared.kubectl("label", "node", shared.node, f"{PLACEMENT_LABEL}-")
        if any(command.startswith(TAINT) for command, _ in commands):
            shared.kubectl("taint", "node", shared.node, "nvidia.com/gpu-")


def end_init_containers(cluster: Cluster) -> None:
    for pod in cluster.gpu_pods():
        for status in pod["status"].get("initContainerStatuses", ()):
            if "running" in status["state"]:
                cluster.tell_to_end(pod, status["name"])
    cluster.until(lambda: all(runs_or_waits(pod) for pod in cluster.gpu_pods()), "all that were placed run")


def runs_or_waits(pod: Json) -> bool:
    return "nodeName" not in pod["spec"] or pod["status"]["phase"] == "Running"


def check(cluster: Cluster) -> dict[str, Given]:
    """See that containers were given what their pods say, and that nothing was given twice; return what they have."""
    found = cluster.given()
    gpus = cluster.gpus()
    for pod in cluster.gpu_pods():
        for number, container in enumerate(pod["spec"]["containers"]):
            meta, limits = pod["metadata"], container["resources"].get("limits", {})
            given = found.get(f"{meta['namespace']}/{meta['name']}/{container['name']}")
            if given is None:
                continue
            told = json.loads(meta["annotations"]["scheduler.framework.gpushare.allocation"])[str(number)]
            here = {uuid: int(told[str(gpu["index"])]) for uuid, gpu in gpus.items() if str(gpu["index"]) in told}
            assert given.uuids == tuple(sorted(here))
            if GPU_COUNT in limits:
                assert (len(here), given.shares, given.limit_mib) == (int(limits[GPU_COUNT]), 0, 0)
                continue
            asked = [int(each["resources"].get("limits", {}).get(GPU_MEM, 0)) for each in pod["spec"]["containers"]]
            assert given.shares == sum(here.values()) == asked[number]
            most = int(meta["annotations"].get(MEMORY_LIMIT, given.shares // len(here)))
            assert given.limit_mib == 1024 * min([most, *(gpus[uuid]["shares"] for uuid in here)])
            assert given.pod_shares == sum(asked)
            assert given.positions == ",".join(sorted(told, key=int))
    assert overbooked(found, gpus) == []
    return found


def overbooked(found: dict[str, Given], gpus: dict[str, Json]) -> list[str]:
    """Return the GPUs of which more was given than there is."""
    taken: Counter[str] = Counter()
    for given in found.values():
        for uuid in given.uuids:
            taken[uuid] += given.shares // len(given.uuids) if given.shares else gpus[uuid]["shares"]
    return [uuid for uuid, amount in taken.items() if amount > gpus[uuid]["shares"]]


def test_pods_that_wait_for_vanished_ones_are_placed_soon_after_their_grace(shared: Cluster) -> None:
    """The node is full, all pods are deleted by force, and nothing more happens: 30 s of grace, 10 s of back-off."""
    full = [f"full-{n}" for n in range(4)]
    for name, shares in zip(full, (7, 14, 14, 14), strict=True):
        shared.kubectl("create", "--filename=-", given=pod(name, {GPU_MEM: shares}))
    shared.until(lambda: all(placed(shared, name) for name in full), "all GPUs are full")
    shared.kubectl("delete", "pods", *full, "--force", "--grace-period=0")
    new = [f"new-{n}" for n in range(7)]
    for name in new:
        shared.kubectl("create", "--filename=-", given=pod(name, {GPU_MEM: 7}))
    assert not any(placed(shared, name) for name in new)
    # The scheduler's own look at what it has given up comes after 5 minutes.
    shared.until(lambda: all(placed(shared, name) for name in new), "all new pods are placed", quiet_s=90)


def placed(cluster: Cluster, name: str) -> bool:
    return "nodeName" in cluster.get("pod", name)["spec"]


def test_a_gpu_in_whole_use_is_taken_from_what_the_node_offers(shared: Cluster) -> None:
    """As the guide tells of GPU 0 with its 7 units, and GPU 1 of which somebody has one."""
    shared.apply_and_settle(EXAMPLES / "whole-gpu.yaml")
    shared.apply_and_settle(EXAMPLES / "one-gib.yaml")
    wait_until_offered(shared, {GPU_MEM: 42, GPU_COUNT: 3})


def test_a_pod_that_comes_too_early_is_not_forgotten(shared: Cluster) -> None:
    """For a moment after a GPU was in whole use nobody gets a part of it; the scheduler has to look again by itself."""
    shared.apply_and_settle(EXAMPLES / "two-gpus.yaml")
    shared.clear()
    shared.apply_and_settle(EXAMPLES / "two-gpus-ten-gib-each.yaml")
    shared.kubectl("wait", "--for=condition=Ready", "pod/sharded", "--timeout=60s")
    check(shared)


def test_a_job_goes_on_as_its_pods_end(shared: Cluster) -> None:
    """Eight tasks, four at a time: the first four make room for the others."""
    shared.apply_and_settle(EXAMPLES / "job.yaml")
    for _ in range(2):
        pods = shared.until(lambda: four_that_run(shared), "four pods run")
        check(shared)
        for pod in pods:
            shared.tell_to_end(pod, "main")
        uids = {pod["metadata"]["uid"] for pod in pods}
        shared.until(lambda uids=uids: not uids & {pod["metadata"]["uid"] for pod in shared.gpu_pods()}, "they end")  # type: ignore[misc]
    shared.kubectl("wait", "--for=condition=Complete", "job/render", "--timeout=60s")


def four_that_run(cluster: Cluster) -> list[Json]:
    running = [pod for pod in cluster.gpu_pods() if pod["status"].get("phase") == "Running"]
    return running if len(running) == 4 else []


# --- What is refused -------------------------------------------------------------------------------------------------


def pod(name: str, limits: dict[str, int], scheduler: str = "gpushare-scheduler", **more: object) -> str:
    """Return a pod that no container has to be started for."""
    container = {"name": "main", "image": "localhost/none", "resources": {"limits": limits}, **more}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def test_a_pod_that_comes_past_the_scheduler_is_refused_by_the_node_with_a_sentence(shared: Cluster) -> None:
    """22 GiB are free, on no GPU more than 7; Kubernetes' own scheduler sees the 22."""
    shared.apply_and_settle(EXAMPLES / "fragmented.yaml")
    shared.kubectl("create", "--filename=-", given=pod("past", {GPU_MEM: 8}, scheduler="default-scheduler"))
    try:
        shared.until(lambda: shared.get("pod", "past")["status"]["phase"] == "Failed", "the pod is refused")
        status = shared.get("pod", "past")["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "GPU memory: 8 GiB requested, the emptiest healthy GPU has 7 GiB free" in status["message"]
    finally:
        shared.kubectl("delete", "pod", "past")


# --- Settings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(shared: Cluster) -> Iterator[Cluster]:
    """The cluster, whose settings are as delivered before and after."""
    yield shared
    shared.kubectl("label", "node", shared.node, f"{PROFILE}-")
    # `apply` leaves alone what it has never applied.
    shared.kubectl(*CONFIGMAP, '-p={"data":{"large.yaml":null}}')
    shared.apply(DEPLOY / "daemonset.yaml")


def test_a_changed_setting_counts_without_a_restart(settings: Cluster) -> None:
    """A pod that comes past the extender is put onto the smallest GPU by `binpack`, and onto any other by `spread`."""
    (agent,) = agents(settings)
    change, describe, *_ = commands_of("settings.md", "In the cluster")
    settings.shell(change)
    assert "spread" in settings.shell(describe)
    told = re.compile('"the policy for choosing GPUs changed", "policy": "([a-z]+)"')
    # A label that an earlier test took off the node counts for up to a minute more.
    settings.until(
        lambda: told.findall(log_of(settings, agent))[-1:] == ["spread"],
        "the agent follows the ConfigMap",
        quiet_s=3 * REAL_S,
    )
    settings.kubectl("create", "--filename=-", given=pod("past", {GPU_MEM: 1}, scheduler="default-scheduler"))
    position = settings.until(lambda: notes_of(settings, "past").get("ALIYUN_COM_GPU_MEM_IDX"), "the agent tells where")
    assert position in {"1", "2", "3"}


def test_a_profile_counts_for_a_node_that_names_it_after_a_restart_that_a_person_does(settings: Cluster) -> None:
    """Units of 4 GiB: one on GPU 0, and three on each of the others. A name that leads nowhere shares nothing."""
    *_, events, restart = (each.replace("NODE", settings.node) for each in commands_of("settings.md", "In the cluster"))

    def tells(reason: str) -> None:
        settings.until(lambda: reason in settings.shell(events), f"an Event says {reason}", quiet_s=2 * REAL_S)

    for command in commands_of("settings.md", "A profile for some nodes"):
        settings.shell(command.replace("NODE", settings.node))
    tells("SettingsWait")
    assert settings.offered() == ALL
    settings.shell(restart)
    wait_until_offered(settings, {GPU_MEM: 10, GPU_COUNT: 4})
    settings.kubectl("label", "--overwrite", "node", settings.node, f"{PROFILE}=nowhere")
    tells("SettingsRefused")
    assert settings.offered() == {GPU_MEM: 10, GPU_COUNT: 4}
    settings.shell(restart)
    wait_until_offered(settings, NOTHING)
    settings.kubectl("label", "node", settings.node, f"{PROFILE}-")
    wait_until_offered(settings, ALL)


def test_a_pod_that_uses_more_than_it_was_granted_is_named_and_evicted_as_its_budget_allows(settings: Cluster) -> None:
    """The GPUs are fake; the process, its cgroup and the agent's view of it are the node's.

    The process does not end for SIGTERM, since it is the first of its container and handles no signals, and its owner
    gave it thirty years.
    """
    if settings.own is None:
        pytest.skip("the processes of a node of somebody else's cluster are not seen from here")
    image = next(iter(containers(documents(EXAMPLES / "one-gib.yaml"))))["image"]
    greedy = json.loads(pod("greedy", {GPU_MEM: 1}, image=image, command=["/bin/sleep", "3600"]))
    greedy["metadata"]["labels"] = {"app": "greedy"}
    greedy["spec"]["terminationGracePeriodSeconds"] = 10**9
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "greedy"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "greedy"}}},
    }
    settings.kubectl("create", "--filename=-", given=json.dumps(greedy))
    settings.kubectl("create", "--filename=-", given=json.dumps(budget))
    settings.apply(DEPLOY / "optional" / "evict.yaml")
    try:
        process = settings.until(lambda: process_of(settings, "greedy"), "the pod runs")
        gpus = [{"model": "P4", "processes": [{"pid": process, "used": "3GiB"}]}, *[{"model": "T4"}] * 3]
        data = {
            "default.yaml": "over_use: evict\nover_use_grace: 3s\neviction_grace: 2s\nusage_interval: 1s\n",
            "gpus.json": json.dumps({"gpus": gpus}),
        }
        settings.kubectl(*CONFIGMAP, f"-p={json.dumps({'data': data})}")
        use_gpus(settings, "/etc/gpushare/gpus.json")
        told = settings.until(lambda: events_of(settings, "greedy", "GPUMemoryExceeded"), "the pod is named")
        assert "container main uses 3,072 MiB of GPU 0, was granted 1,024 MiB" in told[0]
        said = "uses 3,072 MiB of GPU 0"
        settings.until(lambda: said in notes_of(settings, "greedy").get(OVER_USE, ""), "its annotation says so")
        row = r"0 +default/greedy/main +3,072 MiB +1,024 MiB +advisory +over its limit since "
        settings.until(lambda: re.search(row, inspected(settings)), "inspect shows what it uses and was granted")
        settings.until(lambda: events_of(settings, "greedy", "GPUEvictionBlocked"), "its budget blocks the eviction")
        another_agent(settings)
        assert "deletionTimestamp" not in settings.get("pod", "greedy")["metadata"]
        settings.kubectl("delete", "poddisruptionbudget", "greedy")
        settings.until(lambda: settings.run("kubectl", "get", "pod", "greedy").returncode != 0, "it is evicted")
        settings.until(lambda: "default/greedy" not in inspected(settings), "nothing is told of it any more")
        settings.until(lambda: events_of(settings, "greedy", "GPUMemoryEvicted"), "an Event tells of the eviction")
    finally:
        settings.run("kubectl", "delete", "poddisruptionbudget,pod", "greedy", "--ignore-not-found", "--grace-period=1")
        settings.kubectl(*CONFIGMAP, '-p={"data":{"gpus.json":null}}')
        settings.kubectl("delete", "--filename", str(DEPLOY / "optional" / "evict.yaml"))
        use_gpus(settings, GPUS)
        wait_until_offered(settings, ALL)


def inspected(cluster: Cluster) -> str:
    return cluster.kubectl("inspect", "gpushare", "-d")


def another_agent(cluster: Cluster) -> None:
    """Replace the node's agent, and wait until the new one has told what is used."""
    (before,) = agents(cluster)
    cluster.kubectl("--namespace=gpushare", "delete", "pod", before["metadata"]["name"])
    rolled_out(cluster, "daemonset/gpushare-node")
    (after,) = agents(cluster)
    started = after["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]

    def told_since() -> bool:
        use = use_of(cluster)
        return use is not None and use.at >= started

    cluster.until(told_since, "the new agent says who uses what")


def events_of(cluster: Cluster, name: str, reason: str) -> list[str]:
    found = cluster.items("events", f"--field-selector=involvedObject.name={name},reason={reason}")
    return [each["message"] for each in found]


def use_gpus(cluster: Cluster, source: str) -> None:
    cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_GPUS={source}")
    rolled_out(cluster, "daemonset/gpushare-node")


def commands_of(page: str, heading: str) -> list[str]:
    """Return what a section of the documentation tells to do."""
    found = blocks(sections(text_of(DOCS / page))[heading], "console")
    return [command for block in found for command, _ in block.commands]


def notes_of(cluster: Cluster, name: str) -> dict[str, str]:
    notes: dict[str, str] = cluster.get("pod", name)["metadata"].get("annotations", {})
    return notes


def log_of(cluster: Cluster, agent: Json) -> str:
    # Not to be had while the API server knows the kubelet as one that is gone.
    return cluster.run("kubectl", "--namespace=gpushare", "logs", agent["metadata"]["name"]).stdout


# --- Restarts and versions -------------------------------------------------------------------------------------------


@pytest.fixture
def busy(shared: Cluster) -> Cluster:
    """With GPU 0 in whole use, 1 GiB of GPU 1, and 10 GiB of GPUs 1 and 2 each."""
    for name in ("whole-gpu", "one-gib", "two-gpus-ten-gib-each"):
        shared.apply_and_settle(EXAMPLES / f"{name}.yaml")
    wait_until_offered(shared, BUSY)
    return shared


@contextmanager
def nothing_is_lost(cluster: Cluster) -> Iterator[None]:
    """See that running containers keep what they have, that nothing of it is given again, and that new ones start."""
    before, restarts = check(cluster), container_restarts(cluster)
    yield
    assert cluster.given() == before
    cluster.apply_and_settle(EXAMPLES / "gpu-model.yaml")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/for-turing", "--timeout=120s")
    after = check(cluster)
    assert {name: given for name, given in after.items() if name in before} == before
    assert set(after) - set(before) == {"default/for-turing/main"}
    assert {name: count for name, count in container_restarts(cluster).items() if name in restarts} == restarts


def container_restarts(cluster: Cluster) -> dict[str, int]:
    return {
        f"{pod['metadata']['uid']}/{each['name']}": each["restartCount"]
        for pod in cluster.gpu_pods()
        for each in pod["status"]["containerStatuses"]
    }


def test_nothing_is_lost_when_the_agent_restarts(busy: Cluster) -> None:
    with nothing_is_lost(busy):
        (before,) = agents(busy)
        busy.kubectl("--namespace=gpushare", "delete", "pod", before["metadata"]["name"])
        rolled_out(busy, "daemonset/gpushare-node")
        wait_until_offered(busy, BUSY)


def test_nothing_is_lost_when_the_kubelet_restarts(busy: Cluster) -> None:
    if busy.own is None:
        pytest.skip("restarting the kubelet needs access to the node")
    with nothing_is_lost(busy):
        (agent,) = agents(busy)
        busy.own.stop_kubelet()
        busy.own.start_kubelet()
        registered_again(busy, agent)
        wait_until_offered(busy, BUSY)


@pytest.mark.parametrize("lose", [("truncate", "--size=-2000"), ("rm",)], ids=["cut", "deleted"])
@pytest.mark.parametrize("killed", ["the kubelet", "the agent too"])
def test_nothing_is_lost_when_the_kubelet_loses_its_checkpoint(
    busy: Cluster, lose: tuple[str, ...], killed: str
) -> None:
    """The kubelet takes all devices for free, and would give those of running pods to pods of Kubernetes' scheduler."""
    if busy.own is None:
        pytest.skip("restarting the kubelet needs access to the node")
    with nothing_is_lost(busy):
        (agent,) = agents(busy)
        busy.own.stop_kubelet()
        if killed == "the agent too":
            process = seen_process_of(busy, agent["metadata"]["name"], "--namespace=gpushare")
            assert process is not None
            os.kill(int(process.name), signal.SIGKILL)
        done = busy.own.on_node(*lose, CHECKPOINT)
        assert done.returncode == 0, done.stderr
        busy.own.start_kubelet()
        busy.until(lambda: has_forgotten(busy), "the agent knows what the kubelet has lost")
        wait_until_offered(busy, BUSY)
    many = [f"past-{number}" for number in range(4)]
    for name in many:
        busy.kubectl("create", "--filename=-", given=pod(name, {GPU_MEM: 5}, scheduler="default-scheduler"))
    busy.until(lambda: all(decided(busy.get("pod", name)) for name in many), "each runs, waits or is refused")
    check(busy)


def has_forgotten(cluster: Cluster) -> bool:
    return any("the kubelet has lost its record of" in log_of(cluster, agent) for agent in agents(cluster))


def decided(found: Json) -> bool:
    waits = any(each["reason"] == "Unschedulable" for each in found["status"].get("conditions", ()) if "reason" in each)
    annotations = found["metadata"].get("annotations", {})
    return waits or found["status"]["phase"] == "Failed" or annotations.get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true"


def registered_again(cluster: Cluster, agent: Json) -> None:
    """Wait until the agent that was there before has offered everything to another kubelet."""
    cluster.until(lambda: log_of(cluster, agent).count('"registered"') >= 4, "the agent registers both resources again")


def test_another_extender_goes_on_when_the_active_one_ends(busy: Cluster) -> None:
    with nothing_is_lost(busy):
        leader = holder(busy)
        busy.kubectl("--namespace=gpushare", "delete", "pod", leader)
        busy.until(lambda: holder(busy) not in {leader, ""}, "another pod leads")


def holder(cluster: Cluster) -> str:
    """Return the pod of the scheduler that is active."""
    lease = cluster.get("lease", "gpushare-scheduler", "--namespace=gpushare")
    return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]


@pytest.fixture(scope="module")
def other_version(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """The manifests of another version."""
    return of_another_version(cluster, tmp_path_factory.mktemp("other"))


def this_version(cluster: Cluster) -> list[Json]:
    """The manifests as they were applied in the beginning."""
    return [body for path in SHIPPED for body in cluster.adapted(path)]


def test_nothing_is_lost_on_the_way_to_another_version_and_back(busy: Cluster, other_version: list[Json]) -> None:
    """Over the same nodes and pods: another version of everything, and then this one again."""
    with needed(busy, "another version and back"), nothing_is_lost(busy):
        before = check(busy)
        change_version(busy, lambda: busy.apply_all(other_version), other_version)
        assert check(busy) == before
        change_version(busy, lambda: busy.apply(*SHIPPED), this_version(busy))
        assert check(busy) == before


def test_nothing_is_lost_when_a_rollout_is_undone_while_pods_come(busy: Cluster, other_version: list[Json]) -> None:
    """They wait while the agent is away, or are refused and made anew, and all run in the end."""
    daemonset = next(body for body in other_version if body["kind"] == "DaemonSet")
    with needed(busy, "undo a rollout"):
        before = check(busy)
        busy.apply_all([daemonset])
        busy.applied.append(EXAMPLES / "policy.yaml")
        busy.apply(EXAMPLES / "policy.yaml")
        rolled_out(busy, "daemonset/gpushare-node")
        busy.kubectl("rollout", "status", "deployment/spread", "--timeout=180s")
        busy.kubectl("--namespace=gpushare", "rollout", "undo", "daemonset/gpushare-node")
        busy.kubectl("scale", "deployment/spread", "--replicas=5")
        rolled_out(busy, "daemonset/gpushare-node")
        busy.kubectl("rollout", "status", "deployment/spread", "--timeout=180s")
        after = busy.until(lambda: all_of(busy, 5 + len(before)), "all of them run")
        assert {name: given for name, given in after.items() if name in before} == before


def all_of(cluster: Cluster, count: int) -> dict[str, Given]:
    if not all(
        pod["metadata"].get("annotations", {}).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true"
        for pod in cluster.gpu_pods()
    ):
        return {}
    found = check(cluster)
    return found if len(found) == count else {}


# --- And back --------------------------------------------------------------------------------------------------------


def test_without_the_label_the_node_offers_nothing_and_its_pods_stay(busy: Cluster) -> None:
    with needed(busy, "unlabel and label the node"), nothing_is_lost(busy):
        before, restarts = busy.given(), container_restarts(busy)
        busy.kubectl("label", "node", busy.node, "gpushare-")
        busy.until(lambda: agents(busy) == [], "the agent ends")
        wait_until_offered(busy, NOTHING)
        assert ours(busy) == []
        assert (busy.given(), container_restarts(busy)) == (before, restarts)
        busy.kubectl("label", "node", busy.node, "gpushare=true")
        busy.until(lambda: len(agents(busy)) == 1, "there is an agent on the node again")
        rolled_out(busy, "daemonset/gpushare-node")
        wait_until_offered(busy, BUSY)


def test_it_is_removed_as_the_page_says_and_running_pods_stay(cluster: Cluster) -> None:
    with needed(cluster, "remove everything"):
        cluster.apply_and_settle(EXAMPLES / "one-gib.yaml")
        before = cluster.given()
        commands = commands_of("install.md", "Remove it")
        assert commands == ["make undeploy", "kubectl inspect gpushare uninstall"]
        for command in commands:
            cluster.shell(command)
            cluster.until(lambda: agents(cluster) == [], "the agent ends")
        left = ("all", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "namespaces")
        for kind in left:
            names = {each["metadata"]["name"] for each in cluster.items(kind, "--all-namespaces")}
            assert not {name for name in names if "gpushare" in name}, kind
        assert ours(cluster) == []
        wait_until_offered(cluster, NOTHING)
        assert len(before) == 1
        assert cluster.given() == before
        cluster.clear()


# --- What is where ---------------------------------------------------------------------------------------------------


def agents(cluster: Cluster) -> list[Json]:
    return cluster.items("pods", "--namespace=gpushare", "--selector=app.kubernetes.io/component=node")


def ours(cluster: Cluster) -> list[str]:
    """Return the labels and annotations of ours on the node."""
    meta = cluster.get("node", cluster.node)["metadata"]
    return sorted(key for key in (*meta["labels"], *meta["annotations"]) if key.startswith(PREFIX))


def rolled_out(cluster: Cluster, workload: str) -> None:
    cluster.kubectl("--namespace=gpushare", "rollout", "status", workload, "--timeout=180s")


def wait_until_offered(cluster: Cluster, amounts: dict[str, int]) -> None:
    cluster.until(lambda: cluster.offered() == amounts, f"the node offers {amounts}")


def nothing_is_booked(cluster: Cluster) -> bool:
    """Whether nobody has, or reckons with, anything of any GPU; what the node offers tells it some seconds later."""
    return not any(
        [
            *cluster.measured("node", 9445, "gpushare_gpu_shares_allocated", "gpushare_gpu_shares_fenced"),
            *cluster.measured("scheduler", 9402, "gpushare_extender_pods", "gpushare_extender_pods_pending"),
        ]
    )


def change_version(cluster: Cluster, change: Callable[[], None], version: Iterable[Json]) -> None:
    """Apply a version, and wait until all that is in it runs, and nothing else of it."""
    change()
    for body in version:
        if body["kind"] not in {"DaemonSet", "Deployment"}:
            continue
        rolled_out(cluster, f"{body['kind'].lower()}/{body['metadata']['name']}")
        labels = ",".join(f"{key}={value}" for key, value in body["spec"]["selector"]["matchLabels"].items())
        pods = cluster.items("pods", "--namespace=gpushare", f"--selector={labels}")
        images = {
            each["image"] for each in containers(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
        }
        assert images == {each["image"] for each in containers([body])}
