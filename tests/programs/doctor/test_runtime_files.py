"""Which container runtime the kubelet uses, and what that reads, on machines put together for the test."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_device_plugin.programs.doctor.node_reading import cdi_devices, inside, runtimes
from gpu_device_plugin.programs.doctor.rules.symptoms import Runtime
from tests.programs.doctor.test_node_files import CONTAINERD_1, CONTAINERD_2, CRI_O, DOCKER, put

CONFIG, DROP_IN = "etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml"
IMPORT = 'imports = ["/etc/containerd/conf.d/*.toml"]'
TWO, THREE = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


def default(section: str) -> str:
    return f"[plugins.'{section}'.containerd]\ndefault_runtime_name = 'nvidia'\n"


def handler(section: str, name: str = "nvidia") -> str:
    return (
        f"[plugins.'{section}'.containerd.runtimes.{name}.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n"
    )


def only(root: Path, version: str = "") -> Runtime:
    (found,) = runtimes(root, version)
    return found


# --- What containerd reads --------------------------------------------------------------------------------------------


def test_a_drop_in_counts_only_if_it_is_imported(tmp_path: Path) -> None:
    path = put(tmp_path, CONFIG, "version = 3")
    drop_in = put(tmp_path, DROP_IN, f"version = 3\n{handler(THREE)}")
    found = only(tmp_path)
    assert (found.path, found.handlers, found.without_effect) == (str(path), (), (str(drop_in),))
    path.unlink()  # containerd has a default for imports, and does not follow it
    assert only(tmp_path).without_effect == (str(drop_in),)
    put(tmp_path, CONFIG, f"version = 3\n{IMPORT}")
    found = only(tmp_path)
    assert (found.handlers, found.default, found.without_effect) == (("nvidia",), False, ())


@pytest.mark.parametrize(
    "imports", ["conf.d/*.toml", "./conf.d/99-*", "/etc/*/conf.d/*.toml", "../containerd/conf.d/*.toml"]
)
def test_imports_are_relative_to_their_file_and_may_be_patterns(tmp_path: Path, imports: str) -> None:
    put(tmp_path, CONFIG, f"version = 3\nimports = ['{imports}', '/absent.toml', 7]\n{default(THREE)}")
    put(tmp_path, DROP_IN, f"version = 3\nimports = ['/etc/containerd/config.toml']\n{handler(THREE)}")
    assert (only(tmp_path).handlers, only(tmp_path).default) == (("nvidia",), True)


def test_containerd_2_merges_files_and_the_later_one_counts(tmp_path: Path) -> None:
    put(tmp_path, CONFIG, f"version = 3\n{IMPORT}\n{default(THREE)}{handler(THREE)}")
    put(tmp_path, DROP_IN, f"version = 2\n{default(TWO).replace('nvidia', 'runc')}{handler(TWO, 'more')}")
    found = only(tmp_path)
    assert (found.handlers, found.default, found.cdi) == (("nvidia", "more"), False, True)
    put(tmp_path, DROP_IN.replace("99", "100"), "version = 2\n")  # before 99-, as text
    put(tmp_path, DROP_IN.replace("99", "zz"), f"{default('cri')}[plugins.'{TWO}']\nenable_cdi = false\n")
    assert (only(tmp_path).default, only(tmp_path).cdi) == (True, False)


def test_containerd_1_takes_a_plugin_from_the_last_file_that_has_it(tmp_path: Path) -> None:
    """Its version is the node's in the API, or else told by that of the file."""
    path = put(tmp_path, CONFIG, f"version = 2\n{IMPORT}\n{handler(TWO)}")
    put(tmp_path, DROP_IN, f"version = 2\n[plugins.'{TWO}'.registry]\nconfig_path = '/etc/containerd/certs.d'\n")
    assert (only(tmp_path).handlers, only(tmp_path).without_effect) == ((), (str(path),))
    assert only(tmp_path, "containerd://1.7.27-k3s1").handlers == ()
    assert only(tmp_path, "containerd://2.1.4").handlers == ("nvidia",)


