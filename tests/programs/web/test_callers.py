"""Who calls the page in a cluster, and what he may see: by the API server's reviews alone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ApiError, UnavailableError
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind
from gpu_device_plugin.programs.web.callers import AccessReviews, Caller, CallerScope, ReviewedCallers, User
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.reviews import Account
from tests.cluster_double.troubles import Answer, Garbage, Hang, Slow
from tests.patience import eventually, stretched

ANNA = Account(
    "anna",
    "u1",
    ("team-a",),
    {"example.com/scope": ("read", "write")},
    rights={("get", "pods", "a"), ("list", "nodes", "")},
)
EVERYBODY = Account("eve", rights={("get", "pods", ""), ("list", "nodes", "")})
NEWCOMER = Account("new", rights={("get", "pods", "a")})


class World:
    """The API server, who asks it, and a clock."""

    def __init__(self, api: ApiServer, client: Client) -> None:
        self.api = api
        self.client = client
        self.now_s = 1000.0
        self.callers = ReviewedCallers(client, lambda: self.now_s)

    def reviews(self, resource: str = "tokenreviews") -> int:
        return self.api.count("create", resource)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    accounts = {"anna-token": ANNA, "eve-token": EVERYBODY, "new-token": NEWCOMER}
    async with ApiServer(accounts=accounts) as api, Client(ClusterConfig(api.url)) as client:
        yield World(api, client)


@pytest.mark.parametrize("token", ["", "nonsense", "anna-token ", "Bearer anna-token", "\x00", "中"])
async def test_other_tokens_are_nobodys(world: World, token: str) -> None:
    assert await world.callers.caller(token) is None


@pytest.mark.parametrize("username", ["system:anonymous", ""])
async def test_who_is_anonymous_is_nobody(world: World, username: str) -> None:
    world.api.accounts["odd"] = Account(username, rights={("get", "pods", "")})
    assert await world.callers.caller("odd") is None


async def test_groups_uid_and_extra_are_passed_on_as_they_are() -> None:
    asked: list[Any] = []

    class Noting(Client):
        async def create(self, kind: ObjectKind, body: Mapping[str, Any], **more: Any) -> ApiAnswer:
            asked.append(body["spec"])
            return await super().create(kind, body, **more)

    async with (
        ApiServer(accounts={"anna-token": ANNA}) as api,
        Noting(ClusterConfig(api.url)) as client,
    ):
        caller = await ReviewedCallers(client).caller("anna-token")
        assert caller is not None
        await caller.may_see("a")
    assert asked[-1] == {
        "user": "anna",
        "uid": "u1",
        "groups": ["team-a", "system:authenticated"],
        "extra": {"example.com/scope": ["read", "write"]},
        "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"},
    }


async def test_answers_are_remembered_for_a_while(world: World) -> None:
    for _ in range(3):
        caller = await world.callers.caller("anna-token")
        assert caller is not None
        await caller.may_see("a")
    assert (world.reviews(), world.reviews("subjectaccessreviews")) == (1, 1)
    world.now_s += 31
    caller = await world.callers.caller("anna-token")
    assert caller is not None
    await caller.may_see("a")
    assert (world.reviews(), world.reviews("subjectaccessreviews")) == (2, 2)


async def test_a_right_that_ended_ends_here_soon(world: World) -> None:
    caller = await world.callers.caller("anna-token")
    assert caller is not None
    assert await caller.may_see("a")
    world.api.accounts["anna-token"] = Account("anna", "u1", ("team-a",), ANNA.extra)
    world.now_s += 31
    assert not await caller.may_see("a")
    del world.api.accounts["anna-token"]
    assert await world.callers.caller("anna-token") is None


async def test_a_token_that_was_not_valid_is_asked_about_again_sooner(world: World) -> None:
    assert await world.callers.caller("late-token") is None
    world.api.accounts["late-token"] = ANNA
    assert await world.callers.caller("late-token") is None
    world.now_s += 6
    assert await world.callers.caller("late-token") is not None


async def test_connections_that_come_at_once_are_one_question(world: World) -> None:
    world.api.fail(Slow(0.05), resources=["tokenreviews"])
    found = await asyncio.gather(*(world.callers.caller("anna-token") for _ in range(20)))
    assert {caller.user for caller in found if caller is not None} == {"anna"}
    assert world.reviews() == 1


async def test_who_leaves_early_takes_no_answer_from_others(world: World) -> None:
    leaving = asyncio.create_task(world.callers.caller("anna-token"))
    staying = asyncio.create_task(world.callers.caller("anna-token"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying is not None


async def test_another_user_of_the_same_token_has_his_own_rights(world: World) -> None:
    caller = await world.callers.caller("eve-token")
    assert caller is not None
    assert await caller.may_see("b")
    world.api.accounts["eve-token"] = ANNA
    world.now_s += 31
    caller = await world.callers.caller("eve-token")
    assert caller is not None
    assert not await caller.may_see("b")


@pytest.mark.parametrize("trouble", [Answer(403), Answer(500), Garbage(b"nonsense"), Garbage(b'{"status": 5}')])
async def test_without_an_answer_nobody_is_let_in(world: World, trouble: Answer | Garbage) -> None:
    caller = await world.callers.caller("anna-token")
    assert caller is not None
    world.api.fail(trouble, resources=["tokenreviews", "subjectaccessreviews"])
    with pytest.raises(ApiError):
        await world.callers.caller("eve-token")
    with pytest.raises(ApiError):
        await caller.may_see("a")
    world.api.heal()
    assert await caller.may_see("a")


async def test_no_token_is_kept_or_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caller = await world.callers.caller("anna-token")
    assert "anna-token" not in caplog.text + repr(world.callers) + repr(caller) + repr(vars(world.callers))


async def test_invented_tokens_push_out_no_valid_one(world: World) -> None:
    assert await world.callers.caller("anna-token") is not None
    for number in range(1100):
        await world.callers.caller(f"wrong-{number}")
    asked = world.reviews()
    assert await world.callers.caller("anna-token") is not None
    assert world.reviews() == asked


async def test_a_sight_is_what_the_reviews_allow(world: World) -> None:
    anna, newcomer = await world.callers.caller("anna-token"), await world.callers.caller("new-token")
    assert anna is not None
    assert newcomer is not None
    scope, little = CallerScope(anna), CallerScope(newcomer)
    assert not scope.may_see("a")
    await scope.learn(["a", "b"])
    await little.learn(["a", "b"])
    assert (scope.nodes, scope.everything, scope.may_see("a"), scope.may_see("b")) == (True, False, True, False)
    assert (little.nodes, little.may_see("a")) == (False, True)


async def test_invented_tokens_ask_no_more_than_a_number_of_questions_at_a_time(world: World) -> None:
    """Those that wait are forgotten with their callers, however many come and go."""
    world.api.fail(Hang(), verbs=["create"], resources=["tokenreviews"])
    asked = [asyncio.create_task(world.callers.caller(f"invented-{number}")) for number in range(200)]
    await eventually(lambda: world.reviews() == 4)
    for each in asked:
        each.cancel()
    await asyncio.wait(asked)
    world.api.heal()
    world.api.reset_connections()
    assert await world.callers.caller("anna-token") is not None
    assert world.reviews() == 4 + 1


async def test_all_tokens_of_one_user_are_one_question_about_each_right(world: World) -> None:
    """Each token of a service account has an ID of its own (Kubernetes 1.32), which says nothing about the user."""
    for number in range(60):
        extra = {"authentication.kubernetes.io/credential-id": (f"JTI={number}",)}
        world.api.accounts[f"token-{number}"] = Account("sa", "u2", extra=extra, rights={("get", "pods", "a")})
    callers = await asyncio.gather(*(world.callers.caller(f"token-{number}") for number in range(60)))
    assert all(await asyncio.gather(*(each.may_see("a") for each in callers if each is not None)))
    assert (world.reviews(), world.reviews("subjectaccessreviews")) == (60, 1)


async def test_users_whom_an_authorizer_may_tell_apart_share_no_answer(world: World) -> None:
    """The same name, with other groups, is another identity."""
    for token, groups in (("one", ("a",)), ("two", ("b",)), ("three", ("a", "b"))):
        world.api.accounts[token] = Account("same", "u3", groups)
    for token in ("one", "two", "three"):
        caller = await world.callers.caller(token)
        assert caller is not None
        await caller.may_see("a")
    assert world.reviews("subjectaccessreviews") == 3


async def test_many_namespaces_of_one_user_hold_up_no_other(world: World) -> None:
    """The first user's questions fill all places; the second is asked about as soon as one place is free."""
    anna, newcomer = await world.callers.caller("anna-token"), await world.callers.caller("new-token")
    assert anna is not None
    assert newcomer is not None
    answered: list[str] = []

    async def ask(caller: Caller, namespace: str) -> None:
        await caller.may_see(namespace)
        answered.append(f"{caller.user} {namespace}")

    world.api.fail(Slow(0.05), resources=["subjectaccessreviews"])
    asked = [asyncio.create_task(ask(anna, f"space-{number}")) for number in range(160)]
    await eventually(lambda: world.reviews("subjectaccessreviews") == 8)
    await ask(newcomer, "a")
    assert len(answered) <= 8 * 3, answered
    world.api.heal()
    await asyncio.gather(*asked)
    assert world.reviews("subjectaccessreviews") == 161


