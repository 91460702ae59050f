"""What of a pod is too much to be kept of each of thousands."""

import pytest

from gpu_device_plugin.model.pods import Container, ContainerKind, Pod


@pytest.mark.parametrize(
    ("containers", "annotations", "bulky", "overwritten"),
    [
        (0, {}, False, False),
        (16, {"a": "x" * 900}, False, False),
        (17, {}, True, False),
        (1, {"a": "x" * 600, "b": "x" * 600}, True, True),
        (1, {"a": "é" * 300}, True, True),
    ],
)
def test_a_pod_with_many_containers_or_long_annotations_is_bulky(
    containers: int, annotations: dict[str, str], *, bulky: bool, overwritten: bool
) -> None:
    some = tuple(Container(f"c{n}", ContainerKind.APP, n) for n in range(containers))
    pod = Pod("u", "default", "p", containers=some, annotations=annotations)
    assert (pod.bulky, pod.overwritten) == (bulky, overwritten)
