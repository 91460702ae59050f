"""The states of nodes, GPUs and parts: one table for terminal and page."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse
from gpu_device_plugin.model.contract.nodegpus import AWAY
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.node_view import NO_STATES, NodeView, State
from gpu_device_plugin.report.rules.overview_document import node_document, redacted
from gpu_device_plugin.report.rules.terminal_tables import pod_rows
from tests.claim_values import serving_view
from tests.reports import ASKED, BORROWER, SINCE, part, report
from tests.views import changed, mig_view, node_view, pod_on, put_aside, with_instances

LATER = "2026-11-22T10:56:00Z"
OVER = replace(part("web", used=9000), over_since=SINCE)
STRANGER = part("spy", granted=0, used=700)


def told(states: list[State]) -> list[tuple[str, Tone, dict[str, Any]]]:
    """Return what is told; nothing of what is unknown."""
    return [(each.code, each.tone, each.message().get("parameters", {})) for each in states]


@pytest.mark.parametrize(
    ("node", "states"),
    [
        (node_view("n", (15,)), []),
        (node_view("n", (), problem="it has no GPU"), [("node-problem", Tone.BAD, {})]),
        (
            node_view("n", (15,), ready=False, unschedulable=True),
            [("not-ready", Tone.BAD, {}), ("cordoned", Tone.WARNING, {})],
        ),
        (node_view("n", (15,), report=report(blind="no hostPID")), [("blind", Tone.PLAIN, {"why": "no hostPID"})]),
        (node_view("n", (15,), pod_on("web", unassigned_usage=4)), [("gpus-unknown", Tone.PLAIN, {"shares": 4})]),
        (mig_view("n", with_instances("a", asks=2), whole=3), [("instances-unknown", Tone.PLAIN, {"n": 2})]),
        (changed(serving_view("n", node_view("n", (15,)).candidate.gpus), ready=True), []),
    ],
)
def test_the_states_of_nodes(node: NodeView, states: list[tuple[str, Tone, dict[str, Any]]]) -> None:
    assert told(node.states(node.unplaced)) == states


def test_an_agent_that_does_not_serve_is_told_apart_from_what_else_is_wrong() -> None:
    gpus = replace(node_view("n", (15,)).candidate.gpus, away=True, problem=AWAY, unread=("GPU 3 is not read",))
    states = serving_view("n", gpus).states()
    assert [(state.code, state.text) for state in states if state.tone is Tone.BAD] == [
        ("node-problem", "GPU 3 is not read"),
        ("agent-away", AWAY),
    ]


def test_a_node_that_serves_claims_says_so() -> None:
    gpus = replace(node_view("n", (15,)).candidate.gpus, claims=True)
    assert [state.word for state in serving_view("n", gpus).states()] == ["claims"]


def test_the_states_of_gpus() -> None:
    """Of a GPU the way of limits is told where it is not that of the node."""
    enforcements = {0: GpuEnforcement(Enforcement.ADVISORY, "", "no driver"), 1: GpuEnforcement(Enforcement.DRIVER, "")}
    read = report(gpus={0: GpuUse(900, 300), 1: GpuUse(10, 0)}, enforcements=enforcements)
    view = put_aside(node_view("n", (15, 15), unhealthy={0: "XID 48"}, report=read), "GPU-0")
    first, second = view.gpus()
    by = {"by": "alice", "since": "2026-11-28T18:00:00Z", "why": "loud"}
    assert told(view.gpu_states(first)) == [
        ("unhealthy", Tone.BAD, {"why": "XID 48"}),
        ("cordoned", Tone.WARNING, by),
        ("refused", Tone.WARNING, {"why": "no driver"}),
        ("used-by-no-pod", Tone.PLAIN, {"amountMiB": 300}),
    ]
    assert told(view.gpu_states(second)) == [("other-limits", Tone.PLAIN, {"limits": "driver"})]
    old = replace(view, report=replace(read, use_age_s=5000))
    assert "used-by-no-pod" not in [state.code for state in old.gpu_states(first)]


LIMIT = replace(part("web"), held=LimitStatus.MISSING, enforcement=Enforcement.DRIVER)
OVER_AT = {"usedMiB": 9000, "givenMiB": 4096, "since": SINCE}
ASKED_AT = {"amountMiB": 3072, "since": SINCE, "until": "2026-11-22T09:57:00Z", "pod": "ml/train"}


@pytest.mark.parametrize(
    ("parts", "states"),
    [
        ([part("web")], []),
        ([OVER], [("over", Tone.BAD, OVER_AT)]),
        (
            [replace(OVER, over_since=LATER), replace(OVER, used_mib=None)],
            [("over", Tone.BAD, {"givenMiB": 8192, "since": SINCE})],
        ),
        ([STRANGER], [("trespass", Tone.BAD, {"amountMiB": 700})]),
        ([replace(STRANGER, over_since=SINCE)], [("trespass", Tone.BAD, {"amountMiB": 700, "since": SINCE})]),
        ([LIMIT], [("limit-not-held", Tone.BAD, {"held": "missing", "grantedMiB": 4096})]),
        (
            [LIMIT, replace(LIMIT, held=LimitStatus.DIFFERS, found_mib=8192)],
            [("limit-not-held", Tone.BAD, {"held": "missing", "grantedMiB": 4096})],
        ),
        (
            [replace(LIMIT, held=LimitStatus.DIFFERS, found_mib=8192)],
            [("limit-not-held", Tone.BAD, {"held": "differs", "foundMiB": 8192, "grantedMiB": 4096})],
        ),
        ([replace(LIMIT, held=LimitStatus.UNVERIFIED)], []),
        ([BORROWER], [("borrows", Tone.PLAIN, {"amountMiB": 3072})]),
        ([ASKED], [("borrows", Tone.PLAIN, {"amountMiB": 3072}), ("asked-to-return", Tone.WARNING, ASKED_AT)]),
        (
            [replace(ASKED, return_by="", needed_by="", used_mib=None)],
            [("asked-to-return", Tone.WARNING, {"since": SINCE})],
        ),
        ([replace(part("web"), idle_since=SINCE)], [("computes-nothing", Tone.PLAIN, {"since": SINCE})]),
        ([replace(part("web"), sm_percent=0)], [("computes-nothing", Tone.PLAIN, {})]),
        ([replace(part("web"), sm_percent=0), part("web")], []),
        ([replace(part("web"), sm_percent=0), replace(part("web"), sm_percent=0, used_mib=None)], []),
        ([replace(part("web", used=0), sm_percent=0)], []),
    ],
)
def test_the_states_of_parts(parts: list[ContainerUse], states: list[tuple[str, Tone, dict[str, Any]]]) -> None:
    assert told(node_view("n", (15,), report=report(*parts)).part_states(parts)) == states


def test_a_limit_that_differs_is_told_with_both_amounts() -> None:
    said = {each.found_mib: each for each in (LIMIT, replace(LIMIT, held=LimitStatus.DIFFERS, found_mib=8192))}
    node = node_view("n", (15,), report=report(*said.values()))
    assert [node.part_states([each])[0].text for each in said.values()] == [
        "no driver limit, granted 4,096 MiB",
        "driver limit 8,192 MiB, granted 4,096 MiB",
    ]


def test_a_limit_of_the_kernels_that_differs_names_the_kernel() -> None:
    differs = replace(LIMIT, enforcement=Enforcement.DMEM, held=LimitStatus.DIFFERS, found_mib=8192)
    node = node_view("n", (15,), report=report(differs))
    assert node.part_states([differs])[0].text == "kernel limit 8,192 MiB, granted 4,096 MiB"


def test_a_pod_that_ends_says_so_last() -> None:
    node = node_view("n", (15,), pod_on("web", {0: 4}, deleting=True), report=report(OVER))
    assert [state.code for state in node.part_states([OVER], ending=True)] == ["over", "ending"]


def test_a_pod_whose_processors_do_nothing_is_idle_in_the_table_too() -> None:
    (row,) = pod_rows([node_view("n", (15,), pod_on("web", {0: 4}), report=report(replace(part("web"), sm_percent=0)))])
    assert (row.state, row.idle_s) == ("idle", None)


def test_without_features_nothing_of_theirs_is_told() -> None:
    node = node_view("n", (15,), pod_on("web", {0: 4}), ready=False, report=report(OVER, STRANGER, blind="why"))
    bare = replace(node, features=NO_STATES)
    assert [state.code for state in bare.states()] == ["not-ready"]
    assert bare.part_states([OVER]) == []


def test_no_state_names_a_pod_that_the_reader_may_not_see() -> None:
    """By any parameter or text, on the page and in the whole document. Who cordoned a GPU is no pod's name."""
    parts = (
        replace(ASKED, namespace="secret", pod="borrower-secret", needed_by="secret/train-secret"),
        replace(OVER, namespace="secret", pod="over-secret", held=LimitStatus.MISSING, sm_percent=0),
        replace(STRANGER, namespace="secret", pod="spy-secret"),
        replace(ASKED, needed_by="secret/train-secret"),
    )
    pods = (pod_on("secret/borrower-secret", {0: 4}), pod_on("secret/over-secret", {0: 4}), pod_on("nb", {0: 4}))
    node = node_view("n", (15,), *pods, report=report(*parts))
    for brief in (False, True):
        assert "train-secret" in json.dumps(node_document(node, brief=brief))
        seen = json.dumps(node_document(redacted(node, "default".__eq__), brief=brief))
        assert "secret" not in seen
        assert all(f'"{code}"' in seen for code in ("over", "trespass", "limit-not-held", "asked-to-return"))
