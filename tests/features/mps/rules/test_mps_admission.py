"""Which GPUs MPS has to run, and who may be given shares or start beside it. GPUs are called GPU-0, GPU-1; 1 GiB each
share."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import (
    NOT_THERE,
    SILENT,
    UNOCCUPIED,
    MpsGpuContext,
    MpsOccupancy,
    choose,
    daemon,
    occupancies,
    troubles,
    waits,
    wanted,
    why_not_start,
)
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.ledger import Ledger, ReleaseEvidence
from tests.nodes import ids, uuid

READY = MpsGpu(MpsStatus.READY, "", "/run/gpushare/mps/a")
NOTHING: Mapping[str, int] = {}


def given(position: int, *numbers: int, mps: bool = True) -> Allocation:
    """Return shares of a GPU that a container holds; without numbers all of it."""
    kind, device_ids = (Kind.MEMORY, ids(position, numbers)) if numbers else (Kind.COUNT, [uuid(position)])
    return Allocation("", "", kind, frozenset(device_ids), enforcement=Enforcement.MPS if mps else None)


def holding(*each: Allocation) -> Ledger:
    return Ledger().seen(name for one in each for name in one.device_ids)


def wants(
    ledger: Ledger, *each: Allocation, asked: Mapping[str, int] | None = None, before: Mapping[str, int] = NOTHING
) -> object:
    return dict(wanted(ledger, occupancies(ledger, each), asked or {}, before, 1024))


# --- Who is on a GPU, and what is wanted ------------------------------------------------------------------------------


def test_a_daemon_lets_a_client_that_may_borrow_have_its_limit() -> None:
    borrower = replace(given(0, 0, 1), limit_mib=6144)
    assert wants(holding(borrower), borrower, given(0, 2)) == {uuid(0): 6144}
    assert wants(holding(borrower), replace(borrower, limit_mib=1024)) == {uuid(0): 2048}


def test_a_gpu_with_clients_has_a_daemon_for_the_largest_of_them() -> None:
    small, large, elsewhere = given(0, 0, 1), given(0, 2, 3, 4), given(1, 0)
    ledger = holding(small, large, elsewhere)
    assert occupancies(ledger, [small, large, elsewhere]) == {
        uuid(0): MpsOccupancy(clients=True, largest=3),
        uuid(1): MpsOccupancy(clients=True, largest=1),
    }
    assert wants(ledger, small, large, elsewhere) == {uuid(0): 3 * 1024, uuid(1): 1024}


def test_a_container_whose_devices_are_proven_free_wants_no_daemon_although_the_gpu_is_not_released() -> None:
    """The daemon's server is a process on the GPU, for whose end its release waits."""
    client = given(0, 0, 1)
    ledger = holding(client).reconciled(ReleaseEvidence(frozenset(), 1.0, frozenset()), {}, 1.0, 60.0)
    assert wants(ledger, client) == {}
    waiting = replace(
        holding(client),
        id_states={name: replace(state, freed_at=1.0) for name, state in holding(client).id_states.items()},
    )
    assert waiting.use(uuid(0)).shares
    assert wants(waiting, client) == {}


def test_an_init_container_counts_beside_its_successor_with_the_same_devices() -> None:
    init, main = given(0, 0, 1, 2, 3), given(0, 0, 1)
    assert wants(holding(init), init, main) == {uuid(0): 4 * 1024}


def test_of_two_records_of_one_device_the_later_one_counts() -> None:
    former, present = given(0, 0, mps=False), given(0, 0)
    assert occupancies(holding(present), [former, present]) == {uuid(0): MpsOccupancy(clients=True, largest=1)}


def test_a_gpu_for_a_container_that_is_being_allocated_is_wanted_before_it_has_devices() -> None:
    client = given(0, 0)
    assert wants(Ledger(), asked={uuid(0): 3}) == {uuid(0): 3 * 1024}
    assert wants(holding(client), client, asked={uuid(0): 3}) == {uuid(0): 3 * 1024}


def test_a_daemon_is_never_put_under_a_container_that_is_no_client() -> None:
    """EXCLUSIVE_PROCESS would shut it out."""
    other, whole = given(0, 0, mps=False), given(0, mps=False)
    for one in (other, whole):
        assert wants(holding(one), one, asked={uuid(0): 3}) == {}
        assert wants(holding(one), one, before={uuid(0): 1024}) == {}
    assert wants(holding(whole), asked={uuid(0): 3}, before={uuid(0): 1024}) == {}


def test_clients_that_run_keep_their_daemon_whoever_else_is_there() -> None:
    client, other = given(0, 0), given(0, 1, mps=False)
    assert wants(holding(client, other), client, other) == {uuid(0): 1024}


def test_a_daemon_stays_as_it_is_under_containers_of_which_nothing_is_known() -> None:
    """A kubelet that lists a container which its checkpoint lacks."""
    client, unknown = given(0, 0), given(0, 1, 2)
    before = {uuid(0): 5 * 1024, uuid(1): 1024}
    assert wants(holding(unknown), before=before) == {uuid(0): 5 * 1024}
    assert wants(holding(unknown)) == {}
    assert wants(holding(client, unknown), client, before=before) == {uuid(0): 5 * 1024}


