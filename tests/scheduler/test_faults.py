"""Whatever becomes of the API server, of a binding or of the extender itself: no GPU is given twice, none is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import aiohttp
import pytest

from gpu_device_plugin.kubernetes.client.api_client import Timing
from gpu_device_plugin.kubernetes.lease import LeaseTiming
from tests import builders
from tests.cluster_double.troubles import Answer, Garbage, Hang, Reset, Slow, Trouble
from tests.patience import patience, stretched
from tests.scheduler.harness import HASTY, LEASE_RIGHTS, PREFIX, QUICK, RIGHTS, ExtenderWorld, Running, world

LOST_SOON = LeaseTiming(lease_s=2, renew_s=1.6, retry_s=0.1)
"""A lead that a leader in trouble loses while a test waits, and one on a busy machine does not."""
IMPATIENT = replace(HASTY, api=Timing(connect_s=1, request_s=0.3, watch_s=1, silence_s=0.2))
"""Notices a dead connection soon."""
FIRST, SECOND = "first", "second"
"""What two extenders log in with, so that trouble can be made for one of them."""
LISTING = replace(QUICK, follow=replace(QUICK.follow, check_s=0.05))
"""Lists often, in case an event never came."""


def one_gpu(w: ExtenderWorld, *names: str) -> None:
    """Make nodes with one GPU of 8 shares."""
    for name in names:
        w.node(name, 8)


# --- Bindings of which nobody knows what became of them --------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [Reset(done=True), Hang(done=True), Answer(500, done=True), Answer(504, done=True)],
    ids=str,
)
async def test_a_binding_that_was_made_but_not_answered_counts_once(trouble: Trouble) -> None:
    """The promise on the pod is the one in the ledger, and the next pod finds the rest."""
    async with world(timings=HASTY) as w:
        w.node("a", 8, 8)
        await w.start()
        w.bindings_meet(trouble)
        w.pod("p", mem=5)
        await w.schedule()
        assert w.where("p") == "a"
        w.api.heal()
        await w.until(lambda: w.only.extender.binding.doubts == 0)
        assert w.only.free("a") == [3, 8]
        w.pod("q", mem=5)
        assert (await w.schedule())["q"].node == "a"
        assert (w.places("p"), w.places("q")) == ({0: 5}, {1: 5})


@pytest.mark.parametrize("trouble", [Reset(), Answer(429), Answer(503), Answer(500), Garbage()], ids=str)
async def test_a_binding_that_was_not_made_is_made_later(trouble: Trouble) -> None:
    """Once or more often, it comes to the same: the pod is bound in the end, and counts once.

    A proxy's page says 200, and has bound nothing.
    """
    async with world() as w:
        one_gpu(w, "a")
        await w.start()
        w.bindings_meet(trouble, times=2)
        w.pod("p", mem=8)

        async with patience(w.api):
            while not w.where("p"):
                await w.schedule()
        await w.until(lambda: w.only.extender.binding.doubts == 0)
        assert (w.places("p"), w.only.free("a")) == ({0: 8}, [0])


async def test_a_binding_that_hangs_keeps_its_gpu_from_others() -> None:
    """The API server may make it yet, so the next pod does not get what was promised to the first."""
    async with world(timings=HASTY) as w:
        one_gpu(w, "a")
        w.node("b", 2)
        await w.start()
        w.bindings_meet(Hang())
        w.pod("p", mem=8)
        found = (await w.schedule())["p"]
        assert found.message.startswith("whether pod default/p is bound to node a is unknown")
        w.pod("q", mem=2, spec={"nodeSelector": {"kubernetes.io/hostname": "a"}})
        w.api.heal()
        # Only the claim is in the way of q: the sum would do. Then the promise of the first is kept.
        pod = w.get("q")
        assert "node a: no GPU has 2 GiB free; there will be room once" in (await w.filter(pod, "a"))["Error"]
        assert await w.bind("q", "a") == "node a: no GPU has 2 GiB free"
        assert await w.bind("p", "a") == ""
        assert (w.only.extender.binding.doubts, w.places("p")) == (0, {0: 8})


# --- Watches that tell late, wrongly or nothing ----------------------------------------------------------------------


async def test_what_was_bound_counts_before_the_watch_tells_of_it() -> None:
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        pods = [w.pod(f"p{n}", mem=5) for n in range(3)]
        await w.seen()
        w.api.reads.hold()
        assert [await w.bind(pod["metadata"]["name"], "a") for pod in pods] == [
            "",
            "",
            "node a: no GPU has 5 GiB free",
        ]
        w.check()
        w.api.reads.release()
        await w.seen()
        assert w.only.free("a") == [3, 3]


async def test_what_a_watch_never_told_is_found_out_by_a_list() -> None:
    """One pod ended, another was bound by somebody else, a node came: nobody was told."""
    async with world(timings=LISTING) as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=5)
        await w.schedule()
        with w.api.watch_gap():
            w.end("p")
            w.pod("theirs", mem=2, node="a")
            w.node("b", 4)
        await w.until(lambda: w.only.extender.fleet.candidates.keys() == {"a", "b"})
        await w.until(lambda: w.only.free("a") == [6, 6])


async def test_a_black_hole_is_noticed_and_left() -> None:
    """What happened behind it is known afterwards."""
    async with world(timings=IMPATIENT) as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=5)
        await w.schedule()
        w.api.black_hole()
        w.pod("q", mem=5)
        error = await w.bind("q", "a")
        assert error, "nothing can be bound now"
        w.end("p")
        w.api.heal()
        await w.until(lambda: w.only.extender.binding.doubts == 0 and w.only.extender.watches["pods"].live)
        await w.seen()
        assert (await w.schedule())["q"].node == "a"
        assert sum(w.only.free("a")) == 11


async def test_an_api_server_that_restarts_finds_the_extender_as_it_was() -> None:
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=5)
        await w.schedule()
        await w.api.stop()
        # What is known is still true, so the scheduler gets answers; but nothing can be bound.
        pod = w.pod("q", mem=4)
        assert (await w.filter(pod, "a"))["NodeNames"] == ["a"]
        assert await w.bind("q", "a") != ""
        w.end("p")
        w.api.store.compact()
        await w.api.start()
        await w.until(lambda: w.only.extender.watches["pods"].live)
        await w.seen()
        assert (await w.schedule())["q"].node == "a"
        assert sum(w.only.free("a")) == 12


async def test_objects_that_cannot_be_read_are_passed_over() -> None:
    async with world() as w:
        one_gpu(w, "a")
        w.api.add({"kind": "Node", "metadata": {"name": "odd"}, "spec": {}, "status": {"capacity": "much"}})
        w.api.add(builders.pod("odd", builders.container(mem=1), node="a") | {"status": {"containerStatuses": "odd"}})
        await w.start()
        w.pod("p", mem=7)
        found = await w.schedule()
        assert found["p"].node == "a"
        assert w.only.extender.watches["pods"].unreadable
        assert w.only.extender.watches["nodes"].unreadable


# --- An extender that is not there, or not yet -----------------------------------------------------------------------


async def test_an_extender_that_does_not_know_the_cluster_yet_says_so() -> None:
    """Its answers would be those of an empty cluster: the pod is tried again, and no node is given up."""
    async with world(timings=HASTY) as w:
        one_gpu(w, "a")
        w.api.fail(Hang(), verbs={"list"}, resources={"pods"})
        running = await w.launch()
        pod = w.pod("p", mem=8)
        await w.until(lambda: running.extender.watches["nodes"].synced)
        answer = await w.filter(pod, "a")
        assert answer["Error"].startswith("the cluster's pods have not all been read yet")
        assert (await w.bind("p", "a")).startswith("the cluster's pods have not all been read yet")
        assert await w.ask("preempt", {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}]}}}) == {
            "NodeNameToMetaVictims": {}
        }
        async with w.http.get(f"{running.probes}/readyz") as said:
            assert said.status == 503
        for node in ("", "a"):
            status, answer = await w.inspect(node)
            assert (status, answer["nodes"]) == (503, [])
            assert answer["error"].startswith("the cluster's pods have not all been read yet")
        w.api.heal()
        await w.until(lambda: not running.extender.unready())
        assert (await w.schedule())["p"].node == "a"


async def test_a_restart_between_claim_and_binding_leaves_nothing_behind() -> None:
    """The extender dies while its request is on the way; the next one knows nothing of it and places anew."""
    async with world() as w:
        one_gpu(w, "a")
        await w.start(bind_timeout="1s")
        w.bindings_meet(Hang())
        w.pod("p", mem=8)
        await w.seen()
        call = asyncio.create_task(w.bind("p", "a"))
        await w.until(lambda: w.api.count("create", "pods/binding") > 0)
        await w.stop()
        await asyncio.gather(call, return_exceptions=True)
        w.api.heal()
        await w.start()
        assert w.only.free("a") == [8]
        w.pod("q", mem=8)
        found = await w.schedule()
        assert sorted(each.node for each in found.values()) == ["", "a"]


async def test_a_restart_between_binding_and_watch_forgets_nothing() -> None:
    """The pod is bound and no watch has told of it: a list does."""
    async with world() as w:
        one_gpu(w, "a")
        await w.start()
        pods = [w.pod(name, mem=8) for name in "pq"]
        await w.seen()
        w.api.reads.hold()
        assert await w.bind("p", "a") == ""
        await w.restart()
        assert w.only.free("a") == [0]
        assert (await w.filter(pods[1], "a"))["NodeNames"] == []
        assert await w.bind("q", "a") == "node a: no GPU has 8 GiB free"


async def test_an_extender_that_ends_finishes_what_it_was_asked() -> None:
    """SIGTERM while a pod is being bound: the scheduler gets its answer."""
    async with world() as w:
        one_gpu(w, "a")
        await w.start()
        w.bindings_meet(Slow(0.1))
        w.pod("p", mem=8)
        await w.seen()
        call = asyncio.create_task(w.bind("p", "a"))
        await w.until(lambda: w.api.count("create", "pods/binding") > 0)
        await w.stop()
        assert (await call, w.where("p")) == ("", "a")


async def test_the_lead_is_handed_on_when_nothing_is_being_bound_any_more() -> None:
    """Beside a scheduler each: what the first still binds must stand before the second's scheduler may lead."""
    async with world() as w:
        one_gpu(w, "a")
        first, second = await w.start(token=FIRST), await w.start(token=SECOND)
        for name in "pq":
            w.pod(name, mem=8)
        await w.seen()
        w.api.fail(Slow(0.1), verbs={"create"}, resources={"pods/binding"}, tokens={FIRST})
        pre_stop, request = await asyncio.open_connection("127.0.0.1", first.extender.ports["http"])
        request.write(b"GET /quiet HTTP/1.0\r\n\r\n")  # on its way before anything ends
        binding = asyncio.create_task(w.bind("p", "a", first))
        await w.until(lambda: w.api.count("create", "pods/binding") > 0)
        stopping = asyncio.create_task(w.stop(first))
        async with patience(w.api):
            assert (await pre_stop.read()).endswith(b"\r\n\r\nquiet\n")
        request.close()
        assert w.where("p") == "a"
        assert await w.bind("q", "a", second) == "node a: no GPU has 8 GiB free"
        await stopping
        assert await binding == ""
        w.check()


