"""The cordons of a node's GPUs, with who set each, when and why: an annotation of the node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpu_device_plugin.model.contract.keys import CORDONS, MalformedAnnotationError
from gpu_device_plugin.model.gpus import MOST_GPUS

CORDONS_VERSION = 1
LONGEST_CORDONS = 1 << 17
"""Characters of the annotation. `MOST_GPUS` cordons with the longest texts take 95,000."""
LONGEST_REASON = 256
"""Characters of why a GPU is put aside, and of who does it."""
_LONGEST_NAME = 64
"""Characters of a UUID, and of a time."""


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why no new pod gets a GPU. Empty fields are not known."""

    by: str = ""
    """The user, as the API server knows it; or `features.cordon.node.AGENT`."""
    at: str = ""
    """RFC 3339."""
    why: str = ""

    def __str__(self) -> str:
        """Return the cordon as a clause about the GPU."""
        when = f" at {self.at}" if self.at else ""
        return f"cordoned by {self.by or 'somebody'}{when}" + (f" because: {self.why}" if self.why else "")


def read_cordons(text: str) -> Mapping[str, Cordon]:
    """Parse the annotation `CORDONS`: by UUID, of a GPU, a MIG instance, or a GPU in MIG mode with all its instances.

    A damaged entry still cordons its GPU: only who, when and why are lost. Unknown fields are ignored.

    Raises:
        MalformedAnnotationError: it cannot be parsed; the message names the fault.
    """
    if len(text) > LONGEST_CORDONS:
        raise _malformed(f"has more than {LONGEST_CORDONS} characters")
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed("is not JSON") from error
    if not isinstance(found, dict) or found.get("version") != CORDONS_VERSION:
        raise _malformed(f"is no JSON object of version {CORDONS_VERSION}")
    gpus = found.get("gpus")
    if not isinstance(gpus, dict) or len(gpus) > MOST_GPUS:
        raise _malformed(f"has no object of at most {MOST_GPUS} gpus")
    return {
        uuid: _cordon(fields if isinstance(fields, dict) else {})
        for uuid, fields in gpus.items()
        if uuid.isprintable() and len(uuid) <= _LONGEST_NAME
    }


def _cordon(fields: Mapping[str, Any]) -> Cordon:
    lengths = {"by": LONGEST_REASON, "at": _LONGEST_NAME, "why": LONGEST_REASON}
    texts = {key: text for key in lengths if isinstance(text := fields.get(key), str) and text.isprintable()}
    return Cordon(**{key: text[: lengths[key]] for key, text in texts.items()})


def _malformed(why: str) -> MalformedAnnotationError:
    return MalformedAnnotationError(f"the node's annotation {CORDONS} {why}")


def cordons_of(annotations: Mapping[str, str]) -> tuple[Mapping[str, Cordon], str]:
    """Return the cordons of a node, and why they cannot be read; empty if they can, or if there are none.

    Cordons that cannot be read at all cordon nothing: nobody could say which GPUs they are. The doctor tells.
    """
    if CORDONS not in annotations:
        return {}, ""
    try:
        return read_cordons(annotations[CORDONS]), ""
    except MalformedAnnotationError as error:
        return {}, str(error)


def write_cordons(cordons: Mapping[str, Cordon]) -> str | None:
    """Return the value of `CORDONS`, who and why cut to `LONGEST_REASON`; None: no GPU is put aside.

    Raises:
        MalformedAnnotationError: nobody could read it, and all GPUs would take pods again.
    """
    if not cordons:
        return None
    if len(cordons) > MOST_GPUS:
        raise _malformed(f"would have more than {MOST_GPUS} gpus: uncordon those that are gone")
    gpus = {uuid: asdict(_cordon(asdict(cordon))) for uuid, cordon in sorted(cordons.items())}
    return json.dumps({"version": CORDONS_VERSION, "gpus": gpus}, separators=(",", ":"), ensure_ascii=False)


def cordon_of(cordons: Mapping[str, Cordon], uuid: str, card: str) -> Cordon | None:
    """Return the cordon of a GPU, or of an instance: its own, or that of `card`, its GPU; None: it has none."""
    return cordons.get(uuid) or cordons.get(card)
