"""Variables and mounts with placeholders."""

from dataclasses import replace

import pytest

from gpu_device_plugin.features.limits.rules.limit_grants import (
    ExtraGrant,
    Part,
    wrong_mount,
    wrong_name,
    wrong_path,
    wrong_text,
)
from gpu_device_plugin.node.rules.container_grants import NOBODY, GrantOwner, Mount

ONE = (Part("GPU-a", 4096, 15_360, 14_913),)
TWO = (*ONE, Part("GPU-b", 2048, 15_360, 14_913))
POD = GrantOwner("0f6b8c1e-1b1c-4a55-9d1e-0a1b2c3d4e5f", "main")


def envs(name: str, value: str, parts: tuple[Part, ...] = TWO) -> dict[str, str]:
    return dict(ExtraGrant(((name, value),)).filled(parts, POD)[0])


@pytest.mark.parametrize(
    ("name", "value", "one", "two"),
    [
        ("PLAIN", '{"json": {}}', {"PLAIN": '{"json": {}}'}, {"PLAIN": '{"json": {}}'}),
        ("MIB", "{limit_mib}m", {"MIB": "4096m"}, {"MIB": "4096m"}),
        ("MIB", "{guaranteed_mib}m", {"MIB": "4096m"}, {"MIB": "4096m"}),
        ("MIB_{ordinal}", "{limit_mib}m", {"MIB_0": "4096m"}, {"MIB_0": "4096m", "MIB_1": "2048m"}),
        ("MIB", "{ordinal}={limit_mib}M", {"MIB": "0=4096M"}, {"MIB": "0=4096M,1=2048M"}),
        ("MIB", "{uuid}={limit_mib}", {"MIB": "GPU-a=4096"}, {"MIB": "GPU-a=4096,GPU-b=2048"}),
        ("X", "{pod_uid}/{container}", {"X": f"{POD.pod_uid}/main"}, {"X": f"{POD.pod_uid}/main"}),
    ],
)
def test_a_variable_is_filled_for_one_gpu_and_repeated_or_joined_for_two(
    name: str, value: str, one: dict[str, str], two: dict[str, str]
) -> None:
    """Without the number of a GPU the limit is that of the largest part."""
    assert envs(name, value, ONE) == one
    assert envs(name, value) == two


def test_a_mount_is_filled_and_repeated_by_its_place_in_the_container() -> None:
    mounts = (Mount("/run/{pod_uid}", "/run/x", read_only=False), Mount("/etc/{uuid}", "/etc/{ordinal}"))
    assert ExtraGrant(mounts=mounts).filled(TWO, POD)[1] == (
        Mount(f"/run/{POD.pod_uid}", "/run/x", read_only=False),
        Mount("/etc/GPU-a", "/etc/0"),
        Mount("/etc/GPU-b", "/etc/1"),
    )


def test_what_is_filled_in_is_not_filled_again() -> None:
    assert ExtraGrant((("X", "{container}"),)).filled(ONE, GrantOwner("u", "{uuid}"))[0] == {"X": "{uuid}"}


def test_who_may_borrow_has_a_limit_beside_its_guarantee() -> None:
    borrower = (replace(ONE[0], most_mib=12288),)
    assert envs("MIB", "{guaranteed_mib}-{limit_mib}", borrower) == {"MIB": "4096-12288"}


@pytest.mark.parametrize(
    ("owner", "unknown"),
    [
        (POD, ()),
        (NOBODY, ("container", "pod_uid")),
        (replace(POD, pod_uid="../../etc"), ("pod_uid",)),
        (replace(POD, pod_uid="a/b"), ("pod_uid",)),
        (replace(POD, pod_uid="0123456789abcdef\n"), ("pod_uid",)),
        (replace(POD, container=""), ("container",)),
    ],
)
def test_a_pod_is_unknown_without_its_name_and_with_one_that_would_lead_elsewhere(
    owner: GrantOwner, unknown: tuple[str, ...]
) -> None:
    """Anyone who creates a pod can write the annotation from which the UID of a static pod is read."""
    extra = ExtraGrant((("A_{container}", "1"),), (Mount("/run/{pod_uid}", "/run"),))
    assert extra.unknown(owner) == unknown
    assert ExtraGrant((("A", "{limit_mib}{uuid}{ordinal}"),)).unknown(owner) == ()
    assert extra.of_the_pod == {"container", "pod_uid"}


HALF = "half of a character is in it, an escape between \\ud800 and \\udfff; write the character itself"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (wrong_name("LD_PRELOAD"), ""),
        (wrong_name("LIMIT_{ordinal}"), ""),
        (wrong_name("NVIDIA_VISIBLE_DEVICES"), "the agent sets this variable itself; remove it"),
        (wrong_name("GPUSHARE_MEMORY_LIMIT_BY"), "the agent sets this variable itself; remove it"),
        (wrong_name("A B"), "this is not the name of a variable; correct it"),
        (wrong_name("1{ordinal}"), "this is not the name of a variable; correct it"),
        (
            wrong_name("A_{index}"),
            (
                "there is no placeholder {index}; "
                "use {limit_mib}, {guaranteed_mib}, {ordinal}, {uuid}, {pod_uid}, {container}"
            ),
        ),
        (wrong_text("{ {} {A} {limit_mib}"), ""),
        (wrong_text("a\nb"), "a control character is in it; remove it"),
        (wrong_path("/usr/local/{uuid}"), ""),
        (wrong_path("usr"), "this is not an absolute path without ..; correct it"),
        (wrong_path("/run/../etc"), "this is not an absolute path without ..; correct it"),
        (wrong_path("/{pod}").partition(";")[0], "there is no placeholder {pod}"),
        (wrong_mount(Mount("/a/{uuid}", "/a/{ordinal}")), ""),
        (wrong_mount(Mount("/a/{pod_uid}", "/a")), ""),
        (wrong_text("a\ud800"), HALF),
        (wrong_text("\udfffa"), HALF),
        (wrong_text("\ud7ff\ue000\U0001f600"), ""),
        (
            wrong_mount(Mount("/a", "//./")),
            "over //./ in a container nothing can be mounted; choose another container_path",
        ),
        (
            wrong_mount(Mount("/a", "/dev/")),
            "over /dev/ in a container nothing can be mounted; choose another container_path",
        ),
        (wrong_mount(Mount("/a", "/dev/shm")), ""),
        (
            wrong_mount(Mount("/a", "/x/./y/"), [Mount("/b", "/y"), Mount("/b", "/x//y")]),
            "another mount has the container_path /x/./y/ too; remove one of the two",
        ),
        (wrong_mount(Mount("/a", "/x/y"), [Mount("/b", "/x")]), ""),
        (
            wrong_mount(Mount("/a/{uuid}", "/a")),
            "host_path differs by GPU, so that container_path needs {ordinal} or {uuid} too",
        ),
    ],
)
def test_what_is_wrong_is_said(wrong: str, said: str) -> None:
    assert wrong == said
