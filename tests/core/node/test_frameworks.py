"""Fractions of GPU memory for frameworks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.node.extra_grant import Part
from gpu_device_plugin.core.node.frameworks import framework_envs, read_frameworks

QUARTER = Part("GPU-a", 4096, 16_896, 16_384)


@pytest.mark.parametrize(
    ("text", "known", "ignored"),
    [
        ("pytorch,jax", ("pytorch", "jax"), False),
        (" JAX ,", ("jax",), False),
        ("", (), False),
        ("jax,tensorflow", ("jax",), True),
        ("jax," + " " * 300, ("jax",), True),
        ("x" * 1_000_000, (), True),
    ],
)
def test_a_pod_names_its_frameworks(text: str, known: tuple[str, ...], *, ignored: bool) -> None:
    found, sentence = read_frameworks(text)
    assert (found, bool(sentence)) == (known, ignored)
    told = "the annotation gpu-device-plugin/frameworks names more than is known, which is ignored"
    assert sentence in {"", f"{told}; known are pytorch, jax"}


@pytest.mark.parametrize(
    ("rung", "fraction"),
    [(Rung.ADVISORY, "0.2500"), (Rung.MPS, "0.2500"), (Rung.DRIVER, None), (Rung.CUSTOM, None)],
)
def test_a_fraction_is_of_the_memory_that_the_framework_sees(rung: Rung, fraction: str | None) -> None:
    """Under the driver's limits it sees its part as all of it. The driver's own part is not seen by anyone."""
    assert framework_envs(["jax", "pytorch"], rung, [QUARTER]) == (
        {}
        if fraction is None
        else {
            "XLA_CLIENT_MEM_FRACTION": fraction,
            "PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{fraction}",
        }
    )
    assert framework_envs([], rung, [QUARTER]) == {}


@pytest.mark.parametrize(
    ("mib", "visible", "fraction"),
    [(1, 3, "0.3333"), (2, 3, "0.6666"), (3, 3, "1.0000"), (4, 3, "1.0000"), (1, 143_156, "0.0001"), (1, 0, "1.0000")],
)
def test_a_fraction_is_rounded_down_and_never_nothing(mib: int, visible: int, fraction: str) -> None:
    part = replace(QUARTER, mib=mib, visible_mib=visible)
    assert framework_envs(["jax"], Rung.ADVISORY, [part])["XLA_CLIENT_MEM_FRACTION"] == fraction


def test_of_several_gpus_the_smallest_fraction_counts() -> None:
    parts = [QUARTER, replace(QUARTER, mib=1024), QUARTER]
    assert framework_envs(["jax"], Rung.MPS, parts) == {"XLA_CLIENT_MEM_FRACTION": "0.0625"}
