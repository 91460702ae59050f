"""Parse field and label selectors like the API server; ValueError: it would refuse one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Object = Mapping[str, Any]
    Test = Callable[[Object], bool]

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)")
_PAIR = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s!=,()]+)")


def field_selector(text: str, fields: Mapping[str, Callable[[Object], str]]) -> Test:
    """Read ``spec.nodeName=a,status.phase!=Failed``; `fields` are those that the kind of object supports."""
    tests: list[Test] = []
    for term in _terms(text):
        match = _PAIR.fullmatch(term)
        if match is None:
            raise ValueError(f"invalid selector: '{term}'; can't understand '{term}'")
        if match["key"] not in fields:
            raise ValueError(f"field label not supported: {match['key']}")
        tests.append(_compare(fields[match["key"]], match["value"], equal=match["sign"] != "!="))
    return lambda candidate: all(test(candidate) for test in tests)


def label_selector(text: str) -> Test:
    """Read ``a=b,c!=d,e in (f,g),h notin (i),j,!k``."""
    tests = [_label_test(term) for term in _terms(text)]
    return lambda candidate: all(test(candidate) for test in tests)


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^()]*\))", text) if term.strip()]


def _compare(value_of: Callable[[Object], str | None], value: str, *, equal: bool) -> Test:
    return lambda candidate: (value_of(candidate) == value) is equal


def _label_test(term: str) -> Test:
    if (match := _SET.fullmatch(term)) is not None:
        key, wanted = match["key"], {value.strip() for value in match["values"].split(",")}
        inside = match["word"] == "in"
        return lambda candidate: (_labels(candidate).get(key) in wanted) is inside
    if (match := _PAIR.fullmatch(term)) is not None:
        key = match["key"]
        return _compare(lambda candidate: _labels(candidate).get(key), match["value"], equal=match["sign"] != "!=")
    if (match := _EXISTS.fullmatch(term)) is not None:
        key, there = match["key"], not match["no"]
        return lambda candidate: (key in _labels(candidate)) is there
    raise ValueError(f"unable to parse requirement: {term!r}")


def _labels(candidate: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = candidate["metadata"].get("labels") or {}
    return labels