async def test_whoever_invents_namespaces_waits_alone(world: World) -> None:
    anna, newcomer = await world.callers.caller("anna-token"), await world.callers.caller("new-token")
    assert anna is not None
    assert newcomer is not None
    world.api.fail(Slow(0.05), resources=["subjectaccessreviews"])
    asked = [asyncio.create_task(anna.may_see(f"space-{number}")) for number in range(8 + 256)]
    await eventually(lambda: world.reviews("subjectaccessreviews") == 8)
    with pytest.raises(UnavailableError, match="too many questions about anna wait"):
        await anna.may_see("one-more")
    world.api.heal()
    assert await newcomer.may_see("a")
    await asyncio.gather(*asked)


async def test_the_answers_of_all_users_are_bounded_and_whoever_has_most_loses_one(world: World) -> None:
    reviews = AccessReviews(world.client, lambda: world.now_s, most=10)
    for number in range(20):
        await reviews.allowed(User("anna").identity(), ("get", "pods", f"space-{number}"))
        if number == 1:
            await reviews.allowed(User("new").identity(), ("get", "pods", "a"))
    assert repr(reviews) == "<AccessReviews: 10 answers about 2 users>"
    asked = world.reviews("subjectaccessreviews")
    await reviews.allowed(User("new").identity(), ("get", "pods", "a"))
    await reviews.allowed(User("anna").identity(), ("get", "pods", "space-19"))
    assert world.reviews("subjectaccessreviews") == asked


