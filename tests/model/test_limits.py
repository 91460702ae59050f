"""The order of the means of limiting memory."""

import itertools

from gpu_device_plugin.model.limits import CHOOSABLE, Enforcement


def test_hardware_is_stronger_than_the_driver_and_that_than_mps_and_that_than_a_library_and_that_than_words() -> None:
    """The kernel's dmem stands after the driver, whose limits a container has before its first process."""
    firm = (Enforcement.PARTITION, Enforcement.DRIVER, Enforcement.DMEM)
    ladder = (*firm, Enforcement.MPS, Enforcement.CUSTOM, Enforcement.ADVISORY)
    assert set(ladder) == set(Enforcement)
    assert ladder[1:] == CHOOSABLE
    assert all(one.strength > other.strength for one, other in itertools.pairwise(ladder))
