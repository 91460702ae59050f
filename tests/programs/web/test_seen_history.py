"""Who sees what of what agents remember."""

from gpu_device_plugin.programs.web.figures import seen_history, seen_summary
from tests.histories import hour, summary, used_by

MINE, OTHER, UNKNOWN = used_by("mine/a"), used_by("other/b"), used_by("/0b0c6c4e")
HOUR = hour(MINE, used_by("mine/c"), OTHER, UNKNOWN)
DIED = summary("x", namespace="other", pod="b", container="main", sentence="other/b died")


def my(namespace: str) -> bool:
    return namespace == "mine"


def everybodys(_namespace: str) -> bool:
    return True


def test_the_sums_of_gpus_stay_where_other_namespaces_are_left_out() -> None:
    """A container whose pod is not known may be anybody's."""
    seen = seen_history(HOUR, my, nodes=True)
    assert [each.pod for each in seen.containers] == ["a", "c"]
    assert seen.gpus == HOUR.gpus
    assert seen_history(HOUR, everybodys, nodes=True) == HOUR


def test_who_may_not_see_nodes_sees_no_gpus() -> None:
    seen = seen_history(HOUR, my, nodes=False, pod="c")
    assert (seen.gpus, [each.pod for each in seen.containers]) == ((), ["c"])


def test_an_incident_of_another_namespace_has_its_kind_and_gpu_only() -> None:
    seen = seen_summary(DIED, my)
    assert (seen.name, seen.at, seen.kind, seen.gpu) == (DIED.name, DIED.at, DIED.kind, DIED.gpu)
    assert (seen.namespace, seen.pod, seen.container, seen.sentence) == ("", "", "", "")
    assert seen_summary(DIED, everybodys) == DIED
    assert seen_summary(summary(namespace="mine", pod="a"), my).sentence == summary().sentence


def test_what_happened_to_a_gpu_names_no_pod() -> None:
    assert seen_summary(summary(), my) == summary()
    assert seen_summary(summary(container="main"), my).sentence == "", "the agent does not know whose it is"