async def test_rights_that_were_there_are_confirmed_before_others_are_looked_for(world: World) -> None:
    """A right that was taken away has to end in time, whatever is asked meanwhile."""
    anna = await world.callers.caller("anna-token")
    assert anna is not None
    assert await anna.may_see("a")
    world.now_s += 31
    world.api.fail(Slow(0.05), resources=["subjectaccessreviews"])
    asked = [asyncio.create_task(anna.may_see(f"space-{number}")) for number in range(100)]
    await eventually(lambda: world.reviews("subjectaccessreviews") >= 8)
    await anna.may_see("a")
    assert sum(each.done() for each in asked) <= 8 * 3
    world.api.heal()
    await asyncio.gather(*asked)


async def test_rights_hold_as_long_as_all_are_confirmed_in_time(world: World) -> None:
    anna = await world.callers.caller("anna-token")
    assert anna is not None
    scope = CallerScope(anna)
    await scope.learn(["a", "b"])
    world.now_s += 31
    assert await scope.still_holds(anna, within_s=stretched())
    world.now_s += 31
    assert not await scope.still_holds(anna, within_s=0), "nobody has confirmed it"


@pytest.mark.parametrize(
    "rights",
    [
        {("get", "pods", "a")},
        {("list", "nodes", "")},
        {("list", "nodes", ""), ("get", "pods", "a"), ("get", "pods", "b")},
        {("list", "nodes", ""), ("get", "pods", "")},
    ],
    ids=["nodes lost", "a namespace lost", "a namespace more", "all namespaces"],
)
async def test_no_right_comes_or_goes_unnoticed(world: World, rights: set[tuple[str, str, str]]) -> None:
    anna = await world.callers.caller("anna-token")
    assert anna is not None
    scope = CallerScope(anna)
    await scope.learn(["a", "b"])
    world.now_s += 31
    world.api.accounts["anna-token"] = Account("anna", "u1", ("team-a",), ANNA.extra, rights=rights)
    assert not await scope.still_holds(anna, within_s=stretched())
