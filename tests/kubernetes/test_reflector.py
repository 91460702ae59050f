"""A store holds all objects of a kind, whatever the API server does."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, UnavailableError
from gpu_device_plugin.kubernetes.objects.decoding import PODS, PodReader
from gpu_device_plugin.kubernetes.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.kubernetes.store import Store as ObjectStore
from gpu_device_plugin.model.pods import Pod
from tests.builders import GPU_MEM, container, node, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.store import Store
from tests.cluster_double.troubles import Answer, Garbage, Hang, Reset, Slow, Trouble
from tests.kubernetes.busy_cluster import BusyCluster
from tests.patience import stretched

QUICK = ReflectorTiming(first_retry_s=0.01, longest_retry_s=0.05, patience_s=0.05)
READER = PodReader([GPU_MEM], lambda key: key == "a")


class Held(ObjectStore[Pod]):
    """A store that remembers how it came to hold what it holds."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.story: list[str] = []

    @property
    def names(self) -> set[str]:
        return {found.name for found in self.pods.values()}

    @property
    def annotations(self) -> dict[str, str]:
        return {found.name: found.annotations.get("a", "") for found in self.pods.values()}

    def replace(self, objects: Sequence[Pod]) -> None:
        self.pods = {found.uid: found for found in objects}
        self.story.append(f"replace {' '.join(sorted(self.names))}".strip())

    def put(self, object: Pod) -> None:  # noqa: A002 - as the protocol has it
        self.pods[object.uid] = object
        self.story.append(f"put {object.name}")

    def remove(self, object: Pod) -> None:  # noqa: A002
        self.pods.pop(object.uid, None)
        self.story.append(f"remove {object.name} {object.phase}")


def read_ours(raw: msgspec.Raw) -> Pod | None:
    """Pods that ask for no GPU are not ours."""
    return READER.read(raw)[0] if b"aliyun.com/gpu-" in bytes(raw) else None


def gpu_pod(name: str, **how: Any) -> dict[str, Any]:
    return pod(name, container(mem=1), uid=name, **how)


@asynccontextmanager
async def reflecting(
    server: ApiServer,
    held: Held,
    *,
    request_s: float = 20,
    watch_s: float = 30,
    silence_s: float = 30,
    timing: ReflectorTiming = QUICK,
    read: Callable[[msgspec.Raw], Pod | None] = read_ours,
) -> AsyncIterator[Reflector[Pod]]:
    calls = Timing(connect_s=20, request_s=request_s, watch_s=watch_s, silence_s=silence_s)
    async with Client(ClusterConfig(server.url), timing=calls) as client, asyncio.TaskGroup() as tasks:
        reflector = Reflector(client, PODS, read, held, timing=timing)
        running = tasks.create_task(reflector.run())
        yield reflector
        running.cancel()


async def test_a_list_fills_the_store_and_a_watch_keeps_it(server: ApiServer, eventually: Any) -> None:
    server.add(gpu_pod("a"))
    held = Held()
    async with reflecting(server, held) as reflector:
        assert not reflector.synced
        assert reflector.version == 0
        assert reflector.silent_s == math.inf
        await reflector.wait_synced()
        await eventually(lambda: reflector.live)
        server.add(gpu_pod("b"))
        server.patch("pods", "a", {"status": {"phase": "Failed"}}, subresource="status")
        server.delete("pods", "a")
        await eventually(lambda: reflector.version == server.store.version)
        assert reflector.silent_s < 100
        assert repr(reflector) == f"<Reflector of pods #{server.store.version}: live>"
    assert not reflector.live
    assert held.story == ["replace a", "put b", "put a", "put a", "remove a Failed"]
    assert [request.verb for request in server.requests] == ["list", "watch"]


async def test_what_is_not_ours_is_not_kept_but_tells_the_version(server: ApiServer, eventually: Any) -> None:
    server.add(pod("theirs"))
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.add(pod("theirs too"))
        await eventually(lambda: reflector.version == server.store.version)
    assert held.story == ["replace"]


