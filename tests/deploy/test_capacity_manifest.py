"""What deploy/optional/capacity.yaml lets the extender's account do, asked of a real API server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.core.capacity.stand_ins import PRIORITY_CLASS, Wanted, named, pod_of
from gpu_device_plugin.core.contract.keys import STARTUP_TAINT
from gpu_device_plugin.core.contract.nodelabels import kept
from gpu_device_plugin.testing.builders import container, node, pod
from tests.deploy.manifests import DEPLOY, documents
from tests.deploy.policies_world import EXTENDER, MERGE, PERSON, Request, create, denial

if TYPE_CHECKING:
    from tests.deploy.manifests import Json
    from tests.deploy.policies_world import PolicyWorld

pytestmark = pytest.mark.timeout(600)

POLICY = "gpushare-capacity"
TAINTS = [{"key": key, "effect": "NoSchedule"} for key in (STARTUP_TAINT, "dedicated", "node.kubernetes.io/not-ready")]
"""The API server adds the last one to every new node."""


def on_node(**body: Any) -> Request:
    return Request("PATCH", "/api/v1/nodes/new", body, MERGE)


def annotated(**annotations: str) -> Request:
    return on_node(metadata={"annotations": annotations})


def stand_in(**changed: Any) -> Request:
    ((name, template),) = named([Wanted({}, ("old",))]).items()
    body = pod_of(name, "default", template, [])
    return create({**body, "spec": {**body["spec"], **changed}})


ALLOWED = {
    "keep autoscalers from a node": on_node(metadata={"annotations": dict(kept({}, "no room"))}),
    "hold room": annotated(**{"gpu-device-plugin/held-room": "{}"}),
    "remove its taint": on_node(spec={"taints": TAINTS[1:]}),
    "make a stand-in": stand_in(),
}
REFUSED = {
    "another annotation": annotated(**{"gpu-device-plugin/gpus": "{}"}),
    "a label": on_node(metadata={"labels": {"gpushare": "false"}}),
    "another taint": on_node(spec={"taints": TAINTS[::2]}),
    "a cordon": on_node(spec={"unschedulable": True}),
    "a stand-in that a scheduler places": stand_in(schedulerName="default-scheduler"),
    "a pod on a node": stand_in(nodeName="new"),
    "any pod": create(pod("any", container())),
}


async def furnish(api: PolicyWorld) -> None:
    new: Json = node("new", mem=32)
    new["spec"] = {"taints": TAINTS}
    await api.make(new)
    for each in documents(DEPLOY / "optional" / "capacity.yaml"):
        if each["kind"] in {"PriorityClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}:
            await api.make(each)
    await api.until(EXTENDER, REFUSED["any pod"], partial(refused))


def refused(answer: Json) -> bool:
    return denial(answer)[0] == POLICY


async def test_the_account_does_for_the_capacity_what_it_must_and_nothing_else(api: PolicyWorld) -> None:
    await furnish(api)

    for what, request in ALLOWED.items():
        status, answer = await api.ask(EXTENDER, request)
        assert status < 300, (what, answer)
    for what, request in REFUSED.items():
        status, answer = await api.ask(EXTENDER, request)
        assert refused(answer), (what, answer)
        status, answer = await api.ask(PERSON, request)
        assert status < 300, (what, answer)


def test_stand_ins_have_the_priority_class_of_the_manifest() -> None:
    (found,) = (each for each in documents(DEPLOY / "optional" / "capacity.yaml") if each["kind"] == "PriorityClass")

    assert (found["metadata"]["name"], found["value"]) == (PRIORITY_CLASS, -10)
