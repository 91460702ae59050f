"""The annotation with the MIG instances of the containers of a pod."""

import pytest

from gpu_device_plugin.model.contract.keys import INSTANCES, LONGEST, READ_BY_AGENT, TOO_LONG, MalformedAnnotationError
from gpu_device_plugin.model.contract.promises import read_instances, write_instances

OLD = "MIG-GPU-c6d4f1ef-42e4-6de3-91c7-45d71c87eb3f/7/0"


def test_instances_are_written_by_container_and_read() -> None:
    text = f'{{"a":["{ONE}","{OLD}"],"b":["{OLD}"]}}'
    assert write_instances({"b": {OLD}, "a": {OLD, ONE}, "none": set()}) == text
    assert read_instances(text) == {"a": (ONE, OLD), "b": (OLD,)}
    assert INSTANCES in READ_BY_AGENT


def test_a_list_of_instances_that_no_reader_accepts_is_not_written() -> None:
    assert write_instances({f"init-{number}": {f"MIG-{of:040}" for of in range(112)} for number in range(64)}) == "{}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 60_000, "is not JSON"),
        (" " * (LONGEST[INSTANCES] + 1), f"is longer than {LONGEST[INSTANCES]} characters"),
        (TOO_LONG, f"is longer than {LONGEST[INSTANCES]} characters"),
        ("[]", "is not of the form"),
        ('{"main": "MIG-1"}', "is not of the form"),
        ('{"main": [1]}', "is not of the form"),
        ('{"main": ["MIG-"]}', "is not of the form"),
        ('{"main": ["MIG-\\u001b[31m"]}', "is not of the form"),
    ],
)
def test_instances_of_another_form_are_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=f"^{INSTANCES} {why}"):
        read_instances(text)


ONE = "MIG-5b696ac1-c323-589e-a082-e6045e980bf4"