async def test_every_object_is_read_once(server: ApiServer, eventually: Any) -> None:
    read = 0

    def counting(raw: msgspec.Raw) -> Pod | None:
        nonlocal read
        read += 1
        return read_ours(raw)

    server.add(gpu_pod("a"))
    server.add(pod("theirs"))
    held = Held()
    async with reflecting(server, held, read=counting) as reflector:
        await eventually(lambda: reflector.live)
        assert read == 2
        server.add(gpu_pod("b"))
        server.delete("pods", "theirs", grace_s=None)
        await eventually(lambda: reflector.version == server.store.version)
    assert read == 5  # an unbound pod's deletion is two events


async def test_a_list_of_several_pages_is_adopted_whole_or_not_at_all(server: ApiServer, eventually: Any) -> None:
    for number in range(501):
        server.add(gpu_pod(f"p{number}"))
    held = Held()
    async with reflecting(server, held, timing=ReflectorTiming(0.01, 0.05, check_s=0.05, patience_s=0)) as reflector:
        await reflector.wait_synced()
        assert len(held.pods) == 501
        fault = server.fail(Answer(500), verbs={"list"})
        await eventually(lambda: fault.happened >= 2)
        assert len(held.pods) == 501
        assert isinstance(reflector.problem, UnavailableError)
        server.heal()
        await eventually(lambda: reflector.problem is None)


async def test_a_burst_leaves_others_their_turn(server: ApiServer, eventually: Any) -> None:
    """3,000 pods in a list, then 3,000 events: somebody else runs many times meanwhile."""
    for number in range(3000):
        server.add(gpu_pod(f"p{number}"))
    held = Held()
    turns = 0

    def slow(raw: msgspec.Raw) -> Pod | None:
        nonlocal turns
        turns_seen.append(turns)
        return read_ours(raw)

    turns_seen: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    timing = ReflectorTiming(0.01, 0.05, slice_s=0)
    async with reflecting(server, held, read=slow, timing=timing, request_s=20) as reflector:
        await eventually(lambda: reflector.live)
        assert len(set(turns_seen)) == 3000  # one turn for each with slices of no length
        for number in range(3000):
            server.patch("pods", f"p{number}", {"metadata": {"annotations": {"a": "1"}}})
        await eventually(lambda: reflector.version == server.store.version)
        assert len(set(turns_seen)) == 6000
    other.cancel()


OUTAGES: list[Trouble] = [
    Answer(500),
    Answer(503),
    Answer(429, retry_after_s=0),
    Answer(401),
    Answer(403),
    Hang(),
    Reset(),
    Garbage(),
]


@pytest.mark.parametrize("trouble", OUTAGES, ids=str)
async def test_every_outage_is_outlived(server: ApiServer, eventually: Any, trouble: Trouble) -> None:
    """What was known stays known meanwhile; what happened meanwhile is learnt afterwards."""
    server.add(gpu_pod("before"))
    server.add(gpu_pod("deleted meanwhile"))
    held = Held()
    async with reflecting(server, held, request_s=stretched(0.2 if isinstance(trouble, Hang) else 20)) as reflector:
        await eventually(lambda: reflector.live)
        fault = server.fail(trouble)
        server.reset_connections()
        await eventually(lambda: fault.happened >= 2)
        assert reflector.synced
        assert not reflector.live
        assert reflector.problem is not None
        assert held.names == {"before", "deleted meanwhile"}
        server.delete("pods", "deleted meanwhile")
        server.add(gpu_pod("meanwhile"))
        server.heal()
        await eventually(lambda: held.names == {"before", "meanwhile"})
        await eventually(lambda: repr(reflector).endswith(": live>"))
    assert reflector.lists == 1  # the watch told it all


