"""A cluster as tables."""

import re

import pytest

from gpu_device_plugin.programs.inspect.gpushare_layout import details, summary, wide
from gpu_device_plugin.report.rules.columns import aligned
from gpu_device_plugin.report.rules.printing import short_uuid
from tests.views import changed, node_view, pod_on

# --- Columns ----------------------------------------------------------------------------------------------------------


def test_cells_stand_below_each_other_with_two_blanks_between() -> None:
    assert aligned([["a", "b", "c"], ["long", "", "d"]]) == ["a     b  c", "long     d"]


def test_the_last_cell_of_a_line_widens_no_column() -> None:
    assert aligned([["a", "very long"], ["b", "c", "d"]]) == ["a  very long", "b  c  d"]


def test_a_line_of_one_cell_begins_new_columns() -> None:
    assert aligned([["wide cell", "x"], [""], ["a", "y"]]) == ["wide cell  x", "", "a  y"]


# --- The original's layout --------------------------------------------------------------------------------------------


def test_an_empty_cluster_has_a_heading_and_a_sum_of_nothing() -> None:
    """Without a first row there is nothing that the rule could be as long as, and no unit; the original writes `()`."""
    assert summary([]) == [
        "NAME  IPADDRESS  GPU Memory",
        "",
        "Allocated/Total GPU Memory In Cluster:",
        "0/0 (0%)  ",
    ]
    assert details([]) == ["", "", "Allocated/Total GPU Memory In Cluster:  0/0 (0%)  "]


def test_a_node_without_shares_has_no_row() -> None:
    assert summary([node_view("a", (), problem="the annotation is not JSON")]) == summary([])
    assert details([node_view("a", ())]) == details([])


def test_a_node_without_an_address_says_so() -> None:
    view = changed(node_view("a", (4,)), address="")
    assert summary([view])[1].split() == ["a", "unknown", "0/4", "0/4"]
    assert "IPADDRESS:  unknown" in details([view])


def test_gpus_of_different_sizes_are_shown_as_they_are() -> None:
    """A GPU of 15 and one of 7, of which 3 are in use; the original would say 11 and 11."""
    assert summary([node_view("a", (15, 7), pod_on("web", {1: 3}))]) == [
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)",
        "a     10.0.0.7   0/15                   3/7                    3/22",
        # a, 10.0.0.7, 0/15, 3/7 and 3/22 are 1+8+4+3+4 bytes, 5 characters come after them, and 20 more.
        "-" * 45,
        "Allocated/Total GPU Memory In Cluster:",
        "3/22 (13%)  ",
    ]


def test_an_unhealthy_gpu_is_called_so_whether_it_is_empty_or_full() -> None:
    view = node_view("a", (15, 7, 4), pod_on("web", {1: 7}), unhealthy={0: "XID 79", 1: "XID 48"})
    assert re.split("  +", summary([view])[1])[2:] == ["unhealthy", "7/7 unhealthy", "0/4", "7/26"]
    assert details([view])[7:9] == ["Total :      26          ", "Unhealthy :  GPU0, GPU1  "]
    assert not any("Unhealthy" in line for line in details([node_view("a", (15,))]))


def test_a_place_without_a_gpu_reads_nothing_of_nothing() -> None:
    """Node b has GPUs 0 and 2."""
    rows = summary([node_view("a", (4,)), node_view("b", {0: 4, 2: 4})])
    assert [row.split() for row in rows[1:3]] == [
        ["a", "10.0.0.7", "0/4", "0/0", "0/0", "0/4"],
        ["b", "10.0.0.7", "0/4", "0/0", "0/4", "0/8"],
    ]


def test_a_gpu_in_whole_use_is_full_and_has_a_star_among_the_details() -> None:
    view = node_view("a", (15, 15), pod_on("train", None, 1), pod_on("web", {0: 2}))
    assert summary([view])[1].split() == ["a", "10.0.0.7", "2/15", "15/15", "17/30"]
    lines = details([view])
    assert lines[5:7] == [
        "train        default    0                15*              ",
        "web          default    2                0                ",
    ]
    assert lines[-1] == "* the whole GPU"


