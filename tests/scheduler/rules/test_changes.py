"""What changed last."""

from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.changes import ChangeLog, View


def test_readers_get_what_changed_since_they_looked_the_latest_first() -> None:
    log: ChangeLog[str] = ChangeLog()
    assert log.since(0) == []
    for number, name in enumerate("aba", 1):
        log.add(name, number)
    assert [log.since(number) for number in range(4)] == [["a", "b"], ["a", "b"], ["a"], []]


def test_several_things_may_change_at_once() -> None:
    log: ChangeLog[str] = ChangeLog()
    log.add("a", 1)
    log.add("b", 1)
    assert (log.since(0), log.since(1)) == (["b", "a"], [])


def test_a_reader_that_lags_too_far_behind_reads_everything_again() -> None:
    log: ChangeLog[str] = ChangeLog(most=2)
    for number, name in enumerate("abc", 1):
        log.add(name, number)
    assert (log.since(0), log.since(1)) == (None, ["c", "b"])


def test_a_view_is_made_current_before_it_is_read_and_tells_what_has_changed() -> None:
    def current() -> None:
        for name in coming:
            view.put(name, Candidate(name))
        coming.clear()

    coming, view = ["a", "b"], View(current)
    mark, names = view.changed_since(0)
    assert (sorted(view.candidates), sorted(names or ())) == (["a", "b"], ["a", "b"])
    view.put("a", None)
    view.put("nobody", None)
    coming.append("c")
    assert sorted(view.changed_since(mark)[1] or ()) == ["a", "c"]
    assert sorted(view.candidates) == ["b", "c"]
