"""No store of the cluster changes while objects are read: a list that fails halfway leaves it as it was."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES, EXTENDER_SETTINGS
from gpu_device_plugin.features.idle.scheduler import IdleActions
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.objects.decoding import PODS
from gpu_device_plugin.kubernetes.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.model.contract.keys import IDLE_SINCE, IDX, MEMORY_PROMISED, MOVE_TO
from gpu_device_plugin.report.followed_cluster import FollowedCluster
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.settings.sources import Sources
from tests.builders import container, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer
from tests.patience import eventually
from tests.resources import RESOURCES

Followed = tuple[Callable[[Any], Any], Any, Callable[[], object]]

PAGE = 500
"""Objects of a page."""


def extender() -> Followed:
    """Return the extender's way to read a pod, its store, and what it and its features know."""
    flags = {"listen": "127.0.0.1:0", "http": "", "keep_nodes": "true", "grow": "auto"}
    made = Extender(
        Sources(EXTENDER_SETTINGS, flags, {}).read(), ClusterConfig("http://127.0.0.1:1"), features=EXTENDER_FEATURES
    )
    known = [made.fleet.entries, made.fleet.pending, made.features.of(IdleActions)._pods]
    known += [value for feature in made.features for value in vars(feature).values() if isinstance(value, dict)]
    return made.follower.read_pod, made.follower.pods, lambda: repr(known)


def page() -> Followed:
    """The same of the tools of people."""
    followed = FollowedCluster(RESOURCES)
    return followed.read_pod, followed.pods, lambda: repr((followed.fleet.entries, followed._waiting, followed.phases))


@pytest.mark.parametrize("make", [extender, page])
async def test_a_list_that_fails_halfway_leaves_the_store_as_it_was(
    server: ApiServer, make: Callable[[], Followed]
) -> None:
    """Pods come, change and go while the watch is broken, and of each list the second page fails."""
    notes = {IDX: "0", MEMORY_PROMISED: "{}", MOVE_TO: "{}", IDLE_SINCE: "2026-01-01T00:00:00Z"}
    for n in range(PAGE + 1):
        server.add(pod(f"p{n}", container(mem=1), node="a" if n % 2 else "", annotations=notes, uid=f"u{n}"))
    read, store, known = make()
    at_first = known()
    quick = ReflectorTiming(0.01, 0.05, check_s=0.05, patience_s=0)
    async with Client(ClusterConfig(server.url)) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(Reflector(client, PODS, read, store, timing=quick).run())
        await eventually(lambda: known() != at_first)
        listed = known()
        server.fail(Answer(500), verbs={"watch"})
        lists = server.fail(Answer(500), verbs={"list"}, spared=1)
        server.reset_connections()
        for n in range(0, PAGE, 3):
            server.patch("pods", f"p{n}", {"metadata": {"annotations": {IDLE_SINCE: None, MOVE_TO: None}}})
            server.delete("pods", f"p{n + 1}", grace_s=0)
            server.add(pod(f"q{n}", container(mem=2), node="a", annotations=notes, uid=f"v{n}"))
        await eventually(lambda: lists.happened > 1)
        assert known() == listed
        server.heal()
        await eventually(lambda: "q3" in str(known()))
        running.cancel()
