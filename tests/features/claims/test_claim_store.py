"""The files of prepared claims."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin.features.claims.claim_store import ClaimStore, ClaimStoreError
from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim, PreparedDevice

CLAIM = PreparedClaim(
    "u-1", "default", "c1", (PreparedDevice("gpu", "gpu-1", "gpu-x"),), frozenset({"GPU-1::0"}), cdi={"a": 1}
)


@pytest.fixture
def store(tmp_path: Path) -> ClaimStore:
    (tmp_path / "cdi").mkdir()
    return ClaimStore(tmp_path / "claims", tmp_path / "cdi")


def files(path: Path) -> dict[str, list[str]]:
    return {each.name: sorted(file.name for file in each.iterdir()) for each in sorted(path.iterdir())}


def test_what_is_written_is_loaded_and_removed(store: ClaimStore, tmp_path: Path) -> None:
    store.write(CLAIM)
    assert files(tmp_path) == {"cdi": ["gpu-device-plugin-claim_u-1.json"], "claims": ["u-1.json"]}
    assert store.load() == ({"u-1": CLAIM}, frozenset())
    store.remove("u-1")
    store.remove("u-1")
    assert files(tmp_path) == {"cdi": [], "claims": []}


def test_nothing_is_there_at_first(store: ClaimStore) -> None:
    assert store.load() == ({}, frozenset())


def test_damaged_files_are_named_and_stay(store: ClaimStore, tmp_path: Path) -> None:
    store.write(CLAIM)
    (tmp_path / "claims/u-2.json").write_text((tmp_path / "claims/u-1.json").read_text())
    (tmp_path / "claims/u-3.json").mkdir()
    found, damaged = store.load()
    assert (list(found), set(damaged)) == (["u-1"], {"u-2", "u-3"})


def test_files_of_two_claims_with_the_same_devices_count_as_damaged(store: ClaimStore) -> None:
    store.write(CLAIM)
    store.write(replace(CLAIM, uid="u-2"))
    store.write(replace(CLAIM, uid="u-3", device_ids=frozenset({"GPU-1::1"})))
    found, damaged = store.load()
    assert (list(found), set(damaged)) == (["u-3"], {"u-1", "u-2"})


def test_a_file_with_another_name_than_a_uid_is_left_alone(store: ClaimStore, tmp_path: Path) -> None:
    store.write(CLAIM)
    for name in ("a b.json", ".json", "-.json", "\udcff.json"):
        (tmp_path / "claims" / name).mkdir()
    assert store.load() == ({"u-1": CLAIM}, frozenset())


def test_a_sweep_that_cannot_write_one_file_writes_the_others(
    store: ClaimStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cdi/gpu-device-plugin-claim_u-1.json").mkdir()
    store.sweep({"u-1": CLAIM, "u-2": replace(CLAIM, uid="u-2")})
    assert (tmp_path / "cdi/gpu-device-plugin-claim_u-2.json").is_file()
    assert "new containers of claim default/c1 cannot start" in caplog.text
    assert "remove the directory" in caplog.text


def test_a_sweep_writes_what_a_reboot_removed_and_removes_what_nobody_has(store: ClaimStore, tmp_path: Path) -> None:
    store.write(CLAIM)
    (tmp_path / "cdi/gpu-device-plugin-claim_u-1.json").unlink()
    (tmp_path / "cdi/gpu-device-plugin-claim_u-9.json").write_text("{}")
    others = ["gpu-device-plugin-claim_.json", "gpu-device-plugin-claim_u-1.json.new", "nvidia.yaml"]
    for other in others:
        (tmp_path / "cdi" / other).write_text("")
    store.sweep({"u-1": CLAIM})
    assert files(tmp_path)["cdi"] == sorted(["gpu-device-plugin-claim_u-1.json", *others])


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a" * 200])
def test_a_uid_that_is_no_name_of_a_file_is_refused(store: ClaimStore, tmp_path: Path, uid: str) -> None:
    with pytest.raises(ClaimStoreError, match="none of Kubernetes"):
        store.write(PreparedClaim(uid, "n", "c", CLAIM.devices))
    store.remove(uid)
    assert files(tmp_path) == {"cdi": []}


def test_a_directory_that_cannot_be_used_is_told_with_the_remedy(store: ClaimStore, tmp_path: Path) -> None:
    (tmp_path / "cdi").rmdir()
    (tmp_path / "cdi").write_text("in the way")
    with pytest.raises(ClaimStoreError, match="mounted writable"):
        store.write(CLAIM)
    os.mkfifo(tmp_path / "claims/u-4.json")
    assert "u-4" in store.load()[1]
    (tmp_path / "claims/u-5.json").mkdir()
    advised = r"u-5.json: Is a directory; remove the directory"
    with pytest.raises(ClaimStoreError, match=advised):
        store.remove("u-5")
    with pytest.raises(ClaimStoreError, match=advised):
        store.write(replace(CLAIM, uid="u-5"))
