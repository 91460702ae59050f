"""What a scheduler promises, pods get. A T4 has 14 shares of 1 GiB; without a promise, binpack takes GPU 0 first."""

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.pod_specs import Pod
from tests import builders
from tests.cluster_double.owned import mirror
from tests.cluster_double.troubles import Answer
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, allocation, cluster, promise
from tests.node.harness import T4, container, envs_of, pod
from tests.patience import stretched

IDX, ASSIGNED = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_ASSIGNED"
ALLOCATION = "scheduler.framework.gpushare.allocation"


# --- Kept ------------------------------------------------------------------------------------------------------------


async def test_a_promise_that_was_written_before_the_binding_counts() -> None:
    """Gpushare's extender patches the pod first, and then binds it."""
    async with cluster() as there:
        await there.start_agent()
        there.create(pod("a", mem=3))
        there.api.patch("pods", "a", {"metadata": {"annotations": promise(1, 3)}})
        await there.bind("a")
        assert there.positions(await there.admit(there.known(pod("a", mem=3)))) == {1: 3}
        await there.assigned("a")


async def test_several_containers_get_several_gpus_each_as_promised() -> None:
    """The first container gets 2 x 2 shares, the second 3 of GPU 1; the limit is one GPU's part."""
    async with cluster() as there:
        await there.start_agent()
        spec = pod("a", container("one", mem=4), container("two", mem=3))
        a = await there.run(spec, allocation({0: 2, 1: 2}, {1: 3}))
        assert a.phase == "Running"
        assert there.positions(a, "one") == {0: 2, 1: 2}
        assert there.positions(a, "two") == {1: 3}
        assert envs_of(a, "one")["NVIDIA_VISIBLE_DEVICES"] == ",".join(there.node.uuids)
        assert envs_of(a, "one")["GPUSHARE_MEMORY_LIMIT_MIB"] == "2048"
        assert envs_of(a, "one")["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
        assert {envs_of(a, name)["ALIYUN_COM_GPU_MEM_POD"] for name in ("one", "two")} == {"7"}
        await there.assigned("a")
        assert there.annotations("a")[ALLOCATION] == '{"0": {"0": 2, "1": 2}, "1": {"1": 3}}'


async def test_init_containers_and_sidecars_follow_the_promise_of_their_pod() -> None:
    """Init 4, then a sidecar 2 and the app 5: the app and the sidecar use what the init container had, 7 in all."""
    async with cluster() as there:
        await there.start_agent()
        spec = pod(
            "a",
            container("init", kind=ContainerKind.INIT, mem=4),
            container("side", kind=ContainerKind.SIDECAR, mem=2),
            container("main", mem=5),
        )
        a = await there.run(spec, promise(1, 7))
        assert a.phase == "Running"
        assert [there.positions(a, name) for name in ("init", "side", "main")] == [{1: 4}, {1: 2}, {1: 5}]
        assert len(a.devices(MEM)) == 7
        await there.assigned("a")


async def test_whole_gpus_are_given_as_promised() -> None:
    async with cluster("fake:4xT4") as there:
        await there.start_agent()
        one = await there.run(pod("one", count=1), promise(2))
        two = await there.run(pod("two", count=2), allocation({1: 14, 3: 14}))
        assert there.positions(one, resource=COUNT) == {2: 1}
        assert there.positions(two, resource=COUNT) == {1: 1, 3: 1}
        await there.assigned("one", "two")


async def test_a_pod_without_a_promise_leaves_what_is_promised_to_others() -> None:
    """GPU 0 has 14, of which 10 are promised; 6 would fit there by our ledger and go to GPU 1."""
    async with cluster() as there:
        await there.start_agent()
        free = await there.schedule(pod("free", mem=6))
        promised = await there.schedule(pod("promised", mem=10), promise(0, 10))
        assert there.positions(await there.admit(free)) == {1: 6}
        assert there.positions(await there.admit(promised)) == {0: 10}


async def test_a_promise_that_cannot_be_kept_is_replaced_by_the_policy_and_corrected() -> None:
    """GPU 0 has 4 free when the pod comes that was promised 5 of it."""
    async with cluster() as there:
        await there.start_agent()
        await there.run(pod("big", mem=10), promise(0, 10))
        late = await there.run(pod("late", mem=5), promise(0, 5))
        assert there.positions(late) == {1: 5}
        await there.assigned("late")
        assert there.told("late") == {1: 5}


# --- Who asks? -------------------------------------------------------------------------------------------------------


async def test_the_order_of_binding_counts_and_not_that_of_creation() -> None:
    async with cluster() as there:
        await there.start_agent()
        there.create(pod("old", mem=4), created="2026-01-01T00:00:00Z")
        there.create(pod("young", mem=4), created="2026-01-02T00:00:00Z")
        await there.bind("young", promise(1, 4))
        await there.bind("old", promise(0, 4))
        young = await there.admit(there.known(pod("young", mem=4)))
        old = await there.admit(there.known(pod("old", mem=4)))
        assert (there.positions(young), there.positions(old)) == ({1: 4}, {0: 4})


async def test_pods_of_the_first_list_are_ordered_by_age() -> None:
    """The kubelet too sorts the pods that it finds at its start by age."""
    async with cluster() as there:
        for name, created, gpu in (("young", "2026-01-02T00:00:00Z", 1), ("old", "2026-01-01T00:00:00Z", 0)):
            there.create(pod(name, mem=4), created=created)
            there.api.bind(name, "node", promise(gpu, 4))
        await there.start_agent()
        old = await there.admit(there.known(pod("old", mem=4)))
        young = await there.admit(there.known(pod("young", mem=4)))
        assert (there.positions(old), there.positions(young)) == ({0: 4}, {1: 4})


async def test_a_pod_that_the_watch_shows_after_the_kubelet_asks_is_waited_for() -> None:
    async with cluster() as there:
        await there.start_agent()
        there.cluster.waiting.wait_s = stretched()
        there.create(pod("a", mem=4))
        there.api.reads.hold()
        there.api.bind("a", "node", promise(1, 4))
        admission = asyncio.create_task(there.admit(there.known(pod("a", mem=4))))
        await asyncio.sleep(0.1)  # for the question to come in, which nothing tells; on a slow machine it comes later
        assert not admission.done()
        there.api.reads.release()
        assert there.positions(await admission) == {1: 4}


async def test_a_static_pod_is_known_by_the_uid_that_the_kubelet_gave_it() -> None:
    """Its copy stays Pending while an image is pulled, and must not be taken for a pod that still waits."""
    async with cluster() as there:
        await there.start_agent()
        static = await there.node.kubelet.admit(replace(pod("static", mem=4), uid="0123456789abcdef" * 2))
        there.api.add(mirror(builders.pod("static", builders.container(mem=4), node=NODE), static.uid))
        await there.seen("static")
        await there.node.until(lambda: bool(there.cluster.waiting.recorded))
        a = await there.run(pod("a", mem=4), promise(1, 4))
        assert there.positions(a) == {1: 4}
        await there.assigned("static")
        assert (there.annotations("static")["kubernetes.io/config.mirror"], there.told("static")) == (
            static.uid,
            {0: 4},
        )


async def test_a_refused_pod_is_no_candidate_any_more_before_the_watch_tells() -> None:
    """Both pods of 8 find room on no GPU; the second is not told about the first's promise."""
    async with cluster("fake:1xT4") as there:
        await there.start_agent()
        held = await there.run(pod("held", mem=8), promise(0, 8))
        first = await there.schedule(pod("first", container("x", mem=3), container("y", mem=6)))
        second = await there.schedule(pod("second", mem=6), promise(0, 6))
        assert (await there.node.kubelet.admit(first)).phase == "Failed"
        await there.node.kubelet.delete(held)
        await there.node.healthy_is(MEM, 14)
        assert there.positions(await there.admit(second)) == {0: 6}


# --- Written down ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
async def test_where_the_kubelet_swapped_equals_the_promises_are_corrected(*, at_once: bool) -> None:
    """Bound a, b, c with GPUs 0, 1, 2; admitted c, a, b, at once or after the checkpoint told who got what."""
    async with cluster("fake:3xT4") as there:
        await there.start_agent()
        specs = {
            name: await there.schedule(pod(name, mem=4), promise(gpu, 4)) for gpu, name in enumerate(("a", "b", "c"))
        }
        made: dict[str, Pod] = {}
        for name in ("c", "a", "b"):
            made[name] = await there.admit(specs[name])
            if not at_once:
                await there.assigned(name)
        await there.assigned("a", "b", "c")
        got = {name: there.positions(each) for name, each in made.items()}
        assert got["c"] == {0: 4}
        assert {gpu for positions in got.values() for gpu in positions} == {0, 1, 2}
        assert {name: there.told(name) for name in specs} == got


async def test_the_number_that_gpushares_extender_keeps_its_books_by_is_left_as_it_was() -> None:
    """It frees, when the pod ends, where the number points; had we changed it, GPU 0 would stay booked for ever."""
    async with cluster() as there:
        await there.start_agent()
        await there.run(pod("whole", count=1), promise(0))
        await there.node.healthy_is(MEM, 14)
        a = await there.run(pod("a", mem=4), promise(0, 4))
        assert there.positions(a) == {1: 4}
        await there.assigned("a")
        assert there.annotations("a")[IDX] == "0"
        assert there.annotations("a")[ALLOCATION] == '{"0":{"1":4}}'


async def test_a_pod_is_not_marked_before_all_its_containers_have_devices() -> None:
    """10 and then 10 more on a node with one GPU: the second container is refused, and with it the pod."""
    async with cluster("fake:1xT4") as there:
        await there.start_agent()
        a = await there.run(pod("a", container("x", mem=10), container("y", mem=10)), promise(0, 20))
        assert a.phase == "Failed"
        b = await there.run(pod("b", mem=3), promise(0, 3))
        assert b.phase == "Running"
        await there.assigned("b")
        assert there.annotations("a")[ASSIGNED] == "false"


async def test_a_pod_without_a_promise_is_told_of_once() -> None:
    """A scheduler that knows nothing of GPUs bound it. One patch; none for what happens to other pods later."""
    async with cluster(policy="spread") as there:
        await there.start_agent()
        first = await there.run(pod("first", mem=2))
        a = await there.run(pod("a", mem=3))
        await there.assigned("first", "a")
        assert (there.positions(first), there.positions(a)) == ({0: 2}, {1: 3})
        found = there.annotations("a")
        assert abs(time.time_ns() - int(found.pop("ALIYUN_COM_GPU_MEM_ASSUME_TIME"))) < 60e9
        assert found == {
            IDX: "1",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "14",
            ASSIGNED: "true",
            "scheduler.framework.gpushare.allocation": '{"0":{"1":3}}',
        }
        await there.run(pod("b", mem=3), promise(0, 3))
        await there.assigned("b")
        assert there.api.count("patch", "pods") == 3


async def test_what_was_written_on_a_pod_is_written_again_if_it_is_removed() -> None:
    async with cluster() as there:
        await there.start_agent()
        await there.run(pod("a", mem=3))
        await there.assigned("a")
        there.api.patch("pods", "a", {"metadata": {"annotations": None}})
        await there.assigned("a")
        assert there.told("a") == {0: 3}


async def test_a_pod_whose_gpu_is_not_here_any_more_is_left_alone() -> None:
    """The kubelet still has it in its records. Where it is nobody can say by position."""
    async with cluster([T4]) as there:
        await there.start_agent()
        gone = await there.run(pod("gone", mem=3))
        await there.assigned("gone")
        there.api.patch("pods", gone.name, {"metadata": {"annotations": None}})
        await there.node.stop_agent()
        there.api.patch("nodes", NODE, {"metadata": {"annotations": None}})
        there.node.hardware({**T4, "uuid": "GPU-new"})
        await there.start_agent()
        await there.run(pod("b", mem=3))
        await there.assigned("b")
        assert ASSIGNED not in there.annotations("gone")


async def test_a_pod_without_a_promise_gets_what_its_owner_wants_of_a_node() -> None:
    """The policy of the node would fill GPU 0 first."""
    async with cluster("fake:1xT4,1xA10") as there:
        await there.start_agent()
        for name, wish in (
            ("model", {"gpu-device-plugin/use-model": "A10"}),
            ("avoid", {"gpu-device-plugin/avoid-uuid": there.node.uuids[0]}),
            ("spread", {"gpu-device-plugin/gpu-policy": "spread"}),
        ):
            there.create(pod(name, mem=2), annotations=wish)
            await there.bind(name)
            assert there.positions(await there.admit(there.known(pod(name, mem=2)))) == {1: 2}, name


async def test_an_agent_that_starts_anew_marks_what_the_one_before_could_not() -> None:
    async with cluster() as there:
        await there.start_agent()
        there.api.fail(Answer(500), verbs=["patch"])
        await there.run(pod("a", mem=3), promise(1, 3))
        await there.node.stop_agent()
        there.api.heal()
        await there.start_agent()
        await there.assigned("a")


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotations",
    [
        {IDX: "one", ASSIGNED: "false"},
        {IDX: "-1", ASSIGNED: "false"},
        {ALLOCATION: "{", ASSIGNED: "false"},
        {ALLOCATION: '{"0": 3}', ASSIGNED: "false"},
        {ALLOCATION: '{"0": {"1": 2}}', ASSIGNED: "false"},  # 2 for a container that asks 3
        {ALLOCATION: "[" * 5000, ASSIGNED: "false"},
    ],
    ids=["no number", "negative", "no JSON", "no GPUs", "another size", "too deep"],
)
async def test_malformed_annotations_are_ignored_counted_and_logged_once(
    annotations: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(http="127.0.0.1:0") as there:
        await there.start_agent()
        spec = await there.schedule(pod("a", mem=3), annotations)
        for _ in range(3):
            there.cluster.waiting.waiting()
        a = await there.admit(spec)
        assert (a.phase, there.positions(a)) == ("Running", {0: 3})
        assert caplog.text.count("an assignment is ignored") == 1
        assert "gpushare_malformed_annotations_total 1.0" in await there.metrics()


async def test_a_container_that_asks_for_both_resources_is_refused_with_a_sentence() -> None:
    """The next pod, which asks for the same shares, gets them."""
    async with cluster() as there:
        await there.start_agent()
        both = await there.schedule(pod("both", mem=3, count=1))
        mem = await there.schedule(pod("mem", mem=3), promise(1, 3))
        made = await there.node.kubelet.admit(both)
        assert made.phase == "Failed"
        assert (
            "container 'main' requests GPU memory and whole GPUs at once, which no GPU can serve; request one of the "
            "two"
        ) in made.message
        assert there.positions(await there.admit(mem)) == {1: 3}


# --- What gpushare's plugin did wrong, by the numbers in the collection of its bugs ----------------------------------


async def test_p1_a_pod_of_several_containers_is_matched_container_by_container() -> None:
    """It compared a container's request with its pod's sum, and refused both containers."""
    async with cluster() as there:
        await there.start_agent()
        a = await there.run(pod("a", container("x", mem=1), container("y", mem=2)), promise(1, 3))
        assert (a.phase, there.positions(a)) == ("Running", {1: 3})


async def test_p2_a_container_does_not_take_the_promise_of_another_pod_of_that_size() -> None:
    async with cluster() as there:
        await there.start_agent()
        other = await there.schedule(pod("other", mem=1), promise(0, 1))
        a = await there.schedule(pod("a", container("x", mem=2), container("y", mem=1)), promise(1, 3))
        assert there.positions(await there.admit(a)) == {1: 3}
        assert there.positions(await there.admit(other)) == {0: 1}


async def test_p3_swapped_pods_of_one_size_are_told_apart_afterwards() -> None:
    """The annotation named another card than the one in use, so that its deletion freed the wrong one."""
    async with cluster() as there:
        await there.start_agent()
        a = await there.schedule(pod("a", mem=4), promise(0, 4))
        b = await there.schedule(pod("b", mem=4), promise(1, 4))
        made = [await there.admit(b), await there.admit(a)]
        await there.assigned("a", "b")
        for each in made:
            assert there.positions(each) == there.told(each.name)


async def test_p4_a_terminating_pod_is_no_candidate() -> None:
    async with cluster() as there:
        await there.start_agent()
        await there.schedule(pod("dying", mem=4), promise(0, 4))
        alive = await there.schedule(pod("alive", mem=4), promise(1, 4))
        there.api.delete("pods", "dying", grace_s=None)
        await there.seen("dying")
        assert there.positions(await there.admit(alive)) == {1: 4}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Running"])
async def test_a_pod_that_has_ended_or_runs_already_is_no_candidate(phase: str) -> None:
    """One that runs was admitted before anybody offered devices, or the kubelet has lost its checkpoint."""
    async with cluster() as there:
        await there.start_agent()
        await there.schedule(pod("past", mem=4), promise(0, 4))
        there.api.patch("pods", "past", {"status": {"phase": phase}}, subresource="status")
        await there.seen("past")
        a = await there.run(pod("a", mem=4), promise(1, 4))
        assert there.positions(a) == {1: 4}


async def test_p5_an_init_container_does_not_use_up_the_promise() -> None:
    async with cluster() as there:
        await there.start_agent()
        spec = pod("a", container("init", kind=ContainerKind.INIT, mem=4), container("main", mem=4))
        a = await there.run(spec, promise(1, 4))
        assert (a.phase, there.positions(a, "init"), there.positions(a, "main")) == ("Running", {1: 4}, {1: 4})


async def test_p6_a_refusal_is_an_error_and_no_garbage_in_the_environment() -> None:
    async with cluster() as there:
        await there.start_agent()
        await there.run(pod("x", mem=10), promise(0, 10))
        await there.run(pod("y", mem=10), promise(1, 10))
        a = await there.run(pod("a", mem=6), promise(0, 6))
        assert a.phase == "Failed"
        assert "GPU memory: 6 GiB requested, the emptiest healthy GPU has 4 GiB free" in a.message
        assert envs_of(a) == {}
        assert there.annotations("a")[ASSIGNED] == "false"


# --- Which pod is it, and whose memory is it? By the numbers in the catalogue of faults ------------------------------


async def test_c1_pods_admitted_in_any_order_end_with_true_annotations() -> None:
    """Six pods of two sizes on two GPUs, admitted against the order in which they were bound."""
    async with cluster() as there:
        await there.start_agent()
        specs = [await there.schedule(pod(f"p{n}", mem=2 + n % 2), promise(n % 2, 2 + n % 2)) for n in range(6)]
        made = [await there.admit(spec) for spec in reversed(specs)]
        await there.assigned(*(each.name for each in made))
        for each in made:
            assert there.positions(each) == there.told(each.name)


async def test_c2_all_kinds_of_containers_of_two_equal_pods_interleave_with_others() -> None:
    async with cluster("fake:3xT4") as there:
        await there.start_agent()
        parts = (
            container("init", kind=ContainerKind.INIT, mem=3),
            container("side", kind=ContainerKind.SIDECAR, mem=1),
            container("x", mem=2),
            container("y", mem=2),
        )
        a = await there.schedule(pod("a", *parts), promise(2, 4))
        single = await there.schedule(pod("single", mem=2), promise(0, 2))
        b = await there.schedule(pod("b", *parts), promise(1, 4))
        assert set(there.positions(await there.admit(a))) == {2}
        assert set(there.positions(await there.admit(single))) == {0}
        assert set(there.positions(await there.admit(b))) == {1}


async def test_c3_a_failure_is_never_reported_as_success() -> None:
    """Nobody is known who could ask this, and no GPU has room for it."""
    async with cluster("fake:1xT4") as there:
        await there.start_agent()
        made = await there.node.kubelet.admit(pod("unknown", container("x", mem=9), container("y", mem=5)))
        assert made.phase == "Running"
        made = await there.node.kubelet.admit(pod("more", mem=1))
        assert made.phase == "Failed"
        assert envs_of(made) == {}


async def test_c4_one_gpu_is_no_reason_to_give_more_than_there_is() -> None:
    async with cluster("fake:1xT4") as there:
        await there.start_agent()
        made = [await there.run(pod(f"p{n}", mem=5), promise(0, 5)) for n in range(3)]
        assert [each.phase for each in made] == ["Running", "Running", "Failed"]
        assert len(there.node.held) == 10


async def test_c5_what_a_pods_owner_writes_counts_only_within_what_the_pod_asks() -> None:
    """Forged: a promise of both GPUs whole to a container that asks for 2 shares; and one of 14 by IDX alone."""
    async with cluster() as there:
        await there.start_agent()
        there.create(pod("forged", mem=2), annotations=allocation({0: 14, 1: 14}))
        await there.bind("forged")
        a = await there.admit(there.known(pod("forged", mem=2)))
        assert there.positions(a) == {0: 2}
        there.create(pod("more", mem=2), annotations=promise(1, 14))
        await there.bind("more")
        assert there.positions(await there.admit(there.known(pod("more", mem=2)))) == {1: 2}


async def test_c6_lost_or_edited_annotations_free_nothing() -> None:
    """The device IDs are the ledger: what runs on GPU 0 stays there, whatever its annotations say now."""
    async with cluster("fake:1xT4") as there:
        await there.start_agent()
        await there.run(pod("a", mem=6), promise(0, 6))
        await there.run(pod("b", mem=6), promise(0, 6))
        await there.assigned("a", "b")
        there.api.patch("pods", "a", {"metadata": {"annotations": None}})
        there.api.patch("pods", "b", {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_POD": "0", IDX: "5"}}})
        late = await there.run(pod("late", mem=6), promise(0, 6))
        assert late.phase == "Failed"
        assert len(there.node.held) == 12


async def test_c9_a_promise_on_a_pod_that_was_never_bound_reserves_nothing() -> None:
    """Annotation written, binding failed: in gpushare that memory is gone for good."""
    async with cluster("fake:1xT4") as there:
        await there.start_agent()
        there.create(pod("stuck", mem=10), annotations=promise(0, 10))
        a = await there.run(pod("a", mem=10), promise(0, 10))
        assert (a.phase, there.positions(a)) == ("Running", {0: 10})


async def test_c10_a_pod_that_ends_frees_its_memory_at_once() -> None:
    """The agent looks into the kubelet's records when the watch tells, and not only every so often."""
    async with cluster("fake:1xT4", reconcile_interval="10m") as there:
        await there.start_agent()
        a = await there.run(pod("a", count=1), promise(0))
        await there.node.healthy_is(MEM, 0)
        await there.assigned("a")
        there.report(there.node.kubelet.finish(a))
        await there.node.healthy_is(MEM, 14)


async def test_a10_a_rejected_pod_frees_its_memory_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Another check of the kubelet refuses the pod after Allocate; its controller makes the next."""
    caplog.set_level(logging.INFO)
    async with cluster("fake:1xT4", reconcile_interval="10m") as there:
        await there.start_agent()
        spec = await there.schedule(pod("a", mem=10), promise(0, 10))
        made = await there.node.kubelet.admit(spec, rejected=("OutOfcpu", "Node didn't have enough resource: cpu"))
        assert made.phase == "Failed"
        there.report(made)
        await there.seen("a")
        b = await there.run(pod("b", mem=10), promise(0, 10))
        assert b.phase == "Running"
