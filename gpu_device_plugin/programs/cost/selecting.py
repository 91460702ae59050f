"""Select the series of one cluster in a store that has several."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*")\s*(?:,|$)')
_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda text, value: text == value,
    "!=": lambda text, value: text != value,
    "=~": lambda text, value: re.fullmatch(value, text) is not None,
    "!~": lambda text, value: re.fullmatch(value, text) is None,
}


class Matcher(NamedTuple):
    """A condition for one label, as PromQL writes it."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}{self.operator}{json.dumps(self.value, ensure_ascii=False)}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether a series with these labels is selected; a label that it lacks is empty."""
        return _OPERATORS[self.operator](labels.get(self.label, ""), self.value)


def matchers(text: str) -> tuple[Matcher, ...]:
    """Return what ``cluster="a",env=~"b|c"`` selects. Raises ValueError, with a sentence."""
    found: list[Matcher] = []
    problem = ValueError(f"{text!r} does not select by labels; write 'cluster=\"a\"'")
    at = 0
    while at < len(text):
        match = _MATCHER.match(text, at)
        if match is None:
            raise problem
        try:
            found.append(Matcher(match[1], match[2], json.loads(match[3])))
            re.compile(found[-1].value if "~" in match[2] else "")
        except (ValueError, re.error):
            raise problem from None
        at = match.end()
    return tuple(found)
