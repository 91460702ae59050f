"""The pods of a node, in the order of their admission, whatever the API server does."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.cluster.api import PodReader
from gpu_device_plugin.cluster.client import Client, Timing
from gpu_device_plugin.cluster.config import ClusterConfig
from gpu_device_plugin.cluster.errors import ForbiddenError
from gpu_device_plugin.cluster.mirror import MirrorTiming, PodMirror
from gpu_device_plugin.testing.builders import GPU_MEM, container, pod
from gpu_device_plugin.testing.cluster import Answer, ApiServer, Fault, Garbage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICK = MirrorTiming(first_retry_s=0.01, longest_retry_s=0.05)
READER = PodReader([GPU_MEM], lambda key: key == "promise")


@asynccontextmanager
async def mirroring(
    server: ApiServer, *, watch_s: float = 30, silence_s: float = 30, **options: Any
) -> AsyncIterator[PodMirror]:
    timing = Timing(connect_s=20, request_s=20, watch_s=watch_s, silence_s=silence_s)
    async with Client(ClusterConfig(server.url), timing=timing) as client, asyncio.TaskGroup() as tasks:
        mirror = PodMirror(client, READER, **{"node": "n", "timing": QUICK, **options})
        running = tasks.create_task(mirror.run())
        yield mirror
        running.cancel()


def names(mirror: PodMirror) -> list[str]:
    return [found.name for found in mirror.pods.values()]


async def test_it_knows_the_pods_of_its_node_only(server: ApiServer, eventually: Any) -> None:
    server.add(pod("mine", container(mem=4), node="n"))
    server.add(pod("theirs", node="m"))
    server.add(pod("nobodys"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        assert mirror.synced
        assert names(mirror) == ["mine"]
        server.bind("nobodys", "n", {"promise": "1", "other": "2"})
        await eventually(lambda: len(mirror.pods) == 2)
        assert list(mirror.pods.values())[1].annotations == {"promise": "1"}
        server.delete("pods", "mine")
        await eventually(lambda: names(mirror) == ["nobodys"])
    assert not mirror.live


async def test_pods_of_one_list_are_ordered_by_age_then_name(server: ApiServer, eventually: Any) -> None:
    server.add(pod("c", node="n", created="2026-01-01T00:00:01Z"))
    server.add(pod("b", node="n", created="2026-01-01T00:00:02Z"))
    server.add(pod("a", node="n", created="2026-01-01T00:00:02Z"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.synced)
        assert names(mirror) == ["c", "a", "b"]


async def test_pods_are_ordered_by_their_binding_and_not_by_age(server: ApiServer, eventually: Any) -> None:
    """The kubelet allocates for the one that was bound first."""
    server.add(pod("old", created="2026-01-01T00:00:01Z"))
    server.add(pod("young", created="2026-01-01T00:00:02Z"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        server.bind("young", "n")
        server.bind("old", "n")
        await eventually(lambda: len(mirror.pods) == 2)
        assert names(mirror) == ["young", "old"]
        server.patch("pods", "young", {"metadata": {"annotations": {"promise": "2"}}})
        await eventually(lambda: next(iter(mirror.pods.values())).annotations)
        assert names(mirror) == ["young", "old"]


async def test_without_a_node_it_knows_all_pods_and_orders_them_by_binding(server: ApiServer, eventually: Any) -> None:
    server.add(pod("a"))
    server.add(pod("b"))
    async with mirroring(server, node="") as mirror:
        await eventually(lambda: mirror.live)
        server.bind("b", "m")
        server.bind("a", "n")
        await eventually(lambda: all(found.node_name for found in mirror.pods.values()))
        assert names(mirror) == ["b", "a"]


async def test_the_order_outlives_a_new_list(server: ApiServer, eventually: Any) -> None:
    """Bound young before old; then a relist, in which the oldest of all is seen for the first time."""
    server.add(pod("oldest", created="2026-01-01T00:00:00Z"))
    server.add(pod("old", created="2026-01-01T00:00:01Z"))
    server.add(pod("young", created="2026-01-01T00:00:02Z"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        server.bind("young", "n")
        server.bind("old", "n")
        await eventually(lambda: len(mirror.pods) == 2)
        fault = server.fail(Answer(503))
        server.close_watches()
        await eventually(lambda: fault.happened)
        server.bind("oldest", "n")
        server.store.compact()
        server.heal()
        await eventually(lambda: len(mirror.pods) == 3)
        assert names(mirror) == ["young", "old", "oldest"]
        assert mirror.lists == 2


async def test_a_check_keeps_the_order_of_binding(server: ApiServer, eventually: Any) -> None:
    """The watch lags behind the list of a check: what that list brings waits until the watch has told the order."""
    server.add(pod("old", created="2026-01-01T00:00:01Z"))
    server.add(pod("young", created="2026-01-01T00:00:02Z"))
    async with mirroring(server, watch_s=0.01, timing=MirrorTiming(0.01, 0.05, check_s=0)) as mirror:
        await eventually(lambda: mirror.live)
        seen: list[list[str]] = []

        async def follow() -> None:
            async for pods in mirror.changes.values():
                order = [found.name for found in pods.values()]
                seen.append(order)

        following = asyncio.create_task(follow())
        fault = server.fail(Answer(503), verbs={"watch"}, times=3)
        await eventually(lambda: fault.happened)
        server.bind("young", "n")
        server.bind("old", "n")
        await eventually(lambda: names(mirror) == ["young", "old"])
        following.cancel()
    assert ["old"] not in seen
    assert ["old", "young"] not in seen
    assert (mirror.lists, mirror.missed) == (1, 0)


async def test_a_namesake_is_another_pod_and_comes_last(server: ApiServer, eventually: Any) -> None:
    server.add(pod("a", uid="1", node="n"))
    server.add(pod("b", uid="2", node="n"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        server.delete("pods", "a")
        server.add(pod("a", uid="3", node="n"))
        await eventually(lambda: list(mirror.pods) == ["2", "3"])


async def test_status_updates_are_no_change(server: ApiServer, eventually: Any) -> None:
    """The kubelet patches the status of every GPU pod about once a minute."""
    server.add(pod("a", node="n", phase="Running"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        before = mirror.changes.version
        for ready in ("True", "False"):
            status = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
            server.patch("pods", "a", status, subresource="status")
        server.add(pod("b", node="n"))
        await eventually(lambda: len(mirror.pods) == 2)
        assert mirror.changes.version == before + 1


async def test_snapshots_stay_as_they_were(server: ApiServer, eventually: Any) -> None:
    server.add(pod("a", node="n"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        before = mirror.pods
        server.delete("pods", "a")
        await eventually(lambda: not mirror.pods)
        assert len(before) == 1


async def test_an_empty_node_is_synced_and_readers_are_told(server: ApiServer) -> None:
    async with mirroring(server) as mirror:
        _, pods = await mirror.changes.after(0)
        assert mirror.synced
        assert pods == {}


async def test_one_can_wait_for_a_pod(server: ApiServer, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        waiting = asyncio.create_task(mirror.wait_for(lambda pods: pods.get("u"), timeout_s=20))
        await asyncio.sleep(0)
        server.bind("a", "n")
        found = await waiting
        assert found is not None
        assert found.name == "a"
        assert await mirror.wait_for(lambda pods: pods.get("u"), timeout_s=0) == found
        assert await mirror.wait_for(lambda pods: pods.get("other"), timeout_s=0.01) is None


async def test_an_error_in_the_question_is_the_askers(server: ApiServer) -> None:
    async with mirroring(server) as mirror:
        with pytest.raises(ZeroDivisionError):
            await mirror.wait_for(lambda _: 1 // 0, timeout_s=1)


async def test_limits_that_are_no_numbers_are_counted_once(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(pod("a", container(mem=1, limits={GPU_MEM: "0.5"}), node="n"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        server.patch("pods", "a", {"metadata": {"annotations": {"promise": "1"}}})
        await eventually(lambda: next(iter(mirror.pods.values())).annotations)
    assert mirror.ignored_limits == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"pod default/a: container 'main': the limit of {GPU_MEM} is not a whole number"
    ]


async def test_objects_that_cannot_be_read_are_counted_and_passed_over(server: ApiServer, eventually: Any) -> None:
    broken = pod("a", node="n")
    broken["status"] = {"phase": 7}
    server.add(broken)
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        assert (names(mirror), mirror.unreadable) == ([], 1)
        server.patch("pods", "a", {"status": {"phase": 8}}, subresource="status")
        server.add(pod("b", node="n"))
        await eventually(lambda: mirror.pods)
        assert (names(mirror), mirror.unreadable) == (["b"], 2)


async def test_events_that_are_no_objects_are_passed_over(server: ApiServer, eventually: Any) -> None:
    """As a server of another kind might send them; the watch goes on."""
    server.fail(
        Garbage(b'{"type":"ADDED","object":[]}\n{"type":"NEWS","object":{"metadata":{}}}\n'), verbs={"watch"}, times=1
    )
    server.add(pod("a", node="n"))
    async with mirroring(server) as mirror:
        await eventually(lambda: server.watches)
        assert mirror.unreadable == 1
        server.add(pod("b", node="n"))
        await eventually(lambda: names(mirror) == ["a", "b"])


async def test_an_outage_is_told_once_and_so_is_its_end(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        fault = server.fail(Answer(503))
        server.reset_connections()
        await eventually(lambda: fault.happened > 3)
        assert not mirror.live
        assert "503" in repr(mirror)
        server.heal()
        await eventually(lambda: mirror.live)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("the pods of this node are not followed: watch pods: ")
    assert told[1] == "the pods of this node are followed again"


async def test_a_watch_that_always_ends_at_once_is_not_asked_for_without_pause(
    server: ApiServer, eventually: Any
) -> None:
    """A server that accepts watches and ends them is in trouble; asking again at once would be more of it."""
    async with mirroring(server, timing=MirrorTiming(first_retry_s=60, longest_retry_s=60)) as mirror:
        await eventually(lambda: mirror.live)
        server.close_watches()
        await eventually(lambda: mirror.problem is not None)
        assert "at once" in str(mirror.problem)
        assert server.count("watch", "pods") == 1


async def test_a_missing_right_keeps_it_unsynced_and_is_named(eventually: Any) -> None:
    async with ApiServer(allowed=()) as server, mirroring(server) as mirror:
        await eventually(lambda: mirror.problem is not None)
        assert isinstance(mirror.problem, ForbiddenError)
        assert "grant 'list' on 'pods'" in str(mirror.problem)
        assert not mirror.synced
        server.allowed = frozenset({("list", "pods"), ("watch", "pods")})
        await eventually(lambda: mirror.live)
        assert mirror.problem is None


async def test_the_first_list_is_cheap_and_later_ones_never_go_back(server: ApiServer, eventually: Any) -> None:
    """Version 0 may be anything the server has; afterwards we ask for nothing older than what we know."""
    server.add(pod("a", node="n"))
    async with mirroring(server, watch_s=0.01, timing=MirrorTiming(0.01, 0.05, check_s=0.1)):
        await eventually(lambda: server.count("list", "pods") >= 2)
    first, second = [request for request in server.requests if request.verb == "list"][:2]
    assert first.params["resourceVersion"] == "0"
    assert second.params["resourceVersion"] == "2"
    assert second.params["resourceVersionMatch"] == "NotOlderThan"
    assert {request.params["fieldSelector"] for request in server.requests} == {"spec.nodeName=n"}


async def test_a_server_that_lost_our_future_is_listed_anew(server: ApiServer, eventually: Any) -> None:
    """After a restore of etcd the server's versions are lower than ours: 504, Too large resource version."""
    server.add(pod("a", node="n"))
    async with mirroring(server) as mirror:
        await eventually(lambda: mirror.live)
        fault: Fault = server.fail(Answer(410, reason="Expired"), verbs={"watch"}, times=1)
        later = server.fail(Answer(504, reason="Timeout"), verbs={"list"}, times=1)
        server.close_watches()
        await eventually(lambda: fault.happened and later.happened and mirror.live)
        assert [request.params.get("resourceVersion", "") for request in server.requests if request.verb == "list"] == [
            "0",
            "",
            "",
        ]
