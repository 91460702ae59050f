"""What people are told, and how often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.writers.events import EventSubject, EventWriter, about_node
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Hang, Reset


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def writing(client: Client, **options: Any) -> AsyncIterator[EventWriter]:
    writer = EventWriter(client, instance="n", **{"pace_s": 0, "first_retry_s": 0.01, **options})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(writer.run())
        yield writer
        running.cancel()


def gpu_lost(writer: EventWriter, gpu: int = 0, node: str = "n") -> None:
    writer.post(about_node(node), reason="GPULost", action="Watch", note=f"GPU {gpu} is gone", warning=True)


def counts(server: ApiServer) -> dict[str, int]:
    return {event["note"]: event.get("series", {}).get("count", 1) for event in server.all("events")}


async def test_an_event_says_everything_that_the_api_wants(server: ApiServer, client: Client, eventually: Any) -> None:
    async with writing(client) as writer:
        writer.post(
            EventSubject("Pod", "a", "team", "u"), reason="Refused", action="Allocate", note="no GPU has 8 GiB free"
        )
        await eventually(lambda: server.all("events"))
    (event,) = server.all("events")
    assert event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"].startswith("a.")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "team", "uid": "u"}
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Refused", "Allocate")
    assert event["note"] == "no GPU has 8 GiB free"
    assert (event["reportingController"], event["reportingInstance"]) == ("gpu-device-plugin", "n")
    assert "series" not in event


async def test_an_event_about_a_node_is_found_by_kubectl_describe(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    """It looks in the default namespace, for the node's name in the place of its uid."""
    async with writing(client) as writer:
        gpu_lost(writer)
        await eventually(lambda: server.all("events"))
    (event,) = server.all("events")
    assert (event["metadata"]["namespace"], event["regarding"]["uid"], event["type"]) == ("default", "n", "Warning")


async def test_equal_events_become_one_that_counts(server: ApiServer, client: Client, eventually: Any) -> None:
    async with writing(client) as writer:
        gpu_lost(writer)
        await eventually(lambda: counts(server) == {"GPU 0 is gone": 1})
        gpu_lost(writer)
        gpu_lost(writer)
        gpu_lost(writer, gpu=1)
        await eventually(lambda: counts(server) == {"GPU 0 is gone": 3, "GPU 1 is gone": 1})


async def test_a_series_ends_when_nothing_happened_for_a_while(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    clock = Clock()
    async with writing(client, clock=clock, series_s=300) as writer:
        gpu_lost(writer)
        await eventually(lambda: len(server.all("events")) == 1)
        clock.now = 299
        gpu_lost(writer)
        await eventually(lambda: counts(server) == {"GPU 0 is gone": 2})
        clock.now = 299 + 301
        gpu_lost(writer)
        await eventually(lambda: len(server.all("events")) == 2)


async def test_a_storm_of_different_notes_becomes_a_few_events(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    async with writing(client, varieties=3) as writer:
        for gpu in range(50):
            gpu_lost(writer, gpu)
        gpu_lost(writer, 99, node="other")
        await eventually(lambda: len(counts(server)) == 4)
    assert counts(server) == {"GPU 0 is gone": 1, "GPU 1 is gone": 1, "GPU 2 is gone": 48, "GPU 99 is gone": 1}


async def test_a_repetition_of_an_event_that_expired_is_a_new_one(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    """The API server forgets Events after an hour or less."""
    async with writing(client) as writer:
        gpu_lost(writer)
        await eventually(lambda: server.all("events"))
        server.delete("events", server.all("events")[0]["metadata"]["name"])
        gpu_lost(writer)
        await eventually(lambda: counts(server) == {"GPU 0 is gone": 2})


async def test_an_outage_delays_events_and_drops_the_oldest(server: ApiServer, client: Client, eventually: Any) -> None:
    fault = server.fail(Answer(503))
    async with writing(client, limit=2) as writer:
        for gpu in range(4):
            gpu_lost(writer, gpu)
        gpu_lost(writer, 3)
        await eventually(lambda: fault.happened >= 2)
        assert writer.dropped == 2
        assert repr(writer) == "<EventWriter of n: 2 waiting, 2 dropped>"
        server.heal()
        await eventually(lambda: counts(server) == {"GPU 2 is gone": 1, "GPU 3 is gone": 2})
        await eventually(lambda: "0 waiting" in repr(writer))


async def test_what_is_dropped_while_it_is_sent_is_no_trouble(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    fault = server.fail(Hang(), times=1)
    async with writing(client, limit=1) as writer:
        gpu_lost(writer, 0)
        await eventually(lambda: fault.happened)
        gpu_lost(writer, 1)
        server.reset_connections()
        await eventually(lambda: counts(server) == {"GPU 1 is gone": 1})
        assert writer.dropped == 1


async def test_an_answer_that_was_lost_makes_no_second_event(
    server: ApiServer, client: Client, eventually: Any
) -> None:
    fault = server.fail(Reset(done=True), times=1)
    async with writing(client) as writer:
        gpu_lost(writer)
        await eventually(lambda: fault.happened)
        gpu_lost(writer)
        await eventually(lambda: counts(server) == {"GPU 0 is gone": 2})


@pytest.mark.parametrize("code", [403, 404, 422])
async def test_what_is_refused_for_good_is_dropped_and_told_once(
    server: ApiServer, client: Client, eventually: Any, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    server.fail(Answer(code), times=2)
    async with writing(client) as writer:
        gpu_lost(writer, 0)
        gpu_lost(writer, 1)
        gpu_lost(writer, 2)
        await eventually(lambda: counts(server) == {"GPU 2 is gone": 1})
    assert writer.dropped == 2
    assert len(caplog.records) == 1
    assert f"an Event about Node n is not written: create events default: {code}" in caplog.text


async def test_a_long_note_is_cut_between_characters(server: ApiServer, client: Client, eventually: Any) -> None:
    """1024 bytes are allowed; the 513th ä would be cut in half."""
    async with writing(client) as writer:
        writer.post(about_node("n"), reason="R" * 200, action="A" * 200, note="x" + "ä" * 1000)
        await eventually(lambda: server.all("events"))
    (event,) = server.all("events")
    assert event["note"] == "x" + "ä" * 511
    assert (len(event["reason"]), len(event["action"])) == (128, 128)


async def test_posting_waits_for_nobody(server: ApiServer, client: Client) -> None:
    """Nobody runs the writer, the server is away: the caller does not notice."""
    await server.stop()
    writer = EventWriter(client, instance="n", limit=3)
    for gpu in range(100):
        gpu_lost(writer, gpu, node=str(gpu))
    assert writer.dropped == 97
