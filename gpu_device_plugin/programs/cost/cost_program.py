"""`gpu-device-plugin cost`: who had the GPUs in a period, who used them, and what that cost."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, TypeVar

import yaml

from gpu_device_plugin.commandline import FAILED, OK, say, show, width
from gpu_device_plugin.features.cost.report import (
    By,
    Costs,
    NoRateError,
    Rate,
    cents,
    cost_document,
    cost_table,
    focus_csv,
    rows,
)
from gpu_device_plugin.features.cost.rules import GIVEN, MEMORY, Account, Period, Series, account
from gpu_device_plugin.model.times import epoch_s, rfc3339, seconds
from gpu_device_plugin.plotting import plot_path
from gpu_device_plugin.programs.cost.plot import draw_costs
from gpu_device_plugin.programs.cost.prometheus import (
    Prometheus,
    SamplesError,
    checked,
    content,
    header,
    matchers,
)
from gpu_device_plugin.report.rules.columns import Line
from gpu_device_plugin.report.rules.printing import counted, duration, first
from gpu_device_plugin.settings.knobs import UsageError

T = TypeVar("T")

_PROG = "gpu-device-plugin cost"
_MOST_STEPS = 100_000
INCOMPLETE = 3
"""The exit code for costs of which samples may be missing."""


def main(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Read, divide and print; return 0, `INCOMPLETE`, or 1 if samples cannot be read.

    Raises:
        UsageError: the arguments cannot be used.
    """
    try:
        period = _period(arguments)
        path = plot_path(arguments.plot) if arguments.plot is not None else None
        rates, currency = _rates(arguments)
        if arguments.output == "focus" and not rates:
            raise UsageError("-o focus: costs need prices; add --rate 'MODEL=PRICE', or --rates PATH")
        found, missing = _account(arguments, environ, period)
        by = By(arguments.by)
        prices = cents(found, rates) if rates else {}
        focus = arguments.output == "focus"
        shown = rows(found, by, prices, models=focus)
        costs = Costs(shown, period, by, found.cards, currency if rates else "", _notes(found, missing))
        when = f"from {rfc3339(period.start)} to {rfc3339(period.end)}, in steps of {duration(period.step_s)}"
        heading = f"{counted(found.cards, 'GPU')} {when}"
        if path is not None:
            draw_costs(path, heading, replace(costs, rows=rows(found, by, prices)) if focus else costs)
        if arguments.output == "json":
            sys.stdout.write(json.dumps(cost_document(costs), indent=2) + "\n")
        elif focus:
            sys.stdout.write(focus_csv(costs, rates, arguments.account or "gpushare"))
        else:
            show([Line(heading), Line(""), *cost_table(costs, width(200))], environ)
        sys.stdout.flush()
        if missing and arguments.output != "table":
            say(sys.stderr, f"{_PROG}: {_incomplete(missing)}")
    except NoRateError as error:
        raise UsageError(str(error)) from error
    except SamplesError as error:
        say(sys.stderr, f"{_PROG}: {error}")
        return FAILED
    return INCOMPLETE if missing else OK


def _account(
    arguments: argparse.Namespace, environ: Mapping[str, str], period: Period
) -> tuple[Account, Sequence[str]]:
    """Return the account, and why samples may be missing in it."""
    url = arguments.prometheus or environ.get("PROMETHEUS_URL", "")
    if not url:
        raise UsageError(
            "name what to read: --prometheus URL, or PROMETHEUS_URL, such as http://prometheus.monitoring:9090"
        )
    selected = _used("--select", matchers, arguments.select or "")
    headers = dict(_used("--header", header, text) for text in arguments.header)
    address, token = _used("--prometheus", checked, url), _token(arguments, environ)
    series, missing = Prometheus(address, token, arguments.ca or "", headers, selected).read(period)
    found = account(series, period)
    if not found.cards:
        said = f". {_incomplete(missing)}" if missing else ""
        raise SamplesError(f"{_nothing(series, period)}{said}")
    return found, missing


