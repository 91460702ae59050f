"""Nodes and pods as people write them on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil

from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.workload_mix import GpuKind, NodeType, PodKind
from gpu_device_plugin.hardware.fake.gpu_models import MODELS, UNIFIED
from gpu_device_plugin.kubernetes.objects.quantity import allocatable_amounts
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.gpus import MOST_GPUS, MOST_SHARES
from gpu_device_plugin.model.mig import GPU_SLICES
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.programs.simulate.model import MOST_ARRIVALS, counted, told
from gpu_device_plugin.report.rules.printing import nearest

SHARE_MIB = 1024
"""Of a share of GPU memory, by default."""
_NODE_WORDS = ("gpus", "mem", "model", "mig", "divided", "cpu", "memory")
_POD_WORDS = ("mem", "count", "split", "model", "cpu", "memory")
_MOST_AMOUNT = 10**9
"""Thousandths of a CPU, and MiB."""
_MOST_GB = 1.1
"""The most that the GB in the names of a GPU's MIG instances make of its shares: names are rounded up."""
_PROFILE = re.compile(r"([1-7])g\.([1-9][0-9]{0,3})gb(?:[+.-][a-z]+)*", re.ASCII)
_TIMES = re.compile(r"([0-9]{1,9})x(.*)", re.IGNORECASE)
_APART = re.compile(r"^(?:[0-9]{1,9}x)+(?=[0-9A-Z])", re.IGNORECASE)  # not within a model, such as RX7900XTX
_MOST_GIB_MEANT = 4096
"""A larger number of bytes was meant as MiB."""
_SIZE = re.compile(r"([0-9]{1,9})([MGT])i?B?", re.IGNORECASE | re.ASCII)
_GIB = {"M": Fraction(1, 1024), "G": Fraction(1), "T": Fraction(1024)}
_WRONG_WORDS = {
    "gpu": "count for whole GPUs, or mem for shares of one",
    "gpus": "count for whole GPUs, or mem for shares of one",
    "gpumem": "mem",
    "vram": "mem",
    "ram": "memory",
    "replicas": "a number in front, as in 40x",
    "pods": "a number in front, as in 40x",
    "nodes": "a number in front, as in 10x",
}
"""What people write of a node or a pod, and which word says it; only where that is not a word itself."""


_OTHER_SIZES = {
    ("A100", 40): ("NVIDIA A100-SXM4-40GB", 40960),
    ("V100", 32): ("Tesla V100-SXM2-32GB", 32768),
    ("H100", 94): ("NVIDIA H100 NVL", 95830),
}
"""Models with other memory than `MODELS` has: the product, and MiB."""
_NOISE = re.compile(
    r"NVIDIA|GEFORCE|TESLA|AMPERE|SXM[0-9]?|PCIE|NVL|HBM[0-9]E?|AMD|INSTINCT|RADEON|OAM|INTEL|ARC|GRAPHICS", re.ASCII
)
"""Words of a product that tell its maker and how it is built in."""
_GB = re.compile(r"([0-9]{1,4})GB?", re.ASCII)


def shares_meant(amount: str) -> int | None:
    """Return the shares, 1 GiB each, that memory with a unit means, such as ``40Gi``; None: it has no unit."""
    size = _SIZE.fullmatch(amount)
    return ceil(int(size[1]) * _GIB[size[2].upper()]) if size else None


