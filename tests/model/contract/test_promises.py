"""The GPUs of a pod's containers, as they are written on the pod and read from it."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    DEV,
    IDX,
    INIT_ALLOCATION,
    LONGEST,
    POD,
    TOO_LONG,
    MalformedAnnotationError,
)
from gpu_device_plugin.model.contract.promises import (
    MOST_CONTAINERS,
    PodAllocation,
    Promise,
    assignment,
    promises,
    read_allocation,
    write_allocation,
)
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from tests.resources import COUNT, MEM, RESOURCES

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def container(
    name: str, *, mem: int = 0, count: int = 0, kind: ContainerKind = APP, index: int | None = None
) -> Container:
    """A container; by default its index is the number at the end of its name."""
    limits = {MEM.name: mem, COUNT.name: count}
    return Container(name, kind, int(name[-1]) if index is None else index, {k: v for k, v in limits.items() if v})


def pod(*containers: Container, **annotations: str | None) -> Pod:
    """A pod with annotations by the name of their constant here; the original's extender wrote the others."""
    written = {POD: "3", DEV: "15", ASSIGNED: "false", ASSUME_TIME: "1795169580643598847"}
    known = {"idx": IDX, "allocation": ALLOCATION, "init": INIT_ALLOCATION, "assigned": ASSIGNED}
    written.update({known[key]: value for key, value in annotations.items() if value is not None})
    without = {known[key] for key, value in annotations.items() if value is None}
    return Pod(
        "u", "default", "a", containers=containers, annotations={k: v for k, v in written.items() if k not in without}
    )


# --- reading promises

I0, S1 = container("i0", mem=2, kind=INIT), container("s1", mem=1, kind=SIDECAR)
C0, C1 = container("c0", mem=4), container("c1", mem=3)
"""Containers of 2, 1, 4 and 3 shares: an init container, a sidecar, and two others."""
Places = dict[tuple[str, Kind], dict[int, int]]
"""Shares by container and kind of resource, and by position."""


def mem(**places: dict[int, int]) -> Places:
    return {(name, Kind.MEMORY): shares for name, shares in places.items()}


PROMISED: dict[str, tuple[Pod, Places]] = {
    "nobody wrote anything": (pod(C0), {}),
    "one GPU for every container that asks": (
        pod(I0, C0, container("c2"), C1, idx="1"),
        mem(i0={1: 2}, c0={1: 4}, c1={1: 3}),
    ),
    "one GPU as a whole, and not two": (
        pod(container("c0", count=1), container("c1", count=2), idx="1"),
        {("c0", Kind.COUNT): {1: 1}},
    ),
    "shares by container and GPU, as ACK writes them": (
        pod(C0, C1, allocation='{"0":{"0":2,"1":2},"1":{"3":3}}'),
        mem(c0={0: 2, 1: 2}, c1={3: 3}),
    ),
    "shares as text": (pod(C0, allocation='{"0":{"1":"4"}}'), mem(c0={1: 4})),
    "a GPU with nothing is not promised": (pod(C0, allocation='{"0":{"0":2,"1":0,"2":2}}'), mem(c0={0: 2, 2: 2})),
    "whole GPUs": (
        pod(container("c0", count=2), allocation='{"0":{"2":15,"0":15}}'),
        {("c0", Kind.COUNT): {0: 15, 2: 15}},
    ),
    "the list before the one GPU": (pod(C0, C1, idx="5", allocation='{"0":{"1":4}}'), mem(c0={1: 4}, c1={5: 3})),
    "a container that the list omits": (pod(C0, C1, allocation='{"1":{"0":3}}'), mem(c1={0: 3})),
    "an init container that the list omits": (pod(I0, allocation="{}"), {}),
    # Init containers and sidecars have no index of their own in the list; their GPUs are handed on.
    "those that run first get the GPU of the others": (
        pod(I0, S1, container("i2", count=1, kind=INIT), C0, allocation='{"0":{"3":2,"2":2}}'),
        mem(i0={2: 2}, s1={2: 1}, c0={2: 2, 3: 2}),
    ),
    "those that run first may have a list of their own": (
        pod(
            I0, S1, container("i2", count=2, kind=INIT), C0,
            idx="9", allocation='{"0":{"3":4}}', init='{"0":{"2":2},"1":{"1":1},"2":{"4":15,"0":15}}',
        ),
        {**mem(i0={2: 2}, s1={1: 1}, c0={3: 4}), ("i2", Kind.COUNT): {0: 15, 4: 15}},
    ),
    "their list says nothing of the others": (pod(I0, C0, init='{"0":{"2":2}}'), mem(i0={2: 2})),
    "their list, and one GPU for the others": (pod(I0, C0, idx="1", init='{"0":{"2":2}}'), mem(i0={2: 2}, c0={1: 4})),
}  # fmt: skip


