"""Pods without GPUs take CPU and memory of their nodes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod, OtherPods


def pod(name: str, node: str, cpu: int = 0, memory: int = 0, *, ended: bool = False) -> OtherPod:
    return OtherPod(name, "1", node, Amounts(cpu, memory), ended)


def test_what_is_left_is_what_nobody_takes_and_may_be_less_than_nothing() -> None:
    assert Amounts(8000, 100).without([Amounts(500, 60), Amounts(250, 50)]) == Amounts(7250, -10)
    assert Amounts(8000, 100).without([]) == Amounts(8000, 100)


def test_the_requests_of_a_node_are_those_of_its_pods() -> None:
    there = OtherPods()
    assert there.on("a") == NO_AMOUNTS
    assert there.put(pod("p", "a", 500, 64))
    assert there.put(pod("q", "a", 250, 32))
    assert there.put(pod("r", "b", 100, 16))
    assert (there.on("a"), there.on("b")) == (Amounts(750, 96), Amounts(100, 16))


def test_only_a_change_of_the_sum_is_one() -> None:
    there = OtherPods()
    assert not there.put(pod("waits", "", 500))
    assert not there.put(pod("asks nothing", "a"))
    assert there.put(pod("p", "a", 500))
    assert not there.put(pod("p", "a", 500))
    assert there.put(pod("p", "a", 700))
    assert there.on("a") == Amounts(700)


def test_a_pod_that_has_ended_or_is_gone_takes_nothing() -> None:
    there = OtherPods()
    for name in ("p", "q"):
        there.put(pod(name, "a", 500))
    assert there.put(pod("p", "a", 500, ended=True))
    assert there.remove(pod("q", "a", 900))
    assert there.on("a") == NO_AMOUNTS
    assert not there.remove(pod("q", "a", 900))
    assert not there.remove(pod("never was", "b", 900))


def test_a_pod_counts_once_it_is_on_its_node() -> None:
    there = OtherPods()
    assert not there.counts(pod("p", "a"))
    there.put(pod("p", "a"))
    assert there.counts(pod("p", "a"))
    assert not there.counts(pod("p", "b"))


def test_a_list_says_which_nodes_have_changed() -> None:
    there = OtherPods()
    there.replace([pod("p", "a", 500), pod("q", "b", 500), pod("r", "c", 500)])
    changed = there.replace([pod("p", "a", 500), pod("q", "b", 600), pod("s", "d", 1)])
    assert set(changed) == {"b", "c", "d"}
    assert [there.on(node).cpu_milli for node in "abcd"] == [500, 600, 0, 1]


events = st.lists(
    st.tuples(
        st.sampled_from(("put", "remove", "replace")),
        st.builds(
            pod,
            st.sampled_from("pqr"),
            st.just("a"),
            st.integers(0, 3),
            st.integers(0, 3),
            ended=st.booleans(),
        ),
    ),
    max_size=20,
)


@given(events)
def test_sums_are_those_of_the_pods_that_are_there(events: list[tuple[str, OtherPod]]) -> None:
    there, known = OtherPods(), dict[str, OtherPod]()
    for what, each in events:
        if what == "put":
            there.put(each)
            known[each.uid] = each
        elif what == "remove":
            there.remove(each)
            known.pop(each.uid, None)
        else:
            known = {each.uid: each}
            there.replace([each])
        counting = [pod for pod in known.values() if not pod.ended]
        assert there.on("a") == Amounts(
            sum(pod.amounts.cpu_milli for pod in counting), sum(pod.amounts.memory_mib for pod in counting)
        )
        assert replace(each, uid="nobody") not in counting
