"""What the terminal draws of the last hour and of incidents, as text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.history.contract import IncidentKind, NodeHistory
from gpu_device_plugin.features.history.report import (
    ASCII,
    BLOCKS,
    REASONS,
    history_lines,
    incident_lines,
    incident_table,
    parts,
    sparkline,
    throttle_marks,
)
from gpu_device_plugin.model.telemetry import SLOWING, Throttle
from gpu_device_plugin.report.rules.columns import Tone, columns
from tests.histories import gpu, hour, incident, rising, summary, used_by

NONE_READ = gpu(1, condition=None, temperature_c=(), throttle=(), sm_percent=(0,) * 240)

HOUR = """\
t4-1, read at 2026-11-23T09:29:45Z
             -60 min                                  now
  GPU 0  0f1c2f4e
  memory     ▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄   ▄▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇██  13.5 of 15 GiB
  SM         ▁▁▁▁▁▁▂▂▂▂▂▃▃▃▃▃▃▄▄   ▅▅▅▅▅▅▆▆▆▆▆▆▇▇▇▇▇█████  97 of 100 %
  temp       ▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅▆▆▆   ▆▆▆▆▇▇▇▇▇▇▇▇▇▇████████  91 of 93 °C
  throttle   ···················   ··············xxxxxxxx  x hardware
    ml/train-0/main
    memory   ▁▁▁▁▁▂▂▂▂▂▂▂▂▂▃▃▃▃▃   ▃▃▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▆  5 of 8 GiB
    SM       ▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▂   ▃▃▃▃▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅  60 of 100 %
    CPU held ▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂   ▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▅  50 of 100 %
  GPU 1  1f1c2f4e
  memory     ▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄   ▄▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇██  13.5 of 15 GiB
  SM         ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  0 of 100 %
  3 more containers are not recorded."""
"""Of 240 values each column has five or six, the highest of which it shows; twenty are missing."""


def test_the_last_hour_is_drawn_in_the_width_of_the_terminal() -> None:
    train = used_by("ml/train-0", most_mib=8192, cpu_throttled_percent=rising(0, 50))
    slowed = gpu(throttle=tuple(bits and int(Throttle.HARDWARE) for bits in gpu().throttle))
    drawn = history_lines("t4-1", hour(train, gpus=(slowed, NONE_READ), left_out=3), 79, BLOCKS)
    assert "\n".join(line.text for line in drawn) == HOUR
    tones = {line.text.strip().partition(" ")[0]: line.tone for line in drawn}
    assert tones == {
        "t4-1,": Tone.HEADING, "-60": Tone.FAINT, "GPU": Tone.HEADING, "memory": Tone.PLAIN, "SM": Tone.PLAIN,
        "temp": Tone.PLAIN, "throttle": Tone.WARNING, "ml/train-0/main": Tone.PLAIN, "CPU": Tone.PLAIN, "3": Tone.PLAIN,
    }  # fmt: skip
    calm = history_lines("t4-1", hour(gpus=(gpu(throttle=(0,) * 240, total_mib=143_771),), left_out=1), 79, BLOCKS)
    assert calm[3].text.endswith("  13.5 of 140.4 GiB")
    assert [(line.text[:12], line.tone) for line in calm[-2:-1]] == [("  throttle  ", Tone.PLAIN)]
    assert calm[-1].text == "  1 more container is not recorded."


def test_a_terminal_that_is_not_utf_8_gets_the_same_in_ascii() -> None:
    lines = history_lines("t4-1", hour(used_by("default/web-0")), 60, ASCII)
    assert all(line.text.isascii() for line in lines)
    assert [line.text for line in lines[3:7]] == [
        "  memory     _....::::-- -===++++****#  13.5 of 15 GiB",
        "  SM         ___...:::-- -===+++***###  97 of 100 %",
        "  temp       ---======++ ++******#####  91 of 93 C",
        "  throttle   ........... ........hhhhh  h heat, x hardware",
    ]


def test_a_gap_at_the_end_is_an_unknown_value_and_a_shorter_history_ends_at_the_same_place() -> None:
    young = gpu(used_mib=(None, 7680, None), sm_percent=(100,), temperature_c=(None,) * 3, throttle=(0, 0, 0))
    stranger = used_by("/0b0c6c4e", granted_mib=0, most_mib=0, used_mib=(15360,) * 3, sm_percent=())
    lines = history_lines("a", hour(stranger, gpus=(young,)), 60, BLOCKS)
    assert [line.text for line in lines[1:]] == [
        "             -45 s now",
        "  GPU 0  0f1c2f4e",
        "  memory      ▅   - of 15 GiB",
        "  SM           █  100 of 100 %",
        "  throttle   ···  never",
        "    0b0c6c4e/main",
        "    memory   ███  15 of 15 GiB",
    ]


def test_an_agent_that_has_just_begun_says_so() -> None:
    lines = history_lines("a", NodeHistory("2026-11-23T09:29:45Z", 15.0), 60, BLOCKS)
    assert [(line.text, line.tone) for line in lines[1:]] == [("  nothing has been recorded yet", Tone.FAINT)]


def test_a_gpu_without_a_slowdown_temperature_is_drawn_up_to_100_degrees() -> None:
    lines = history_lines("a", hour(gpus=(gpu(condition=None),)), 60, BLOCKS)
    assert lines[5].text.endswith("  91 of 100 °C")


def test_every_reason_for_lower_clocks_has_a_letter() -> None:
    assert sum(REASONS) == SLOWING
    assert len({letter for letter, _ in REASONS.values()}) == len(REASONS)
    assert throttle_marks((0, None, *REASONS, 0x1), 80, "·") == "· Hhbxps·"


values = st.lists(st.none() | st.integers(0, 2**40), max_size=300)


@given(values, st.integers(1, 300), st.integers(0, 2**40))
def test_a_drawing_has_a_column_for_each_part_of_the_time(series: list[int | None], width: int, most: int) -> None:
    drawn = sparkline(tuple(series), width, most, BLOCKS.ramp)
    assert len(drawn) == min(len(series), width)
    assert (" " in drawn) == any(not known for known in parts(tuple(series), width))
    assert [value for known in parts(tuple(series), width) for value in known] == [v for v in series if v is not None]


@given(st.integers(8, 200))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    train = used_by("ml/a-pod-with-a-very-long-name-" + "x" * 200, cpu_throttled_percent=rising(0, 9))
    for line in history_lines("t4-1", hour(train, left_out=0), max(42, width), BLOCKS):
        assert columns(line.text) <= max(42, width)


@given(st.text(max_size=40))
def test_texts_of_strangers_have_no_control_characters(text: str) -> None:
    odd = replace(summary(), sentence=text, namespace=text, pod=text)
    record = replace(incident(odd, node=text), history=hour(replace(used_by("a/b"), pod=text)))
    shown = [*history_lines("n", record.history, 80, BLOCKS)[1:], *incident_lines(record, 80, BLOCKS)[1:]]
    assert all(line.text.isprintable() for line in [*shown, *incident_table([("n", odd)], 80)])


WHOLE = """\
2026-11-23T09:25:00Z  t4-1  xid  GPU 0
GPU 0 reported XID 48: a double-bit memory error

             -15 min                                then
  GPU 0  0f1c2f4e
  memory     ▁▁▁▁▂▂▂▂▂▂▃▃▃▃▃▃▄▄▄▄▄▄▅▅▅▅▅▅▅▆▆▆▆▆▆▇▇▇▇▇▇▇█  13.5 of 15 GiB
  SM         ▁▁▁▁▁▁▂▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇▇████  97 of 100 %
  temp       ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▇▇▇▇  71 of 93 °C
  throttle   ···········································  never
    default/web-0/main
    memory   ▁▁▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄▄▄▄▅▅▅▅▅▆▆▆▆▆▆▇▇▇▇▇▇██████  5 of 5 GiB
    SM       ▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅  60 of 100 %

