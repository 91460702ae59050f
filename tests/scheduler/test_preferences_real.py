"""What pods say of affinity, spreading and taints holds on a real kube-scheduler with the extender as without it."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from bench.extender import running, session
from bench.kubeapi import KubeApi, binaries
from bench.placement import node_json
from bench.scheduler import PREFIX, create, delete
from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType
from gpu_device_plugin.model.contract.keys import ALLOCATION
from tests.builders import Json, container, pod
from tests.patience import REAL_S, eventually

ZONE, HOST, DISK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "disk"
WISHES = ("nodeAffinity", "podAffinity", "podAntiAffinity", "spread")
APPS = "uvwxyz"


@dataclass(frozen=True)
class Place:
    """A node."""

    name: str
    zone: str
    disk: str
    taint: str
    """Its effect; empty: there is none."""
    sizes: tuple[int, ...]
    """Shares of each GPU."""

    def body(self) -> Json:
        kind = NodeType(self.sizes, tuple(f"{size} GiB" for size in self.sizes), 64_000, 1 << 18)
        body = node_json(Start.empty(self.name, kind))
        body["metadata"]["labels"] |= {ZONE: self.zone, DISK: self.disk}
        body["spec"]["taints"] = [{"key": "kept", "effect": self.taint}] if self.taint else []
        return body


@dataclass(frozen=True)
class Asking:
    """A pod."""

    name: str
    app: str
    mem: int = 0
    count: int = 0
    zone: str = ""
    """Which it selects."""
    tolerant: bool = False
    rules: dict[str, str] = field(default_factory=dict)
    """Of `WISHES`, each with the app that it concerns."""
    prefers: dict[str, str] = field(default_factory=dict)
    """The same, as preferences; nothing that is a rule."""

    def body(self) -> Json:
        body = pod(self.name, container(mem=self.mem or None, count=self.count or None), grace_s=0)
        affinity: Json = {}
        spec: Json = {"schedulerName": "gpushare-scheduler", "affinity": affinity}
        spec |= {"nodeSelector": {ZONE: self.zone}} if self.zone else {}
        spec |= {"tolerations": [{"key": "kept", "operator": "Exists"}]} if self.tolerant else {}
        fast: Json = {"matchExpressions": [{"key": DISK, "operator": "In", "values": ["ssd"]}]}
        for kind, app in (self.rules | self.prefers).items():
            near: Json = {"labelSelector": {"matchLabels": {"app": app}}}
            near["topologyKey"] = HOST if kind == "podAntiAffinity" else ZONE
            if kind == "spread":
                action = "DoNotSchedule" if kind in self.rules else "ScheduleAnyway"
                spec["topologySpreadConstraints"] = [{**near, "maxSkew": 1, "whenUnsatisfiable": action}]
            elif kind in self.rules:
                terms: Json | list[Json] = {"nodeSelectorTerms": [fast]} if kind == "nodeAffinity" else [near]
                affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            else:
                term = {"preference": fast} if kind == "nodeAffinity" else {"podAffinityTerm": near}
                affinity[kind] = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, **term}]}
        body["metadata"]["labels"] = {"app": self.app}
        body["spec"] |= spec
        return body


# --- What there is ---------------------------------------------------------------------------------------------------


def cluster() -> list[Place]:
    """Return nodes in three zones, half of them with fast disks; three are tainted hard, six softly."""
    taints, sizes = {0: "NoSchedule", 3: "PreferNoSchedule", 5: "PreferNoSchedule"}, ((8, 8), (16, 16))
    disks = ("hdd", "ssd")
    return [
        Place(f"n{at:02}", "abc"[at % 3], disks[at // 6 % 2], taints.get(at % 8, ""), sizes[at // 3 % 2])
        for at in range(24)
    ]


def preferring(rng: random.Random, kind: str) -> Iterator[Asking]:
    """Yield three small pods of each app, for a cluster with much room. Most have a preference of one kind."""
    for at in range(3 * len(APPS)):
        app, mem = APPS[at % len(APPS)], rng.randint(1, 3)
        # Of two nodes that nobody likes, anti-affinity gives points to the one that fewer dislike.
        if at < len(APPS) and kind != "podAntiAffinity":
            yield Asking(f"{kind.lower()}-{at}", app, mem, tolerant=True)
        else:
            # Who is attracted by others does not attract others himself.
            own = "other" if kind == "podAffinity" else app
            yield Asking(f"{kind.lower()}-{at}", own, mem, prefers={kind: app} if kind in WISHES else {})


def mixed(rng: random.Random) -> Iterator[Asking]:
    """Yield pods that fill the cluster, with any of the rules and preferences."""
    for at in range(60):
        hard = {kind: rng.choice("xyz") for kind in WISHES if rng.random() < 0.12}
        soft = {kind: rng.choice("xyz") for kind in WISHES if kind not in hard and rng.random() < 0.2}
        mem, count = (0, rng.randint(1, 2)) if rng.random() < 0.2 else (rng.choice((2, 3, 5, 7, 8, 11, 16)), 0)
        zone = rng.choice("abbcd") if rng.random() < 0.15 else ""
        yield Asking(f"mixed-{at}", rng.choice("xyz"), mem, count, zone, rng.random() < 0.3, hard, soft)


# --- What the rules are ----------------------------------------------------------------------------------------------


@dataclass
class World:
    """Who is where, as seen by somebody who only knows the rules."""

    places: Sequence[Place]
    by_gpu: bool
    """A pod needs room on single GPUs. Otherwise the sums of a node suffice."""
    bound: list[tuple[Asking, Place]] = field(default_factory=list)
    free: dict[str, list[int]] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    possible: Counter[str] = field(default_factory=Counter)
    """The preferences that were met, and those that could have been where the pod was allowed, by kind."""

    def __post_init__(self) -> None:
        self.free = {place.name: list(place.sizes) for place in self.places}

    def count(self, app: str, **where: str) -> int:
        """Return how many pods of an app are in a zone, or on a node."""
        return sum(each.app == app and where.items() <= vars(place).items() for each, place in self.bound)

    def allowed(self, new: Asking) -> list[Place]:
        """Return the nodes to which a pod may go."""
        return [each for each in self.places if self._room(new, each) and self._follows(new, each)]

    def _room(self, new: Asking, place: Place) -> bool:
        if not self.by_gpu:
            here = [each for each, where in self.bound if where is place]
            mem, count = new.mem + sum(each.mem for each in here), new.count + sum(each.count for each in here)
            return mem <= sum(place.sizes) and count <= len(place.sizes)
        free = self.free[place.name]
        return max(free) >= new.mem and sum(map(int.__eq__, free, place.sizes)) >= new.count

    def _follows(self, new: Asking, place: Place) -> bool:
        near, apart = new.rules.get("podAffinity"), new.rules.get("podAntiAffinity")
        return (
            admits(new, place)
            and (place.taint != "NoSchedule" or new.tolerant)
            and (not near or self.count(near, zone=place.zone) > 0 or (near == new.app and not self.count(near)))
            and (not apart or not self.count(apart, name=place.name))
            and not any(where is place and each.rules.get("podAntiAffinity") == new.app for each, where in self.bound)
            and ("spread" not in new.rules or self._skew(new, place, new.rules["spread"]) <= 1)
        )

    def _skew(self, new: Asking, place: Place, app: str) -> int:
        counts = {each.zone: 0 for each in self.places if admits(new, each)}
        for each, where in self.bound:
            if each.app == app and admits(new, where):
                counts[where.zone] += 1
        return counts[place.zone] + (app == new.app) - min(counts.values())

    def _meets(self, new: Asking, place: Place, kind: str) -> bool:
        app = new.prefers.get(kind, "")
        return {
            "nodeAffinity": place.disk == "ssd",
            "podAffinity": self.count(app, zone=place.zone) > 0,
            "podAntiAffinity": not self.count(app, name=place.name),
            "spread": admits(new, place) and self._skew(new, place, app) <= (app == new.app),
            "taint": place.taint != "PreferNoSchedule" or new.tolerant,
        }[kind]

    def note(self, new: Asking, found: Json) -> None:
        """See that a pod is where it may be, or nowhere if there is no such place; count what it got."""
        allowed = {each.name: each for each in self.allowed(new)}
        name = found["spec"].get("nodeName")
        assert name in allowed if name else not allowed, f"{new} is on {name}, allowed: {allowed}; {self.bound}"
        if not name:
            self.pending.append(new.name)
            return
        for kind in new.prefers or ["taint"]:
            self.met[kind] += self._meets(new, allowed[name], kind)
            self.possible[kind] += any(self._meets(new, each, kind) for each in allowed.values())
        self.bound.append((new, allowed[name]))
        notes = found["metadata"].get("annotations", {})
        for gpu, shares in json.loads(notes.get(ALLOCATION, '{"0": {}}'))["0"].items():
            self.free[name][int(gpu)] -= shares


def admits(new: Asking, place: Place) -> bool:
    """Whether a pod's own selector and rules for nodes admit one."""
    return new.zone in {"", place.zone} and ("nodeAffinity" not in new.rules or place.disk == "ssd")


