"""The agent and the Kubernetes API: what it says there, and what it does while there is none."""

from typing import Any

import pytest

from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.keys import NODE_GPUS, NODE_USE
from gpu_device_plugin.settings.sources import Sources
from tests import builders
from tests.cluster_double.troubles import Answer, Garbage, Hang, Reset, Trouble
from tests.names import MEM
from tests.node.cluster_harness import NODE, RIGHTS, Cluster, cluster, promise
from tests.node.harness import pod

T4 = {"model": "T4"}
A10 = {"model": "A10"}
LOST = {"at": 0, "gpu": 0, "lost": True}


# --- What a scheduler reads on the node ------------------------------------------------------------------------------


async def test_the_node_says_what_gpus_it_has() -> None:
    async with cluster() as there:
        await there.start_agent()
        await there.node.until(lambda: bool(there.said_of_node()))
        said = there.said_of_node()
        assert (said["version"], said["shareMiB"], said["policy"], said["driver"]) == (1, 1024, "fit", "580.65.06")
        assert said["gpus"] == [
            {
                "uuid": uuid,
                "index": n,
                "model": "Tesla T4",
                "memoryMiB": 15360,
                "reservedMiB": 449,
                "shares": 14,
                "healthy": True,
                "numa": n,
                "pci": f"0000:{8 * (n + 1):02x}:00.0",
            }
            for n, uuid in enumerate(there.node.uuids)
        ]
        assert there.labels() == {
            "count": "2",
            "share-mib": "1024",
            "policy": "fit",
            "driver": "580.65.06",
            "product": "Tesla-T4",
            "memory-mib": "15360",
            "product.Tesla-T4": "true",
            "limits": "advisory",
        }


async def test_the_node_says_to_whom_alone_its_device_nodes_are_open() -> None:
    """A file stands for /dev/nvidia0; no /dev/nvidia1 is seen, and /dev/nvidia2 is open to everybody."""
    async with cluster([T4, T4, T4], devices="device-specs") as there:
        (there.node.dev / "nvidia0").touch()
        (there.node.dev / "nvidia0").chmod(0o660)
        (there.node.dev / "nvidia2").symlink_to("/dev/null")
        await there.start_agent()
        await there.node.until(lambda: bool(there.said_of_node()))
        group = (there.node.dev / "nvidia0").stat().st_gid
        assert [gpu.get("groups") for gpu in there.said_of_node()["gpus"]] == [[group], None, None]


async def test_labels_of_models_that_are_gone_are_removed_and_those_of_others_are_left() -> None:
    stale = {"gpu-device-plugin/product.NVIDIA-A10": "true", "gpu-device-plugin/product": "NVIDIA-A10", "team": "x"}
    async with cluster(node_labels=stale) as there:
        await there.start_agent()
        await there.node.until(lambda: "product.NVIDIA-A10" not in there.labels())
        await there.node.until(lambda: there.labels().get("product") == "Tesla-T4")
        assert there.api.get("nodes", NODE)["metadata"]["labels"]["team"] == "x"


async def test_a_gpu_that_fails_and_recovers_is_told_of_on_the_node_and_in_events() -> None:
    async with cluster([T4, T4]) as there:
        await there.start_agent()
        there.node.hardware(T4, {**T4, "error": "Unknown Error"})
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [True, False])
        assert "Unknown Error" in there.said_of_node()["gpus"][1]["reason"]
        await there.node.until(lambda: bool(there.events("GPUUnhealthy")))
        there.node.hardware(T4, T4)
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [True, True])
        await there.node.until(lambda: bool(there.events("GPUHealthy")))
        (failed,), (recovered,) = there.events("GPUUnhealthy"), there.events("GPUHealthy")
        assert (failed["type"], recovered["type"]) == ("Warning", "Normal")
        assert failed["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "namespace": "", "uid": NODE}
        assert failed["note"].startswith(f"GPU 1 ({there.node.uuids[1]}) is ")
        assert failed["reportingInstance"] == NODE


async def test_new_gpus_are_told_of() -> None:
    """A card is put in while the agent has let go of the driver."""
    async with cluster([T4]) as there:
        await there.start_agent()
        await there.node.until(lambda: len(_gpus(there)) == 1)
        assert there.node.agent is not None
        there.node.agent.toggle_pause()
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [False])
        there.node.hardware(T4, A10)
        there.node.agent.toggle_pause()
        await there.node.until(lambda: len(_gpus(there)) == 2)
        await there.node.until(lambda: there.labels()["count"] == "2")
        assert (there.labels()["product"], there.labels()["memory-mib"]) == ("mixed", "15360")


