"""Equal values are one object, and what is remembered of them has an end."""

from gpu_device_plugin.model.sharing import Shared


def test_the_value_of_a_key_is_made_once() -> None:
    shared: Shared[str, list[int]] = Shared()
    first = shared.one("a", lambda: [1])
    assert shared.one("a", lambda: [1]) is first
    assert shared.one("b", lambda: [2]) == [2]
    assert len(shared) == 2


def test_when_it_is_full_all_are_forgotten_but_the_newest() -> None:
    shared: Shared[int, list[int]] = Shared(2)
    first = shared.one(1, lambda: [1])
    shared.one(2, lambda: [2])
    shared.one(3, lambda: [3])
    assert len(shared) == 1
    assert shared.one(1, lambda: [1]) is not first