@pytest.mark.parametrize(("there", "places"), PROMISED.values(), ids=PROMISED)
def test_each_container_is_promised_what_is_written_for_it(there: Pod, places: Places) -> None:
    assert promises(there, RESOURCES) == {key: Promise(tuple(shares.items())) for key, shares in places.items()}


def test_resources_that_are_not_ours_have_no_promise() -> None:
    assert promises(pod(container("c0", mem=3, count=1), idx="1"), [MEM]).keys() == {("c0", Kind.MEMORY)}


@pytest.mark.parametrize(
    ("allocation", "place"),
    [
        ('{"0":{"3":4},"1":{"1":4}}', 3),
        ('{"1":{"1":4},"0":{"3":4}}', 3),
        ('{"0":{},"1":{"1":4}}', 1),
        ('{"0":{"0":0},"1":{"1":4}}', 1),
        ('{"10":{"1":4},"9":{"3":4}}', 3),
        ('{"0":{}}', 7),
        ("{}", 7),
    ],
)
def test_an_init_container_without_an_entry_shares_the_gpu_of_the_first_container(allocation: str, place: int) -> None:
    """A list without an entry for it means this; the one GPU for all counts only if the list has no shares."""
    there = pod(container("i0", mem=2, kind=INIT), idx="7", allocation=allocation)
    assert promises(there, RESOURCES) == {("i0", Kind.MEMORY): Promise(((place, 2),))}


@pytest.mark.parametrize(
    ("wanted", "allocation", "sentence"),
    [
        (
            container("c0", mem=4),
            '{"0":{"0":3}}',
            f"{ALLOCATION} assigns 3 of gpu-mem to container 'c0', which requests 4",
        ),
        (
            container("c0", mem=4),
            '{"0":{"0":3,"1":2}}',
            f"{ALLOCATION} assigns 5 of gpu-mem to container 'c0', which requests 4",
        ),
        (container("c0", mem=4), '{"0":{}}', f"{ALLOCATION} assigns 0 of gpu-mem to container 'c0', which requests 4"),
        (
            container("c0", count=1),
            '{"0":{"0":15,"1":15}}',
            f"{ALLOCATION} assigns 2 of gpu-count to container 'c0', which requests 1",
        ),
        (
            container("s0", mem=4, kind=SIDECAR),
            '{"0":{"0":3}}',
            f"{INIT_ALLOCATION} assigns 3 of gpu-mem to container 's0', which requests 4",
        ),
        (
            container("i0", count=1, kind=INIT),
            '{"0":{"0":0}}',
            f"{INIT_ALLOCATION} assigns 0 of gpu-count to container 'i0', which requests 1",
        ),
    ],
)
def test_a_promise_of_another_size_than_the_pods_own_request_is_malformed(
    wanted: Container, allocation: str, sentence: str
) -> None:
    """Any user may annotate a pod; the annotation counts only together with the pod's request."""
    written = {"allocation" if wanted.kind is APP else "init": allocation}
    with pytest.raises(MalformedAnnotationError, match=f"^{re.escape(sentence)}$"):
        promises(pod(wanted, **written), RESOURCES)


TOO_LONG_TO_READ = "is longer than 65536 characters, or than 2048 for each container"
NOT_A_NUMBER = "holds a value that is not a whole number from 0 to 1048576"


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", "1.0", "one", " 1", "1 ", "0x1", "٣", "²", "1048577", "0000000007", "1" * 5000, "nan", "1e3"],
)
def test_a_position_that_is_not_a_number_is_malformed(text: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=f"^{IDX} {NOT_A_NUMBER}$"):
        promises(pod(container("c0", mem=3), idx=text), RESOURCES)