async def test_the_nodes_label_goes_before_the_agents_own_policy() -> None:
    async with cluster(node_labels={"ack.node.gpu.placement": "spread"}) as there:
        there.node.launch()
        there.cluster.look_s = 0.05
        await there.node.until(lambda: there.takes_pods() and there.said_of_node().get("policy") == "spread")
        await there.node.ready()
        assert there.labels()["policy"] == "spread"
        made = [await there.run(pod(name, mem=3)) for name in "ab"]
        assert [there.positions(each) for each in made] == [{0: 3}, {1: 3}]
        assert there.node.agent is not None
        there.node.agent.reload(
            Sources(NODE_SETTINGS, flags={**there.node.settings, "policy": "binpack"}, environ={}).read()
        )
        assert there.said_of_node()["policy"] == "spread"
        there.api.patch("nodes", NODE, {"metadata": {"labels": {"ack.node.gpu.placement": None}}})
        await there.node.until(lambda: there.said_of_node()["policy"] == "binpack")


async def test_a_label_that_names_no_policy_is_ignored_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(node_labels={"ack.node.gpu.placement": "best"}) as there:
        await there.start_agent()
        await there.node.until(lambda: there.said_of_node().get("policy") == "fit")
        assert caplog.text.count("the node label ack.node.gpu.placement=best is ignored") == 1


async def test_a_pod_that_a_policy_keeps_the_agent_from_is_told_of_and_annotated_once_it_may_be() -> None:
    """A pod without its annotations counts on every GPU of its node."""
    async with cluster([T4, T4]) as there:
        await there.start_agent()
        there.api.deny("size", lambda _before, after: "it is large" if after["metadata"]["name"] == "large" else "")
        for name in ("large", "other"):
            await there.run(pod(name, mem=3))
        await there.node.until(lambda: assigned(there, "other"))
        await there.node.until(lambda: bool(there.events("PodNotAnnotated")))
        told = there.events("PodNotAnnotated")[0]
        assert (told["type"], told["regarding"]["kind"]) == ("Warning", "Node")
        assert told["note"].startswith("the annotations with the GPUs of pod default/large could not be written, ")
        assert "ValidatingAdmissionPolicy size denied it" in told["note"]
        assert not assigned(there, "large")
        there.api.admit_again("size")
        await there.node.until(lambda: assigned(there, "large"))


def assigned(there: Cluster, name: str) -> bool:
    annotations = there.api.get("pods", name)["metadata"].get("annotations", {})
    return bool(annotations.get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true")


# --- Positions ------------------------------------------------------------------------------------------------------


async def test_a_gpu_that_is_lost_keeps_its_position_when_the_agent_starts_anew() -> None:
    """The promise of position 1 means the second card still, and a pod that is there already is told of rightly."""
    async with cluster([T4, A10, T4]) as there:
        await there.start_agent()
        before = there.node.uuids
        last = await there.run(pod("last", mem=2), promise(2, 2))
        await there.node.until(lambda: len(_gpus(there)) == 3)
        await there.node.stop_agent()
        there.node.hardware(T4, A10, T4, events=[LOST])
        await there.start_agent()
        assert there.node.uuids == before
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [False, True, True])
        lost = _gpus(there)[0]
        assert (lost["index"], lost["uuid"], lost["model"], lost["shares"]) == (0, before[0], "Tesla T4", 14)
        assert "the driver no longer finds it" in lost["reason"]
        assert there.positions(await there.run(pod("a", mem=3), promise(1, 3))) == {1: 3}
        await there.node.healthy_is(MEM, 21 + 14)
        assert there.positions(last) == {2: 2}

        there.node.hardware(T4, A10, T4)
        assert there.node.agent is not None
        there.node.agent.toggle_pause()
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [False, False, False])
        there.node.agent.toggle_pause()
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [True, True, True])
        assert there.node.uuids == before
        await there.node.healthy_is(MEM, 14 + 21 + 14)


