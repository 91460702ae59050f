"""Write what the containers of a claim get as a CDI file, which the container runtime reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.dra import CDI_KIND, DRIVER

if TYPE_CHECKING:
    from gpu_device_plugin.core.node.grants import Grant

CDI_VERSION = "0.5.0"
"""The oldest version of the format that has all that we write; every runtime with CDI reads it."""
FILE_PREFIX = f"{DRIVER}-claim_"


def file_name(uid: str) -> str:
    """Return the name of the CDI file of a claim."""
    return f"{FILE_PREFIX}{uid}.json"


def uid_of(file: str) -> str:
    """Return the UID of the claim of a CDI file by the file's name; empty: the file is not ours."""
    if not file.startswith(FILE_PREFIX) or not file.endswith(".json"):
        return ""
    return file.removeprefix(FILE_PREFIX).removesuffix(".json")


def device_id(uid: str) -> str:
    """Return the CDI name by which a container gets what the claim with this UID was given.

    It is never used again for anything else: runtimes remember what they read.
    """
    return f"{CDI_KIND}={uid}"


def cdi_spec(uid: str, grant: Grant) -> dict[str, Any]:
    """Return the content of the CDI file of a claim: one device with the variables, device nodes and mounts."""
    edits: dict[str, Any] = {"env": [f"{name}={value}" for name, value in sorted(grant.envs.items())]}
    if grant.device_nodes:
        edits["deviceNodes"] = [{"path": path, "permissions": "rw"} for path in grant.device_nodes]
    if grant.mounts:
        edits["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
            }
            for mount in grant.mounts
        ]
    return {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [{"name": uid, "containerEdits": edits}]}
