"""`kubectl inspect gpushare cordon` puts a GPU aside for a reason that everybody sees; `uncordon` takes it back."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.cordons import Cordon, read_cordons, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, MOVE_TO
from tests.features.capacity.test_plan import budget, owned
from tests.programs.inspect.test_inspect_program import PROG, World, gpu, node, pod

UUIDS = [str(gpu(index)["uuid"]) for index in range(2)]
MIG = {"parent": "GPU-m", "gpu": 2, "profile": "1g.10gb"}


def mig(position: int, number: int) -> dict[str, Any]:
    return gpu(position, 9, uuid=f"MIG-{number}", mig={**MIG, "number": number, "gi": number})


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.has(
        node("node-a", gpu(0), gpu(1), mig(2, 0), mig(3, 1)),
        node("node-b", gpu(0)),
        groups=["policy"],
        namespace="shop",
    )
    return made


def told(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = world.inspect(*words)
    out = capsys.readouterr()
    return code, [line.removeprefix(f"{PROG}: ").rstrip() for line in (out.out + out.err).splitlines()]


def cordons(world: World, name: str = "node-a") -> Mapping[str, Cordon]:
    script = json.loads((world.home / "script.json").read_text(encoding="utf-8"))
    (found,) = (each for each in script["objects"] if each["metadata"]["name"] == name)
    text = found["metadata"]["annotations"].get(CORDONS)
    return {} if text is None else read_cordons(text)


def marked(world: World, **by_uuid: str) -> None:
    """Have cordons on node-a, by the one who made each."""
    text = write_cordons({uuid.replace("_", "-"): Cordon(by) for uuid, by in by_uuid.items()})
    world.script["objects"][0]["metadata"]["annotations"][CORDONS] = text
    world.has()


def test_a_gpu_is_put_aside_with_who_when_and_why(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "cordon", "node/node-a", "1", "--reason", "a fan is loud")
    (cordon,) = cordons(world).values()
    assert (code, cordon.by, cordon.why, list(cordons(world))) == (0, "alice", "a fan is loud", [UUIDS[1]])
    assert lines[0] == f"GPU 1 of node-a is cordoned by alice at {cordon.at} because: a fan is loud."
    assert told(world, capsys, "node-a", "-o", "wide")[1][2].endswith("because: a fan is loud")
    code, lines = told(world, capsys, "cordon", "node-a", UUIDS[1], "--reason", "another")
    again = f"GPU 1 of node-a is already cordoned by alice at {cordon.at} because: a fan is loud"
    assert (code, lines) == (0, [f"{again}; uncordon it first to give another reason."])
    assert cordons(world) == {UUIDS[1]: cordon}


@pytest.mark.parametrize(("user", "by"), [("alice", "alice"), ("", "in-kubeconfig")])
def test_who_is_the_user_of_the_api_server_or_of_the_kubeconfig(world: World, user: str, by: str) -> None:
    world.has(user=user)
    assert world.inspect("cordon", "node-a", "0") == 0
    assert cordons(world)[UUIDS[0]].by == by


@pytest.mark.parametrize(
    ("word", "uuids"),
    [
        ("0", {UUIDS[0]}),
        (UUIDS[1], {UUIDS[1]}),
        ("11a2b3c4", {UUIDS[1]}),
        ("2:1", {"MIG-1"}),
        ("MIG-0", {"MIG-0"}),
        ("GPU-m", {"GPU-m"}),
        ("2:all", {"GPU-m"}),
    ],
)
def test_a_gpu_is_named_as_tables_show_it(world: World, word: str, uuids: set[str]) -> None:
    assert world.inspect("cordon", "node-a", word) == 0
    assert cordons(world).keys() == uuids
    assert world.inspect("uncordon", "node-a", word) == 0
    assert cordons(world) == {}


def test_an_unknown_gpu_is_told_with_those_that_there_are(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "cordon", "node-b", "7")
    assert (code, lines) == (1, ["node node-b has no GPU 7; it has GPU 0 (01a2b3c4)"])
    world.has({**node("bare"), "metadata": {"name": "bare", "uid": "u"}})
    assert "lists no GPUs by UUID" in told(world, capsys, "cordon", "bare", "0")[1][0]
    last = told(world, capsys, "cordon", "nowhere", "0")[1][-1]
    assert last.startswith("node nowhere cannot be read")
    assert last.endswith("kubectl get nodes lists the nodes")


def test_two_people_at_once_lose_nothing(world: World) -> None:
    theirs = write_cordons({UUIDS[0]: Cordon("bob")})
    world.has(meanwhile={CORDONS: theirs})
    assert world.inspect("cordon", "node-a", "1") == 0
    assert {uuid: cordon.by for uuid, cordon in cordons(world).items()} == {UUIDS[0]: "bob", UUIDS[1]: "alice"}


def test_the_first_of_two_who_want_the_same_is_kept(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(meanwhile={CORDONS: write_cordons({UUIDS[1]: Cordon("bob")})})
    assert told(world, capsys, "cordon", "node-a", "1")[1][0] == "GPU 1 of node-a is cordoned by bob."


def test_a_missing_right_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(refuse="node-a")
    code, lines = told(world, capsys, "cordon", "node-a", "1")
    assert code == 1
    right = "the right to patch nodes in the whole cluster is missing"
    who = "ask an administrator of the cluster to grant it; gpushare-viewer does not"
    assert lines[0] == f"the cordon cannot be written: {right}; {who}"


def test_a_damaged_annotation_is_left_and_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.script["objects"][0]["metadata"]["annotations"][CORDONS] = "{"
    world.has()
    for command in ("cordon", "uncordon"):
        code, lines = told(world, capsys, command, "node-a", "1")
        assert code == 1
        assert lines[0].endswith(f"then remove it: kubectl annotate node node-a {CORDONS}-")


def test_uncordon_tells_what_it_was_and_keeps_the_others(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    marked(world, MIG_0="bob", MIG_1="eve", GPU_gone="joe")
    takes = "takes new pods again within a minute. It was"
    assert told(world, capsys, "uncordon", "node-a", "MIG-1") == (
        0,
        [f"GPU 3 (MIG 2:1 1g.10gb) of node-a {takes} cordoned by eve."],
    )
    assert told(world, capsys, "uncordon", "node-a", "GPU-gone")[1] == [
        f"GPU GPU-gone of node-a {takes} cordoned by joe."
    ]
    assert told(world, capsys, "uncordon", "node-a", "GPU-m")[0] == 0
    assert cordons(world) == {}
    assert told(world, capsys, "uncordon", "node-a", "0") == (0, ["GPU 0 of node-a is not cordoned."])


def test_an_instance_of_a_cordoned_gpu_is_uncordoned_with_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    marked(world, GPU_m="bob")
    code, lines = told(world, capsys, "uncordon", "node-a", "2:1")
    assert (code, lines[0].endswith("with its whole GPU: uncordon that one, GPU-m")) == (1, True)
    assert told(world, capsys, "cordon", "node-a", "2:1")[1] == [
        "GPU 3 (MIG 2:1 1g.10gb) of node-a is already cordoned by bob."
    ]


def test_a_dry_run_changes_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "cordon", "node-a", "0", "--dry-run")
    assert (code, len(lines), "would be cordoned by alice" in lines[0]) == (0, 1, True)
    assert cordons(world) == {}
    marked(world, GPU_m="bob")
    assert "would take new pods again" in told(world, capsys, "uncordon", "node-a", "GPU-m", "--dry-run")[1][0]
    assert cordons(world).keys() == {"GPU-m"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["cordon", "node-a"], "the following arguments are required: GPU; see"),
        (["cordon", "node-a", "0", "1"], "cordon: too many arguments; see"),
        (["cordon", "node-a", "0", "--yes"], "--yes: there is nothing to confirm"),
        (["cordon", "node-a", "0", "--reason", "x" * 257], "--reason: write one line"),
        (["cordon", "node-a", "0", "--reason", "a\nb"], "--reason: write one line"),
        (["uncordon", "node-a", "0", "--drain"], "--drain goes with cordon"),
    ],
)
def test_mistakes_are_told(world: World, capsys: pytest.CaptureFixture[str], words: list[str], why: str) -> None:
    code, lines = told(world, capsys, *words)
    assert (code, lines[0].startswith(why)) == (2, True)


# --- Draining ---------------------------------------------------------------------------------------------------------


def test_a_drain_moves_what_may_move_and_tells_what_stays(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.has(owned("web-0", 6, 1), pod("bare", 2, on="node-a", idx=1), budget(5), mover="obeys")
    world.has(pod("other", 12, on="node-b", idx=0), pod("third", 12, on="node-a", idx=0))
    code, lines = told(world, capsys, "cordon", "node-a", "1", "--drain", "--dry-run")
    assert code == 0
    assert lines[1:5] == [
        "1 move to drain it.",
        "",
        "MOVE  POD            FROM          TO",
        "1     default/web-0  node-a GPU 1  node-a GPU 2",
    ]
    assert lines[-2:] == ["Pods that are not moved:", "  no controller would replace it: default/bare"]
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert told(world, capsys, "cordon", "node-a", "1", "--drain")[1][-1] == "Nothing was moved."
    assert cordons(world).keys() == {UUIDS[1]}
    code, lines = told(world, capsys, "cordon", "node-a", "1", "--drain", "--yes")
    assert (code, lines[-1]) == (1, "Done: 1 move.")
    names = [each["metadata"]["name"] for each in world_objects(world)]
    assert "web-0-new" in names


def world_objects(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((world.home / "script.json").read_text(encoding="utf-8"))["objects"]
    return found


def test_a_pod_without_room_elsewhere_stays(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(owned("web-0", 14, 1), pod("a", 9, on="node-a", idx=0), pod("b", 9, on="node-b", idx=0))
    code, lines = told(world, capsys, "cordon", "node-a", "1", "--drain", "--yes")
    assert code == 1
    assert "No pod there can be moved." in lines
    assert lines[-1] == "  there is no room for it elsewhere: default/web-0"
    assert MOVE_TO not in world_objects(world)[2]["metadata"]["annotations"]


def test_an_empty_gpu_is_drained_already(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(world, capsys, "cordon", "node-a", "1", "--drain")[1][-1] == "No pod there has to be moved."


def test_pods_with_whole_instances_are_told_and_stay(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    resource = "nvidia.com/mig-1g.10gb"
    whole = gpu(4, 9, uuid="MIG-9", mig={**MIG, "number": 9, "gi": 9, "resource": resource})
    made = node("node-c", gpu(0))
    said = json.loads(made["metadata"]["annotations"]["gpu-device-plugin/gpus"]) | {"instances": [whole]}
    made["metadata"]["annotations"]["gpu-device-plugin/gpus"] = json.dumps(said)
    holder = pod("lab", on="node-c")
    holder["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    holder["metadata"]["annotations"]["gpu-device-plugin/mig-instances"] = '{"main": ["MIG-9"]}'
    world.has(made, holder)
    code, lines = told(world, capsys, "cordon", "node-c", "MIG-9", "--drain")
    assert (code, lines[-1]) == (1, "  it has a whole MIG instance, and such pods are not moved: default/lab")


@pytest.mark.parametrize("command", ["cordon", "uncordon"])
def test_who_may_not_read_nodes_is_told_who_grants_it_and_no_command_that_is_forbidden_too(
    world: World, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    world.has(forbidden=[["get", "nodes", ""]])
    said = "node node-a cannot be read: the right to get nodes in the whole cluster is missing; ask an administrator"
    more = " of the cluster for it; docs/doctor.md has the commands that grant all rights needed here"
    assert told(world, capsys, command, "node-a", "0") == (1, [said + more])