def known_model(name: str) -> tuple[str, int] | None:
    """Return a model of GPUs by its name, such as ``H100``, ``A100-40GB`` or ``RTX 4090``; None: it is not known.

    It is the product as the driver names it, and the shares that an agent makes of it by default, 1 GiB each.
    """
    words = [word for word in re.split(r"[\s-]+", name.upper()) if not _NOISE.fullmatch(word)]
    size = next((int(found[1]) for word in words if (found := _GB.fullmatch(word))), 0)
    joined = "".join(word for word in words if not _GB.fullmatch(word))
    known = {**{product.upper(): each for each, (product, *_) in MODELS.items()}, **{each: each for each in MODELS}}
    names = (joined, joined.removeprefix("RTX"), joined.removeprefix("PRO"), name.upper())
    short = next((known[each] for each in names if each in known), None)
    if short is None:
        return None
    product, total_mib, reserved_mib, *_ = MODELS[short]
    if (short, size) in _OTHER_SIZES:
        product, total_mib = _OTHER_SIZES[short, size]
    elif size and product.upper() != name.upper() and not 0.98 * total_mib <= size << 10 <= 1.1 * total_mib:
        return None  # what is sold as 48 GB has 45 GiB at times
    # An agent gives one with the machine's memory whole.
    return product, 1 if short in UNIFIED else (total_mib - reserved_mib) // SHARE_MIB


def begins_with_model(text: str) -> bool:
    """Return whether the first words of a text name a known model."""
    words = re.split(r"[,;]|\s+\S*=", text, maxsplit=1)[0]
    return known_model(_without_size(words)) is not None


def _without_size(name: str) -> str:
    return re.split(r"[\s-]+[0-9]+G", name, maxsplit=1, flags=re.IGNORECASE)[0]


class EntryError(ValueError):
    """A node or a pod cannot be read; the message names the entry and says what is wrong."""


def nodes_in(text: str) -> tuple[Start, ...]:
    """Read nodes such as ``10x gpus=4 mem=24 model=A10 cpu=64 memory=256Gi; 2x gpus=8 mem=80``.

    Raises:
        EntryError: an entry cannot be read.
    """
    found: list[Start] = []
    for name, number, words in _entries(text, _NODE_WORDS):
        gpus = _number(name, words, "gpus", 1, MOST_GPUS)
        model = words.get("model", "")
        product, shares = known_model(model) or (model, None)
        mem = _number(name, words, "mem", shares, MOST_SHARES)
        profiles = _profiles(name, words, mem)
        if "divided" in words and not profiles:
            raise EntryError(f"{name}: divided says how many of the GPUs have the instances of mig; give mig too")
        divided = _number(name, words, "divided", gpus if profiles else 0, gpus)
        room = _amounts(name, words, {"cpu": "256", "memory": "4Ti"})
        shape = _shape(mem, model if "mem" in words else product, gpus - divided, profiles * divided, room)
        found += [Start.empty(f"{name}-{at + 1}", shape) for at in range(number)]
    return tuple(found)


