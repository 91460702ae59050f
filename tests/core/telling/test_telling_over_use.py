"""A person reads who uses how much of which GPU, for how long, and what will happen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.node.over_use import Excess, Response
from gpu_device_plugin.core.telling.over_use import annotation, duration, event_note, outlook, use_of

EXCESS = Excess(("u", "main", "GPU-0"), 6120, 4096, 100, Pod("u", "default", "p"))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (185, "3 min"), (7199, "119 min"), (7200, "2 h")],
)
def test_durations_are_rounded_down(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_an_event_has_the_numbers_the_time_and_the_outlook() -> None:
    assert event_note(EXCESS, "GPU 0", 280, Response.REPORT) == (
        "container main uses 6,120 MiB of GPU 0, was given 4,096 MiB, for 3 min; "
        "this is only reported (setting over_use)"
    )


def test_a_trespasser_was_given_nothing_and_may_have_no_name() -> None:
    found = replace(EXCESS, place=("u", "", "GPU-0"), granted_mib=0)
    assert use_of(found, "GPU 0") == "a container uses 6,120 MiB of GPU 0, was not given that GPU"


def test_a_name_cannot_control_a_terminal() -> None:
    assert "\x1b" not in use_of(replace(EXCESS, place=("u", "\x1b[2J", "g")), "GPU 0")


@pytest.mark.parametrize(
    ("pod", "response", "told"),
    [
        (EXCESS.pod, Response.REPORT, "this is only reported (setting over_use)"),
        (EXCESS.pod, Response.EVICT, "the pod is evicted, one of its GPU at a time"),
        (
            EXCESS.pod,
            Response.EVICT_WHEN_SHORT,
            "the pod is evicted as soon as the GPU has too little free memory for what others were granted",
        ),
        (None, Response.EVICT, "it is not evicted: it is not known in the API"),
        (Pod("u", "kube-system", "p"), Response.EVICT, "it is not evicted: it is in the namespace kube-system"),
        (Pod("u", "default", "p", deleting=True), Response.EVICT, "the pod is ending"),
    ],
)
def test_what_will_happen(pod: Pod | None, response: Response, told: str) -> None:
    assert outlook(replace(EXCESS, pod=pod), response) == told


def test_an_annotation_has_the_largest_excesses_of_its_pod() -> None:
    told = [(replace(EXCESS, used_mib=6000 + n, place=("u", f"c{n}", "g")), "GPU 0", "then") for n in range(6)]
    found = annotation(told, Response.REPORT)
    assert found.startswith("container c5 uses 6,005 MiB of GPU 0, was given 4,096 MiB, since then; container c4 uses")
    assert found.endswith("; and 2 more; this is only reported (setting over_use)")
    assert annotation(told[:1], Response.REPORT).count(";") == 1
