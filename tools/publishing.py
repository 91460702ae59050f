"""The files of a release that name where it is published: the manifest for krew, and all manifests in one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PARAMETERS = "release.env"
"""The one file that names owner and registry."""
INSTALLED = ("daemonset.yaml", "scheduler.yaml", "policies.yaml", "viewer.yaml")
"""The manifests of deploy/ that install.yaml has, in the order in which they are applied."""
_IMAGE = re.compile(r"(?m)^(\s*image: )gpu-device-plugin:(\S+)$")
_OURS = "gpu-device-plugin"
_IMAGE_IN_CHART = MappingProxyType(
    {"values.yaml": f"  repository: {_OURS}\n", "README.md": f"| `image.repository` | `{_OURS}` |"}
)


@dataclass(frozen=True)
class Published:
    """Where releases are published."""

    repository: str
    """``https://host/owner/name``."""
    registry: str
    """``host/owner``, before the name of the image and of the chart."""

    @classmethod
    def of(cls, tree: Path) -> Published:
        """Read `PARAMETERS` of a checkout.

        Raises:
            ValueError: it lacks one of them; the message names it.
        """
        text = (tree / PARAMETERS).read_text(encoding="utf-8")
        found = dict(re.findall(r"(?m)^([A-Z]+)=(\S+)$", text))
        missing = [name for name in ("REPOSITORY", "REGISTRY") if name not in found]
        if missing:
            raise ValueError(
                f"{PARAMETERS} does not say {' and '.join(missing)}: write NAME=value on a line of its own"
            )
        return cls(found["REPOSITORY"], found["REGISTRY"])

    @property
    def unfilled(self) -> str:
        """What is still to be written into `PARAMETERS`, as a sentence; empty: nothing."""
        texts = {"REPOSITORY": self.repository, "REGISTRY": self.registry}
        names = [name for name, text in texts.items() if "OWNER" in text.split("/")]
        if not names:
            return ""
        return f"{PARAMETERS} still names OWNER in {' and '.join(names)}: install.yaml and krew's manifest lead nowhere"


def install(deploy: Path, published: Published) -> str:
    """Return the manifests of agent, scheduler, policies and viewers as one, with the published image.

    Args:
        deploy: the folder with the manifests.
        published: names the registry.
    """
    parts = [(deploy / name).read_text(encoding="utf-8") for name in INSTALLED]
    whole = "---\n".join(f"# --- {name}\n{text.rstrip()}\n" for name, text in zip(INSTALLED, parts, strict=True))
    head = (
        "# All that sharing GPUs needs: the agent, the scheduler, the admission policies and a role for viewers.\n"
        "#\n"
        "#   kubectl apply -f install.yaml\n"
        "#   kubectl label node NODE gpushare=true\n"
        "#\n"
        "# The policies need Kubernetes 1.30 or newer; kube-scheduler must not be newer than the API server.\n"
    )
    return head + _IMAGE.sub(rf"\g<1>{published.registry}/gpu-device-plugin:\g<2>", whole)


def chart(folder: Path, published: Published) -> Mapping[str, str]:
    """Return the files of the chart in `folder` that name the image, with the published one."""
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in _IMAGE_IN_CHART}
    return {
        name: text.replace(_IMAGE_IN_CHART[name], _IMAGE_IN_CHART[name].replace(_OURS, f"{published.registry}/{_OURS}"))
        for name, text in texts.items()
    }


def krew(version: str, archive: str, sha256: str, published: Published) -> str:
    """Return the manifest by which krew installs the kubectl plugin.

    Args:
        version: of the release.
        archive: the name of the .tar.gz with the plugin and its licence.
        sha256: the checksum of that file, in hexadecimal.
        published: names the repository.
    """
    return f"""\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: inspect-gpushare
spec:
  version: v{version}
  homepage: {published.repository}
  shortDescription: Show which pods use which GPU, and why one waits
  description: |
    Shows the GPUs of a cluster that pods share by memory (aliyun.com/gpu-mem): which pods hold which part of each GPU,
    how much they really use, and why a pod waits. Also a page in the browser, and a doctor for the cluster.
  caveats: |
    Needs Python 3.11 or newer as python3 on the PATH. The command is `kubectl inspect-gpushare`.
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [darwin, linux]}}
          - {{key: arch, operator: In, values: [amd64, arm64]}}
      uri: {published.repository}/releases/download/v{version}/{archive}
      sha256: {sha256}
      bin: kubectl-inspect_gpushare
      files:
        - from: kubectl-inspect_gpushare
          to: .
        - from: LICENSE
          to: .
"""
