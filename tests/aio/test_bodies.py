"""All bodies of requests together are bounded."""

import asyncio
import io

import aiohttp

from gpu_device_plugin.aio.http import Page, Request, Route, serving_routes


class Desk:
    """Answers with the length of the body, once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.lengths: list[int] = []

    async def answer(self, request: Request) -> Page:
        self.lengths.append(len(request.body))
        self.asked.set()
        await self.may_answer.wait()
        return Page(str(len(request.body)))

    @property
    def routes(self) -> list[Route]:
        return [Route("POST", "/", self.answer)]


async def posted(url: str, body: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(url, data=body) as response:
        return response.status, await response.text()


REFUSED = 503, "too many large bodies arrive at once; resend this one\n"


async def test_of_too_many_bodies_the_largest_that_still_arrives_is_refused() -> None:
    """One of 60 MiB after the other would take more than the extender's limit of memory."""
    desk, more = Desk(), asyncio.Event()

    async def slow() -> object:
        yield b"x" * 7000
        await more.wait()
        yield b"x" * 3000

    async with serving_routes("127.0.0.1", 0, desk.routes, most_bodies=10_000) as port:
        url = f"http://127.0.0.1:{port}/"
        async with asyncio.TaskGroup() as tasks:
            large = tasks.create_task(posted(url, slow()))
            small = tasks.create_task(posted(url, b"x" * 4000))
            assert await large == REFUSED
            desk.may_answer.set()
            assert await small == (200, "4000")
            assert await posted(url, b"x" * 9000) == (200, "9000")
        assert desk.lengths == [4000, 9000]


async def test_bodies_count_until_they_are_answered() -> None:
    desk = Desk()
    async with serving_routes("127.0.0.1", 0, desk.routes, most_bodies=10_000) as port:
        url = f"http://127.0.0.1:{port}/"
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(posted(url, b"x" * 8000))
            await desk.asked.wait()
            assert await posted(url, b"x" * 2001) == REFUSED
            desk.may_answer.set()
            assert await first == (200, "8000")


async def test_a_body_that_is_refused_is_never_answered_in_part() -> None:
    desk = Desk()
    desk.may_answer.set()
    async with serving_routes("127.0.0.1", 0, desk.routes, most_bodies=100_000) as port:
        assert await posted(f"http://127.0.0.1:{port}/", io.BytesIO(b"x" * 3_000_000)) == REFUSED
    assert desk.lengths == []
