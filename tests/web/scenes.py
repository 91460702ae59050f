"""Clusters as the page's server tells them, made up: a small one with everything in it, and one of any size."""

# ruff: noqa: S311 - chance in made-up clusters is no secret

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec

from gpu_device_plugin.features.history.contract import IncidentKind, IncidentList
from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeReport, NodeUse
from gpu_device_plugin.model.contract.nodegpus import AWAY
from gpu_device_plugin.model.limits import LimitStatus
from gpu_device_plugin.report.rules.finding import note
from gpu_device_plugin.report.rules.node_answers import whole_gpus
from gpu_device_plugin.report.rules.node_view import NodeView, State
from tests import histories

Json = dict[str, Any]

NOW = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)
"""The time by the server's clock in every scene."""

T4 = ("Tesla T4", 15, 15360)
A100 = ("NVIDIA A100-SXM4-40GB", 40, 40960)
H100 = ("NVIDIA H100 80GB HBM3", 79, 81559)
L40S = ("NVIDIA L40S", 44, 46068)


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster: what `cluster` events say of it, and what is known of its pods."""

    cluster: Json
    session: Json = field(
        default_factory=lambda: {
            "version": "0.1.0",
            "mode": "kubeconfig",
            "user": "ada@example.com",
            "context": "prod-eu",
        }
    )
    pods: dict[tuple[str, str], Json] = field(default_factory=dict)
    plans: dict[tuple[str, str], Json] = field(default_factory=dict)
    past: dict[str, Json] = field(default_factory=dict)
    """What agents remember, by path and query below api/v1/."""

    def node(self, name: str) -> Json:
        """Return a node by name."""
        return next(node for node in self.cluster["nodes"] if node["name"] == name)


def said(document: Json) -> Json:
    """Return a document as the contract has it: without the fields that say nothing, but a GPU's index and amounts.

    Unknown amounts are None.
    """
    return {
        key: value
        for key, value in document.items()
        if value not in (None, False, 0, "", [])
        or (key in {"index", "shares", "usedMiB", "smPercent", "largestIndex"} and value is not None)
    }


def before(**ago: float) -> str:
    """Return the time that was `ago` before now."""
    return (NOW - timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(*, live: bool = True, age_s: float = 0.4, why: str = "") -> Json:
    """Return what is said of how the cluster is read."""
    return {"live": live, "ageS": age_s, "why": why, "now": NOW.strftime("%Y-%m-%dT%H:%M:%SZ")}


def part(owner: str, shares: int, used_mib: int = 0, **more: Any) -> Json:
    """Return what a pod, `NAMESPACE/NAME`, has of a GPU; `""` for one that may not be seen."""
    namespace, _, name = owner.partition("/")
    return said({"namespace": namespace, "name": name, "shares": shares, "usedMiB": used_mib, **more})


def gpu(position: int, node: str, kind: tuple[str, int, int], *parts: Json, other_mib: int = 0, **more: Any) -> Json:
    """Return a GPU with its sums; parts that are `trespassing` are those of strangers."""
    model, shares, memory_mib = kind
    held = [each for each in parts if not each.get("trespassing")]
    whole = any(each.get("whole") for each in held)
    taken = shares if whole else sum(each["shares"] for each in held)
    return said(
        {
            "index": position,
            "uuid": f"GPU-{random.Random(f'{node}/{position}').randbytes(6).hex()}",
            "model": model,
            "totalShares": shares,
            "usedShares": taken,
            "freeShares": 0 if more.get("reason") or whole else shares - taken,
            "memoryMiB": memory_mib,
            "usedMiB": sum(each.get("usedMiB", 0) for each in parts) + other_mib,
            "unattributedMiB": other_mib,
            "pods": held,
            "strangers": [each for each in parts if each.get("trespassing")],
            **more,
        }
    )


def node(name: str, *gpus: Json, limits: str = "driver", **more: Any) -> Json:
    """Return a node that is ready; GPUs with a `resource` are MIG instances that are given whole."""
    shared = [each for each in gpus if "resource" not in each]
    offers: dict[str, list[Json]] = {}
    for each in gpus:
        if "resource" in each:
            bare = {key: value for key, value in each.items() if key != "resource"}
            offers.setdefault(each["resource"], []).append(bare)
    known: Json = {
        "name": name,
        "ready": True,
        "address": "10.0.0.7",
        "shareMiB": 1024,
        "driver": "580.65.06",
        "policy": "binpack",
        "limits": limits,
        "use": said({"at": before(seconds=12), "live": True}),
        "totalShares": sum(each["totalShares"] for each in shared),
        "usedShares": sum(each.get("usedShares", 0) for each in shared),
        "instances": [{"resource": resource, "instances": instances} for resource, instances in offers.items()],
    }
    return summed(said(known | more) | {"gpus": shared})


def summed(node: Json) -> Json:
    """Return a node with its sums, as its GPUs and MIG instances are now."""
    whole = [each for offer in node.get("instances", ()) for each in offer["instances"]]
    gpus = [*node["gpus"], *whole]
    takes_pods = node.get("ready") and not node.get("unschedulable")
    free = node["gpus"] if takes_pods else []
    nothing: Json = {"index": None}
    largest: Json = max(free, key=lambda each: each.get("freeShares", 0), default=nothing)
    used = [each["usedMiB"] for each in gpus if "usedMiB" in each and "use" in node]
    sums: Json = {
        "totalMiB": 1024 * sum(each["totalShares"] for each in gpus),
        "givenMiB": 1024 * sum(each.get("usedShares", 0) for each in gpus),
        "freeMiB": 1024 * sum(each.get("freeShares", 0) for each in free),
        "largestMiB": 1024 * largest.get("freeShares", 0),
        "largestIndex": largest["index"],
        "usedMiB": sum(used) if used else None,
        "measuredGpus": len(used),
        "gpus": len({each.get("mig", {}).get("parent", each["index"]) for each in gpus}),
        "freeGpus": sum(not (each.get("usedShares") or each.get("reason") or "mig" in each) for each in free),
        "instances": len(whole),
        "freeInstances": sum(bool(each.get("freeShares")) for each in whole),
    }
    return node | {"sums": said(sums)}


def stated(node: Json) -> Json:
    """Return a node with the states that the server would tell of it, its GPUs and their parts."""
    known: Any = SimpleNamespace
    offers = node.get("instances", [])
    gpus = [*node["gpus"], *(each for offer in offers for each in offer.get("instances", []))]
    means = {value: known(value=value) for value in (node.get("limits"), *(each.get("limits") for each in gpus))}
    limits = {
        each["index"]: known(enforcement=means[each["limits"]], refusal=each.get("refusal", ""))
        for each in gpus
        if "limits" in each
    }
    use = node.get("use", {})
    read = NodeUse(
        use.get("at", ""),
        {each["index"]: GpuUse(each.get("usedMiB"), each.get("unattributedMiB")) for each in gpus},
        blind=use.get("blind", ""),
    )
    used = sum(each.get("usedShares", 0) for each in node["gpus"])
    view: Any = known(
        record=known(ready=node.get("ready", False), unschedulable=node.get("unschedulable", False)),
        candidate=known(
            gpus=known(
                fault=node.get("problem", ""),
                claims=node.get("claims", False),
                away=node.get("problem") == AWAY,
                unread=(),
            )
        ),
        instances=lambda: [
            known(unassigned_usage=[("", each["instances"]) for each in offer.get("unplaced", [])]) for offer in offers
        ],
        amount=str,
        report=NodeReport(known(enforcement=means[node.get("limits")], gpus=limits), read if use else None, 10.0),
        features=REPORT,
    )

    def told(document: Json, states: list[State]) -> Json:
        bare = {key: value for key, value in document.items() if key != "states"}
        return bare | ({"states": [state.message() for state in states]} if states else {})

    def held(part: Json, position: int) -> Json:
        given = 0 if part.get("trespassing") else part.get("shares", 0) * node.get("shareMiB", 0)
        uses = ContainerUse(
            part.get("namespace", ""),
            part.get("name", ""),
            "",
            position,
            given,
            part.get("usedMiB"),
            part.get("smPercent"),
            held=LimitStatus(part["held"]) if "held" in part else None,
            found_mib=part.get("foundMiB"),
            over_since=part.get("overSince", ""),
            limit_mib=part.get("limitMiB"),
            asked_at=part.get("askedAt", ""),
            return_by=part.get("returnBy", ""),
            needed_by=part.get("neededBy", ""),
            idle_since=part.get("idleSince", ""),
        )
        return told(part, NodeView.part_states(view, [uses] if use else [], ending=part.get("deleting", False)))

    def shown(gpu: Json) -> Json:
        at, cordon = gpu["index"], gpu.get("cordon")
        listed = known(
            position=at, unhealthy=gpu.get("reason", ""), cordon=None if cordon is None else Cordon(**cordon)
        )
        parts = {key: [held(each, at) for each in gpu[key]] for key in ("pods", "strangers") if key in gpu}
        return told(gpu, NodeView.gpu_states(view, known(gpu=listed))) | parts

    whole = [
        offer | {"instances": [shown(each) for each in offer["instances"]]} if "instances" in offer else offer
        for offer in offers
    ]
    shared = {"gpus": [shown(each) for each in node["gpus"]]}
    return (
        told(node, NodeView.states(view, node.get("usedShares", 0) - used))
        | shared
        | ({"instances": whole} if offers else {})
    )


def cluster(
    *nodes: Json, waiting: tuple[Json, ...] = (), notes: tuple[Any, ...] = (), source: str = "agents", why: str = ""
) -> Json:
    """Return the event `cluster`."""
    return {
        "version": 1,
        "nodes": list(nodes),
        "waiting": list(waiting),
        "alone": [],
        "notes": list(notes),
        "figures": {"source": source, "why": why},
        "read": read(),
    }


XL = note(
    "pod-to-end",
    "{pod} ({amounts:+, }, priority {priority})",
    pod="research/diffusion-xl",
    amounts=("32 GiB",),
    priority=0,
)
ENDED = note(
    "room-if-one-ended", "There would be room on {node} if this pod ended: {pods:+, }", node="h100-1", n=1, pods=(XL,)
)
ROOM = note("makes-room", "{room}.", room=ENDED)


def small() -> Scene:
    """Return a small cluster in which everything that the page can show happens once."""
    nodes = (
        node(
            "a100-1",
            gpu(
                0,
                "a100-1",
                A100,
                part("research/llm-eval-0", 16, 14920, smPercent=71, enforcement="driver", held="held"),
                part("research/notebook-mara", 8, 3120, smPercent=4, enforcement="driver", held="held"),
                part("serving/embedder-5d9c", 10, 8810, smPercent=38, enforcement="driver", held="held"),
                limits="driver",
            ),
            gpu(1, "a100-1", A100, part("training/finetune-7b", 40, 37400, whole=True, smPercent=97)),
            gpu(
                2,
                "a100-1",
                A100,
                part("serving/ranker-0", 12, 9200, smPercent=55, enforcement="driver", held="held"),
                part("serving/ranker-1", 12, 9180, smPercent=52, enforcement="driver", held="held"),
                limits="driver",
            ),
            gpu(3, "a100-1", A100, reason="Xid 79: GPU has fallen off the bus"),
        ),
        node(
            "h100-1",
            gpu(0, "h100-1", H100, part("training/pretrain-0", 79, 76900, whole=True, smPercent=99)),
            gpu(
                1,
                "h100-1",
                H100,
                part("serving/chat-large-0", 48, 45100, smPercent=83, enforcement="mps", held="unverified"),
                part("speech/asr-stream-2", 20, 12800, smPercent=31, enforcement="mps", held="unverified"),
                limits="mps",
            ),
            gpu(
                2,
                "h100-1",
                H100,
                part("research/diffusion-xl", 32, 29400, smPercent=88, enforcement="mps", held="unverified"),
                limits="mps",
            ),
            gpu(3, "h100-1", H100, limits="mps"),
            limits="mps",
        ),
        node(
            "l40s-1",
            gpu(
                0,
                "l40s-1",
                L40S,
                part("vision/detector-a", 12, 7400, smPercent=44, enforcement="driver", held="held"),
                part("vision/detector-b", 12, 7350, smPercent=41, enforcement="driver", held="held"),
                part("vision/tracker", 6, 2100, smPercent=12, enforcement="driver", held="held"),
                limits="driver",
            ),
            gpu(
                1,
                "l40s-1",
                L40S,
                part("speech/tts-0", 10, 6200, smPercent=21, enforcement="driver", held="differs", foundMiB=12288),
                part("research/notebook-jun", 4, 0, enforcement="driver", held="held"),
                limits="driver",
            ),
            unschedulable=True,
        ),
        node(
            "t4-1",
            gpu(
                0,
                "t4-1",
                T4,
                part(
                    "default/web-0",
                    5,
                    9011,
                    smPercent=62,
                    overSince=before(minutes=7),
                    enforcement="advisory",
                    held="unverified",
                ),
                part("default/web-1", 5, 4310, smPercent=30, enforcement="advisory", held="unverified"),
                other_mib=312,
            ),
            gpu(
                1,
                "t4-1",
                T4,
                part("default/batch-nightly", 3, 2900, smPercent=9, enforcement="advisory", held="unverified"),
                part("", 4, 1200),
                part("research/stray", 0, 2048, trespassing=True),
            ),
            limits="advisory",
        ),
    )
    waiting = (
        said(
            {
                "namespace": "training",
                "name": "finetune-70b",
                "asks": note("asks", "{asks:+ and }", asks=(whole_gpus(2),)).message(),
                "since": before(minutes=41),
                "scheduler": "gpushare-scheduler",
                "why": "Fits on none of 4 nodes: fewer than 2 unused GPUs (3); it is cordoned (1).",
                "room": ROOM.message(),
            }
        ),
        said(
            {
                "namespace": "serving",
                "name": "chat-large-1",
                "asks": "48 GiB of one GPU",
                "since": before(minutes=3),
                "scheduler": "gpushare-scheduler",
                "why": "1 node has room for it now; gpushare-scheduler says (Unschedulable): 0/4 nodes are available: "
                "the pod waits for its volume chat-weights.",
                "room": "",
            }
        ),
    )
    return Scene(cluster(*nodes, waiting=waiting), pods={("default", "web-0"): web_0()})


def remembering() -> Scene:
    """Return the small cluster, of which the agent of t4-1 remembers an hour in which GPU 0 gets too hot, and an XID.

    Another GPU has no readings of its condition. Processors and the agent's absence are those of `tests.histories`.
    """
    web, stray = (
        histories.used_by("default/web-0", granted_mib=4096),
        histories.used_by("research/notebook", granted_mib=0, most_mib=0),
    )
    held = replace(web, cpu_throttled_percent=histories.rising(0, 80))
    bare = histories.gpu(1, condition=None, power_w=(), temperature_c=(), throttle=(), pcie_percent=())
    died = histories.summary(
        "20261123-091500-container-died-gpu0",
        at=before(minutes=15),
        kind=IncidentKind.CONTAINER_DIED,
        sentence="container main ended with exit code 137 (Error)",
        namespace="default",
        pod="web-0",
        container="main",
    )
    hidden = replace(died, name="hidden", at=before(minutes=50), sentence="", namespace="", pod="", container="")
    told = {
        "history/t4-1?gpu=0": histories.hour(held, stray),
        "history/t4-1?gpu=1": histories.hour(gpus=(bare,)),
        "history/t4-1?pod=default/web-0": histories.hour(held),
        "history/t4-1?namespace=default": histories.hour(held, replace(web, pod="web-1")),
        "history/t4-1?namespace=research": histories.hour(stray),
        "history/a100-1?namespace=research": histories.hour(replace(web, namespace="research", pod="llm-eval-0")),
        "incidents/t4-1": IncidentList((histories.summary(), died, hidden)),
        "incidents/t4-1/20261123-092500-xid-gpu0": histories.incident(),
    }
    return replace(small(), past={path: msgspec.to_builtins(each) for path, each in told.items()})


def instance(
    position: int, number: int, profile: str, shares: int, *parts: Json, resource: str = "", **more: Any
) -> Json:
    """Return a MIG instance of the GPU with the index 1 of the node mig-1; with a `resource` it is given whole."""
    model = f"NVIDIA H100 80GB HBM3 MIG {profile}"
    found = gpu(position, "mig-1", (model, shares, shares * 1024 + 512), *parts, resource=resource, **more)
    del found["uuid"]
    place = {"parent": "GPU-parent", "gpu": 1, "number": number, "profile": profile, "gi": number}
    return {**found, "uuid": f"MIG-{number}", "mig": place}


def parted() -> Scene:
    """Return a node with a whole GPU, and with one in MIG mode: two instances are shared, and three given whole."""
    small_ones = "nvidia.com/mig-1g.10gb"
    instances = (
        instance(1, 0, "2g.20gb", 19, part("serving/ranker-0", 12, 9200, smPercent=55), limits="advisory"),
        instance(2, 1, "1g.10gb", 9, limits="advisory"),
        instance(3, 2, "1g.10gb", 9, part("training/tune-0", 9, 8100, whole=True, smPercent=97), resource=small_ones),
        instance(4, 3, "1g.10gb", 9, resource=small_ones),
        instance(5, 4, "1g.10gb", 9, resource=small_ones, reason="XID 94: a contained memory error"),
    )
    card = gpu(0, "mig-1", H100, part("research/llm-eval-0", 16, 14920, smPercent=71), limits="driver")
    found = node("mig-1", card, *instances, limits="advisory")
    found["instances"][0]["unplaced"] = [{"instances": 1}]
    return Scene(cluster(found))


def lending() -> Scene:
    """Return a node where a notebook borrows 3 of the 4 GiB beyond its guarantee, and is asked to return them."""
    borrower = part(
        "research/nb-2",
        4,
        7168,
        limitMiB=8192,
        borrowedMiB=3072,
        askedAt=before(seconds=12),
        returnBy=before(seconds=-48),
        neededBy="training/train-0",
    )
    idle = part("research/nb-1", 4, 1024, limitMiB=8192)
    cards = gpu(0, "t4-1", T4, borrower, idle, part("training/train-0", 5))
    return Scene(cluster(node("t4-1", cards, limits="advisory")))


def web_0() -> Json:
    """Return all that is known of the pod of the small cluster that uses more than its share."""
    return {
        "namespace": "default",
        "name": "web-0",
        "uid": "0b0c6c4e-4c2b-4c4e-9a57-3f4f5b1f0a11",
        "node": "t4-1",
        "phase": "Running",
        "created": before(hours=5),
        "priority": 0,
        "scheduler": "gpushare-scheduler",
        "containers": [
            {
                "name": "main",
                "kind": "app",
                "asks": {"aliyun.com/gpu-mem": 5},
                "gpus": [
                    {
                        "index": 0,
                        "uuid": "GPU-6f1c2f4e",
                        "model": "Tesla T4",
                        "shares": 5,
                        "grantedMiB": 5120,
                        "whole": False,
                    }
                ],
                "variables": {
                    "NVIDIA_VISIBLE_DEVICES": "GPU-6f1c2f4e",
                    "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
                    "GPUSHARE_LIMITS": "advisory",
                },
                "use": [
                    {
                        "index": 0,
                        "grantedMiB": 5120,
                        "usedMiB": 9011,
                        "smPercent": 62,
                        "enforcement": "advisory",
                        "held": "unverified",
                        "overSince": before(minutes=7),
                        "states": [
                            {
                                "code": "over",
                                "tone": "bad",
                                "rank": 1,
                                "text": "over",
                                "parameters": {"since": before(minutes=7)},
                            }
                        ],
                    }
                ],
            },
            {"name": "proxy", "kind": "sidecar", "asks": {}, "gpus": [], "variables": {}, "use": []},
        ],
        "why": ["default/web-0 runs on t4-1, on GPU 0."],
        "events": [
            {
                "type": "Warning",
                "reason": "GPUMemoryOverUse",
                "message": "container main uses 9,011 MiB of GPU memory and was granted 5,120 MiB",
                "count": 3,
                "last": before(minutes=2),
            },
            {
                "type": "Normal",
                "reason": "Started",
                "message": "Started container main",
                "count": 1,
                "last": before(hours=5),
            },
        ],
    }


HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that no API server lets through, and a page must nevertheless bear."""


