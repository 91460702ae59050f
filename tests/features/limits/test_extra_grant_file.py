"""The file with extra variables and mounts: what it may say, and what is said of one that cannot be used."""

from pathlib import Path

import pytest

from gpu_device_plugin.features.limits.extra_grant_file import read_extra_grant
from gpu_device_plugin.features.limits.rules.limit_grants import ExtraGrant, Part
from gpu_device_plugin.node.rules.container_grants import GrantOwner, Mount
from gpu_device_plugin.settings.knobs import UsageError
from tests.docs.pages import DOCS

BOMB = "envs:\n  ? [&a0 [b]" + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)) + "]\n  : b"
"""Nine letters, nine times, and so on, as the name of a variable."""
EXAMPLE = DOCS.parent / "deploy" / "extra-grants" / "hami-core.grant"


def read(folder: Path, text: str) -> ExtraGrant | None:
    file = folder / "extra.grant"
    file.write_text(text, encoding="utf-8")
    return read_extra_grant(file)


def test_without_a_file_there_is_no_extra_grant() -> None:
    assert read_extra_grant(None) is None


@pytest.mark.parametrize(
    "text",
    [
        """
envs:
  LIMIT_{ordinal}: "{limit_mib}m"
  SM: 30
mounts:
  - host_path: /opt/lib.so
    container_path: /usr/lib/lib.so
  - {host_path: "/run/{pod_uid}", container_path: /run/x, read_only: false}
  - {host_path: /a, container_path: /b, read_only: True}
""",
        """{"envs": {"LIMIT_{ordinal}": "{limit_mib}m", "SM": 30}, "mounts": [
        {"host_path": "/opt/lib.so", "container_path": "/usr/lib/lib.so"},
        {"host_path": "/run/{pod_uid}", "container_path": "/run/x", "read_only": false},
        {"host_path": "/a", "container_path": "/b", "read_only": true}]}""",
    ],
    ids=["YAML", "JSON"],
)
def test_yaml_and_json_say_the_same(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ExtraGrant(
        (("LIMIT_{ordinal}", "{limit_mib}m"), ("SM", "30")),
        (
            Mount("/opt/lib.so", "/usr/lib/lib.so"),
            Mount("/run/{pod_uid}", "/run/x", read_only=False),
            Mount("/a", "/b"),
        ),
    )


def test_either_part_may_be_absent(tmp_path: Path) -> None:
    assert read(tmp_path, "envs: {A: b}") == ExtraGrant((("A", "b"),))
    assert read(tmp_path, "mounts: [{host_path: /a, container_path: /b}]") == ExtraGrant((), (Mount("/a", "/b"),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lines like envs: and mounts: are needed here, at most 100"),
        ("- a", "line 1: lines like envs: and mounts: are needed here, at most 100"),
        ("envs: {}", "line 1: it adds nothing; write envs or mounts into it, or empty the setting extra_grant"),
        ("env: {A: b}", "line 1, env: there is no such key; did you mean envs?"),
        ("policy: spread", "line 1, policy: there is no such key; use envs, mounts"),
        ("envs: {A: b}\nenvs: {A: b}", "line 2, envs: it is written twice; remove one of the lines"),
        ("envs: text", "line 1: lines like NAME: text are needed here, at most 100"),
        ("envs:\n  A: [1]", "line 2, A: a text is needed here"),
        (
            "envs:\n  A: '{index}'",
            "line 2, A: there is no placeholder {index}; use {limit_mib}, {guaranteed_mib}, {ordinal}, {uuid}",
        ),
        (
            "envs:\n  NVIDIA_VISIBLE_DEVICES: all",
            "line 2, NVIDIA_VISIBLE_DEVICES: the agent sets this variable itself; remove it",
        ),
        (
            "mounts: {a: b}",
            "line 1: a list of at most 100 mounts is needed here, each with host_path and container_path",
        ),
        ("mounts: text", "line 1: a list of at most 100 mounts is needed here"),
        ("mounts: [text]", "line 1: lines like host_path: /path are needed here"),
        ("mounts:\n  - host_path: /a", "line 2: container_path is missing; add it"),
        ("mounts:\n  - {host_path: a, container_path: /b}", "line 2, host_path: this is not an absolute path without"),
        ("mounts:\n  - {host_path: [a], container_path: /b}", "line 2, host_path: a path is needed here"),
        (
            "mounts:\n  - {host_path: /a, container_path: /b, readonly: true}",
            "line 2, readonly: there is no such key; did you mean read_only?",
        ),
        (
            "mounts:\n  - {host_path: /a, container_path: /b, read_only: maybe}",
            "line 2, read_only: write true or false",
        ),
        (
            "mounts:\n  - {host_path: '/a/{ordinal}', container_path: /b}",
            "line 2: host_path differs by GPU, so that container_path needs {ordinal} or {uuid} too",
        ),
        (
            "mounts:\n  - {host_path: /a, container_path: /x}\n  - {host_path: /b, container_path: /x/}",
            "line 3: another mount has the container_path /x/ too; remove one of the two",
        ),
        ('envs:\n  A: "\\uD800"', "line 2, A: half of a character is in it"),
        ("envs:\n  ? [A]\n  : b", "line 2: this is not a name; write a text before the colon"),
        (BOMB, "line 2: this is not a name; write a text before the colon"),
        ("envs: [", "line 1: this is not valid YAML: "),
        ("envs:\n" + "".join(f"  A{n}: b\n" for n in range(101)), "line 2: lines like NAME: text are needed here"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    begin = f"extra_grant: {tmp_path / 'extra.grant'}"
    assert str(caught.value).startswith(begin), caught.value
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^2 errors in the settings: \(1\) .*line 1, A B: .*\(2\) .*line 2: cont"):
        read(tmp_path, "envs: {A B: c}\nmounts: [{host_path: /a}]")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; name a YAML or JSON file that is there"):
        read_extra_grant(tmp_path / "missing")
    with pytest.raises(UsageError, match="name a YAML or JSON file"):
        read_extra_grant(tmp_path)


def test_the_example_can_be_used() -> None:
    extra = read_extra_grant(EXAMPLE)
    assert extra is not None
    parts = [Part("GPU-a", 4096, 15_360, 14_913), Part("GPU-b", 2048, 15_360, 14_913)]
    envs, mounts = extra.filled(parts, GrantOwner("0f6b8c1e", "main"))
    assert envs == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2048m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/cache/main.cache",
    }
    assert [(mount.container_path, mount.read_only) for mount in mounts] == [
        ("/usr/local/vgpu/libvgpu.so", True),
        ("/etc/ld.so.preload", True),
        ("/usr/local/vgpu/cache", False),
        ("/tmp/vgpulock", False),
    ]
    assert mounts[2].host_path == "/run/gpushare/hami-core/0f6b8c1e/main"
