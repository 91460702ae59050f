"""Whatever the process that calls the driver writes is read, or refused by an error that is declared."""

import io
import json
from contextlib import suppress
from dataclasses import fields
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.hardware.child import serve
from gpu_device_plugin.hardware.driver import ADVICE, MOST_OF_CONDITION
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.messages import (
    MOST_BYTES,
    Answer,
    CgroupLimit,
    Failure,
    Listing,
    MalformedError,
    Message,
    MessageStream,
    read,
)
from gpu_device_plugin.model.gpus import Closeness, Gpu, Link, MigInstance
from gpu_device_plugin.model.telemetry import SLOWING, GpuProcess, GpuReading, GpuTelemetry, Throttle
from gpu_device_plugin.node.rules.gpu_health import Probe, Xid

GPU = {"uuid": "GPU-a", "index": 0, "product": "Tesla T4", "total_mib": 15360}
PARENT = {**GPU, "uuid": "GPU-m", "mig": True}
PLACE = {"parent": "GPU-m", "number": 0, "profile": "1g.10gb", "gi": 7, "ci": 0, "alone": True, "caps": [66, 67]}
INSTANCE = {**GPU, "uuid": "MIG-a", "instance": PLACE}
LISTING = {"gpus": [GPU], "links": [], "driver_version": None, "cgroup": 2, "left_out": 0, "troubles": []}
GOOD: tuple[dict[str, Any], ...] = (
    {"answer": {"inventory": LISTING, "probes": [{"uuid": "GPU-a", "used_mib": 3}]}},
    {"answer": {"probes": []}},
    {"answer": {"inventory": {**LISTING, "gpus": [PARENT, INSTANCE]}, "probes": [{"uuid": "GPU-m", "instances": []}]}},
    {"events": [{"uuid": "GPU-m", "code": 43, "gi": 7, "ci": 0}, {"uuid": "GPU-m", "mig_changed": True}]},
    {"events": [{"uuid": "GPU-a", "code": 79}, {"uuid": "GPU-a", "error": "gone", "lost": True}]},
    {"error": {"kind": "hung", "what": "nothing answers"}},
    {"use": [{"uuid": "GPU-a", "processes": [{"pid": 7, "used_mib": 5, "sm_percent": None}], "used_mib": 9}]},
    {"limits": [{"uuid": "GPU-a", "path": "/c", "code": 0, "hard_mib": 4, "soft_mib": 0, "used_mib": 1}]},
    {"condition": [{"uuid": "GPU-a", "temperature_c": 41, "throttle": 4, "persistence": True}, {"uuid": "GPU-b"}]},
)
MALFORMED = (
    b"",
    b"no JSON",
    b"\xff",
    b"{}",
    b'{"answer": {}}',
    b'{"answer": {"probes": [{"mig": true}]}}',
    b'{"answer": {"probes": []}, "events": []}',
    b'{"answer": {"probes": [], "inventory": {"gpus": []}}}',
    b'{"events": [{"code": 79}]}',
    b'{"events": [{"uuid": "GPU-a", "code": "79"}]}',
    b'{"use": [{"uuid": "GPU-a", "processes": [7]}]}',
    b'{"use": [], "limits": []}',
    b'{"limits": [{"uuid": "GPU-a", "path": "/c"}]}',
    b'{"condition": [{"temperature_c": 40}]}',
    b'{"condition": [{"uuid": "GPU-a", "temperature_c": 40.5}]}',
    b'{"condition": [{"uuid": "GPU-a", "persistence": 1}]}',
    b'{"error": {"kind": "tired", "what": "x"}}',
    b'{"else": 5}',
    b'{"answer": ' + b"[" * 100_000,
    b'{"events": [{"uuid": "GPU-a", "z": ' + b"[" * 100_000,
    b'{"answer": {"probes": [{"uuid": "GPU-a", "processes": ' + b"9" * 5_000 + b"}]}}",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_what_is_said_is_understood() -> None:
    first, reading, divided, of_mig, events, error, use, limits, condition = (
        read(json.dumps(message).encode()) for message in GOOD
    )
    gpu = Gpu("GPU-a", 0, "Tesla T4", 15360)
    assert first.answer == Answer((Probe("GPU-a", used_mib=3),), Listing((gpu,), (), None, 2, 0, ()))
    assert reading.answer == Answer(())
    parent, place = (
        Gpu("GPU-m", 0, "Tesla T4", 15360, mig=True),
        MigInstance("GPU-m", 0, "1g.10gb", 7, 0, caps=(66, 67)),
    )
    gpus = (parent, Gpu("MIG-a", 0, "Tesla T4", 15360, instance=place))
    assert divided.answer == Answer((Probe("GPU-m", instances=()),), Listing(gpus, (), None, 2, 0, ()))
    assert of_mig.events == (Xid("GPU-m", 43, 7, 0), Probe("GPU-m", mig_changed=True))
    assert events.events == (Xid("GPU-a", 79), Probe("GPU-a", error="gone", lost=True))
    assert use.use == (GpuReading("GPU-a", (GpuProcess(7, 5),), 9),)
    assert limits.limits == (CgroupLimit("GPU-a", "/c", 0, 4, 0, 1),)
    assert condition.condition == (
        GpuTelemetry("GPU-a", temperature_c=41, throttle=Throttle.POWER_CAP, persistence=True),
        GpuTelemetry("GPU-b"),
    )
    assert error.error == Failure("hung", "nothing answers")


def test_a_child_and_its_agent_understand_each_other() -> None:
    """All that the port can say of a GPU is what the model knows of one."""
    driver = Fake("fake:2xH200:mig=1g.18gb*2")
    for record in driver.inventory()["gpus"]:
        assert record.keys() == {field.name for field in fields(Gpu)}
        assert (record["instance"] or {}).keys() <= {field.name for field in fields(MigInstance)}
    assert all(record.keys() <= {field.name for field in fields(Probe)} for record in driver.probe())
    written = io.BytesIO()
    serve(lambda: Fake("fake:2xH200:mig=1g.18gb*2"), io.BytesIO(), written)
    (message,) = MessageStream().messages(written.getvalue())
    answer = message.answer
    assert answer is not None
    assert answer.inventory is not None
    assert [gpu.label for gpu in answer.inventory.gpus] == ["0", "0:0", "0:1", "1", "1:0", "1:1"]
    (link,) = answer.inventory.links
    assert link == Link(link.a, link.b, Closeness.NVLINK, 18)
    assert answer.probes[0].instances == tuple(gpu.uuid for gpu in answer.inventory.gpus[1:3])


@pytest.mark.parametrize("line", MALFORMED, ids=lambda line: line[:50].decode(errors="replace") or "nothing")
def test_a_line_of_a_wrong_shape_is_malformed(line: bytes) -> None:
    with pytest.raises(MalformedError):
        read(line)


PROBE = {"uuid": "GPU-m", "instances": [f"MIG-{n}" for n in range(16)]}


def with_gpu(**more: Any) -> dict[str, Any]:
    return {"answer": {"inventory": {**LISTING, "gpus": [{**GPU, **more}]}, "probes": []}}


def with_use(count: int = 1, used_mib: int = 9, **process: int | None) -> dict[str, Any]:
    processes = [{"pid": 7, "used_mib": 5, **{key.removeprefix("process_"): value for key, value in process.items()}}]
    return {"use": [{"uuid": "GPU-a", "processes": processes * count, "used_mib": used_mib}]}


def with_condition(**told: int) -> dict[str, Any]:
    return {"condition": [{"uuid": "GPU-a", **told}]}


def with_limit(**more: Any) -> dict[str, Any]:
    return {"limits": [{"uuid": "GPU-a", "path": "/c", "code": 0, **more}]}


@pytest.mark.parametrize(
    ("most", "beyond"),
    [
        (with_gpu(total_mib=0), with_gpu(total_mib=-1)),
        (with_gpu(total_mib=1 << 26), with_gpu(total_mib=1 << 27)),  # its shares would not fit into memory
        (with_use(pid=(1 << 32) - 1), with_use(pid=1 << 32)),
        (with_use(pid=0), with_use(pid=None)),
        (with_use(process_used_mib=1 << 26), with_use(process_used_mib=1 << 27)),
        (with_use(process_used_mib=0), with_use(process_used_mib=-1)),
        (with_use(sm_percent=100), with_use(sm_percent=101)),
        (with_use(count=4096), with_use(count=4097)),
        (with_use(used_mib=1 << 26), with_use(used_mib=1 << 27)),
        # A limit may be more than any GPU has: NVML keeps what it is given.
        (with_limit(hard_mib=1 << 44), with_limit(hard_mib=1 << 45)),
        (with_limit(soft_mib=0), with_limit(soft_mib=-1)),
        (with_limit(used_mib=1 << 26), with_limit(used_mib=1 << 27)),
        (with_condition(throttle=SLOWING), with_condition(throttle=SLOWING + 1)),
        *(
            (with_condition(**{name: amount}), with_condition(**{name: beyond}))
            for name, most in MOST_OF_CONDITION.items()
            for amount, beyond in ((most, most + 1), (0, -1))
        ),
    ],
)
def test_an_amount_that_cannot_be_is_malformed(most: dict[str, Any], beyond: dict[str, Any]) -> None:
    read(json.dumps(most).encode())
    with pytest.raises(MalformedError):
        read(json.dumps(beyond).encode())


@pytest.mark.parametrize(
    ("gpus", "complaint"),
    [
        ([INSTANCE], "the MIG instance MIG-a is of GPU-m, no listed GPU in MIG mode"),
        ([{**PARENT, "mig": False}, INSTANCE], "the MIG instance MIG-a is of GPU-m, no listed GPU in MIG mode"),
        (
            [PARENT, INSTANCE, {**INSTANCE, "uuid": "MIG-b", "mig": True, "instance": {**PLACE, "parent": "MIG-a"}}],
            "the MIG instance MIG-b is of MIG-a, no listed GPU in MIG mode",
        ),
        (
            [PARENT, *({**INSTANCE, "uuid": f"MIG-{n}"} for n in range(17))],
            "GPU 0 has more than 16 MIG instances",
        ),
        ([PARENT, {**INSTANCE, "total_mib": -1}], "GPU 0:0 has -1 MiB"),
        ([PARENT, {**INSTANCE, "instance": {**PLACE, "gi": -1}}], "the MIG instance MIG-a is "),
        ([PARENT, {**INSTANCE, "instance": {**PLACE, "ci": 1 << 31}}], "the MIG instance MIG-a is "),
        ([PARENT, {**INSTANCE, "instance": {**PLACE, "number": -1}}], "the MIG instance MIG-a is "),
        ([PARENT, {**INSTANCE, "instance": {**PLACE, "caps": [66, -1]}}], "the MIG instance MIG-a is "),
        ([PARENT, {**INSTANCE, "instance": {**PLACE, "profile": 7}}], "Expected `str`"),
        ([PARENT, {**INSTANCE, "instance": {**PLACE, "profile": "a large one"}}], "the MIG instance MIG-a is "),
        ([PARENT, {**INSTANCE, "reserved_mib": -(1 << 40)}], "the driver keeps -1099511627776 MiB of GPU 0:0"),
    ],
)
def test_a_mig_instance_that_cannot_be_is_malformed(gpus: list[Any], complaint: str) -> None:
    inventory = {**LISTING, "gpus": gpus}
    with pytest.raises(MalformedError, match=complaint):
        read(json.dumps({"answer": {"inventory": inventory, "probes": []}}).encode())


@pytest.mark.parametrize("message", [{"answer": {"probes": [PROBE]}}, {"events": [PROBE]}])
def test_a_gpu_with_more_mig_instances_than_it_can_have_is_malformed(message: Any) -> None:
    line = json.dumps(message)
    read(line.encode())
    with pytest.raises(MalformedError, match="GPU GPU-m has more than 16 MIG instances"):
        read(line.replace('"MIG-0"', '"MIG-x", "MIG-0"').encode())


def test_a_line_without_an_end_is_malformed() -> None:
    stream = MessageStream()
    assert list(stream.messages(b"x" * MOST_BYTES)) == []
    with pytest.raises(MalformedError, match=f"a line has more than {MOST_BYTES} bytes"):
        list(stream.messages(b"x"))


def pairs_of(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document: the list or mapping, and the key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *pairs_of(value[key]))]