def hostile() -> Scene:
    """Return a cluster in which every text that a stranger can write is an attack."""
    longest, turned = "n" * 253, "ab\u202egnp.exe\u0000\u200b\nnext"
    name = "node-" + "x" * 248
    parts = (
        part(f"evil/{HOSTILE}", 5, 9000, overSince=before(minutes=1)),
        part(f"{HOSTILE}/{longest}", 4, 100),
        part(f"default/{turned}", 3, 100),
    )
    nodes = (
        node(
            name,
            gpu(0, name, ("<b>Model</b>" + "m" * 200, 15, 15360), *parts, reason=f"{HOSTILE}" + "r" * 300),
            problem=f"{HOSTILE}\u202e",
        ),
        node(
            "javascript:alert(1)",
            gpu(0, "second", T4, part("evil/stray", 0, 10, trespassing=True)),
            limits="<script>alert(1)</script>",
        ),
    )
    waiting = (
        said(
            {
                "namespace": "evil",
                "name": HOSTILE,
                "asks": "\u202e" + "9" * 300,
                "since": "<script>",
                "why": note("only-node", "{node}" * 20, node=HOSTILE, why=HOSTILE).message(),
                "room": note("makes-room", "{room}", room="\u202eroom").message(),
            }
        ),
    )
    pod = web_0() | {
        "namespace": "evil",
        "name": HOSTILE,
        "phase": "<script>alert(2)</script>",
        "why": [
            note("of-node", "{node}", node=HOSTILE, why="\u202ewhy" + "w" * 400).message(),
            note("held", "{amount}", pod=HOSTILE, amount="\u202ewhy" + "w" * 400).message(),
        ],
        "events": [{"type": "Warning", "reason": HOSTILE, "message": HOSTILE + "\u202e", "count": 2, "last": HOSTILE}],
    }
    pod["containers"][0]["variables"] = {"NVIDIA_VISIBLE_DEVICES": HOSTILE, "v" * 300: "\u202e" + "z" * 2000}
    return Scene(
        cluster(
            *nodes, waiting=waiting, notes=(note("node-problem", "{problem}", problem=HOSTILE).message(), "\u202enote")
        ),
        pods={("evil", HOSTILE): pod},
    )


