"""Run the node agent with the settings of its node's profile until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.feature_list import FeatureSpec
from gpu_device_plugin.hardware.monitor import HardwareContextLost
from gpu_device_plugin.kubelet.sockets import DirectoryError, DirectoryGoneError
from gpu_device_plugin.kubelet.statefile import PROFILE, StateFile
from gpu_device_plugin.lifetime import Rereading, until_stopped
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.node.configuration import ListFullError
from gpu_device_plugin.node.node_api import reach_api
from gpu_device_plugin.settings.sources import Sources, Texts, settings_for

if TYPE_CHECKING:
    from gpu_device_plugin.model.nodes import NodeRecord
    from gpu_device_plugin.programs.agent.profile import ProfileChoice
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

RESTART_AFTER = (HardwareContextLost, DirectoryGoneError, DirectoryError, ListFullError)
"""Errors that only a new container can resolve; the kubelet starts one."""


class NodeProgram:
    """An agent and its settings: the choice of a profile before it starts, and reloads while it runs."""

    def __init__(
        self,
        sources: Sources[NodeSettings],
        texts: Texts,
        settings: NodeSettings,
        features: Iterable[FeatureSpec],
        *,
        agent: Callable[..., NodeAgent] = NodeAgent,
    ) -> None:
        """Prepare; nothing is opened before `run`.

        `texts` is the content of the files among the `sources`; `settings` are those without a profile; `features` are
        those that the agent has, which `agent` makes.

        Raises:
            UsageError: a setting cannot be used.
        """
        self._sources = sources
        self._settings = settings
        self._make_agent = partial(agent, features=tuple(features))
        self._remembered = StateFile(settings.device_plugin_dir, PROFILE)
        self._label = ""
        """The profile that our node's label named last."""
        self._profile: Observable[str | None] = Observable(None)
        """The profile for the next agent; None: the one in the file."""
        self._in_force = ""
        """The profile whose settings are in force."""
        self.agent: NodeAgent | None = None
        self.choice: ProfileChoice | None = None
        """The choice of a profile, while it is pending."""
        self._folder = bool(texts.folder)
        self.rereading = Rereading(sources, texts, take=self._take, refuse=self._refuse, read=self._read)
        if texts.profiles or (self._folder and self._remembered.read()):
            self.choice = self._to_choose()
        if self.choice is None:
            self.agent = self._make_agent(settings)

    def __repr__(self) -> str:
        return f"<NodeProgram {self.agent or self.choice!r}>"

    def main(self) -> int:
        """Run the agent until SIGTERM or SIGINT; return its exit code.

        Raises:
            UsageError: the directory, the share size, the address of the probes or the description of fake GPUs cannot
                be used.
        """
        life = until_stopped(
            self.run(),
            "node agent",
            {signal.SIGHUP: self.reread_settings, signal.SIGUSR1: self.toggle_pause},
            announce_shutdown=self.announce_shutdown,
            cleanup=self.cleanup,
            restart_after=RESTART_AFTER,
        )
        return asyncio.run(life)

    async def run(self) -> NoReturn:
        """Serve this node until cancelled; raises the same as `NodeAgent.run`."""
        if self.choice is not None:
            self._settings, self.rereading.seen, label = await self.choice.made()
            _log.info("the profile of settings is chosen", extra={"profile": label or DEFAULT_PROFILE})
            logging.getLogger("gpu_device_plugin").setLevel(self._settings.log_level.upper())
            self._label = self._in_force = label
            self.choice = None
        agent = self.agent = self.agent or self._make_agent(self._settings)
        await together(
            agent.run(),
            self.rereading.run(),
            agent.api.node.follow(self._take_node),
            self._remembered.keep(self._profile),
        )

    def reread_settings(self) -> None:
        """Read the configuration again."""
        if self.choice is not None:
            self.choice.reread()
        else:
            self.rereading.reread(anyway=True)

    def toggle_pause(self) -> None:
        """Release the GPUs, or take them up again, if there is an agent already."""
        if self.agent is not None:
            self.agent.toggle_pause()
        else:
            _log.warning("nothing to pause: no GPU is opened before this node's profile of settings is known")

    async def announce_shutdown(self) -> None:
        """Announce to schedulers that the agent is about to end. To be awaited before `run` is cancelled."""
        if self.agent is not None and self.agent.api.published is not None:
            await self.agent.api.published.announce_shutdown()

    async def cleanup(self) -> None:
        """Remove the agents' labels and annotations from a node that no longer shares GPUs. After `run` has ended."""
        knows_the_node = self.choice if self.agent is None else self.agent.cluster
        if knows_the_node is not None:
            await knows_the_node.cleanup.run()

    def _to_choose(self) -> ProfileChoice | None:
        """Return the choice of a profile by our node's label, None if the agent runs without the API."""
        config = reach_api(self._settings)
        if config is None:
            return None
        from gpu_device_plugin.programs.agent.profile import ProfileChoice  # noqa: PLC0415 - see reach_api

        return ProfileChoice(self._sources, self._settings, config, self._remembered)

    # --- While the agent runs -------------------------------------------------------------------------------------

    def _take_node(self, node: NodeRecord | None) -> None:
        if node is None or not self._folder:
            return
        label = node.labels.get(CONFIG_LABEL, "")
        if label != self._label:
            self._label = label
            self.rereading.reread(anyway=True)
        if self._in_force == label:
            self._profile.set(label)

    def _read(self, texts: Texts) -> NodeSettings:
        return settings_for(self._sources, texts, self._label)

    def _take(self, settings: NodeSettings) -> None:
        if self._in_force != self._label:
            self._in_force = self._label
            _log.info("the profile of settings changed", extra={"profile": self._label or DEFAULT_PROFILE})
        if self.agent is not None:
            self.agent.reload(settings)

    def _refuse(self, why: str) -> None:
        if self.agent is not None:
            self.agent.reports.settings_refused(why)