async def test_an_extender_that_ends_begins_nothing_new() -> None:
    async with world(timings=replace(QUICK, api=Timing(), bind=None)) as w:
        w.node("a", 8, 8)
        running = await w.start()
        w.bindings_meet(Slow(0.5))
        for name in "pq":
            w.pod(name, mem=8)
        await w.seen()
        async with aiohttp.ClientSession() as scheduler:
            # A connection from before: no new ones are taken at the end.
            async with scheduler.get(f"{running.url}/healthz"):
                pass
            binding = asyncio.create_task(w.bind("p", "a"))
            await w.until(lambda: w.api.count("create", "pods/binding") > 0)
            stopping = asyncio.create_task(w.stop())
            await w.until(lambda: running.extender.readiness.shutting_down)
            body = {"PodName": "q", "PodNamespace": "default", "PodUID": w.get("q")["metadata"]["uid"], "Node": "a"}
            async with scheduler.post(f"{running.url}{PREFIX}/bind", json=body) as answer:
                assert (await answer.json())["Error"] == "this extender is shutting down, another one takes over"
        await stopping
        assert (await binding, w.where("p"), w.where("q")) == ("", "a", "")


async def test_nobody_waits_for_the_end_of_an_extender_that_goes_on() -> None:
    async with world(bind_timeout="10ms", timings=replace(QUICK, quiet_s=0.01)) as w:
        running = await w.start()
        async with w.http.get(f"{running.probes}/quiet") as answer:
            assert await answer.text() == "this extender has not been asked to stop\n"


