"""The annotation by which a pod names its frameworks."""

import pytest

from gpu_device_plugin.model.contract.variables import read_frameworks


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
    assert not sentence or sentence.endswith("which is ignored; known are pytorch, jax")