async def test_gpus_of_another_machine_are_none_of_this_one() -> None:
    """The node was made anew under the same name, with other cards."""
    async with cluster([T4, T4]) as there:
        await there.start_agent()
        await there.node.until(lambda: len(_gpus(there)) == 2)
        await there.node.stop_agent()
        there.node.hardware({**A10, "uuid": "GPU-x"})
        await there.start_agent()
        assert there.node.uuids == ["GPU-x"]
        await there.node.until(lambda: len(_gpus(there)) == 1)


async def test_a_node_whose_gpus_cannot_be_seen_says_so_and_keeps_what_it_knew() -> None:
    """The driver is gone when the agent starts; it is back for the next start, without the first card."""
    async with cluster([T4, A10]) as there:
        await there.start_agent()
        before = there.node.uuids
        await there.node.until(lambda: len(_gpus(there)) == 2)
        await there.node.stop_agent()
        there.node.hardware(T4, A10, events=[{"at": 0, "failure": "no-driver"}])
        there.node.launch()
        await there.node.until(lambda: [gpu["healthy"] for gpu in _gpus(there)] == [False, False])
        assert "load the NVIDIA kernel module" in _gpus(there)[0]["reason"]
        await there.node.stop_agent()
        there.node.hardware(T4, A10, events=[LOST])
        await there.start_agent()
        assert there.node.uuids == before


async def test_an_agent_that_cannot_read_its_node_starts_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as there:
        there.api.fail(Hang(), resources=["nodes"])
        await there.start_agent()
        assert "the positions of the GPUs may differ from before" in caplog.text
        assert (await there.run(pod("a", mem=3), promise(1, 3))).phase == "Running"
        there.api.heal()


async def test_a_node_that_is_made_anew_is_told_of_its_gpus_again() -> None:
    async with cluster() as there:
        there.node.launch()
        there.cluster.look_s = 0.05
        await there.node.until(lambda: bool(there.said_of_node()))
        there.api.delete("nodes", NODE)
        there.api.add(builders.node(NODE))
        await there.node.until(lambda: bool(there.said_of_node()) and there.labels().get("count") == "2")


async def test_what_is_said_already_is_not_said_again() -> None:
    """GPUs are probed 20 times a second here; the node is written thrice: before pods may come, when they may, and when
    it is known who uses what."""
    async with cluster([T4]) as there:
        await there.start_agent()
        await there.node.until(there.takes_pods)
        await there.node.until(lambda: NODE_USE in there.api.get("nodes", NODE)["metadata"]["annotations"])
        written = there.api.get("nodes", NODE)["metadata"]["resourceVersion"]
        for processes in (3, 0):
            there.node.hardware({**T4, "processes": processes})
            await there.node.until(lambda n=processes: there.node.processes == [n])  # type: ignore[misc]
            await there.node.rounds(2)
        assert there.api.get("nodes", NODE)["metadata"]["resourceVersion"] == written
        looks = there.api.count("get", "nodes")
        assert looks <= 4
        # A look that misses a write under way has it sent once more, which changes nothing; the first look cannot.
        assert there.api.count("patch", "nodes") <= 2 + looks - 1


async def test_no_pod_is_to_come_before_the_kubelet_listens() -> None:
    async with cluster() as there:
        await there.node.kubelet.stop()
        there.node.launch()
        await there.node.until(lambda: bool(there.said_of_node()))
        await there.node.rounds(2)
        assert not there.takes_pods()
        await there.node.kubelet.start()
        await there.node.until(there.takes_pods)


async def test_no_pod_is_to_come_before_it_is_known_what_ended_meanwhile() -> None:
    """It would be promised a GPU that is still held for a container that is no more."""
    async with cluster([T4]) as there:
        await there.start_agent()
        made = await there.run(pod("p", mem=3))
        # An agent that ends before it has seen the kubelet's record of a grant leaves it to its successor as lost.
        await there.node.rounds(2)
        await there.node.stop_agent()
        await there.node.kubelet.delete(made)
        # Nothing that the former agent has published, or did not get to, is taken for what this one says.
        there.api.patch("nodes", NODE, {"metadata": {"annotations": {NODE_GPUS: None}}})
        there.node.launch()
        await there.node.until(there.takes_pods)
        assert there.node.held == set()