def pods_in(text: str) -> list[tuple[str, PodKind]]:
    """Read pods, each with its entry as a name, such as ``40x mem=8 cpu=4 memory=16Gi; 5x count=2 cpu=16``.

    Raises:
        EntryError: an entry cannot be read.
    """
    found: list[tuple[str, PodKind]] = []
    for name, number, words in _entries(text, _POD_WORDS):
        mem = _number(name, words, "mem", 0, MOST_SHARES)
        count = _number(name, words, "count", 0, MOST_GPUS)
        split = _number(name, words, "split", 1, MOST_GPUS)
        if mem and count:
            raise EntryError(f"{name}: mem and count are the same hardware; give one of them")
        if mem % max(1, split) or not split:
            raise EntryError(f"{name}: a mem of {mem} cannot be split over {split} GPUs; give a multiple")
        asked = _amounts(name, words, {"cpu": "0", "memory": "0"})
        models = tuple(model for model in words.get("model", "").split("|") if model)
        gpus = split if mem else count
        kind = PodKind(mem // split, gpus, asked.cpu_milli, asked.memory_mib, GpuSelector(models))
        label = " ".join(f"{word}={value}" for word, value in words.items()) or told(kind)
        found += [(label, kind)] * number
    return found


def _profiles(name: str, words: Mapping[str, str], mem: int) -> list[tuple[tuple[str, int], ...]]:
    """Return the MIG instances of one GPU, each with its profile and its shares, in a list; an empty one without."""
    if "mig" not in words:
        return []
    instances: list[tuple[str, int]] = []
    slices = 0
    for part in words["mig"].split("/"):
        profile, times, number = part.partition("*")
        match, copies = _PROFILE.fullmatch(profile), number if times else "1"
        if match is None or not re.fullmatch("[1-7]", copies, re.ASCII):
            raise EntryError(f"{name}: mig is {part[:40]!r}; write PROFILE*NUMBER, as in mig=1g.10gb*4/3g.40gb")
        slices += int(match[1]) * int(copies)
        instances += [(profile, int(match[2]))] * int(copies)
    if slices > GPU_SLICES:
        raise EntryError(f"{name}: mig has {slices} slices, and a GPU has {GPU_SLICES}; give fewer instances")
    if sum(shares for _, shares in instances) > _MOST_GB * mem:
        raise EntryError(f"{name}: the instances of mig have more memory than the GPU's mem of {mem}; give fewer")
    return [tuple(instances)]


def _shape(mem: int, model: str, whole: int, divided: Iterable[Iterable[tuple[str, int]]], room: Amounts) -> NodeType:
    """Return an empty node: whole GPUs, then the MIG instances of each of its other GPUs."""
    gpus = [GpuKind(mem, model)] * whole
    cards: list[int | None] = [None] * whole
    for instances in divided:
        first = len(gpus)
        gpus += [GpuKind(shares, f"{model} MIG {profile}".strip(), instance=True) for profile, shares in instances]
        cards += [first] * (len(gpus) - first)
    return NodeType(
        tuple([gpu.size for gpu in gpus]),
        tuple([gpu.model for gpu in gpus]),
        room.cpu_milli,
        room.memory_mib,
        tuple(cards) if len(gpus) > whole else (),
    )


def _entries(text: str, known: tuple[str, ...]) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    """Yield nodes or pods that are alike: how they were written, how many they are, and what is said of them."""
    total = 0
    for entry in filter(None, map(str.strip, text.split(";"))):
        words: dict[str, str] = {}
        if entry.startswith("-"):
            raise EntryError(f"{entry!r}: a count cannot be negative; begin with a number, as in 3x")
        number, parts = _counted_parts(entry, of_nodes="gpus" in known)
        for name, value in _named(entry, parts, known):
            if name in words:
                raise EntryError(f"{entry!r}: {name} stands there twice; remove one")
            words[name] = value
        _known(repr(entry), words, known)
        total += number
        if total > MOST_ARRIVALS:
            raise EntryError(f"{entry!r}: that makes more than {MOST_ARRIVALS:,}; give fewer")
        yield repr(entry), number, words


def _counted_parts(entry: str, *, of_nodes: bool) -> tuple[int, list[str]]:
    """Return how many are alike, and the words of an entry without this number."""
    parts = entry.replace(",", " ").split()
    if of_nodes:
        parts = _with_models_joined(parts)
    if parts[:1] and parts[0].isdigit():
        raise EntryError(f"{entry!r}: {parts[0]!r} is no word; did you mean {parts[0]}x?")
    times = _TIMES.fullmatch(parts[0]) if parts else None
    if times is None or times[2]:
        return 1, parts
    number, parts = int(times[1]), parts[1:]
    if of_nodes and parts and "=" not in parts[0] and not _TIMES.fullmatch(parts[0]):
        # 4x H100 is a node with four of them, as it is in a shop.
        if any(part.startswith("gpus=") for part in parts):
            raise EntryError(
                f"{entry!r}: {number}x {parts[0]} are the GPUs of one node, and gpus= says how many too; "
                f"for {counted(number, 'node')} begin with {number}x gpus="
            )
        return 1, [f"{number}x{parts[0]}", *parts[1:]]
    return number, parts


def _with_models_joined(parts: Sequence[str]) -> list[str]:
    """Return the words of a node with numbers apart, as in ``4x 8x H100``, and the words of a model as one."""
    found: list[str] = []
    apart = [
        each for part in parts for each in _APART.sub(lambda times: re.sub("[xX]", r"\g<0> ", times[0]), part).split()
    ]
    for part in apart:
        model = "=" not in part and not _TIMES.fullmatch(part)
        if model and found and "=" not in found[-1] and not _TIMES.fullmatch(found[-1]):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def _named(entry: str, parts: Sequence[str], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the words of an entry with their values. A node's GPUs may be written as ``8x H100``, or as ``H100``."""
    rest = iter(parts)
    for part in rest:
        name, found, value = part.partition("=")
        times = _TIMES.fullmatch(part)
        if found and value:
            yield name, value
        elif "gpus" in known and times:
            yield "gpus", times[1]
            yield "model", _model(entry, times[2] or next(rest, part))
        elif "gpus" in known and not found:
            yield "model", _model(entry, part)
        else:
            raise EntryError(f"{entry!r}: {part!r} is not like {known[0]}=8; write NUMBERx WORD=VALUE ...")


def _model(entry: str, word: str) -> str:
    """Return the name of a known model that stands for itself, without ``model=``."""
    if known_model(word) is None:
        bare = _without_size(word)
        if bare != word and (model := known_model(bare)):
            raise EntryError(f"{entry!r}: {model[0]} is not known with so much memory; write model={bare} and mem=")
        hint = nearest(word, MODELS, f"write gpus=8 mem=80, or one of {', '.join(MODELS)}")
        other = " For another GPU write gpus=8 mem=80" if hint.startswith("did") else ""
        raise EntryError(f"{entry!r}: {word[:40]!r} is no GPU that is known here; {hint}{other}")
    return word


def _known(name: str, words: Mapping[str, str], known: tuple[str, ...]) -> None:
    for word in words:
        if word not in known:
            choice = f"use {', '.join(known)}"
            meant = None if word == "gpu" and "gpus" in known else _WRONG_WORDS.get(word.replace("-", "").lower())
            hint = f"write {meant}" if meant else nearest(word, known, choice)
            raise EntryError(f"{name}: there is no {word[:40]!r} here; {hint}")


def _number(name: str, words: Mapping[str, str], word: str, default: int | None, most: int) -> int:
    if word not in words and default is not None:
        return default
    text = words.get(word, "")
    if word == "mem" and (meant := shares_meant(text)) is not None:
        raise EntryError(
            f"{name}: mem is {text!r}, and it counts shares of GPU memory, 1 GiB each unless configured otherwise; "
            f"write it without a unit, as in mem={meant}"
        )
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
        said = "is missing" if word not in words else f"is {text[:40]!r}"
        raise EntryError(f"{name}: {word} {said}; write a whole number of at most {most:,}, as in {word}=8")
    return int(text)


def _amounts(name: str, words: Mapping[str, str], default: Mapping[str, str]) -> Amounts:
    found = allocatable_amounts({word: words.get(word, usual) for word, usual in default.items()})
    memory = words.get("memory", "")
    if found is not None and not found.memory_mib and re.search("[1-9]", memory):
        meant = f"{memory}{'Gi' if int(memory) <= _MOST_GIB_MEANT else 'Mi'}" if memory.isdecimal() else ""
        hint = f"did you mean {meant}?" if meant else "write 16Gi, for example"
        raise EntryError(f"{name}: memory={memory} is less than a MiB, as a number without a unit counts bytes; {hint}")
    if found is None:
        raise EntryError(f"{name}: cpu and memory are quantities of Kubernetes, as in cpu=500m memory=16Gi")
    if found.cpu_milli > _MOST_AMOUNT or found.memory_mib > _MOST_AMOUNT:
        raise EntryError(f"{name}: no machine has so much CPU or memory; give at most a million CPUs and 953Ti")
    return found
