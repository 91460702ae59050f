"""The agent records who has which GPU, and for how long nobody recorded."""

import pytest

from gpu_device_plugin.features.audit import node as audit_log
from gpu_device_plugin.features.audit.contract import LOGGER, AuditKind, AuditRecord
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, RESIZE_BOUND
from gpu_device_plugin.model.times import epoch_s
from tests.features.audit.records import record_of
from tests.node.cluster_harness import NODE, cluster, promise
from tests.node.harness import pod, world


def records(caplog: pytest.LogCaptureFixture, *kinds: AuditKind) -> list[AuditRecord]:
    """Return the records written so far, of these kinds or all."""
    found = [record_of(vars(each)) for each in caplog.records if each.name == LOGGER]
    return [each for each in found if not kinds or each.kind in kinds]


async def test_a_container_is_recorded_from_its_grant_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster("fake:2xT4") as there:
        await there.start_agent()
        made = await there.run(pod("web", mem=4), promise(1, 4))
        await there.node.until(lambda: bool(records(caplog, AuditKind.GRANTED)))
        (granted,) = records(caplog, AuditKind.GRANTED)
        there.node.kubelet.finish(made)
        there.report(made)
        await there.node.kubelet.delete(made)
        there.api.delete("pods", "web")
        await there.node.until(lambda: bool(records(caplog, AuditKind.ENDED)))
        (ended,) = records(caplog, AuditKind.ENDED)
        uuids = there.node.uuids
    assert (granted.node, granted.namespace, granted.pod, granted.container) == (NODE, "default", "web", "main")
    assert (granted.gpu, granted.shares, granted.share_mib, granted.whole) == (uuids[1], 4, 1024, False)
    assert (ended.pod, ended.began, ended.shares) == ("web", granted.began, 4)
    assert [each.gpu for each in records(caplog, AuditKind.OFFERED)] == uuids


async def test_a_new_agent_says_since_when_nothing_was_recorded_and_what_it_finds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with world("fake:1xT4") as node:
        await node.start_agent()
        await node.kubelet.admit(pod("web", mem=4))
        await node.until(lambda: bool(records(caplog, AuditKind.GRANTED)))
        await node.stop_agent()
        await node.start_agent()
        await node.until(lambda: bool(records(caplog, AuditKind.FOUND)))
    first, second = records(caplog, AuditKind.STARTED)
    (granted,), (found,) = records(caplog, AuditKind.GRANTED), records(caplog, AuditKind.FOUND)
    assert first.began == ""
    assert (epoch_s(granted.began) or 0) <= (epoch_s(second.began) or 0) <= (epoch_s(second.ended) or 0)
    assert (found.place, found.shares) == (granted.place, 4)


async def test_a_guarantee_that_grows_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster("fake:1xT4") as there:
        there.api.add(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {RESIZE_BOUND: "99"}}}
        )
        await there.start_agent()
        await there.run(pod("a", mem=4))
        await there.node.until(lambda: bool(records(caplog, AuditKind.GRANTED)))
        there.api.patch("pods", "a", {"metadata": {"annotations": {MEMORY_GUARANTEE: "6"}}})
        await there.node.until(lambda: bool(records(caplog, AuditKind.RESIZED)))
    (resized,) = records(caplog, AuditKind.RESIZED)
    assert (resized.before, resized.shares, resized.event) == (4, 6, "GPUMemoryResized")


async def test_instances_that_are_made_anew_take_the_place_of_the_former_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with world([{"model": "H100", "mig": "1g.10gb*3"}], mig="whole") as node:
        await node.start_agent()
        await node.until(lambda: len(records(caplog, AuditKind.OFFERED)) == 3)
        node.hardware({"model": "H100", "mig": "2g.20gb*2"})
        await node.until(lambda: len(records(caplog, AuditKind.WITHDRAWN)) == 3)
        await node.until(lambda: len(records(caplog, AuditKind.OFFERED)) == 5)
        node.hardware({"model": "H100", "mig": "1g.10gb*3"})
        await node.until(lambda: len(records(caplog, AuditKind.OFFERED)) == 8)
    offered, withdrawn = records(caplog, AuditKind.OFFERED), records(caplog, AuditKind.WITHDRAWN)
    assert {each.gpu for each in withdrawn[:3]} == {each.gpu for each in offered[:3]}
    assert all((epoch_s(each.began) or 0) <= (epoch_s(each.ended) or 0) for each in withdrawn)


async def test_an_agent_with_nothing_to_record_says_that_it_records(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(audit_log, "ALIVE_S", 0.0)
    async with world("fake:1xT4") as node:
        await node.start_agent()
        await node.kubelet.admit(pod("web", mem=4))
        await node.until(lambda: bool(records(caplog, AuditKind.ALIVE)))
    alive = records(caplog, AuditKind.ALIVE)[0]
    assert (alive.gpu, epoch_s(alive.began) is not None) == ("", True)
