"""A node as a table."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Block, Node
from gpu_device_plugin.programs.demo.stage import Look, ShareTone, table
from tests.nodes import ids, node, uuid


def one_gpu(product: str) -> Node:
    """A node of one GPU of 4 GiB."""
    return Node(Shares(1024).with_inventory(Inventory((Gpu(uuid(0), 0, product, 4096),))), Ledger(), {})


def held(**amounts: int) -> dict[str, frozenset[str]]:
    """So many shares of GPU 0 for each of these, one after the other."""
    numbers = iter(range(sum(amounts.values())))
    return {name: frozenset(ids(0, [next(numbers) for _ in range(amount)])) for name, amount in amounts.items()}


def names_in(lines: list[str]) -> list[str]:
    """What stands behind the health of one GPU."""
    return [lines[1].split("healthy  ")[1], *(line.strip() for line in lines[2:])]


def bar(used: int, shares: int, *beside: int) -> str:
    """The bar of a GPU of 1 GiB shares in a table with others of these sizes."""
    lines = table(node(shares, *beside, used={0: range(used)}), {}, Look(full="#", empty="."))
    return "".join(char for char in lines[1].split("GiB")[1].split("healthy")[0] if char in "#.")


def test_a_gpu_of_which_nobody_has_told_is_neither_healthy_nor_unhealthy() -> None:
    there = node(4, 2, unhealthy={0: "no agent reports its health", 1: "too hot"})
    assert table(there, {}, Look(), unknown=frozenset({uuid(0)})) == [
        "GPU  MODEL      MEMORY  SHARES       HEALTH     HELD BY",
        "  0  Tesla T4  4.0 GiB  ░░░░    0/4  unknown",
        "  1  Tesla T4  2.0 GiB  ░░      0/-  unhealthy",
        "     too hot",
    ]


def test_a_node_is_drawn_as_a_table() -> None:
    """Of the last GPU a share is in use by nobody known."""
    there = node(7, 14, 14, used={0: range(7), 2: range(9)}, whole=[1], unhealthy={2: "XID 48; reset it"})
    web = {f"web-{n + 1}": frozenset(ids(0, [n])) for n in range(7)}
    pods = {**web, "train": frozenset([uuid(1)]), "note": frozenset(ids(2, range(8)))}
    assert table(there, pods, Look()) == [
        "GPU  MODEL       MEMORY  SHARES                 HEALTH     HELD BY",
        "  0  Tesla T4   7.0 GiB  ███████           7/7  healthy    web-1..7: 1 GiB each",
        "  1  Tesla T4  14.0 GiB  ██████████████  whole  healthy    train",
        "  2  Tesla T4  14.0 GiB  █████████░░░░░    9/-  unhealthy  note: 8 GiB",
        "     XID 48; reset it",
    ]


def test_on_a_narrow_terminal_the_pods_stand_below_their_gpu() -> None:
    there = node(7, 14, used={0: range(7)}, unhealthy={0: "XID 48; reset it"})
    web = {f"web-{n + 1}": frozenset(ids(0, [n])) for n in range(7)}
    assert table(there, web, Look(width=60)) == [
        "GPU  MODEL       MEMORY  SHARES                HEALTH",
        "  0  Tesla T4   7.0 GiB  ███████          7/-  unhealthy",
        "     web-1..7: 1 GiB each",
        "     XID 48; reset it",
        "  1  Tesla T4  14.0 GiB  ░░░░░░░░░░░░░░  0/14  healthy",
    ]


def test_holders_of_one_size_and_use_stand_together_the_largest_first() -> None:
    """1,434 MiB are 1.4 GiB; pod d holds two shares and has no process."""
    used = {(name, uuid(0)): mib for name, mib in {"a": 1024, "b": 1434, "c": 1024}.items()}
    lines = table(node(14, used={0: range(5)}), held(a=1, b=1, c=1, d=2), Look(), used)
    assert names_in(lines) == ["d: 2 GiB", "b: 1.4 of 1 GiB", "a, c: 1.0 of 1 GiB each"]


def test_a_holder_of_two_gpus_is_named_on_both_with_what_it_uses_there() -> None:
    both = {"train": frozenset({*ids(0, [0]), *ids(1, [0])})}
    used = {("train", uuid(0)): 512, ("train", uuid(1)): 0}
    lines = table(node(2, 2, used={0: [0], 1: [0]}), both, Look(), used)
    assert [line.split("healthy  ")[1] for line in lines[1:]] == ["train: 0.5 of 1 GiB", "train: 0.0 of 1 GiB"]


def test_names_that_count_up_are_shortened_from_three_on() -> None:
    def named(*names: str) -> str:
        pods = held(**dict.fromkeys(names, 1))
        (text,) = names_in(table(node(4, used={0: range(4)}), pods, Look(width=6000)))
        return text

    assert named("web-0", "web-1") == "web-0, web-1: 1 GiB each"
    assert named("web-0", "web-1", "web-2", "db-3") == "web-0..2, db-3: 1 GiB each"
    assert named("web-9", "web-10", "web-11") == "web-9..11: 1 GiB each"
    assert named("web-1", "web-3", "web-2") == "web-1, web-3, web-2: 1 GiB each"
    assert named("a", "a1", "a2", "a3") == "a, a1..3: 1 GiB each"
    assert named("1" * 5000) == "1" * 5000 + ": 1 GiB", "a very long number is left as it is"


def test_a_bar_is_as_long_as_its_gpu_is_large_and_neither_full_nor_empty_unless_its_gpu_is() -> None:
    """One of 139 shares is a tenth of a cell, 138 are nearly all; one of 2 beside them would be no cell at all."""
    assert (bar(0, 7, 14), bar(7, 7, 14)) == (".......", "#######")
    assert (bar(1, 139), bar(138, 139)) == ("#.............", "#############.")
    assert (bar(0, 2, 139), bar(1, 2, 139), bar(2, 2, 139)) == (".", ".", "#")


def test_a_long_model_is_cut_and_the_makers_name_left_out() -> None:
    def model(product: str) -> str:
        return table(one_gpu(product), {}, Look())[1].split("  4.0 GiB")[0].strip("0 ")

    assert model("NVIDIA A100-SXM4-80GB") == "A100-SXM4-80GB"
    assert model("Quadro RTX 6000 with Max-Q Design") == "Quadro RTX 6000 .."


def test_what_is_painted_keeps_its_place() -> None:
    """Without the paint the lines are the same."""
    there = node(4, 4, 4, 4, used={0: [0, 1]}, whole=[1], unhealthy={2: "broken"})
    plain, painted = table(there, held(a=2), Look()), table(there, held(a=2), Look(colour=True))
    assert [re.sub(r"\x1b\[[0-9]*m", "", line).rstrip() for line in painted] == plain
    begun = {found for line in painted for found in re.findall(r"\x1b\[[0-9]+m", line)}
    assert begun == {*ShareTone, "\x1b[0m"} - {ShareTone.PLAIN}


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300), st.booleans()), max_size=8),
    st.lists(st.text("abc-1 ", min_size=1, max_size=30), max_size=5, unique=True),
    st.lists(st.integers(0, 300 * 1024), max_size=5),
)
def test_no_line_is_longer_than_the_table_is_wide(
    sizes: list[tuple[int, int, bool]], names: list[str], used_mib: list[int]
) -> None:
    """60 columns are enough for every node of up to 300 shares a GPU; from 80 on, the pods stand beside their GPU."""
    gpus = tuple(Gpu(uuid(n), n, "NVIDIA H100 80GB HBM3 and more", size * 1024) for n, (size, _, _) in enumerate(sizes))
    shares = Shares(1024).with_inventory(Inventory(gpus))
    used_ids = [share_id(uuid(n), i) for n, (size, used, _) in enumerate(sizes) for i in range(min(used, size))]
    failed = {uuid(n): Block("for some reason or other " * 5) for n, (_, _, failed) in enumerate(sizes) if failed}
    there = Node(shares, Ledger().seen(used_ids), failed)
    holders = {name: frozenset(used_ids[n :: len(names)]) for n, name in enumerate(names)}
    used = {(name, uuid(n)): mib for name, mib in zip(names, used_mib, strict=False) for n in range(len(sizes))}
    for width in (60, 80):
        assert max(map(len, table(there, holders, Look(width), used))) <= width
