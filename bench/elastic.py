"""Measure memory that grows and shrinks: ``python -m bench.elastic``.

The real programs run beside doubles of the kubelet and the API server, and with kube-apiserver, etcd and kube-scheduler
in KUBE_BIN beside these.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bench import elastic_reading, elastic_resizing, series, synthetic
from bench.extender import both, session
from bench.kubeapi import binaries
from bench.node_agent import MEMORY, NODE, Row, add_only, allocating, first_list, machine, percentiles, running, show
from gpu_device_plugin.features.elastic.contract import MEMORY_FILE
from gpu_device_plugin.features.elastic.memory_files import slot
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.model.contract.keys import ASSIGNED, MEMORY_LIMIT
from tests import builders
from tests.cluster_double.api_server import ApiServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.node_agent import Run

T = TypeVar("T")
RETURN_BAR_S, DECISION_BAR_S, BLOCKED_BAR_MS = 5.0, 1.0, 50.0
_FULL_MIB, _PART = 14_000, 4
"""Of a T4 that are in use when its only container borrows all that it can get, and the shares of each container."""
_PROGRAM = Path(__file__).parents[1] / "docs" / "examples" / "gpushare_memory.py"
_PATIENCE_S = 60.0


def worst(what: str, times_s: Sequence[float], bar_s: float | None = None, note: str = "") -> Iterator[Row]:
    """Yield the median and the longest of some times."""
    bar = None if bar_s is None else bar_s * 1000
    yield Row(f"{what}, median", percentiles(times_s)[0] * 1000, note=note or f"{len(times_s)} times")
    yield Row(f"{what}, worst", max(times_s) * 1000, bar=bar)


# --- A program that returns what it borrows ---------------------------------------------------------------------------


@dataclass(slots=True)
class Borrower:
    """A program that uses all of a GPU, and follows its memory file as docs/examples do."""

    description: Path
    process: Mapping[str, object]
    returned: threading.Event = field(default_factory=threading.Event)
    used_mib: int = 0

    def use(self, mib: int) -> None:
        """Use so much of the GPU from now on."""
        self.used_mib = mib
        new = self.description.with_suffix(".new")
        processes = [{**self.process, "used": f"{mib}MiB"}]
        new.write_text(json.dumps({"gpus": [{"model": "T4", "processes": processes}]}))
        new.replace(self.description)

    def changed(self, memory: Mapping[str, Any]) -> None:
        """Act on a new memory file."""
        if memory["return"] is not None:
            self.use(self.used_mib - memory["return"]["mib"])

    def follow(self, path: Path) -> threading.Event:
        """Follow the file from now on, until the result is set."""
        spec = importlib.util.spec_from_file_location("gpushare_memory", _PROGRAM)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        ended: threading.Event = module.follow(self.changed, str(path))
        return ended


def returns(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Have containers started whose memory is borrowed, and measure how long PreStartContainer takes to answer."""
    took = asyncio.run(_returns(root, options.times))
    yield from worst("return of 4 GiB that a start needs", took, RETURN_BAR_S)


async def _returns(root: Path, times: int) -> list[float]:
    proc, memory_dir = root.with_suffix(".proc"), root.with_suffix(".memory")
    (process,) = series.processes(proc, [synthetic.uid(0)])
    program = Borrower(root.with_suffix(".json"), process)
    program.use(0)
    rng, took = random.Random(0), list[float]()  # noqa: S311 - repeatable
    async with ApiServer() as api, session() as http:
        api.add(builders.node(NODE))
        flags = ("--api", api.url, "--node-name", NODE, "--memory-dir", str(memory_dir))
        async with elastic_resizing.entered(running(root, *flags, gpus=str(program.description), proc=proc)) as run:
            ids = first_list(run)[1]
            ours = ids[:_PART]
            await _starts(run, api, 0, ours, {MEMORY_LIMIT: str(len(ids))})
            path = memory_dir / slot(ours) / MEMORY_FILE
            await until(path.is_file)
            ended = program.follow(path)
            at_first = 0
            for number in range(1, times + 1):
                least_mib = at_first
                await until(
                    lambda: (found := _memory(path))["return"] is None and found["limit_mib"] >= least_mib  # noqa: B023
                )
                at_first = at_first or _memory(path)["limit_mib"]
                program.use(_FULL_MIB)
                await asyncio.sleep(1 + rng.random())  # the program looks once a second
                theirs = ids[_PART:][:_PART] if number % 2 else ids[2 * _PART :][:_PART]
                await _starts(run, api, number, theirs)
                request = pb.PreStartContainerRequest(devices_ids=theirs)
                took.append(await asyncio.to_thread(run.mem.call, "PreStartContainer", request) / 1000)
                assert program.used_mib < _FULL_MIB, "nobody returned anything"
                api.delete("pods", f"pod-{number}")
                run.kubelet.drop(synthetic.uid(number))
                run.kubelet.write_checkpoint([MEMORY])
            ended.set()
        del http
    return took


