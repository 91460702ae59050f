"""A real Prometheus reads a real agent and a real extender, and every query of the dashboard finds something."""

import asyncio
import math
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT
from gpu_device_plugin.testing.pod_specs import Pod
from tests import builders
from tests.cluster_double.api_server import ApiServer
from tests.deploy.test_monitoring import ALERTS, QUERIES, RECORDS
from tests.node.cluster_harness import NODE, Cluster, promise
from tests.node.harness import T4, pod, world
from tests.patience import eventually
from tests.ports import free_ports
from tests.scheduler.harness import QUICK, ExtenderWorld, patient
from tools.monitoring import FILES, RULES

Json = dict[str, Any]

IDS = {name: f"{number:064x}" for number, name in enumerate(("web", "big", "sly", "solo"), 1)}
"""Of the containers."""
LIMITED = {"memory_limits": True, "limits": {f"*/{IDS['web']}": "6GiB"}}
"""The driver holds the limit of one container, and has none for the other."""
INTERVAL = "500ms"
WINDOW = "60s"
OF_KUBE_STATE_METRICS = {rule["record"] for rule in RECORDS if "workload" in rule["record"]}


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    http: aiohttp.ClientSession

    async def query(self, expression: str) -> list[Json]:
        """Return the series of an expression now; a value that is no number is none."""
        async with self.http.post(f"{self.url}/api/v1/query", data={"query": expression}) as answer:
            body = await answer.json()
        assert body["status"] == "success", f"{expression}: {body}"
        found: list[Json] = body["data"]["result"]
        return [each for each in found if not math.isnan(float(each["value"][1]))]

    async def finds(self, expression: str) -> list[Json]:
        """Wait until an expression has a series."""
        return await eventually(lambda: self.query(expression), expression, pause_s=0.2)

    async def firing(self) -> set[str]:
        """Return the names of the alerts that fire or are about to."""
        async with self.http.get(f"{self.url}/api/v1/alerts") as answer:
            body = await answer.json()
        return {each["labels"]["alertname"] for each in body["data"]["alerts"]}

    async def faults(self) -> list[str]:
        """Return what kept rules from being evaluated."""
        async with self.http.get(f"{self.url}/api/v1/rules") as answer:
            body = await answer.json()
        rules = [rule for group in body["data"]["groups"] for rule in group["rules"]]
        return [rule["lastError"] for rule in rules if rule.get("lastError")]


@asynccontextmanager
async def prometheus(home: Path, targets: dict[str, Json]) -> AsyncIterator[Prometheus]:
    """Run Prometheus with the configuration and the rules of deploy/, whose minutes are seconds here."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not on the PATH (Debian's package prometheus has it)")
    config = yaml.safe_load((FILES / "prometheus.yaml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"], job["relabel_configs"]  # the labels that they would give are written here
    job["static_configs"] = [{"targets": [address], "labels": labels} for address, labels in targets.items()]
    config["global"] = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
    (home / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rules = re.sub(r"interval: \dm", f"interval: {INTERVAL}", RULES.read_text(encoding="utf-8"))
    (home / RULES.name).write_text(rules.replace("[59m59s999ms:1m]", f"[59s999ms:{INTERVAL}]"), encoding="utf-8")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with (home / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={home / 'prometheus.yaml'}",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession() as http:

            async def ready() -> bool:
                assert process.returncode is None, (home / "log").read_text(encoding="utf-8")
                try:
                    async with http.get(f"{url}/-/ready") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(ready, "Prometheus is ready", pause_s=0.1)
            yield Prometheus(url, http)
    finally:
        signal_child(process.pid, process.returncode, signal.SIGTERM)
        await process.wait()


def labels(pod_name: str, container: str, node: str) -> Json:
    """Return what the operator gives every sample of a program."""
    return {"namespace": "gpushare", "pod": pod_name, "container": container, "node": node}


async def starts(there: Cluster, made: Pod, number: int) -> None:
    """Do what a runtime does: a cgroup with a process in it, and the kubelet tells the API of the container."""
    container_id = IDS[made.name]
    (there.node.cgroups / f"kubepods/besteffort/pod{made.uid}/{container_id}").mkdir(parents=True)
    there.node.process(number, made, container_id)
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "main", "containerID": f"containerd://{container_id}", "state": state}
    there.api.patch("pods", made.name, {"status": {"containerStatuses": [status]}}, subresource="status")


def hardware(there: Cluster) -> None:
    """Let the pods use memory: web little of its own, big more than its own, sly what it was not given."""
    first = [
        {"pid": 1, "used": "1GiB", "sm": 1},
        {"pid": 2, "used": "6GiB", "sm": 60},
        {"pid": 3, "used": "1GiB", "sm": 2},
    ]
    there.node.hardware(
        {**T4, **LIMITED, "processes": first, "used": "9GiB"},
        {**T4, "processes": [{"pid": 4, "used": "8GiB", "sm": 90}], "used": "8GiB"},
        driver="615.71.09",
        cgroup=2,
        events=[{"at": 0, "gpu": 0, "xid": 31}],
    )


async def scene(there: Cluster, extenders: ExtenderWorld, prom: Prometheus) -> None:
    """Pods that use memory, exceed, trespass, are refused and wait."""
    await there.run(pod("both", mem=1, count=1))  # refused: of two resources at once
    solo = await there.run(pod("solo", count=1), promise(1))
    big = await there.run(pod("big", mem=4), promise(0, 4))
    sly = await there.run(pod("sly"))
    for spec in (pod("huge", mem=20), pod("more", mem=12)):  # a GPU has 14
        there.create(spec)
    there.create(pod("web", mem=4), annotations={MEMORY_LIMIT: "6"})
    await prom.finds("gpushare_rpc_duration_seconds_count")
    async with extenders.scheduler() as scheduler:
        for _ in range(2):  # what is counted has grown between two samples
            await eventually(
                lambda: extenders.only.extender.fleet.candidates.get(NODE) is not None, "the extender knows the node"
            )
            await scheduler.schedule()
            await prom.finds('gpushare_extender_verb_duration_seconds_count{verb="filter"}')
    assert extenders.where("web") == NODE
    web = await there.admit(there.known(pod("web", mem=4)))
    there.create(pod("unasked", mem=1))
    for number, made in enumerate((web, big, sly, solo), 1):
        await starts(there, made, number)
    hardware(there)


@pytest.fixture(scope="module")
async def read(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """Return a Prometheus that has read a cluster in which something of everything happens."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not on the PATH (Debian's package prometheus has it)")
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiServer(bookmark_s=0.02))
        api.add(builders.node(NODE, mem=28, count=2))
        node = await stack.enter_async_context(world([{**T4, **LIMITED}, T4]))
        node.hardware({**T4, **LIMITED}, T4, driver="615.71.09", cgroup=2)
        node.settings |= {"api": api.url, "node_name": NODE}
        there = Cluster(node, api)
        (port,) = free_ports(1)
        settings = {"usage_interval": "100ms", "over_use_slack": "0MiB", "over_use_grace": "1s"}
        await there.start_agent(http=f"127.0.0.1:{port}", **settings)
        await node.until(there.takes_pods)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        extenders = ExtenderWorld(
            api, http, {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "bind_timeout": "60s"}, patient(QUICK)
        )
        running = await extenders.start()
        stack.push_async_callback(extenders.stop)
        targets = {
            f"127.0.0.1:{port}": labels("gpushare-node-x", "agent", NODE),
            running.probes.removeprefix("http://"): labels("gpushare-scheduler-x", "extender", "elsewhere"),
        }
        prom = await stack.enter_async_context(prometheus(tmp_path_factory.mktemp("prometheus"), targets))
        await prom.finds("count(up == 1) == 2")
        await scene(there, extenders, prom)
        yield prom


