"""Tests for reading nodes with GPUs of AMD's and Intel's before an agent of ours runs; see test_clusterlist.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.builders import container, node, pod
from tests.programs.simulate.test_clusterlist import coming, listed, of_nvidia, two_gpus

Json = Mapping[str, Any]


def of_amd(name: str, offered: int = 8, labels: Json | None = None, resource: str = "amd.com/gpu", **more: Any) -> Json:
    """A node with AMD's device plugin, labelled as by AMD's labeller."""
    found = node(name, labels=labels or {}, **more)
    found["metadata"]["uid"] = name
    for amounts in (found["status"]["capacity"], found["status"]["allocatable"]):
        amounts.update({resource: str(offered)} if offered else {})
    return found


def alike(number: int, **values: str) -> dict[str, str]:
    """Return the labels of a node whose GPUs are all alike."""
    found: dict[str, str] = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        found |= {f"amd.com/gpu.{name}": value, f"beta.amd.com/gpu.{name}": value}
        found[f"beta.amd.com/gpu.{name}.{value}"] = f"{number}"
    return found


def wanting(name: str, resource: str, number: int = 1, **more: Any) -> Json:
    return pod(name, container(limits={resource: f"{number}"}), uid=name, **more)


MI210 = alike(8, product_name="AMD_Instinct_MI210", vram="64G", cu_count="104", device_id="740f")


def test_labels_of_amds_labeller_say_which_gpus_a_node_has() -> None:
    """An MI210 has 65,520 MiB, for which the label has 64G: an agent makes 63 shares of 1 GiB."""
    runs, waits = wanting("runs", "amd.com/gpu", 2, node="a", phase="Running"), wanting("waits", "amd.com/gpu", 4)
    found = listed(of_amd("a", labels=MI210), runs, waits)
    (there,) = found.nodes
    assert (there.shape.sizes, set(there.shape.models)) == ((63,) * 8, {"AMD Instinct MI210"})
    assert there.left.frees == (0, 0, *[63] * 6)
    assert [(name, kind.gpus, kind.shares) for name, kind in coming(found)] == [("default/waits", 4, 0)]
    assert found.notes == (
        (
            "no node runs our agent, so GPUs are read from the labels of AMD's node labeller, in shares of 1 GiB, and "
            "amd.com/gpu of a pod counts as whole GPUs"
        ),
    )


def test_a_labeller_of_old_names_the_size_in_the_key_alone() -> None:
    labels = {"beta.amd.com/gpu.vram.16G": "1", "beta.amd.com/gpu.cu-count.64": "1"}
    found = listed(of_amd("a", 1, labels))
    assert [(each.shape.sizes, each.shape.models) for each in found.nodes] == [((15,), ("",))]


def test_gpus_of_two_sizes_are_counted_by_the_labels_and_a_carve_out_is_no_gpu() -> None:
    """The driver's part of an APU has 512 MiB, which the labeller rounds up to a GiB."""
    labels = {"amd.com/gpu.vram.1G": "1", "amd.com/gpu.vram.24G": "1", "amd.com/gpu.vram.16G": "2"}
    assert [each.shape.sizes for each in listed(of_amd("a", 4, labels)).nodes] == [(23, 15, 15)]
    (note,) = [each for each in listed(of_amd("a", 3, labels)).notes if "left out" in each]
    assert note == "node a is left out: its labels count 4 GPUs, and it offers 3; name it in words"


def test_partitions_are_gpus_by_whatever_name_they_are_offered() -> None:
    cpx = alike(64, product_name="AMD_Instinct_MI300X_OAM", vram="24G") | {
        "amd.com/gpu.compute-memory-partition": "cpx_nps4"
    }
    waits = wanting("waits", "amd.com/cpx_nps4", 3)
    named = listed(of_amd("a", 64, cpx, "amd.com/cpx_nps4"), waits)
    assert [each.shape.sizes for each in named.nodes] == [(23,) * 64]
    assert [kind.gpus for _, kind in coming(named)] == [3]
    alone = listed(of_amd("b", labels=MI210), waits)
    assert any("amd.com/cpx_nps4: 3, which is not read; did you mean amd.com/gpu?" in note for note in alone.notes)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            of_amd("a", 8, {}),
            "no label amd.com/gpu.vram says how much memory its GPUs have; deploy AMD's node labeller",
        ),
        (of_amd("a", 8, {"amd.com/gpu.vram": "lots"}), "no label amd.com/gpu.vram says"),
        (of_amd("a", 999, alike(999, vram="64G")), "its labels count 999 GPUs, and it offers 999; name it in words"),
        (of_amd("a", 80, MI210), "its labels count 8 GPUs, and it offers 80; name it in words"),  # HAMi's slices
        (of_amd("a", 1, alike(1, vram="1G")), "its GPUs have less memory than a share of 1 GiB"),
        (
            of_amd("a", 0, MI210),
            "its labels name GPUs, and it has no amd.com/gpu; is AMD's device plugin running there?",
        ),
        (
            of_amd("a", 0, {"feature.node.kubernetes.io/amd-gpu": "true"}),
            "its labels name GPUs, and it has no amd.com/gpu",
        ),
        (of_amd("a", 0, {"feature.node.kubernetes.io/pci-1200_1002.present": "true"}), "its labels name GPUs"),
        (of_amd("a", 0, {"feature.node.kubernetes.io/amd-gpu": "false"}), "it has no GPUs"),
        (
            of_amd("a", 4, MI210, "amd.com/mine"),
            "its GPUs are offered as amd.com/mine, and amd.com/gpu and amd.com/spx_nps1 are read; name it in words",
        ),
        (
            of_amd("a", 1, {}, "gpu.intel.com/xe"),
            "its GPUs are offered as gpu.intel.com/xe, and no label that is read says their memory; name it in words",
        ),
        (of_amd("a", 0, {"intel.feature.node.kubernetes.io/gpu": "true"}), "its GPUs are Intel's, and no label"),
    ],
)
def test_a_node_of_which_too_little_is_known_is_left_out_and_named(made: Json, said: str) -> None:
    found = listed(made)
    assert found.nodes == ()
    assert found.notes[0].startswith(f"node a is left out: {said}")


def test_both_vendors_are_told_of_and_once_an_agent_runs_neither_is_read() -> None:
    t4 = of_nvidia("n", product="Tesla-T4", memory="15360", count="2")
    notes = listed(of_amd("a", labels=MI210), t4).notes
    assert [note.partition(", in shares")[0].rpartition(" of ")[2] for note in notes if "labels of" in note] == [
        "AMD's node labeller",
        "GPU feature discovery",
    ]
    assert listed(two_gpus("ours"), of_amd("a", labels=MI210)).notes == (
        "node a is left out: its GPUs are offered as amd.com/gpu, by no agent of ours",
    )
