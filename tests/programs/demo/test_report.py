"""A node as a table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.model.gpus import Gpu, Inventory
from gpu_device_plugin.core.model.shares import Shares, share_id
from gpu_device_plugin.core.node.ledger import Ledger
from gpu_device_plugin.core.node.node import Node
from gpu_device_plugin.programs.demo.report import GpuRow, Holder, Look, Tone, rows, table
from tests.nodes import ids, node, uuid


def holder(name: str, position: int, *numbers: int) -> Holder:
    """Shares of one GPU, or the whole of it where no numbers are given."""
    return Holder(name, frozenset(ids(position, numbers) or [uuid(position)]))


def row(used: int = 0, shares: int = 4, **other: object) -> GpuRow:
    given_ = {"position": 0, "uuid": uuid(0), "model": "Tesla T4", "memory_mib": 4096, "shares": shares}
    return GpuRow(**{**given_, "used": used, "whole": False, "unhealthy": None, **other})  # type: ignore[arg-type]


def bar(used: int, shares: int, *beside: int) -> str:
    """The bar of a GPU of 1 GiB shares in a table with others of these sizes."""
    lines = table([row(used, shares), *(row(0, other) for other in beside)], 1024, Look(full="#", empty="."))
    return "".join(char for char in lines[1].split("GiB")[1].split("healthy")[0] if char in "#.")


def test_a_row_says_what_is_used_of_a_gpu_and_by_whom() -> None:
    """GPU 0 has 4 shares: two of pod a, one of pod b, one in use by nobody known. GPU 1 is held whole by c."""
    there = node(4, 2, used={0: [0, 1, 2, 3]}, whole=[1], unhealthy={1: "too hot"})
    held = [holder("a", 0, 0, 1), holder("b", 0, 2), holder("c", 1)]
    assert rows(there, held) == (
        GpuRow(
            0, uuid(0), "Tesla T4", 4096, shares=4, used=4, whole=False, unhealthy=None, holders=(("a", 2), ("b", 1))
        ),
        GpuRow(1, uuid(1), "Tesla T4", 2048, shares=2, used=2, whole=True, unhealthy="too hot", holders=(("c", 2),)),
    )


def test_a_holder_of_two_gpus_is_named_on_both() -> None:
    both = Holder("train", frozenset({*ids(0, [0]), *ids(1, [0, 1])}))
    there = node(2, 2, used={0: [0], 1: [0, 1]})
    assert [each.holders for each in rows(there, [both])] == [(("train", 1),), (("train", 2),)]


def test_a_node_is_drawn_as_a_table() -> None:
    there = node(7, 14, 14, used={0: range(7), 2: range(9)}, whole=[1], unhealthy={2: "XID 48; reset it"})
    held = [*(holder(f"web-{n + 1}", 0, n) for n in range(7)), holder("train", 1), holder("note", 2, *range(9))]
    assert table(rows(there, held), there.shares.share_mib) == [
        "GPU  MODEL       MEMORY  SHARES                 HEALTH     HELD BY",
        "  0  Tesla T4   7.0 GiB  ███████           7/7  healthy    web-1..7: 1 GiB each",
        "  1  Tesla T4  14.0 GiB  ██████████████  whole  healthy    train",
        "  2  Tesla T4  14.0 GiB  █████████░░░░░   9/14  unhealthy  note: 9 GiB",
        "     XID 48; reset it",
    ]


def test_a_node_without_gpus_is_a_heading() -> None:
    assert table([], 1024) == ["GPU  MODEL  MEMORY  SHARES    HEALTH  HELD BY"]


def test_a_gpu_that_nobody_uses_has_nothing_behind_its_health() -> None:
    assert table([row()], 1024, Look(full="#", empty="."))[1] == "  0  Tesla T4  4.0 GiB  ....    0/4  healthy"


def test_shares_smaller_than_a_gib_are_told_as_what_they_are() -> None:
    """Three shares of 256 MiB are 768 MiB."""
    assert table([row(3, holders=(("a", 3),))], 256)[1].endswith("a: 768 MiB")


def test_holders_of_one_size_stand_together_the_largest_first() -> None:
    lines = table([row(9, 14, holders=(("b", 1), ("a", 3), ("d", 1), ("c", 4)))], 1024)
    texts = [lines[1].split("healthy  ")[1], *(line.strip() for line in lines[2:])]
    assert texts == ["c: 4 GiB", "a: 3 GiB", "b, d: 1 GiB each"]


def test_names_that_count_up_are_shortened_from_three_on() -> None:
    def named(*names: str) -> str:
        held = tuple((name, 1) for name in names)
        return table([row(4, holders=held)], 1024, Look(width=200))[1].split("healthy  ")[1]

    assert named("web-0", "web-1") == "web-0, web-1: 1 GiB each"
    assert named("web-0", "web-1", "web-2", "db-3") == "web-0..2, db-3: 1 GiB each"
    assert named("web-9", "web-10", "web-11") == "web-9..11: 1 GiB each"
    assert named("web-1", "web-3", "web-2") == "web-1, web-3, web-2: 1 GiB each"
    assert named("a", "a1", "a2", "a3") == "a, a1..3: 1 GiB each"


def test_a_name_that_is_a_very_long_number_is_left_as_it_is() -> None:
    lines = table([row(1, holders=(("1" * 5000, 1),))], 1024, Look(width=6000))
    assert ("1" * 5000 + ": 1 GiB") in lines[1]


def test_a_bar_is_as_long_as_its_gpu_is_large() -> None:
    assert bar(0, 7, 14) == "......."
    assert bar(7, 7, 14) == "#######"
    assert len(bar(0, 139)) == 14


def test_a_bar_is_neither_full_nor_empty_unless_its_gpu_is() -> None:
    """One of 139 shares is a tenth of a cell, 138 are nearly all of 14."""
    assert bar(1, 139) == "#............."
    assert bar(138, 139) == "#############."


def test_the_smallest_gpu_beside_a_large_one_still_has_a_bar() -> None:
    """1 of 139 shares would be no cell at all."""
    assert (bar(0, 2, 139), bar(1, 2, 139), bar(2, 2, 139)) == (".", ".", "#")


def test_a_bar_gives_way_to_the_names_of_the_holders() -> None:
    """With 14 cells for the bar, 12 columns of 80 would be left for names; with 6 it is the 20 that they shall have."""
    gpus = [row(133, 139, model="NVIDIA H100 80GB HBM3", memory_mib=143771, unhealthy="lost", holders=(("a", 133),))]
    assert table(gpus, 1024)[1] == "  0  H100 80GB HBM3  140.4 GiB  █████░  133/139  unhealthy  a: 133 GiB"


def test_a_long_model_is_cut_and_the_makers_name_left_out() -> None:
    def model(product: str) -> str:
        return table([row(model=product)], 1024)[1].split("  4.0 GiB")[0].strip("0 ")

    assert model("NVIDIA A100-SXM4-80GB") == "A100-SXM4-80GB"
    assert model("Quadro RTX 6000 with Max-Q Design") == "Quadro RTX 6000 .."


def test_a_reason_is_wrapped_below_its_gpu() -> None:
    lines = table([row(unhealthy="the driver asks for a reset of the GPU and has asked before")], 1024, Look(width=40))
    assert lines[2:] == ["     the driver asks for a reset of the", "     GPU and has asked before"]


def test_what_is_painted_keeps_its_place() -> None:
    """Without the paint the lines are the same."""
    gpus = [row(2, holders=(("a", 2),)), row(whole=True, used=4), row(unhealthy="broken")]
    seen: set[Tone] = set()

    def paint(text: str, tone: Tone) -> str:
        seen.add(tone)
        return f"<{text}>"

    painted = table(gpus, 1024, Look(paint=paint))
    assert [line.replace("<", "").replace(">", "").rstrip() for line in painted] == table(gpus, 1024)
    assert seen == {Tone.PLAIN, Tone.HEADING, Tone.GOOD, Tone.SHARED, Tone.WHOLE, Tone.BAD}


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300), st.booleans()), max_size=8),
    st.lists(st.text("abc-1 ", min_size=1, max_size=30), max_size=5),
)
def test_no_line_is_longer_than_the_table_is_wide(sizes: list[tuple[int, int, bool]], names: list[str]) -> None:
    """80 columns suffice for every node of up to 300 shares a GPU."""
    gpus = tuple(Gpu(uuid(n), n, "NVIDIA H100 80GB HBM3 and more", size * 1024) for n, (size, _, _) in enumerate(sizes))
    shares = Shares(1024).with_inventory(Inventory(gpus))
    held = [share_id(uuid(n), i) for n, (size, used, _) in enumerate(sizes) for i in range(min(used, size))]
    failed = {uuid(n): "for some reason or other " * 5 for n, (_, _, failed) in enumerate(sizes) if failed}
    there = Node(shares, Ledger().seen(held), failed)
    holders = [Holder(name, frozenset(held[n :: len(names)])) for n, name in enumerate(names)]
    assert all(len(line) <= 80 for line in table(rows(there, holders), 1024))
