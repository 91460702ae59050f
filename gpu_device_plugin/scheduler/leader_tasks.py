"""Do what only the active extender does, again and again, while this one is it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn

from gpu_device_plugin.aio.waiting import for_ever, together
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderStep:
    """Something that only the active extender does. An error of it keeps none of the other steps from being taken."""

    name: str
    """The part of the extender that it belongs to."""
    run: Callable[[], Awaitable[object]]
    forget: Callable[[Hashable], None] = lambda _term: None
    """Drops what another extender may have made wrong; called with each new term, before the first step of it."""
    _: KW_ONLY
    pause_s: float
    """Between two runs. Steps of one pause are taken one after the other: none meets another's half-done work."""
    waits: str
    """A sentence for the log where the API server does not do what the step, or the beginning of a term, needs."""
    manifest: str = ""
    """What grants the rights of the step."""


class LeaderTasks:
    """Takes steps while this extender is the active one.

    In a new term it learns first what other extenders have done; then each step forgets what it knew, and acts.
    """

    def __init__(
        self,
        active_term: Callable[[], Awaitable[Hashable | None]],
        catch_up: Callable[[], Awaitable[object]],
        steps: Iterable[LeaderStep],
    ) -> None:
        """Prepare to take these steps; see `Readiness` for the two others."""
        self._active_term = active_term
        self._catch_up = catch_up
        self._rounds: dict[float, list[LeaderStep]] = {}
        for step in steps:
            self._rounds.setdefault(step.pause_s, []).append(step)
        self._waits = "; ".join(dict.fromkeys(step.waits for steps in self._rounds.values() for step in steps))
        self._term: Hashable | None = None
        """In which all is known that others had done before."""
        self._entering = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Take the steps. Ends only by cancellation."""
        await together(for_ever(), *(self._round(steps, pause_s) for pause_s, steps in self._rounds.items()))

    async def _round(self, steps: Sequence[LeaderStep], pause_s: float) -> NoReturn:
        known: Hashable | None = None
        while True:
            try:
                term = await self._entered()
            except (ApiError, TimeoutError) as error:
                # One line of all steps, the same in each round: it is written again once the reason is another.
                _log.warning("%s", self._waits, extra={"why": str(error), "once_per_s": 600})
                # An API server in trouble is asked by all together as often as by the slowest alone.
                await asyncio.sleep(len(self._rounds) * max(self._rounds) - pause_s)
            else:
                if term is not None and term != known:
                    for step in steps:
                        step.forget(term)
                known = term
                for step in steps if term is not None else ():
                    await _done(step)
            await asyncio.sleep(pause_s)

    async def _entered(self) -> Hashable | None:
        """Return the term, once it is known what others have done before it; None: this extender is not active."""
        # The lock spans awaits on purpose: one list of the pods and nodes is enough for all.
        async with self._entering:
            term = await self._active_term()
            if term is not None and term != self._term:
                await self._catch_up()
            self._term = term
            return term


async def _done(step: LeaderStep) -> None:
    try:
        await step.run()
    except (ApiError, TimeoutError) as error:
        _told(step, error)
    except Exception:  # noqa: BLE001 - whatever is wrong here, pods have to be scheduled
        _log.exception("a step of the %s failed", step.name, extra={"once_per_s": 60})


def _told(step: LeaderStep, error: Exception) -> None:
    hint = f"; apply {step.manifest}" if step.manifest and isinstance(error, ForbiddenError) else ""
    _log.warning(step.waits, extra={"why": f"{error}{hint}", "once_per_s": 60})
