"""Who uses what on a node, as its agent's metrics tell it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.nodereport import NodeUse, UsedGpu, UsedPart, trespasses
from gpu_device_plugin.core.contract.samples import MalformedMetricsError
from gpu_device_plugin.core.contract.scrapeduse import MOST_PARTS, NAMES, completed, scraped_use
from gpu_device_plugin.core.model.limits import Held, Rung

AT, EARLIER = "2026-11-22T21:43:55Z", "2026-11-22T21:40:00Z"
GIB = 1 << 30
CONTAINER = "gpushare_container_gpu_"


def info(gpu: str, index: object) -> str:
    return (
        f'gpushare_gpu_info{{driver="615.1",gpu="{gpu}",index="{index}",model="H200",rung="mps",share_bytes="1"}} 1\n'
    )


def part(
    name: str, value: float, pod: str = "web-0", gpu: str = "GPU-a", *, more: str = "", container: str = "main"
) -> str:
    return f'{CONTAINER}{name}{{container="{container}",gpu="{gpu}",namespace="shop",pod="{pod}"{more}}} {value}\n'


ALLOCATED, USED, LIMIT, RATIO = "memory_allocated_bytes", "memory_used_bytes", "memory_limit_bytes", "utilization_ratio"
HEAD = info("GPU-a", 0) + info("GPU-b", 3) + f'gpushare_gpu_memory_used_bytes{{gpu="GPU-a"}} {2 * GIB}\n'


def test_every_figure_of_a_page_is_read() -> None:
    page = (
        'gpushare_build_info{version="0.1.0"} 1\n'
        + HEAD
        + 'gpushare_gpu_memory_used_bytes{gpu="GPU-b"} 0\n'
        + f'gpushare_gpu_memory_unattributed_bytes{{gpu="GPU-b"}} {GIB}\n'
        + part(ALLOCATED, 4 * GIB)
        + part(USED, 1.5 * GIB)
        + part(LIMIT, 8 * GIB, more=',rung="mps",state="differs"')
        + part(RATIO, 0.345)
        + part(ALLOCATED, 80 * GIB, "whole", "GPU-b")
    )
    assert scraped_use(page, AT) == NodeUse(
        AT,
        {0: UsedGpu(2048), 3: UsedGpu(0, 1024)},
        (
            UsedPart("shop", "web-0", "main", 0, 4096, 1536, 34, Rung.MPS, Held.DIFFERS, 8192),
            UsedPart("shop", "whole", "main", 3, 81920),
        ),
    )


@pytest.mark.parametrize("state", ["missing", "unverified", "of a newer agent"])
def test_a_limit_that_the_driver_does_not_have_was_not_found(state: str) -> None:
    use = scraped_use(HEAD + part(ALLOCATED, GIB) + part(LIMIT, GIB, more=f',rung="new",state="{state}"'), AT)
    assert use is not None
    assert (use.parts[0].found_mib, use.parts[0].rung) == (None, None)


def test_without_any_figure_of_use_nothing_is_known() -> None:
    """As while the driver does not answer: the node's annotation then says more."""
    page = info("GPU-a", 0) + part(ALLOCATED, GIB)
    assert scraped_use(page, AT) is None
    assert scraped_use('gpushare_build_info{version="0.0.1"} 1\n', AT) is None


def test_the_use_of_one_container_alone_is_known_where_that_of_the_gpu_is_not() -> None:
    use = scraped_use(info("GPU-a", 0) + part(ALLOCATED, GIB) + part(USED, GIB), AT)
    assert use is not None
    assert use.gpus == {}


def test_who_was_given_nothing_trespasses_and_who_was_given_something_unknown_does_not() -> None:
    page = (
        HEAD
        + part(ALLOCATED, 0, "thief")
        + part(USED, GIB, "thief")
        + part(ALLOCATED, 2 * GIB, "two", container="a")
        + part(ALLOCATED, 3 * GIB, "two", container="b")
        + part(USED, GIB, "two", container="")
        + part(USED, GIB, "nobody knows")
    )
    use = scraped_use(page, AT)
    assert use is not None
    found = {(each.pod, each.container): (each.granted_mib, trespasses(each)) for each in use.parts}
    assert found == {
        ("thief", "main"): (0, True),
        ("two", ""): (5120, False),
        ("two", "a"): (2048, False),
        ("two", "b"): (3072, False),
    }


