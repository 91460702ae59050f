"""Start a cluster of one node that is ready, and knows the images that our manifests name.

To look around in it: `make cluster`.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.docs.guide_world import EXAMPLES, documents
from tests.docs.pages import blocks, text_of
from tests.e2e import archives, real_cluster
from tests.e2e.cluster import ROOT, Cluster, containers

DEPLOY = ROOT / "deploy"
OURS = {"agent", "extender"}
ASK = "takes minutes and real programs: make e2e"


def why_not() -> str:
    """Say why no test can have a cluster, started or of one's own; empty if one can."""
    if not os.environ.get("E2E"):
        return ASK
    if "E2E_NODE" in os.environ or not (reason := real_cluster.missing()):
        return ""
    return f"{reason}; or let KUBECONFIG and E2E_NODE name a cluster and a node of it: docs/testing.md"


@contextmanager
def started() -> Iterator[Cluster]:
    """Have a cluster within the `with` block, of the programs in KUBE_BIN; see `real_cluster.missing`."""
    with real_cluster.RealCluster() as own:
        load_images(own)
        own.start_kubelet()
        made = Cluster(real_cluster.NODE, finding_our_plugin(own.environ), own)
        made.kubectl("apply", "--filename", str(DEPLOY / "overlays" / "runtime-class" / "runtime-class.yaml"))
        ready = ("wait", "--for=condition=Ready", f"node/{made.node}", "--timeout=10s")
        made.until(lambda: made.run("kubectl", *ready).returncode == 0, "the node is ready")
        yield made


def finding_our_plugin(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Let kubectl find the plugin that is installed beside the Python that runs the tests."""
    return {**environ, "PATH": os.pathsep.join([environ["PATH"], str(Path(sys.executable).parent)])}


def yaml_of(page: Path) -> list[str]:
    return [block.text for block in blocks(text_of(page), "yaml")]


def load_images(own: real_cluster.RealCluster) -> None:
    """Let the node know every image that the manifests name, made of what this machine has."""
    shipped = {each["name"]: each["image"] for path in DEPLOY.glob("*.yaml") for each in containers(documents(path))}
    shown = {each["image"] for path in EXAMPLES.glob("*.yaml") for each in containers(documents(path))}
    archive = own.home / "image.tar"
    archives.write_pause(archive, real_cluster.PAUSE)
    own.load(archive)
    archives.write_workload(archive, sorted(shown))
    own.load(archive)
    scheduler = own.kube / "kube-scheduler"
    version = subprocess.run([scheduler, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    repository = shipped["kube-scheduler"].rpartition(":")[0]
    archives.write_program(archive, [f"{repository}:{version}"], scheduler)
    own.load(archive)
    archives.write_ours(archive, sorted({shipped[name] for name in OURS}))
    own.load(archive)


def of_another_version(cluster: Cluster, folder: Path) -> list[dict[str, Any]]:
    """Return the manifests of another version: of the commit that E2E_FROM names, else this one's with another image.

    `folder` is for the sources.
    """
    image = "gpu-device-plugin:other"
    if cluster.own is None:
        if not (image := os.environ.get("E2E_OTHER_IMAGE", "")):
            pytest.skip("E2E_OTHER_IMAGE is unset: it names the image of another version")
        return [body for path in sorted(DEPLOY.glob("*.yaml")) for body in cluster.adapted(path, image)]
    sources = ROOT
    if commit := os.environ.get("E2E_FROM", ""):
        sources = folder
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "--extract"], cwd=sources, input=packed, check=True)
    archive = cluster.own.home / "other.tar"
    archives.write_ours(archive, [image], sources)
    cluster.own.load(archive)
    return [body for path in sorted((sources / "deploy").glob("*.yaml")) for body in cluster.adapted(path, image)]


def main() -> None:
    """Keep a cluster until Ctrl-C, and say how to reach it."""
    if reason := real_cluster.missing():
        sys.exit(reason)
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    with suppress(KeyboardInterrupt), started() as made:
        assert made.own is not None
        variables = [f"{name}={made.environ[name]}" for name in ("KUBECONFIG", "PATH")]
        shell = shlex.join([*made.own.entering_network, "env", *variables, "bash"])
        sys.stdout.write(f"Node {made.node} is ready until Ctrl-C. A shell that reaches it, elsewhere:\n{shell}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