async def test_a_binding_gets_the_time_that_is_set() -> None:
    """An API server that takes half a second is too slow for a binding of 0.2 s, and quick enough for one of 60."""
    async with world(bind_timeout="60s", timings=replace(QUICK, api=Timing(), bind=None)) as w:
        one_gpu(w, "a")
        await w.start()
        w.bindings_meet(Slow(0.5))
        w.pod("p", mem=8)
        await w.seen()
        w.only.extender.reload(replace(w.only.extender.settings, bind_timeout_s=0.2))
        assert await w.bind("p", "a") != ""
        w.only.extender.reload(replace(w.only.extender.settings, bind_timeout_s=60.0))
        assert await w.bind("p", "a") == ""
        assert w.where("p") == "a"


async def test_a_cluster_that_cannot_be_followed_is_not_known_for_long() -> None:
    """A list alone grows old. Without the right to watch there are no news of the nodes."""
    quick = replace(QUICK, unfollowed_s=0.1)
    async with world(allowed=RIGHTS - {("watch", "nodes")}, timings=quick) as w:
        one_gpu(w, "a")
        running = await w.launch()
        why = (
            "the cluster's nodes cannot be followed: watch nodes: 403 Forbidden; "
            "grant 'watch' on 'nodes' to the service account"
        )
        # On a busy machine the pods may not have been followed for so long either.
        await w.until(lambda: why in running.extender.unready())
        w.api.allowed = frozenset(RIGHTS)
        await w.until(lambda: not running.extender.unready())


