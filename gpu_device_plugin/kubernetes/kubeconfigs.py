"""Say why kubectl's configuration leads to no cluster: which file, and which context, is not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT
from gpu_device_plugin.report.rules.printing import first, nearest

_DEFAULT = Path(".kube", "config")
"""Below the home directory."""
_OF_DISTRIBUTIONS = (
    ("k3s", Path("/etc/rancher/k3s/k3s.yaml")),
    ("RKE2", Path("/etc/rancher/rke2/rke2.yaml")),
    ("kubeadm", Path("/etc/kubernetes/admin.conf")),
)
"""Files with which distributions leave an administrator on a control plane."""


def given_by(flags: Sequence[str]) -> Mapping[str, str]:
    """Return the values of kubectl's flags, as ``--name=value``; of several the last counts, as in kubectl."""
    return dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)


def why_no_cluster(config: Mapping[str, Any] | None, flags: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return why kubectl would find no API server, and what to do; empty: its configuration is no reason.

    `config` is what `kubectl config view` prints, merged of all files; None: kubectl cannot read them. `flags` are
    kubectl's, as ``--name=value``.
    """
    given = given_by(flags)
    if given.get("server"):
        return ""
    if config is None:
        return _of_files(given, environ, ends=True)
    if config.get("kind") != "Config" or _in_pod(environ):  # not kubectl's own words; a pod has its service account
        return ""
    if not config.get("clusters"):
        return _of_files(given, environ) or f"{_source(given, environ)[0]}: no cluster is configured there"
    return _of_context(config, given)


def parsed(text: bytes) -> Mapping[str, Any]:
    """Return a configuration as `kubectl config view` prints it in JSON; empty if this is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def names(config: Mapping[str, Any], plural: str) -> list[str]:
    """Return the names of the contexts, clusters or users of a configuration."""
    every = config.get(plural)
    return [each["name"] for each in every if each.get("name")] if isinstance(every, list) else []


def _in_pod(environ: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environ and (SERVICE_ACCOUNT / "token").exists()


def _of_context(config: Mapping[str, Any], given: Mapping[str, str]) -> str:
    contexts = names(config, "contexts")
    chosen = given.get("context") or config.get("current-context", "")
    if not chosen:
        if given.get("cluster"):
            return ""
        if not contexts:
            return "the kubeconfig has no context, which names cluster and user: see kubectl config set-context --help"
        return f"no context is chosen: kubectl config use-context NAME, or --context NAME, with {first(contexts)}"
    if chosen in contexts:
        return ""
    by = "--context" if given.get("context") else "current-context"
    return f"{by} {chosen}: the kubeconfig has no such context; {nearest(chosen, contexts, _listed(contexts))}"


def _listed(contexts: Sequence[str]) -> str:
    return f"it has {first(contexts)}" if contexts else "it has none"


# --- Files ------------------------------------------------------------------------------------------------------------


def _source(given: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str, list[Path]]:
    """Return what names the files, in words, and the files that it names."""
    if path := given.get("kubeconfig"):
        return "--kubeconfig", [Path(path)]
    if named := environ.get("KUBECONFIG"):
        return "KUBECONFIG", [Path(path) for path in named.split(os.pathsep) if path]
    return "no kubeconfig", [_default(environ)]


def _default(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "~").expanduser() / _DEFAULT


def _of_files(given: Mapping[str, str], environ: Mapping[str, str], *, ends: bool = False) -> str:
    """Return which files say nothing; `ends`: only those that end kubectl, which passes over the others."""
    said, paths = _source(given, environ)
    passes = {"", *_PASSED_OVER} if ends and not given.get("kubeconfig") else {""}
    faults = [f"{_absolute(path)} {why}" for path in paths if (why := _fault(path)) not in passes]
    if not faults:
        return ""
    return f"{said}: {', '.join(faults)}; {_elsewhere(paths, environ)}"


_EMPTY, _MISSING = "is empty", "does not exist"
_QUOTED = f"{_MISSING} (a shell replaces ~ only at the beginning of a word, outside of quotes)"
_PASSED_OVER = (_EMPTY, _MISSING, _QUOTED)


def _absolute(path: Path) -> str:
    return str(path if path.parts[:1] == ("~",) else path.absolute())


def _fault(path: Path) -> str:
    """Return why a file says nothing; empty: it says something."""
    try:
        with path.open("rb") as file:
            return "" if file.read(1 << 16).strip() else _EMPTY
    except FileNotFoundError:
        return _QUOTED if path.parts[:1] == ("~",) else _MISSING
    except IsADirectoryError:
        return "is a directory (name a file in it)"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _elsewhere(paths: Sequence[Path], environ: Mapping[str, str]) -> str:
    """Return where a configuration may be instead."""
    default = _default(environ)
    if default not in paths and default.is_file():
        return f"correct the path, or leave it out: kubectl reads {default} then"
    for name, path in _OF_DISTRIBUTIONS:
        if path not in paths and path.is_file():
            return f"{name} has its own: export KUBECONFIG={path} (root can read it)"
    if user := environ.get("SUDO_USER"):
        return f"sudo runs kubectl as another user: try without it, or name the file of {user} with --kubeconfig"
    return "set KUBECONFIG to the file that your cluster or its administrator gave you, or copy it to ~/.kube/config"
