"""Nodes and pods in words."""

import pytest

from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.hardware.fake.gpu_models import MODELS
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.programs.simulate.entries import (
    EntryError,
    known_model,
    nodes_in,
    pods_in,
)
from gpu_device_plugin.programs.simulate.model import Workload, class_of, order


def kinds_in(text: str) -> list[PodKind]:
    return [kind for _, kind in pods_in(text)]


def test_a_node_in_words_has_its_gpus_and_quantities_of_kubernetes() -> None:
    first, second, third = nodes_in("2x gpus=2 mem=24 model=A10 cpu=64 memory=256Gi; mem=80")
    assert first.shape.sizes == second.shape.sizes == (24, 24)
    assert (first.shape.models, first.shape.cpu_milli, first.shape.memory_mib) == (("A10", "A10"), 64_000, 262_144)
    assert first.left.frees == (24, 24)
    assert first.name != second.name
    assert third.shape.sizes == (80,)


def test_pods_in_words_may_be_parts_of_a_gpu_whole_gpus_or_neither() -> None:
    assert kinds_in("2x mem=8,cpu=500m,memory=1Gi; count=4 model=A10|T4; mem=16 split=2; cpu=2") == [
        PodKind(8, 1, 500, 1024),
        PodKind(8, 1, 500, 1024),
        PodKind(0, 4, selector=GpuSelector(("A10", "T4"))),
        PodKind(8, 2),
        PodKind(cpu_milli=2000, gpus=0),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("40x mme=8", "did you mean mem?"),
        ("40x mem=eight", "mem is 'eight'; write a whole number"),
        ("40x mem", "'mem' is not like mem=8"),
        ("mem=8 mem=9", "mem stands there twice"),
        ("mem=8 count=1", "the same hardware"),
        ("mem=7 split=2", "cannot be split over 2"),
        ("mem=8 cpu=lots", "quantities of Kubernetes"),
        ("999999999x mem=8", "more than 1,000,000"),
        ("mem=99999999", "at most 1,048,576"),
        ("mem=1 cpu=9E", "no machine has so much CPU"),
        ("gpu=1", "there is no 'gpu' here; write count for whole GPUs, or mem for shares of one"),
        ("gpus=2", "write count for whole GPUs, or mem for shares of one"),
        ("gpu-mem=8", "there is no 'gpu-mem' here; write mem"),
        ("replicas=3 mem=8", "write a number in front, as in 40x"),
        (
            "mem=8 memory=64",
            "memory=64 is less than a MiB, as a number without a unit counts bytes; did you mean 64Gi?",
        ),
        ("mem=8 memory=65536", "did you mean 65536Mi?"),
        ("mem=8 memory=100k", "write 16Gi, for example"),
        (
            "mem=80GiB",
            "it counts shares of GPU memory, 1 GiB each unless configured otherwise; write it without a unit",
        ),
        ("mem=80Gi", "as in mem=80"),
        ("mem=81920MiB", "as in mem=80"),
        ("mem=1T", "as in mem=1024"),
        ("4 mem=8", "'4' is no word; did you mean 4x?"),
        ("8x H100", "'H100' is not like mem=8"),
    ],
)
def test_an_entry_that_is_mistyped_is_explained(text: str, said: str) -> None:
    with pytest.raises(EntryError) as error:
        pods_in(text)
    assert said in str(error.value)


def test_no_memory_at_all_is_no_mistake() -> None:
    assert kinds_in("mem=8 memory=0; mem=8 memory=1Mi") == [PodKind(8, 1), PodKind(8, 1, 0, 1)]


@pytest.mark.parametrize(
    ("text", "nodes", "gpus", "shares"),
    [
        ("4x8xH100", 4, 8, 79),
        ("4x 8x H100 cpu=96", 4, 8, 79),
        ("8xA100-80GB", 1, 8, 79),
        ("A100-40GB", 1, 1, 39),
        ("A100 SXM4 40GB", 1, 1, 39),
        ("V100-32GB", 1, 1, 31),
        ("RTX 4090", 1, 1, 23),
        ("2x 4x NVIDIA GeForce RTX 4090, cpu=64", 2, 4, 23),
        ("RTX A6000", 1, 1, 47),
        ("Tesla T4", 1, 1, 14),
        ("NVIDIA H100 80GB HBM3", 1, 1, 79),
        ("NVIDIA GH200 480GB", 1, 1, 95),
        ("H200 141GB", 1, 1, 139),
        ("L40S 48GB", 1, 1, 44),
        ("4x H100", 1, 4, 79),
        ("4xH100 cpu=64", 1, 4, 79),
        ("10x 4x H100 cpu=64", 10, 4, 79),
        ("10x gpus=4 h100", 10, 4, 79),
        ("H100", 1, 1, 79),
        ("2x model=T4 gpus=3", 2, 3, 14),
        ("4x H100 mem=40", 1, 4, 40),
        ("2x gpus=4 mem=24", 2, 4, 24),
    ],
)
def test_gpus_may_be_named_by_their_model(text: str, nodes: int, gpus: int, shares: int) -> None:
    """An agent makes 79 shares of the 81,559 MiB of an H100, and 14 of the 15,360 of a T4."""
    found = nodes_in(text)
    assert (len(found), found[0].shape.sizes) == (nodes, (shares,) * gpus)


