"""Incidents are recorded once for each trouble, a bounded number of them, with the GPUs and containers concerned."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from gpu_device_plugin.features.history.contract import Decision, IncidentKind, IncidentProcess, IncidentSummary
from gpu_device_plugin.features.history.rules.incidents import (
    MOST_INCIDENTS,
    RecentIncidents,
    Trigger,
    concerned,
    deaths,
    is_name,
    lately,
    making_room,
    processes_on,
    summary,
    use_of,
)
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeUse
from gpu_device_plugin.model.gpus import Gpu, Inventory, MigInstance
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import ContainerEnd, Pod
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from gpu_device_plugin.model.times import rfc3339
from tests.nodes import inventory

SHARES = Shares(1024).with_inventory(inventory(16, 16))
AT_S = 1_795_867_936.7
POD = Pod("u", "team", "web")
MIN = 60.0


def xid(gpu: int = 0) -> Trigger:
    return Trigger(IncidentKind.XID, "XID 31", (f"GPU-{gpu}",))


def death(name: str = "main", pod: Pod = POD) -> Trigger:
    return Trigger(IncidentKind.CONTAINER_DIED, "it died", ("GPU-0",), pod, name)


def recorded(*happenings: tuple[float, Trigger]) -> list[str]:
    """Return the name of the record of each, on a machine that is up for days; the n-th would be new as n."""
    known, names = RecentIncidents(), []
    for number, (at, trigger) in enumerate(happenings):
        known, name = known.after(trigger, str(number), 1e6 + at)
        names.append(name)
    return names


# --- Which are recorded -----------------------------------------------------------------------------------------------


def test_a_storm_of_one_trouble_is_one_record() -> None:
    assert recorded(*((second, xid()) for second in range(600))) == ["0"] * 600


def test_the_same_trouble_is_recorded_again_after_a_quiet_time_and_after_an_hour() -> None:
    assert recorded((0, xid()), (9 * MIN, xid()), (18 * MIN, xid()), (28 * MIN, xid())) == ["0", "0", "0", "3"]
    assert recorded(*((7.5 * MIN * n, xid()) for n in range(10))) == ["0"] * 8 + ["8"] * 2


def test_troubles_of_other_gpus_kinds_and_containers_are_others() -> None:
    failed = replace(xid(), kind=IncidentKind.GPU_FAILED)
    others = [xid(0), xid(1), failed, death(), death("side"), death(pod=replace(POD, uid="v"))]
    assert recorded(*((0, each) for each in others)) == list("012345")


def test_a_gpu_that_takes_many_containers_with_it_does_not_fill_the_node() -> None:
    killed = replace(death(), kind=IncidentKind.OUT_OF_MEMORY)
    crowd = [(n, replace(killed if n % 2 else death(), pod=replace(POD, uid=str(n)))) for n in range(100)]
    assert recorded(*crowd) == [*map(str, range(4)), *[""] * 96]
    assert recorded(*crowd[:5], (8 * MIN, crowd[0][1]), (11 * MIN, xid()))[-3:] == ["", "0", "6"]
    failing = [
        (n, replace(xid(n), kind=kind)) for n in range(4) for kind in (IncidentKind.XID, IncidentKind.GPU_FAILED)
    ]
    assert recorded(*crowd[:9], *((9 + n, each) for n, each in failing))[9:] == ["9", "10", "11", "12", *[""] * 4]


def test_after_ten_minutes_there_is_room_for_others() -> None:
    full = [(0.0, xid(n)) for n in range(8)]
    assert recorded(*full, (599, xid(8)), (600, xid(9)))[8:] == ["", "9"]


def failing(namespace: str, number: int) -> Trigger:
    """Return the death of the n-th pod of a Job."""
    return death(pod=Pod(f"{namespace}-{number}", namespace, f"job-{number}"))


def recorded_of(*happenings: tuple[float, Trigger]) -> dict[str, int]:
    """Return how many records each namespace got, of these in the order of time; of GPUs under no name."""
    ordered, found = sorted(happenings, key=lambda each: each[0]), Counter[str]()
    for number, name in enumerate(recorded(*ordered)):
        pod = ordered[number][1].pod
        found["" if pod is None else pod.namespace] += name == str(number)
    return dict(found)


def test_a_job_that_fails_again_and_again_leaves_records_to_other_namespaces() -> None:
    """A pod of the Job dies every ten seconds for two hours, and one of others is killed every 20."""
    job = [(10.0 * n, failing("job", n)) for n in range(720)]
    others = [(605.0 + 20 * n, failing("other", n)) for n in range(330)]
    found = recorded_of(*job, *others)
    assert found["other"] >= 20
    assert found["job"] + found["other"] == 12 * 4
    assert recorded_of(*job) == {"job": 12 * 4}, "places that nobody else wants are not kept"


def test_more_namespaces_than_there_are_places_take_turns() -> None:
    crowd = [(10.0 * n + of, failing(f"ns{of}", n)) for n in range(360) for of in range(6)]
    found = recorded_of(*crowd)
    assert sum(found.values()) == 24
    assert set(found.values()) == {4}


def test_containers_that_die_or_are_evicted_leave_places_for_faults_of_gpus() -> None:
    evicted = [(float(n), replace(failing(f"ns{n}", n), kind=IncidentKind.OVER_USE_EVICTION)) for n in range(20)]
    found = recorded_of(*evicted, *((30.0 + gpu, xid(gpu)) for gpu in range(8)))
    assert (sum(found.values()), found[""]) == (8, 4)


@drawn(st.lists(st.tuples(st.floats(0, 4000), st.integers(0, 12)), max_size=40))
def test_no_more_than_eight_are_made_in_ten_minutes(happenings: list[tuple[float, int]]) -> None:
    ordered = sorted(happenings)
    names = recorded(*((at, xid(gpu)) for at, gpu in ordered))
    made = [at for number, (at, _) in enumerate(ordered) if names[number] == str(number)]
    assert all(sum(0 <= later - at < 600 for later in made) <= 8 for at in made)


def about(name: str, namespace: str = "", uuid: str = "GPU-0") -> IncidentSummary:
    return IncidentSummary(name, "", IncidentKind.XID, "", uuid=uuid, namespace=namespace)


def room(names: Iterable[str], new: str) -> tuple[str, ...]:
    return making_room({name: about(name) for name in names}, about(new))


@pytest.mark.parametrize("names", [[], ["a"], [f"{n:02}" for n in range(31)]])
def test_nothing_makes_room_while_there_is_some(names: list[str]) -> None:
    assert room(names, "new") == ()


def test_the_oldest_make_room() -> None:
    names = [f"{n:02}" for n in range(34)]
    assert room(reversed(names), "99") == ("00", "01", "02")
    assert room(names[:MOST_INCIDENTS], "31") == ()
    assert room(names, "-1") == ("00", "01", "02"), "a clock that was set back does not remove the newest"
    assert making_room({**{name: about(name) for name in names}, "00": None}, about("99"))[0] == "00", "a damaged one"


def kept(*happenings: IncidentSummary) -> Counter[str]:
    """Return whose records are left after these, one after the other; those of GPUs by UUID."""
    known: dict[str, IncidentSummary | None] = {}
    for number, each in enumerate(happenings):
        new = replace(each, name=f"{number:06}")
        for old in making_room(known, new):
            del known[old]
        known[new.name] = new
    assert len(known) <= MOST_INCIDENTS
    return Counter(each.namespace or each.uuid for each in known.values() if each is not None)


def test_a_job_that_fails_for_days_pushes_out_neither_faults_of_gpus_nor_records_of_other_namespaces() -> None:
    job, gpu, other = about("", "job"), about(""), about("", "other")
    assert kept(gpu, other, other, *[job] * 1000) == {"GPU-0": 1, "other": 2, "job": 29}
    assert kept(*[gpu] * 40, *[other] * 3, *[job] * 1000) == {"GPU-0": 16, "other": 3, "job": 13}


def test_a_gpu_that_fails_for_days_pushes_out_neither_others_nor_records_of_containers() -> None:
    gpu, neighbour, other = about(""), about("", uuid="GPU-1"), about("", "other")
    assert kept(neighbour, *[other] * 40, *[gpu] * 1000) == {"GPU-1": 1, "other": 16, "GPU-0": 15}


# --- Names ------------------------------------------------------------------------------------------------------------


def test_an_incident_of_a_gpu_is_named_by_time_kind_and_gpu() -> None:
    found = summary(xid(1), SHARES, AT_S, ())
    at = "2026-11-28T12:12:16Z"
    assert found == IncidentSummary("20261128-121216-xid-gpu1", at, IncidentKind.XID, "XID 31", 1, "GPU-1")
    assert is_name(found.name)
    assert len(summary(replace(xid(), sentence="x" * 9999), SHARES, AT_S, ()).sentence) == 1000


def test_an_incident_of_a_container_says_whose_and_names_are_not_used_twice() -> None:
    name = "20261128-121216-container-died-gpu0"
    found = summary(death(), SHARES, AT_S, ())
    assert (found.name, found.namespace, found.pod, found.container) == (name, "team", "web", "main")
    assert summary(death(), SHARES, AT_S, {name}).name == f"{name}-2"
    assert summary(death(), SHARES, AT_S, {name, f"{name}-2"}).name == f"{name}-3"


def test_a_gpu_without_a_position_and_no_gpu_at_all_have_names_too() -> None:
    found = summary(xid(9), SHARES, AT_S, ())
    assert (found.name, found.gpu, found.uuid) == ("20261128-121216-xid", None, "GPU-9")
    assert summary(replace(xid(), uuids=()), SHARES, AT_S, ()).uuid == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "20261128-121216-",
        "20261128-121216-xid/..",
        "20261128-121216-Xid",
        "20261128-121216-x\n",
        "x.json",
        "20261128-121216-" + "x" * 65,
        "\u0662\u0660261128-121216-xid",
    ],
)
def test_other_names_are_no_names(name: str) -> None:
    assert not is_name(name)


def test_a_gpu_in_mig_mode_stands_for_its_instances() -> None:
    card = Gpu("GPU-7", 0, "H100", 81_920, mig=True)
    inside = [Gpu(f"MIG-{n}", 0, "H100", 9_728, instance=MigInstance("GPU-7", n, "1g.10gb", n, 0)) for n in (1, 2)]
    shares = Shares(1024).with_inventory(Inventory((card, *inside)), mig=MigMode.SHARE)
    assert concerned(["GPU-7"], shares) == {"MIG-1", "MIG-2"}
    assert concerned(["MIG-2"], shares) == {"MIG-2"}
    assert summary(replace(xid(), uuids=("GPU-7",)), shares, AT_S, ()).name == "20261128-121216-xid-gpu0"


# --- What a record has ------------------------------------------------------------------------------------------------


def test_the_use_of_other_gpus_and_of_those_who_use_least_is_left_out() -> None:
    parts = tuple(
        ContainerUse("n", pod, "main", gpu, 1, used)
        for pod, gpu, used in (("a", 0, 5), ("b", 0, None), ("c", 0, 9), ("d", 1, 99))
    )
    use = NodeUse("now", {0: GpuUse(14), 1: GpuUse(99)}, parts, "", 4)
    assert use_of(use, {0}, 2) == NodeUse("now", {0: GpuUse(14)}, (parts[0], parts[2]), "", 5)
    assert use_of(use, {1}, 2).parts == parts[3:]


def test_processes_are_told_with_their_pods_and_without_anything_else_of_them() -> None:
    ident = "ab" * 32
    pod = replace(POD, container_ids={"main": ident})
    holders = [
        ContainerGpus("u", "main", {"GPU-0": 4096}, pod=pod),
        ContainerGpus("u", "side", {"GPU-0": 4096}, pod=pod),
        ContainerGpus("v", "only", {"GPU-0": 1024}),
        ContainerGpus("u", "main", {"GPU-1": 4096}, pod=pod),
    ]
    readings = [
        GpuReading("GPU-8", (GpuProcess(1, 99, 1),)),
        GpuReading("GPU-1", (GpuProcess(1, 99, 1),)),
        GpuReading("GPU-0", tuple(GpuProcess(pid, 10 * pid or None, pid) for pid in (1, 2, 3, 4, 0))),
        GpuReading("GPU-0", None),
    ]
    owners = {1: CgroupOwner("u", ident), 2: CgroupOwner("v", "cd" * 32), 3: CgroupOwner("w"), 4: None}
    found = processes_on({"GPU-0", "GPU-8"}, readings, owners, holders, SHARES, most=9)
    assert found == (
        IncidentProcess(0, 4, "", "", "", 40, 4),
        IncidentProcess(0, 3, "", "w", "", 30, 3),
        IncidentProcess(0, 2, "", "v", "only", 20, 2),
        IncidentProcess(0, 1, "team", "web", "main", 10, 1),
        IncidentProcess(0, 0, "", "", "", None, 0),
    )
    assert processes_on({"GPU-0"}, readings, owners, holders, SHARES, most=2) == found[:2]


def test_the_processes_of_a_full_node_are_found_without_looking_at_every_container_for_each() -> None:
    class Counted(dict[str, int]):
        looks = 0

        def __contains__(self, key: object) -> bool:
            Counted.looks += 1
            return super().__contains__(key)

    holders = [ContainerGpus(f"u{n}", "main", Counted({"GPU-0": 1})) for n in range(300)]
    readings = [GpuReading("GPU-0", tuple(GpuProcess(n, n) for n in range(300)), 1)]
    found = processes_on({"GPU-0"}, readings, {n: CgroupOwner(f"u{n}") for n in range(300)}, holders, SHARES, most=300)
    assert {(each.pid, each.pod, each.container) for each in found} == {(n, f"u{n}", "main") for n in range(300)}
    assert Counted.looks <= len(holders)


def test_decisions_of_the_time_before_are_kept() -> None:
    decisions = [Decision(rfc3339(AT_S - ago), str(ago)) for ago in (15 * MIN + 2, 15 * MIN - 2, 0)]
    assert lately([Decision("nonsense", "x"), *decisions], AT_S) == tuple(decisions[1:])


# --- What happens to containers ---------------------------------------------------------------------------------------

STARTED = 1_000_000.5


def of(pod_uid: str, container: str) -> tuple[str, ...]:
    return {("u", "main"): ("GPU-1", "GPU-0"), ("static", "main"): ("GPU-0",)}.get((pod_uid, container), ())


def ended(code: int = 1, reason: str = "Error", at_s: float = STARTED + 5, **fields: object) -> Pod:
    return replace(POD, ends={"main": ContainerEnd(code, reason, rfc3339(at_s))}, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (POD, ended(), "container main ended with exit code 1 (Error)"),
        (None, ended(), "container main ended with exit code 1 (Error)"),
        (POD, ended(139, ""), "container main ended with exit code 139 (no reason)"),
        (
            POD,
            ended(137, "OOMKilled"),
            "container main was killed for lack of main memory, at its memory limit or its node's",
        ),
        (
            POD,
            ended(137, "OOMKilled", deleting=True),
            "container main was killed for lack of main memory, at its memory limit or its node's",
        ),
        (ended(), ended(at_s=STARTED + 9), "container main ended with exit code 1 (Error)"),
        (POD, ended(static_uid="static"), "container main ended with exit code 1 (Error)"),
        # Times of the API have whole seconds.
        (POD, ended(at_s=STARTED), "container main ended with exit code 1 (Error)"),
        (
            POD,
            replace(ended(), ends={"other": ended().ends["main"], **ended().ends}),
            "container main ended with exit code 1 (Error)",
        ),
        (ended(), ended(), None),
        (POD, ended(0, "Completed"), None),
        (POD, ended(143, deleting=True), None),
        (POD, ended(at_s=STARTED - 5), None),
        (POD, replace(ended(), ends={"main": ContainerEnd(1, "Error", "")}), None),
        (POD, replace(ended(), ends={"other": ended().ends["main"]}), None),
        (POD, replace(ended(), ends={"side": ended().ends["main"]}), None),
    ],
)
def test_a_container_on_a_gpu_that_died_is_found_once(before: Pod | None, now: Pod, found: str | None) -> None:
    triggers = list(deaths({} if before is None else {"u": before}, {"u": now}, STARTED, of))
    assert [trigger.sentence for trigger in triggers] == ([] if found is None else [found])
    assert all(trigger.container == "main" and trigger.pod is now for trigger in triggers)


def test_a_death_has_the_gpus_of_its_container_in_order() -> None:
    (trigger,) = deaths({}, {"u": ended()}, STARTED, of)
    assert (trigger.kind, trigger.uuids) == (IncidentKind.CONTAINER_DIED, ("GPU-0", "GPU-1"))
    (trigger,) = deaths({}, {"u": ended(137, "OOMKilled")}, STARTED, of)
    assert trigger.kind is IncidentKind.OUT_OF_MEMORY
