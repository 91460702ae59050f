"""What kube-scheduler adds up of a pod, as it stands in k8s.io/component-helpers/resource (Kubernetes 1.36)."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.kubernetes.objects.quantity import RequestSums
from tests.builders import GPU_MEM, container, pod

READER = PodReader([GPU_MEM], lambda _key: False, sums=True)
GIB = 1 << 30


def requests(*containers: Mapping[str, Any], **spec: Any) -> Mapping[str, int] | None:
    """Return what a pod with a container with GPU memory and with these others requests."""
    made = pod("a", container("gpu", mem=1), uid="u")
    made["spec"] = {**made["spec"], **spec}
    made["spec"]["containers"] += [{"name": "c", "resources": {"requests": each}} for each in containers]
    return READER.read(json.dumps(made).encode())[0].requests


def init(*, sidecar: bool = False, **amounts: str) -> Mapping[str, Any]:
    return {
        "name": "i",
        "resources": {"requests": amounts},
        **({"restartPolicy": "Always"} if sidecar else {}),
    }


def test_containers_are_added_up() -> None:
    """CPU in thousandths, and what is less than a unit is a whole one."""
    assert requests({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1.5", "memory": "1", "x.com/nic": "2"}) == {
        "cpu": 2000,
        "memory": GIB + 1,
        "x.com/nic": 2,
    }
    assert requests({"cpu": "1n", "memory": "1500m"}) == {"cpu": 1, "memory": 2}


def test_of_our_own_resources_nothing_is_added_up() -> None:
    assert requests() == {}


def test_an_init_container_counts_if_it_asks_for_more_than_the_others() -> None:
    assert requests({"cpu": "1"}, initContainers=[init(cpu="3"), init(cpu="2", memory="1")]) == {
        "cpu": 3000,
        "memory": 1,
    }


def test_a_sidecar_goes_on_beside_what_comes_after_it() -> None:
    """1 and 2 for the init container, or 1 and 1.5 for the other one; the init container before it is alone."""
    inits = [init(cpu="2.9"), init(cpu="1", sidecar=True), init(cpu="2")]
    assert requests({"cpu": "1.5"}, initContainers=inits) == {"cpu": 3000}
    assert requests({"cpu": "2.5"}, initContainers=inits) == {"cpu": 3500}


def test_what_a_pod_requests_as_a_whole_counts_in_place_of_its_containers_and_overhead_besides() -> None:
    found = requests(
        {"cpu": "1", "memory": "1Gi"}, resources={"requests": {"cpu": "4"}}, overhead={"cpu": "250m", "memory": "1"}
    )
    assert found == {"cpu": 4250, "memory": GIB + 1}


def test_a_limit_alone_is_a_request() -> None:
    made = pod("a", container(mem=1, limits={"cpu": "2"}), uid="u")
    assert READER.read(json.dumps(made).encode())[0].requests == {"cpu": 2000}


@pytest.mark.parametrize("amount", ["lots", "", "-1", "1e99", None, [1]])
def test_an_amount_that_is_none_makes_the_sum_unknown(amount: Any) -> None:
    assert requests({"cpu": amount}) is None


def test_what_becomes_free_without_a_pod_that_keeps_others_away_is_unknown() -> None:
    required = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "node"}]}}
    preferred: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}
    assert requests({"cpu": "1"}, affinity=required) is None
    assert requests({"cpu": "1"}, affinity=preferred) == {"cpu": 1000}
    assert requests({"cpu": "1"}, affinity={"nodeAffinity": {}}) == {"cpu": 1000}


def test_of_very_many_containers_nothing_is_added_up() -> None:
    assert requests(*[{"cpu": "1"}] * 63) == {"cpu": 63_000}
    assert requests(*[{"cpu": "1"}] * 64) is None


def test_of_very_many_resources_nothing_is_added_up() -> None:
    """The container with GPU memory has one amount; so have each of these names. Of each pod 16 sums are kept."""
    sums, names = RequestSums(), {f"x.com/{n}": "1" for n in range(128)}
    assert sums.of((), [names], {}, {}) == dict.fromkeys(names, 1)
    assert sums.of((), [{**names, "x.com/128": "1"}], {}, {}) is None
    few = dict(list(names.items())[:16])
    assert requests(few) == dict.fromkeys(few, 1)
    assert requests({**few, "x.com/16": "1"}) is None
    assert requests(names) is None
    assert requests(overhead=names) is None


def test_a_pod_without_gpus_is_not_added_up() -> None:
    made = pod("a", container(limits={"cpu": "2"}), uid="u")
    assert READER.read(json.dumps(made).encode())[0].requests == {}


def test_equal_sums_are_one_object() -> None:
    """A cluster has 90,000 pods that ask for one of a few things."""
    assert requests({"cpu": "1", "memory": "1Gi"}) is requests({"memory": "1024Mi"}, {"cpu": "1000m"})


def test_what_is_remembered_has_an_end() -> None:
    """Somebody who makes a pod of every size is not remembered for ever."""
    sums = RequestSums()
    for n in range(2050):
        assert sums.of((), [{"memory": str(n)}], {}, {}) == ({"memory": n} if n else {})
    counts = re.fullmatch(r"<RequestSums: (\d+) sums, written in (\d+) ways>", repr(sums))
    assert counts is not None
    assert all(0 < int(count) <= 1000 for count in counts.groups())
