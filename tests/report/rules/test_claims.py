"""Nodes that serve ResourceClaims, and the holders of claims, in every table and on the page."""

from dataclasses import replace

from gpu_device_plugin.features.claims.contract import DeviceRequest
from gpu_device_plugin.features.claims.report import claims_waiting, rows_claimed
from gpu_device_plugin.model.contract.nodegpus import AWAY
from gpu_device_plugin.programs.inspect.gpushare_layout import wide
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.terminal_tables import folded, pod_rows
from tests.claim_values import claim, part, serving, serving_view, whole
from tests.reports import part as used
from tests.reports import report
from tests.views import changed

GIB = 1024
TWO = serving(8, 8)


def test_that_a_node_serves_claims_is_a_word_and_no_fault() -> None:
    heading, row, *_ = folded([serving_view("n1", TWO)], 80)
    assert (row.text.split()[-1], row.tone) == ("claims", Tone.PLAIN)
    assert [line.split()[-2] for line in wide([serving_view("n1", TWO)])[1:]] == ["healthy"] * 2
    assert heading.tone is Tone.HEADING


def test_a_node_that_serves_claims_and_is_ill_says_both() -> None:
    cordoned = folded([changed(serving_view("n1", TWO), unschedulable=True)], 80)[1]
    assert (cordoned.text.rstrip().endswith("cordoned, claims"), cordoned.tone) == (True, Tone.WARNING)
    away = replace(TWO, problem=AWAY, away=True)
    row = folded([serving_view("n1", away)], 100)[1]
    assert (row.text.split("-  ")[-1].strip(), row.tone) == (AWAY, Tone.BAD)


def test_use_is_that_of_all_pods_of_a_claim() -> None:
    """Two pods share 4 GiB, and use 1,000 and 500 MiB."""
    shared = claim("c", part(0, 4 * GIB), pods=("a", "b"))
    now = report(used("a", used=1000), used("b", used=500), used("x", used=7, granted=0))
    there = serving_view("n1", TWO, shared, report=now)
    first, stranger = pod_rows([there])
    assert (first.pod, first.given, first.used_mib) == ("default/a+b", "4G", 1500)
    assert (stranger.pod, stranger.given) == ("default/x", "nothing")


def test_claims_of_unknown_nodes_have_what_their_allocation_says() -> None:
    rows = rows_claimed(
        [
            claim("c", part(0, 1536, "n1"), whole(1, "n2"), pods=("web",)),
            claim("free", part(0, GIB, admin=True)),
            claim("waits"),
        ]
    )
    assert [(row.pod, row.node, row.gpu, row.given, row.given_mib) for row in rows] == [
        ("default/web", "n1", "?", "1.5G", 1536),
        ("default/web", "n2", "?", "whole", 0),
    ]


def test_claims_that_wait_have_what_they_ask_for() -> None:
    wants = (
        DeviceRequest("gpu", "gpushare", 8 * GIB),
        DeviceRequest("whole", "gpushare-whole"),
        DeviceRequest("nic", "nic"),
    )
    rows = claims_waiting([claim("c", requests=wants), claim("d", requests=wants[2:]), claim("e", part(0, GIB))])
    assert [(row.pod, row.node, row.gpu, row.given, row.state) for row in rows] == [
        ("default/claim:c", "", "-", "8 GiB of one GPU and one whole GPU", "waits")
    ]