TEAMS = (
    "ads",
    "batch",
    "default",
    "genomics",
    "ranking",
    "research",
    "search",
    "serving",
    "speech",
    "training",
    "vision",
    "weather",
)


def many(nodes: int = 1000, gpus: int = 8, *, seed: int = 7) -> Scene:
    """Return a cluster of so many nodes with so many GPUs each, with the same troubles for the same seed."""
    chance = random.Random(seed)
    kinds = (H100, H100, A100, A100, L40S, T4)
    made = []
    for n in range(nodes):
        name, kind = f"gpu-{n:04d}", kinds[n * len(kinds) // max(1, nodes)]
        cards = [random_gpu(chance, n, each, name, kind) for each in range(gpus)]
        troubled = n % 97 == 41
        made.append(
            node(
                name,
                *cards,
                limits=("driver", "mps", "advisory")[n % 3],
                unschedulable=n % 53 == 17,
                ready=not troubled,
            )
        )
    waiting = tuple(
        said(
            {
                "namespace": TEAMS[n % len(TEAMS)],
                "name": f"waiting-{n}",
                "asks": "64 GiB of one GPU",
                "since": before(minutes=3 * n + 1),
                "why": "no GPU has 64 GiB free",
            }
        )
        for n in range(5)
    )
    return Scene(cluster(*made, waiting=waiting))


def random_gpu(chance: random.Random, n: int, position: int, node_name: str, kind: tuple[str, int, int]) -> Json:
    """Return a GPU in some use; of those of a node, `n`-th, the `position`-th."""
    _, shares, memory_mib = kind
    parts: list[Json] = []
    if chance.random() < 0.18:
        parts.append(
            part(f"training/job-{n}-{position}", shares, int(memory_mib * chance.uniform(0.6, 0.97)), whole=True)
        )
    elif chance.random() < 0.9:
        left = shares if chance.random() < 0.45 else int(shares * chance.uniform(0.2, 0.95))
        while left >= 2 and len(parts) < 6:
            own = min(left, chance.randint(2, max(2, shares // 2)))
            over = chance.random() < 0.004
            used = int(own * 1024 * (chance.uniform(1.1, 1.4) if over else chance.uniform(0.1, 0.98)))
            owner = f"{chance.choice(TEAMS)}/pod-{n}-{position}-{len(parts)}"
            parts.append(part(owner, own, used, overSince=before(minutes=5) if over else ""))
            left -= own
    bad = "Xid 48: double bit ECC error" if chance.random() < 0.004 else ""
    return gpu(position, node_name, kind, *parts, reason=bad)
