"""The kubeconfig of somebody who talks to an API server of the tests."""

import json
from pathlib import Path

from gpu_device_plugin.kubernetes.client.config import ClusterConfig


def kubeconfig(config: ClusterConfig, file: Path, **user: str) -> Path:
    """Write it for the bearer of the server's own token, or for another `user`; return the file."""
    cluster = {"server": config.url, "certificate-authority": str(config.ca_file)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {"token": config.token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    return file