@pytest.mark.parametrize("trouble", OUTAGES, ids=str)
async def test_an_api_server_that_is_broken_from_the_start_is_waited_for(
    server: ApiServer, eventually: Any, trouble: Trouble
) -> None:
    server.add(gpu_pod("a"))
    fault = server.fail(trouble)
    held = Held()
    async with reflecting(server, held, request_s=stretched(0.2 if isinstance(trouble, Hang) else 20)) as reflector:
        await eventually(lambda: fault.happened >= 2)
        assert not reflector.synced
        assert held.story == []
        server.heal()
        await reflector.wait_synced()
        assert held.names == {"a"}


async def test_a_server_that_has_forgotten_is_listed_anew(server: ApiServer, eventually: Any) -> None:
    server.add(gpu_pod("a"))
    server.add(gpu_pod("b"))
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        await server.stop()
        server.delete("pods", "a")
        server.add(gpu_pod("c"))
        server.store.compact()
        await server.start()
        await eventually(lambda: held.names == {"b", "c"})
        await eventually(lambda: reflector.live)
    assert held.story == ["replace a b", "replace b c"]
    assert server.count("list", "pods") == 2


async def test_a_half_open_connection_is_given_up(server: ApiServer, eventually: Any) -> None:
    held = Held()
    async with reflecting(server, held, watch_s=0.05, silence_s=0.05) as reflector:
        await eventually(lambda: reflector.live)
        server.black_hole()
        await eventually(lambda: reflector.problem is not None)
        server.add(gpu_pod("a"))
        server.heal()
        await eventually(lambda: held.names == {"a"})


@pytest.mark.parametrize("who", ["a check", "somebody who wants to be caught up"])
async def test_a_restored_etcd_knows_fewer_versions_than_we_do(server: ApiServer, eventually: Any, who: str) -> None:
    """A watch from a version of the future is silent: only a list can tell that there is another past now."""
    for name in "abc":
        server.add(gpu_pod(name))
    held = Held()
    timing = ReflectorTiming(0.01, 0.05, check_s=0.05 if who == "a check" else 600, patience_s=0.01)
    async with reflecting(server, held, timing=timing) as reflector:
        await eventually(lambda: reflector.live)
        before = reflector.version
        await server.stop()
        server.store = Store()
        server.add(gpu_pod("restored"))
        await server.start()
        # A check may have found the other past, and begun a third watch, before this looks.
        await eventually(lambda: server.count("watch", "pods") >= 2 and reflector.live)
        if who != "a check":
            await reflector.caught_up()
        await eventually(lambda: held.names == {"restored"})
        assert reflector.version < before
        await eventually(lambda: reflector.live)
        server.add(gpu_pod("new"))
        await eventually(lambda: held.names == {"restored", "new"})


async def test_a_server_that_does_not_know_our_version_yet_is_listed_anew(server: ApiServer, eventually: Any) -> None:
    server.add(gpu_pod("a"))
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.fail(Answer(504, causes=("ResourceVersionTooLarge",)), verbs={"watch"}, times=1)
        server.reads.close()
        await eventually(lambda: reflector.lists == 2 and reflector.live)


async def test_lists_are_the_newest_state_in_pages(server: ApiServer) -> None:
    """Version 0, "whatever is at hand", comes in one piece whatever limit is asked for."""
    held = Held()
    async with reflecting(server, held) as reflector:
        await reflector.wait_synced()
    assert [dict(request.params) for request in server.requests if request.verb == "list"] == [{"limit": "500"}]


async def test_an_event_that_never_came_is_found_by_the_next_list(server: ApiServer, eventually: Any) -> None:
    server.add(gpu_pod("a"))
    held = Held()
    async with reflecting(server, held, timing=ReflectorTiming(0.01, 0.05, check_s=0.05, patience_s=0)) as reflector:
        await eventually(lambda: reflector.live)
        with server.watch_gap():
            server.delete("pods", "a")
            server.add(gpu_pod("b"))
        await eventually(lambda: held.names == {"b"})
        assert not any("remove" in line for line in held.story)  # nobody saw how


