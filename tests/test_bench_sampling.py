"""`python -m bench.sampling` measures what it says: clusters that are nearly full, and rates of bindings."""

import argparse
import json
import os
from pathlib import Path

import pytest

from bench import sampling, synthetic
from bench.kubeapi import Bound
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.scheduler.rules.candidate import by_division, candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import usage_of


@pytest.mark.parametrize(("gpus", "fits"), [(synthetic.GPUS, False), (synthetic.GPUS - 1, True)])
def test_the_last_pods_fit_where_one_gpu_was_left_and_the_sum_suffices_everywhere(gpus: int, *, fits: bool) -> None:
    filler = sampling.pod_json("filler", *sampling.filler(gpus))
    filler["metadata"]["uid"], filler["spec"]["nodeName"] = "u", "n"
    reader = PodReader([synthetic.MEMORY, synthetic.COUNT], lambda _key: True)
    usage = usage_of(reader.read(json.dumps(filler).encode())[0], synthetic.RESOURCES)
    assert not usage.unplaced
    node = candidate("n", by_division(synthetic.GPUS * synthetic.SHARES, synthetic.GPUS), [usage])
    pod = sampling.pod_json("last", sampling.WANTED, {})
    pod["metadata"]["uid"] = "u-last"
    wanted = ask(reader.read(json.dumps(pod).encode())[0], synthetic.RESOURCES)
    assert isinstance(wanted, GpuRequest)
    assert sum(room.free for room in node.rooms) >= sampling.WANTED
    found = unfit(wanted, node, CachingPacker([part.demand for part in wanted.parts], Effort(1000)))
    assert found is None if fits else isinstance(found, FilterFailure)


def test_the_rate_is_that_from_the_first_binding_to_the_last() -> None:
    assert Bound({}).rate == 0
    assert Bound({"a": 10.0, "b": 10.5, "c": 12.0}).rate == 1.0


def test_the_last_room_is_found_by_a_real_kube_scheduler(tmp_path: Path) -> None:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-scheduler, kube-apiserver and etcd to have pods scheduled")
    options = argparse.Namespace(nodes=[150], percentages=[2], pods=30)
    (row,) = sampling.nearly_full(tmp_path, options)
    assert row.note.startswith("5 bound of 5, ")
    assert row.note.endswith(" misses, 0 evicted")
    rate, _ = sampling.throughput(tmp_path, options)
    assert rate.note.startswith("30 bound of 30; ms of CPU for each: scheduler ")