# --- On the real kube-scheduler --------------------------------------------------------------------------------------


async def scheduled(api: KubeApi, kind: str, world: World) -> World:
    """Have pods scheduled one after the other. Those that cannot be are deleted at once, all others at the end."""
    rng, made = random.Random(1), []  # noqa: S311 - repeatable
    async with session() as http:
        for new in mixed(rng) if kind == "mixed" else preferring(rng, kind):
            made += await create(http, api.url, [new.body()], api.token)
            found = await eventually(partial(settled, http, api, new.name), quiet_s=REAL_S)
            world.note(new, found)
            if not found["spec"].get("nodeName"):
                await delete(http, api.url, [made.pop()], api.token)
        await delete(http, api.url, made, api.token)
    return world


async def settled(http: aiohttp.ClientSession, api: KubeApi, name: str) -> Json:
    """Return a pod that is bound, or of which kube-scheduler has said that it has no place for it; else nothing."""
    url = f"{api.url}/api/v1/namespaces/default/pods/{name}"
    async with http.get(url, headers={"Authorization": f"Bearer {api.token}"}) as answer:
        found: Json = await answer.json()
    said = [each["status"] for each in found["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
    return found if found["spec"].get("nodeName") or said == ["False"] else {}


@pytest.mark.timeout(300)
def test_rules_hold_as_without_us_and_preferences_as_far_as_there_is_room(tmp_path: Path) -> None:
    """Where there is much room each preference is met as often, and the rules hold in a nearly full cluster, too."""
    if not binaries():
        pytest.skip("set KUBE_BIN to a folder with kube-scheduler, kube-apiserver and etcd to have pods scheduled")
    places, kinds = cluster(), (*WISHES, "taint", "mixed")
    worlds: dict[bool, dict[str, World]] = {}
    with KubeApi(tmp_path) as api:
        asyncio.run(api.add_nodes([each.body() for each in places]))
        with running(tmp_path, str(api.kubeconfig), "--vanished-grace", "0s") as extender:
            for with_us, url in {False: "", True: extender.url + PREFIX}.items():
                with api.scheduler(url):
                    worlds[with_us] = {
                        kind: asyncio.run(scheduled(api, kind, World(places, with_us))) for kind in kinds
                    }
    alone, ours = worlds[False], worlds[True]
    for kind in (*WISHES, "taint"):
        assert (ours[kind].pending, ours[kind].met) == ([], alone[kind].met), kind
        assert alone[kind].met == alone[kind].possible, kind
    assert alone["mixed"].pending
    assert ours["mixed"].pending
    assert ours["mixed"].met.total() >= 0.7 * ours["mixed"].possible.total()
