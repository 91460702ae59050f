"""`kubectl inspect gpushare resize` writes wishes on a pod, waits for the answers, and says what holds and why."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.commands import resize
from gpu_device_plugin.features.elastic.contract import Allowance
from gpu_device_plugin.kubernetes.kubectl import reaching
from gpu_device_plugin.model.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    RESIZE_BOUND,
)
from gpu_device_plugin.model.contract.reservations import Answer, write_answer
from gpu_device_plugin.programs.inspect.arguments import parse
from tests.programs.inspect.test_inspect_program import PROG, World, gpu, node, pod
from tests.reporting import COMMANDS
from tests.resources import RESOURCES

RUNNING: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


UNITS, LATER = "an amount is a whole number of shares (gpu-mem), at least 1", "change its requests, or wait"


def answer(wish: str, main: int = 0, why: str = "") -> str:
    return write_answer(Answer({"main": main} if main else {}, wish, why))


def annotations_of(world: World, name: str = "web") -> dict[str, str]:
    script = json.loads((world.home / "script.json").read_text(encoding="utf-8"))
    (found,) = (each for each in script["objects"] if each["kind"] == "Pod" and each["metadata"]["name"] == name)
    kept: dict[str, str] = {key: text for key, text in found["metadata"]["annotations"].items() if "/memory-" in key}
    return kept


def annotated(name: str, **annotations: str) -> dict[str, Any]:
    made = pod(name, 4, on="node-a", idx=0, **RUNNING)
    made["metadata"]["annotations"].update(
        {f"gpu-device-plugin/memory-{key}": text for key, text in annotations.items()}
    )
    return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A pod with 4 of 15 shares, in a namespace whose pods may have 8 shares more than they request."""
    made = World(tmp_path)
    namespace = {"kind": "Namespace", "metadata": {"name": "default", "labels": {RESIZE_BOUND: "8"}}}
    made.has(node("node-a", gpu(0)), pod("web", 4, on="node-a", idx=0, **RUNNING), namespace)
    return made


