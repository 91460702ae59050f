"""What the pages tell to do with `kubectl inspect gpushare` can be done, over doubles."""

import re
from pathlib import Path

from tests.docs.guide_world import EXAMPLES, NODE, guide
from tests.docs.pages import commands, pages

INSPECT = "kubectl inspect gpushare"
STANDS_FOR = {"NODE": NODE, "POD": "large", "NAMESPACE": "default", "NS": "default"}
"""What is put for the words that a reader replaces."""
ELSEWHERE = {"resize", "wake", "cordon", "uncordon", "web", "top", "incident", "--watch", "-w", "--version"}
"""Words of commands that have tests of their own, as most of them run until somebody ends them."""
SEVERITIES = frozenset({0, 3, 4})
"""How a doctor may end whose cluster has no container that runs."""


def words_of(command: str) -> tuple[str, ...]:
    """Return the arguments of a command as one types it."""
    text = re.sub(r"[\[\]]", "", command.removeprefix(INSPECT)).partition(">")[0]
    return tuple(re.sub(r"\b[A-Z]+\b(?!:)", lambda word: STANDS_FOR.get(word[0], word[0]), text).split())


async def test_our_own_commands_do_as_they_are_told(tmp_path: Path) -> None:
    told = {
        words_of(each.text)
        for page in pages()
        for each in commands(page)
        if each.text.startswith(INSPECT) and not each.needs_more
    }
    tried = sorted(words for words in told if not ELSEWHERE.intersection(words))
    assert len(tried) > 10
    async with guide(tmp_path) as world:
        for example in ("fragmented", "too-large-now"):
            await world.apply(EXAMPLES / f"{example}.yaml")
        for words in tried:
            await world.inspect(*words, codes=SEVERITIES if "doctor" in words else frozenset({0}))
