"""Selectors of labels, parsed like by the API server."""

import re
from collections.abc import Mapping

from gpu_device_plugin.testing.cluster.cluster_kinds import PAIR, Object, Test

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s!=,()]+)")


def label_selector(text: str) -> Test:
    """Read ``a=b,c!=d,e in (f,g),h notin (i),j,!k``; ValueError: the API server would refuse it."""
    terms = [term.strip() for term in re.split(r",(?![^()]*\))", text) if term.strip()]
    tests = [_label_test(term) for term in terms]
    return lambda candidate: all(test(candidate) for test in tests)


def _label_test(term: str) -> Test:
    if (match := _SET.fullmatch(term)) is not None:
        key, wanted = match["key"], {value.strip() for value in match["values"].split(",")}
        inside = match["word"] == "in"
        return lambda candidate: (_labels(candidate).get(key) in wanted) is inside
    if (match := PAIR.fullmatch(term)) is not None:
        key, value, equal = match["key"], match["value"], match["sign"] != "!="
        return lambda candidate: (_labels(candidate).get(key) == value) is equal
    if (match := _EXISTS.fullmatch(term)) is not None:
        key, there = match["key"], not match["no"]
        return lambda candidate: (key in _labels(candidate)) is there
    raise ValueError(f"unable to parse requirement: {term!r}")


def _labels(candidate: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = candidate["metadata"].get("labels") or {}
    return labels
