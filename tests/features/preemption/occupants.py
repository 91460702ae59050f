"""Pods on the GPUs of a node in shorthand, so that a table has one line for each node."""

from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage


def occupants(text: str) -> list[GpuConsumer]:
    """Return pods: ``a4@0 b*@1/5`` are a with 4 shares of GPU 0, and b of priority 5 with GPU 1 whole.

    A pod has several GPUs as in ``c1@0,2@1``, unknown ones as in ``d3@?``, and is being deleted as in ``e1@0-``.
    """
    return [_occupant(word) for word in text.split()]


def _occupant(word: str) -> GpuConsumer:
    name, places, priority = word[0], *word[1:].removesuffix("-").partition("/")[::2]
    shares: dict[int, int] = {}
    whole, unplaced = [], {"*": 0, "shares": 0}
    for amount, position in (place.split("@") for place in places.split(",")):
        if position == "?":
            unplaced["*" if amount == "*" else "shares"] += 1 if amount == "*" else int(amount)
        elif amount == "*":
            whole.append(int(position))
        else:
            shares[int(position)] = int(amount)
    usage = Usage(tuple(sorted(shares.items())), tuple(whole), unplaced["shares"], unplaced["*"])
    return GpuConsumer(name, usage, int(priority or 0), word.endswith("-"), {}, "default", name)