async def test_a_deletion_that_the_watch_is_about_to_tell_is_seen_as_one(server: ApiServer, eventually: Any) -> None:
    """The list of a check is in before the watch has told of a deletion: it is waited for, a moment."""
    server.add(gpu_pod("a", phase="Succeeded"))
    held = Held()
    timing = ReflectorTiming(0.01, 0.05, check_s=0.05, patience_s=20)
    async with reflecting(server, held, timing=timing) as reflector:
        await eventually(lambda: reflector.live)
        server.reads.hold()
        server.delete("pods", "a")
        seen = server.count("list", "pods")
        await eventually(lambda: server.count("list", "pods") > seen)
        server.reads.release()
        await eventually(lambda: not held.names)
    assert held.story[-1].startswith(("remove a Succeeded", "replace"))
    assert "remove a Succeeded" in held.story


async def test_what_a_list_has_told_is_not_told_again(server: ApiServer, eventually: Any) -> None:
    """The watch lags behind a list that was adopted; what it tells up to there is old news."""
    server.add(gpu_pod("a"))
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.reads.hold()
        server.patch("pods", "a", {"metadata": {"annotations": {"a": "1"}}})
        server.patch("pods", "a", {"metadata": {"annotations": {"a": "2"}}})
        server.delete("pods", "a")
        server.add(gpu_pod("b"))
        await reflector.caught_up()
        assert held.names == {"b"}
        server.reads.release()
        server.add(gpu_pod("c"))
        await eventually(lambda: held.names == {"b", "c"})
    assert held.story == ["replace a", "replace b", "put c"]


async def test_what_happens_during_a_list_outlives_it(server: ApiServer, eventually: Any) -> None:
    """The list is as of its first page; pods are added, changed and deleted while its second page is on the way."""
    for number in range(501):
        server.add(gpu_pod(f"p{number}"))
    held = Held()
    async with reflecting(server, held, request_s=20) as reflector:
        await eventually(lambda: reflector.live)
        server.fail(Slow(0.2), verbs={"list"}, times=3)  # the question for the newest version, and two pages
        server.reads.hold()
        server.add(gpu_pod("unknown to the watch"))
        asked = asyncio.create_task(reflector.caught_up())
        await eventually(lambda: server.count("list", "pods") == 2 + 3)
        server.reads.release()
        server.add(gpu_pod("new"))
        server.delete("pods", "p7")
        server.patch("pods", "p8", {"metadata": {"annotations": {"a": "new"}}})
        await eventually(lambda: held.pods["p8"].annotations)
        await asked
        await eventually(lambda: reflector.lists == 2)
        assert len(held.pods) == 502
        assert {"new", "unknown to the watch"} <= held.names
        assert "p7" not in held.names
        assert held.pods["p8"].annotations == {"a": "new"}


async def test_catching_up_on_a_busy_kind_is_left_to_the_watch(server: ApiServer, eventually: Any) -> None:
    """For as long as a list would take, that is."""
    server.fail(Slow(1.0), verbs={"list"}, times=1)
    held = Held()
    timing = ReflectorTiming(0.01, 0.05, patience_s=20, long_list_s=20)
    async with reflecting(server, held, request_s=20, timing=timing) as reflector:
        await eventually(lambda: reflector.live)
        server.reads.hold()
        server.add(gpu_pod("a"))
        asked = asyncio.create_task(reflector.caught_up())
        await eventually(lambda: server.count("list", "pods") == 2)
        assert not asked.done()
        server.reads.release()
        await asked
        assert held.names == {"a"}
    assert reflector.lists == 1


async def test_catching_up_on_a_quiet_kind_takes_a_list(server: ApiServer, eventually: Any) -> None:
    """Versions are the cluster's: a new node makes one that no watch of pods is told of."""
    server.add(gpu_pod("a"))
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.add(node("n"))
        await asyncio.gather(*(reflector.caught_up() for _ in range(3)))
        assert reflector.version == server.store.version
        await reflector.caught_up()  # nothing happened since
    assert reflector.lists == 2
    assert server.count("watch", "pods") == 1