@drawn(
    st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 7), min_size=1), st.booleans()), max_size=12),
    st.dictionaries(st.integers(0, 2), st.integers(1, 8)),
    st.sets(st.integers(0, 2)),
)
def test_clients_always_have_a_daemon_that_lets_the_largest_have_its_part_and_others_never(
    containers: list[tuple[int, set[int], bool]], asked: dict[int, int], whole: set[int]
) -> None:
    found = [given(position, *numbers, mps=mps) for position, numbers, mps in containers]
    ledger = holding(*found).seen(uuid(position) for position in whole)
    present = occupancies(ledger, found)
    result = wanted(ledger, present, {uuid(position): n for position, n in asked.items()}, NOTHING, 1024)
    for name, there in present.items():
        if there.clients:
            assert result[name] >= there.largest * 1024
        elif there.others or ledger.use(name).whole:
            assert name not in result
    assert result.keys() <= {*present, *(uuid(position) for position in asked)}


# --- What the supervisor reports --------------------------------------------------------------------------------------


def test_a_gpu_that_the_supervisor_does_not_name_has_no_daemon() -> None:
    state = {uuid(0): READY}
    assert daemon(state, uuid(0)) is READY
    assert daemon(state, uuid(1)) == MpsGpu(MpsStatus.STOPPED)
    assert daemon(NOT_THERE, uuid(0)) == NOT_THERE


def test_only_what_a_needed_daemon_lacks_is_a_trouble() -> None:
    failed, fault = MpsGpu(MpsStatus.FAILED, "exit code 1"), MpsGpu(MpsStatus.FAULT)
    state = {uuid(0): READY, uuid(1): failed, uuid(2): fault, uuid(3): failed, uuid(4): MpsGpu(MpsStatus.STARTING)}
    needed = [uuid(position) for position in (0, 1, 2, 4, 5)]
    assert troubles(state, needed) == {uuid(1): "failed: exit code 1", uuid(2): "fault"}
    assert troubles(SILENT, needed) == {"": SILENT}
    assert troubles(SILENT, []) == {}


# --- Allocate ---------------------------------------------------------------------------------------------------------

CLIENTS, OTHERS = MpsOccupancy(clients=True, largest=1), MpsOccupancy(others=True, largest=1)


def on(
    gpu: MpsGpu | MpsStatus | str, there: MpsOccupancy = UNOCCUPIED, *, asked: bool = True, position: int = 0
) -> MpsGpuContext:
    return MpsGpuContext(f"GPU {position}", asked, there, MpsGpu(gpu) if isinstance(gpu, MpsStatus) else gpu)


def test_a_container_waits_for_the_limit_of_a_daemon_that_has_smaller_clients() -> None:
    """The daemon's limit binds all its clients, the largest too."""
    lets = msgspec.structs.replace(READY, limit_mib=2048)
    assert choose([replace(on(lets, CLIENTS), part_mib=2048)], refuse=True) is Enforcement.MPS
    larger = [replace(on(lets, CLIENTS), part_mib=2049)]
    assert waits(larger)
    assert choose(larger, refuse=True) == refused("the MPS daemon of GPU 0 lets a process have only 2048 MiB")
    assert choose([replace(on(READY, CLIENTS), part_mib=2049)], refuse=True) is Enforcement.MPS, (
        "it has no limit of its own"
    )


def refused(sentence: str, why: RefusalCode = RefusalCode.MPS_NOT_READY) -> Refusal:
    return Refusal(why, sentence)


@pytest.mark.parametrize(
    ("context", "strict", "lenient"),
    [
        (on(READY), Enforcement.MPS, Enforcement.MPS),
        (on(READY, CLIENTS), Enforcement.MPS, Enforcement.MPS),
        (on(READY, CLIENTS, asked=False), Enforcement.MPS, Enforcement.MPS),
        (on(READY, asked=False), None, None),
        (on(MpsStatus.STOPPING, OTHERS, asked=False), None, None),
        (on(NOT_THERE), refused(f"GPU 0 needs MPS: {NOT_THERE}"), Enforcement.ADVISORY),
        (on(SILENT, CLIENTS), refused(f"GPU 0 needs MPS: {SILENT}"), Enforcement.MPS),
        (
            on(MpsStatus.STOPPED, OTHERS),
            refused("GPU 0 has containers that were started without MPS, and gets MPS when they have ended"),
            Enforcement.ADVISORY,
        ),
        (
            on(MpsGpu(MpsStatus.FAULT, "client 4711 crashed"), CLIENTS),
            refused("the MPS daemon of GPU 0 does not serve new clients (fault: client 4711 crashed)"),
            Enforcement.MPS,
        ),
        (
            on(MpsStatus.FAILED),
            refused("the MPS daemon of GPU 0 does not serve new clients (failed)"),
            Enforcement.ADVISORY,
        ),
        *(
            (on(status), refused(f"the MPS daemon of GPU 0 is not ready ({status})"), Enforcement.ADVISORY)
            for status in (MpsStatus.STOPPED, MpsStatus.STARTING, MpsStatus.STOPPING)
        ),
    ],
)
def test_the_means_of_a_container_depend_on_its_gpus_daemon_and_on_who_is_there(
    context: MpsGpuContext, strict: object, lenient: object
) -> None:
    assert choose([context], refuse=True) == strict
    assert choose([context], refuse=False) == lenient


