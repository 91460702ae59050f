"""A configuration of kubectl that leads to no cluster: which file or context is not there, and what to do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.kubernetes import kubeconfigs
from gpu_device_plugin.kubernetes.kubeconfigs import parsed, why_no_cluster

EMPTY: Mapping[str, Any] = {"kind": "Config", "clusters": None, "contexts": None, "current-context": ""}
GIVEN = "set KUBECONFIG to the file that your cluster or its administrator gave you, or copy it to ~/.kube/config"


def config(*contexts: str, current: str = "") -> Mapping[str, Any]:
    named = [{"name": name, "context": {"cluster": "c"}} for name in contexts]
    return {"kind": "Config", "clusters": [{"name": "c"}], "contexts": named, "current-context": current}


@pytest.fixture(autouse=True)
def _no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfigs, "_OF_DISTRIBUTIONS", ())


def test_each_file_that_says_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    named = f"{tmp_path}/a:{tmp_path}/empty::~/b"
    faults = f"{tmp_path}/a does not exist, {tmp_path}/empty is empty, ~/b does not exist"
    quoted = "(a shell replaces ~ only at the beginning of a word, outside of quotes)"
    assert why_no_cluster(EMPTY, (), {"KUBECONFIG": named, "HOME": "/no"}) == f"KUBECONFIG: {faults} {quoted}; {GIVEN}"


def test_a_file_without_a_cluster_is_none_of_kubectl(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kind: Pod\n")
    said = why_no_cluster(EMPTY, (), {"KUBECONFIG": str(tmp_path / "other")})
    assert said == "KUBECONFIG: no cluster is configured there"


def test_the_flag_comes_before_the_variable_and_a_relative_path_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"KUBECONFIG": "/x", "HOME": "/no"}
    said = f"--kubeconfig: {tmp_path}/conf does not exist; {GIVEN}"
    assert why_no_cluster(None, ("--kubeconfig=conf",), environ) == said


def test_of_files_that_kubectl_cannot_read_only_those_are_named_which_end_it(tmp_path: Path) -> None:
    """Files that are missing or empty it passes over."""
    (tmp_path / "file").write_text("x")
    environ = {"KUBECONFIG": f"/gone:{tmp_path}:{tmp_path}/file/x:{tmp_path}/file", "HOME": "/no"}
    faults = f"{tmp_path} is a directory (name a file in it), {tmp_path}/file/x cannot be read (Not a directory)"
    assert why_no_cluster(None, (), environ) == f"KUBECONFIG: {faults}; {GIVEN}"
    assert why_no_cluster(None, (), {"HOME": str(tmp_path)}) == ""


def test_without_the_variable_the_file_at_home_is_missed(tmp_path: Path) -> None:
    said = why_no_cluster(EMPTY, (), {"HOME": str(tmp_path), "SUDO_USER": "ann"})
    advice = "sudo runs kubectl as another user: try without it, or name the file of ann with --kubeconfig"
    assert said == f"no kubeconfig: {tmp_path}/.kube/config does not exist; {advice}"


def test_a_file_elsewhere_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    k3s = tmp_path / "k3s.yaml"
    monkeypatch.setattr(kubeconfigs, "_OF_DISTRIBUTIONS", (("k3s", k3s),))
    k3s.touch()
    environ = {"KUBECONFIG": "/gone", "HOME": str(tmp_path)}
    assert why_no_cluster(EMPTY, (), environ).endswith(f"; k3s has its own: export KUBECONFIG={k3s} (root can read it)")
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").touch()
    there = f"; correct the path, or leave it out: kubectl reads {tmp_path}/.kube/config then"
    assert why_no_cluster(EMPTY, (), environ).endswith(there)


@pytest.mark.parametrize(
    ("found", "flags", "said"),
    [
        (config("dev", current="dev"), (), ""),
        (config("dev"), (), "no context is chosen: kubectl config use-context NAME, or --context NAME, with dev"),
        (config("dev"), ("--context=dev",), ""),
        (config("dev"), ("--cluster=c",), ""),
        (config(), (), "the kubeconfig has no context, which names cluster and user: see kubectl config set-context "),
        (config("dev"), ("--context=dve",), "--context dve: the kubeconfig has no such context; did you mean dev?"),
        (config("dev", current="x"), (), "current-context x: the kubeconfig has no such context; it has dev"),
        (config(current="x"), (), "current-context x: the kubeconfig has no such context; it has none"),
        (EMPTY, ("--server=http://x",), ""),
        ({}, (), ""),
    ],
)
def test_the_context_that_is_meant_has_to_be_there(found: Mapping[str, Any], flags: tuple[str, ...], said: str) -> None:
    assert why_no_cluster(found, flags, {}).startswith(said)
    assert bool(why_no_cluster(found, flags, {})) == bool(said)


def test_a_pod_needs_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfigs, "SERVICE_ACCOUNT", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": str(tmp_path)}
    assert why_no_cluster(EMPTY, (), environ)
    (tmp_path / "token").touch()
    assert not why_no_cluster(EMPTY, (), environ)


def test_what_is_no_json_object_is_no_configuration() -> None:
    assert [parsed(text) for text in (b"", b"[]", b'{"kind": "Config"}')] == [{}, {}, {"kind": "Config"}]