@pytest.mark.parametrize(
    ("version", "section", "read"),
    [
        ("", "cri", True),
        ("version = 1", "cri", True),
        ("version = 1", TWO, False),
        ("version = 2", TWO, True),
        ("version = 2", THREE, False),
        ("version = 3", THREE, True),
        ("version = 3", TWO, False),
        ("version = 4", THREE, True),
        ("version = 4", "cri", False),
        ("version = '2'", TWO, False),
    ],
)
def test_the_version_of_a_file_says_where_its_settings_are(
    tmp_path: Path, version: str, section: str, *, read: bool
) -> None:
    put(tmp_path, CONFIG, f"{version}\n{handler(section)}")
    assert bool(only(tmp_path).handlers) is read


def test_the_oldest_form_of_a_handler_is_known(tmp_path: Path) -> None:
    put(
        tmp_path, CONFIG, "[plugins.cri.containerd.runtimes.nv]\nruntime_engine = '/usr/bin/nvidia-container-runtime'\n"
    )
    assert only(tmp_path).handlers == ("nv",)


CONTAINERDS = [
    path
    for path in (
        shutil.which("containerd"),
        "/opt/containerd/bin/containerd",
        os.environ.get("CONTAINERD_BIN", "") + "/containerd",
    )
    if path and os.access(path, os.X_OK)
]


@pytest.mark.parametrize("program", CONTAINERDS or [""])
@pytest.mark.parametrize("drop_in", [handler, lambda section: default(section) + handler(section), lambda _: ""])
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("imports", ["conf.d/99-nvidia.toml", "conf.d/*.toml", "etc/containerd/conf.d/*"])
def test_containerd_itself_reads_the_same(
    tmp_path: Path, program: str, drop_in: Callable[[str], str], version: int, imports: str
) -> None:
    if not program:
        pytest.skip("containerd is missing in CONTAINERD_BIN and on the PATH")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    number = told.split()[2].lstrip("v")
    if (version > 2) > number.startswith("2") or (version < 2 <= int(number[0])):
        pytest.skip(f"containerd {number} does not read version {version}")
    section = {1: "cri", 2: TWO, 3: THREE}[version]
    config = put(tmp_path, CONFIG, f"version = {version}\nimports = ['{imports}']\n{default(section)}")
    put(tmp_path, DROP_IN, f"version = {version}\n{drop_in(section)}")
    words = [program, "-c", str(config), "config", "dump"]
    dump = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    plugins = tomllib.loads(dump.stdout)["plugins"]
    read = (plugins.get(THREE) or plugins.get(TWO) or plugins["cri"])["containerd"]
    named = [name for name, each in read["runtimes"].items() if "nvidia" in str(each)]
    found = only(tmp_path, f"containerd://{number}")
    assert (list(found.handlers), found.default) == (named, read["default_runtime_name"] in named)


# --- Links ------------------------------------------------------------------------------------------------------------


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_absolute_links_lead_to_files_of_the_node(tmp_path: Path) -> None:
    put(tmp_path, "nix/store/x/config.toml", f"version = 3\n{IMPORT}\n{default(THREE)}")
    put(tmp_path, "nix/store/y/drop.toml", f"version = 3\n{handler(THREE)}")
    link(tmp_path, "etc/containerd", "/etc/static/containerd")
    link(tmp_path, "etc/static/containerd/config.toml", "/nix/store/x/config.toml")
    link(tmp_path, "etc/static/containerd/conf.d/nvidia.toml", "../../../../../../nix/store/y/drop.toml")
    found = only(tmp_path)
    assert (found.path, found.handlers, found.default) == (f"{tmp_path}/etc/containerd/config.toml", ("nvidia",), True)


@pytest.mark.parametrize("target", ["/run", "../run", None])
def test_cdi_files_are_found_through_links(tmp_path: Path, target: str | None) -> None:
    put(tmp_path, "run/cdi/nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: GPU-a\n")
    if target is not None:
        link(tmp_path, "var/run", target)
    link(tmp_path, "etc/cdi", "/opt/cdi")
    put(tmp_path, "opt/cdi/more.json", '{"kind": "a.b/c", "devices": [{"name": "x"}]}')
    assert cdi_devices(tmp_path) == {"nvidia.com/gpu=GPU-a", "a.b/c=x"}


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    link(tmp_path, "a", "/b")
    link(tmp_path, "b", "a")
    assert not inside(tmp_path, "/a/x").exists()
    assert inside(tmp_path, "/../../etc") == tmp_path / "etc"


