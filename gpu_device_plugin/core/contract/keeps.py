"""The annotations by which the extender keeps a node that an autoscaler would remove."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import KEEPS, KEPT_NODE

if TYPE_CHECKING:
    from collections.abc import Mapping

_ON = "true"
_LONGEST_MARK = 1024


def own_keeps(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return those of `KEEPS` that the extender wrote and that nobody has changed since."""
    text = annotations.get(KEPT_NODE, "")
    try:
        written = json.loads(text)["keys"] if len(text) <= _LONGEST_MARK else ()
    except (ValueError, LookupError, TypeError, RecursionError):
        written = ()
    keys = written if isinstance(written, list) else ()
    return tuple(key for key in KEEPS if key in keys and annotations.get(key) == _ON)


def kept(annotations: Mapping[str, str], why: str) -> Mapping[str, str | None]:
    """Return the changes of annotations that keep a node, for a reason; none where it is kept already.

    An annotation that a person wrote stays as it is, whatever its value.
    """
    keys = [key for key in KEEPS if key not in annotations]
    if not keys or (KEPT_NODE in annotations and own_keeps(annotations)):
        return {}
    return {**dict.fromkeys(keys, _ON), KEPT_NODE: json.dumps({"keys": keys, "why": why[: _LONGEST_MARK // 4]})}


def let_go(annotations: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the changes of annotations by which a node is no longer kept by the extender."""
    return dict.fromkeys((*own_keeps(annotations), KEPT_NODE)) if KEPT_NODE in annotations else {}