def test_what_is_on_unknown_gpus_has_a_column() -> None:
    """Three shares somewhere, a GPU of four somewhere, two shares of GPU 7 and all of GPU 8, which nobody lists."""
    view = node_view(
        "a", (4, 2), pod_on("x", unassigned_usage=3), pod_on("y", loose_gpus=1), pod_on("z", {7: 2, 1: 1}, 8)
    )
    other = node_view("b", (4,))
    rows = summary([view, other])
    assert rows[0].split()[4] == "PENDING(Allocated)"
    assert [row.split() for row in rows[1:3]] == [
        ["a", "10.0.0.7", "0/4", "1/2", "13", "14/6"],
        ["b", "10.0.0.7", "0/4", "0/0", "0/4"],
    ]
    assert [line.split() for line in details([view])[5:8]] == [
        ["x", "default", "0", "0", "3"],
        ["y", "default", "0", "0", "4"],
        ["z", "default", "0", "1", "6"],
    ]


def test_the_details_of_two_nodes() -> None:
    """x has 3 shares somewhere on a, y one of GPU 1 there, and z the only GPU of b: 4 of 6 and 8 of 8.

    The cells of a's rows have 1+7+1+1+1+0 and 1+2+1+1+1+0 bytes, 12 characters come after them, and 10 more.
    """
    nodes = [
        node_view("a", (4, 2), pod_on("ml/x", unassigned_usage=3), pod_on("y", {1: 1})),
        node_view("b", (8,), pod_on("z", None, 0)),
    ]
    assert details(nodes) == [
        "",
        "NAME:       a",
        "IPADDRESS:  10.0.0.7",
        "",
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  ",
        "y            default    0                1                0                   ",
        "x            ml         0                0                3                   ",
        "Allocated :  4 (66%)    ",
        "Total :      6          ",
        "-" * 39,
        "",
        "NAME:       b",
        "IPADDRESS:  10.0.0.7",
        "",
        "NAME         NAMESPACE  GPU0(Allocated)  ",
        "z            default    8*               ",
        "Allocated :  8 (100%)   ",
        "Total :      8          ",
        "-" * 39,
        "",
        "",
        "Allocated/Total GPU Memory In Cluster:  12/14 (85%)  ",
        "* the whole GPU",
    ]


def test_the_rule_below_the_details_is_as_long_as_the_rows_of_the_first_node() -> None:
    """Row "p default 1": 1+7+1 bytes, a tab after each, a line end, and 10 more; an empty first node has only 10."""
    full, empty = node_view("a", (4,), pod_on("p", {0: 1})), node_view("b", (4,))
    assert [line for line in details([full, empty]) if line.startswith("-")] == ["-" * 23] * 2
    assert [line for line in details([empty, full]) if line.startswith("-")] == ["-" * 10] * 2


@pytest.mark.parametrize(("used", "total", "percent"), [(29, 100, 28), (1, 3, 33), (2, 3, 66), (3, 3, 100)])
def test_percents_are_cut_off_as_in_the_original(used: int, total: int, percent: int) -> None:
    """In floating point 29/100 x 100 is 28.999999999999996."""
    assert summary([node_view("a", (total,), pod_on("p", {0: used}))])[-1] == f"{used}/{total} ({percent}%)  "


@pytest.mark.parametrize(
    ("share_mib", "shares", "unit"),
    [
        (1024, 80, "GiB"),
        (1, 81920, "MiB"),
        (256, 60, "256MiB shares"),
        (2048, 40, "2GiB shares"),
        (None, 100, "GiB"),
        (None, 101, "MiB"),
    ],
)
def test_the_heading_names_the_unit(share_mib: int | None, shares: int, unit: str) -> None:
    """As the agent says it; where only gpushare's own plugin is, more than 100 on a GPU must be MiB."""
    assert summary([node_view("a", (shares,), share_mib=share_mib)])[0].endswith(f"GPU Memory({unit})")


def test_the_unit_is_guessed_by_the_gpus_of_the_first_node_together() -> None:
    """As the original divides: 201 over two GPUs are 100, and no more."""
    assert summary([node_view("a", (101, 100), share_mib=None)])[0].endswith("GPU Memory(GiB)")
    assert summary([node_view("a", (102, 100), share_mib=None)])[0].endswith("GPU Memory(MiB)")


