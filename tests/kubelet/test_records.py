"""The kubelet's two records, read in the order in which together they prove that a device is free."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.model.resources import Kind, Names
from gpu_device_plugin.node.rules.ended_pods import PodsInApi
from tests.kubelet.gated_kubelet import Kubelet
from tests.kubelet.pod_lines import pod
from tests.kubelet.scripted_plugin import ScriptedPlugin
from tests.kubelet.short_paths import short_folder
from tests.names import MEM
from tests.patience import eventually, stretched


@dataclass
class Desk:
    """A kubelet with one plugin, and us before its records."""

    kubelet: Kubelet
    plugin: ScriptedPlugin
    records: KubeletRecords
    held: set[str] = field(default_factory=set)
    """What we hold."""
    resent: int = 0
    deaf: bool = False
    """What we send again reaches nobody."""
    listener: int | None = 1
    """The kubelet process that listens to us, for all we know."""
    in_api: PodsInApi | None = None
    """What the API shows; None where nobody has to be asked."""

    def resend(self) -> None:
        self.resent += 1
        if not self.deaf:
            self.plugin.list(self.plugin.healthy)

    async def evidence(self) -> tuple[frozenset[str], frozenset[str], bool] | None:
        """Return what was listed, what was recorded, and whether a checkpoint was waited for."""
        found = await self.records.evidence(lambda: self.held, self.resend, patience_s=stretched(0.3))
        return None if found is None else (found[0].listed, found[0].recorded, found[1] is not None)


@asynccontextmanager
async def desk(version: tuple[int, int] = (1, 36)) -> AsyncIterator[Desk]:
    with short_folder() as folder:
        async with Kubelet(folder, version=version) as kubelet:
            plugin = ScriptedPlugin(kubelet.device_plugin_dir, MEM, dict.fromkeys("abcd", True))
            await plugin.start()
            await eventually(lambda: MEM in kubelet.amounts)
            records = KubeletRecords(
                kubelet.device_plugin_dir,
                kubelet.pod_resources_socket,
                Names({MEM: Kind.MEMORY}),
                listener=lambda: made.listener,
                in_api=lambda: made.in_api,
            )
            made = Desk(kubelet, plugin, records)
            try:
                yield made
            finally:
                await plugin.stop()


async def test_while_everything_we_hold_is_listed_the_kubelet_has_nothing_to_write() -> None:
    async with desk() as node:
        made = await node.kubelet.admit(pod("p", {MEM: 2}))
        node.held = set(made.devices(MEM))
        stamp = node.records.stamp()
        assert await node.evidence() == (made.devices(MEM), made.devices(MEM), False)
        assert (node.resent, node.records.stamp()) == (0, stamp)


async def test_an_id_is_free_when_both_books_omit_it_the_second_written_after_the_first_was_asked() -> None:
    async with desk() as node:
        one, two = await node.kubelet.admit(pod("one", {MEM: 1})), await node.kubelet.admit(pod("two", {MEM: 1}))
        node.held = set(one.devices(MEM) | two.devices(MEM))
        await node.kubelet.delete(one)
        assert set().union(*node.records.recorded().by_pod().values()) == node.held, "the kubelet has not written since"
        assert await node.evidence() == (two.devices(MEM), two.devices(MEM), True)
        assert node.resent == 1


async def test_what_an_ended_init_container_has_stands_only_in_the_checkpoint() -> None:
    async with desk() as node:
        made = await node.kubelet.admit(pod("p", {MEM: 1}, init=[{MEM: 3}]))
        node.held = set(made.devices(MEM))
        found = await node.evidence()
        assert found is not None
        assert (len(found[0]), found[1]) == (1, made.devices(MEM))


async def test_without_an_answer_to_list_there_is_no_evidence() -> None:
    async with desk() as node:
        node.held = {"a"}
        node.kubelet.pod_resources_gate.refuse("no")
        assert await node.evidence() is None
        assert await node.records.listed() is None
        assert node.resent == 0


async def test_without_a_checkpoint_written_afterwards_there_is_no_evidence() -> None:
    async with desk() as node:
        node.held, node.deaf = {"a"}, True
        assert await node.evidence() is None


async def test_a1_an_empty_list_of_a_kubelet_that_does_not_know_us_proves_nothing() -> None:
    """After a restart it answers, lists nobody, and its checkpoint is the old one with no plugin of ours in it."""
    async with desk() as node:
        made = await node.kubelet.admit(pod("p", {MEM: 2}))
        node.held = set(made.devices(MEM))
        other = ScriptedPlugin(node.kubelet.device_plugin_dir, "x.com/y", {"z": True})
        node.kubelet.checkpoint.unlink()
        await node.kubelet.restart()
        await other.start()
        await eventually(lambda: "x.com/y" in node.kubelet.amounts)
        found = await node.records.evidence(lambda: node.held, lambda: other.list({"z": False}))
        assert found is None
        await other.stop()


async def test_a1_after_a_restart_the_checkpoint_still_shows_what_list_does_not() -> None:
    async with desk() as node:
        made = await node.kubelet.admit(pod("p", {MEM: 2}))
        node.held = set(made.devices(MEM))
        await node.kubelet.restart()
        await node.plugin.stop()
        await node.plugin.start()
        await eventually(lambda: MEM in node.kubelet.amounts)
        assert await node.evidence() == (frozenset(), made.devices(MEM), True)


async def test_a_damaged_checkpoint_is_not_evidence_but_an_error() -> None:
    async with desk() as node:
        node.held = {"a"}
        stamps = iter("12")

        def damage() -> None:
            node.kubelet.checkpoint.with_name("new").write_text(next(stamps))
            node.kubelet.checkpoint.with_name("new").replace(node.kubelet.checkpoint)

        with pytest.raises(CheckpointUnreadableError):
            await node.records.evidence(lambda: node.held, damage)


# --- Up to 1.31 the pod admitted last stays in the checkpoint ---------------------------------------------------------


@asynccontextmanager
async def desk_of_131(*, looked: bool = True) -> AsyncIterator[tuple[Desk, frozenset[str]]]:
    """We hold what the pod admitted last had, which has been deleted; while it ran we had a look, or had none."""
    async with desk((1, 31)) as node:
        node.in_api = PodsInApi()
        made = await node.kubelet.admit(pod("last", {MEM: 2}))
        node.held = set(made.devices(MEM))
        if looked:
            assert await node.records.compare_with_list(node.records.recorded())
        await node.kubelet.delete(made)
        yield node, made.devices(MEM)


async def stale(node: Desk) -> frozenset[str]:
    """Return which IDs both records show for a pod only that has ended."""
    found = await node.records.evidence(lambda: node.held, node.resend, patience_s=stretched())
    assert found is not None
    return found[0].stale


async def test_what_a_pod_had_is_stale_that_this_kubelet_has_listed_and_lists_no_more() -> None:
    async with desk_of_131() as (node, had):
        assert await stale(node) == had
        assert node.records.held(node.records.recorded()) == set()
        node.held = set()
        assert await stale(node) == had, "without a new checkpoint"
        assert node.resent == 1


@pytest.mark.parametrize("listener", [2, None], ids=["another one", "none"])
async def test_nothing_is_stale_any_more_from_the_moment_on_at_which_the_kubelet_process_ends(
    listener: int | None,
) -> None:
    async with desk_of_131() as (node, had):
        assert await stale(node) == had
        node.listener = listener
        assert node.records.held(node.records.recorded()) == had


async def test_what_a_pod_had_that_was_never_seen_is_not_stale() -> None:
    async with desk_of_131(looked=False) as (node, had):
        assert await stale(node) == set()
        assert node.records.held(node.records.recorded()) == had


async def test_nothing_is_stale_for_a_kubelet_that_frees_what_has_ended() -> None:
    async with desk_of_131() as (node, had):
        node.in_api = None
        assert await stale(node) == set()
        assert node.records.held(node.records.recorded()) == had
        node.in_api = PodsInApi()
        assert await stale(node) == set(), "what was seen before is forgotten"


async def test_where_nobody_has_to_be_asked_no_look_is_taken() -> None:
    async with desk((1, 31)) as node:
        node.kubelet.pod_resources_gate.hold()
        await node.records.compare_with_list(node.records.recorded())
        node.in_api, node.listener = PodsInApi(), None
        await node.records.compare_with_list(node.records.recorded())
        assert node.kubelet.pod_resources_gate.waiting == 0
        node.kubelet.pod_resources_gate.release()


@pytest.mark.parametrize("listener", [2, None], ids=["another one", "none"])
async def test_what_one_kubelet_process_has_listed_says_nothing_of_what_another_does_not(listener: int | None) -> None:
    async with desk_of_131() as (node, had):
        node.listener = listener
        assert await stale(node) == set()
        assert node.records.held(node.records.recorded()) == had
        node.listener = 1
        assert await stale(node) == set(), "nor is it remembered"


async def test_a_kubelet_that_ends_while_it_is_asked_has_said_nothing() -> None:
    async with desk_of_131() as (node, had):
        gate = node.kubelet.pod_resources_gate
        gate.hold()
        asked = asyncio.create_task(stale(node))
        await gate.reached()
        node.listener = 2
        gate.release()
        assert await asked == set()
        assert node.records.held(node.records.recorded()) == had


async def test_a_kubelet_that_ends_before_it_has_written_its_checkpoint_has_said_nothing() -> None:
    async with desk_of_131() as (node, had):

        def ends() -> None:
            node.listener = 2
            node.resend()

        found = await node.records.evidence(lambda: node.held, ends, patience_s=stretched())
        assert found is not None
        assert (found[0].recorded, found[0].stale) == (had, frozenset())


async def test_a_look_that_gets_no_answer_changes_nothing() -> None:
    async with desk_of_131() as (node, had):
        node.kubelet.pod_resources_gate.refuse("no", times=1)
        assert not await node.records.compare_with_list(node.records.recorded())
        assert await stale(node) == had


async def test_of_a_pod_that_is_listed_without_its_devices_nothing_is_known_without_the_api() -> None:
    async with desk((1, 31)) as node:
        node.in_api = PodsInApi()
        made = await node.kubelet.admit(pod("p", {}, init=[{MEM: 3}]))
        assert not await node.records.compare_with_list(node.records.recorded())
        node.in_api = PodsInApi(names={made.uid: "default/p"})
        assert await node.records.compare_with_list(node.records.recorded())
