"""The kubelet's records and the API's pods say together which container has how much of which GPU."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus, container_gpus
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.memory import MIB_PER_GIB
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.ledger import Reservation
from tests.nodes import ids, node, uuid

SHARES = node(16, 16).shares


def entry(pod: str, container: str, device_ids: Iterable[str], kind: Kind | None = Kind.MEMORY) -> Allocation:
    return Allocation(pod, container, kind, frozenset(device_ids))


def pod(
    uid: str,
    *names: str,
    init: Iterable[str] = (),
    running: Mapping[str, str] | None = None,
    phase: str = "Running",
    static_uid: str = "",
) -> Pod:
    """Return a pod; `running` are its containers' IDs by name."""
    containers = [Container(name, ContainerKind.INIT, n) for n, name in enumerate(init)]
    containers += [Container(name, ContainerKind.APP, n) for n, name in enumerate(names)]
    return Pod(
        uid,
        "default",
        f"name-of-{uid}",
        phase=phase,
        containers=tuple(containers),
        container_ids=running or {},
        static_uid=static_uid,
    )


def test_each_share_counts_its_size_and_a_whole_gpu_all_of_it() -> None:
    found = container_gpus(
        [entry("a", "main", [*ids(0, [1, 2]), *ids(1, [5])]), entry("b", "main", [uuid(1)], Kind.COUNT)], [], SHARES
    )
    both = {uuid(0): 2 * MIB_PER_GIB, uuid(1): MIB_PER_GIB}
    whole = {uuid(1): 16 * MIB_PER_GIB}
    assert found == (ContainerGpus("a", "main", both, both), ContainerGpus("b", "main", whole, whole, whole=True))


def test_a_gpu_that_another_resource_gave_counts_as_given_whole() -> None:
    """Of other plugins' devices only those named like our GPUs are found among them."""
    (found,) = container_gpus([entry("a", "main", [*ids(1, [3]), "other"], None)], [], SHARES)
    assert (found.granted, found.whole) == ({uuid(1): 16 * MIB_PER_GIB}, True)


def test_devices_of_gpus_that_are_gone_are_left_out() -> None:
    assert container_gpus([entry("a", "main", ["GPU-gone::0", "GPU-other"])], [], SHARES) == ()
    (found,) = container_gpus([entry("a", "main", ["GPU-gone::0", *ids(0, [3])])], [], SHARES)
    assert found.granted == {uuid(0): MIB_PER_GIB}


def test_the_container_runs_under_the_id_that_the_api_tells() -> None:
    known = pod("a", "main", "other", running={"main": "5ad9"})
    first, second = container_gpus([entry("a", "main", ids(0, [0])), entry("a", "other", ids(0, [1]))], [known], SHARES)
    assert (first.pod, first.container_id) == (known, "5ad9")
    assert (second.pod, second.container_id) == (known, "")


def test_a_static_pod_is_known_by_the_hash_of_its_file() -> None:
    mirror = pod("uid-of-the-mirror", "main", running={"main": "5ad9"}, static_uid="6a1d")
    (found,) = container_gpus([entry("6a1d", "main", ids(0, [0]))], [mirror], SHARES)
    assert (found.pod_uid, found.pod, found.container_id) == ("6a1d", mirror, "5ad9")


def test_pods_that_have_ended_hold_nothing() -> None:
    ended = [pod("a", "main", phase="Succeeded"), pod("b", "main", phase="Failed")]
    entries = [entry(uid, "main", ids(0, [n])) for n, uid in enumerate("abcd")]
    assert [each.pod_uid for each in container_gpus(entries, ended, SHARES, {"d"})] == ["c"]


def test_an_init_container_holds_its_devices_while_it_runs() -> None:
    """It hands them on, and the kubelet's checkpoint keeps its entry as long as the pod."""
    entries = [entry("a", "first", ids(0, [0, 1])), entry("a", "main", ids(0, [0, 1, 2]))]
    during = pod("a", "main", init=["first"], running={"first": "5ad9"})
    afterwards = pod("a", "main", init=["first"], running={"main": "77c0"})
    assert [each.container for each in container_gpus(entries, [during], SHARES)] == ["first", "main"]
    assert [each.container for each in container_gpus(entries, [afterwards], SHARES)] == ["main"]


def test_devices_that_are_handed_on_count_once_for_the_pod() -> None:
    """Without the API an init container cannot be told from the others. Two containers share no ID otherwise."""
    entries = [
        entry("a", "first", ids(0, [0, 1])),
        entry("a", "main", ids(0, [0, 1, 2])),
        entry("a", "side", ids(0, [7])),
        entry("b", "main", ids(0, [8])),
    ]
    found = container_gpus(entries, [], SHARES)
    assert [each.granted[uuid(0)] // MIB_PER_GIB for each in found] == [2, 3, 1, 1]
    assert [each.pod_granted[uuid(0)] // MIB_PER_GIB for each in found] == [4, 4, 4, 1]


def test_what_a_container_is_guaranteed_beyond_its_request_counts_for_it_and_its_pod() -> None:
    entries = [
        entry("a", "main", ids(0, [0, 1])),
        entry("a", "side", ids(0, [2])),
        replace(entry("a", "main", ids(0, [3])), source=AllocationSource.CLAIM),
        entry("b", "main", [uuid(1)], Kind.COUNT),
    ]
    reservations = {("a", "main"): Reservation(uuid(0), 3, frozenset(ids(0, [0, 1])))}
    found = container_gpus(entries, [], SHARES, reservations=reservations)
    gib = MIB_PER_GIB
    assert [(dict(h.granted), dict(h.pod_granted)) for h in found] == [
        ({uuid(0): 5 * gib}, {uuid(0): 7 * gib}),
        ({uuid(0): gib}, {uuid(0): 7 * gib}),
        ({uuid(0): gib}, {uuid(0): 7 * gib}),
        ({uuid(1): 16 * gib}, {uuid(1): 16 * gib}),
    ]


def test_growth_on_a_gpu_that_is_gone_is_left_out() -> None:
    reservations = {("a", "main"): Reservation("GPU-gone", 3, frozenset({"GPU-gone::0"}))}
    assert container_gpus([entry("a", "main", ["GPU-gone::0"])], [], SHARES, reservations=reservations) == ()
