"""Choose the settings profile that the node's label names, before any GPU is shared."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.writers.events import EventWriter, about_node
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE
from gpu_device_plugin.node.node_publisher import Cleanup
from gpu_device_plugin.probes import serving_probes
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import settings_for

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet.statefile import StateFile
    from gpu_device_plugin.kubernetes.client.config import ClusterConfig
    from gpu_device_plugin.settings.node import NodeSettings
    from gpu_device_plugin.settings.sources import Sources, Texts

_log = logging.getLogger(__name__)


class ProfileChoice:
    """Waits for the node's label. A wrong share size would persist: the kubelet remembers devices by it."""

    def __init__(
        self, sources: Sources[NodeSettings], settings: NodeSettings, config: ClusterConfig, remembered: StateFile
    ) -> None:
        """Prepare; nothing is sent before `made`.

        Only those `settings` count that need no profile; `remembered` holds the profile of the node's last agent.
        """
        self._sources = sources
        self._settings = settings
        self._remembered = remembered
        self._client = Client(config)
        self._self = OwnNode(self._client, settings.node_name)
        self.cleanup = Cleanup(self._client, self._self)
        self._events = EventWriter(self._client, instance=settings.node_name)
        self._wake = asyncio.Event()
        self.patience_s = 10.0
        """Seconds that the API server may take before the remembered profile is used."""
        self.look_s = 10.0
        """Seconds between two readings of a label or file that a person has to correct."""
        self.why = f"the label {CONFIG_LABEL} of this node has not been read yet"
        """Why no profile is chosen yet."""

    def __repr__(self) -> str:
        return f"<Choice for {self._settings.node_name}: {self.why}>"

    def reread(self) -> None:
        """Read label and files now."""
        self._wake.set()

    async def made(self) -> tuple[NodeSettings, Texts, str]:
        """Return the settings to run with, however long that takes. Owns a connection and the address of the probes.

        With them come the content of the files of settings, and the value of the label; empty: the node had none.
        """
        async with (
            serving_probes(self._settings.http, m.alive, self._ready),
            self._client,
            asyncio.TaskGroup() as tasks,
        ):
            events = tasks.create_task(self._events.run(), name="write events")
            try:
                return await self._choose()
            finally:
                events.cancel()

    async def _choose(self) -> tuple[NodeSettings, Texts, str]:
        label: str | None = None
        patient_until = time.monotonic() + self.patience_s
        backoff = Backoff(0.5)
        while True:
            wait_s = self.look_s
            try:
                async with asyncio.timeout(self.patience_s):
                    node = await self._self.read()
                self.cleanup.saw(node.labels)
                label = node.labels.get(CONFIG_LABEL, "")
                backoff.reset()
            except (ApiError, TimeoutError) as error:
                problem = str(error) or f"the API server did not answer within {self.patience_s:g} s"
                wait_s = backoff.next_s(error.retry_after_s if isinstance(error, ApiError) else 0.0)
                if label is None and time.monotonic() + wait_s >= patient_until:
                    label = self._remembered_label(problem)
            if label is not None:
                try:
                    texts = self._sources.texts()
                    return settings_for(self._sources, texts, label), texts, label
                except UsageError as error:
                    self._wait(f"this node shares nothing until its settings can be used: {error}")
            await wait_within(wait_s, self._wake.wait())
            self._wake.clear()

    def _remembered_label(self, problem: str) -> str | None:
        """Return the label that the last agent saw, None if none was saved."""
        label = self._remembered.read()
        if label is None:
            self._wait(f"this node shares nothing until its profile of settings is known: {problem}")
        else:
            extra = {"profile": label or DEFAULT_PROFILE, "why": problem}
            _log.warning("the label of our node cannot be read; its last profile is used", extra=extra)
        return label

    def _wait(self, why: str) -> None:
        if why != self.why:
            self.why = why
            _log.error("%s", why)
            ours = about_node(self._settings.node_name)
            note = f"{why[0].upper()}{why[1:]}"
            self._events.post(ours, reason="SettingsRefused", note=note, action="Wait", warning=True)

    async def _ready(self) -> tuple[str, ...]:
        return (self.why,)