def short_watches(server: ApiServer) -> int:
    return sum(request.verb == "watch" and request.params["timeoutSeconds"] == "3" for request in server.requests)


async def test_where_lists_take_long_a_short_watch_is_asked_first(server: ApiServer, eventually: Any) -> None:
    """Its bookmark tells that nothing happened."""
    held = Held()
    timing = ReflectorTiming(0.01, 0.05, patience_s=0.01, long_list_s=0)
    async with reflecting(server, held, timing=timing) as reflector:
        await eventually(lambda: reflector.live)
        server.add(node("n"))
        await reflector.caught_up()
        assert reflector.version == server.store.version
        assert (reflector.lists, short_watches(server)) == (1, 1)
        server.add(gpu_pod("a"))
        await eventually(lambda: held.names == {"a"})


async def test_where_short_watches_tell_nothing_lists_are_asked(server: ApiServer, eventually: Any) -> None:
    """As with API servers whose watches of pods never hear of other kinds. Later it is tried again."""
    held = Held()
    timing = ReflectorTiming(0.01, 0.05, check_s=stretched(4), patience_s=0.01, long_list_s=0)
    async with reflecting(server, held, timing=timing) as reflector:
        await eventually(lambda: reflector.live)
        server.reads.hold()
        for name in "ab":
            server.add(gpu_pod(name))
            await reflector.caught_up()
            assert name in held.names
        assert (reflector.lists, short_watches(server)) == (3, 1)
        server.reads.release()
        await eventually(lambda: reflector.lists == 4)
        await eventually(lambda: reflector.live)
        server.add(node("n"))
        await reflector.caught_up()
        assert short_watches(server) == 2


async def test_a_bookmark_is_as_good_as_an_event(eventually: Any) -> None:
    held = Held()
    async with ApiServer(bookmark_s=0.01) as server, reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.add(node("n"))
        await eventually(lambda: reflector.version == server.store.version)
        server.store.compact()
        server.reads.close()
        await eventually(lambda: server.count("watch", "pods") >= 2)
        server.add(gpu_pod("a"))
        await eventually(lambda: held.names == {"a"})
    assert reflector.lists == 1


async def test_catching_up_ends_the_wait_for_a_broken_watch(server: ApiServer, eventually: Any) -> None:
    held = Held()
    async with reflecting(server, held, timing=ReflectorTiming(1000, 1000, patience_s=0)) as reflector:
        await eventually(lambda: reflector.live)
        fault = server.fail(Answer(503), verbs={"watch"})
        server.reset_connections()
        await eventually(lambda: fault.happened or not reflector.live)
        server.heal()
        server.add(gpu_pod("a"))
        await reflector.caught_up()
        assert held.names == {"a"}
        await eventually(lambda: reflector.live)


async def test_catching_up_fails_while_the_api_server_is_away(server: ApiServer, eventually: Any) -> None:
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.fail(Answer(403), verbs={"list"}, times=1)
        with pytest.raises(ForbiddenError):
            await reflector.caught_up()
        server.reads.hold()
        server.add(gpu_pod("a"))
        fault = server.fail(Answer(500), verbs={"list"})
        fault.times, fault.happened = math.inf, 0
        server.heal()
        server.reads.hold()
        server.fail(Hang(), verbs={"list"})
        with pytest.raises(TimeoutError, match=r"not all pods are known as of now, after 0.05 s"):
            await reflector.caught_up(0.05)
        server.heal()
        await eventually(lambda: held.names == {"a"})


