"""Who is on which GPU of a node, and how much that is."""

from gpu_device_plugin.report.rules.node_view import PodShare
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.views import node_view, pod_on


def test_every_gpu_says_who_is_on_it_in_the_order_of_names() -> None:
    """GPU 2 is the second: the node lists no GPU 1."""
    web, train = pod_on("web", {0: 4, 2: 1}), pod_on("train", None, 2)
    first, second = node_view("n", {0: 8, 2: 6}, web, train).gpus()
    assert (first.gpu.position, first.held) == (0, (PodShare(web, 4),))
    assert (second.gpu.position, second.held) == (2, (PodShare(train, 6, whole=True), PodShare(web, 1)))


def test_what_is_used_of_a_gpu_is_what_is_known_to_lie_on_it() -> None:
    """4 of 8 on GPU 0, all of GPU 1; 3 somewhere count only in the sum of the node."""
    there = node_view(
        "n",
        (8, 6, 5),
        pod_on("a", {0: 3}),
        pod_on("b", {0: 1}),
        pod_on("c", None, 1),
        pod_on("d", unassigned_usage=3),
    )
    assert [view.used for view in there.gpus()] == [4, 6, 0]
    assert (there.total, there.unplaced, there.used) == (19, 3, 13)


def test_a_gpu_of_which_too_much_was_given_away_has_more_used_than_there_is() -> None:
    """5 and 6 of 8; and 9 of a GPU of 8 that somebody has whole besides."""
    there = node_view("n", (8, 8), pod_on("a", {0: 5}), pod_on("b", {0: 6, 1: 9}), pod_on("c", None, 1))
    assert [view.used for view in there.gpus()] == [11, 9]


def test_free_is_what_one_demand_could_get() -> None:
    """2 somewhere are taken off each; GPU 1 is in whole use, GPU 2 out of service."""
    pods = pod_on("a", {0: 3}), pod_on("b", None, 1), pod_on("c", unassigned_usage=2)
    there = node_view("n", (8, 8, 8, 8), *pods, unhealthy={2: "too hot"})
    assert [view.free for view in there.gpus()] == [3, 0, 0, 6]


def test_what_lies_on_gpus_that_nobody_knows_is_loose() -> None:
    """The node lists GPUs 0 and 1 of 8 and 6; an unknown whole GPU counts as large as the larger one."""
    lost, gone = pod_on("lost", {0: 1}, unassigned_usage=3, loose_gpus=1), pod_on("gone", {1: 1, 7: 2}, 8, 9)
    there = node_view("n", (8, 6), pod_on("known", {0: 1}), lost, gone)
    assert list(there.unassigned_usage().items()) == [
        (gone, Usage(unplaced_shares=2, unplaced_gpus=2)),
        (lost, Usage(unplaced_shares=3, unplaced_gpus=1)),
    ]
    assert [usage.size(there.candidate.gpus.sizes) for usage in there.unassigned_usage().values()] == [18, 11]
    assert there.unplaced == 29


def test_of_a_node_that_lists_no_gpu_an_unknown_one_has_no_size() -> None:
    there = node_view("n", (), pod_on("a", unassigned_usage=2, loose_gpus=1), problem="its annotation is not JSON")
    assert (there.total, there.unplaced, there.used) == (0, 2, 2)


def test_shares_are_written_as_memory_where_their_size_is_known() -> None:
    assert node_view("n", (8,)).amount(3) == "3 GiB"
    assert node_view("n", (8,), share_mib=None).amount(3) == "3"
