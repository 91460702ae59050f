"""A node for a reader who may not see all of its pods."""

from dataclasses import fields, replace

from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.report.rules.overview_document import HIDDEN, SHOWN_OF_HIDDEN, redacted
from tests.reports import ASKED, part, report
from tests.views import mig_view, node_view, pod_on, with_instances


def test_pods_of_other_namespaces_keep_their_amounts_and_lose_their_names() -> None:
    used = report(part("mine/a"), part("theirs/b", used=2000))
    node = node_view("n", (15,), pod_on("mine/a", {0: 4}), pod_on("theirs/b", {0: 5}), report=used)
    shown = redacted(node, "mine".__eq__)
    assert [(pod.namespace, pod.name, pod.uid, pod.usage) for pod in shown.pods] == [
        ("mine", "a", "uid-mine/a", node.pods[0].usage),
        (HIDDEN, "1", "", node.pods[1].usage),
    ]
    assert shown.report.use is not None
    assert [(each.namespace, each.pod, each.container, each.used_mib) for each in shown.report.use.parts] == [
        ("mine", "a", "main", 1000),
        (HIDDEN, "1", "", 2000),
    ]
    assert "theirs" not in str(shown)
    assert shown.used == node.used


def test_a_node_without_a_report_stays_without() -> None:
    shown = redacted(node_view("n", (15,)), lambda _: False)
    assert shown.report.use is None


def test_pods_with_whole_instances_lose_their_names_too() -> None:
    mine, theirs = (
        replace(with_instances("a", 1), namespace="mine"),
        replace(with_instances("b", 0), namespace="theirs"),
    )
    other = replace(with_instances("c", asks=1), namespace="theirs")
    node = mig_view("n", mine, theirs, other, whole=3)
    shown = redacted(node, "mine".__eq__)
    (offer,) = shown.instances()
    assert [str(pod) for pod in shown.instance_pods] == ["mine/a", f"{HIDDEN}/1", f"{HIDDEN}/2"]
    assert (offer.used, offer.free) == (3, 0)
    assert "theirs" not in str(shown)


def test_who_needs_what_another_borrows_has_no_name_for_those_who_may_not_see_it() -> None:
    node = node_view("n", (15,), pod_on("default/nb", {0: 4}), report=report(ASKED))
    for seen, name in (("default", ""), ("ml", "ml/train")):
        shown = redacted(node, seen.__eq__).report.use
        assert shown is not None
        assert [part.needed_by for part in shown.parts] == [name]


def test_each_field_of_a_containers_use_is_shown_or_hidden_on_purpose() -> None:
    """One that is added to `ContainerUse` must not be shown of pods of others by chance."""
    assert [each.name for each in fields(ContainerUse)] == ["namespace", "pod", "container", *SHOWN_OF_HIDDEN]
