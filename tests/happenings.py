"""RegistrationLoop of a world with real sockets: what happens to it, one thing after another, as chance chooses."""

from collections.abc import Mapping
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

Happenings = Mapping[str, tuple[int, st.SearchStrategy[Any]]]
"""By the name of a method of the world: how often it happens, and with what."""
Life = list[tuple[str, tuple[Any, ...]]]

CHANCE = settings(
    max_examples=15,
    database=None,
    # To make a failure smaller takes minutes here, and a world with real sockets is not the same twice.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Checked(Protocol):
    """A world that can say whether all is as it must be."""

    def check(self) -> None: ...


def lives(happenings: Happenings, longest: int) -> st.SearchStrategy[Life]:
    """Draw from 15 up to `longest` happenings."""
    each = [st.tuples(st.just(name), how) for name, (times, how) in happenings.items() for _ in range(times)]
    return st.lists(st.one_of(*each), min_size=15, max_size=longest)


async def live(world: Checked, life: Life) -> None:
    """Let all of it happen, and look after each thing whether all is as it must be."""
    for name, arguments in life:
        await getattr(world, name)(*arguments)
        world.check()