def _used(flag: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _token(arguments: argparse.Namespace, environ: Mapping[str, str]) -> str:
    text = environ.get("PROMETHEUS_TOKEN", "")
    if arguments.token_file:
        try:
            text = content("--token-file", arguments.token_file).decode("ascii")
        except ValueError:
            raise UsageError(f"--token-file: {arguments.token_file} holds no token") from None
    if not text.strip().isprintable():
        raise UsageError("the token for Prometheus has to be one line")
    return text.strip()


# --- Arguments --------------------------------------------------------------------------------------------------------


def _period(arguments: argparse.Namespace) -> Period:
    now = int(time.time())
    start = _time("--from", getattr(arguments, "from") or "24h", now)
    end = _time("--to", arguments.to or "0s", now)
    if start >= end:
        raise UsageError(
            f"the period is empty: --from is {rfc3339(start)}, --to is {rfc3339(end)}, and has to be later"
        )
    if end > now:
        raise UsageError(f"--to: {rfc3339(end)} is in the future")
    step_s = max(60, (end - start) // 120_000 * 60) if arguments.step is None else int(seconds(arguments.step) or 0)
    if not step_s:
        raise UsageError(f"--step: {arguments.step!r} is not a duration of at least a second; write 5m or 1h")
    step_s = min(step_s, end - start)
    if (end - start) // step_s > _MOST_STEPS:
        raise UsageError(f"--step: {step_s} s are more than {_MOST_STEPS} steps; take a longer one")
    return Period(start, end, step_s)


def _time(flag: str, text: str, now: int) -> int:
    ago_s, at = seconds(text), epoch_s(text)
    if ago_s is None and at is None:
        raise UsageError(f"{flag}: {text!r} is no time; write 2026-10-01, 2026-10-01T06:00:00Z, or 30d for 30 days ago")
    return max(0, int(at if at is not None else now - (ago_s or 0)))


def _rates(arguments: argparse.Namespace) -> tuple[list[Rate], str]:
    found, currency = [], arguments.currency
    for text in arguments.rate:
        models, equals, price = text.rpartition("=")
        if not equals or not models.strip():
            raise UsageError(f"--rate: {text!r} is not MODEL=PRICE; write 'NVIDIA H100*=2.50'")
        found.append(Rate(models.strip(), _price("--rate", price)))
    if arguments.rates:
        where = f"--rates {arguments.rates}"
        try:
            content_of: Any = yaml.safe_load(content("--rates", arguments.rates))
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f"line {mark.line + 1}: " if mark else ""
            why = getattr(error, "problem", None) or "it cannot be parsed"
            raise UsageError(f"{where}: {line}this is not valid YAML: {why}; correct it there") from None
        table = content_of.get("rates") if isinstance(content_of, dict) else None
        if not isinstance(table, dict) or not table:
            raise UsageError(f"{where}: write rates: as a map from models to prices, such as rates: {{'*T4': 0.35}}")
        found += [Rate(str(models), _price(where, str(price))) for models, price in table.items()]
        currency = currency or content_of.get("currency")
    if currency and not found:
        raise UsageError("--currency: there are no prices; add --rate 'MODEL=PRICE', or --rates PATH")
    currency = currency or "USD"
    if not re.fullmatch(r"[A-Z]{3}", str(currency), re.ASCII):
        raise UsageError(f"--currency: {currency!r} is no code of three letters, such as EUR")
    return found, str(currency)


def _price(flag: str, text: str) -> Fraction:
    try:
        value = Decimal(text.strip())
        # A fraction with the thousands of digits of 1e-9999 would take for ever.
        if value.is_finite() and 0 <= value < 10**9 and int(value.as_tuple().exponent) >= -99:
            return Fraction(value)
    except InvalidOperation:
        pass
    raise UsageError(f"{flag}: {text.strip()!r} is no amount of at least 0; write 2.50")


# --- What is said -----------------------------------------------------------------------------------------------------


def _nothing(series: Sequence[Series], period: Period) -> str:
    when = f"from {rfc3339(period.start)} to {rfc3339(period.end)}"
    if any(each.name == GIVEN and each.values for each in series):
        return f"there is no {MEMORY} {when}, only what containers were allocated; read both"
    return (
        f"there is no {MEMORY} {when}: do agents run with --http, and does Prometheus read them? See docs/operations.md"
    )


def _incomplete(missing: Sequence[str]) -> str:
    return f"the costs are not complete, as samples may be missing: {first(missing, separator='; ')}"


def _notes(found: Account, missing: Sequence[str]) -> list[str]:
    notes = [_incomplete(missing)] if missing else []
    if not found.stranded_known:
        notes.append(
            "what is stranded is not known (no gpushare_extender_node_memory_stranded_bytes, which the policy fit "
            "learns) and counts as free"
        )
    if not any(key.holder.owner for key, _ in found.parts):
        notes.append("owners are not known: read kube-state-metrics with Prometheus")
    return notes
