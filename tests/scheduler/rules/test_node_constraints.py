"""How much memory the terms of a pod take, of which the API bounds little."""

import pytest

from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.scheduler.rules.node_constraints import (
    MOST_TERMS,
    NO_TERMS,
    NOWHERE,
    Alternative,
    Requirement,
    Terms,
    Toleration,
    obstacles,
)


@pytest.mark.parametrize(
    ("terms", "size"),
    [
        (NO_TERMS, 0),
        (NOWHERE, 0),
        (Terms(selector={"zone": "a"}), 7),
        (Terms(tolerations=(Toleration("k", "Equal", "v", "NoSchedule"),)), 21),
        (Terms(affinity=(Alternative((Requirement("zone", "In", ("a", "b" * 5000)),)),)), 5 + 3 + 2 + 5001),
        (Terms(affinity=(Alternative((), (Requirement("metadata.name", "In", ("",) * 5000),)),)), 14 + 3 + 5000),
    ],
)
def test_every_text_counts_with_its_characters_and_one_more(terms: Terms, size: int) -> None:
    assert terms.size == size
    assert (size > MOST_TERMS) == (size > 4096)


def test_terms_that_are_too_long_to_be_kept_lead_nowhere() -> None:
    assert [code for code, _ in obstacles(NodeRecord("n", "n", ready=True), NOWHERE)] == ["affinity-terms"]


def test_terms_tell_which_labels_decide_and_whether_any_node_can_meet_them() -> None:
    zone = Alternative((Requirement("zone", "Exists"),))
    named = Alternative(fields=(Requirement("metadata.name", "In", ("n",)),))
    terms = Terms(selector={"pool": "a"}, affinity=(zone, named, Alternative()))

    assert (terms.labels, terms.nowhere) == (frozenset({"pool", "zone"}), False)
    assert (NO_TERMS.labels, NO_TERMS.nowhere) == (frozenset(), False)
    assert NOWHERE.nowhere
    assert Terms(affinity=(Alternative(),)).nowhere


def test_equal_terms_have_equal_hashes_whatever_the_order_of_their_labels() -> None:
    one, other = Terms(selector={"a": "1", "b": "2"}), Terms(selector={"b": "2", "a": "1"})

    assert (one, hash(one)) == (other, hash(other))
    assert len({one, other, NO_TERMS}) == 2
