"""Decode as the archive of the kubectl plugin does, with the stand-in for msgspec: requests and answers are lines.

Run without site-packages, with the folder of the stand-in as ``msgspec.py`` and the repository on the path.
"""

import dataclasses
import importlib
import json
import sys
from typing import Any

import msgspec


def plain(value: Any) -> Any:
    """Return a value so that both implementations' can be compared as JSON."""
    if isinstance(value, msgspec.Raw):
        return {"raw": json.loads(bytes(value))}
    if isinstance(value, msgspec.Struct):
        return {"of": type(value).__name__, **{name: plain(getattr(value, name)) for name in names(type(value))}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            "of": type(value).__name__,
            **{f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)},
        }
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, dict):
        return {"of": "dict", "is": {key: plain(each) for key, each in value.items()}}
    return value


def names(kind: Any) -> Any:
    """Return the names of a struct's fields; the original calls them so, the stand-in too."""
    return kind.__match_args__


def outcome(kind: Any, text: bytes) -> Any:
    """Return the value, or the error."""
    try:
        return {"value": plain(msgspec.json.decode(text, type=kind))}
    except msgspec.ValidationError as error:
        return {"invalid": str(error)}
    except msgspec.DecodeError:
        return {"malformed": True}
    except UnicodeDecodeError:
        return {"not UTF-8": True}


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        kind = getattr(importlib.import_module(asked["module"]), asked["name"])
        print(json.dumps(outcome(kind, bytes.fromhex(asked["text"]))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