@pytest.mark.parametrize(("text", "position"), [("0", 0), ("7", 7), ("000000007", 7), ("1048576", 1_048_576)])
def test_a_position_is_a_whole_number(text: str, position: int) -> None:
    found = promises(pod(container("c0", mem=3), idx=text), RESOURCES)
    assert found == {("c0", Kind.MEMORY): Promise(((position, 3),))}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("0:1", "is not JSON"),
        ('{"0":{"0":' + "1" * 5000 + "}}", "is not JSON"),
        ("[" * LONGEST[ALLOCATION], "is not JSON"),
        ("[" * (LONGEST[ALLOCATION] + 1), TOO_LONG_TO_READ),
        (TOO_LONG, TOO_LONG_TO_READ),
        ('{"0":{"0":4}}' + " " * LONGEST[ALLOCATION], TOO_LONG_TO_READ),
        ("null", 'is not of the form {"0": {"1": 4}}'),
        ("[]", 'is not of the form {"0": {"1": 4}}'),
        ("4", 'is not of the form {"0": {"1": 4}}'),
        ('{"0":4}', 'is not of the form {"0": {"1": 4}}'),
        ('{"0":{"0":4},"1":[]}', 'is not of the form {"0": {"1": 4}}'),
        ('{"x":{"0":4}}', NOT_A_NUMBER),
        ('{"0":{"x":4}}', NOT_A_NUMBER),
        ('{"0":{"0":-4}}', NOT_A_NUMBER),
        ('{"0":{"0":4.0}}', NOT_A_NUMBER),
        ('{"0":{"0":true}}', NOT_A_NUMBER),
        ('{"0":{"0":null}}', NOT_A_NUMBER),
        ('{"0":{"0":NaN}}', NOT_A_NUMBER),
        ('{"0":{"0":1048577}}', NOT_A_NUMBER),
        ('{"0":{"\\ud800":1}}', NOT_A_NUMBER),
    ],
)
def test_a_list_of_another_form_is_malformed(text: str, fault: str) -> None:
    """The message names the fault and does not repeat the value, which may be of any length."""
    with pytest.raises(MalformedAnnotationError, match=f"^{re.escape(ALLOCATION)} {re.escape(fault)}$"):
        promises(pod(container("c0", mem=4), allocation=text), RESOURCES)
    with pytest.raises(MalformedAnnotationError, match=f"^{re.escape(INIT_ALLOCATION)} {re.escape(fault)}$"):
        promises(pod(container("c0", mem=4), init=text), RESOURCES)


def test_the_longest_promise_that_a_scheduler_of_ours_writes_can_be_read() -> None:
    """Every container that a pod may have with 64 GPUs of the highest positions, and these as large as they may be."""
    places = dict.fromkeys(range(MOST_GPUS - 64, MOST_GPUS), 1 << 20)
    text = json.dumps({str(n): places for n in range(MOST_CONTAINERS)}, separators=(",", ":"))
    assert len(text) <= LONGEST[ALLOCATION]
    containers = [container(f"c{n}", count=len(places), index=n) for n in range(MOST_CONTAINERS)]
    assert len(promises(pod(*containers, allocation=text), RESOURCES)) == MOST_CONTAINERS


def test_a_list_that_nobody_would_read_is_not_written() -> None:
    """A pod that bypassed the scheduler can have more containers; those on one GPU still have its number."""
    many = [container(f"c{n}", mem=1, index=n) for n in range(12_000)]
    actual = {(each.name, Kind.MEMORY): {0: 1} for each in many}
    written = assignment(pod(*many), actual, RESOURCES, [12_000], 7)
    assert written == {ASSIGNED: "true", POD: "12000", DEV: "12000", IDX: "0"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("012x") | st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.none() | st.text() | st.integers().map(str),
    st.none() | st.text() | JSON.map(json.dumps),
    st.none() | st.text() | JSON.map(json.dumps),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from(ContainerKind)), max_size=3),
    st.none() | st.text(),
)
def test_junk_on_a_pod_is_malformed_at_worst(
    idx: str | None,
    allocation: str | None,
    init: str | None,
    wanted: list[tuple[int, int, ContainerKind]],
    mark: str | None,
) -> None:
    containers = [container(f"c{n}", mem=mem, count=count, kind=kind) for n, (mem, count, kind) in enumerate(wanted)]
    there = pod(*containers, idx=idx, allocation=allocation, init=init, assigned=mark)
    try:
        found = promises(there, RESOURCES)
    except MalformedAnnotationError:
        found = {}
    limits = {(c.name, r.kind): c.limits.get(r.name) for c in containers for r in RESOURCES}
    for (name, kind), promise in found.items():
        assert limits[name, kind] == (sum(n for _, n in promise.shares) if kind is Kind.MEMORY else len(promise.shares))
    actual: Mapping[tuple[str, Kind], Mapping[int, int]] = {
        (c.name, Kind.MEMORY): {1: c.limits[MEM.name]} for c in containers if MEM.name in c.limits
    }
    assigned(there, actual)