async def test_an_xid_becomes_an_event() -> None:
    async with cluster([T4]) as there:
        await there.start_agent()
        there.node.hardware(T4, events=[{"at": "1ms", "gpu": 0, "xid": 31}])
        await there.node.until(lambda: bool(there.events("GPUError")))
        assert "GPU 0" in there.events("GPUError")[0]["note"]
        assert "XID 31" in there.events("GPUError")[0]["note"]


async def test_a_run_of_refusals_is_one_event_with_advice() -> None:
    """9 on each GPU leave 5 and 5: pods of 8 are refused; after three of them the node shows less, and says so once."""
    async with cluster(refusal_limit="3", policy="spread") as there:
        await there.start_agent()
        for name in "ab":
            await there.run(pod(name, mem=9))
        for n in range(6):
            assert (await there.run(pod(f"big{n}", mem=8))).phase == "Failed"
        await there.node.until(lambda: bool(there.events("GPUMemoryFragmented")))
        await there.node.healthy_is(MEM, 18 + 7)
        (event,) = there.events("GPUMemoryFragmented")
        assert event["note"].startswith("Pods of 8 GiB are refused repeatedly: ")
        assert "install a scheduler extender" in event["note"]
        assert "series" not in event


# --- An API server that is slow, broken or away ----------------------------------------------------------------------


async def test_e2_no_call_of_the_kubelet_makes_a_request() -> None:
    async with cluster() as there:
        await there.start_agent()
        await there.node.until(lambda: bool(there.labels()))
        for n in range(10):
            there.create(pod(f"p{n}", mem=1))
            await there.bind(f"p{n}")
        before = len(there.api.requests)
        for n in range(10):
            await there.node.kubelet.admit(there.known(pod(f"p{n}", mem=1)))
        # Afterwards, and whenever it likes, the agent writes on each pod where it is.
        asked = [
            request for request in there.api.requests[before:] if (request.verb, request.resource) != ("patch", "pods")
        ]
        assert asked == []


TROUBLES = [Hang(), Reset(), Answer(500), Answer(503, retry_after_s=1), Answer(429, retry_after_s=1), Garbage()]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: type(trouble).__name__)
async def test_e1_pods_get_their_devices_whatever_the_api_server_answers(trouble: Trouble) -> None:
    """What is known still counts, what is not is placed by the policy, and all is written once the trouble is over."""
    async with cluster() as there:
        await there.start_agent()
        known = await there.schedule(pod("known", mem=3), promise(1, 3))
        there.api.fail(trouble)
        there.api.reads.close()
        assert there.positions(await there.node.kubelet.admit(known)) == {1: 3}
        there.create(pod("unknown", mem=3))
        there.api.bind("unknown", NODE, promise(1, 3))
        assert (await there.node.kubelet.admit(there.known(pod("unknown", mem=3)))).phase == "Running"
        there.api.heal()
        there.api.reset_connections()
        await there.assigned("known", "unknown")


async def test_e1_an_agent_starts_while_the_api_server_is_away() -> None:
    async with cluster() as there:
        await there.api.stop()
        await there.node.start_agent()
        a = await there.node.kubelet.admit(pod("a", mem=3))
        assert there.positions(a) == {0: 3}
        await there.api.start()
        await there.node.until(lambda: there.cluster.followed.reflector.live)
        await there.node.until(lambda: bool(there.said_of_node()))
        assert there.positions(await there.run(pod("b", mem=3), promise(1, 3))) == {1: 3}


async def test_e1_an_outage_of_the_api_server_is_caught_up_with() -> None:
    """A pod ends, one is bound and one served meanwhile; and the history is lost, so that the agent lists anew."""
    async with cluster("fake:2xT4") as there:
        await there.start_agent()
        a = await there.run(pod("a", mem=3), promise(0, 3))
        await there.assigned("a")
        b = await there.schedule(pod("b", mem=3), promise(1, 3))
        await there.api.stop()
        there.api.store.compact()
        served = await there.node.kubelet.admit(b)
        assert there.positions(served) == {1: 3}
        there.report(there.node.kubelet.finish(a))
        there.create(pod("c", mem=3))
        there.api.bind("c", NODE, promise(1, 3))
        await there.api.start()
        await there.seen("c")
        c = await there.admit(there.known(pod("c", mem=3)))
        assert there.positions(c) == {1: 3}
        await there.assigned("b", "c")


