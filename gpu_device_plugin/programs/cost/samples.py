"""Read samples: over Prometheus' HTTP API, from files with its answers, and from audit records in logs."""

from __future__ import annotations

import http.client
import json
import ssl
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import msgspec

from gpu_device_plugin.core.cost.accounting import (
    GIVEN,
    LABELS,
    MEMORY,
    POD_OWNER,
    POWER,
    REPLICASET_OWNER,
    Series,
)
from gpu_device_plugin.core.cost.audit import AuditRecord
from gpu_device_plugin.core.report.text.printing import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from gpu_device_plugin.core.cost.accounting import Period

_STEPS_AT_ONCE = 1000
"""Samples of a series in one answer; Prometheus gives at most 11,000."""
_LARGEST = 512 << 20
"""Bytes of an answer or a file."""
_TIMEOUT_S = 120.0
_SCRAPES_S = 300
"""In files a sample counts until the next one, but no longer than a step or this, Prometheus' own lookback; one that
was recorded at longer steps, for such a step."""


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


_DECODER = msgspec.json.Decoder(_Answer)


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

    def read(self, period: Period) -> Iterator[Series]:
        """Yield the series of a period. Raises SamplesError."""
        for name, labels in LABELS.items():
            chunk_s = _STEPS_AT_ONCE * period.step_s
            for start in range(period.start, period.end, chunk_s):
                last = min(period.end - 1, start + chunk_s - period.step_s)
                query = _query(name, labels, period.step_s)
                for each in self._range(query, start, last, period.step_s):
                    yield Series(name, each.metric, _values(each, self.url))

    def _range(self, query: str, start: int, end: int, step_s: int) -> list[_Result]:
        what = f"Prometheus at {self.url}"
        body = urlencode({"query": query, "start": start, "end": end, "step": step_s}).encode()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
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
            raise SamplesError(f"{what} cannot be reached: {reason}") from error
        return _decoded(text, what)


def checked(url: str) -> str:
    """Return the address of a Prometheus. Raises ValueError, with a sentence."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no address such as http://prometheus.monitoring:9090")
    return url


def _query(name: str, labels: Iterable[str], step_s: int) -> str:
    by = f"max by ({', '.join(labels)})"
    if name == POWER:
        rate = f"rate(gpushare_gpu_energy_joules_total[{max(step_s, 120)}s])"
        return f"{by} ({rate}) or {by} ({POWER})"
    # Only those of pods with GPUs: a cluster may have ten thousand others.
    pods = f'({POD_OWNER}{{owner_is_controller="true"}} and on (namespace, pod) {GIVEN})'
    if name == POD_OWNER:
        return f"{by} {pods}"
    if name == REPLICASET_OWNER:
        above = f'label_replace({pods}, "replicaset", "$1", "owner_name", "(.+)")'
        return f"{by} ({name} and on (namespace, replicaset) {above})"
    return f"{by} ({name})"


def _why(error: HTTPError) -> str:
    if error.code in {401, 403}:
        return "it wants another token; see --token-file"
    if error.code in range(300, 400):
        return f"it sends to {error.headers.get('Location', 'another address')}; give that address"
    try:
        if why := shortened(_DECODER.decode(error.read(1 << 16)).error, 300):
            return why
    except (msgspec.MsgspecError, RecursionError, OSError, http.client.HTTPException):
        pass
    return f"{error.reason}; is that the address of a Prometheus, with its path?"


def _decoded(text: bytes, what: str) -> list[_Result]:
    if len(text) > _LARGEST:
        raise SamplesError(f"{what}: more than {_LARGEST >> 20} MiB at once; take a longer --step or a shorter period")
    try:
        answer = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SamplesError(f"{what}: this is no answer of Prometheus' API /api/v1/query_range ({error})") from error
    if answer.status != "success":
        raise SamplesError(f"{what} refuses the query: {answer.error or answer.status}")
    if answer.data.result_type != "matrix":
        raise SamplesError(f"{what}: a {answer.data.result_type or 'result'}, no matrix; record /api/v1/query_range")
    return answer.data.result


def _values(found: _Result, what: str) -> dict[int, float]:
    try:
        pairs = [(round(at), float(value)) for at, value in found.values or ()]
    except (ValueError, OverflowError) as error:
        raise SamplesError(f"{what}: a sample is no number: {error}") from error
    # All that is read are amounts and parts.
    return {at: value for at, value in pairs if isfinite(value) and value >= 0}


# --- Files ------------------------------------------------------------------------------------------------------------


def content(path: Path) -> bytes:
    """Return the content of a file. Raises SamplesError."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise SamplesError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > _LARGEST:
        raise SamplesError(f"{path} is larger than {_LARGEST >> 20} MiB; split it, the flag can be given repeatedly")
    return text


def in_file(text: bytes, path: Path, period: Period) -> Iterator[Series]:
    """Yield the series of a recorded answer, with samples at the times of the period. Raises SamplesError."""
    found = []
    for each in _decoded(text, str(path)):
        name = each.metric.get("__name__", "")
        if not name:
            raise SamplesError(f"{path}: series without a name; record the metrics themselves, such as {MEMORY}")
        if name in LABELS:
            found.append((name, each.metric, _values(each, str(path))))
    apart = [later - earlier for *_, values in found for earlier, later in pairwise(sorted(values))]
    for name, metric, values in found:
        yield Series(name, metric, aligned(values, period, min(apart, default=0)))


def aligned(values: dict[int, float], period: Period, recorded_s: int = 0) -> dict[int, float]:
    """Return the newest value at each time of the period, if it is not too old; `recorded_s` lies between two."""
    oldest_s, in_order = max(min(period.step_s, _SCRAPES_S), recorded_s), sorted(values)
    found: dict[int, float] = {}
    for at in period.times:
        earlier = bisect_right(in_order, at)
        if earlier and at - (newest := in_order[earlier - 1]) < oldest_s:
            found[at] = values[newest]
    return found


def audit_lines(text: bytes) -> list[AuditRecord]:
    """Return the audit records among lines of JSON; other lines are passed over."""
    found = []
    for line in text.splitlines():
        if b"gpushare." not in line:
            continue
        try:
            # What collects logs may write something before the object, such as the runtime's time stamp.
            fields = json.loads(line[line.index(b"{") :])
        except (ValueError, RecursionError):
            continue
        record = AuditRecord.of(fields) if isinstance(fields, dict) else None
        if record is not None:
            found.append(record)
    return found[::-1] if _newest_first(found) else found


def _newest_first(records: Sequence[AuditRecord]) -> bool:
    """Return whether most records tell of an earlier time than the one before, as tools that show logs print them."""
    times = [each.ended or each.began for each in records]
    pairs = list(pairwise(times))
    return sum(later < earlier for earlier, later in pairs) > sum(later > earlier for earlier, later in pairs)