def test_shares_of_different_sizes_are_added_up_as_mib() -> None:
    """One share of 1024 MiB on a, two of 256 MiB on b, and on c, of gpushare's plugin, one that must be a GiB."""
    views = [
        node_view("a", (4,), pod_on("p", {0: 1})),
        node_view("b", (8,), pod_on("p", {0: 2}), share_mib=256),
        node_view("c", (4,), pod_on("p", {0: 1}), share_mib=None),
    ]
    rows = summary(views)
    assert rows[0].endswith("GPU Memory(MiB)")
    assert [row.split()[-1] for row in rows[1:4]] == ["1024/4096", "512/2048", "1024/4096"]
    assert rows[-1] == "2560/10240 (25%)  "
    assert ["p", "default", "512"] in [line.split() for line in details(views)]


# --- One line for each GPU --------------------------------------------------------------------------------------------


def test_a_wide_row_tells_all_of_a_gpu() -> None:
    why = "XID 79: off the bus"
    view = node_view("a", (15, 15, 7), pod_on("web", {0: 5}), pod_on("ml/train", None, 1), unhealthy={2: why})
    heading, *rows = wide([view])
    assert heading == (
        "NODE  GPU  UUID  MODEL     MEMORY  ALLOCATED    USED  LIMITS  SHARE  POLICY   DRIVER  HEALTH     PODS"
    )
    assert [row.split(maxsplit=3) for row in rows] == [
        [
            "a",
            "0",
            "0",
            f"Tesla T4  15 GiB  5/15         -     -       1 GiB  binpack  580.95  {'healthy':9}  default/web: 5 GiB",
        ],
        [
            "a",
            "1",
            "1",
            f"Tesla T4  15 GiB  15/15 whole  -     -       1 GiB  binpack  580.95  {'healthy':9}  ml/train: whole",
        ],
        [
            "a",
            "2",
            "2",
            f"Tesla T4  7 GiB   0/7          -     -       1 GiB  binpack  580.95  unhealthy  -  unhealthy: {why}",
        ],
    ]


def test_a_wide_row_of_a_node_that_says_little_has_dashes() -> None:
    view = node_view("b", (15,), pod_on("web", {0: 5}), share_mib=None)
    assert wide([view])[1].split() == [
        *("b", "0", "-", "-", "-", "5/15"),
        *("-", "-", "-", "-", "-", "healthy", "default/web:", "5"),
    ]


def test_what_is_on_unknown_gpus_has_a_row_and_so_has_a_node_that_cannot_be_read() -> None:
    problem = "the annotation is not JSON"
    views = [
        node_view("a", (), problem=problem),
        node_view(
            "b",
            (15,),
            pod_on("few", unassigned_usage=3),
            pod_on("x/y", unassigned_usage=3, loose_gpus=1),
            pod_on("z/z", loose_gpus=2),
        ),
    ]
    assert wide(views) == [
        f"NODE  GPU  UUID  MODEL     MEMORY  ALLOCATED        USED  LIMITS  SHARE  POLICY   DRIVER  {'HEALTH':7}  PODS",
        f"a     -    -     -         -       -                -     -       -      -        -       {'-':7}  -  {problem}",  # noqa: E501
        f"b     0    0     Tesla T4  15 GiB  0/15             -     -       1 GiB  binpack  580.95  {'healthy':7}  -",
        f"b     ?    -     -         -       3 GiB            -     -       -      -        -       {'-':7}  default/few: 3 GiB",  # noqa: E501
        f"b     ?    -     -         -       3 GiB + 1 whole  -     -       -      -        -       {'-':7}  x/y: 3 GiB + 1 whole",  # noqa: E501
        f"b     ?    -     -         -       2 whole          -     -       -      -        -       {'-':7}  z/z: 2 whole",  # noqa: E501
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uuid", "short"),
    [
        ("GPU-5f2c0b1e-9d3a-4c55-8b6e-0123456789ab", "5f2c0b1e"),
        ("MIG-5f2c0b1e-9d3a-4c55-8b6e-0123456789ab", "5f2c0b1e"),
        ("", "-"),
    ],
)
def test_a_uuid_is_told_by_its_first_part(uuid: str, short: str) -> None:
    assert short_uuid(uuid) == short