# --- the agent's annotations


def assigned(there: Pod, actual: Mapping[tuple[str, Kind], Mapping[int, int]]) -> Mapping[str, str]:
    """Return the annotations of a pod at time 7, on a node of GPUs with 15 shares each, and one with 24 at place 20."""
    return assignment(there, actual, RESOURCES, (*(15,) * 20, 24), 7)


def settled(there: Pod, actual: Mapping[tuple[str, Kind], Mapping[int, int]]) -> Pod:
    """The pod with the annotations of `assignment`."""
    return replace(there, annotations={**there.annotations, **assigned(there, actual)})


def unpromised(*containers: Container) -> Pod:
    """A pod bound by a scheduler that knows no GPUs."""
    return Pod("u", "default", "a", containers=containers)


def test_a_pod_that_no_scheduler_has_written_on_tells_where_it_is() -> None:
    there = unpromised(container("c0", mem=3))
    actual = {("c0", Kind.MEMORY): {1: 3}}
    assert assigned(there, actual) == {
        IDX: "1",
        POD: "3",
        DEV: "15",
        ASSIGNED: "true",
        ASSUME_TIME: "7",
        ALLOCATION: '{"0":{"1":3}}',
    }
    after = settled(there, actual)
    assert promises(after, RESOURCES) == {("c0", Kind.MEMORY): Promise(((1, 3),))}
    assert assigned(after, actual) == {}


def test_containers_on_different_gpus_are_told_by_the_list_alone() -> None:
    """The larger of the two GPUs decides the shares of a GPU."""
    found = assigned(
        unpromised(container("c0", mem=3), container("c2", mem=4)),
        {("c0", Kind.MEMORY): {1: 3}, ("c2", Kind.MEMORY): {20: 4}},
    )
    assert found == {
        POD: "7",
        DEV: "24",
        ASSIGNED: "true",
        ASSUME_TIME: "7",
        ALLOCATION: '{"0":{"1":3},"2":{"20":4}}',
    }


def test_whole_gpus_are_told_with_all_of_their_shares() -> None:
    found = assigned(unpromised(container("c0", count=2)), {("c0", Kind.COUNT): {0: 15, 20: 24}})
    assert (found[POD], found[DEV], found[ALLOCATION]) == ("39", "24", '{"0":{"0":15,"20":24}}')
    assert IDX not in found


def test_a_pod_whose_init_container_alone_asks_has_no_list() -> None:
    there = unpromised(container("i0", mem=4, kind=INIT))
    actual = {("i0", Kind.MEMORY): {2: 4}}
    assert assigned(there, actual) == {IDX: "2", POD: "4", DEV: "15", ASSIGNED: "true", ASSUME_TIME: "7"}
    assert promises(settled(there, actual), RESOURCES) == {("i0", Kind.MEMORY): Promise(((2, 4),))}
    assert assigned(settled(there, actual), actual) == {}


def test_init_containers_of_a_pod_on_two_gpus_have_a_list_of_their_own() -> None:
    there = unpromised(container("i0", mem=4, kind=INIT), container("i1", mem=4, kind=INIT))
    actual = {("i0", Kind.MEMORY): {0: 4}, ("i1", Kind.MEMORY): {1: 4}}
    assert assigned(there, actual) == {
        POD: "4",
        DEV: "15",
        ASSIGNED: "true",
        ASSUME_TIME: "7",
        INIT_ALLOCATION: '{"0":{"0":4},"1":{"1":4}}',
    }
    assert assignment(settled(there, actual), actual, RESOURCES, (15, 15), 8) == {}


def test_a_sidecar_is_told_of_where_it_is_not_beside_the_others() -> None:
    there = unpromised(container("s0", mem=2, kind=SIDECAR), container("c0", mem=3))
    beside = {("s0", Kind.MEMORY): {1: 2}, ("c0", Kind.MEMORY): {1: 3}}
    assert INIT_ALLOCATION not in assigned(there, beside)
    elsewhere = {("s0", Kind.MEMORY): {0: 2}, ("c0", Kind.MEMORY): {1: 3}}
    found = assigned(there, elsewhere)
    assert (found[ALLOCATION], found[INIT_ALLOCATION]) == ('{"0":{"1":3}}', '{"0":{"0":2}}')
    assert assigned(settled(there, elsewhere), elsewhere) == {}


