"""Read samples over Prometheus' HTTP API, of one cluster in a store with several."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import msgspec

from gpu_device_plugin.features.cost.rules import (
    GIVEN,
    LABELS,
    POD_OWNER,
    POWER,
    REPLICASET_OWNER,
    Period,
    Series,
)
from gpu_device_plugin.report.rules.printing import shortened

_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*")\s*(?:,|$)')


def matchers(text: str) -> tuple[str, ...]:
    """Return the conditions in ``cluster="a",env=~"b|c"`` as PromQL has them. Raises ValueError, with a sentence."""
    found: list[str] = []
    at = 0
    problem = ValueError(f"{text!r} does not select by labels; write 'cluster=\"a\"'")
    while at < len(text):
        match = _MATCHER.match(text, at)
        if match is None:
            raise problem
        label, operator, value = match.groups()
        try:
            value = json.loads(value)
            re.compile(value if "~" in operator else "")
        except (ValueError, re.error):
            raise problem from None
        found.append(f"{label}{operator}{json.dumps(value, ensure_ascii=False)}")
        at = match.end()
    return tuple(found)


_STEPS_AT_ONCE = 1000
"""Samples of a series in one answer; Prometheus gives at most 11,000."""
_LARGEST = 512 << 20
"""Bytes of an answer or a file."""
_TIMEOUT_S = 120.0


class SamplesError(Exception):
    """Samples cannot be read; the message is a sentence."""


class _Result(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[tuple[float, str]] | None = None


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[_Result] = msgspec.field(default_factory=list)


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""
    warnings: list[str] | None = None
    """Of Prometheus and Thanos: why samples may be missing."""
    partial: bool = msgspec.field(name="isPartial", default=False)
    """Of VictoriaMetrics."""


class _NoRedirect(HTTPRedirectHandler):
    """Follows none: a token must not go to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus, or another server with its HTTP API."""

    url: str
    token: str = ""
    """Sent as a bearer token, if there is one."""
    ca: str = ""
    """Path of the certificates to trust; empty: those of the system."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each request; that of a tenant is ``X-Scope-OrgID``."""
    selected: Sequence[str] = ()
    """What all series have to match."""

    def read(self, period: Period) -> tuple[list[Series], list[str]]:
        """Return the series of a period, and why samples may be missing, in the server's words. Raises SamplesError."""
        series: list[Series] = []
        missing: dict[str, None] = {}
        for name, labels in LABELS.items():
            chunk_s = _STEPS_AT_ONCE * period.step_s
            for start in range(period.start, period.end, chunk_s):
                last = min(period.end - 1, start + chunk_s - period.step_s)
                query = _query(name, labels, period.step_s, self.selected)
                answer = self._range(query, start, last, period.step_s)
                missing |= dict.fromkeys(_missing(answer))
                series += [Series(name, each.metric, _values(each, self.url)) for each in answer.data.result]
        return series, [*missing]

    def _range(self, query: str, start: int, end: int, step_s: int) -> _Answer:
        what = f"Prometheus at {self.url}"
        body = urlencode({"query": query, "start": start, "end": end, "step": step_s}).encode()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= self.headers
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise SamplesError(f"--ca {self.ca} cannot be used: {error.strerror or error}") from error
        try:
            request = Request(f"{self.url.rstrip('/')}/api/v1/query_range", body, headers)  # noqa: S310 - `checked` allows http and https only
            opener = build_opener(_NoRedirect(), HTTPSHandler(context=context))
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                text = answer.read(_LARGEST + 1)
        except HTTPError as error:
            raise SamplesError(f"{what} answers {error.code}: {_why(error)}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            reason = getattr(cause, "strerror", None) or cause or type(error).__name__
            raise SamplesError(f"{what} cannot be reached: {reason}; try the address with curl from here") from error
        return _decoded(text, what)


def checked(url: str) -> str:
    """Return the address of a Prometheus. Raises ValueError, with a sentence."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query or parts.fragment:
        meant = f"http://{url}" if "/" not in url and url else "http://prometheus.monitoring:9090"
        raise ValueError(f"{url!r} is no address such as {meant}")
    return url


def header(text: str) -> tuple[str, str]:
    """Return the name and the value of ``NAME: VALUE``. Raises ValueError, with a sentence."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not value.strip().isprintable():
        raise ValueError("this is no NAME: VALUE, such as 'X-Scope-OrgID: team'")  # it may have a secret
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"{name}: a header has no such characters") from None
    return name, value.strip()


