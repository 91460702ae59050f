"""GPUs that are put aside are shown with who, when and why, wherever GPUs are shown."""

from dataclasses import replace

from gpu_device_plugin.features.mig.report import instance_facts
from gpu_device_plugin.model.contract.node_use import NodeReport, NodeUse
from gpu_device_plugin.programs.inspect.gpushare_layout import details, summary, wide
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import node_document
from gpu_device_plugin.report.rules.terminal_tables import folded
from tests.views import WHOLE, mig_view, node_view, pod_on, put_aside

SAYS = "cordoned by alice at 2026-11-28T18:00:00Z because: loud"


def there() -> NodeView:
    return put_aside(node_view("n", (15, 15, 15), pod_on("web", {1: 4}), unhealthy={2: "XID 48"}), "GPU-1", "GPU-2")


def test_the_table_has_a_row_for_each_state() -> None:
    rows = folded([there()], 200)[1:4]
    assert [(SAYS in row.text, row.tone) for row in rows] == [
        (False, Tone.PLAIN),
        (True, Tone.WARNING),
        (True, Tone.BAD),
    ]
    assert f"unhealthy: XID 48; {SAYS}" in rows[2].text


def test_the_wide_table_calls_it_cordoned() -> None:
    plain, aside, ill = wide([there()])[1:]
    assert " healthy" in plain
    assert " cordoned " in aside
    assert aside.endswith(SAYS)
    assert " unhealthy " in ill


def test_the_document_has_who_when_and_why() -> None:
    for brief in (False, True):
        node = node_document(there(), brief=brief)
        assert [gpu.get("cordon") for gpu in node["gpus"]] == [
            None,
            *[{"by": "alice", "at": "2026-11-28T18:00:00Z", "why": "loud"}] * 2,
        ]
        assert [gpu.get("freeShares", 0) for gpu in node["gpus"]] == [15, 0, 0]


def test_the_instances_of_a_cordoned_gpu_are_not_available() -> None:
    view = put_aside(mig_view("n", shared=1, whole=2), "GPU-m")
    assert [view.candidate.rooms[0].gives_shares, view.instances()[0].free] == [False, 0]
    assert any("2 not available" in line for line in details([view]))
    assert any(f"2 cordoned {SAYS[9:]}" in line.text for line in folded([view], 300))
    told = list(map(str, instance_facts({WHOLE: 1}, [view], {})))
    assert f"0:1 {SAYS}" in told[1]


def test_the_overview_counts_them_and_the_details_say_which() -> None:
    assert summary([there()])[-1] == "2 GPUs are cordoned: kubectl inspect gpushare -d has the names."
    view = put_aside(replace(there(), report=NodeReport(use=NodeUse("2026-11-28T18:00:00Z"), use_age_s=1.0)), "GPU-1")
    assert any(line.endswith(SAYS) for line in details([view]))
