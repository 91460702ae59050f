"""The ring has the values of the last steps, aligned, whatever was missed, and never more than there is room for."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.history.contract import STEPS, ContainerHistory, GpuHistory, NodeHistory
from gpu_device_plugin.features.history.rules.ring import (
    ROOM,
    GpuSample,
    Ring,
    Selection,
    pcie_percent,
)
from gpu_device_plugin.features.use.rules.process_use import AttributedUse
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.gpus import Gpu, Inventory, MigInstance
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.shares import SharedGpu, Shares
from gpu_device_plugin.model.telemetry import GpuTelemetry

STEP_S = 15.0
CONTAINER_BYTES = 4
"""Of one container in one step."""
H200_MIB = 143_771
"""More than 16 bits have, so that memory is kept in units of 3 MiB."""
GPUS = tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", H200_MIB if n else 15_360) for n in range(3))
SHARED = Shares(1024).with_inventory(Inventory(GPUS)).gpus


def using(
    pod: str, gpu: int = 0, used: int | None = 100, *, sm: int | None = 7, namespace: str = "team"
) -> AttributedUse:
    return AttributedUse(pod, "main", GPUS[gpu].uuid, 1024, used, sm, pod=Pod(pod, namespace, f"{pod}-name"))


def size(ring: Ring) -> int:
    """Return the bytes of all values."""
    rows = [row.columns for table in (ring._gpus.rows, ring._containers.rows) for row in table.values()]
    return sum(len(codes) * codes.itemsize for columns in rows for codes in columns.values())


def all_of(selection: Selection | None, epoch: float = 0.0) -> NodeHistory:
    assert selection is not None
    containers = sorted(selection.containers(), key=lambda each: (each.gpu, each.namespace, each.pod))
    return selection.history(epoch, containers)


def of_gpus(ring: Ring, *gpus: int, last_s: float | None = None) -> NodeHistory:
    return all_of(ring.select(uuids=[GPUS[gpu].uuid for gpu in gpus], last_s=last_s))


def ticked(*steps: tuple[int, list[AttributedUse]], ring: Ring | None = None) -> Ring:
    ring = Ring(steps=4) if ring is None else ring
    for step, uses in steps:
        ring.tick(STEP_S * step + 7, [GpuSample(each) for each in SHARED], uses, {})
    return ring


# --- One figure after the other ---------------------------------------------------------------------------------------


def test_a_gpu_and_a_container_have_their_values_by_step() -> None:
    ring = Ring()
    telemetry = [
        GpuTelemetry(
            GPUS[1].uuid,
            temperature_c=61,
            power_mw=699_500,
            throttle=0x24,
            sm_percent=90,
            ecc_corrected=70_000,
            ecc_uncorrected=2,
            nvlink_errors=200_000,
        ),
        GpuTelemetry(GPUS[1].uuid),
    ]
    uses = [using("a", 1, 30_000), replace(using("a", 1, None, sm=None), granted_mib=2048, limit_mib=4096)]
    for step, (condition, use) in enumerate(zip(telemetry, uses, strict=True)):
        sample = GpuSample(SHARED[1], 40_001 if step == 0 else None, condition, 12 if step == 0 else None)
        ring.tick(STEP_S * (step + 100) + 7.5, [sample], [use], {("a", "main"): 33} if step == 0 else {})
    assert of_gpus(ring, 1) == NodeHistory(
        "1970-01-01T00:25:22Z",
        STEP_S,
        (
            GpuHistory(
                1,
                "GPU-1",
                H200_MIB,
                (40_002, None),  # in units of 3 MiB
                (90, None),
                (700, None),
                (61, None),
                (0x24, None),
                (12, None),
                (70_002, None),
                (200_000, None),
                telemetry[1],
            ),
        ),
        (ContainerHistory("team", "a-name", "main", 1, 2048, 4096, (30_000, None), (7, None), (33, None)),),
    )


@given(st.integers(1, 1 << 21), st.integers(0, 1 << 21))
def test_memory_is_right_within_half_a_unit(total_mib: int, used_mib: int) -> None:
    used_mib = min(used_mib, total_mib)
    ring, shared = Ring(), replace(SHARED[0], gpu=Gpu("GPU-0", 0, "any", total_mib))
    ring.tick(0, [GpuSample(shared, used_mib)], [], {})
    ((found,),) = (gpu.used_mib for gpu in all_of(ring.select()).gpus)
    assert found is not None
    assert abs(found - used_mib) <= -(-total_mib // 65_534) / 2


def test_values_beyond_a_code_are_cut_and_never_unknown() -> None:
    ring = Ring()
    telemetry = GpuTelemetry("GPU-0", temperature_c=-5, power_mw=90_000_000, sm_percent=300)
    ring.tick(0, [GpuSample(SHARED[0], 1 << 30, telemetry)], [], {})
    (gpu,) = all_of(ring.select()).gpus
    assert (gpu.temperature_c, gpu.power_w, gpu.sm_percent, gpu.used_mib) == ((0,), (65_534,), (254,), (65_534,))


def test_a_mig_instance_has_temperature_and_throttle_reasons_of_its_gpu_and_nothing_else_of_it() -> None:
    card = Gpu("GPU-7", 0, "H100", 81_920, mig=True)
    inside = Gpu("MIG-1", 0, "H100", 9_728, instance=MigInstance("GPU-7", 0, "1g.10gb", 7, 0))
    (shared,) = Shares(1024).with_inventory(Inventory((card, inside)), mig=MigMode.SHARE).gpus
    now = GpuTelemetry("GPU-7", temperature_c=50, power_mw=200_000, throttle=4, sm_percent=80)
    ring = Ring()
    ring.tick(0, [GpuSample(shared, 5, now)], [], {})
    (gpu,) = all_of(ring.select()).gpus
    assert (gpu.uuid, gpu.used_mib, gpu.temperature_c, gpu.throttle) == ("MIG-1", (5,), (50,), (4,))
    assert (gpu.power_w, gpu.sm_percent, gpu.condition) == ((None,), (None,), now)


# --- Time -------------------------------------------------------------------------------------------------------------


def test_missed_ticks_are_unknown_so_that_series_stay_aligned() -> None:
    history = of_gpus(ticked((0, [using("a", used=1), using("b", used=1)]), (3, [using("a", used=4)])), 0)
    assert [each.used_mib for each in history.containers] == [(1, None, None, 4), (1, None, None, None)]
    assert [gpu.used_mib for gpu in history.gpus] == [(None,) * 4]


def test_a_second_tick_of_a_step_and_one_of_the_past_are_ignored() -> None:
    ring = ticked((5, [using("a", used=1)]), (5, [using("a", used=2)]), (4, [using("a", used=3)]))
    assert [each.used_mib for each in of_gpus(ring, 0).containers] == [(1,)]


def test_a_pause_longer_than_the_ring_leaves_only_what_is_there_now() -> None:
    history = of_gpus(ticked((0, [using("a"), using("b")]), (900, [using("b", used=8)])), 0)
    assert [(each.pod, each.used_mib) for each in history.containers] == [("b-name", (None, None, None, 8))]


@pytest.mark.parametrize(("last_s", "steps"), [(0, 1), (15, 1), (29, 2), (45, 3), (900, 4), (None, 4)])
def test_a_window_has_the_newest_values(last_s: float | None, steps: int) -> None:
    ring = ticked(*((step, [using("a", used=step)]) for step in range(1, 5)))
    ((found,), _) = ([each.used_mib for each in of_gpus(ring, 0, last_s=last_s).containers], None)
    assert found == (1, 2, 3, 4)[-steps:]


# --- What is selected -------------------------------------------------------------------------------------------------


def test_parts_of_the_ring_are_selected() -> None:
    uses = [using("a", 0), using("b", 1, namespace="other"), using("b", 2, namespace="other"), using("c", 2)]
    ring = ticked((1, uses))

    def found(history: NodeHistory) -> tuple[list[int], list[tuple[str, int]]]:
        return [gpu.gpu for gpu in history.gpus], [(each.pod, each.gpu) for each in history.containers]

    assert found(all_of(ring.select())) == ([0, 1, 2], [])
    assert found(of_gpus(ring, 2)) == ([2], [("b-name", 2), ("c-name", 2)])
    assert found(all_of(ring.select(namespace="other"))) == ([1, 2], [("b-name", 1), ("b-name", 2)])
    assert ring.select(uuids=["GPU-9"]) is None
    assert all_of(ring.select(namespace="none")) == NodeHistory("1970-01-01T00:00:22Z", STEP_S)
    assert Ring().select() is None
    assert Ring().select(namespace="team") is None
    assert {uuid for *container, uuid in ring.places if container == ["b", "main"]} == {"GPU-1", "GPU-2"}
    swapped = [GpuSample(replace(SHARED[at], position=2 - at)) for at in range(3)]
    ring.tick(STEP_S * 2, swapped, [], {})
    assert [(gpu.gpu, gpu.uuid) for gpu in all_of(ring.select()).gpus] == [(0, "GPU-2"), (1, "GPU-1"), (2, "GPU-0")]


def test_a_selection_does_not_change_with_the_ring() -> None:
    ring = ticked((1, [using("a", used=1)]))
    selection = ring.select(uuids=["GPU-0"])
    ticked((2, [using("a", used=2)]), ring=ring)
    assert [each.used_mib for each in all_of(selection).containers] == [(1,)]


def test_a_pod_without_a_name_has_its_uid_and_gets_its_name_later() -> None:
    unnamed = replace(using("a"), pod=None)
    ring = ticked((1, [unnamed]))
    assert [(each.namespace, each.pod) for each in of_gpus(ring, 0).containers] == [("", "a")]
    ticked((2, [using("a")]), (3, [unnamed]), ring=ring)
    assert [(each.namespace, each.pod) for each in of_gpus(ring, 0).containers] == [("team", "a-name")]


def test_containers_with_the_most_use_come_first() -> None:
    ring = ticked((1, [using("a", used=1), using("b", used=9), using("c", used=None), using("d", used=5)]))
    ticked((2, [using("b", used=None)]), ring=ring)
    selection = ring.select(uuids=["GPU-0"])
    assert selection is not None
    found = list(selection.containers())
    assert [each.pod for each in found] == ["b-name", "d-name", "a-name", "c-name"]
    assert selection.history(0, found[:3]).left_out == 1
    large = ticked((1, [using("a", 0, used=90), using("b", 1, used=120)])).select(namespace="team")
    assert large is not None
    assert [each.used_mib for each in large.containers()] == [(120,), (90,)], "in MiB, not in each GPU's units"


def test_containers_on_gpus_that_are_not_shared_are_ignored() -> None:
    assert of_gpus(ticked((1, [replace(using("a"), uuid="GPU-9")])), 0).containers == ()


def test_a_gpu_and_its_containers_stay_for_an_hour_after_it_has_gone() -> None:
    ring = ticked((1, [using("a", 1)]))
    for step in (2, 3, 4):
        ring.tick(STEP_S * step, [GpuSample(SHARED[0])], [], {})
        assert [gpu.gpu for gpu in all_of(ring.select()).gpus] == [0, 1, 2]
    ring.tick(STEP_S * 5, [GpuSample(SHARED[0])], [], {})
    assert [gpu.gpu for gpu in all_of(ring.select()).gpus] == [0]
    assert all_of(ring.select(namespace="team")).containers == ()


# --- Room -------------------------------------------------------------------------------------------------------------


def test_the_container_that_ended_first_makes_room_and_others_are_left_out_and_counted() -> None:
    ring = Ring(steps=9, room=2)
    ticked((1, [using("a"), using("b")]), (2, [using("b")]), (3, []), ring=ring)
    ticked((4, [using("c", used=1)]), ring=ring)
    assert [each.pod for each in of_gpus(ring, 0).containers] == ["b-name", "c-name"]
    ticked((5, [using("c"), using("d", used=5), using("e", 1, used=9, namespace="other")]), ring=ring)
    assert [each.pod for each in of_gpus(ring, 0, 1).containers] == ["c-name", "e-name"]
    lefts = [all_of(ring.select()), of_gpus(ring, 0), of_gpus(ring, 1), all_of(ring.select(namespace="team"))]
    assert [each.left_out for each in lefts] == [1, 1, 0, 1]
    assert all_of(ring.select(namespace="other")).left_out == 0
    ticked((6, [using("c")]), ring=ring)
    assert all_of(ring.select()).left_out == 0


def test_who_takes_the_place_of_another_has_none_of_its_values() -> None:
    ring = Ring(steps=9, room=1)
    ticked((1, [using("a", used=1)]), (2, []), (3, [using("b", used=3)]), ring=ring)
    assert [(each.pod, each.used_mib) for each in of_gpus(ring, 0).containers] == [("b-name", (None, None, 3))]


def test_a_full_node_takes_1_mib_of_values() -> None:
    """The bound of the structure: room for 1,120 containers on 8 GPUs, 240 steps, and nothing beyond it."""
    gpus = [SharedGpu(Gpu(f"GPU-{n}", n, "H200", H200_MIB), n, ()) for n in range(8)]
    ring = Ring()
    for step in range(STEPS + 2):
        crowd = [using(f"{step % 7}-{n}", 0, n) for n in range(ROOM + 30 if step > STEPS - 9 else 3)]
        uses = [replace(use, uuid=f"GPU-{n % 8}") for n, use in enumerate(crowd)]
        ring.tick(STEP_S * step, [GpuSample(each, 5) for each in gpus], uses, {})
    most = STEPS * (ROOM * CONTAINER_BYTES + 8 * 16)
    assert size(ring) <= most < 1.06 * (1 << 20)
    assert (len(ring._gpus.rows), len(ring._containers.rows)) == (8, ROOM)
    small = Ring(steps=4, room=2)
    assert size(ticked(*((step, []) for step in range(9)), ring=small)) == 4 * 3 * 16
    later = ticked(*((step, [using("a"), using("b"), using("c")]) for step in range(9, 19)), ring=small)
    assert size(later) == 4 * (3 * 16 + 2 * CONTAINER_BYTES)


# --- Against lists ----------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """The same as lists of what was given, without any bound but that of time."""

    steps: int
    ticks: dict[int, dict[Place, AttributedUse]] = field(default_factory=dict)

    def series(self, place: Place) -> tuple[int | None, ...]:
        newest = max(self.ticks)
        shown = range(max(min(self.ticks), newest - self.steps + 1), newest + 1)
        return tuple(use.used_mib if (use := self.ticks.get(step, {}).get(place)) else None for step in shown)

    def ended(self, place: Place) -> int:
        return max(step for step, uses in self.ticks.items() if place in uses)


CROWD = st.dictionaries(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 1)), st.none() | st.integers(0, 15_360), max_size=6
)
HISTORIES = st.lists(st.tuples(st.integers(1, 4), CROWD), min_size=1, max_size=14)
"""How many steps after the one before, and who uses how much on which GPU; both have few MiB or units of 3."""


@given(HISTORIES, st.integers(1, 6))
def test_whoever_has_room_has_the_series_that_a_list_would_have(
    ticks: list[tuple[int, dict[tuple[str, int], int | None]]], room: int
) -> None:
    ring, model, step = Ring(steps=5, room=room), Model(5), 0
    for later, crowd in ticks:
        step += later
        uses = [using(pod, gpu, used and 3 * (used // 3)) for (pod, gpu), used in crowd.items()]
        ticked((step, uses), ring=ring)
        model.ticks[step] = {use.place: use for use in uses}
        history = of_gpus(ring, 0, 1)
        shown: dict[Place, tuple[int | None, ...]] = {
            (each.pod.removesuffix("-name"), "main", GPUS[each.gpu].uuid): each.used_mib for each in history.containers
        }
        there = {use.place for use in uses}
        assert len(shown) <= room
        assert history.left_out == len(there - shown.keys())
        assert not (there - shown.keys()) or len(shown) == room
        for place, values in shown.items():
            known = model.series(place)
            # One that had to make room and came back has lost what was before.
            assert all(value in {None, known[at]} for at, value in enumerate(values))
            assert place not in there or values[-1] == known[-1]


@given(HISTORIES)
def test_with_room_for_all_the_ring_equals_the_lists(
    ticks: list[tuple[int, dict[tuple[str, int], int | None]]],
) -> None:
    ring, model, step = Ring(steps=5), Model(5), 0
    for later, crowd in ticks:
        step += later
        uses = [using(pod, gpu, used and 3 * (used // 3)) for (pod, gpu), used in crowd.items()]
        ticked((step, uses), ring=ring)
        model.ticks[step] = {use.place: use for use in uses}
        shown = {
            (each.pod.removesuffix("-name"), "main", GPUS[each.gpu].uuid): each.used_mib
            for each in of_gpus(ring, 0, 1).containers
        }
        every = {place for uses_of in model.ticks.values() for place in uses_of if model.ended(place) > step - 5}
        assert shown == {place: model.series(place) for place in every}


# --- PCIe -------------------------------------------------------------------------------------------------------------


def link(sent: int | None, received: int | None, generation: int | None = 4, width: int | None = 16) -> GpuTelemetry:
    return GpuTelemetry(
        "GPU-0",
        pcie_generation=generation,
        pcie_width=width,
        pcie_sent_bytes=sent,
        pcie_received_bytes=received,
    )


@pytest.mark.parametrize(
    ("before", "after", "seconds", "percent"),
    [
        (link(0, 0), link(0, 0), 15, 0),
        # 16 lanes of generation 4 carry 31.504 GB/s.
        (link(10**12, 10**12), link(10**12 + 15 * 25_203_200_000, 10**12), 15, 80),
        (link(10, 10), link(10, 10 + 15_752_000_000), 1, 50),
        (link(0, 0), link(10**15, 0), 1, 100),
        (link(0, 0, 1, 8), link(1_000_000_000, 0, 1, 8), 1, 50),
        (link(0, 0, 2, 8), link(2_000_000_000, 0, 2, 8), 1, 50),
        (link(0, 0, 3, 8), link(3_940_000_000, 0, 3, 8), 1, 50),
        (link(0, 0, 5, 16), link(31_504_000_000, 0, 5, 16), 1, 50),
        (link(0, 0, 6, 16), link(60_504_000_000, 0, 6, 16), 1, 50),
        # The link as it is now counts: it was trained down.
        (link(0, 0), link(3_938_000_000, 0, 4, 8), 1, 25),
        # The driver was loaded again: what it counts since then.
        (link(10**15, 10**15), link(15_752_000_000, 0), 1, 50),
        (link(None, 0), link(0, 0), 15, None),
        (link(0, 0), link(0, None), 15, None),
        (link(0, 0), link(0, 0, None), 15, None),
        (link(0, 0), link(0, 0, 7), 15, None),
        (link(0, 0), link(0, 0, 0), 15, None),
        (link(0, 0), link(0, 0, 4, None), 15, None),
        (link(0, 0), link(0, 0, 4, 0), 15, None),
        (link(0, 0), link(0, 0), 0, None),
    ],
)
def test_the_load_of_the_pcie_link_is_that_of_the_busier_direction(
    before: GpuTelemetry, after: GpuTelemetry, seconds: float, percent: int | None
) -> None:
    assert pcie_percent(before, after, seconds) == percent


def test_a_container_that_is_still_there_once_its_gpu_is_forgotten_does_not_break_its_namespace() -> None:
    ring = Ring(steps=4)
    for step in range(8):
        gpus = [GpuSample(each) for each in (SHARED[1:] if step else SHARED)]
        ring.tick(STEP_S * step + 7, gpus, [using("gone", 0), using("there", 1)], {})
        selection = ring.select(namespace="team")
        shown = {each.pod: each.used_mib for each in all_of(selection).containers}
        assert "there-name" in shown
        assert set(shown.get("gone-name", ())[1:]) <= {None}, "it has no values on a GPU that is not there"
    assert [each.pod for each in all_of(ring.select(namespace="team")).containers] == ["there-name"]