@given(st.sampled_from(GOOD), st.integers(0, 30), JSON, st.booleans())
def test_a_message_with_one_part_of_another_shape_is_read_or_malformed(
    message: dict[str, Any],
    at: int,
    other: Any,
    removed: bool,  # noqa: FBT001 (a parameter)
) -> None:
    message = json.loads(json.dumps(message))
    places = pairs_of(message)
    holder, key = places[at % len(places)]
    if removed:
        del holder[key]
    else:
        holder[key] = other
    with suppress(MalformedError):
        said = read(json.dumps(message).encode())
        assert sum(part is not None for part in msgspec.structs.astuple(said)) == 1
        assert said.error is None or said.error.kind in ADVICE


@given(st.binary(max_size=60), st.lists(st.integers(0, 400), max_size=4))
def test_bytes_are_read_whole_however_they_are_cut(noise: bytes, cuts: list[int]) -> None:
    written = b"".join(json.dumps(message).encode() + b"\n" for message in GOOD) + noise
    edges = [0, *sorted(cuts), len(written)]
    stream = MessageStream()
    heard: list[Message] = []
    try:
        for start, end in pairwise(edges):
            heard += stream.messages(written[start:end])
    except MalformedError:
        assert b"\n" in noise
    assert len(heard) >= len(GOOD)
