"""Log lines: the same fact for people and for machines."""

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpu_device_plugin
from gpu_device_plugin import logs

log = logging.getLogger("gpu_device_plugin.kubelet.server")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(logs.PACKAGE)
    watchdog, loop = logging.getLogger("watchdog"), logging.getLogger("asyncio")
    handlers, filters = list(root.handlers), list(loop.filters)
    levels = [(logger, logger.level) for logger in (root, ours, watchdog)]
    yield
    root.handlers[:] = handlers
    loop.filters[:] = filters
    for logger, level in levels:
        logger.setLevel(level)


def human(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, "human", stream)
    return stream


def machine() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    return stream


def test_on_a_terminal_fields_stand_behind_the_fact() -> None:
    stream = human()
    log.warning("plugin restarts", extra={"resource": "aliyun.com/gpu-mem", "after_s": 5, "why": "socket gone"})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} WARNING  plugin restarts  resource=aliyun\.com/gpu-mem after_s=5 why=\"socket gone\"\n",
        stream.getvalue(),
    )


def test_elsewhere_a_line_is_a_json_object_with_the_time_in_utc() -> None:
    stream = machine()
    log.warning("plugin restarts", extra={"after_s": 5, "gpus": ("a", "b"), "where": Path("/x")})
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "warning",
        "logger": "kubelet.server",
        "msg": "plugin restarts",
        "after_s": 5,
        "gpus": ["a", "b"],
        "where": "/x",
    }


def test_a_field_cannot_take_the_place_of_the_lines_own() -> None:
    stream = machine()
    log.info("x", extra={"level": "high", "ts": 0})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["field_level"], line["field_ts"]) == ("info", "high", 0)


def test_auto_writes_for_whoever_reads() -> None:
    for stream, begins in ((io.StringIO(), "{"), (Terminal(), "\x1b[2m")):
        logs.configure("info", "auto", stream)
        log.info("x")
        assert stream.getvalue().startswith(begins)


def test_colour_is_for_terminals_whose_owner_wants_it() -> None:
    plain = Terminal()
    logs.configure("info", "human", plain, colour=False)
    log.error("x", extra={"a": 1})
    assert "\x1b" not in plain.getvalue()
    colourful = Terminal()
    logs.configure("info", "human", colourful)
    log.error("x", extra={"a": 1})
    assert "\x1b[31mERROR   \x1b[0m x  \x1b[2ma=1\x1b[0m" in colourful.getvalue()


def test_a_field_cannot_forge_a_line_or_move_the_cursor() -> None:
    stream = human()
    log.info("x\nINFO forged", extra={"pod": "a\nb\x1b[2J", "empty": "", "pair": 'a="b"', "umlaut": "ü"})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'x\nINFO forged  pod="a\nb\u001b[2J" empty="" pair="a=\"b\"" umlaut=ü')


STEERING = "\x00\x07\x1b\x7f\x85\x9b\u2028\u2029\u202a\u202e\u2066\u2069\u200f\ufeff\U000e0001\ud800\n\r\x0b"
"""What a terminal or a collector of lines takes for a command, an end of a line, or the other way to read."""


@pytest.mark.parametrize("style", ["human", "json"])
def test_nothing_that_steers_a_terminal_or_ends_a_line_gets_into_a_log(style: str) -> None:
    """Wherever it stands. An 8-bit terminal takes U+009B for the beginning of a command, as ESC [."""
    stream = io.StringIO()
    logs.configure("info", style, stream, colour=False)
    log.info("said %s", STEERING, extra={"pod": STEERING, "pods": [STEERING], STEERING: STEERING})
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    if style == "json":
        assert json.loads(line)["msg"] == f"said {STEERING}"
        assert json.loads(line)["pods"] == [STEERING]


@pytest.mark.parametrize("style", ["human", "json"])
def test_an_error_cannot_forge_a_line_either(style: str) -> None:
    stream = io.StringIO()
    logs.configure("info", style, stream, colour=False)
    log.error("failed", exc_info=ValueError(f"a\n12:00:00.000 INFO forged{STEERING}"))
    first, *rest = stream.getvalue().splitlines()
    assert all(line.isprintable() for line in (first, *rest))
    assert all(line.startswith("    ") for line in rest)