# --- Two of them -----------------------------------------------------------------------------------------------------


@dataclass
class Cable:
    """Between an extender and its API server. Cut, it loses every packet and closes nothing."""

    url: str
    port: int = 0
    whole: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        self.whole.clear()

    def mend(self) -> None:
        self.whole.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        where = urlsplit(self.url)
        there, away = await asyncio.open_connection(where.hostname, where.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, away))
                tasks.create_task(self._pass(there, writer))
        finally:
            for each in (writer, away):
                each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.whole.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()


@asynccontextmanager
async def cable(url: str) -> AsyncIterator[Cable]:
    made = Cable(url)
    made.mend()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
        made.mend()


async def test_beside_a_scheduler_each_a_standby_that_takes_over_knows_what_the_other_did() -> None:
    """Its watch tells late; before it binds for the first time it asks what is so now. Without, both pods would be on
    GPU 0, for which the sum of the node is no obstacle."""
    async with world() as w:
        w.node("a", 8, 8)
        first, second = await w.start(), await w.start()
        for name in "pq":
            w.pod(name, mem=8)
        await w.seen()
        w.api.reads.hold()
        assert await w.bind("p", "a", first) == ""
        assert second.free("a") == [8, 8]
        assert await w.bind("q", "a", second) == ""
        assert (w.places("p"), w.places("q")) == ({0: 8}, {1: 8})
        w.check()


def elected(n: int) -> dict[str, str]:
    return {"leader_election": "true", "identity": f"extender-{n}", "lease_namespace": "default"}


