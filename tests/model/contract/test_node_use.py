"""The report of a node's agent: the limits and the use of its GPUs, written, read, and read with their age."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.keys import NODE_LIMITS, NODE_USE, MalformedAnnotationError
from gpu_device_plugin.model.contract.node_use import (
    ANNOTATED,
    NO_REPORT,
    SERVED,
    ContainerUse,
    GpuUse,
    NodeUse,
    brief_use,
    idle_s,
    node_report,
    not_held,
    read_node_use,
    trespasses,
    used_mib,
    write_node_use,
)
from gpu_device_plugin.model.contract.nodelabels import NodeLimits, read_node_limits, write_node_limits
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.times import epoch_s

AT = "2026-11-22T10:00:00Z"

PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "Zs"]).filter(str.isprintable), max_size=20)


def test_every_field_is_written_under_its_key_and_defaults_are_not() -> None:
    use = NodeUse(
        AT,
        {1: GpuUse(9_000, 120), 0: GpuUse()},
        (
            ContainerUse(
                "shop", "web-1", "main", 1, 4096, 6120, 35, Enforcement.MPS, LimitStatus.DIFFERS, 8192, "because", AT
            ),
            ContainerUse("shop", "web-0", "", 0, 0),
        ),
    )
    assert json.loads(write_node_use(use)) == {
        "version": 1,
        "at": AT,
        "gpus": [{"index": 0}, {"index": 1, "used": 9_000, "unattributed": 120}],
        "containers": [
            {"namespace": "shop", "pod": "web-0", "gpu": 0, "granted": 0},
            {
                "namespace": "shop",
                "pod": "web-1",
                "container": "main",
                "gpu": 1,
                "granted": 4096,
                "used": 6120,
                "sm": 35,
                "enforcement": "mps",
                "limit": "differs",
                "found": 8192,
                "why": "because",
                "over": AT,
            },
        ],
    }


_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
_MIB = st.none() | st.integers(0, 200_000)
_SENTENCES = st.text(st.characters(categories=["L", "N", "P"], include_characters=" "), max_size=60)
_USES = st.builds(
    NodeUse,
    at=st.just(AT),
    gpus=st.dictionaries(st.integers(0, 63), st.builds(GpuUse, _MIB, _MIB), max_size=8),
    parts=st.lists(
        st.builds(
            ContainerUse,
            namespace=_NAMES,
            pod=_NAMES,
            container=_NAMES | st.just(""),
            gpu=st.integers(0, 63),
            granted_mib=st.integers(0, 200_000),
            used_mib=_MIB,
            sm_percent=st.none() | st.integers(0, 100),
            enforcement=st.none() | st.sampled_from(Enforcement),
            held=st.none() | st.sampled_from(LimitStatus),
            found_mib=_MIB,
            why=_SENTENCES,
            over_since=st.sampled_from(["", AT]),
            idle_since=st.sampled_from(["", AT]),
        ),
        max_size=6,
        unique_by=lambda part: (part.gpu, part.namespace, part.pod, part.container),
    ).map(lambda parts: tuple(sorted(parts, key=lambda p: (p.gpu, p.namespace, p.pod, p.container)))),
    blind=_SENTENCES,
    left_out=st.integers(0, 1000),
)


@given(_USES)
def test_use_that_is_written_is_read(use: NodeUse) -> None:
    assert read_node_use(write_node_use(use)) == use


def _crowd(count: int, **fields: Any) -> NodeUse:
    part = replace(ContainerUse("namespace", "", "main", 0, 1024), **fields)
    return NodeUse(AT, parts=tuple(replace(part, pod=f"pod-{n:05}", used_mib=n) for n in range(count)))


def test_of_too_many_containers_those_with_the_most_use_are_kept() -> None:
    read = read_node_use(write_node_use(_crowd(ANNOTATED.containers + 100)))
    assert read.left_out == 100
    assert [part.used_mib for part in read.parts] == list(range(100, ANNOTATED.containers + 100))
    crowd = _crowd(SERVED.containers + 7)
    assert len(read_node_use(write_node_use(crowd, SERVED), SERVED).parts) == SERVED.containers
    assert len(write_node_use(_crowd(SERVED.containers, pod="p" * 253), SERVED)) < SERVED.size + 2000


@pytest.mark.parametrize("why", ["a" * 10_000, "ß" * 10_000, "\U0001f600" * 10_000])
def test_long_texts_do_not_make_an_annotation_that_kubernetes_refuses(why: str) -> None:
    """Names of 253 characters, on 16 GPUs, with a reason each."""
    use = replace(
        _crowd(ANNOTATED.containers, namespace="n" * 63, container="c" * 63, why=why),
        gpus={n: GpuUse(80_000, 80_000) for n in range(16)},
    )
    text = write_node_use(use)
    assert len(text.encode()) < ANNOTATED.size + 2000
    read = read_node_use(text)
    assert len(read.parts) + read.left_out == ANNOTATED.containers
    assert read.parts[-1].used_mib == ANNOTATED.containers - 1
    assert 0 < len(read.parts[0].why) < len(why)


def part(**fields: Any) -> ContainerUse:
    (read,) = read_node_use(json.dumps({"version": 1, "containers": [{"gpu": 1, "granted": 5, **fields}]})).parts
    return read


@pytest.mark.parametrize("value", [-1, 1.5, True, "7", None, [], 1 << 41, 10**4000])
def test_a_number_that_is_none_is_not_known(value: object) -> None:
    assert part(used=value).used_mib is None
    assert part(granted=value).granted_mib == 0


@pytest.mark.parametrize("value", [7, None, [], "two\nlines", "\x1b[31mred"])
def test_a_text_that_could_harm_a_terminal_is_left_out(value: object) -> None:
    read = part(pod=value, why=value, over=value)
    assert (read.pod, read.why, read.over_since) == ("", "", "")


def test_a_newer_agent_may_tell_more() -> None:
    read = part(enforcement="hypervisor", limit="guessed", colour="red")
    assert (read.enforcement, read.held, read.gpu, read.granted_mib) == (None, None, 1, 5)
    assert read_node_use('{"version":1,"at":"","mood":"good"}') == NodeUse("")


def test_more_than_an_agent_writes_is_not_read() -> None:
    many = [{"index": n} for n in range(1000)]
    read = read_node_use(json.dumps({"version": 1, "gpus": many, "containers": many}))
    assert (len(read.gpus), len(read.parts)) == (MOST_GPUS, ANNOTATED.containers)


NO_JSON = ("", "{", "[" * 100_000, "[" * 2_000_000, "{}", "[]", "7", "null", '{"gpus": 1}')


@pytest.mark.parametrize(
    "text",
    [
        *(
            *NO_JSON,
            '{"gpus": [1]}',
            '{"gpus": {"a": 1}}',
            '{"gpus": [{"index": 0}]}',
            '{"gpus": [{"enforcement": "mps"}]}',
        ),
        '{"gpus": [{"index": 0, "enforcement": "iron", "why": ""}]}',
    ],
)
def test_limits_of_another_form_are_refused_by_name(text: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=f"{NODE_LIMITS} is not of version 1; upgrade the older"):
        read_node_limits(text)


@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON,
        '{"version":2}',
        '{"version":[]}',
        '{"version":1,"gpus":7}',
        '{"version":1,"gpus":{"index":0}}',
        '{"version":1,"gpus":[7]}',
        '{"version":1,"containers":[[]]}',
        '{"version":1,"containers":[{"enforcement":[]}]}',
        '{"version":1,"containers":[{"gpu":' + "9" * 5000 + "}]}",
    ],
)
def test_use_of_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=NODE_USE):
        read_node_use(text, SERVED)


@pytest.mark.parametrize("value", ["{}", "[]", "0", '"ab"'])
def test_a_text_of_very_many_values_is_refused_before_it_takes_their_memory(value: str) -> None:
    """Two characters of JSON may be 64 bytes in memory."""
    with pytest.raises(MalformedAnnotationError):
        read_node_use('{"version":1,"gpus":[],"more":[' + f"{value}," * (1 << 17) + "0]}", SERVED)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.fixed_dictionaries({"version": st.just(1), "gpus": _JSON, "containers": _JSON, "at": _JSON, "leftOut": _JSON})
)
def test_nothing_else_is_raised(document: dict[str, Any]) -> None:
    try:
        read = read_node_use(json.dumps(document))
    except MalformedAnnotationError:
        return
    assert isinstance(read, NodeUse)


# --- Both -------------------------------------------------------------------------------------------------------------

NOW_S = datetime(2026, 11, 22, 10, 0, 0, tzinfo=UTC).timestamp()
LIMITS = NodeLimits({1: GpuEnforcement(Enforcement.MPS, "the label wants it")})
PART = ContainerUse("default", "web", "main", gpu=1, granted_mib=4096, used_mib=100)
USE = NodeUse(AT, {1: GpuUse(300, 200)}, (PART,))


def test_both_annotations_are_read_with_the_age_of_the_figures() -> None:
    written = {NODE_LIMITS: write_node_limits(LIMITS), NODE_USE: write_node_use(USE), "x": "y"}
    report, problems = node_report(written, NOW_S + 20)
    assert problems == ()
    assert (report.limits, report.use, report.use_age_s) == (LIMITS, USE, 20.0)
    assert report.enforcement(1) == GpuEnforcement(Enforcement.MPS, "the label wants it")
    assert report.enforcement(0) is None
    assert (report.used(1), report.used(0)) == (GpuUse(300, 200), GpuUse())
    assert (report.parts(1), report.parts(0)) == ((PART,), ())
    assert report.current == (PART,)


def test_an_older_agent_reports_nothing() -> None:
    report, problems = node_report({}, NOW_S)
    assert (report, problems) == (NO_REPORT, ())
    assert (report.enforcement(0), report.used(0), report.parts(0), report.current) == (None, GpuUse(), (), ())
    assert not report.stale


def test_an_annotation_that_cannot_be_parsed_counts_as_absent_and_is_told() -> None:
    report, problems = node_report({NODE_LIMITS: "?", NODE_USE: "[]"}, NOW_S)
    assert report == NO_REPORT
    assert [problem.partition(" is not")[0] for problem in problems] == [
        f"the node's annotation {NODE_LIMITS}",
        f"the node's annotation {NODE_USE}",
    ]


@pytest.mark.parametrize(
    ("at", "later_s", "age_s", "stale"),
    [
        (AT, 900, 900.0, False),
        (AT, 901, 901.0, True),
        (AT, -50, 0.0, False),
        ("2026-11-22T12:00:00+02:00", 5, 5.0, False),
        ("2026-11-22T10:00:00", 5, 5.0, False),
        ("yesterday", 0, None, True),
        ("", 0, None, True),
    ],
    ids=["the limit", "older", "clocks differ", "a time zone", "none", "no time", "nothing"],
)
def test_figures_that_are_old_show_nothing_of_the_present(
    at: str,
    later_s: float,
    age_s: float | None,
    stale: bool,  # noqa: FBT001 - pytest's
) -> None:
    report, _ = node_report({NODE_USE: write_node_use(NodeUse(at, parts=(PART,)))}, NOW_S + later_s)
    assert (report.use_age_s, report.stale, report.current) == (age_s, stale, () if stale else (PART,))


@pytest.mark.parametrize(
    ("since", "at", "expected"),
    [
        ("2026-11-22T09:00:00Z", "2026-11-22T09:30:00Z", 1800.0),
        ("2026-11-22T09:30:00Z", "2026-11-22T09:00:00Z", 0.0),
        ("", AT, None),
        ("once", AT, None),
        (AT, "", None),
    ],
)
def test_how_long_a_pod_is_idle_goes_by_the_clock_of_its_node(since: str, at: str, expected: float | None) -> None:
    part = ContainerUse("d", "p", "c", 0, 4096, 0, idle_since=since)
    assert idle_s(NodeUse(at, parts=(part,)), part) == expected


def test_what_is_wrong_with_a_container_is_told_apart() -> None:
    """Within its part, over it, without any and using nothing, without any and using a little."""
    over = ContainerUse("d", "p", "c", 0, 4096, 9000, over_since=AT)
    idle, stranger = ContainerUse("d", "p", "c", 0, 0, 0), ContainerUse("d", "p", "c", 0, 0, 1)
    assert [bool(part.over_since) for part in (PART, over, idle, stranger)] == [False, True, False, False]
    assert [trespasses(part) for part in (PART, over, idle, stranger)] == [False, False, False, True]
    states = {
        state: ContainerUse("d", "p", "c", 0, 4096, enforcement=Enforcement.DRIVER, held=state) for state in LimitStatus
    }
    assert {state for state, part in states.items() if not_held(part)} == {LimitStatus.DIFFERS, LimitStatus.MISSING}


def test_of_figures_that_are_not_of_now_the_age_is_told() -> None:
    written = {NODE_USE: write_node_use(USE)}
    assert [node_report(written, NOW_S + age_s)[0].old for age_s in (180, 181)] == [False, True]
    assert node_report({NODE_USE: write_node_use(NodeUse("?"))}, NOW_S)[0].old
    assert not NO_REPORT.old


def test_what_an_agent_writes_is_read_without_its_containers() -> None:
    parts = tuple(ContainerUse("default", f"pod-{n}", "main", 0, 1024, n) for n in range(400))
    text = write_node_use(NodeUse("2026-01-01T00:00:00Z", {0: GpuUse(700), 1: GpuUse(), 3: GpuUse(0)}, parts))
    assert used_mib(text) == ({0: 700, 3: 0}, epoch_s("2026-01-01T00:00:00Z"))
    assert used_mib(brief_use(text)) == used_mib(text)
    assert len(brief_use(text)) < len(text) / 50


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"gpus": 7}',
        '{"gpus": [7]}',
        '{"gpus": [{"used": "x"}]}',
        "[" * 9000,
        "{}" + " " * 140_000,
    ],
    ids=lambda text: text[:24].strip(),
)
def test_of_anything_else_nothing_is_known(text: str) -> None:
    assert used_mib(text) == ({}, None)


def test_no_more_gpus_are_read_than_a_node_has() -> None:
    assert len(used_mib(json.dumps({"gpus": [{"index": n, "used": 1} for n in range(5000)]}))[0]) <= 1024
