"""Configure the log: one fact per line, for people on a terminal and as JSON for machines.

Modules log with the standard library alone, ``log.warning("plugin restarts", extra={"after_s": 5})``; the keys of
`extra` become the fields of the line. The key ``once_per_s`` limits the rate instead: a line with the same text and
fields is written once in that many seconds, and then says how often it was suppressed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, MutableMapping
from datetime import UTC, datetime
from typing import TextIO

from gpu_device_plugin.report.rules.printing import json_line, printable

PACKAGE = "gpu_device_plugin"
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ORDER = "once_per_s"
_SUPPRESSED = "suppressed"
_LIBRARIES_PER_S = 60.0
_REMEMBERED = 1000
"""The number of remembered lines from which expired ones are dropped."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[1;31m"}


def configure(level: str, style: str, stream: TextIO, *, colour: bool = True) -> None:
    """Send every line to `stream`, in place of any earlier choice; `colour` is for human lines on a terminal.

    `level` is ``debug``, ``info``, ``warning`` or ``error``; libraries log from warnings on. `style` is ``human``,
    ``json``, or ``auto``: human if the stream is a terminal.
    """
    terminal = stream.isatty()
    human = style == "human" or (style == "auto" and terminal)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanFormatter(colour=colour and terminal) if human else JsonFormatter())
    handler.addFilter(OncePer())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(PACKAGE).setLevel(level.upper())
    logging.getLogger("asyncio").addFilter(_seldom)
    # It logs an error if a watch ends while an event arrives; we miss no change, as our waits also poll.
    logging.getLogger("watchdog").setLevel(logging.CRITICAL)


def quiet_grpc(environ: MutableMapping[str, str]) -> None:
    """Silence the lines that grpc's C core writes past every logger; to be called before grpc is imported.

    They report each refused connection to the kubelet, which we log ourselves. A value that the user set stays.
    """
    environ.setdefault("GRPC_VERBOSITY", "NONE")


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the fields given as `extra`, in their order."""
    return ((key, value) for key, value in vars(record).items() if key not in _OWN_ATTRIBUTES and key != _ORDER)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts (RFC 3339, UTC), level, logger, msg, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as JSON."""
        line: dict[str, object] = {
            "ts": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix(PACKAGE + "."),
            "msg": record.getMessage(),
        }
        for key, value in fields_of(record):
            line[f"field_{key}" if key in line else key] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_line(line)


class HumanFormatter(logging.Formatter):
    """Local time, level, message and ``key=value`` fields; a traceback follows on indented lines."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as a line for people."""
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        message = printable(record.getMessage())
        pairs = " ".join(f"{printable(key)}={_value(value)}" for key, value in fields_of(record))
        level = f"{record.levelname:<8}"
        if self._colour:
            level = f"{_COLOURS.get(record.levelno, '')}{level}{_PLAIN}"
            clock, pairs = f"{_DIM}{clock}{_PLAIN}", pairs and f"{_DIM}{pairs}{_PLAIN}"
        line = f"{clock} {level} {message}" + (f"  {pairs}" if pairs else "")
        if not record.exc_info:
            return line
        # Indented, so that no line of an error's message can be mistaken for a log line.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"    {printable(each)}" for each in trace)])


class OncePer(logging.Filter):
    """Suppresses repetitions of lines that limit their own rate (``once_per_s``)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lines: dict[str, tuple[float, int]] = {}

    def __repr__(self) -> str:
        return f"<OncePer: {len(self._lines)} lines remembered>"

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether `record` is written; a suppressed one is counted."""
        seconds = getattr(record, _ORDER, None)
        if seconds is None:
            return True
        now = self._clock()
        line = repr((record.name, record.levelno, record.getMessage(), list(fields_of(record))))
        until, suppressed = self._lines.get(line, (now, 0))
        if now < until:
            self._lines[line] = (until, suppressed + 1)
            return False
        if len(self._lines) >= _REMEMBERED:
            self._lines = {old: kept for old, kept in self._lines.items() if now < kept[0]}
        self._lines[line] = (now + seconds, 0)
        if suppressed:
            setattr(record, _SUPPRESSED, suppressed)
        return True


def _seldom(record: logging.LogRecord) -> bool:
    """Limit the rate of a library's lines: an event loop without a free file descriptor logs 100 lines a second."""
    setattr(record, _ORDER, getattr(record, _ORDER, _LIBRARIES_PER_S))
    return True


def _value(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else str(value)
    if text and text.isprintable() and not set(text) & set(' "='):
        return text
    return json_line(text)
