"""Findings: codes with parameters, and the sentences that they are rendered as."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from string import Formatter
from typing import Any, TypeAlias, TypeVar

from gpu_device_plugin.report.rules.printing import MOST_NAMED, age, counted, duration, listed


class Severity(StrEnum):
    """The severity of a finding, in ascending order."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNKNOWN = "unknown"
    """It could not be checked from here."""
    WARNING = "warning"
    """Works, but with a flaw."""
    ERROR = "error"
    """GPUs are not shared, or not safely."""


Parameter: TypeAlias = "str | int | Finding | tuple[str | Finding, ...]"
"""A value in a sentence; a tuple has names, or parts of the sentence."""
Message: TypeAlias = dict[str, Any]
"""A finding as the page takes it: ``code``, ``parameters``, which may be messages again, and ``text``, the words."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. The code and the parameters say all of it; the texts put it in words."""

    severity: Severity
    code: str
    text: str
    """A sentence or a clause, with parameters in braces; see `sentence`. The doctor's have no full stop."""
    remedy: str = ""
    """The advice, likewise; empty where none is needed."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    check: str = ""
    """The name of the check."""

    def __str__(self) -> str:
        """Return the finding in words."""
        return sentence(self.text, self.parameters)

    @property
    def advice(self) -> str:
        """The advice, as a clause; empty: none is needed."""
        return sentence(self.remedy, self.parameters)

    def message(self, *, capital: bool = False) -> Message:
        """Return the finding for readers of any language; `capital`: its words begin with a capital letter."""
        text = str(self)
        parameters = {name: _sent(each) for name, each in self.parameters.items()}
        return {"code": self.code, "parameters": parameters, "text": text[:1].upper() + text[1:] if capital else text}


def _sent(value: Parameter) -> object:
    if isinstance(value, tuple):
        return [*map(_sent, value)]
    return value.message() if isinstance(value, Finding) else value


class Unknown(Finding):
    """Stands in place of a fact that could not be determined; the advice says how to determine it."""

    __slots__ = ()

    def __init__(self, code: str, text: str = "", remedy: str = "", /, **parameters: Parameter) -> None:
        super().__init__(Severity.UNKNOWN, code, text, remedy, parameters)


def _finding(severity: Severity, code: str, text: str, remedy: str = "", /, **parameters: Parameter) -> Finding:
    return Finding(severity, code, text, remedy, parameters)


ok, note = partial(_finding, Severity.OK), partial(_finding, Severity.NOTE)
warning, error = partial(_finding, Severity.WARNING), partial(_finding, Severity.ERROR)


class _Sentence(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("+"):
            return format_spec[1:].join(map(str, value))
        if format_spec:
            return counted(value if isinstance(value, int) else len(value), *format_spec.split("|"))
        return listed(value) if isinstance(value, tuple) else str(value)


def sentence(text: str, parameters: Mapping[str, Parameter]) -> str:
    """Return a text with its parameters.

    ``{nodes}`` lists them, ``{nodes:node}`` and ``{nodes:is|are}`` count them, ``{parts:+; }`` joins all by ``; ``.
    """
    return _Sentence().vformat(text, (), parameters)


def few(items: Sequence[str | Finding], separator: str = ", ") -> Finding:
    """Return the first items and the number of the others, as `printing.first` does."""
    text, more = f"{{items:+{separator}}}", len(items) - MOST_NAMED
    if more <= 0:
        return note("items", text, items=tuple(items))
    return note("items-and-more", f"{text} and {{n}} more", items=tuple(items[:MOST_NAMED]), n=more)


def units(number: int) -> Finding:
    """Return a number of shares whose size is not known."""
    return note("units", "{n:share}", n=number)


def ago(seconds: float | None) -> Finding:
    """Return how long ago something was; None: unknown."""
    if seconds is None:
        return note("time-unknown", age(seconds))
    number, unit = duration(seconds).split(" ")
    return note(f"{unit}-ago", f"{{n}} {unit} ago", n=number)


def lasting(seconds: float) -> Finding:
    """Return how long something lasts."""
    number, unit = duration(seconds).split(" ")
    return note(unit, f"{{n}} {unit}", n=number)


def literal(text: str) -> str:
    """Return words as the text of a finding that stand there as they are, braces too."""
    return text.replace("{", "{{").replace("}", "}}")


S = TypeVar("S")
K = TypeVar("K")
V = TypeVar("V")


def known(field: str, check: Callable[[S, Any], Iterable[Finding]]) -> Callable[[S], Iterable[Finding]]:
    """Return the check that gets a field of the symptoms too, or tells why that is not known."""

    def checked(symptoms: S) -> Iterable[Finding]:
        value = getattr(symptoms, field)
        return [value] if isinstance(value, Unknown) else check(symptoms, value)

    return checked


def examine(checks: Mapping[str, Callable[[S], Iterable[Finding]]], symptoms: S) -> tuple[Finding, ...]:
    """Return the findings of all checks about `symptoms`, in the order of the checks."""
    return tuple(
        Finding(finding.severity, finding.code, finding.text, finding.remedy, finding.parameters, name)
        for name, check in checks.items()
        for finding in check(symptoms)
    )


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    """Return the second parts of pairs by what they have in common, the first."""
    found: dict[K, list[V]] = {}
    for common, each in pairs:
        found.setdefault(common, []).append(each)
    return {common: tuple(those) for common, those in found.items()}