async def test_e1_a_pod_that_the_kubelet_knows_before_us_makes_us_look_at_once() -> None:
    """Both lost the API server, which told us to stay away for a minute; the kubelet is the first to be back."""
    async with cluster() as there:
        await there.start_agent()
        there.api.fail(Answer(503, retry_after_s=60), resources=["pods"])
        there.api.reads.close()
        await there.node.until(lambda: there.cluster.followed.reflector.problem is not None)
        there.api.heal()
        there.create(pod("a", mem=3))
        there.api.bind("a", NODE, promise(1, 3))
        assert there.positions(await there.admit(there.known(pod("a", mem=3)))) == {1: 3}
        await there.assigned("a")


async def test_e3_a_watch_that_has_gone_silent_keeps_nobody_waiting_for_long() -> None:
    async with cluster() as there:
        await there.start_agent()
        there.api.black_hole()
        for name in "ab":
            assert (await there.node.kubelet.admit(pod(name, mem=3))).phase == "Running"
        there.api.heal()


async def test_e5_a_node_of_another_name_is_said_to_be_missing(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(node_name="host") as there:
        await there.node.start_agent()
        await there.node.until(lambda: "set the node's name (NODE_NAME) from spec.nodeName" in caplog.text)
        assert (await there.node.kubelet.admit(pod("a", mem=3))).phase == "Running"


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        (("list", "pods"), "grant 'list' on 'pods' to the service account"),
        (("watch", "pods"), "grant 'watch' on 'pods' to the service account"),
        (("patch", "pods"), "grant 'patch' on 'pods' to the service account"),
        (("get", "nodes"), "grant 'get' on 'nodes' to the service account"),
        (("patch", "nodes"), "grant 'patch' on 'nodes' to the service account"),
        (("create", "events"), "grant 'create' on 'events' of the API group events.k8s.io to the service account"),
    ],
)
async def test_c8_a_missing_right_is_named_and_stops_nothing_else(
    missing: tuple[str, str], names: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(allowed=RIGHTS - {missing}, http="127.0.0.1:0") as there:
        await there.node.start_agent()
        there.cluster.event("GPUError", "something", "Observe", warning=True)
        there.create(pod("a", mem=3))
        there.api.bind("a", NODE, promise(1, 3))
        made = await there.node.kubelet.admit(there.known(pod("a", mem=3)))
        assert made.phase == "Running"
        await there.node.until(lambda: names in caplog.text)
        line = f'gpushare_api_errors_total{{error="ForbiddenError",verb="{missing[0]}"}}'
        assert line in await there.metrics()


async def test_c8_a_namesake_of_a_pod_is_not_written_on() -> None:
    """The pod was deleted by force and made anew while its mark could not be written."""
    async with cluster() as there:
        await there.start_agent()
        fault = there.api.fail(Answer(500), verbs=["patch"], resources=["pods"])
        a = await there.run(pod("a", mem=3), promise(1, 3))
        await there.node.until(lambda: fault.happened > 0)
        await there.node.kubelet.delete(a, force=True)
        there.api.delete("pods", "a")
        there.create(pod("a", mem=3))
        there.api.bind("a", NODE, promise(0, 3))
        there.api.heal()
        await there.run(pod("b", mem=3), promise(1, 3))
        await there.assigned("b")
        assert there.annotations("a")["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"


async def test_pods_of_others_cause_no_reading_of_the_kubelets_records() -> None:
    """Pods that ask for no device come and go all the time."""
    async with cluster(reconcile_interval="10m") as there:
        await there.start_agent()
        lists = len(there.node.lists(MEM))
        for n in range(5):
            there.api.add(builders.pod(f"web{n}", node=NODE, phase="Running"))
            await there.seen(f"web{n}")
            there.api.delete("pods", f"web{n}")
        await there.run(pod("a", mem=3), promise(0, 3))
        await there.assigned("a")
        assert len(there.node.lists(MEM)) == lists


def _gpus(there: Cluster) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = there.said_of_node().get("gpus", [])
    return said
