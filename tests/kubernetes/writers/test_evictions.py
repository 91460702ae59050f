"""What came of an eviction, whatever the API server answers."""

from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.writers.evictions import Eviction, EvictionOutcome, evict
from gpu_device_plugin.model.pods import Pod
from tests.builders import pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage, Hang

POD = Pod("u", "default", "p")
CALL = "create pods/eviction default/p"


def add(server: ApiServer) -> None:
    server.add(pod("p", uid="u", node="n", phase="Running"))


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (Answer(404), Eviction(EvictionOutcome.GONE)),
        (Answer(409), Eviction(EvictionOutcome.GONE)),
        (
            Answer(429, retry_after_s=10, causes=("DisruptionBudget",)),
            Eviction(EvictionOutcome.BLOCKED, "its PodDisruptionBudget allows no disruption now", 10),
        ),
        (
            Answer(429, retry_after_s=1, message="busy"),  # the server's own load: no budget
            Eviction(EvictionOutcome.FAILED, "create pods/eviction default/p: 429 Too Many Requests", 1),
        ),
        (
            Answer(503, message="away"),
            Eviction(EvictionOutcome.FAILED, "create pods/eviction default/p: 503 Service Unavailable: away"),
        ),
        (Garbage(), Eviction(EvictionOutcome.FAILED, f"{CALL}: the answer is not one of an API server")),
        (Garbage(b'{"status": "Failure"}'), Eviction(EvictionOutcome.FAILED, f"{CALL}: the answer is not one of an")),
    ],
)
async def test_each_answer_has_its_outcome(server: ApiServer, client: Client, trouble: Any, expected: Eviction) -> None:
    add(server)
    server.fail(trouble)
    found = await evict(client, POD, most_grace_s=60)
    assert (found.outcome, found.retry_after_s) == (expected.outcome, expected.retry_after_s)
    assert found.why.startswith(expected.why)
    assert bool(found.why) is bool(expected.why)


async def test_a_missing_right_is_told_with_what_grants_it(server: ApiServer, client: Client) -> None:
    add(server)
    server.allowed = frozenset()
    assert await evict(client, POD, most_grace_s=60) == Eviction(
        EvictionOutcome.FORBIDDEN,
        "create pods/eviction default/p: 403 Forbidden; grant 'create' on 'pods/eviction' to the service account; "
        "apply deploy/optional/evict.yaml (chart: agent.evict), which grants it",
    )


async def test_of_an_eviction_that_a_policy_refuses_no_right_is_said_to_be_missing(
    server: ApiServer, client: Client
) -> None:
    add(server)
    message = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'gpushare-own-evictions' with binding denied request"
    server.fail(Answer(403, message=message))
    assert await evict(client, POD, most_grace_s=60) == Eviction(
        EvictionOutcome.FORBIDDEN, f"{CALL}: 403 Forbidden; ValidatingAdmissionPolicy gpushare-own-evictions denied it"
    )


async def test_a_lost_answer_can_be_asked_for_again(server: ApiServer, client: Client) -> None:
    add(server)
    server.fail(Hang(done=True), times=1)
    assert (await evict(client, POD, most_grace_s=60, timeout_s=0.2)).outcome is EvictionOutcome.FAILED
    assert (await evict(client, POD, most_grace_s=60)).outcome is EvictionOutcome.EVICTED