def test_a_pod_holds_what_its_containers_hold_at_one_moment() -> None:
    """2 of the sidecar and 6 of the init container after it; later 2 + 3 + 1. The first init container runs alone."""
    there = unpromised(
        container("i0", mem=7, kind=INIT),
        container("s1", mem=2, kind=SIDECAR),
        container("i2", mem=6, kind=INIT),
        container("c0", mem=3),
        container("c1", mem=1),
    )
    actual = {(c.name, Kind.MEMORY): {0: c.limits[MEM.name]} for c in there.containers}
    assert assigned(there, actual)[POD] == "8"


def test_a_place_written_by_the_pods_owner_alone_is_corrected() -> None:
    there = replace(unpromised(container("c0", mem=3)), annotations={IDX: "9", ASSUME_TIME: "5"})
    found = assigned(there, {("c0", Kind.MEMORY): {1: 3}})
    assert (found[IDX], found[ALLOCATION]) == ("1", '{"0":{"1":3}}')
    assert ASSUME_TIME not in found


KEPT: dict[str, tuple[Pod, Places, dict[str, str]]] = {
    "a promise kept is marked": (pod(C0, idx="1"), mem(c0={1: 4}), {ASSIGNED: "true"}),
    "what is marked is not written again": (pod(C0, idx="1", assigned="true"), mem(c0={1: 4}), {}),
    "a list that is right stays as it was written": (
        pod(C0, allocation='{ "0": {"1": 2, "0": 2} }'),
        mem(c0={0: 2, 1: 2}),
        {ASSIGNED: "true"},
    ),
    "the size of a whole GPU is ignored": (
        pod(container("c0", count=2), allocation='{"0":{"0":1,"1":1}}'),
        {("c0", Kind.COUNT): {0: 15, 1: 15}},
        {ASSIGNED: "true"},
    ),
    "a mark without a promise is completed": (
        pod(C0),
        mem(c0={1: 4}),
        {ASSIGNED: "true", IDX: "1", POD: "4", ALLOCATION: '{"0":{"1":4}}'},
    ),
    # Gpushare's extender would never free memory whose position changed after it wrote it.
    "a position stays, and the list is added": (
        pod(I0, C0, idx="1"),
        mem(i0={0: 2}, c0={0: 4}),
        {ASSIGNED: "true", ALLOCATION: '{"0":{"0":4}}'},
    ),
    "a whole GPU that was swapped": (
        pod(container("c0", count=1), idx="1"),
        {("c0", Kind.COUNT): {0: 15}},
        {ASSIGNED: "true", ALLOCATION: '{"0":{"0":15}}'},
    ),
    "containers on different GPUs, of which one was promised": (
        pod(C0, C1, idx="1"),
        mem(c0={1: 4}, c1={0: 3}),
        {ASSIGNED: "true", ALLOCATION: '{"0":{"1":4},"1":{"0":3}}'},
    ),
    "the list is corrected": (
        pod(C0, C1, allocation='{"0":{"0":2,"1":2},"1":{"0":3}}'),
        mem(c0={1: 2, 3: 2}, c1={0: 3}),
        {ASSIGNED: "true", ALLOCATION: '{"0":{"1":2,"3":2},"1":{"0":3}}'},
    ),
    "both forms are corrected together": (
        pod(C0, idx="1", allocation='{"0":{"1":4}}'),
        mem(c0={2: 4}),
        {ASSIGNED: "true", IDX: "2", ALLOCATION: '{"0":{"2":4}}'},
    ),
    "init containers have no place in the list": (
        pod(I0, C0, allocation='{"0":{"1":4}}'),
        mem(i0={0: 2}, c0={0: 4}, gone={0: 1}),
        {ASSIGNED: "true", ALLOCATION: '{"0":{"0":4}}'},
    ),
    "a sidecar that was promised another GPU": (
        pod(S1, C0, allocation='{"0":{"1":4}}'),
        mem(s1={0: 1}, c0={1: 4}),
        {ASSIGNED: "true", INIT_ALLOCATION: '{"1":{"0":1}}'},
    ),
    "a malformed list": (
        pod(C0, idx="one", allocation="?"),
        mem(c0={2: 4}),
        {ASSIGNED: "true", IDX: "2", ALLOCATION: '{"0":{"2":4}}'},
    ),
    "a malformed position": (pod(C0, idx="one"), mem(c0={2: 4}), {ASSIGNED: "true", IDX: "2"}),
    "a malformed position of two GPUs": (
        pod(C0, C1, idx="one"),
        mem(c0={2: 4}, c1={0: 3}),
        {ASSIGNED: "true", ALLOCATION: '{"0":{"2":4},"1":{"0":3}}'},
    ),
    "of both resources the position is that of gpu-mem": (
        pod(C0, container("c1", count=1), idx="1", allocation='{"0":{"1":4},"1":{"1":1}}'),
        {**mem(c0={2: 4}), ("c1", Kind.COUNT): {0: 15}},
        {ASSIGNED: "true", IDX: "2", ALLOCATION: '{"0":{"2":4},"1":{"0":15}}'},
    ),
    "no devices": (pod(container("c0")), {}, {}),
}
"""A promise, the devices that the kubelet allocated, and what the agent writes."""


