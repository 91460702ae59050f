"""The settings of a node: by its label before the agent begins, and as they change while it runs."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.programs.agent.node_program import NodeProgram
from gpu_device_plugin.settings.sources import Sources
from tests.cluster_double.troubles import Answer, Hang
from tests.configmap import mount
from tests.names import MEM
from tests.node.cluster_harness import NODE, Cluster, cluster
from tests.node.harness import gpus_of, pod, registering
from tests.patience import patience
from tests.ports import free_port

CONFIG = "gpu-device-plugin/config"
BIG = {CONFIG: "big"}
SIZES = {"default": "share_size: 1GiB\n", "big": "share_size: 2GiB\n"}
"""Two T4 have 28 shares of the one and 14 of the other."""


@asynccontextmanager
async def running(there: Cluster, *, patience_s: float = 10, **more: str) -> AsyncIterator[NodeProgram]:
    """Start the program, and wait for nothing."""
    node = there.node

    def agent(*args: Any, **kwargs: Any) -> NodeAgent:
        node.agent = NodeAgent(*args, dev=node.dev, **kwargs)
        node.agent.registration.timings = registering()
        if node.agent.cluster is not None:
            node.agent.cluster.look_s = 0.1
        return node.agent

    sources = Sources(NODE_SETTINGS, {**node.settings, "config": str(folder_of(there)), **more}, {})
    texts = sources.texts()
    program = NodeProgram(sources, texts, sources.read(texts=texts), NODE_FEATURES, agent=agent)
    if program.choice is not None:
        program.choice.patience_s, program.choice.look_s = patience_s, 0.1
    node.task = asyncio.create_task(program.run())
    try:
        yield program
    finally:
        await node.stop_agent()


def folder_of(there: Cluster) -> Path:
    return there.node.folder / "config"


def configure(there: Cluster, **files: str) -> None:
    mount(folder_of(there), **files)


def label(there: Cluster, **labels: str | None) -> None:
    names = {"config": CONFIG, "gpushare": "gpushare"}
    there.api.patch("nodes", NODE, {"metadata": {"labels": {names[key]: text for key, text in labels.items()}}})


def remembered(there: Cluster) -> str | None:
    path = there.node.kubelet.device_plugin_dir / "gpushare" / "profile"
    return path.read_text() if path.exists() else None


async def shares(there: Cluster, count: int) -> None:
    await there.node.until(lambda: there.node.agent is not None)
    await there.node.ready()
    await there.node.healthy_is(MEM, count)


async def told(there: Cluster, reason: str, words: str) -> None:
    await there.node.until(lambda: any(words in event["note"] for event in there.events(reason)))


async def waits(there: Cluster, program: NodeProgram, words: str) -> None:
    """Wait until the program says why it has not begun, with these words."""
    await there.node.until(lambda: program.choice is not None and words in program.choice.why)
    assert there.node.agent is None


# --- Before the agent begins ------------------------------------------------------------------------------------------


async def test_a_node_has_the_profile_that_its_label_names() -> None:
    async with cluster(node_labels=BIG) as there:
        configure(there, default="log_level: warning", big="share_size: 2GiB\nlog_level: debug\n")
        async with running(there):
            await shares(there, 14)
            await there.node.until(lambda: remembered(there) == "big\n")
            assert there.labels()["share-mib"] == "2048"
            assert logging.getLogger("gpu_device_plugin").level == logging.DEBUG


async def test_a_silent_api_server_leaves_the_profile_that_the_node_had(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(node_labels=BIG) as there:
        configure(there, **SIZES)
        async with running(there):
            await there.node.until(lambda: remembered(there) == "big\n")
        there.api.fail(Hang())
        async with running(there, patience_s=0.2):
            await shares(there, 14)
            assert "its last profile is used" in caplog.text
            there.api.heal()


async def test_where_nobody_remembers_a_profile_nothing_is_shared_until_the_label_is_read() -> None:
    port = free_port()
    async with cluster(node_labels=BIG) as there:
        configure(there, **SIZES)
        there.api.fail(Answer(503))
        async with running(there, patience_s=0.2, http=f"127.0.0.1:{port}") as program:
            await waits(there, program, "this node shares nothing until its profile of settings is known")
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
                async with http.get("/healthz") as answer:
                    assert answer.status == 200
                async with http.get("/readyz") as answer:
                    assert (answer.status, "get nodes node: 503" in await answer.text()) == (503, True)
            assert not there.node.kubelet.registrations
            there.api.heal()
            await shares(there, 14)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, http.get("/readyz") as answer:
                assert answer.status == 200


async def test_a_label_that_names_no_profile_shares_nothing_until_a_person_mends_it() -> None:
    async with cluster(node_labels={CONFIG: "bigg"}) as there:
        configure(there, **SIZES)
        async with running(there) as program:
            await waits(there, program, "config=bigg names no profile")
            await told(
                there, "SettingsRefused", "This node shares nothing until its settings can be used: the node label"
            )
            label(there, config="big")
            await shares(there, 14)


@pytest.mark.parametrize("wrong", [None, "share_size: much\n", "api: off\n", "share_size: [\n"])
async def test_a_profile_that_cannot_be_used_shares_nothing_until_it_can(
    wrong: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"default": "", "small": ""} | ({} if wrong is None else {"big": wrong})
    async with cluster(node_labels=BIG) as there:
        configure(there, **files)
        async with running(there) as program:
            await waits(there, program, "big.yaml")
            looks = there.api.count("get", "nodes")
            await there.node.until(lambda: there.api.count("get", "nodes") > looks + 2)
            there.api.fail(Answer(503))  # what was read of the label stands
            configure(there, **SIZES)
            await shares(there, 14)
            there.api.heal()
    assert caplog.text.count("this node shares nothing until its settings can be used") == 1


async def test_sighup_looks_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(node_labels={CONFIG: "bigg"}) as there:
        configure(there, **SIZES)
        async with running(there) as program:
            assert program.choice is not None
            program.choice.look_s = 600
            await waits(there, program, "names no profile")
            program.toggle_pause()
            assert "nothing to pause" in caplog.text
            assert repr(program).startswith("<NodeProgram <Choice for node: this node shares nothing until")
            label(there, config="big")
            program.reread_settings()
            await shares(there, 14)


async def test_a_directory_without_profiles_needs_no_label_and_waits_for_nobody() -> None:
    async with cluster() as there:
        configure(there, default="share_size: 2GiB")
        there.api.fail(Hang())
        async with running(there) as program:
            assert program.choice is None
            await shares(there, 14)
            there.api.heal()


async def test_profiles_that_are_all_gone_are_missed_by_the_nodes_that_had_one() -> None:
    async with cluster(node_labels=BIG) as there:
        configure(there, **SIZES)
        async with running(there):
            await there.node.until(lambda: remembered(there) == "big\n")
        configure(there, default="")
        async with running(there) as program:
            await waits(there, program, "there is no big.yaml")


async def test_without_an_api_server_there_is_no_label_to_ask_for() -> None:
    async with cluster() as there:
        configure(there, **SIZES)
        async with running(there, api="off") as program:
            assert program.choice is None
            await shares(there, 28)


async def test_a_node_that_is_taken_out_while_it_waits_is_cleaned_up() -> None:
    async with cluster(node_labels={"gpushare": "true", CONFIG: "big"}) as there:
        configure(there, **SIZES)
        async with running(there) as program:
            await there.node.until(lambda: bool(there.node.agent) and "count" in there.labels())
            await program.announce_shutdown()
            await there.node.stop_agent()
        configure(there, default="", small="")
        async with running(there) as program:
            await waits(there, program, "there is no big.yaml")
            label(there, gpushare=None)
            await program.announce_shutdown()
            await there.node.stop_agent()
            await program.cleanup()
        assert there.labels() == {"config": "big"}
        assert there.said_of_node() == {}


async def test_an_agent_that_waits_ends_when_it_is_told_to() -> None:
    async with cluster(node_labels={CONFIG: "bigg"}) as there:
        configure(there, **SIZES)
        settings = there.node.settings | {"config": str(folder_of(there)), "log_format": "json"}
        flags = [f"--{name.replace('_', '-')}={text}" for name, text in settings.items()]
        command = [str(Path(sys.executable).with_name("gpu-device-plugin")), "node", *flags]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            await told(there, "SettingsRefused", "names no profile")
            process.send_signal(signal.SIGUSR1)
            process.send_signal(signal.SIGHUP)
            process.terminate()
            async with patience(process):
                _, said = await process.communicate()
            assert process.returncode == 0, said.decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


# --- While the agent runs ---------------------------------------------------------------------------------------------


async def test_another_label_changes_at_once_what_it_can_and_names_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as there:
        configure(there, default="", big="policy: spread\nshare_size: 2GiB\npre_start: false\n")
        async with running(there) as program:
            await shares(there, 28)
            label(there, config="big")
            await told(
                there,
                "SettingsWait",
                "The settings share_size, pre_start wait for a restart of the agent: drain the node, then kubectl -n "
                "gpushare delete pod -l app.kubernetes.io/component=node --field-selector spec.nodeName=node",
            )
            made = [await there.node.kubelet.admit(pod(name, mem=3)) for name in "ab"]
            assert gpus_of(made[0]) != gpus_of(made[1])
            assert there.node.healthy(MEM) == 28
            await there.node.until(lambda: remembered(there) == "big\n")
            assert repr(program).startswith("<NodeProgram <NodeAgent node: ")
            label(there, config=None)
            await there.node.until(lambda: remembered(there) == "\n")
    assert caplog.messages.count("these changes need a restart of the agent") == 1


async def test_a_changed_configmap_is_taken_over_by_itself() -> None:
    async with cluster(node_labels=BIG) as there:
        configure(there, default="policy: binpack", big="")
        async with running(there):
            await shares(there, 28)
            configure(there, default="policy: binpack", big="policy: spread")
            await there.node.until(lambda: there.labels().get("policy") == "spread")
            configure(there, default="policy: spread", big="policy: binpack")
            await there.node.until(lambda: there.labels().get("policy") == "binpack")
            assert there.events("SettingsWait") == there.events("SettingsRefused") == []


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"default": "", "big": "policy: sideways"}, "/big.yaml, line 1, policy: 'sideways' is unknown"),
        ({"default": "policy: [", "big": ""}, "/default.yaml, line 1: this is not valid YAML"),
        ({"default": "", "small": ""}, "the node label gpu-device-plugin/config=big names no profile"),
    ],
)
async def test_what_cannot_be_used_leaves_everything_as_it_was_and_is_told_once(
    files: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(node_labels=BIG) as there:
        configure(there, default="", big="policy: spread")
        async with running(there) as program:
            await shares(there, 28)
            await there.node.until(lambda: there.labels().get("policy") == "spread")
            configure(there, **files)
            await told(there, "SettingsRefused", why)
            program.rereading.reread()
            configure(there, default="", big="policy: binpack")
            await there.node.until(lambda: there.labels().get("policy") == "binpack")
    assert caplog.messages.count("the configuration stays as it was") == 1


async def test_a_label_means_nothing_to_an_agent_without_a_directory(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(node_labels=BIG) as there:
        file = there.node.folder / "node.yaml"
        file.write_text("policy: spread")
        async with running(there, config=str(file)):
            await there.node.until(lambda: there.labels().get("policy") == "spread")
            assert remembered(there) is None
    assert "the configuration" not in caplog.text


async def test_a_profile_that_cannot_be_written_down_is_no_reason_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(node_labels=BIG) as there:
        configure(there, **SIZES)
        (there.node.kubelet.device_plugin_dir / "gpushare" / "profile" / "x").mkdir(parents=True)
        async with running(there):
            await shares(there, 14)
            await there.node.until(lambda: "the state for the next agent" in caplog.text)
