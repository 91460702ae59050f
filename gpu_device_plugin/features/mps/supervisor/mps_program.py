"""Run the MPS daemons that the node agent asks for, and report their state, through two files shared with it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.features.mps.contract import MPS_FILES, SHM_DIRECTORY, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_daemon import QUIT_S
from gpu_device_plugin.features.mps.supervisor.gpu import TIMINGS, GpuKeeper, MpsTimings
from gpu_device_plugin.features.mps.supervisor.nvidia import Nvidia
from gpu_device_plugin.features.mps.supervisor.places import Places, open_directory, share
from gpu_device_plugin.file_link import HelperLink
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.lifetime import ReloadingProgram
from gpu_device_plugin.model.gauges import Gauge, Gauges
from gpu_device_plugin.probes import serving_probes
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources, Texts

_log = logging.getLogger(__name__)

UP = Gauge("gpushare_mps_up", "1 while the MPS daemon of the GPU takes clients.", ("gpu",))
CLIENTS = Gauge("gpushare_mps_clients", "Processes that are clients of the GPU's MPS daemon.", ("gpu",))

POLL_S = 0.5
"""Seconds between two looks at what is wanted."""
BEAT_S = 2.0
"""Longest time between two writings of the state."""
_AFTER_BUG_S = 5.0
_FINISH_S = QUIT_S + 30.0
"""Longest time in which all GPUs are given back at the end: a daemon quits or is killed, and the mode is set."""


class Supervisor:
    """Keeps every GPU that is wanted, or that an earlier supervisor had."""

    def __init__(self, directory: Path, driver: Nvidia, *, timings: MpsTimings = TIMINGS) -> None:
        """Prepare, and read what an earlier supervisor left below `directory`. Raises OSError."""
        open_directory(directory)
        self.files = HelperLink(directory, MPS_FILES, boot_time)
        self._driver = driver
        self._timings = timings
        self._places = Places(directory)
        self._keepers: dict[str, GpuKeeper] = {}
        self._finishing = False

    @property
    def gpus(self) -> Mapping[str, MpsGpu]:
        """The GPUs that are or were kept, by UUID."""
        return {uuid: keeper.told for uuid, keeper in self._keepers.items()}

    async def unready(self) -> tuple[str, ...]:
        """Return why the agent does not get what it wants; a GPU that starts is no reason."""
        broken = (
            f"{uuid}: {gpu.status}: {gpu.why}"
            for uuid, gpu in self.gpus.items()
            if gpu.status in {MpsStatus.FAILED, MpsStatus.FAULT}
        )
        return tuple(filter(None, (self.files.refused, self.files.unwritten, *broken)))

    async def run(self) -> NoReturn:
        """Supervise, until cancelled; the daemons run on. Before that, `finish` ends them."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.files.publish(self._state, BEAT_S), name="tell what runs")
            while True:
                if not self._finishing:
                    self.files.read()
                self._distribute(tasks)
                await asyncio.sleep(POLL_S)

    async def finish(self) -> None:
        """End every daemon and set the compute modes back, while `run` still runs."""
        self._finishing = True
        if self.files.wanted is None:
            return
        self.files.wanted = {}
        for keeper in self._keepers.values():
            keeper.want(None)
        done = asyncio.gather(*(keeper.done.wait() for keeper in self._keepers.values()))
        if not await wait_within(_FINISH_S, done):
            left = [uuid for uuid, gpu in self.gpus.items() if gpu.status is not MpsStatus.STOPPED]
            _log.error("GPUs are left as they are; the next supervisor goes on", extra={"gpus": left})

    async def write_last(self) -> None:
        """Write the state once more, when `run` has ended."""
        if (state := self._state()) is not None:
            self.files.write(state)

    def _state(self) -> Mapping[str, MpsGpu] | None:
        """Return the state for the agent; None: nothing is touched before it is known what is wanted."""
        return None if self.files.wanted is None else self.gpus

    def _distribute(self, tasks: asyncio.TaskGroup) -> None:
        """Tell every GPU what is wanted of it, beginning with those that an earlier supervisor may have left."""
        if self.files.wanted is None:
            return
        for uuid in {**self._places.before, **self._keepers, **self.files.wanted}:
            if uuid not in self._keepers:
                keeper = self._keepers[uuid] = GpuKeeper(
                    self._places.of(uuid),
                    self._driver,
                    self.files.changed.set,
                    before=self._places.before.get(uuid, ""),
                    timings=self._timings,
                )
                tasks.create_task(_keep(uuid, keeper), name=f"keep {uuid}")
            self._keepers[uuid].want(self.files.wanted.get(uuid))


async def _keep(uuid: str, keeper: GpuKeeper) -> NoReturn:
    while True:
        try:
            await keeper.run()
        except Exception:  # noqa: BLE001 - see below
            # A fault of one GPU's keeper must not end this program: in a container the daemons of all other GPUs would
            # end with it, and the work of their clients.
            _log.exception("an error in the program itself", extra={"gpu": uuid})
            await asyncio.sleep(_AFTER_BUG_S)


def gauges(gpus: Mapping[str, MpsGpu]) -> Gauges:
    """Return the gauges of the daemons with their values."""
    yield UP, [((uuid,), gpu.status is MpsStatus.READY) for uuid, gpu in gpus.items()]
    yield CLIENTS, [((uuid,), gpu.clients) for uuid, gpu in gpus.items()]


def main(sources: Sources[MpsSupervisorSettings], texts: Texts, settings: MpsSupervisorSettings) -> int:
    """Run the supervisor until SIGTERM or SIGINT; return its exit code.

    At the end all daemons are told to quit, and the GPUs get their compute modes back. Raises UsageError.
    """
    shm = settings.mps_dir / SHM_DIRECTORY
    if settings.shm_size_mib and "KUBERNETES_SERVICE_HOST" not in os.environ and not os.path.ismount(shm):
        raise UsageError(
            f"mps: this is no pod of a cluster, and a tmpfs at {shm} would stay here: deploy/optional/mps.yaml "
            "runs the supervisor in a pod; to run it here all the same, mount one yourself, or use --shm-size=0MiB"
        )
    try:
        share(shm, settings.shm_size_mib)
        driver = Nvidia(os.environ)
        supervisor = Supervisor(settings.mps_dir, driver)
    except OSError as error:
        where = error.filename or settings.mps_dir
        raise UsageError(
            f"mps_dir: {where}: {error.strerror or error}; the supervisor's container has to be privileged, with a "
            "writable directory of the node at mps_dir, as in deploy/optional/mps.yaml"
        ) from error
    for why in driver.missing():
        _log.warning("no GPU can be limited by MPS here", extra={"why": why})
    life = ReloadingProgram(settings).follow_settings(
        sources,
        texts,
        _serve(settings, supervisor),
        "MPS supervisor",
        announce_shutdown=supervisor.finish,
        cleanup=supervisor.write_last,
    )
    return asyncio.run(life)


async def _serve(settings: MpsSupervisorSettings, supervisor: Supervisor) -> NoReturn:
    _log.info("the MPS supervisor starts", extra={"version": __version__, "mps_dir": str(settings.mps_dir)})
    metrics = None if settings.http is None else m.PrometheusMetrics(lambda: gauges(supervisor.gpus), ())
    async with serving_probes(
        settings.http,
        m.alive,  # a restart would end the daemons, and their clients
        supervisor.unready,
        lambda: [f"{uuid}: {gpu.status}, clients: {gpu.clients}" for uuid, gpu in supervisor.gpus.items()],
        metrics=metrics,
    ):
        await supervisor.run()