# --- The kubelet's runtime --------------------------------------------------------------------------------------------


def test_only_the_runtime_of_the_kubelet_counts(tmp_path: Path) -> None:
    put(tmp_path, "etc/docker/daemon.json", DOCKER)
    assert only(tmp_path).engine == "Docker"
    put(tmp_path, CONFIG, "version = 3")
    assert (only(tmp_path).engine, only(tmp_path).handlers) == ("containerd", ())
    assert only(tmp_path, "docker://28.1.0").handlers == ("nvidia",)
    assert runtimes(tmp_path, "cri-o://1.34.0") == ()


@pytest.mark.parametrize(
    ("name", "text", "engine"),
    [
        ("var/lib/kubelet/config.yaml", 'containerRuntimeEndpoint: "unix:///var/run/crio/crio.sock"\n', "CRI-O"),
        ("var/lib/kubelet/config.yaml", 'containerRuntimeEndpoint: ""\n', "containerd"),
        (
            "var/lib/kubelet/kubeadm-flags.env",
            'ARGS="--container-runtime-endpoint=unix:///run/cri-dockerd.sock"',
            "Docker",
        ),
        (
            "etc/systemd/system/kubelet.service.d/10.conf",
            "ARGS=--container-runtime-endpoint /run/crio/crio.sock",
            "CRI-O",
        ),
        ("proc/7/cmdline", "/usr/bin/kubelet\0--container-runtime-endpoint\0unix:///run/crio/crio.sock\0", "CRI-O"),
        ("proc/7/cmdline", "/usr/bin/other\0--container-runtime-endpoint\0unix:///run/crio/crio.sock\0", "containerd"),
        ("run/crio/crio.sock", "", "CRI-O"),
    ],
)
def test_the_kubelet_says_which_runtime_it_uses(tmp_path: Path, name: str, text: str, engine: str) -> None:
    put(tmp_path, CONFIG, CONTAINERD_1)
    put(tmp_path, "etc/crio/crio.conf", CRI_O)
    put(tmp_path, "etc/docker/daemon.json", DOCKER)
    put(tmp_path, name, text)
    assert only(tmp_path).engine == engine


@pytest.mark.parametrize(
    "name",
    [
        "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "etc/k0s/containerd.toml",
        "var/snap/microk8s/4096/args/containerd.toml",
    ],
)
def test_the_containerd_of_a_distribution_counts_before_that_of_docker(tmp_path: Path, name: str) -> None:
    link(tmp_path, "var/snap/microk8s/current", "4096")
    put(tmp_path, CONFIG, "version = 2")
    put(tmp_path, name, CONTAINERD_2)
    assert only(tmp_path).handlers == ("nvidia",)


def test_k0s_merges_the_files_beside_its_own(tmp_path: Path) -> None:
    put(tmp_path, "etc/k0s/containerd.d/nvidia.toml", f"version = 2\n{handler(TWO)}")
    put(tmp_path, "etc/k0s/containerd.d/other.toml", f"version = 2\n{default(TWO)}")
    assert (only(tmp_path).handlers, only(tmp_path).default) == (("nvidia",), True)


def test_a_containerd_without_cri_is_not_the_kubelets(tmp_path: Path) -> None:
    """As Docker installs it."""
    put(tmp_path, CONFIG, 'disabled_plugins = ["cri"]')
    put(tmp_path, "etc/crio/crio.conf", CRI_O)
    assert only(tmp_path).engine == "CRI-O"


def test_cri_o_merges_its_files(tmp_path: Path) -> None:
    put(tmp_path, "etc/crio/crio.conf", CRI_O)
    path = put(tmp_path, "etc/crio/crio.conf.d/99-nvidia.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n')
    assert (only(tmp_path).path, only(tmp_path).handlers, only(tmp_path).default) == (str(path), ("nvidia",), True)