def told(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = world.inspect("resize", *words)
    out = capsys.readouterr()
    return code, [line.removeprefix(f"{PROG}: ") for line in (out.out + out.err).splitlines()]


def test_a_guarantee_grows_once_both_have_answered(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(answers={MEMORY_PROMISED: answer("6", 6), MEMORY_HELD: answer("6", 6)})
    code, lines = told(world, capsys, "web", "6", "--limit", "12")
    assert (code, lines[0]) == (0, "default/web: Container 'main' is guaranteed 6 GiB.")
    assert lines[1] == "Its limit is 12 GiB, of which it borrows what others do not need."
    assert lines[2] == (
        "The container has no /run/gpushare/memory.json; only pods created with these annotations get it."
    )
    assert annotations_of(world) | {MEMORY_GUARANTEE: "6", MEMORY_LIMIT: "12"} == annotations_of(world)


def test_without_an_amount_it_says_what_holds_and_changes_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(world, capsys, "pod/web") == (0, ["default/web: Container 'main' is guaranteed 4 GiB, its request."])
    assert not any("PATCH" in call for call in world.calls)


def test_what_the_extender_refuses_is_told_with_its_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(answers={MEMORY_PROMISED: answer("9", why="GPU 0 has 3 GiB free")})
    code, lines = told(world, capsys, "web", "9")
    assert code == 1
    assert lines[0] == (
        "default/web: Container 'main' is guaranteed 4 GiB and requests 9 GiB: the scheduler extender says: GPU 0 "
        "has 3 GiB free."
    )
    assert not any("kubectl label" in line for line in lines), "the namespace allows it"


@pytest.mark.parametrize("readable", [True, False])
def test_a_namespace_without_a_bound_is_told_with_the_command(
    world: World, capsys: pytest.CaptureFixture[str], *, readable: bool
) -> None:
    world.script["objects"][-1]["metadata"]["labels"] = {}
    why = "nothing is allowed" if readable else f"the namespace has no label {RESIZE_BOUND}"
    world.has(
        answers={MEMORY_PROMISED: answer("6", why=why)}, forbidden=[] if readable else [["get", "namespaces", ""]]
    )
    code, lines = told(world, capsys, "web", "6")
    assert code == 1
    assert lines[-1].endswith(f"kubectl label namespace default --overwrite {RESIZE_BOUND}=2")


def test_a_bound_that_is_newer_than_the_answer_is_no_reason_to_ask_an_administrator(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    why = Allowance("default", None).refusal(2)
    world.has(answers={MEMORY_PROMISED: answer("6", why=why)})
    code, lines = told(world, capsys, "web", "6")
    assert (code, lines[-1]) == (
        1,
        f"The namespace has the label now, {RESIZE_BOUND}=8: the request remains, and is retried within a minute.",
    )
    used_up = Allowance("default", 8, 7).refusal(2)
    world.has(answers={MEMORY_PROMISED: answer("6", why=used_up)})
    assert told(world, capsys, "web", "6")[1][-1].endswith(f" --overwrite {RESIZE_BOUND}=10")


def test_a_deployment_is_no_pod(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "deployment/web", "6")
    assert (code, lines) == (
        2,
        ["resize deployment/web: it changes one running pod; kubectl get pods names them"],
    )


def test_a_pod_of_a_controller_is_replaced_by_one_of_its_template(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8", "uid": "1", "controller": True}
    made = annotated("one")
    made["metadata"]["ownerReferences"] = [owner]
    world.has(made, answers={MEMORY_HELD: answer("6", 6)})
    code, lines = told(world, capsys, "one", "6")
    assert code == 0
    assert "This lasts as long as the pod: other pods of ReplicaSet web-5d8 get what their template says." in lines


async def test_without_an_answer_the_wish_stays(world: World) -> None:
    arguments = parse(PROG, ["resize", "web", "6"], COMMANDS)
    async with reaching((), str(world.kubectl)) as access:
        lines, code = await resize(arguments, access, RESOURCES, patience_s=0)
    assert code == 1
    assert isinstance(lines[0], str)
    assert isinstance(lines[-1], str)
    assert "the agent of its node has not answered yet" in lines[0]
    assert lines[-1].startswith("No answer yet; the request remains. Check that the agent runs on node-a")
    assert annotations_of(world) == {MEMORY_GUARANTEE: "6"}


def test_other_containers_keep_their_wishes(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    two = annotated("two", guarantee="5", limit='{"main":7,"other":9}')
    other = {"name": "other", "resources": {"limits": {"aliyun.com/gpu-mem": "2"}}}
    two["spec"]["containers"].append(other)
    held = write_answer(Answer({"main": 6, "other": 5}, '{"main":6,"other":5}'))
    world.has(two, answers={MEMORY_HELD: held})
    code, lines = told(world, capsys, "two", "6")
    assert (code, lines) == (
        1,
        ["default/two cannot be resized: several of its containers have shares; name one with -c: main, other"],
    )
    code, lines = told(world, capsys, "two", "6", "-c", "main")
    assert (code, lines[0]) == (0, "default/two: Container 'main' is guaranteed 6 GiB.")
    assert json.loads(annotations_of(world, "two")[MEMORY_GUARANTEE]) == {"main": 6, "other": 5}
    world.script = json.loads((world.home / "script.json").read_text())
    world.has(answers={MEMORY_HELD: write_answer(Answer({"other": 5}, '{"other":5}'))})
    code, lines = told(world, capsys, "two", "--clear", "-c", "main")
    assert (code, lines) == (0, ["default/two: Container 'main' is guaranteed 4 GiB, its request."])
    assert annotations_of(world, "two") | {
        MEMORY_GUARANTEE: '{"other":5}',
        MEMORY_LIMIT: '{"other":9}',
    } == annotations_of(world, "two")


def test_a_cleared_wish_is_gone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(annotated("big", guarantee="6", limit="8", held=answer("6", 6)), answers={MEMORY_HELD: "{}"})
    assert told(world, capsys, "big", "--clear") == (
        0,
        ["default/big: Container 'main' is guaranteed 4 GiB, its request."],
    )
    assert annotations_of(world, "big") == {MEMORY_HELD: "{}"}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("web", "6Gi"), 2, f"AMOUNT: {UNITS}: write 6, not 6Gi"),
        (("web", "0"), 2, f"AMOUNT: {UNITS}: write it like 6"),
        (("web", "--limit", "x"), 2, f"--limit: {UNITS}: write it like 6; see kubectl inspect gpushare resize --help"),
        (("web", "6", "--limit=5"), 2, "--limit: 5 is less than the guarantee of 6; choose more"),
        (("a", "6", "--clear"), 2, "--clear: it returns to the request; leave out AMOUNT and --limit, or leave it out"),
        ((), 2, "the following arguments are required: POD [AMOUNT]; see kubectl inspect gpushare resize --help"),
        (("web", "16"), 1, "default/web cannot be resized: 16 is more than its GPU has: 15 shares"),
        (("web", "6", "-cm"), 1, "default/web cannot be resized: it has no container 'm' with GPUs; there is main"),
        (("whole", "6"), 1, "default/whole cannot be resized: it has whole GPUs, which cannot be resized"),
        (("later", "6"), 1, f"default/later cannot be resized: it is not running yet (Pending); {LATER}"),
        (("done",), 1, "default/done cannot be resized: it has ended"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, sentence: str
) -> None:
    world.has(
        pod("whole", count=1, on="node-a", idx=0, **RUNNING),
        pod("later", 4),
        pod("done", 4, on="node-a", phase="Failed"),
    )
    assert told(world, capsys, *words) == (code, [sentence])


def test_a_pod_that_is_not_there_and_a_right_that_is_missing(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    assert world.inspect("resize", "wob", "6") == 1
    assert "pod default/wob cannot be read" in capfd.readouterr().err
    world.has(refuse="web")
    assert world.inspect("resize", "web", "6") == 1
    said = capfd.readouterr().err
    world.has(refused=f"admission webhook denied the request: the namespace has no label {RESIZE_BOUND}")
    assert world.inspect("resize", "web", "6") == 1
    assert (
        f"; an administrator sets it: kubectl label namespace default --overwrite {RESIZE_BOUND}=2"
        in capfd.readouterr().err
    )
    assert "the right to patch pods in the namespace default is missing; an administrator grants it" in said
    assert "kubectl -n default create rolebinding" in said


def test_shares_of_an_instance_stay_and_an_unreadable_node_is_no_obstacle(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    mig = {"parent": "GPU-1", "gpu": 0, "number": 1, "profile": "1g.10gb", "gi": 7}
    world.has(node("node-m", gpu(0, mig=mig)), pod("inst", 4, on="node-m", idx=0, **RUNNING))
    assert told(world, capsys, "inst", "5") == (
        1,
        ["default/inst cannot be resized: it has shares of a MIG instance, which can neither grow nor borrow"],
    )
    world.has(answers={MEMORY_HELD: answer("6", 6)}, forbidden=[["get", "nodes", ""]])
    assert told(world, capsys, "web", "6")[1][0] == "default/web: Container 'main' is guaranteed 6 shares."
