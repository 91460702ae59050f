"""The annotation of a pod with the MIG instances that its containers were given whole.

Their number is kube-scheduler's affair and the choice of them the kubelet's, so nobody promises them: the agent writes
what the kubelet's record says, for people and their tools.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import INSTANCES, LONGEST, MalformedAnnotationError, too_long

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,92}", re.ASCII)
"""A UUID of NVML, of older drivers too: ``MIG-GPU-<UUID>/<GPU instance>/<compute instance>``."""


def write(instances: Mapping[str, Collection[str]]) -> str:
    """Return the annotation for the UUIDs of each container's instances, by its name.

    Containers without instances are left out. A text that no reader would accept, because it is too long, becomes
    ``{}``.
    """
    held = {name: sorted(uuids) for name, uuids in sorted(instances.items()) if uuids}
    text = json.dumps(held, separators=(",", ":"))
    return "{}" if too_long(INSTANCES, text) else text


def read(text: str) -> Mapping[str, tuple[str, ...]]:
    """Parse the annotation `INSTANCES` of a pod: the UUIDs of each container's instances, by its name.

    Raises:
        MalformedAnnotationError: the value is too long, or not what `write` writes.
    """
    if too_long(INSTANCES, text):
        raise MalformedAnnotationError(f"{INSTANCES} is longer than {LONGEST[INSTANCES]} characters")
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedAnnotationError(f"{INSTANCES} is not JSON") from error
    if not isinstance(parsed, dict) or not all(_are_uuids(uuids) for uuids in parsed.values()):
        raise MalformedAnnotationError(f'{INSTANCES} is not of the form {{"container": ["MIG-..."]}}')
    return {name: tuple(uuids) for name, uuids in parsed.items()}


def _are_uuids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(uuid, str) and _UUID.fullmatch(uuid) for uuid in value)