async def _starts(
    run: Run, api: ApiServer, number: int, ids: Sequence[str], selector: Mapping[str, str] | None = None
) -> None:
    """Have a pod admitted with these devices."""
    promise = {"ALIYUN_COM_GPU_MEM_IDX": "0", ASSIGNED: "false"}
    uid, name = synthetic.uid(number), f"pod-{number}"
    annotations = {**promise, **(selector or {})}
    main = builders.container(mem=len(ids))
    api.add(builders.pod(name, main, uid=uid, node=NODE, phase="Pending", annotations=annotations))
    await asyncio.sleep(0.3)  # until the watch has told
    await asyncio.to_thread(run.mem.call, "Allocate", allocating(ids))
    run.kubelet.hold(uid, MEMORY, ids)
    run.kubelet.write_checkpoint([MEMORY])


def _memory(path: Path) -> Any:
    return json.loads(path.read_text())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > _PATIENCE_S:
            raise SystemExit("what was waited for has not come about")
        await asyncio.sleep(0.02)


def reading(_: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure what a reading costs on a node whose containers all may borrow."""
    of = f"{elastic_reading.CONTAINERS} containers that may borrow"
    for longest, what in ((False, of), (True, f"{of}, with the longest wishes")):
        cost, piece, files = elastic_reading.reading(longest=longest, rounds=options.times)
        yield Row(f"a reading with {what}, CPU", cost, note=f"every second writes {files} files")
        yield Row(f"the longest part of a reading with {what}, CPU", piece, bar=BLOCKED_BAR_MS)


def resizes(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure how soon extender and agent answer a wish: beside the API double, and beside a real API server."""
    for real in (False, True) if binaries() else (False,):
        folder = root.with_suffix(f".{real}")
        folder.mkdir()
        found = asyncio.run(elastic_resizing.answers(folder, options.times, real=real))
        how = "real API server and kube-scheduler" if real else "API double"
        yield from worst(f"a wish for more to its promise, {how}", found.promised, DECISION_BAR_S)
        yield from worst(f"a wish for more until it is held, {how}", found.held)
        yield from worst(f"a wish for less until all have answered, {how}", found.lowered)


def selector(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Measure what a pod whose wish changes all the time costs the others."""
    of = f"{options.nodes:,} nodes"
    found = elastic_resizing.beside(root, options.nodes, options.calls, options.times)
    yield from both(f"filter over HTTP, {of}", found.quiet_ms)
    yield from both(f"filter over HTTP, {of}, a pod changes its wish all the time", found.filter_ms)
    note = f"{found.wishes_per_s:,.0f} wishes a second"
    yield from worst("a wish for more to its promise, meanwhile", found.promised_s, DECISION_BAR_S, note)


PARTS: Mapping[str, Callable[[Path, argparse.Namespace], Iterator[Row]]] = {
    "returns": returns,
    "resizes": resizes,
    "wishes": selector,
    "reading": reading,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.elastic", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="returns, decisions and readings")
    parser.add_argument("--nodes", type=int, default=1000, help="of the cluster in which a pod changes its wish")
    parser.add_argument("--calls", type=int, default=400, help="calls of the extender")
    add_only(parser, PARTS)
    options = parser.parse_args(argv)
    print(machine("a T4") + "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for part in options.only:
            Path(name, part).mkdir()
        show(row for part in options.only for row in PARTS[part](Path(name, part, "node"), options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
