"""The annotation of a pod with the MIG instances of its containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract import instances
from gpu_device_plugin.core.contract.keys import INSTANCES, LONGEST, READ_BY_AGENT, TOO_LONG, MalformedAnnotationError

ONE = "MIG-5b696ac1-c323-589e-a082-e6045e980bf4"
OLD = "MIG-GPU-c6d4f1ef-42e4-6de3-91c7-45d71c87eb3f/7/0"


def test_it_is_written_by_container_and_compactly() -> None:
    assert instances.write({"b": {OLD}, "a": {OLD, ONE}, "none": set()}) == (f'{{"a":["{ONE}","{OLD}"],"b":["{OLD}"]}}')


UUIDS = st.from_regex(r"MIG-[0-9a-f/-]{1,92}", fullmatch=True)


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.sets(UUIDS, min_size=1, max_size=4), max_size=8))
def test_what_is_written_is_read(held: dict[str, set[str]]) -> None:
    assert instances.read(instances.write(held)) == {name: tuple(sorted(uuids)) for name, uuids in held.items()}


def test_a_text_that_no_reader_accepts_is_not_written() -> None:
    assert instances.write({f"init-{number}": {f"MIG-{of:040}" for of in range(112)} for number in range(64)}) == "{}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 60_000, "is not JSON"),
        (" " * (LONGEST[INSTANCES] + 1), f"is longer than {LONGEST[INSTANCES]} characters"),
        (TOO_LONG, f"is longer than {LONGEST[INSTANCES]} characters"),
        ("[]", "is not of the form"),
        ('{"main": "MIG-1"}', "is not of the form"),
        ('{"main": [1]}', "is not of the form"),
        ('{"main": ["GPU-1"]}', "is not of the form"),
        ('{"main": ["MIG-"]}', "is not of the form"),
        ('{"main": ["MIG-\\u001b[31m"]}', "is not of the form"),
    ],
)
def test_another_text_is_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=f"^{INSTANCES} {why}"):
        instances.read(text)


def test_the_agent_and_the_tools_of_people_keep_it() -> None:
    assert INSTANCES in READ_BY_AGENT