@pytest.mark.parametrize("short", sorted(MODELS.keys() - {"B300", "RTXPRO6000"}))
def test_a_model_is_known_by_the_name_that_its_driver_gives_it(short: str) -> None:
    """Of two the name says more than its model, its memory and how it is built in."""
    product, *_ = MODELS[short]
    assert known_model(product) == known_model(short)
    assert nodes_in(f"2x4x{product}")[0].shape.models == (product,) * 4


def test_a_model_that_is_known_has_its_whole_name_so_that_pods_find_it() -> None:
    (named,) = nodes_in("H100")
    assert named.shape.models == ("NVIDIA H100 80GB HBM3",)
    assert named.shape.hosts(kinds_in("mem=79 model=h100-80gb")[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4x H10", "'H10' is no GPU that is known here; did you mean H100?"),
        ("4x hat", "'hat' is no GPU that is known here; write gpus=8 mem=80, or one of P4, "),
        ("4x 4x", "'4x' is no GPU that is known here"),
        ("2x RX7900XT", "'RX7900XT' is no GPU that is known here"),
        (
            "10x H100 gpus=4",
            "10x H100 are the GPUs of one node, and gpus= says how many too; for 10 nodes begin with 10x",
        ),
        ("4x H100 gpus=4", "for 4 nodes begin with 4x gpus="),
        ("2x 4x H100 gpus=4", "gpus stands there twice"),
        ("4x gpu=8 mem=80", "did you mean gpus?"),
        ("4 gpus=8 mem=80", "did you mean 4x?"),
        ("gpus=8 mem=80GiB", "counts shares of GPU memory"),
        ("mem=80 memory=64", "did you mean 64Gi?"),
        ("mem=80 mig=10gb", "mig is '10gb'; write PROFILE*NUMBER, as in mig=1g.10gb*4/3g.40gb"),
        ("mem=80 mig=1g.10gb*0", "mig is '1g.10gb*0'"),
        ("mem=80 mig=1g.10gb*", "mig is '1g.10gb*'"),
        ("mem=80 mig=1g.10gb/", "mig is ''"),
        ("mem=80 mig=1c.2g.20gb", "mig is '1c.2g.20gb'"),
        ("mem=80 mig=1g.5gb*4/4g.40gb", "mig has 8 slices, and a GPU has 7; give fewer instances"),
        ("mem=24 mig=1g.10gb*7", "the instances of mig have more memory than the GPU's mem of 24"),
        ("mem=80 divided=1", "give mig too"),
        ("gpus=2 mem=80 mig=1g.10gb divided=3", "divided is '3'; write a whole number of at most 2"),
    ],
)
def test_a_node_that_is_mistyped_is_explained(text: str, said: str) -> None:
    with pytest.raises(EntryError) as error:
        nodes_in(text)
    assert said in str(error.value)


def test_pods_are_called_by_their_words() -> None:
    workload = Workload.of([*pods_in("mem=4;cpu=0"), ("web", PodKind(4, 1))])
    assert (workload.names, workload.pods) == (("mem=4 and 1 more", "cpu=0"), (0, 1, 0))


@pytest.mark.parametrize(
    ("text", "sizes", "cards"),
    [
        ("mem=80 mig=1g.10gb*7", (10,) * 7, (0,) * 7),
        ("gpus=2 mem=80 mig=3g.40gb*2", (40,) * 4, (0, 0, 2, 2)),
        ("gpus=2 mem=80 mig=1g.10gb*4/3g.40gb divided=1", (80, 10, 10, 10, 10, 40), (None, 1, 1, 1, 1, 1)),
        ("gpus=2 mem=80 mig=1g.10gb divided=0", (80, 80), (None, None)),
        ("mem=24 mig=1g.6gb+me/1g.6gb", (6, 6), (0, 0)),
        ("mem=140 mig=7g.141gb", (141,), (0,)),
    ],
)
def test_gpus_may_be_divided_into_mig_instances(
    text: str, sizes: tuple[int, ...], cards: tuple[int | None, ...]
) -> None:
    (node,) = nodes_in(text)
    assert (node.shape.sizes, node.shape.cards, node.left.frees) == (sizes, cards, sizes)


def test_instances_are_of_the_model_of_their_gpu_and_of_their_profile() -> None:
    (named,) = nodes_in("gpus=2 mem=80 model=H100 mig=3g.40gb divided=1")
    assert named.shape.models == ("H100", "H100 MIG 3g.40gb")
    (unnamed,) = nodes_in("mem=80 mig=3g.40gb")
    assert unnamed.shape.models == ("MIG 3g.40gb",)


def test_classes_are_sizes_in_tenths_of_a_gpu_and_sort_by_them() -> None:
    kinds = (PodKind(0, 8), PodKind(3, 1), PodKind(0, 1), PodKind(), PodKind(5, 2))
    names = [class_of(kind, 10.0) for kind in kinds]
    assert names == ["8 GPUs", "0.3 GPU", "1 GPU", "no GPU", "2 x 0.5 GPU"]
    assert sorted(names, key=order) == ["no GPU", "0.3 GPU", "1 GPU", "2 x 0.5 GPU", "8 GPUs"]