def _query(name: str, labels: Iterable[str], step_s: int, selected: Sequence[str] = ()) -> str:
    by = f"max by ({', '.join(labels)})"

    def series(metric: str, *conditions: str) -> str:
        each = ",".join((*conditions, *selected))
        return f"{metric}{{{each}}}" if each else metric

    if name == POWER:
        rate = f"rate({series('gpushare_gpu_energy_joules_total')}[{max(step_s, 120)}s])"
        return f"{by} ({rate}) or {by} ({series(POWER)})"
    # Only those of pods with GPUs: a cluster may have ten thousand others.
    owned = series(POD_OWNER, 'owner_is_controller="true"')
    pods = f"({owned} and on (namespace, pod) {series(GIVEN)})"
    if name == POD_OWNER:
        return f"{by} {pods}"
    if name == REPLICASET_OWNER:
        above = f'label_replace({pods}, "replicaset", "$1", "owner_name", "(.+)")'
        return f"{by} ({series(name)} and on (namespace, replicaset) {above})"
    return f"{by} ({series(name)})"


def _why(error: HTTPError) -> str:
    if error.code in range(300, 400):
        return f"it sends to {error.headers.get('Location', 'another address')}; give that address"
    words = _words(error)
    if error.code in {401, 403}:
        return f"{words or 'it wants another token'}; see --token-file, and --header for a tenant"
    return words or f"{error.reason}; is that the address of a Prometheus, with its path?"


def _words(error: HTTPError) -> str:
    """Return what a server says in a refusal, as JSON or as plain text; empty: it shows a page, or nothing."""
    try:
        body = error.read(1 << 16)
    except (OSError, http.client.HTTPException):
        return ""
    try:
        said = msgspec.json.decode(body, type=_Answer).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = body.decode("utf-8", errors="replace")
    said = " ".join(said.split())
    return "" if said.startswith("<") else shortened(said, 300)


def _missing(answer: _Answer) -> Iterator[str]:
    """Yield why samples may be missing in an answer. What Prometheus 2 only remarks of a query is none of it."""
    for warning in answer.warnings or ():
        if not warning.startswith("PromQL info:"):
            yield shortened(" ".join(warning.split()), 300)
    if answer.partial and not answer.warnings:
        yield "isPartial"


def _decoded(text: bytes, what: str) -> _Answer:
    if len(text) > _LARGEST:
        raise SamplesError(f"{what}: more than {_LARGEST >> 20} MiB at once; take a longer --step or a shorter period")
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SamplesError(f"{what}: this is no answer of Prometheus' API /api/v1/query_range ({error})") from error
    if answer.status != "success":
        raise SamplesError(f"{what} refuses the query: {answer.error or answer.status}")
    if answer.data.result_type != "matrix":
        raise SamplesError(f"{what}: a {answer.data.result_type or 'result'}, no matrix; record /api/v1/query_range")
    return answer


def _values(found: _Result, what: str) -> dict[int, float]:
    try:
        pairs = [(round(at), float(value)) for at, value in found.values or ()]
    except (ValueError, OverflowError) as error:
        raise SamplesError(f"{what}: a sample is no number: {error}") from error
    # All that is read are amounts and parts.
    return {at: value for at, value in pairs if isfinite(value) and value >= 0}


# --- Files ------------------------------------------------------------------------------------------------------------


def content(flag: str, path: str) -> bytes:
    """Return the content of the file that a flag names. Raises SamplesError."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise SamplesError(f"{flag} {path} cannot be read: {error.strerror}; name a file") from error
    if len(text) > _LARGEST:
        raise SamplesError(f"{flag} {path} is larger than {_LARGEST >> 20} MiB; name a smaller file")
    return text
