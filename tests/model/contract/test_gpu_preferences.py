"""The wishes in the annotations of a pod."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector, read_preferences
from gpu_device_plugin.model.contract.keys import (
    AVOID_MODEL,
    AVOID_UUID,
    GPU_POLICY,
    NODE_POLICY,
    TOO_LONG,
    USE_MODEL,
    USE_UUID,
    WISHES,
    MalformedAnnotationError,
)
from gpu_device_plugin.model.placing import POLICIES
from tests.work import counted


def test_a_pod_without_wishes_takes_any_gpu() -> None:
    preferences = read_preferences({"app": "demo"})
    assert preferences is NO_PREFERENCES
    assert not preferences.choosy
    assert preferences.allow_model("Tesla T4")
    assert preferences.allow_model("")
    assert preferences.allow_uuid("")


def test_an_annotation_that_is_too_long_is_refused() -> None:
    with pytest.raises(MalformedAnnotationError, match="longer than 4096 characters; name fewer"):
        read_preferences({USE_MODEL: "A100," * 820})


def test_every_wish_is_read() -> None:
    preferences = read_preferences(
        {
            USE_MODEL: "A100, H100",
            AVOID_MODEL: "T4",
            USE_UUID: "GPU-1,GPU-2",
            AVOID_UUID: " GPU-2 ",
            GPU_POLICY: "spread",
            NODE_POLICY: "binpack",
        }
    )
    assert preferences == GpuSelector(
        ("A100", "H100"), ("T4",), frozenset({"GPU-1", "GPU-2"}), frozenset({"GPU-2"}), "spread", "binpack"
    )


@pytest.mark.parametrize("key", sorted(WISHES - {GPU_POLICY, NODE_POLICY}))
def test_wishes_for_models_or_gpus_are_choosy(key: str) -> None:
    assert read_preferences({key: "GPU-1"}).choosy


@pytest.mark.parametrize(
    ("product", "wanted", "same"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4", True),
        ("NVIDIA A100-SXM4-80GB", "A100_SXM4 80gb", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA", True),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA A100-SXM4-80GB", "100", False),
        ("NVIDIA A100-SXM4-80GB", "80GB-A100", False),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", False),
        ("NVIDIA A10", "A100", False),
        ("Tesla T4", "t4", True),
        ("", "T4", False),
    ],
)
def test_a_model_matches_by_whole_words(product: str, wanted: str, same: bool) -> None:  # noqa: FBT001  (a table's column)
    assert GpuSelector(use_models=(wanted,)).allow_model(product) is same
    assert GpuSelector(avoid_models=(wanted,)).allow_model(product) is not same


@pytest.mark.parametrize(
    ("preferences", "allowed"),
    [
        (GpuSelector(use_models=("T4",)), {"Tesla T4"}),
        (GpuSelector(use_models=("A10", "T4")), {"Tesla T4", "NVIDIA A10"}),
        (GpuSelector(avoid_models=("T4",)), {"NVIDIA A10", ""}),
        (GpuSelector(avoid_models=("T4", "A10")), {""}),
        (GpuSelector(use_models=("T4",), avoid_models=("Tesla",)), set()),
        (GpuSelector(use_models=("A10", "T4"), avoid_models=("T4",)), {"NVIDIA A10"}),
    ],
)
def test_models_are_allowed_by_the_wishes(preferences: GpuSelector, allowed: set[str]) -> None:
    """A node that does not name its models has an empty one: it is never required, and never excluded."""
    assert {model for model in ("Tesla T4", "NVIDIA A10", "") if preferences.allow_model(model)} == allowed


@pytest.mark.parametrize(
    ("preferences", "allowed"),
    [
        (GpuSelector(use_uuids=("GPU-1",)), {"GPU-1"}),
        (GpuSelector(use_uuids=("GPU-1", "GPU-2")), {"GPU-1", "GPU-2"}),
        (GpuSelector(avoid_uuids=("GPU-1",)), {"GPU-2", ""}),
        (GpuSelector(use_uuids=("GPU-1", "GPU-2"), avoid_uuids=("GPU-1",)), {"GPU-2"}),
    ],
)
def test_gpus_are_allowed_by_their_uuid(preferences: GpuSelector, allowed: set[str]) -> None:
    assert {uuid for uuid in ("GPU-1", "GPU-2", "") if preferences.allow_uuid(uuid)} == allowed


def test_names_are_listed_once_and_in_order() -> None:
    assert read_preferences({USE_MODEL: " b ,a,, b,"}).use_models == ("b", "a")


@pytest.mark.parametrize("key", sorted(WISHES - {GPU_POLICY, NODE_POLICY}))
@pytest.mark.parametrize("text", ["", " ", ",", "T4,--", "显卡"])
def test_a_list_that_names_nothing_is_malformed(key: str, text: str) -> None:
    """It could mean any GPU, or none; both would be a guess."""
    with pytest.raises(
        MalformedAnnotationError, match=f"^the annotation {key} names nothing; write names with commas between them$"
    ):
        read_preferences({key: text})


@pytest.mark.parametrize("key", sorted(WISHES - {GPU_POLICY, NODE_POLICY}))
def test_a_list_of_too_many_names_is_refused(key: str) -> None:
    """Each name would be compared on every node."""
    assert read_preferences({key: ",".join(f"A{n}" for n in range(64))}).choosy
    with pytest.raises(MalformedAnnotationError, match=f"^the annotation {key} names more than 64; name fewer$"):
        read_preferences({key: ",".join(f"A{n}" for n in range(65))})


@pytest.mark.parametrize("key", sorted(WISHES - {GPU_POLICY, NODE_POLICY}))
def test_a_list_that_is_too_long_is_refused_before_it_is_parsed(key: str) -> None:
    """All annotations of a pod together may have 256 KiB."""
    assert read_preferences({key: "A" * 4096}).choosy
    sentence = f"the annotation {key} is longer than 4096 characters; name fewer"
    for text in ("A," * 125_000, TOO_LONG):
        with pytest.raises(MalformedAnnotationError, match=f"^{re.escape(sentence)}$"), counted(100):
            read_preferences({key: text})


def test_the_uuids_of_64_gpus_may_be_named() -> None:
    assert len(read_preferences({AVOID_UUID: ", ".join(f"GPU-{n:036}" for n in range(64))}).avoid_uuids) == 64


def test_a_model_is_compared_once_however_many_gpus_are_of_it() -> None:
    preferences = read_preferences({AVOID_MODEL: ",".join(f"A{n}" for n in range(64))})
    with counted(2000):
        assert preferences.allow_model("Tesla T4")
    with counted(2000):
        assert all(preferences.allow_model("Tesla T4") for _ in range(100))


def test_the_cache_of_models_is_bounded() -> None:
    preferences = GpuSelector(use_models=("T4",))
    assert not any(preferences.allow_model(f"T{n}") for n in range(5, 3000))
    assert len(preferences._models) <= 1000
    assert preferences.allow_model("T4")


@pytest.mark.parametrize("key", [GPU_POLICY, NODE_POLICY])
@pytest.mark.parametrize("text", ["", "Binpack", "best"])
def test_an_unknown_policy_is_malformed(key: str, text: str) -> None:
    sentence = f"the annotation {key} is none of fit, binpack, spread; write one of them"
    with pytest.raises(MalformedAnnotationError, match=f"^{re.escape(sentence)}$"):
        read_preferences({key: text})


@given(st.dictionaries(st.sampled_from(sorted(WISHES)), st.text()))
def test_junk_is_malformed_at_worst(annotations: dict[str, str]) -> None:
    try:
        preferences = read_preferences(annotations)
    except MalformedAnnotationError:
        return
    assert {preferences.gpu_policy, preferences.node_policy} <= {None, *POLICIES}
    for model in preferences.use_models:
        avoided = GpuSelector(use_models=preferences.avoid_models)
        assert preferences.allow_model(model) is not (bool(preferences.avoid_models) and avoided.allow_model(model))


@pytest.mark.parametrize(
    ("annotations", "allowed"),
    [
        ({USE_UUID: "GPU-1"}, {"GPU-1", "MIG-1", "MIG-2"}),
        ({USE_UUID: "MIG-1"}, {"MIG-1"}),
        ({AVOID_UUID: "GPU-1"}, {"GPU-2"}),
        ({AVOID_UUID: "MIG-1"}, {"GPU-1", "MIG-2", "GPU-2"}),
        ({USE_UUID: "GPU-1", AVOID_UUID: "MIG-1"}, {"GPU-1", "MIG-2"}),
    ],
)
def test_the_uuid_of_a_gpu_stands_for_its_mig_instances(annotations: dict[str, str], allowed: set[str]) -> None:
    preferences = read_preferences(annotations)
    cards = {"GPU-1": "GPU-1", "MIG-1": "GPU-1", "MIG-2": "GPU-1", "GPU-2": "GPU-2"}
    assert {uuid for uuid, card in cards.items() if preferences.allow_uuid(uuid, card)} == allowed