@pytest.mark.parametrize("status", MpsStatus)
def test_only_a_daemon_that_may_become_ready_is_waited_for(status: MpsStatus) -> None:
    passing = {MpsStatus.STOPPED, MpsStatus.STARTING, MpsStatus.STOPPING}
    assert waits([on(status)]) is (status in passing)
    assert not waits([on(status, OTHERS)])
    assert not waits([on(status, asked=False)])
    assert not waits([on(status), on(status, position=1)])


def test_a_container_with_parts_of_several_gpus_is_refused_or_has_no_limit() -> None:
    both = [on(READY), on(READY, position=1)]
    found = choose(both, refuse=True)
    assert isinstance(found, Refusal)
    assert found.code is RefusalCode.MPS_SEVERAL_GPUS
    assert found.sentence.startswith(
        "GPU memory: shares of GPU 0, GPU 1 requested, and under MPS a container has one daemon"
    )
    assert choose(both, refuse=False) is Enforcement.ADVISORY
    beside_clients = choose([on(READY), on(READY, CLIENTS, position=1)], refuse=False)
    assert isinstance(beside_clients, Refusal), "without MPS it could not use GPU 1"
    assert choose([on(READY, asked=False), on(READY, asked=False, position=1)], refuse=True) is None


@pytest.mark.parametrize(
    ("context", "refuse", "expected"),
    [
        (on(MpsStatus.STARTING), True, refused("the MPS daemon of GPU 0 is not ready (starting), after 15 s")),
        (on(MpsStatus.STARTING), False, Enforcement.ADVISORY),
        (on(MpsStatus.STARTING, CLIENTS), False, Enforcement.MPS),
    ],
)
def test_after_waiting_in_vain_the_setting_decides(context: MpsGpuContext, expected: object, *, refuse: bool) -> None:
    assert choose([context], refuse=refuse, waited=", after 15 s") == expected


# --- PreStartContainer ------------------------------------------------------------------------------------------------


def start(
    state: Mapping[str, MpsGpu] | str, written: Mapping[str, MpsGpu], *, client: bool, refuse: bool = True
) -> str:
    return why_not_start("GPU 0", uuid(0), state, written, client=client, refuse=refuse)


@pytest.mark.parametrize("status", MpsStatus)
def test_a_client_starts_with_its_daemon_and_any_other_container_without(status: MpsStatus) -> None:
    state = {uuid(0): MpsGpu(status, "so it is")}
    as_client, as_other = start(state, state, client=True), start(state, state, client=False)
    not_ready = f"the MPS daemon of GPU 0 is not ready ({status}: so it is)"
    assert as_client == ("" if status is MpsStatus.READY else not_ready)
    still_run = f"GPU 0 is still run by MPS ({status}: so it is)"
    assert as_other == ("" if status is MpsStatus.STOPPED else still_run)


def test_a_compute_mode_that_cannot_be_set_back_keeps_a_container_waiting_only_if_the_administrator_says_so() -> None:
    """The daemon is gone, and in EXCLUSIVE_PROCESS one process can use the GPU."""
    state = {uuid(0): MpsGpu(MpsStatus.FAILED, "nvidia-smi -c DEFAULT failed")}
    assert start(state, state, client=False, refuse=False) == ""
    assert "nvidia-smi -c DEFAULT failed" in start(state, state, client=False)
    assert "nvidia-smi -c DEFAULT failed" in start(state, state, client=True, refuse=False)


def test_a_gpu_that_the_supervisor_does_not_name_is_free_of_mps() -> None:
    state = {uuid(1): READY}
    assert start(state, state, client=False) == ""
    assert start(state, state, client=True) == "the MPS daemon of GPU 0 is not ready (stopped)"


def test_a_supervisor_that_was_killed_leaves_a_compute_mode_that_a_person_can_set_back() -> None:
    written = {uuid(0): READY}
    why = start(SILENT, written, client=False)
    assert "GPU 0 was run by MPS and may still be in the compute mode EXCLUSIVE_PROCESS" in why
    assert why.endswith("or run `nvidia-smi -i GPU-0 -c DEFAULT` and remove state.json")
    assert start(SILENT, {uuid(0): MpsGpu(MpsStatus.STOPPED)}, client=False) == ""
    assert start(NOT_THERE, {}, client=False) == ""


def test_without_a_supervisor_a_client_waits_unless_the_administrator_prefers_it_without_a_limit() -> None:
    written = {uuid(0): READY}
    assert start(SILENT, written, client=True) == f"GPU 0 needs MPS: {SILENT}"
    assert start(SILENT, written, client=True, refuse=False) == ""
    assert start(SILENT, written, client=False, refuse=False) == ""
