"""One candidate leads at a time, whatever happens to the API server or to one of them."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ForbiddenError, UnavailableError
from gpu_device_plugin.kubernetes.lease import Lease, LeaseTiming
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage, Hang, Reset, Slow, Trouble
from tests.patience import stretched

PATIENT = LeaseTiming(lease_s=3600, renew_s=3000, retry_s=0.02, release_s=3000)
"""Nothing expires."""


def lapsing(*, renew_s: float, lease_s: int = 1) -> LeaseTiming:
    """Return the times of a lease that a trouble costs while a test waits, and a busy machine does not."""
    longer = stretched(1)
    return LeaseTiming(lease_s=math.ceil(longer * lease_s), renew_s=longer * renew_s, retry_s=0.02)


@asynccontextmanager
async def standing(server: ApiServer, identity: str, timing: LeaseTiming | None = None) -> AsyncIterator[Lease]:
    timing = timing or lapsing(renew_s=0.6)
    async with Client(ClusterConfig(server.url, token=identity)) as client, asyncio.TaskGroup() as tasks:
        lease = Lease(client, "kube-system", "gpushare", identity, timing=timing)
        running = tasks.create_task(lease.run())
        yield lease
        running.cancel()


def spec(server: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("leases", "gpushare", "kube-system")["spec"]
    return found


def held_by(server: ApiServer, holder: str, **more: Any) -> None:
    """Let somebody else have taken the lease."""
    metadata = {"name": "gpushare", "namespace": "kube-system", "annotations": {"theirs": "1"}}
    fields = {"holderIdentity": holder, "leaseDurationSeconds": 3600, "leaseTransitions": 4, **more}
    server.add({"kind": "Lease", "metadata": metadata, "spec": fields})


async def test_the_first_one_leads_and_renews(server: ApiServer, eventually: Any) -> None:
    async with standing(server, "a", PATIENT) as lease:
        assert not lease.leading
        assert repr(lease) == "<Lease kube-system/gpushare: held by None>"
        await eventually(lambda: lease.leading)
        first = spec(server)
        assert (first["holderIdentity"], first["leaseDurationSeconds"], first["leaseTransitions"]) == ("a", 3600, 0)
        await eventually(lambda: spec(server)["renewTime"] > first["renewTime"])
        assert spec(server)["acquireTime"] == first["acquireTime"]
        assert (lease.holder, repr(lease)) == ("a", "<Lease kube-system/gpushare: ours>")
        assert lease.leader.version == 1
    assert {request.verb for request in server.requests[2:-2]} == {"update"}  # renewed without a look


async def test_who_stops_makes_room_at_once(server: ApiServer, eventually: Any) -> None:
    """Nothing expires here within an hour."""
    async with AsyncExitStack() as stack:
        async with standing(server, "a", PATIENT) as first:
            await eventually(lambda: first.leading)
            second = await stack.enter_async_context(standing(server, "b", PATIENT))
            await eventually(lambda: second.holder == "a")
            assert not second.leading
        assert not first.leader.value
        await eventually(lambda: second.leading)
        assert spec(server)["leaseTransitions"] == 1


async def test_another_holder_is_waited_for_however_old_its_claim_says_it_is(
    server: ApiServer, eventually: Any
) -> None:
    """Its clock may be wrong; what counts is how long we see nothing change."""
    held_by(server, "other", renewTime="2001-01-01T00:00:00.000000Z")
    async with standing(server, "a") as lease:
        await eventually(lambda: server.count("get", "leases") >= 5)
        assert not lease.leading
        assert lease.holder == "other"
    assert spec(server)["holderIdentity"] == "other"


async def test_a_holder_that_renews_no_more_is_replaced(server: ApiServer, eventually: Any) -> None:
    """Its own duration counts, here one second; and what it wrote elsewhere in the object stays."""
    held_by(server, "other", leaseDurationSeconds=1)
    async with standing(server, "a") as lease:
        await eventually(lambda: lease.leading)
        assert spec(server)["leaseTransitions"] == 5
        assert server.get("leases", "gpushare", "kube-system")["metadata"]["annotations"] == {"theirs": "1"}


async def test_a_lease_that_was_given_back_is_taken(server: ApiServer, eventually: Any) -> None:
    held_by(server, "")
    async with standing(server, "a") as lease:
        await eventually(lambda: lease.leading)
        assert spec(server)["leaseTransitions"] == 5


async def test_of_two_candidates_one_leads(server: ApiServer, eventually: Any) -> None:
    async with AsyncExitStack() as stack:
        candidates = [await stack.enter_async_context(standing(server, name)) for name in "abc"]
        await eventually(lambda: any(lease.leading for lease in candidates))
        renewed = server.count("update", "leases") + 5

        def renewed_by_one() -> bool:
            assert sum(lease.leading for lease in candidates) <= 1
            return server.count("update", "leases") >= renewed

        await eventually(renewed_by_one)


async def test_a_leader_in_a_black_hole_leads_no_more_before_another_does(server: ApiServer, eventually: Any) -> None:
    async with standing(server, "a") as first:
        await eventually(lambda: first.leading)
        # Its own lease outlasts every pause of a busy machine: one change of the leader is what this is about.
        async with standing(server, "b", PATIENT) as second:
            server.fail(Hang(), tokens={"a"})
            await eventually(lambda: second.leading, pause_s=0.001)
            assert not first.leading
            assert isinstance(first.problem, UnavailableError)
            server.heal()
            await eventually(lambda: first.problem is None)
            assert first.holder == "b"
            assert not first.leading
            # Before the second ends: it releases its lease then, and the first may take it once more.
            assert spec(server)["leaseTransitions"] == 1


TROUBLES: list[Trouble] = [
    Answer(500),
    Answer(429),
    Answer(409),
    Answer(401),
    Hang(),
    Reset(),
    Reset(done=True),
    Hang(done=True),
    Garbage(),
    Garbage(b"{}"),
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
async def test_a_short_trouble_does_not_cost_the_lead(server: ApiServer, eventually: Any, trouble: Trouble) -> None:
    async with standing(server, "a", lapsing(lease_s=10, renew_s=3)) as lease:
        await eventually(lambda: lease.leading)
        fault = server.fail(trouble, times=1)
        await eventually(lambda: fault.happened)
        seen = server.count("update", "leases")
        await eventually(lambda: server.count("update", "leases") > seen + 1)
        assert lease.leader.version == 1
    assert spec(server)["leaseTransitions"] == 0


@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
async def test_a_long_trouble_costs_the_lead_for_as_long_as_it_lasts(
    server: ApiServer, eventually: Any, trouble: Trouble
) -> None:
    async with standing(server, "a", lapsing(renew_s=0.1)) as lease:
        await eventually(lambda: lease.leading)
        server.fail(trouble, verbs={"get", "update", "create"})
        await eventually(lambda: not lease.leading)
        await eventually(lambda: not lease.leader.value)
        server.heal()
        await eventually(lambda: lease.leading)


async def test_a_create_whose_answer_was_lost_is_found(server: ApiServer, eventually: Any) -> None:
    server.fail(Reset(done=True), verbs={"create"}, times=1)
    async with standing(server, "a", PATIENT) as lease:
        await eventually(lambda: lease.leading)
    assert server.count("create", "leases") == 1


async def test_two_that_create_at_once_do_not_both_lead(server: ApiServer, eventually: Any) -> None:
    server.fail(Slow(0.05), verbs={"create"}, times=2)
    async with standing(server, "a", PATIENT) as first, standing(server, "b", PATIENT) as second:
        await eventually(lambda: server.count("create", "leases") == 2)
        await eventually(lambda: first.leading or second.leading)
        await eventually(lambda: first.holder == second.holder != "")
        assert first.leading != second.leading


async def test_a_lease_taken_from_us_ends_the_lead(server: ApiServer, eventually: Any) -> None:
    async with standing(server, "a", PATIENT) as lease:
        await eventually(lambda: lease.leading)
        server.patch("leases", "gpushare", {"spec": {"holderIdentity": "b"}}, "kube-system")
        await eventually(lambda: not lease.leading)
        assert lease.holder == "b"
    assert spec(server)["holderIdentity"] == "b"


async def test_a_label_written_on_the_lease_costs_nothing(server: ApiServer, eventually: Any) -> None:
    async with standing(server, "a", PATIENT) as lease:
        await eventually(lambda: lease.leading)
        server.patch("leases", "gpushare", {"metadata": {"labels": {"x": "y"}}}, "kube-system")
        seen = server.count("update", "leases")
        await eventually(lambda: server.count("update", "leases") > seen + 3)
        assert lease.leader.version == 1
    assert server.get("leases", "gpushare", "kube-system")["metadata"]["labels"] == {"x": "y"}


async def test_a_lease_that_was_deleted_is_made_anew(server: ApiServer, eventually: Any) -> None:
    async with standing(server, "a", PATIENT) as lease:
        await eventually(lambda: lease.leading)
        server.delete("leases", "gpushare", "kube-system")
        await eventually(lambda: server.count("create", "leases") == 2)
        await eventually(lambda: lease.leading)


async def test_what_cannot_be_given_back_is_said(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with standing(server, "a", PATIENT) as lease:
        await eventually(lambda: lease.leading)
        server.fail(Reset())
    assert "is not released, it expires" in caplog.text
    assert spec(server)["holderIdentity"] == "a"


async def test_another_ones_lease_is_not_given_back(server: ApiServer, eventually: Any) -> None:
    async with standing(server, "a", LeaseTiming(3600, 3000, 1000)) as lease:
        await eventually(lambda: lease.leading)
        server.patch("leases", "gpushare", {"spec": {"holderIdentity": "b"}}, "kube-system")
    assert spec(server)["holderIdentity"] == "b"


async def test_a_missing_right_is_named_once(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.allowed = frozenset({("get", "leases")})
    async with standing(server, "a", PATIENT) as lease:
        await eventually(lambda: server.count("create", "leases") >= 3)
        assert isinstance(lease.problem, ForbiddenError)
        server.allowed = None
        await eventually(lambda: lease.leading)
    said = [record.message for record in caplog.records if "cannot be acquired" in record.message]
    why = "403 Forbidden; grant 'create' on 'leases' of the API group coordination.k8s.io to the service account"
    assert said == [
        f"the lease kube-system/gpushare cannot be acquired or renewed: create leases kube-system: {why}; trying again",
    ]


@pytest.mark.parametrize(("lease_s", "renew_s", "retry_s"), [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_that_cannot_work_are_refused(lease_s: int, renew_s: float, retry_s: float) -> None:
    with pytest.raises(ValueError, match="must be longer"):
        LeaseTiming(lease_s, renew_s, retry_s)
