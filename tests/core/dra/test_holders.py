"""The containers that use prepared claims."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.core.dra.holders import Holder, holders, two_claims
from gpu_device_plugin.core.dra.prepared import PreparedClaim, PreparedDevice
from gpu_device_plugin.core.model.claims import Consumer
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.node.admitting import Why
from tests.claims import claim, ids


def prepared(name: str = "c1", *pods: str, namespace: str = "default") -> PreparedClaim:
    return PreparedClaim(
        f"uid-of-{name}",
        namespace,
        name,
        (PreparedDevice("gpu", "gpu-1", "gpu-x"),),
        ids(0, [0]),
        consumers=tuple(Consumer(f"uid-of-{pod}", pod) for pod in pods),
    )


def pod(name: str = "p1", **claims: tuple[str, ...]) -> Pod:
    return Pod(f"uid-of-{name}", "default", name, claims=claims)


def test_each_container_that_uses_a_claim_holds_it() -> None:
    one, two = prepared("c1", "p1", "p2"), prepared("c2", "p1")
    found = holders([one, two], [pod("p1", a=("c1",), b=("c2", "unknown")), pod("p2", a=("c1",))])
    assert found == (Holder("uid-of-p1", "a", one), Holder("uid-of-p1", "b", two), Holder("uid-of-p2", "a", one))


def test_a_claim_counts_for_its_pods_until_they_are_known() -> None:
    one = prepared("c1", "p1", "p2")
    assert holders([one], []) == (Holder("uid-of-p1", "", one), Holder("uid-of-p2", "", one))
    ended = replace(pod("p1", a=("c1",)), phase="Succeeded")
    assert holders([one], [ended]) == (Holder("uid-of-p1", "", one), Holder("uid-of-p2", "", one))


def test_a_claim_of_the_same_name_elsewhere_and_one_that_holds_nothing_do_not_count() -> None:
    beside = replace(prepared("c1", "p1"), device_ids=frozenset())
    assert holders([beside, prepared("c1", namespace="other")], [pod("p1", a=("c1",))]) == ()


def test_two_claims_of_one_container_are_refused() -> None:
    asked, other = claim(name="c2"), prepared("c1")
    found = two_claims(pod("p1", a=("c1", "c2")), asked, [other])
    assert found is not None
    assert found.why is Why.TWO_CLAIMS
    assert "container 'a' uses claim c1 and claim c2" in found.sentence
    assert two_claims(pod("p1", a=("c1",), b=("c2",)), asked, [other]) is None
    assert two_claims(pod("p1", a=("c1", "c2")), asked, [prepared("c2")]) is None
    assert two_claims(pod("p1", a=("c1", "c2")), asked, [prepared("c1", namespace="other")]) is None