def test_an_exception_keeps_its_traceback() -> None:
    error = ValueError("boom")
    stream = machine()
    log.error("failed", exc_info=error)
    assert json.loads(stream.getvalue())["traceback"] == "ValueError: boom"
    stream = human()
    log.error("failed", exc_info=error)
    assert stream.getvalue().endswith(" failed\n    ValueError: boom\n")


def test_a_level_is_for_us_and_libraries_are_heard_from_warnings_on() -> None:
    stream = human("debug")
    log.debug("ours")
    logging.getLogger("asyncio").info("theirs")
    logging.getLogger("asyncio").warning("theirs, serious")
    ours, theirs = stream.getvalue().splitlines()
    assert ours.endswith(" ours")
    assert theirs.endswith(" theirs, serious")


def test_a_line_that_asks_for_it_is_written_once_in_a_while() -> None:
    """At 0, 1 and 59 s the same line, at 2 s one with another field, at 60 s the first again."""
    clock = [0.0]
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    handler.addFilter(logs.OncePer(lambda: clock[0]))
    logger = logging.getLogger("gpu_device_plugin.once")
    logger.propagate = False
    logger.addHandler(handler)
    for now, pod in ((0, "a"), (1, "a"), (2, "b"), (59, "a"), (60, "a"), (61, "a")):
        clock[0] = now
        logger.warning("malformed annotation", extra={"pod": pod, "once_per_s": 60})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["pod"], line.get("suppressed")) for line in lines] == [("a", None), ("b", None), ("a", 2)]
    assert all("once_per_s" not in line for line in lines)


def test_what_asyncio_says_again_and_again_is_written_once() -> None:
    """A loop without a free file descriptor says so a hundred times a second, with a traceback."""
    stream = machine()
    for _ in range(100):
        logging.getLogger("asyncio").error("socket.accept() out of system resource")
    logging.getLogger("asyncio").error("something else")
    assert [json.loads(line)["msg"] for line in stream.getvalue().splitlines()] == [
        "socket.accept() out of system resource",
        "something else",
    ]


def test_what_watchdog_calls_an_error_of_its_own_is_not_written() -> None:
    stream = human()
    logging.getLogger("watchdog.observers.inotify").error("called when the thread is inactive")
    assert stream.getvalue() == ""


def test_lines_whose_time_is_over_are_forgotten() -> None:
    """1,000 at the first second, then one that comes when all of their times are over."""
    clock = [0.0]
    once = logs.OncePer(lambda: clock[0])
    for number in range(1000):
        once.filter(logging.makeLogRecord({"msg": f"{number}", "once_per_s": 60}))
    assert repr(once) == "<OncePer: 1000 lines remembered>"
    clock[0] = 61
    once.filter(logging.makeLogRecord({"msg": "new", "once_per_s": 60}))
    assert repr(once) == "<OncePer: 1 lines remembered>"


def test_grpc_is_quiet_unless_someone_wants_to_hear_it() -> None:
    silent: dict[str, str] = {}
    logs.quiet_grpc(silent)
    assert silent == {"GRPC_VERBOSITY": "NONE"}
    wanted = {"GRPC_VERBOSITY": "debug"}
    logs.quiet_grpc(wanted)
    assert wanted == {"GRPC_VERBOSITY": "debug"}


def test_no_log_call_of_ours_uses_a_name_that_the_standard_library_forbids() -> None:
    """``extra={"name": ...}`` raises KeyError where the line is written, which may be a path that is rarely taken."""
    forbidden = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    wrong = [
        f"{path.name}:{key.lineno}: {key.value}"
        for path in Path(gpu_device_plugin.__file__).parent.rglob("*.py")
        if "_proto" not in path.parts
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.keyword) and call.arg == "extra" and isinstance(call.value, ast.Dict)
        for key in call.value.keys
        if isinstance(key, ast.Constant) and key.value in forbidden
    ]
    assert wrong == []
