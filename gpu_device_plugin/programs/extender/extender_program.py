"""Run the scheduler extender until SIGTERM."""

from __future__ import annotations

import asyncio
import os

from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES
from gpu_device_plugin.kubernetes.client.config import ClusterConfigError, config_for
from gpu_device_plugin.lifetime import collect_rarely, return_large_blocks
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources, Texts


def main(sources: Sources[ExtenderSettings], texts: Texts, settings: ExtenderSettings) -> int:
    """Run the extender until SIGTERM or SIGINT; return its exit code.

    `texts` are the contents of the files among `sources`, and `settings` were read from them.

    Raises:
        UsageError: an address, or a certificate, cannot be used.
    """
    try:
        config = config_for(settings.api, os.environ)
    except ClusterConfigError as error:
        raise UsageError(f"api: {error}") from error
    return_large_blocks()
    extender = Extender(settings, config, features=EXTENDER_FEATURES, when_read=collect_rarely())
    return asyncio.run(extender.follow_settings(sources, texts, extender.run(), "extender"))
