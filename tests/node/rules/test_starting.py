"""Whether the devices of a container that is about to start are still its own."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.admission import DELETING, FREED, Start, why_not_its_own
from gpu_device_plugin.node.rules.ledger import IdState, Ledger

IDS = ("GPU-0::0", "GPU-0::1")
CALLED = 100.0
UID = "6f1f1d8e-7a4b-4b0e-9c55-0d2f6b1c7a11"
HASH = "0123456789abcdef0123456789abcdef"

MAIN, INIT = Container("main", ContainerKind.APP, 0), Container("init", ContainerKind.INIT, 0)
LIVING = Pod(UID, "default", "p", containers=(INIT, MAIN))
LEAVING = Pod(UID, "default", "p", deleting=True, containers=(INIT, MAIN))
MIRROR = Pod("other", "default", "p", deleting=True, static_uid=HASH, containers=(MAIN,))


def own(container: str = "main", uid: str = UID) -> Allocation:
    return Allocation(uid, container, Kind.MEMORY, frozenset(IDS))


def why(
    owners: Sequence[Allocation],
    pods: Mapping[str, Pod] | None,
    listed: Collection[str] | None,
    ledger: Ledger | None = None,
    *,
    named: bool = False,
) -> str:
    ledger = Ledger(dict.fromkeys(IDS, IdState())) if ledger is None else ledger
    start = Start(frozenset(IDS), CALLED, named)
    return why_not_its_own(start, ledger=ledger, owners=owners, pods=pods, listed=listed)


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (Ledger(), FREED),
        (Ledger({IDS[0]: IdState()}), FREED),
        (Ledger({IDS[0]: IdState(), IDS[1]: IdState(freed_at=101.0)}), FREED),
        # Another container was given them while this one waited.
        (Ledger({IDS[0]: IdState(), IDS[1]: IdState(granted_at=101.0)}), FREED),
        (Ledger({IDS[0]: IdState(), IDS[1]: IdState(granted_at=99.0)}), ""),
        # While the kubelet's checkpoint cannot be read, the ledger may lack what is in use.
        (Ledger(certain=False), ""),
    ],
)
def test_devices_that_left_the_ledger_are_not_its_own(ledger: Ledger, expected: str) -> None:
    assert why([own()], {UID: LIVING}, IDS, ledger) == expected


@pytest.mark.parametrize("listed", [None, (), IDS[:1], IDS])
def test_a_pod_that_is_being_deleted_does_not_start_but_a_static_one_does(listed: Collection[str] | None) -> None:
    assert why([own()], {UID: LEAVING}, listed) == DELETING
    gone = listed is not None and len(listed) < 2
    assert why([own(uid=HASH)], {HASH: MIRROR}, listed) == (FREED if gone else "")


def test_what_the_kubelet_lists_is_a_containers_own_whatever_the_api_shows() -> None:
    """A pod may reach the kubelet before our watch."""
    for pods in ({}, {UID: LIVING}, None):
        assert why([own()], pods, {*IDS, "GPU-0::2"}) == ""


def test_a_pod_that_the_api_does_not_show_any_more_is_gone_though_the_kubelet_lists_it_still() -> None:
    start = Start(frozenset(IDS), CALLED, named=True, living=frozenset({UID}))
    for pods, expected in (({}, FREED), ({UID: LIVING}, ""), (None, "")):
        ledger = Ledger(dict.fromkeys(IDS, IdState()))
        assert why_not_its_own(start, ledger=ledger, owners=[own()], pods=pods, listed=IDS) == expected


def test_what_the_kubelet_does_not_list_is_freed_though_our_watch_does_not_show_it_yet() -> None:
    assert why([own()], {UID: LIVING}, IDS[:1]) == FREED
    assert why([own("init"), own()], {UID: LIVING}, ()) == FREED
    # Ordinary init containers are never listed.
    assert why([own("init")], {UID: LIVING}, ()) == ""


def test_a_pod_that_the_api_does_not_show_is_gone_unless_the_api_is_away_or_the_pod_is_static() -> None:
    for listed in (None, ()):
        assert why([own()], {}, listed) == FREED
        assert why([own()], None, listed) == ""
        assert why([own(uid=HASH)], {}, listed) == ""


@pytest.mark.parametrize("pods", [None, {}, {UID: LIVING}])
def test_a_container_that_no_record_names_any_more_has_lost_its_devices(pods: Mapping[str, Pod] | None) -> None:
    """A pod that was deleted soon after it was admitted may never be seen in the checkpoint."""
    unreadable = Ledger(dict.fromkeys(IDS, IdState()), certain=False)
    assert why([], pods, ()) == FREED
    assert why([], pods, None, named=True) == FREED
    assert why([], pods, None) == ""
    assert why([], pods, (), unreadable, named=True) == ""
    assert why([], pods, IDS) == ""
