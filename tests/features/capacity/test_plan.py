"""`kubectl inspect gpushare plan` shows which pods to move, and moves them one after the other."""

import asyncio
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.capacity import commands as plan
from gpu_device_plugin.features.capacity.commands import Mover, MoveStoppedError
from gpu_device_plugin.kubernetes.client.errors import Call, UnavailableError
from gpu_device_plugin.kubernetes.kubectl import reaching
from gpu_device_plugin.model.contract.keys import HELD_ROOM, MOVE_REFUSED, MOVE_TO
from tests.programs.inspect.test_inspect_program import PROG, World, gpu, node, pod
from tests.resources import RESOURCES

WEB = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8", "uid": "web", "controller": True}
LABELS = {"app": "web"}


def owned(name: str, mem: int, idx: int, on: str = "node-a", **more: Any) -> dict[str, Any]:
    """A pod of a ReplicaSet."""
    made = pod(name, mem, on=on, idx=idx, spec=more)
    made["metadata"] |= {"ownerReferences": [WEB], "labels": LABELS}
    return made


def budget(allowed: int, **selector: Any) -> dict[str, Any]:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default", "uid": "pdb"},
        "spec": {"selector": selector or {"matchLabels": LABELS}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Each of two GPUs has 9 of 15 shares free, and a pod wants 12."""
    made = World(tmp_path)
    made.has(
        node("node-a", gpu(0)),
        node("node-b", gpu(0)),
        owned("web-0", 6, 0),
        pod("bare", 6, on="node-b", idx=0),
        pod("want", 12),
        groups=["policy"],
    )
    return made


def told(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = world.inspect("plan", *words)
    out = capsys.readouterr()
    return code, [line.removeprefix(f"{PROG}: ").rstrip() for line in (out.out + out.err).splitlines()]


def written(world: World, name: str) -> dict[str, str]:
    script = json.loads((world.home / "script.json").read_text(encoding="utf-8"))
    (found,) = (each for each in script["objects"] if each["metadata"]["name"] == name)
    kept: dict[str, str] = found["metadata"]["annotations"]
    return kept


def test_a_plan_shows_its_moves_and_the_gpus_before_and_after(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "--for", "want")
    assert code == 0
    assert lines == [
        "1 move makes room for default/want.",
        "",
        "MOVE  POD            FROM          TO",
        "1     default/web-0  node-a GPU 0  node-b GPU 0",
        "",
        "NODE    GPU  BEFORE                             AFTER",
        "node-a  0    default/web-0 (6 GiB), 9 GiB free  default/want (new) (12 GiB), 3 GiB free",
        "node-b  0    default/bare (6 GiB), 9 GiB free   default/bare (6 GiB), default/web-0 (6 GiB), 3 GiB free",
        "",
        "Pods that are not moved:",
        "  no controller would replace it: default/bare",
    ]


def test_without_a_pod_all_that_fit_nowhere_are_planned_for(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(pod("small", 3), pod("huge", 99), pod("gated", 12, spec={"schedulingGates": [{"name": "kueue"}]}))
    code, lines = told(world, capsys)
    assert code == 0
    assert lines[:3] == [
        "No set of moves was found to make room for default/huge.",
        "1 move makes room for default/want.",
        "",
    ]


def test_json_has_the_same(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.inspect("plan", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    (one,) = document["plans"]
    assert one == {
        "for": "default/want",
        "found": True,
        "fewestPossible": 1,
        "exact": True,
        "moves": [
            {
                "pod": "default/web-0",
                "from": {"node": "node-a", "gpus": [0]},
                "to": {"node": "node-b", "gpus": {"0": 6}},
            }
        ],
    }
    assert document["gpus"][0] == {
        "node": "node-a",
        "gpu": 0,
        "before": {"default/web-0": 6},
        "freeBefore": 9,
        "after": {"default/want (new)": 12},
        "freeAfter": 3,
    }
    assert document["stays"] == [{"pod": "default/bare", "node": "node-b", "why": "no controller would replace it"}]


@pytest.mark.parametrize(
    ("hindrance", "why"),
    [
        (budget(0), "its PodDisruptionBudget allows no disruption"),
        (
            budget(0, matchExpressions=[{"key": "app", "operator": "Exists"}]),
            "its PodDisruptionBudget allows no disruption",
        ),
        ({"emptyDir": {}}, "it has local storage (emptyDir or hostPath)"),
        ({"hostPath": {"path": "/data"}}, "it has local storage (emptyDir or hostPath)"),
        ({"persistentVolumeClaim": {"claimName": "data"}}, "its volumes may be tied to its node or zone"),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "it depends on the places of other pods (affinity or topology spread)",
        ),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
            "it depends on the places of other pods (affinity or topology spread)",
        ),
        (
            {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
            "its annotation safe-to-evict is false",
        ),
    ],
)
def test_pods_that_must_not_move_stay(
    world: World, capsys: pytest.CaptureFixture[str], hindrance: dict[str, Any], why: str
) -> None:
    web = world.script["objects"][2]
    if "kind" in hindrance:
        world.has(hindrance)
    elif "annotations" in hindrance:
        web["metadata"]["annotations"].update(hindrance["annotations"])
    elif hindrance.keys() & {"affinity", "topologySpreadConstraints"}:
        web["spec"].update(hindrance)
    else:
        web["spec"]["volumes"] = [{"name": "data", **hindrance}]
    world.has()
    code, lines = told(world, capsys, "--for", "want")
    assert (code, lines[0]) == (0, "No set of moves was found to make room for default/want.")
    assert f"  {why}: default/web-0" in lines
    assert told(world, capsys, "--for", "want", "--apply")[0] == 1


@pytest.mark.parametrize(
    "released",
    [
        {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "cache, data"},
    ],
)
def test_local_storage_is_released_as_for_the_cluster_autoscaler(
    world: World, capsys: pytest.CaptureFixture[str], released: dict[str, str]
) -> None:
    web = world.script["objects"][2]
    web["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    web["metadata"]["annotations"].update(released)
    world.has()
    assert told(world, capsys, "--for", "want")[1][0].startswith("1 move makes room")


def test_room_that_is_held_is_no_room(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    room = {"uid-x": {"namespace": "default", "owner": "x", "gpus": {"0": 9}, "until": 4e9}}
    world.script["objects"][1]["metadata"]["annotations"][HELD_ROOM] = json.dumps(room)
    world.has()
    assert told(world, capsys, "--for", "want")[1][0] == "No set of moves was found to make room for default/want."


def test_nodes_are_freed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "--nodes-free", "1")
    assert (code, lines[0]) == (
        0,
        "1 move leaves 1 node without GPU pods.",
    )
    verdict = "No set of moves was found to leave 2 nodes without GPU pods."
    assert told(world, capsys, "--nodes-free", "2")[1][0] == verdict


def test_a_pod_that_does_not_wait_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "--for", "web-0")
    assert code == 1
    said = "is not pending for GPUs that its limits request; kubectl inspect gpushare why default/web-0 shows its state"
    assert lines == [f"default/web-0 {said}"]
    world.script["objects"].pop()
    world.has()
    assert told(world, capsys) == (0, ["No pending pod lacks room."])


def test_without_the_right_to_read_budgets_a_warning_is_printed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.has(forbidden=[["list", "poddisruptionbudgets", ""]])
    code, lines = told(world, capsys, "--for", "default/want")
    assert code == 0
    assert any(line.startswith("warning: the right to list poddisruptionbudgets") for line in lines), lines


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "a", "--nodes-free", "1"),
        ("--nodes-free", "0"),
        ("--apply", "-o", "json"),
        ("-o", "wide"),
        ("node-a",),
        ("-l", "a=b"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(world: World, words: tuple[str, ...]) -> None:
    assert world.inspect("plan", *words) == 2


# --- The moves -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, time_s in {"answer_s": 0.0, "replaced_s": 0.0, "every_s": 0.01}.items():
        monkeypatch.setattr(Mover, name, time_s)


def test_the_moves_are_made_once_they_are_confirmed(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.has(mover="obeys")
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    code, lines = told(world, capsys, "--for", "want", "--apply")
    assert (code, lines[-1]) == (1, "Nothing was moved.")
    assert not any("PATCH" in call for call in world.calls)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    code, lines = told(world, capsys, "--for", "want", "--apply")
    assert (code, lines[-2:]) == (
        0,
        ["default/web-0 is replaced by default/web-0-new on node-b.", "Done: 1 move."],
    )
    assert json.loads(written(world, "web-0-new")["ALIYUN_COM_GPU_MEM_IDX"]) == 0


@pytest.mark.parametrize(
    ("mover", "stopped"),
    [
        ("no: node node-b is cordoned", "the scheduler extender does not move default/web-0: node node-b is cordoned."),
        ("node-a", "default/web-0 was evicted, but its replacement is not on node-b: web-0-new is on node-a."),
    ],
)
def test_it_stops_at_the_first_surprise_and_says_what_stands(
    world: World, capsys: pytest.CaptureFixture[str], mover: str, stopped: str
) -> None:
    world.has(mover=mover)
    code, lines = told(world, capsys, "--for", "want", "--apply", "--yes")
    assert code == 1
    assert lines[-2:] == [
        f"Stopped: {stopped}",
        "0 of 1 move made, 1 left. Run the command again to plan from the current state.",
    ]


def test_a_wish_that_nobody_answers_is_withdrawn(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "--for", "want", "--apply", "--yes")
    assert code == 1
    assert lines[-2] == (
        "Stopped: no scheduler extender moved default/web-0 within 0 s, so the request is withdrawn; the extender "
        "can move pods once it has the rights of deploy/optional/capacity.yaml (chart: scheduler.capacity)."
    )
    assert written(world, "web-0").keys().isdisjoint({MOVE_TO, MOVE_REFUSED})


def test_a_wish_is_withdrawn_on_an_interrupt(world: World) -> None:
    """As Ctrl-C while it waits."""

    async def interrupt(_seconds: float) -> None:
        # In a terminal it ends kubectl's proxy, too, which is started again.
        os.kill(int((world.home / "proxy").read_text()), signal.SIGKILL)
        raise asyncio.CancelledError

    with pytest.raises(MoveStoppedError, match="interrupted: the request to move default/web-0 is withdrawn"):
        asyncio.run(_made(world, _moves(world)[0], sleep=interrupt))
    assert written(world, "web-0").keys().isdisjoint({MOVE_TO, MOVE_REFUSED})


def test_a_wish_whose_withdrawal_may_have_been_sent_is_withdrawn_again(world: World) -> None:
    """The connection to the proxy that Ctrl-C has ended is found broken by what is sent next."""
    (move,) = _moves(world)
    asyncio.run(_withdrawn(world, move))
    assert written(world, "web-0").keys().isdisjoint({MOVE_TO, MOVE_REFUSED})


class Patient(Mover):
    """Waits as long as the command does."""

    answer_s, replaced_s, every_s = Mover.answer_s, Mover.replaced_s, Mover.every_s


async def _withdrawn(world: World, move: Any) -> None:
    """Wish for a move and withdraw the wish, while the connection breaks."""
    async with reaching((), str(world.kubectl)) as access:
        mover, patch, lost = Patient(access, RESOURCES), access.client.patch, [True]
        await mover._wish(move.pod.pod, "node-b")
        assert MOVE_TO in written(world, "web-0")

        async def patched(*words: Any, **more: Any) -> Any:
            if lost:
                call = Call("patch", "pods", namespace="default", name="web-0")
                raise UnavailableError(call, "Connection reset by peer", sent=lost.pop())
            return await patch(*words, **more)

        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(access.client, "patch", patched)
            await mover._wish(move.pod.pod, None)


async def _made(world: World, move: Any, sleep: Any = asyncio.sleep) -> str:
    """Make a move, and return what is said of it."""
    async with reaching((), str(world.kubectl)) as access:
        return await Patient(access, RESOURCES, _sleep=sleep).make(move)


def _moves(world: World) -> list[Any]:
    """Return the moves of the plan for the pod that waits."""
    kept: list[Any] = []

    async def keep(_arguments: object, _kubectl: object, _resources: object, moves: list[Any], _lines: object) -> Any:
        kept.extend(moves)
        return [], 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "confirmed", keep)
        world.inspect("plan", "--for", "want", "--apply", "--yes")
    return kept


def test_a_pod_that_has_gone_meanwhile_is_not_moved(world: World) -> None:
    (move,) = _moves(world)
    world.script["objects"].pop(2)
    world.has()
    with pytest.raises(MoveStoppedError, match="default/web-0 is no longer on node-a"):
        asyncio.run(_made(world, move))


def test_without_the_right_to_change_the_pod_it_stops(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(refuse="web-0")
    code, lines = told(world, capsys, "--for", "want", "--apply", "--yes")
    assert code == 1
    assert lines[-2].startswith(
        "Stopped: the request cannot be written: the right to patch pods in the namespace default is missing"
    )
