"""The pods of a node, in the order of their admission, whatever the API server does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.node_pods import NodePods
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.kubernetes.reflector import ReflectorTiming
from tests.builders import GPU_MEM, container, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.store import Store
from tests.cluster_double.troubles import Answer, Fault
from tests.patience import stretched

QUICK = ReflectorTiming(first_retry_s=0.01, longest_retry_s=0.05, patience_s=0.05)
OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
READER = PodReader([GPU_MEM], lambda key: key == "promise")


@asynccontextmanager
async def following(
    server: ApiServer, *, watch_s: float = 30, silence_s: float = 30, **options: Any
) -> AsyncIterator[NodePods]:
    timing = Timing(connect_s=20, request_s=20, watch_s=watch_s, silence_s=silence_s)
    async with Client(ClusterConfig(server.url), timing=timing) as client, asyncio.TaskGroup() as tasks:
        there = NodePods(client, READER, **{"node": "n", "timing": QUICK, **options})
        running = tasks.create_task(there.reflector.run())
        yield there
        running.cancel()


def names(there: NodePods) -> list[str]:
    return [found.name for found in there.pods.values()]


async def bind_the_young_one_first(server: ApiServer, there: NodePods, eventually: Any) -> None:
    """Have the watch report two bindings in an order that is not that of the pods' ages."""
    await eventually(lambda: there.reflector.live)
    server.bind("young", "n")
    server.bind("old", "n")
    await eventually(lambda: len(there.pods) == 2)


async def test_the_next_kubelet_admits_by_age_also_what_was_bound_while_there_was_none(
    server: ApiServer, eventually: Any
) -> None:
    server.add(pod("old", created=OLD))
    server.add(pod("young", created=YOUNG))
    async with following(server) as there:
        there.kubelet_is("before")
        there.kubelet_is("")
        await bind_the_young_one_first(server, there, eventually)
        assert names(there) == ["young", "old"]
        there.kubelet_is("after")
        assert names(there) == ["old", "young"]


async def test_a_kubelet_that_starts_after_the_agent_admits_by_age(server: ApiServer, eventually: Any) -> None:
    server.add(pod("old", created=OLD))
    server.add(pod("young", created=YOUNG))
    async with following(server) as there:
        there.kubelet_is("")
        await bind_the_young_one_first(server, there, eventually)
        there.kubelet_is("first")
        assert names(there) == ["old", "young"]


async def test_a_kubelet_that_was_there_before_the_agent_admits_in_the_order_of_bindings(
    server: ApiServer, eventually: Any
) -> None:
    server.add(pod("old", created=OLD))
    server.add(pod("young", created=YOUNG))
    async with following(server) as there:
        await bind_the_young_one_first(server, there, eventually)
        there.kubelet_is("first")
        there.kubelet_is("first")
        assert names(there) == ["young", "old"]


async def test_it_knows_the_pods_of_its_node_only(server: ApiServer, eventually: Any) -> None:
    server.add(pod("mine", container(mem=4), node="n"))
    server.add(pod("theirs", node="m"))
    server.add(pod("nobodys"))
    async with following(server) as there:
        await eventually(lambda: there.reflector.live)
        assert there.reflector.synced
        assert names(there) == ["mine"]
        server.bind("nobodys", "n", {"promise": "1", "other": "2"})
        await eventually(lambda: len(there.pods) == 2)
        assert list(there.pods.values())[1].annotations == {"promise": "1"}
        server.delete("pods", "mine")
        await eventually(lambda: names(there) == ["nobodys"])
    assert not there.reflector.live


async def test_the_order_outlives_a_new_list(server: ApiServer, eventually: Any) -> None:
    """Bound young before old; then a relist, in which the oldest of all is seen for the first time."""
    server.add(pod("oldest", created="2026-01-01T00:00:00Z"))
    server.add(pod("old", created="2026-01-01T00:00:01Z"))
    server.add(pod("young", created="2026-01-01T00:00:02Z"))
    async with following(server) as there:
        await bind_the_young_one_first(server, there, eventually)
        fault = server.fail(Answer(503))
        server.reads.close()
        await eventually(lambda: fault.happened)
        server.bind("oldest", "n")
        server.store.compact()
        server.heal()
        await eventually(lambda: len(there.pods) == 3)
        assert names(there) == ["young", "old", "oldest"]
        assert there.reflector.lists == 2