async def leader(w: ExtenderWorld) -> Running:
    found: list[Running] = []

    def one() -> bool:
        found[:] = [running for running in w.running if not running.extender.unready()]
        return len(found) == 1

    await w.until(one)
    return found[0]


async def test_of_several_extenders_one_leads_and_the_others_send_away() -> None:
    async with world(allowed=RIGHTS | LEASE_RIGHTS) as w:
        one_gpu(w, "a")
        for n in range(3):
            await w.launch(**elected(n))
        led = await leader(w)
        pod = w.pod("p", mem=8)
        await w.seen()
        await w.until(lambda: not any("none yet" in str(running.extender.unready()) for running in w.running))
        for running in w.running:
            answer = await w.filter(pod, "a", running=running)
            error = await w.bind("p", "a", running) if running is not led else ""
            if running is led:
                assert answer["NodeNames"] == ["a"]
            else:
                assert answer["Error"] == error != ""
                assert error.startswith("another extender leads")
        assert (await w.schedule(led))["p"].node == "a"


async def test_whoever_leads_no_more_ends_the_schedulers_connection() -> None:
    """A Service sends new connections to the new leader; one kept alive stays with the old one for good."""
    async with world(allowed=RIGHTS | LEASE_RIGHTS, timings=replace(QUICK, lease=LOST_SOON)) as w:
        one_gpu(w, "a")
        first = await w.launch(token=FIRST, **elected(0))
        await w.until(lambda: not first.extender.unready())
        await w.launch(token=SECOND, **elected(1))
        pod = w.pod("p", mem=8)
        pool = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=pool) as scheduler:

            async def connection() -> tuple[str | None, str]:
                body = {"Pod": pod, "Nodes": None, "NodeNames": ["a"]}
                async with scheduler.post(f"{first.url}{PREFIX}/filter", json=body) as answer:
                    return answer.headers.get("Connection"), (await answer.json())["Error"]

            assert await connection() == (None, "")
            w.api.fail(Answer(500), verbs={"get", "update"}, resources={"leases"}, tokens={FIRST})
            await w.until(lambda: bool(first.extender.unready()))
            ended, why = await connection()
            assert (ended, why.startswith("whether this extender may lead is unknown: ")) == ("close", True)
            await w.until(lambda: not w.running[1].extender.unready())
            w.api.heal()
            await w.until(lambda: first.extender.unready()[0].startswith("another extender leads: extender-1_"))
            assert (await connection())[0] == "close"


async def test_rights_that_an_election_lacks_are_named_by_the_probe() -> None:
    async with world() as w:
        running = await w.launch(**elected(0))
        await w.until(lambda: ["grant" in why for why in running.extender.unready()] == [True])
        async with w.http.get(f"{running.probes}/readyz") as said:
            assert (said.status, await said.text()) == (
                503,
                (
                    "whether this extender may lead is unknown: get leases default/gpu-device-plugin-extender: 403 "
                    "Forbidden; grant 'get' on 'leases' of the API group coordination.k8s.io to the service account\n"
                ),
            )


async def test_when_the_leader_ends_another_leads_at_once_and_knows_all() -> None:
    """Its watch has told nothing of the last pods."""
    async with world(allowed=RIGHTS | LEASE_RIGHTS) as w:
        w.node("a", 8, 8, 8)
        for n in range(2):
            await w.launch(**elected(n))
        first = await leader(w)
        for name in "pqr":
            w.pod(name, mem=8)
        await w.seen()
        w.api.reads.hold()
        assert [await w.bind(name, "a", first) for name in "pq"] == ["", ""]
        await w.stop(first)
        second = await leader(w)
        assert await w.bind("r", "a", second) == ""
        w.check()
        assert w.places("r") == {2: 8}


