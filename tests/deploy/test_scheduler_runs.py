"""What a real API server makes of deploy/, and what a real kube-scheduler makes of the configurations there."""

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml

from gpu_device_plugin.aio.http import Page, Request, Route, serving_routes
from gpu_device_plugin.aio.tls import server_tls
from gpu_device_plugin.model.contract.keys import ASSIGNED, DEV, IDX, NODE_GPUS, POD
from tests.builders import container, node, pod
from tests.deploy.manifests import DEPLOY, Json, documents
from tests.deploy.policies_world import PolicyWorld, apply_policies, path_of
from tests.deploy.test_scheduler_manifest import (
    ACCOUNT,
    ALONE,
    CONFIG,
    LOOPBACK,
    SECOND,
    config_map,
    configuration,
    settings,
)
from tests.deploy.test_scheduler_manifest import container as container_of
from tests.docs.pages import DOCS, blocks, text_of
from tests.kubeconfig import kubeconfig
from tests.patience import REAL_S, eventually, stretched
from tests.ports import free_ports

FILES = [path for path in sorted((*DEPLOY.glob("*.yaml"), *DEPLOY.glob("optional/*.yaml"))) if path != CONFIG]
"""All that is for an API server, and of kinds that it has by itself."""
PODS = "/api/v1/namespaces/placed/pods"
APART = {"metadata": {"name": "placed", "labels": {"gpu-device-plugin/set-scheduler": "false"}}}
"""A namespace whose pods keep the scheduler that they name."""
PRIORITY = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}


# --- What the page tells to do ---------------------------------------------------------------------------------------


def _shown(language: str) -> list[str]:
    return [block.text for block in blocks(text_of(DOCS / "scheduler.md"), language)]


def make_certificates(directory: Path) -> None:
    """Do what the page says, without the cluster."""
    (commands,) = (text for text in _shown("sh") if "openssl" in text)
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    script = re.sub(r"^kubectl (.*\\\n)*.*$", "", commands, flags=re.MULTILINE)
    subprocess.run(["bash", "-euc", script], cwd=directory, check=True, capture_output=True)
    made_secret = re.findall(r"--from-file=(\S+)=(\S+)", commands) + re.findall(r"--from-file=([\w.]+)(?=\s)", commands)
    for each in made_secret:
        name, file = each if isinstance(each, tuple) else (each, each)
        (directory / name).write_bytes((directory / file).read_bytes())
    assert (directory / "tls.crt").exists()


def over_tls(directory: Path) -> Json:
    """The configuration with which a scheduler calls the extender behind its Service, as the page tells it."""
    (fragment,) = (yaml.safe_load(text) for text in _shown("yaml") if "tlsConfig" in text)
    config: Json = documents(CONFIG)[0]
    ((extender,), (changed,)) = (config["extenders"], fragment["extenders"])
    extender |= changed
    extender["tlsConfig"] = {key: str(directory / Path(path).name) for key, path in extender["tlsConfig"].items()}
    return config


async def test_e16_the_pages_certificates_let_the_scheduler_in_and_nobody_else(tmp_path: Path) -> None:
    """Nor does the extender's own certificate, which is no client's."""
    make_certificates(tmp_path)
    tls = server_tls(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")

    async def version(_request: Request) -> Page:
        return Page("here\n")

    async def ask(port: int, shown: str = "") -> str:
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        if shown:
            trusting.load_cert_chain(tmp_path / f"{shown}.crt", tmp_path / f"{shown}.key")
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"https://127.0.0.1:{port}/version", ssl=trusting) as answer,
        ):
            return await answer.text()

    async with serving_routes("127.0.0.1", 0, [Route("GET", "/version", version)], tls=tls) as port:
        assert await ask(port, "scheduler") == "here\n"
        for stranger in ("", "extender"):
            with pytest.raises(aiohttp.ClientError):
                await ask(port, stranger)


# --- An API server ---------------------------------------------------------------------------------------------------

STRICT = "?fieldValidation=Strict"


@pytest.fixture(scope="module")
async def cluster(api: PolicyWorld) -> PolicyWorld:
    await install(api, DEPLOY / "daemonset.yaml")
    await api.make({**PRIORITY, "metadata": {"name": "urgent"}, "value": 1000})
    await apply_policies(api)
    return api


