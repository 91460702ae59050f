"""The pods that have ended although the kubelet's records still show their devices, and the proof that they have."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.rules.ended_pods import EndedPods, PodsInApi, pods_in_api

A, B, C = (str(UUID(int=number)) for number in range(3))
STATIC = "8eb6c2962b3a2c6a8545e6726b3213a0"
NO_API = PodsInApi()
"""Of an agent without access to it."""


def ids(**by_name: str) -> dict[str, frozenset[str]]:
    """A List, pod by pod: a letter is a device."""
    return {f"default/{name}": frozenset(devices) for name, devices in by_name.items()}


def recorded(by_uid: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """A checkpoint, pod by pod: a letter is a device."""
    return {uid: frozenset(devices) for uid, devices in by_uid.items()}


def seen(*looks: tuple[Mapping[str, str], Mapping[str, frozenset[str]]], api: PodsInApi = NO_API) -> EndedPods:
    """The value after these readings, each of a checkpoint and then of a List."""
    ended_pods = EndedPods()
    for checkpoint, listed in looks:
        ended_pods = ended_pods.after(recorded(checkpoint), listed, api)
    return ended_pods


def known(*, ended: set[str] | None = None, static: set[str] | None = None, **names: str) -> PodsInApi:
    """The pods in the API: default/NAME=UID."""
    return PodsInApi(
        {uid: f"default/{name}" for name, uid in names.items()}, frozenset(ended or ()), frozenset(static or ())
    )


# --- A pod that the kubelet no longer lists ---------------------------------------------------------------------------


def test_a_pod_that_list_named_with_its_devices_and_no_longer_names_is_over() -> None:
    gone = seen(({A: "xy"}, ids(a="xy")), ({A: "xy"}, ids()))
    assert gone.over == {A}
    assert gone.stale(recorded({A: "xy"}), ids(), NO_API) == {"x", "y"}


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([({A: "x"}, ids())], "no List ever named it: the kubelet may have been started just now"),
        ([({A: "x"}, ids(a="x"))], "it is listed"),
        ([({A: "x"}, ids(a="x")), ({A: "x"}, ids(a=""))], "it is listed, without its init container's devices"),
        ([({A: "x"}, ids(a="")), ({A: "x"}, ids())], "no device proves that this name was its own"),
        ([({}, ids(a="x")), ({A: "x"}, ids())], "when it was listed the checkpoint showed nothing of it"),
        ([({}, ids()), ({A: "x"}, ids())], "it may have been admitted after that List"),
        ([({A: "x", B: "x"}, ids(a="x")), ({A: "x", B: "x"}, ids())], "it may belong to either of the two"),
        ([({A: "xy"}, ids(a="x", b="y")), ({A: "xy"}, ids(b="y"))], "it may be either of the two"),
        ([({STATIC: "x"}, ids(a="x")), ({STATIC: "x"}, ids())], "put back, a static pod has the same entry again"),
    ],
)
def test_without_the_api_a_pod_is_not_over(
    looks: list[tuple[Mapping[str, str], Mapping[str, frozenset[str]]]], why: str
) -> None:
    assert not seen(*looks).over, why


def test_another_kubelet_process_has_to_name_a_pod_itself() -> None:
    """No state of the previous process is kept; the List of this one is empty at first."""
    before = seen(({A: "x"}, ids(a="x")))
    assert before.names == {A: "default/a"}
    assert not EndedPods().after(recorded({A: "x"}), ids(), NO_API).over


def test_a_pod_is_over_until_the_checkpoint_omits_it_even_if_another_gets_its_name() -> None:
    """The next pod of a StatefulSet."""
    gone = seen(({A: "x"}, ids(a="x")), ({A: "x"}, ids()), ({A: "x"}, ids(a="")))
    assert gone.over == {A}
    assert seen(({A: "x"}, ids(a="x")), ({A: "x"}, ids()), ({}, ids(a=""))) == EndedPods()


def test_a_pod_whose_name_another_has_already_is_not_over_yet() -> None:
    assert not seen(({A: "x"}, ids(a="x")), ({A: "x", B: "y"}, ids(a="y"))).over


# --- The pods in the API ----------------------------------------------------------------------------------------------


def test_with_the_api_a_pod_with_devices_of_an_init_container_only_is_known() -> None:
    api = known(a=A)
    assert not seen(({A: "x"}, ids(a="")), api=api).over
    assert seen(({A: "x"}, ids(a="")), ({A: "x"}, ids()), api=api).over == {A}


def test_a_pod_of_the_api_that_this_process_never_listed_is_not_over() -> None:
    """The kubelet has lost its connection to the API, and the pod runs on."""
    assert not seen(({A: "x"}, ids()), api=known(a=A)).over
    assert not seen(({A: "x"}, ids()), api=NO_API).over


def test_a_pod_that_has_ended_in_the_api_is_over_though_it_is_listed() -> None:
    """Up to 1.33 List names it as long as it is in the API, up to 1.31 with the devices of the pod admitted last."""
    api = known(a=A, ended={A})
    done = seen(({A: "x"}, ids(a="x")), api=api)
    assert done.over == {A}
    assert done.stale(recorded({A: "x"}), ids(a="x"), api) == {"x"}


def test_a_static_pod_is_never_over_whatever_uid_its_manifest_gives_it() -> None:
    api = known(a=A, ended={A}, static={A})
    assert not seen(({A: "x"}, ids(a="x")), ({A: "x"}, ids()), api=api).over


@pytest.mark.parametrize(
    ("checkpoint", "listed", "stale"),
    [
        ({A: "x"}, ids(a="x"), {"x"}),
        ({A: "x", B: "x"}, ids(a="x"), set()),
        ({A: "x"}, ids(a="x", b="x"), set()),
        ({A: "xy", B: "y"}, ids(a="xy"), {"x"}),
        ({B: "x"}, ids(b="x"), set()),
    ],
    ids=["its own only", "recorded for another", "listed for another", "one of two", "the checkpoint has it no more"],
)
def test_a_device_that_a_record_shows_for_another_pod_is_not_stale(
    checkpoint: Mapping[str, str], listed: Mapping[str, frozenset[str]], stale: set[str]
) -> None:
    api = known(a=A, b=B, ended={A})
    assert EndedPods(over=frozenset({A})).stale(recorded(checkpoint), listed, api) == stale


def test_a_device_listed_under_the_name_of_a_dropped_pod_is_not_stale() -> None:
    """Its successor has the same name and device; the checkpoint does not show that pod yet."""
    gone = seen(({A: "x"}, ids(a="x")), ({A: "x"}, ids()))
    assert gone.stale(recorded({A: "x"}), ids(a="x"), NO_API) == set()


# --- Kubelets that keep ended pods ------------------------------------------------------------------------------------

RUNNING = Pod(A, "default", "a", phase="Running", running=True)
DONE = Pod(B, "default", "b", phase="Succeeded")
HALF_DONE = Pod(C, "default", "c", phase="Failed", running=True)
MIRROR = Pod("mirror", "kube-system", "s", phase="Failed", static_uid=STATIC)
PODS = (RUNNING, DONE, HALF_DONE, MIRROR)


@pytest.mark.parametrize("version", ["v1.23.0", "v1.31.14", "v1.31.14+k3s1", "v1.29.3-eks-a1b2c3", "1.31"])
def test_kubelets_from_1_23_to_1_31_keep_the_pod_that_they_admitted_last(version: str) -> None:
    """A pod of which a container was still running when the kubelet last reported has not ended."""
    found = pods_in_api(PODS, version)
    assert found is not None
    assert found.names == {A: "default/a", B: "default/b", C: "default/c", STATIC: "kube-system/s"}
    assert found.ended == {B, STATIC}
    assert found.static == {STATIC}


@pytest.mark.parametrize("version", ["v1.22.17", "v1.32.0", "v1.36.2", "v1.310.0", "v1.3"])
def test_the_records_of_other_kubelets_need_no_view_of_the_api(version: str) -> None:
    assert pods_in_api(PODS, version) is None


@pytest.mark.parametrize("version", ["", "v2.31.0", "unknown", "v1.", "1.31415926"])
def test_a_kubelet_of_unknown_version_is_not_assumed_to_keep_ended_pods(version: str) -> None:
    found = pods_in_api(PODS, version)
    assert found is not None
    assert found.names.keys() == {A, B, C, STATIC}
    assert not found.ended


# --- Properties -------------------------------------------------------------------------------------------------------

UIDS = st.sampled_from([A, B, C, STATIC])
SOME = st.frozensets(st.sampled_from("wxyz"))
RECORDED = st.dictionaries(UIDS, SOME)
LISTED = st.dictionaries(st.sampled_from([f"default/{name}" for name in "abcs"]), SOME)
APIS = st.builds(
    PodsInApi,
    st.dictionaries(UIDS, st.sampled_from(["default/a", "default/b"])),
    st.frozensets(UIDS),
    st.just({STATIC}),
)
LOOKS = st.lists(st.tuples(RECORDED, LISTED, APIS), max_size=5)


@given(LOOKS, RECORDED, LISTED, APIS)
def test_no_device_of_a_pod_that_is_not_over_is_stale(
    looks: list[tuple[dict[str, frozenset[str]], dict[str, frozenset[str]], PodsInApi]],
    checkpoint: dict[str, frozenset[str]],
    listed: dict[str, frozenset[str]],
    api: PodsInApi,
) -> None:
    ended_pods = EndedPods()
    for before, named, shown in looks:
        ended_pods = ended_pods.after(before, named, shown)
    stale = ended_pods.stale(checkpoint, listed, api)
    for uid, some in checkpoint.items():
        assert uid in ended_pods.over or not some & stale
    for name, some in listed.items():
        assert name in {api.names.get(uid) for uid in ended_pods.over & api.ended} or not some & stale


@given(LOOKS)
def test_a_pod_is_over_only_if_it_was_named_before_or_has_ended_in_the_api(
    looks: list[tuple[dict[str, frozenset[str]], dict[str, frozenset[str]], PodsInApi]],
) -> None:
    ended_pods, named, ended = EndedPods(), set[str](), set[str]()
    for checkpoint, listed, api in looks:
        ended_pods = ended_pods.after(checkpoint, listed, api)
        ended |= api.ended
        assert ended_pods.over <= checkpoint.keys() & (named | ended) - {STATIC}
        named |= ended_pods.names.keys()