def chosen(expression: str) -> str:
    """Put in what Grafana does, with all nodes, namespaces and models chosen."""
    found = re.sub(r"\$(?:node|namespace|model)\b", ".*", expression).replace("$__rate_interval", WINDOW)
    return found.replace("$__range:5m", f"{WINDOW}:1s")


async def test_every_query_of_the_dashboard_finds_something(read: Prometheus) -> None:
    for _, expression in QUERIES:
        await read.finds(chosen(expression))


async def test_every_recorded_series_is_there(read: Prometheus) -> None:
    for record in {rule["record"] for rule in RECORDS} - OF_KUBE_STATE_METRICS:
        await read.finds(record)


async def test_no_rule_fails_on_what_the_programs_show(read: Prometheus) -> None:
    await read.finds("namespace:gpushare_idle_gpu_hours:1h")
    assert await read.faults() == []


async def test_the_labels_are_those_of_what_a_series_is_about(read: Prometheus) -> None:
    """The agent's own stand where a series has none; the container's and the node's are not overwritten."""
    (web,) = await read.finds('gpushare_container_gpu_memory_used_bytes{pod="web"}')
    assert {name: web["metric"][name] for name in ("namespace", "container", "node")} == {
        "namespace": "default",
        "container": "main",
        "node": NODE,
    }
    (stream, *_) = await read.finds("gpushare_stream_up")
    assert (stream["metric"]["pod"], stream["metric"]["namespace"]) == ("gpushare-node-x", "gpushare")
    (node,) = await read.finds("gpushare_extender_node_memory_bytes")
    assert node["metric"]["node"] == NODE


async def test_pods_wait_for_the_reasons_that_they_have(read: Prometheus) -> None:
    """20 GiB are more than any GPU has, 12 more than is free, and of the last one no scheduler has asked."""
    reasons = {"never_fits": "1", "no_room": "1", "not_asked": "1", "fits": "0"}

    async def told() -> bool:
        found = await read.query("gpushare_extender_pods_waiting")
        return {each["metric"]["reason"]: each["value"][1] for each in found} == reasons

    await eventually(told, f"{reasons} are told", pause_s=0.2)


async def test_who_exceeds_trespasses_and_waits_is_alerted(read: Prometheus) -> None:
    """And nothing is that is well."""
    due = {
        "GpuShareOverUse",
        "GpuShareTrespass",
        "GpuShareLimitsNotHeld",
        "GpuSharePodsNeverFit",
        "GpuSharePodsNotAsked",
    }

    async def fire() -> bool:
        return due <= await read.firing()

    await eventually(fire, f"{due} fire", pause_s=0.2)
    # The first for an hour; the others are about to where the machine is slow for a moment, and never get there.
    others = {"GpuSharePodsWait", "GpuShareUseUnknown", "GpuShareProgramSilent"}
    assert await read.firing() <= due | others <= {rule["alert"] for rule in ALERTS}
