"""Who uses what on a node, as its annotation tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.cleanup import our_annotations
from gpu_device_plugin.core.contract.keys import NODE_USE, MalformedAnnotationError
from gpu_device_plugin.core.contract.nodeuse import (
    MOST_BYTES,
    MOST_CONTAINERS,
    NodeUse,
    UsedGpu,
    UsedPart,
    read_node_use,
    write_node_use,
)
from gpu_device_plugin.core.model.gpus import MOST_GPUS
from gpu_device_plugin.core.model.limits import Held, Rung

AT = "2026-11-22T21:43:55Z"


def test_every_field_is_written_under_its_key_and_defaults_are_not() -> None:
    use = NodeUse(
        AT,
        {1: UsedGpu(9_000, 120), 0: UsedGpu()},
        (
            UsedPart("shop", "web-1", "main", 1, 4096, 6120, 35, Rung.MPS, Held.DIFFERS, 8192, "because", AT),
            UsedPart("shop", "web-0", "", 0, 0),
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
                "rung": "mps",
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
    gpus=st.dictionaries(st.integers(0, 63), st.builds(UsedGpu, _MIB, _MIB), max_size=8),
    parts=st.lists(
        st.builds(
            UsedPart,
            namespace=_NAMES,
            pod=_NAMES,
            container=_NAMES | st.just(""),
            gpu=st.integers(0, 63),
            granted_mib=st.integers(0, 200_000),
            used_mib=_MIB,
            sm_percent=st.none() | st.integers(0, 100),
            rung=st.none() | st.sampled_from(Rung),
            held=st.none() | st.sampled_from(Held),
            found_mib=_MIB,
            why=_SENTENCES,
            over_since=st.sampled_from(["", AT]),
        ),
        max_size=6,
        unique_by=lambda part: (part.gpu, part.namespace, part.pod, part.container),
    ).map(lambda parts: tuple(sorted(parts, key=lambda p: (p.gpu, p.namespace, p.pod, p.container)))),
    blind=_SENTENCES,
    left_out=st.integers(0, 1000),
)


@given(_USES)
def test_what_is_written_is_read(use: NodeUse) -> None:
    assert read_node_use(write_node_use(use)) == use


def _crowd(count: int, **fields: Any) -> NodeUse:
    part = replace(UsedPart("namespace", "", "main", 0, 1024), **fields)
    return NodeUse(AT, parts=tuple(replace(part, pod=f"pod-{n:05}", used_mib=n) for n in range(count)))


def test_of_too_many_containers_those_with_the_most_use_are_kept() -> None:
    read = read_node_use(write_node_use(_crowd(MOST_CONTAINERS + 100)))
    assert read.left_out == 100
    assert [part.used_mib for part in read.parts] == list(range(100, MOST_CONTAINERS + 100))


@pytest.mark.parametrize("why", ["a" * 10_000, "ß" * 10_000, "\U0001f600" * 10_000])
def test_long_texts_do_not_make_an_annotation_that_kubernetes_refuses(why: str) -> None:
    """Names of 253 characters, on 16 GPUs, with a reason each."""
    use = replace(
        _crowd(MOST_CONTAINERS, namespace="n" * 63, container="c" * 63, why=why),
        gpus={n: UsedGpu(80_000, 80_000) for n in range(16)},
    )
    text = write_node_use(use)
    assert len(text.encode()) < MOST_BYTES + 2000
    read = read_node_use(text)
    assert len(read.parts) + read.left_out == MOST_CONTAINERS
    assert read.parts[-1].used_mib == MOST_CONTAINERS - 1
    assert 0 < len(read.parts[0].why) < len(why)


def test_it_is_removed_with_the_agent() -> None:
    assert our_annotations({NODE_USE: "{}", "gpu-device-plugin/useful": "1"}) == (NODE_USE,)


def part(**fields: Any) -> UsedPart:
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
    read = part(rung="hypervisor", limit="guessed", colour="red")
    assert (read.rung, read.held, read.gpu, read.granted_mib) == (None, None, 1, 5)
    assert read_node_use('{"version":1,"at":"","mood":"good"}') == NodeUse("")


def test_more_than_an_agent_writes_is_not_read() -> None:
    many = [{"index": n} for n in range(1000)]
    read = read_node_use(json.dumps({"version": 1, "gpus": many, "containers": many}))
    assert (len(read.gpus), len(read.parts)) == (MOST_GPUS, MOST_CONTAINERS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "7",
        "null",
        '{"version":2}',
        '{"version":[]}',
        '{"version":1,"gpus":7}',
        '{"version":1,"gpus":{"index":0}}',
        '{"version":1,"gpus":[7]}',
        '{"version":1,"containers":[[]]}',
        '{"version":1,"containers":[{"rung":[]}]}',
        '{"version":1,"containers":[{"gpu":' + "9" * 5000 + "}]}",
        "[" * 100_000,
    ],
)
def test_what_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=NODE_USE):
        read_node_use(text)


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