async def test_what_the_watch_never_tells_is_shown_once_it_has_passed_the_list(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three pods the watch tells the binding of one; the others are ordered by age, behind it."""
    for age, name in enumerate(("old", "middle", "young")):
        server.add(pod(name, created=f"2026-01-01T00:00:0{age}Z"))
    timing = ReflectorTiming(0.01, 0.05, check_s=0.02, patience_s=0)
    async with following(server, watch_s=0.01, timing=timing) as there:
        await eventually(lambda: there.reflector.live)
        with server.watch_gap():
            server.bind("middle", "n")
            server.bind("old", "n")
        server.bind("young", "n")
        await eventually(lambda: len(there.pods) == 3)
        assert names(there) == ["young", "old", "middle"]
    assert "a list corrected 2 pods that the watch had missed" in caplog.text


async def test_one_can_wait_for_a_pod(server: ApiServer, eventually: Any) -> None:
    server.add(pod("a", uid="u"))
    async with following(server) as there:
        await eventually(lambda: there.reflector.live)
        waiting = asyncio.create_task(there.wait_for(lambda pods: pods.get("u"), timeout_s=stretched()))
        await asyncio.sleep(0)
        server.bind("a", "n")
        found = await waiting
        assert found is not None
        assert found.name == "a"
        assert await there.wait_for(lambda pods: pods.get("u"), timeout_s=0) == found
        assert await there.wait_for(lambda pods: pods.get("other"), timeout_s=0.01) is None


async def test_limits_that_are_no_numbers_are_counted_once(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(pod("a", container(mem=1, limits={GPU_MEM: "0.5"}), node="n"))
    async with following(server) as there:
        await eventually(lambda: there.reflector.live)
        server.patch("pods", "a", {"metadata": {"annotations": {"promise": "1"}}})
        await eventually(lambda: next(iter(there.pods.values())).annotations)
    assert [record.getMessage() for record in caplog.records] == [
        f"pod default/a: container 'main': the limit of {GPU_MEM} is not a whole number"
    ]


async def test_the_first_list_is_cheap_and_later_ones_never_go_back(server: ApiServer, eventually: Any) -> None:
    """Version 0 may be anything the server has; afterwards we ask for nothing older than what we know."""
    server.add(pod("a", node="n"))
    async with following(server, watch_s=0.01, timing=ReflectorTiming(0.01, 0.05, check_s=0.1)):
        await eventually(lambda: server.count("list", "pods") >= 2)
    first, second = [request for request in server.requests if request.verb == "list"][:2]
    assert first.params["resourceVersion"] == "0"
    assert second.params["resourceVersion"] == "2"
    assert second.params["resourceVersionMatch"] == "NotOlderThan"
    assert {request.params["fieldSelector"] for request in server.requests} == {"spec.nodeName=n"}


async def test_a_server_that_lost_our_future_is_listed_anew(server: ApiServer, eventually: Any) -> None:
    """After a restore of etcd the server's versions are lower than ours: 504, Too large resource version."""
    server.add(pod("a", node="n"))
    async with following(server) as there:
        await eventually(lambda: there.reflector.live)
        fault: Fault = server.fail(Answer(410, reason="Expired"), verbs={"watch"}, times=1)
        later = server.fail(Answer(504, reason="Timeout"), verbs={"list"}, times=1)
        server.reads.close()
        await eventually(lambda: fault.happened and later.happened and there.reflector.live)
        assert [request.params.get("resourceVersion", "") for request in server.requests if request.verb == "list"] == [
            "0",
            "",
            "",
        ]


async def test_a_restored_etcd_is_found_out_by_a_check(eventually: Any) -> None:
    """A list no older than what we know is refused as too new, and the next one shows another past."""
    timing = ReflectorTiming(0.01, 0.05, check_s=0.05, patience_s=0.01)
    async with ApiServer(patience_s=0.01) as server, following(server, timing=timing) as there:
        for name in "abc":
            server.add(pod(name, node="n"))
        await eventually(lambda: len(there.pods) == 3)
        await server.stop()
        server.store = Store()
        server.add(pod("restored", node="n"))
        await server.start()
        await eventually(lambda: names(there) == ["restored"])
        await eventually(lambda: there.reflector.live)
        server.add(pod("new", node="n"))
        await eventually(lambda: names(there) == ["restored", "new"])


async def test_a_server_that_lags_costs_no_order(
    server: ApiServer, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses a list of what it has not heard of yet; the newest is asked for, beside the watch that goes on."""
    server.add(pod("old", created="2026-01-01T00:00:01Z"))
    server.add(pod("young", created="2026-01-01T00:00:02Z"))
    async with following(server, timing=ReflectorTiming(0.01, 0.05, check_s=0.05, patience_s=0)) as there:
        await eventually(lambda: there.reflector.live)
        server.reads.hold()
        server.bind("young", "n")
        server.bind("old", "n")
        too_new = Answer(504, reason="Timeout", causes=("ResourceVersionTooLarge",))
        refused = server.fail(too_new, verbs={"list"}, times=1)
        lists = there.reflector.lists
        await eventually(lambda: refused.happened and there.reflector.lists > lists)
        assert names(there) == []
        server.reads.release()
        await eventually(lambda: names(there) == ["young", "old"])
    assert server.count("watch", "pods") == 1
    assert "a list corrected" not in caplog.text


async def test_e3_a_stale_first_list_is_followed_by_what_happened_since(server: ApiServer, eventually: Any) -> None:
    server.add(pod("a", node="n"))
    server.reads.hold()
    server.delete("pods", "a")
    server.add(pod("b", node="n"))
    async with following(server) as there:
        await eventually(lambda: there.reflector.live)
        assert names(there) == ["a"]
        server.reads.release()
        await eventually(lambda: names(there) == ["b"])


async def test_e3_a_new_list_never_goes_back_in_time(server: ApiServer, eventually: Any) -> None:
    """A second API server may lag behind the one that told us of a deletion: its list must not bring the pod back."""
    server.add(pod("a", node="n"))
    async with following(
        server, watch_s=0.01, timing=ReflectorTiming(0.01, 0.05, check_s=0.02, patience_s=0.05)
    ) as there:
        await eventually(lambda: there.reflector.live)
        server.delete("pods", "a")
        await eventually(lambda: not there.pods)
        server.add(pod("b", node="n"))
        await eventually(lambda: names(there) == ["b"])
        server.reads.hold()
        server.add(pod("c", node="n"))
        server.patch("pods", "b", {"metadata": {"annotations": {"x": "y"}}})
        seen = server.count("list", "pods")
        await eventually(lambda: server.count("list", "pods") > seen)
        assert names(there) == ["b"]
        server.reads.release()
        await eventually(lambda: names(there) == ["b", "c"])
