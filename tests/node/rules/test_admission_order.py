"""The order of admission, for every interleaving of lists and a watch."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.rules.admission_order import AdmissionOrder

OLD, MIDDLE, YOUNG = (Pod(name, "default", name, created=f"2026-01-01T00:00:0{age}Z") for age, name in enumerate("omy"))
"""Their UIDs: o, m and y."""


def shown(order: AdmissionOrder) -> str:
    return "".join(order.shown)


def test_a_watch_shows_the_order() -> None:
    assert shown(AdmissionOrder().put(YOUNG).put(OLD)) == "yo"


def test_a_list_with_which_a_watch_begins_is_ordered_by_age_then_name_behind_what_was_known() -> None:
    twin = replace(MIDDLE, uid="t", name="a")
    assert shown(AdmissionOrder().begun_with([YOUNG, MIDDLE, OLD, twin])) == "otmy"
    assert shown(AdmissionOrder().put(YOUNG).begun_with([OLD, YOUNG])) == "yo"
    assert shown(AdmissionOrder().put(YOUNG).begun_with([OLD])) == "o"


def test_a_new_pod_in_a_list_beside_a_watch_is_not_shown_before_its_turn() -> None:
    order = AdmissionOrder().put(MIDDLE).compared_with([OLD, MIDDLE, YOUNG])
    assert shown(order) == "m"
    order = order.replayed("y", deleted=False)
    assert shown(order) == "my"
    assert shown(order.settled()) == "myo"
    assert shown(order.replayed("o", deleted=False)) == "myo"


def test_a_kubelet_that_starts_admits_the_pods_that_were_bound_before_by_age() -> None:
    order = AdmissionOrder().put(YOUNG).put(OLD).compared_with([OLD, YOUNG, MIDDLE]).after_start()
    assert shown(order) == "omy"
    assert shown(order.replayed("m", deleted=False).put(replace(MIDDLE, uid="n", name="n"))) == "omyn"


def test_a_change_of_the_version_alone_is_no_change() -> None:
    order = AdmissionOrder().put(OLD)
    assert order.put(replace(OLD, resource_version="7")) is order


@dataclass
class Story:
    """The events on a node, seen by a watch, which lags, and by lists beside it; each version is one event."""

    events: list[tuple[str, Pod]] = field(default_factory=list)
    watched: int = 0
    """As far as the watch has come."""
    listed: int = 0
    """As far as the last list."""
    order: AdmissionOrder = field(default_factory=AdmissionOrder)
    begun: int = 0
    """The last version at which a watch began with a list: up to it, only age orders the pods."""

    def truth(self, version: int) -> dict[str, Pod]:
        """Return the pods at a version, in the order of their binding."""
        there: dict[str, Pod] = {}
        for what, pod in self.events[:version]:
            if what == "delete":
                del there[pod.uid]
            else:
                there[pod.uid] = pod
        return there

    def happen(self, what: str, which: int) -> None:
        there = list(self.truth(len(self.events)).values())
        if what == "bind":
            number = len(self.events)
            # Its age says nothing about when it is bound.
            self.events.append((what, Pod(f"u{number}", "default", f"p{number}", created=f"{(which * 7) % 10}")))
        elif there:
            pod = there[which % len(there)]
            self.events.append((what, replace(pod, annotations={"n": str(len(self.events))})))

    def watch(self, many: int) -> None:
        for what, pod in self.events[self.watched : self.watched + many]:
            self.watched += 1
            if self.watched <= self.listed:
                self.order = self.order.replayed(pod.uid, deleted=what == "delete")
            elif what == "delete":
                self.order = self.order.removed(pod.uid)
            else:
                self.order = self.order.put(pod)
            if self.watched == self.listed:
                self.settle()

    def check(self) -> None:
        self.listed = len(self.events)
        self.order = self.order.compared_with(self._list())
        if self.watched == self.listed:
            self.settle()

    def begin_anew(self) -> None:
        """The server has dropped the events since: a list, and a watch from there."""
        self.begun = self.watched = self.listed = len(self.events)
        self.order = self.order.begun_with(self._list())

    def settle(self) -> None:
        assert not self.order.unexplained, "the watch has delivered every event"
        self.order = self.order.settled()

    def _list(self) -> Iterable[Pod]:
        return sorted(self.truth(self.listed).values(), key=lambda pod: pod.name)

    def look(self, before: AdmissionOrder) -> None:
        """Check the invariants of every step."""
        now, then = list(self.order.shown), list(before.shown)
        stayed = [uid for uid in then if uid in self.order.shown]
        assert now[: len(stayed)] == stayed, "pods keep their places, and new ones come last"
        there = self.truth(max(self.watched, self.listed))
        assert self.order.shown.items() <= there.items()
        bound_since = [uid for uid in there if uid not in self.truth(self.begun)]
        assert [uid for uid in now if uid in bound_since] == [uid for uid in bound_since if uid in now]
        delivered = {pod.uid for _, pod in self.events[: self.watched]}
        assert delivered.issuperset(now), "no pod is shown before the watch has delivered its event"
        waiting = there.keys() - self.order.shown.keys()
        assert waiting.isdisjoint(self.truth(self.watched)), "a pod waits only for its event"


STEP = st.tuples(
    st.sampled_from(["bind", "bind", "bind", "change", "delete", "watch", "watch", "check", "check", "begin_anew"]),
    st.integers(1, 9),
)


@given(st.lists(STEP, min_size=10, max_size=50))
def test_the_order_is_that_of_the_bindings_for_all_lists_and_events(steps: list[tuple[str, int]]) -> None:
    """At every moment for the shown pods; at the end for all pods bound since the last beginning of a watch."""
    story = Story()
    for what, number in steps:
        before = story.order
        if what == "watch":
            story.watch(number // 2)
        elif what in {"check", "begin_anew"}:
            getattr(story, what)()
        else:
            story.happen(what, number)
        story.look(before)
    before = story.order
    story.watch(len(story.events))
    story.look(before)
    assert story.order.shown == story.truth(len(story.events))
    assert not story.order.unordered
