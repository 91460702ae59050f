"""The directories of GPUs outlive the supervisor, and what it finds there is believed as far as it makes sense."""

import json
import os
from pathlib import Path

import pytest

from gpu_device_plugin.features.mps.supervisor.places import Places, open_directory
from tests.kubelet.short_paths import short_folder

A, B = "GPU-aaaaaaaa-1", "GPU-aaaaaaaa-2"


def test_a_gpu_keeps_its_directory_whoever_is_asked_for_first(tmp_path: Path) -> None:
    first = Places(tmp_path)
    a, b = first.of(A), first.of(B)
    assert a.directory != b.directory
    a.remember("DEFAULT")
    b.remember("PROHIBITED")
    again = Places(tmp_path)
    assert (again.of(B), again.of(A)) == (b, a)
    assert again.before == {A: "DEFAULT", B: "PROHIBITED"}


def test_clients_of_any_user_reach_the_sockets_whatever_the_umask() -> None:
    with short_folder() as folder:
        before = os.umask(0o077)
        try:
            place = Places(folder / "run" / "mps").of(A)
            place.prepare()
        finally:
            os.umask(before)
        for path in (place.pipe, place.log, *place.pipe.parents[:3]):
            assert path.stat().st_mode & 0o7777 == 0o755, path


def test_sockets_of_a_daemon_that_is_gone_are_removed(tmp_path: Path) -> None:
    place = Places(tmp_path).of(A)
    open_directory(place.pipe)
    for name in ("control", "control_privileged", "other"):
        (place.pipe / name).touch()
    place.prepare()
    assert [each.name for each in place.pipe.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("{", {}),
        ("[]", {}),
        ("[" * 4000, {}),
        ("x" * 5000, {}),
        ('{"uuid": "GPU-../a", "before": ""}', {}),
        ('{"uuid": 7, "before": ""}', {}),
        (json.dumps({"uuid": A}), {}),
        (json.dumps({"uuid": A, "before": "-c 0"}), {A: ""}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_memory_that_makes_no_sense_is_none(tmp_path: Path, text: str, before: dict[str, str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "gpu.json").write_text(text)
    assert Places(tmp_path).before == before