Processes
GPU 0  pid 4711  default/web-0/main  5,120 MiB
GPU 0  pid 12    (no pod)            312 MiB

Limits and use
default/web-0/main uses 5,120 MiB of GPU 0, was granted 5,120 MiB; limit:
  driver: held

Decisions
2026-11-23T09:24:58Z  the driver reported Xid 48 of GPU 0"""


def test_an_incident_is_shown_with_what_led_to_it() -> None:
    lines = incident_lines(incident(), 78, BLOCKS)
    assert "\n".join(line.text for line in lines) == WHOLE
    heads = [line.text.strip() for line in lines if line.tone is Tone.HEADING]
    assert heads == [WHOLE.partition("\n")[0], "GPU 0  0f1c2f4e", "Processes", "Limits and use", "Decisions"]


def test_what_is_not_known_of_an_incident_is_said() -> None:
    record = incident(summary(gpu=None, kind=IncidentKind.OUT_OF_MEMORY, namespace="ml", pod="a", container="main"))
    blind = replace(record.use, parts=(), blind="the agent runs without hostPID")
    lines = [each.text for each in incident_lines(replace(record, processes=(), decisions=(), use=blind), 78, BLOCKS)]
    assert lines[0] == "2026-11-23T09:25:00Z  t4-1  out-of-memory  ml/a/main"
    assert lines[-8:] == [
        "Processes",
        "none on the GPU",
        "",
        "Limits and use",
        "who used the GPUs is not known: the agent runs without hostPID",
        "",
        "Decisions",
        "none",
    ]
    calm = replace(record, use=replace(record.use, parts=()))
    assert "no container" in [each.text for each in incident_lines(calm, 78, BLOCKS)]


@pytest.mark.parametrize("width", [120, 200])
def test_incidents_are_listed_with_the_newest_first(width: int) -> None:
    oom = summary(
        "20261123-092600-out-of-memory",
        at="2026-11-23T09:26:00Z",
        kind=IncidentKind.OUT_OF_MEMORY,
        gpu=None,
        namespace="ml",
        pod="train-0",
        container="main",
        sentence="a process of container main was killed for lack of main memory",
    )
    found = [("t4-1", summary()), ("a100-1", oom), ("b", summary("20261123-092500-xid-gpu1")), ("b", summary())]
    lines = [line.text for line in incident_table(found, width)]
    assert [line.split()[1] for line in lines] == ["NODE", "a100-1", "b", "b", "t4-1"]
    assert [line.rpartition("-")[2] for line in lines[2:]] == ["gpu0", "gpu1", "gpu0"]
    assert lines[1].endswith("  20261123-092600-out-of-memory")
    assert max(map(len, lines)) <= width
    if width == 200:
        assert lines[1] == (
            "2026-11-23T09:26:00Z  a100-1  out-of-memory  -    ml/train-0  "
            "a process of container main was killed for lack of main memory  20261123-092600-out-of-memory"
        )
        assert lines[2] == (
            "2026-11-23T09:25:00Z  b       xid            0    -           "
            "GPU 0 reported XID 48: a double-bit memory error                20261123-092500-xid-gpu0"
        )


def test_incidents_that_a_terminal_is_too_narrow_for_are_listed_below_each_other() -> None:
    lines = incident_table([("t4-1", summary(namespace="ml", pod="train-0"))], 50)
    assert [(line.text, line.tone) for line in lines] == [
        ("20261123-092500-xid-gpu0  t4-1  ml/train-0", Tone.HEADING),
        ("  GPU 0 reported XID 48: a double-bit memory error", Tone.PLAIN),
    ]
    assert [line.text for line in incident_table([("t4-1", summary())], 49)][1:] == [
        "  GPU 0 reported XID 48: a double-bit memory",
        "    error",
    ]