async def test_a_leader_that_is_cut_off_leads_no_more_and_its_successor_gives_nothing_twice() -> None:
    """It cannot renew its lease, so it steps down before another may lead; when it is back, it stands behind."""
    async with world(allowed=RIGHTS | LEASE_RIGHTS, timings=replace(IMPATIENT, lease=LOST_SOON)) as w:
        w.node("a", 8, 8, 8)
        async with cable(w.api.url) as line:
            first = await w.launch(url=f"http://127.0.0.1:{line.port}", **elected(0))
            await w.until(lambda: not first.extender.unready())
            second = await w.launch(**elected(1))
            await w.until(lambda: second.extender.watches["pods"].synced)
            pods = [w.pod(name, mem=8) for name in "pqr"]
            await w.seen()
            assert await w.bind("p", "a", first) == ""
            line.cut()
            # It may still believe to lead, but what it binds does not arrive.
            assert await w.bind("q", "a", first) != ""
            await w.until(lambda: bool(first.extender.unready()))
            await w.until(lambda: not second.extender.unready())
            assert "lead" in (await w.filter(pods[1], "a", running=first))["Error"]
            assert await w.bind("q", "a", second) == ""
            line.mend()
            await w.until(lambda: first.extender.watches["pods"].live and first.extender.binding.doubts == 0)
            await w.seen()
            assert first.extender.unready()
            assert await w.bind("r", "a", second) == ""
            w.check()
            assert sorted(at for name in "pqr" for at in w.places(name)) == [0, 1, 2]
            await w.seen()
            assert first.free("a") == second.free("a") == [0, 0, 0]
            await w.stop(first)


async def test_a_pod_in_doubt_passes_the_filter_for_the_node_of_its_claim_alone() -> None:
    """Its own claim stands in its way there, and another node could give it a second place."""
    async with world(timings=HASTY) as w:
        w.node("a", 8)
        w.node("b", 8)
        await w.start()
        w.bindings_meet(Hang())
        w.pod("p", mem=8)
        await w.schedule()
        w.api.heal()
        answer = await w.filter(w.get("p"), "a", "b")
        assert answer["NodeNames"] == [next(iter(w.only.extender.fleet.entries.values())).node]
        (other,) = {"a", "b"}.difference(answer["NodeNames"])
        assert "may already be bound to another node" in (await w.filter(w.get("p"), other))["Error"]


# --- Room that time alone makes ---------------------------------------------------------------------------------------


@asynccontextmanager
async def scheduling(w: ExtenderWorld) -> AsyncIterator[None]:
    """A scheduler that goes on by itself, and tries no pod again for which nothing happens."""
    async with w.scheduler() as scheduler:
        running = asyncio.create_task(scheduler.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_pods_that_wait_for_vanished_ones_get_their_gpus_in_time_though_nothing_happens_then() -> None:
    """All pods of a node are deleted by force. No event tells the scheduler when their processes must have ended."""
    async with world(vanished_grace=f"{stretched(1000):.0f}ms") as w:
        w.node("a", 8, 8)
        await w.start()
        for name in "pq":
            w.pod(name, mem=8)
        await w.schedule()
        for name in "pq":
            w.run(name)
        async with scheduling(w):
            new = [f"new{n}" for n in range(7)]
            for name in "pq":
                w.force_delete(name)
            await w.seen()
            for name in new:
                w.pod(name, mem=2)
            await w.until(lambda: all(w.reason(name) == "SchedulerError" for name in new))
            assert w.message("new0").startswith(
                "node a: no GPU has 2 GiB free; there will be room once pods that vanished"
            )
            assert not any(w.where(name) for name in new)
            await w.until(lambda: all(w.where(name) for name in new))
        await w.seen()
        w.check()


async def test_a_pod_that_not_even_the_end_of_a_grace_helps_waits_for_something_to_happen() -> None:
    """It may evict others, and an autoscaler may add a node for it."""
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=3)
        w.pod("stays", mem=3)
        await w.schedule()
        for name in ("p", "stays"):
            w.run(name)
        w.force_delete("p")
        w.pod("fits-then", mem=5)
        w.pod("large", mem=6)
        found = await w.schedule()
        assert (found["fits-then"].reason, found["large"].reason) == ("SchedulerError", "Unschedulable")