async def test_a_list_that_is_not_allowed_is_said_though_the_watch_runs(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    held = Held()
    async with reflecting(server, held, timing=ReflectorTiming(0.01, 0.02, check_s=0.05, patience_s=0)) as reflector:
        await eventually(lambda: reflector.live)
        fault = server.fail(Answer(403), verbs={"list"})
        await eventually(lambda: fault.happened >= 3)
        assert reflector.live
        assert isinstance(reflector.problem, ForbiddenError)
        server.heal()
        await eventually(lambda: reflector.problem is None)
    said = [record.message for record in caplog.records if record.name.startswith("gpu_device_plugin")]
    why = "403 Forbidden; grant 'list' on 'pods' to the service account"
    assert said == [
        f"the pods are not listed: list pods: {why}; trying again",
        "the pods are listed again",
    ]


async def test_a_watch_that_ends_at_once_is_not_hammered(server: ApiServer, eventually: Any) -> None:
    """As behind a proxy that ends what it does not understand."""
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        server.fail(Garbage(b""), verbs={"watch"})
        server.reads.close()
        await eventually(lambda: isinstance(reflector.problem, UnavailableError))
        assert "ended the watch at once" in str(reflector.problem)


async def test_an_unreadable_object_is_counted_and_skipped(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(gpu_pod("a"))
    server.add({**gpu_pod("bad"), "spec": {"containers": [{"name": 7, "resources": {"limits": {GPU_MEM: "1"}}}]}})
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        assert held.names == {"a"}
        server.patch("pods", "bad", {"metadata": {"labels": {"x": "y"}}})
        server.add(gpu_pod("b"))
        await eventually(lambda: held.names == {"a", "b"})
        assert reflector.unreadable == 2
    said = [record.message for record in caplog.records if "unreadable" in record.message]
    assert len(said) == 1


async def test_an_event_of_something_that_is_no_object_is_skipped(server: ApiServer, eventually: Any) -> None:
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: reflector.live)
        version = reflector.version
        server.fail(Garbage(b'{"type":"ADDED","object":[]}\n{"type":"NEWS","object":{"metadata":{}}}\n'), times=1)
        server.reads.close()
        await eventually(lambda: reflector.unreadable == 1)
        assert reflector.version == version
        server.add(gpu_pod("a"))
        await eventually(lambda: held.names == {"a"})


async def test_a_list_without_a_version_is_no_list(server: ApiServer, eventually: Any) -> None:
    fault = server.fail(Garbage(b'{"metadata":{},"items":[]}'), verbs={"list"}, times=2)
    held = Held()
    async with reflecting(server, held) as reflector:
        await eventually(lambda: fault.happened)
        await reflector.wait_synced()
    assert held.story == ["replace"]


@pytest.mark.chance
async def test_the_store_ends_up_with_the_truth(chance_seed: int, eventually: Any) -> None:
    """300 steps of life and trouble, checks all the while, then peace; and nobody is caught up with less than all."""
    held = Held()
    timing = ReflectorTiming(0.001, 0.01, check_s=0.05, patience_s=0.005)
    async with (
        ApiServer(patience_s=0.01) as server,
        reflecting(server, held, request_s=stretched(0.1), watch_s=0.2, silence_s=0.05, timing=timing) as reflector,
    ):
        world = BusyCluster(server, chance_seed)
        for _ in range(300):
            world.happen()
            if world.random.random() < 0.15:
                world.disturb(server.reads.hold, server.reads.release, server.store.compact)
            if world.random.random() < 0.05:
                with contextlib.suppress(ApiError, TimeoutError):
                    await reflector.caught_up(0.05)
                    assert held.annotations == world.truth()
            if world.random.random() < 0.3:
                await asyncio.sleep(world.random.choice([0, 0.001, 0.01]))  # things come together or apart
        server.heal()
        await eventually(lambda: held.annotations == world.truth())
        for _ in range(20):
            world.happen()
            await caught_up(reflector)
            assert held.annotations == world.truth()


async def caught_up(reflector: Reflector[Pod]) -> None:
    """Ask again where a busy machine is slower than the deadline of a call, as a binding does."""
    while True:
        try:
            await reflector.caught_up()
        except UnavailableError:
            continue
        return
