"""What the capacity controller keeps of pods."""

import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache
from gpu_device_plugin.features.capacity.rules.movable import Evictability
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.cluster_follower import ClusterFollower
from tests import builders
from tests.names import COUNT, MEM
from tests.scheduler.contexts import BINPACK, context


def test_to_read_a_pod_changes_nothing() -> None:
    """A list shows what the watch has overtaken meanwhile, and may fail before its last page."""
    parts = context(wall=lambda: 0.0, settings=lambda: replace(BINPACK, grow="auto"))
    there = CapacityCache(parts)
    parts.features.add(there)
    follower = ClusterFollower(parts)
    reader = PodReader((MEM, COUNT), lambda _key: True)

    def read(*conditions: Mapping[str, str], selector: Mapping[str, str] | None = None) -> Pod:
        body = builders.pod("p", builders.container(mem=4))
        body["metadata"]["uid"] = "uid-p"
        body["spec"]["nodeSelector"] = dict(selector or {})
        body["status"] = {"phase": "Pending", "conditions": list(conditions)}
        raw = msgspec.Raw(json.dumps(body).encode())
        return there.read_pod(reader.read(raw)[0], raw)

    at = "1969-12-31T23:59:00Z"
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": at}
    follower.pods.put(read(refused, selector={"zone": "a"}))
    known = there.facts("uid-p")
    assert (there.unschedulable, known.terms.selector) == ({"uid-p": -60.0}, {"zone": "a"})
    older = read()
    assert (there.unschedulable, there.facts("uid-p")) == ({"uid-p": -60.0}, known)
    follower.pods.put(older)
    assert (there.unschedulable, there.facts("uid-p")) == ({}, Evictability())