@pytest.mark.parametrize(
    "page",
    [
        "",
        "go_goroutines 7\n",
        "<html>login</html>",
        info("GPU-a", 1000),
        "".join(info(f"GPU-{n}", n) for n in range(129)),
        info("GPU-a", -1),
        info("GPU-a", "\u0663"),
        info("GPU-a", "1e1"),
        info("GPU-a", 0) + info("GPU-a", 1),
        info("GPU-a", 0) + info("GPU-b", 0),
    ],
)
def test_what_is_no_page_of_an_agent_is_refused(page: str) -> None:
    with pytest.raises(MalformedMetricsError):
        scraped_use(page, AT)


def test_figures_that_cannot_be_are_unknown_and_strange_names_are_left_out() -> None:
    page = (
        HEAD
        + part(ALLOCATED, GIB)
        + part(USED, -1)
        + part(RATIO, 1.01)
        + part(USED, GIB, "")
        + part(USED, GIB, "web\\n0")
        + part(USED, GIB, gpu="GPU-of-no-info")
        + 'gpushare_gpu_memory_used_bytes{gpu="GPU-b"} 1e300\n'
        + "gpushare_gpu_memory_used_bytes 1\n"
    )
    assert scraped_use(page, AT) == NodeUse(
        AT, {0: UsedGpu(2048), 3: UsedGpu()}, (UsedPart("shop", "web-0", "main", 0, 1024),)
    )


def test_containers_beyond_the_most_are_counted_up_to_a_bound() -> None:
    page = HEAD + "".join(part(ALLOCATED, GIB, f"web-{number}") for number in range(2 * MOST_PARTS + 9))
    use = scraped_use(page + part(USED, GIB, "web-0"), AT)
    assert use is not None
    assert (len(use.parts), use.left_out) == (MOST_PARTS, MOST_PARTS)
    assert next(each for each in use.parts if each.pod == "web-0").used_mib == 1024


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.floats(), st.text("ab0,", max_size=3)), max_size=30))
def test_no_page_of_these_series_does_anything_else_than_being_read(lines: list[tuple[str, float, str]]) -> None:
    text = "".join(
        f'{name}{{namespace="{who}",pod="{who}",gpu="GPU-a",rung="{who}"}} {value!r}\n'.replace("inf", "Inf")
        for name, value, who in lines
        if name != "gpushare_gpu_info" and value == value  # noqa: PLR0124 - not NaN
    )
    use = scraped_use(info("GPU-a", 0) + text, AT)
    for each in () if use is None else use.parts:
        assert each.granted_mib >= 0
        assert each.used_mib is None or each.used_mib >= 0


# --- With the annotation ----------------------------------------------------------------------------------------------

NOW = NodeUse(AT, {0: UsedGpu(900)}, (UsedPart("shop", "web-0", "main", 0, 100, 700, held=Held.MISSING),))


def annotated(**fields: object) -> NodeUse:
    known = {"used_mib": 650, "held": Held.MISSING, "why": "the driver lost it", "over_since": EARLIER} | fields
    return NodeUse(EARLIER, {}, (UsedPart("shop", "web-0", "main", 0, 100, **known),))  # type: ignore[arg-type]


def test_the_annotation_adds_since_when_and_why() -> None:
    (found,) = completed(NOW, annotated()).parts
    assert (found.used_mib, found.over_since, found.why) == (700, EARLIER, "the driver lost it")


def test_who_uses_no_more_than_granted_now_does_not_exceed_whatever_the_annotation_says() -> None:
    now = NodeUse(AT, {}, (UsedPart("shop", "web-0", "main", 0, 100, 100),))
    (found,) = completed(now, annotated()).parts
    assert found.over_since == ""


def test_why_belongs_to_the_state_that_it_explains() -> None:
    (found,) = completed(NOW, annotated(held=Held.DIFFERS)).parts
    assert found.why == ""


def test_other_containers_and_no_annotation_add_nothing() -> None:
    other = NodeUse(EARLIER, {}, (UsedPart("shop", "web-1", "main", 0, 100, over_since=EARLIER),))
    assert completed(NOW, None) == completed(NOW, other) == NOW


def test_blind_stays_blind_until_somebodys_use_is_known() -> None:
    nobody = NodeUse(AT, {0: UsedGpu(900)}, (UsedPart("shop", "web-0", "main", 0, 100),))
    blind = NodeUse(EARLIER, blind="the agent sees no processes")
    assert completed(nobody, blind).blind == "the agent sees no processes"
    assert completed(NOW, blind).blind == ""