async def install(cluster: PolicyWorld, path: Path) -> None:
    """Make what a manifest has of namespaces, accounts and their rights."""
    for each in documents(path):
        if each["kind"] in {"Namespace", "ServiceAccount", "ClusterRole", "Role"} or "Binding" in each["kind"]:
            await cluster.make(each, STRICT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
async def test_the_api_server_accepts_it_to_the_last_field(cluster: PolicyWorld, path: Path) -> None:
    for each in documents(path):
        answer = await cluster.call("POST", f"{path_of(each)}{STRICT}&dryRun=All", each)
        if "could not find the requested resource" in answer.get("message", ""):
            pytest.skip(f"this API server does not know {each['kind']} of {each['apiVersion']}")
        assert answer["kind"] != "Status" or answer["reason"] == "AlreadyExists", answer


# --- A scheduler and the extender, as the manifests have them --------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One way to install the extender."""

    manifest: Path
    scheduler_name: str
    lease: tuple[str, str]
    """Namespace and name of the Lease that shows which one is active."""

    def __str__(self) -> str:
        return self.manifest.name


VARIANTS = [
    Variant(SECOND, "gpushare-scheduler", ("gpushare", "gpushare-scheduler")),
    Variant(LOOPBACK, "default-scheduler", ("kube-system", "kube-scheduler")),
    Variant(ALONE, "default-scheduler", ("gpushare", "gpu-device-plugin-extender")),
]


@dataclass
class Ports:
    """Free ports instead of those of the manifests, which another test may hold."""

    verbs: int
    http: int
    scheduler: int


def scheduler_config(variant: Variant, directory: Path, ports: Ports, kubeconfig: Path) -> Json:
    if variant.manifest == SECOND:
        config = configuration()
    elif variant.manifest == LOOPBACK:
        config = documents(CONFIG)[0]
    else:
        config = over_tls(directory)
    config["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    (extender,) = config["extenders"]
    extender["urlPrefix"] = extender["urlPrefix"].replace(":32766/", f":{ports.verbs}/")
    return config


@asynccontextmanager
async def running(log: Path, *command: str) -> AsyncIterator[None]:
    """Run a program; its last words are in the failure of whoever waits in vain."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(stretched()):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
async def test_a_pod_is_placed_where_one_gpu_has_room(cluster: PolicyWorld, tmp_path: Path, variant: Variant) -> None:
    """With no more rights than manifest and policies leave, and with the addresses of its parts alone changed.

    The node has GPUs with 4 and 16 shares: 8 of the 20 fit on the second one only. Then 4 and 8 are left, and a pod
    that wants 10 of the 12 has to wait. One that wants 16, and is urgent, takes the place of the first.
    """
    kube_scheduler = shutil.which("kube-scheduler", path=os.environ["KUBE_BIN"])
    if kube_scheduler is None:
        pytest.skip("there is no kube-scheduler in KUBE_BIN")
    if variant.manifest == ALONE:
        make_certificates(tmp_path)
    name = variant.manifest.stem
    ports = Ports(*free_ports(3))
    await install(cluster, variant.manifest)
    commands = {
        "extender": [sys.executable, "-m", "gpu_device_plugin", *await extender(cluster, variant, tmp_path, ports)],
        "scheduler": [kube_scheduler, *scheduler(cluster, variant, tmp_path, ports)],
    }
    logs = {program: tmp_path / f"{program}.log" for program in commands}
    try:
        await furnish(cluster, variant, name)
        async with (
            running(logs["extender"], *commands["extender"]),
            running(logs["scheduler"], *commands["scheduler"]),
        ):
            placed = await until(bound, cluster, name, logs)
            await cluster.make(waiting(variant, name, f"{name}-more", 10))
            left = await until(judged, cluster, f"{name}-more", logs)
            urgent = waiting(variant, name, f"{name}-urgent", 16)
            await cluster.make({**urgent, "spec": {**urgent["spec"], "priorityClassName": "urgent"}})
            victim = await until(ending, cluster, name, logs)
            await until(nominated, cluster, f"{name}-urgent", logs)
            await ask_the_programs(cluster, variant, ports)
    finally:
        for each in (name, f"{name}-more", f"{name}-urgent"):
            await cluster.call("DELETE", f"{PODS}/{each}?gracePeriodSeconds=0")
        await cluster.call("DELETE", f"/api/v1/nodes/{name}")
    assert re.search(r"nodes are available: .*1 no GPU has 10 GiB free", str(judged(left))), judged(left)
    assert placed["spec"]["nodeName"] == name
    written = {key: placed["metadata"]["annotations"][key] for key in (IDX, POD, DEV, ASSIGNED)}
    assert written == {IDX: "1", POD: "8", DEV: "16", ASSIGNED: "false"}
    assert "DisruptionTarget" in [each["type"] for each in victim["status"]["conditions"]]
    for program, log in logs.items():
        assert not re.search("forbidden|cannot list|cannot watch", log.read_text(encoding="utf-8")), program


async def extender(cluster: PolicyWorld, variant: Variant, directory: Path, ports: Ports) -> list[str]:
    """Return the arguments of the manifest, with addresses and files of this test, and the account's own token."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{ACCOUNT['namespace']}/serviceaccounts/{ACCOUNT['name']}/token"
    token = (await cluster.call("POST", path, request))["status"]["token"]
    account = kubeconfig(cluster.config, directory / "account.kubeconfig", token=token)
    mounted = (settings(variant.manifest).tls_cert or Path("/")).parent
    here = {
        "--listen": f"127.0.0.1:{ports.verbs}",
        "--http": f"127.0.0.1:{ports.http}",
        "--api": str(account),
        "--lease-namespace": ACCOUNT["namespace"],
    }
    for name, text in config_map(variant.manifest, "gpushare-extender")["data"].items():
        (directory / name).write_text(text, encoding="utf-8")
    here["--config"] = str(directory / "default.yaml")
    args = [each for each in container_of(variant.manifest)["args"] if each.partition("=")[0] not in here]
    return [
        *(each.replace(f"{mounted}/", f"{directory}/") for each in args),
        *(f"{flag}={value}" for flag, value in here.items()),
    ]


def scheduler(cluster: PolicyWorld, variant: Variant, directory: Path, ports: Ports) -> list[str]:
    """Return the arguments of a kube-scheduler with the account of the manifest, or of the cluster's own."""
    config = directory / "config.yaml"
    file = directory / "account.kubeconfig"
    if variant.manifest != SECOND:
        user = {"token": cluster.config.token, "as": "system:kube-scheduler"}
        file = kubeconfig(cluster.config, directory / "scheduler.kubeconfig", **user)
    config.write_text(yaml.safe_dump(scheduler_config(variant, directory, ports, file)), encoding="utf-8")
    return [
        f"--config={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.scheduler}",
        # In a pod it would find them by itself.
        *(f"--{each}-kubeconfig={file}" for each in ("authentication", "authorization")),
    ]


async def furnish(cluster: PolicyWorld, variant: Variant, name: str) -> None:
    """Make a node and a pod that waits for it. No other test's pod can go there, and no other node is theirs."""
    await cluster.make({"apiVersion": "v1", "kind": "Namespace", **APART})
    gpus = [
        {"uuid": f"GPU-{at}", "index": at, "model": "T4", "memoryMiB": shares * 1024, "shares": shares, "healthy": True}
        for at, shares in enumerate((4, 16))
    ]
    facts = json.dumps({"version": 1, "shareMiB": 1024, "policy": "binpack", "gpus": gpus, "links": []})
    await cluster.make(node(name, mem=20, count=2, annotations={NODE_GPUS: facts}))
    # The API server has tainted it as not ready, as every new node.
    taints = {"spec": {"taints": [{"key": "placing", "effect": "NoSchedule"}]}}
    await cluster.call("PATCH", f"/api/v1/nodes/{name}", taints, "application/merge-patch+json")
    await cluster.make(waiting(variant, name, name, 8))


def waiting(variant: Variant, node_name: str, name: str, mem: int) -> Json:
    """Return a pod for no other than the test's own node."""
    body = pod(name, container(mem=mem), namespace="placed")
    body["spec"] |= {
        "schedulerName": variant.scheduler_name,
        "tolerations": [{"key": "placing", "operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/hostname": node_name},
    }
    return body


def bound(found: Json) -> object:
    return found["spec"].get("nodeName")


def ending(found: Json) -> object:
    return found["metadata"].get("deletionTimestamp")


def nominated(found: Json) -> object:
    return found["status"].get("nominatedNodeName")


def judged(found: Json) -> object:
    """Why a pod is on no node, in the scheduler's words."""
    return next((each.get("message") for each in found["status"].get("conditions", ())), None)


async def until(condition: Callable[[Json], object], cluster: PolicyWorld, name: str, logs: Mapping[str, Path]) -> Json:
    """Return the pod as soon as it is so."""
    found: Json = {}

    async def so() -> object:
        nonlocal found
        found = await cluster.call("GET", f"{PODS}/{name}")
        return condition(found)

    try:
        await eventually(so, quiet_s=REAL_S, pause_s=0.2)
    except AssertionError as error:
        ends = "\n".join(f"{program}: {log.read_text(encoding='utf-8')[-3000:]}" for program, log in logs.items())
        raise AssertionError(f"{error}\n{ends}") from None
    return found


async def status(cluster: PolicyWorld, url: str, token: str = "") -> int:
    """Return how another server than the API's answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with cluster.http.get(url, headers=headers, ssl=False) as answer:
        return answer.status


async def ask_the_programs(cluster: PolicyWorld, variant: Variant, ports: Ports) -> None:
    """See that both answer their probes, that one of them is elected, and who else is answered."""
    probed = {
        f"http://127.0.0.1:{ports.http}": ("/healthz", "/readyz"),
        f"https://127.0.0.1:{ports.scheduler}": ("/healthz", "/livez", "/readyz"),
    }
    for server, paths in probed.items():
        assert {path: await status(cluster, server + path) for path in paths} == dict.fromkeys(paths, 200)
    # For this the scheduler asks the API server who we are, and whether we may.
    metrics = f"https://127.0.0.1:{ports.scheduler}/metrics"
    assert [await status(cluster, metrics, cluster.config.token), await status(cluster, metrics)] == [200, 403]
    if variant.manifest == ALONE:
        with pytest.raises(aiohttp.ClientError):
            await status(cluster, f"https://127.0.0.1:{ports.verbs}/version")
    lease = await cluster.call("GET", "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}".format(*variant.lease))
    assert lease["spec"]["holderIdentity"]
