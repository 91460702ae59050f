"""The memory that processes use is attributed to the containers they run in, and to nobody else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import (
    WITHOUT_HOST_PID,
    AttributedUse,
    UseReading,
    attribute,
    blindness,
    used_by_processes,
)
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from tests.nodes import uuid

GPU = uuid(0)


def reading(*processes: tuple[int, int | None], used: int | None = None, gpu: str = GPU) -> GpuReading:
    """Return a GPU with these processes, each a PID and its MiB."""
    return GpuReading(gpu, tuple(GpuProcess(pid, mib) for pid, mib in processes), used)


def pod(uid: str, **containers: str) -> Pod:
    """Return a pod whose containers run under these IDs."""
    return Pod(uid, "default", f"name-of-{uid}", container_ids=containers)


def holding(
    pod_uid: str,
    container: str = "main",
    mib: int = 4096,
    api: Pod | None = None,
    gpus: Mapping[str, int] | None = None,
) -> ContainerGpus:
    granted = {GPU: mib} if gpus is None else gpus
    return ContainerGpus(pod_uid, container, granted, granted, pod=api)


def together(*held: ContainerGpus) -> tuple[ContainerGpus, ...]:
    """Return the containers of one pod, each with what all of them have."""
    total = sum(each.granted[GPU] for each in held)
    return tuple(ContainerGpus(each.pod_uid, each.container, each.granted, {GPU: total}, pod=each.pod) for each in held)


def parts(found: UseReading) -> Mapping[tuple[str, str], tuple[int, int | None]]:
    """Return what each container was granted and uses on the first GPU."""
    return {
        (use.pod_uid, use.container): (use.granted_mib, use.used_mib) for use in found.containers if use.uuid == GPU
    }


def only(found: UseReading) -> AttributedUse:
    (use,) = found.containers
    return use


# --- Whose a process is -----------------------------------------------------------------------------------------------


def test_a_process_belongs_to_the_container_whose_id_its_cgroup_names() -> None:
    api = pod("a", main="5ad9", side="77c0")
    found = attribute(
        [reading((1, 700), (2, 300), (3, 50), used=1100)],
        {1: CgroupOwner("a", "5ad9"), 2: CgroupOwner("a", "77c0"), 3: CgroupOwner("a", "5ad9")},
        together(holding("a", "main", 1024, api), holding("a", "side", 2048, api)),
        at=7.5,
    )
    assert parts(found) == {("a", "main"): (1024, 750), ("a", "side"): (2048, 300)}
    assert [use.pod for use in found.containers] == [api, api]
    assert (found.unattributed_mib, found.used_mib, found.at, found.blind) == ({GPU: 50}, {GPU: 1100}, 7.5, "")


def test_without_the_api_it_belongs_to_the_only_container_of_its_pod_that_holds_the_gpu() -> None:
    held = [holding("a"), holding("b", "other"), holding("a", "elsewhere", gpus={uuid(1): 1024})]
    found = attribute([reading((1, 700), used=700)], {1: CgroupOwner("a", "5ad9")}, held)
    assert parts(found) == {("a", "main"): (4096, 700), ("b", "other"): (4096, 0)}


def test_the_old_and_the_new_container_of_a_restart_are_one() -> None:
    """The API tells the ID of the new one, or still that of the old one; the old processes are not gone at once."""
    owners = {1: CgroupOwner("a", "01d0"), 2: CgroupOwner("a", "9e33")}
    for running in ("01d0", "9e33"):
        found = attribute([reading((1, 700), (2, 600), used=1300)], owners, [holding("a", api=pod("a", main=running))])
        assert parts(found) == {("a", "main"): (4096, 1300)}


def test_where_several_containers_hold_the_gpu_an_unknown_one_is_the_pods() -> None:
    """What the pod was given together is what it may use: nobody is said to use what it was not given."""
    api = pod("a", main="5ad9")
    found = attribute(
        [reading((1, 700), (2, 300), used=1000)],
        {1: CgroupOwner("a", "5ad9"), 2: CgroupOwner("a", "9e33")},
        together(holding("a", "main", 1024, api), holding("a", "side", 2048, api)),
    )
    assert parts(found) == {("a", "main"): (1024, 700), ("a", "side"): (2048, None), ("a", ""): (3072, 300)}
    assert not any(use.trespassing for use in found.containers)
    assert found.unattributed_mib == {GPU: 0}


def test_a_container_without_processes_is_unknown_while_the_pod_has_some_of_unknown_container() -> None:
    """A zero would be false: it may have been restarted just now, or its cgroup has an unknown shape."""
    api = pod("a", main="5ad9", side="77c0")
    for names in (("9e33", "9e33"), ("", "")):
        found = attribute(
            [reading((1, 700), (2, 300), used=1000)],
            {pid: CgroupOwner("a", name) for pid, name in enumerate(names, start=1)},
            together(holding("a", "main", 1024, api), holding("a", "side", 2048, api)),
        )
        assert parts(found) == {("a", "main"): (1024, None), ("a", "side"): (2048, None), ("a", ""): (3072, 1000)}
        assert {use.sm_percent for use in found.containers if use.container} == {None}


def test_without_the_api_and_with_several_containers_only_the_pods_use_is_known() -> None:
    held = together(holding("a", "main", 1024), holding("a", "side", 2048))
    idle = attribute([reading(used=3)], {}, held)
    assert parts(idle) == {("a", "main"): (1024, 0), ("a", "side"): (2048, 0)}
    busy = attribute([reading((1, 700), used=703)], {1: CgroupOwner("a", "5ad9")}, held)
    assert parts(busy) == {("a", "main"): (1024, None), ("a", "side"): (2048, None), ("a", ""): (3072, 700)}


def test_a_pod_that_was_not_given_the_gpu_trespasses_and_is_named() -> None:
    stranger, elsewhere = pod("b"), holding("c", gpus={uuid(1): 1024})
    found = attribute(
        [reading((1, 700), (2, 200), used=900), reading(gpu=uuid(1), used=0)],
        {1: CgroupOwner("b", "5ad9"), 2: CgroupOwner("c", "77c0")},
        [holding("a"), elsewhere],
        pods=[stranger],
    )
    assert parts(found) == {("a", "main"): (4096, 0), ("b", ""): (0, 700), ("c", ""): (0, 200)}
    by_pod = {(use.pod_uid, use.uuid): use for use in found.containers}
    assert [name for name, use in by_pod.items() if use.trespassing] == [("b", GPU), ("c", GPU)]
    assert (by_pod["b", GPU].pod, by_pod["b", GPU].holding) == (stranger, None)
    assert by_pod["c", uuid(1)].holding is elsewhere


def test_a_pod_that_is_excused_does_not_trespass_and_its_memory_is_nobodys() -> None:
    owners = {1: CgroupOwner("b", "5ad9"), 2: CgroupOwner("c", "77c0")}
    found = attribute([reading((1, 700), (2, 200), used=900)], owners, [holding("a")], excused={"b"})
    assert parts(found) == {("a", "main"): (4096, 0), ("c", ""): (0, 200)}
    assert (found.left_out, found.unattributed_mib) == (frozenset({"b"}), {GPU: 700})


def test_a_container_of_a_pod_that_was_given_the_gpu_trespasses_by_name() -> None:
    """A sidecar whose image asks for all GPUs."""
    api = pod("a", main="5ad9", side="77c0")
    found = attribute(
        [reading((1, 700), (2, 300))],
        {1: CgroupOwner("a", "5ad9"), 2: CgroupOwner("a", "77c0")},
        [holding("a", api=api)],
    )
    assert parts(found) == {("a", "main"): (4096, 700), ("a", "side"): (0, 300)}


def test_nobody_trespasses_while_a_grant_may_be_missing_in_the_records() -> None:
    """The kubelet writes its checkpoint after it has the answer, and a damaged one may not be readable for long."""
    owners = {1: CgroupOwner("a"), 2: CgroupOwner("b")}
    found = attribute([reading((1, 700), (2, 300), used=1100)], owners, [holding("a")], complete=False)
    assert (parts(found), found.unattributed_mib) == ({("a", "main"): (4096, 700)}, {GPU: 400})


def test_a_static_pod_that_holds_no_gpu_is_named_by_its_mirror() -> None:
    mirror = Pod("uid-of-the-mirror", "default", "monitor-node-a", static_uid="6a1d")
    found = attribute([reading((1, 300))], {1: CgroupOwner("6a1d", "5ad9")}, [], pods=[mirror])
    assert only(found).pod is mirror


def test_what_a_container_may_use_at_most_goes_with_its_use() -> None:
    one = replace(holding("a", "one", 1024), limits={GPU: 3072}, pod_granted={GPU: 3072})
    two = replace(holding("a", "two", 2048), limits={GPU: 1024}, pod_granted={GPU: 3072})
    api = pod("a", one="5ad9")
    found = attribute(
        [reading((1, 1500), (2, 300), used=1800)],
        {1: CgroupOwner("a", "5ad9"), 2: CgroupOwner("a", "none of them")},
        [replace(one, pod=api), replace(two, pod=api)],
    )
    allowed = {use.container: (use.limit_mib, use.allowed_mib, use.borrowed_mib) for use in found.containers}
    assert allowed == {"one": (3072, 3072, 476), "two": (1024, 1024, 0), "": (5120, 5120, 0)}
    assert {use.place for use in found.containers} == {("a", name, GPU) for name in allowed}


@pytest.mark.parametrize("owners", [{}, {1: None}], ids=["it is gone", "it runs in no pod"])
def test_a_process_of_no_pod_is_unattributed(owners: Mapping[int, CgroupOwner | None]) -> None:
    found = attribute([reading((1, 700), used=705)], owners, [holding("a")])
    assert (parts(found), found.unattributed_mib) == ({("a", "main"): (4096, 0)}, {GPU: 705})


def test_an_mps_servers_memory_is_nobodys() -> None:
    """Not even where the server runs in a pod: its DaemonSet holds no GPU, and does not trespass."""
    owners = {1: CgroupOwner("a", "5ad9"), 9: CgroupOwner("mps", "77c0")}
    found = attribute([reading((1, 700), (9, 60), used=765)], owners, [holding("a")], mps_servers={9})
    assert (parts(found), found.unattributed_mib) == ({("a", "main"): (4096, 700)}, {GPU: 65})


# --- What is not known ------------------------------------------------------------------------------------------------


def test_where_the_driver_lists_no_processes_nothing_is_known_of_that_gpu_alone() -> None:
    held = [holding("a", gpus={GPU: 1024, uuid(1): 1024})]
    found = attribute(
        [GpuReading(GPU, None, 900), reading((1, 300), gpu=uuid(1), used=300)], {1: CgroupOwner("a", "5ad9")}, held
    )
    assert [use.used_mib for use in found.containers] == [None, 300]
    assert (found.used_mib, found.unattributed_mib) == ({GPU: 900, uuid(1): 300}, {uuid(1): 0})


def test_a_gpu_that_was_not_read_is_not_known() -> None:
    found = attribute([], {}, [holding("a")])
    assert (parts(found), found.used_mib, found.unattributed_mib) == ({("a", "main"): (4096, None)}, {}, {})


def test_a_process_of_unknown_size_makes_its_containers_use_unknown() -> None:
    owners = {1: CgroupOwner("a"), 2: CgroupOwner("a"), 3: CgroupOwner("b")}
    found = attribute([reading((1, 700), (2, None), (3, 5), used=999)], owners, [holding("a"), holding("b")])
    assert parts(found) == {("a", "main"): (4096, None), ("b", "main"): (4096, 5)}
    assert found.unattributed_mib == {}


def test_a_blind_agent_says_that_it_does_not_know_and_not_zero() -> None:
    """The processes that it does see are its own or of another namespace, and tell nothing about pods."""
    found = attribute([reading((1, 700), used=900)], {1: CgroupOwner("a", "5ad9")}, [holding("a")], blind="why")
    assert parts(found) == {("a", "main"): (4096, None)}
    assert (found.used_mib, found.unattributed_mib, found.blind) == ({GPU: 900}, {}, "why")


def test_what_the_driver_counts_by_cgroup_goes_before_the_processes() -> None:
    """It is known to an agent that sees no processes as well."""
    held, measured = [holding("a"), holding("b")], {("a", "main", GPU): 650}
    owners = {1: CgroupOwner("a"), 2: CgroupOwner("b")}
    seen = attribute([reading((1, 700), (2, 80), used=780)], owners, held, measured=measured)
    assert parts(seen) == {("a", "main"): (4096, 650), ("b", "main"): (4096, 80)}
    blind = attribute([reading(used=780)], {}, held, measured=measured, blind="why")
    assert parts(blind) == {("a", "main"): (4096, 650), ("b", "main"): (4096, None)}


def test_memory_that_two_processes_share_makes_no_negative_rest() -> None:
    """NVML may count memory that is shared over IPC once for each process."""
    found = attribute([reading((1, 700), (2, 700), used=900)], dict.fromkeys((1, 2), CgroupOwner("a")), [holding("a")])
    assert (parts(found), found.unattributed_mib) == ({("a", "main"): (4096, 1400)}, {GPU: 0})


@pytest.mark.parametrize(
    ("percents", "expected"), [([30, 25], 55), ([80, 80], 100), ([None, 20], None), ([0], 0), ([], 0)]
)
def test_the_use_of_multiprocessors_adds_up(percents: list[int | None], expected: int | None) -> None:
    processes = tuple(GpuProcess(pid, 10, percent) for pid, percent in enumerate(percents))
    owners = {process.pid: CgroupOwner("a") for process in processes}
    assert only(attribute([GpuReading(GPU, processes)], owners, [holding("a")])).sm_percent == expected


# --- Blind or zero ----------------------------------------------------------------------------------------------------

SOMEBODY = {1: CgroupOwner("a")}


@pytest.mark.parametrize(
    ("host_pids", "readings", "owners", "blind"),
    [
        (True, [reading(used=5000)], {}, False),  # memory without a process: of nobody that the kernel knows
        (False, [reading(used=5000)], {}, True),
        (False, [reading((1, 700), used=5000)], SOMEBODY, True),  # a PID of another namespace, as drivers of 2021 tell
        (None, [reading(used=5000)], {}, True),
        (None, [reading(used=5000), reading((1, 700), used=700, gpu=uuid(1))], SOMEBODY, False),
        (None, [reading(used=5000), reading((1, 700), used=700, gpu=uuid(1))], {1: None}, True),
        (None, [reading(used=3)], {}, False),  # an idle GPU
        (None, [reading(), GpuReading(GPU, None, 5000)], {}, False),
        (None, [reading((1, 700), used=5000)], {1: None}, False),
        (None, [], {}, False),
    ],
)
def test_blind_is_told_from_zero(
    host_pids: bool | None,  # noqa: FBT001 - pytest's
    readings: Sequence[GpuReading],
    owners: Mapping[int, CgroupOwner | None],
    blind: bool,  # noqa: FBT001 - pytest's
) -> None:
    assert blindness(readings, owners, host_pids=host_pids) == (WITHOUT_HOST_PID if blind else "")


# --- Any node ---------------------------------------------------------------------------------------------------------

_PODS = st.sampled_from("abc")
_IDS = st.sampled_from(["", "id-1", "id-2", "id-3"])
_NAMES = st.sampled_from(["main", "side", "third"])
_UUIDS = st.sampled_from([uuid(0), uuid(1)])
_OWNERS = st.dictionaries(
    st.integers(1, 12), st.none() | st.builds(CgroupOwner, _PODS, _IDS), max_size=12
)  # PIDs without an entry are gone
_READINGS = st.lists(
    st.builds(
        GpuReading,
        _UUIDS,
        st.none()
        | st.lists(
            st.builds(GpuProcess, st.integers(1, 12), st.integers(0, 9000)), max_size=12, unique_by=lambda p: p.pid
        ).map(tuple),
        st.none() | st.integers(0, 80_000),
    ),
    max_size=2,
    unique_by=lambda each: each.uuid,
)


@st.composite
def _holdings(draw: st.DrawFn) -> tuple[ContainerGpus, ...]:
    held = draw(st.dictionaries(st.tuples(_PODS, _NAMES), st.dictionaries(_UUIDS, st.integers(1, 9000), min_size=1)))
    api = {
        uid: Pod(uid, "default", uid, container_ids=draw(st.dictionaries(_NAMES, _IDS.filter(bool))))
        for uid in draw(st.sets(_PODS))
    }
    return tuple(
        ContainerGpus(
            uid,
            name,
            granted,
            {gpu: sum(other.get(gpu, 0) for (pod_uid, _), other in held.items() if pod_uid == uid) for gpu in granted},
            pod=api.get(uid),
        )
        for (uid, name), granted in held.items()
    )


@given(_READINGS, _OWNERS, _holdings(), st.sets(st.integers(1, 12), max_size=2))
def test_nothing_is_counted_twice_and_nothing_is_lost(
    readings: list[GpuReading],
    owners: dict[int, CgroupOwner | None],
    held: tuple[ContainerGpus, ...],
    servers: set[int],
) -> None:
    found = attribute(readings, owners, held, mps_servers=servers)
    places = [(use.pod_uid, use.container, use.uuid) for use in found.containers]
    assert len(set(places)) == len(places)
    assert {(each.pod_uid, each.container, gpu) for each in held for gpu in each.granted} <= set(places)
    for each in readings:
        uses = [use for use in found.containers if use.uuid == each.uuid]
        if each.processes is None:
            assert all(use.used_mib is None for use in uses)
            assert each.uuid not in found.unattributed_mib
            continue
        of_pods = [p for p in each.processes if owners.get(p.pid) is not None and p.pid not in servers]
        for uid in "abc":
            mine = [p for p in of_pods if (owner := owners[p.pid]) is not None and owner.pod_uid == uid]
            own = [use for use in uses if use.pod_uid == uid]
            assert sum(use.used_mib or 0 for use in own) == sum(p.used_mib or 0 for p in mine)
            # A pod that holds the GPU trespasses only with a container that the API names.
            if any(each.uuid in h.granted and h.pod_uid == uid for h in held):
                assert all(use.container for use in own if use.trespassing)
        if each.used_mib is not None and each.uuid in found.unattributed_mib:
            total = sum(use.used_mib or 0 for use in uses)
            assert found.unattributed_mib[each.uuid] == max(0, each.used_mib - total)


def test_of_the_kernels_count_and_the_processes_the_larger_is_the_use() -> None:
    """Memory that the kernel moved out of the GPU and back is not counted in the container's cgroup any more."""
    by_kernel = [replace(holding(uid), enforcement=Enforcement.DMEM) for uid in "ab"]
    measured, owners = {("a", "main", GPU): 650, ("b", "main", GPU): 90}, {1: CgroupOwner("a"), 2: CgroupOwner("b")}
    seen = attribute([reading((1, 700), (2, 80), used=790)], owners, by_kernel, measured=measured)
    assert parts(seen) == {("a", "main"): (4096, 700), ("b", "main"): (4096, 90)}
    blind = attribute([reading(used=780)], {}, by_kernel, measured=measured, blind="why")
    assert parts(blind) == {("a", "main"): (4096, 650), ("b", "main"): (4096, 90)}


def test_the_processes_of_one_start_of_a_container_are_added_up() -> None:
    mine, other = CgroupOwner("a", "5ad9"), CgroupOwner("a", "77")
    owners = {1: mine, 2: mine, 3: other, 4: None}
    readings = [reading((1, 700), (2, 80), (3, 5), (4, 6), used=791), GpuReading("GPU-other", None, 9)]
    assert used_by_processes(readings, owners, GPU, mine) == 780
    assert used_by_processes(readings, owners, GPU, CgroupOwner("b")) is None
    assert used_by_processes(readings, owners, "GPU-other", mine) is None
    assert used_by_processes([reading((1, None), (2, 80), used=80)], owners, GPU, mine) is None