@pytest.mark.parametrize(("there", "actual", "written"), KEPT.values(), ids=KEPT)
def test_a_promise_is_marked_as_kept_or_corrected(there: Pod, actual: Places, written: dict[str, str]) -> None:
    """Equal pods can be swapped. What is written is right, so that nothing is written afterwards."""
    assert assigned(there, actual) == written
    assert assigned(settled(there, actual), actual) == {}


@given(
    really=st.lists(
        st.tuples(st.integers(1, 4), st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1)), min_size=1
    ),
    before=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    single=st.booleans(),
)
def test_written_annotations_read_as_the_actual_allocation(
    really: list[tuple[int, dict[int, int]]], before: list[int], *, single: bool
) -> None:
    """Several containers, each on one GPU or on several, after any promise."""
    containers = [container(f"c{n}", mem=sum(gpus.values()), index=n) for n, (_, gpus) in enumerate(really)]
    promised = {str(n): {str(before[n % 8]): c.limits[MEM.name]} for n, c in enumerate(containers)}
    there = pod(*containers, **({"idx": str(before[0])} if single else {"allocation": json.dumps(promised)}))
    actual = {(f"c{n}", Kind.MEMORY): gpus for n, (_, gpus) in enumerate(really)}
    after = settled(there, actual)
    expected = {key: Promise(tuple(sorted(gpus.items()))) for key, gpus in actual.items()}
    assert promises(after, RESOURCES) == expected
    assert assigned(after, actual) == {}


# --- the codec

places = st.dictionaries(
    st.integers(0, 9), st.dictionaries(st.integers(0, 1 << 20), st.integers(1, 1 << 20), max_size=9), max_size=9
)


@given(st.builds(PodAllocation, places, places, st.none() | st.integers(0, 1 << 20)))
def test_an_allocation_reads_as_it_was_written(allocation: PodAllocation) -> None:
    assert read_allocation(write_allocation(allocation)) == allocation


def test_an_allocation_is_written_in_acks_form_and_without_empty_lists() -> None:
    assert write_allocation(PodAllocation()) == {}
    assert write_allocation(PodAllocation({0: {2: 4, 3: 4}}, {1: {2: 1}}, 2)) == {
        ALLOCATION: '{"0":{"2":4,"3":4}}',
        INIT_ALLOCATION: '{"1":{"2":1}}',
        IDX: "2",
    }


def test_annotations_of_others_read_the_same_once_rewritten() -> None:
    """Unknown keys, numbers as texts, spaces and GPUs with zero shares are dropped; no place is."""
    foreign = {IDX: "007", ALLOCATION: '{ "0": {"1": "4", "2": 0}, "3": {} }', "gpu-device-plugin/next": "{}"}
    allocation = read_allocation(foreign)
    assert allocation == PodAllocation({0: {1: 4}, 3: {}}, {}, 7)
    assert read_allocation(write_allocation(allocation)) == allocation


def test_an_allocation_of_containers_goes_by_their_kind_and_index() -> None:
    on = {0: 3}, {0: 1, 2: 1}, {2: 5}
    containers = container("c1"), container("i0", kind=INIT), container("s1", kind=SIDECAR)
    assert PodAllocation.of(zip(containers, on, strict=True), {0, 2}) == PodAllocation({1: on[0]}, {0: on[1], 1: on[2]})
    assert PodAllocation.of([(containers[0], on[0])], [0]) == PodAllocation({1: on[0]}, single=0)
