"""Which connection ends when there are too many: one of whoever holds most, and of those the idlest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.aio.connection_limit import Connection, ConnectionLimit, ConnectionStage, Limits, network_of

KUBELET, ATTACKER = "10.0.0.1", "10.1.0.7"
LIMITS = Limits(total=8, each=4, few=2)


class Port:
    """A port, with names for its connections: their address and how many came before from there."""

    def __init__(self, limits: Limits | None = LIMITS) -> None:
        self.limit = ConnectionLimit(limits)
        self.names: dict[Connection, str] = {}
        self.by_name: dict[str, Connection] = {}
        self.counts: dict[str, int] = {}

    def come(self, address: str, stage: ConnectionStage = ConnectionStage.SILENT) -> str | None:
        """Let one come, and return which ends for it."""
        new, ended = self.limit.enter(address)
        name = f"{address}#{self.counts.setdefault(address, 0)}"
        self.counts[address] += 1
        self.names[new], self.by_name[name] = name, new
        if ended is not new:
            new.stage = stage
        return None if ended is None else self.names[ended]

    def go(self, name: str) -> None:
        self.limit.leave(self.by_name[name])


def test_an_address_that_holds_its_part_loses_its_own_oldest_and_nobody_else_any() -> None:
    port = Port()
    assert [port.come(KUBELET), *(port.come(ATTACKER) for _ in range(4))] == [None] * 5
    assert [port.come(ATTACKER) for _ in range(3)] == [f"{ATTACKER}#{number}" for number in range(3)]
    assert len(port.limit) == 5


def test_one_that_says_nothing_goes_before_one_that_has_begun() -> None:
    port = Port()
    stages = (ConnectionStage.BEGUN, ConnectionStage.ANSWERING, ConnectionStage.SILENT, ConnectionStage.BEGUN)
    for stage in stages:
        port.come(ATTACKER, stage)
    assert port.come(ATTACKER, ConnectionStage.ANSWERING) == f"{ATTACKER}#2"
    assert port.come(ATTACKER, ConnectionStage.ANSWERING) == f"{ATTACKER}#0"
    assert port.come(ATTACKER, ConnectionStage.ANSWERING) == f"{ATTACKER}#3"


def test_a_request_in_progress_is_not_cut_by_newcomers_of_its_own_address() -> None:
    """The newcomer is turned away."""
    port = Port()
    for _ in range(4):
        port.come(ATTACKER, ConnectionStage.ANSWERING)
    assert port.come(ATTACKER) == f"{ATTACKER}#4"
    assert len(port.limit) == 4


def test_two_attackers_with_requests_in_progress_keep_no_third_address_out() -> None:
    port = Port()
    for address in (ATTACKER, "10.1.0.8"):
        for _ in range(4):
            port.come(address, ConnectionStage.ANSWERING)
    assert port.come(KUBELET) == f"{ATTACKER}#0"
    assert port.come(KUBELET) == "10.1.0.8#0"


def test_addresses_of_one_network_keep_no_other_network_out() -> None:
    """Each of eight addresses has a request in progress: more than the part of one address and of its network."""
    port = Port()
    for number in range(8):
        port.come(f"fd00:1::{number}", ConnectionStage.ANSWERING)
    assert port.come("fd00:2::1") == "fd00:1::0#0"
    port.by_name["fd00:2::1#0"].stage = ConnectionStage.ANSWERING
    for number in range(20, 40):
        ended = port.come(f"fd00:1::{number}", ConnectionStage.ANSWERING)
        assert ended is not None
        assert ended.startswith("fd00:1:")


def test_where_all_hold_little_and_are_being_answered_the_newcomer_is_turned_away() -> None:
    port = Port()
    for number in range(4):
        for _ in range(2):
            port.come(f"10.{number}.0.1", ConnectionStage.ANSWERING)
    assert port.come("10.9.0.1") == "10.9.0.1#0"


def test_one_that_went_makes_room() -> None:
    port = Port()
    for number in range(8):
        port.come(f"10.{number}.0.1")
    for _ in range(2):  # it may be told twice
        port.go("10.3.0.1#0")
    assert port.come(KUBELET) is None
    assert port.come(KUBELET) == "10.0.0.1#0"


def test_without_limits_every_connection_is_kept() -> None:
    port = Port(None)
    assert {port.come(KUBELET) for _ in range(1000)} == {None}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.255", True),
        ("10.0.0.1", "10.0.1.1", False),
        ("::ffff:10.0.0.1", "10.0.0.2", True),
        ("fd00:0:0:1::1", "fd00:0:0:1:ffff::", True),
        ("fd00:0:0:1::1", "fd00:0:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%lo", True),
        ("::1", "::2", True),
    ],
)
def test_a_network_is_what_the_pods_of_a_node_share(one: str, other: str, *, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


ADDRESSES = st.sampled_from([f"10.0.{net}.{host}" for net in range(3) for host in range(1, 5)])


@given(
    st.lists(
        st.tuples(
            ADDRESSES, st.sampled_from([ConnectionStage.SILENT, ConnectionStage.BEGUN, ConnectionStage.ANSWERING])
        )
    )
)
def test_the_limits_hold_and_no_address_loses_to_one_that_holds_more(
    arrivals: list[tuple[str, ConnectionStage]],
) -> None:
    """Whatever comes. What an address holds up to a few does not count as more."""
    port = Port()
    held: dict[str, set[str]] = {}
    for address, stage in arrivals:
        held.setdefault(address, set()).add(f"{address}#{port.counts.get(address, 0)}")
        beyond = {each: max(len(names) - LIMITS.few, 0) for each, names in held.items()}
        ended = port.come(address, stage)
        if ended is not None:
            loser = ended.partition("#")[0]
            held[loser].remove(ended)
            assert beyond[loser] >= beyond[address]
        assert all(len(names) <= LIMITS.each for names in held.values())
        assert sum(map(len, held.values())) == len(port.limit) <= LIMITS.total
