"""Run the MPS supervisor with its probes and metrics, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin import metrics as m
from gpu_device_plugin.core.contract.mpsfiles import SHM_DIRECTORY, MpsGpu, MpsStatus
from gpu_device_plugin.core.report.exposition import Gauge
from gpu_device_plugin.programs.lifetime import ReloadingProgram
from gpu_device_plugin.programs.mps.nvidia import Nvidia
from gpu_device_plugin.programs.mps.places import share
from gpu_device_plugin.programs.mps.supervisor import Supervisor
from gpu_device_plugin.programs.probes import serving_probes
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.report.exposition import Gauges
    from gpu_device_plugin.settings.mps import MpsSettings
    from gpu_device_plugin.settings.sources import Sources, Texts

_log = logging.getLogger(__name__)

UP = Gauge("gpushare_mps_up", "1 while the MPS daemon of the GPU takes clients.", ("gpu",))
CLIENTS = Gauge("gpushare_mps_clients", "Processes that are clients of the GPU's MPS daemon.", ("gpu",))


def gauges(gpus: Mapping[str, MpsGpu]) -> Gauges:
    """Return the gauges of the daemons with their values."""
    yield UP, [((uuid,), gpu.status is MpsStatus.READY) for uuid, gpu in gpus.items()]
    yield CLIENTS, [((uuid,), gpu.clients) for uuid, gpu in gpus.items()]


def main(sources: Sources[MpsSettings], texts: Texts, settings: MpsSettings) -> int:
    """Run the supervisor until SIGTERM or SIGINT; return its exit code.

    At the end all daemons are told to quit, and the GPUs get their compute modes back. Raises UsageError.
    """
    try:
        share(settings.mps_dir / SHM_DIRECTORY, settings.shm_size_mib)
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


async def _serve(settings: MpsSettings, supervisor: Supervisor) -> NoReturn:
    _log.info("the MPS supervisor starts", extra={"version": __version__, "mps_dir": str(settings.mps_dir)})
    metrics = None if settings.http is None else m.PrometheusMetrics(lambda: gauges(supervisor.gpus), (), ())
    async with serving_probes(
        settings.http,
        m.alive,  # a restart would end the daemons, and their clients
        supervisor.unready,
        lambda: _told(supervisor.gpus),
        metrics=metrics,
    ):
        await supervisor.run()
    raise AssertionError  # pragma: no cover (the supervisor never returns)


def _told(gpus: Mapping[str, MpsGpu]) -> list[str]:
    return [f"{uuid}: {gpu.status}, clients: {gpu.clients}" for uuid, gpu in gpus.items()]
