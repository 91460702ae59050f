"""`kubectl inspect gpushare why` for running pods, over the HTTP of an agent that remembers what slowed them."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.features.history.contract import NodeHistory
from gpu_device_plugin.features.history.rules.slowness import slowness
from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.model.times import rfc3339
from tests.programs.inspect.proxied import forbidden
from tests.programs.inspect.test_inspect_program import World, gpu, node, pod
from tests.reports import part, written
from tests.slow_pods import CAUSES, HEALTHY, history, on, other, slowed

AGENT = "/api/v1/namespaces/gpushare/pods/gpushare-node-a:9394/proxy"


@dataclass
class Agent:
    """An agent's HTTP server: what it remembers of its GPUs."""

    histories: list[NodeHistory] = field(default_factory=list)
    """One for each GPU, with all its containers; none: it is older and remembers nothing."""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> NodeHistory | None:
        """Return what an agent answers; None: 404."""
        self.asked.append(path)
        kind, _, name = path.removeprefix("/history/").partition("/")
        if kind == "gpus":
            return next((each for each in self.histories if str(each.gpus[0].gpu) == name), None)
        if kind == "namespaces" and self.histories:
            there = tuple(one for each in self.histories for one in each.containers if one.namespace == name)
            positions = {each.gpu for each in there}
            gpus = tuple(each.gpus[0] for each in self.histories if each.gpus[0].gpu in positions)
            return replace(self.histories[0], gpus=gpus, containers=there)
        return None


@dataclass
class AgentWorld(World):
    """A cluster of one node whose agent is asked through the API server."""

    agent: Agent | None = None
    """None: it is silent."""
    denied: bool = False
    """Nobody may ask it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        port = {"name": "http", "containerPort": 9394}
        agent = pod(
            "gpushare-node-a", on="node-a", namespace="gpushare", spec={"containers": [{"name": "a", "ports": [port]}]}
        )
        labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}
        agent["metadata"]["labels"] = labels
        self.has(node("node-a", gpu(0), gpu(1)), agent, pod("train", 8, on="node-a", idx=0))

    def proxied(self, path: str) -> tuple[int, Any]:
        pod, _, asked = path.partition("/proxy")
        assert f"{pod}/proxy" == AGENT
        if self.denied:
            return forbidden("get", "pods/proxy", "", "gpushare", pod.rpartition("/")[2])
        if self.agent is None:
            return super().proxied(path)
        found = self.agent.answer(asked)
        return (404, b"") if found is None else (200, msgspec.json.encode(found))

    def why(self, *histories: NodeHistory, forbidden: bool = False) -> int:
        """Explain the pod, while its agent remembers this of each GPU."""
        self.agent, self.denied = Agent(list(histories)), forbidden
        return self.inspect("why", "train")


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


def fresh(of: NodeHistory) -> NodeHistory:
    """Return the same history as if it had been read just now."""
    return replace(of, at=rfc3339(time.time()))


PLACE = ["default/train is on node node-a (Running).", f"  GPU 0 (Tesla T4, {gpu(0)['uuid']}): 8 GiB"]
ONE_OF_EACH = {code: of for of, code in CAUSES.values()}


@pytest.mark.parametrize("code", ONE_OF_EACH)
def test_what_slows_a_pod_is_told_first(world: AgentWorld, capsys: pytest.CaptureFixture[str], code: str) -> None:
    slow = fresh(ONE_OF_EACH[code])
    told = slowness([slow], "default", "train", time.time())
    assert told[0].code == code
    assert world.why(slow) == 0
    assert capsys.readouterr() == ("\n".join([*PLACE, *map(str, told), ""]), "")


@pytest.mark.parametrize("name", ["idle", "busy training", "just started", "a MIG instance"])
def test_of_a_healthy_pod_it_is_told_what_was_looked_at(
    world: AgentWorld, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert world.why(fresh(HEALTHY[name])) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == PLACE
    assert out[2].startswith("Found nothing that slowed it in the last ")
    assert all(line.startswith("Not checked: ") for line in out[3:])


def test_of_several_gpus_each_is_asked_for_and_no_other(world: AgentWorld, capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent([fresh(each) for each in (slowed(0x20, 1200), on(1, history(other())), on(2, history()))])
    world.agent = agent
    assert world.inspect("why", "train") == 0
    assert agent.asked == ["/history/namespaces/default", "/history/gpus/0", "/history/gpus/2"]
    assert "GPU 0 is slowed by heat" in capsys.readouterr().out


def test_memory_that_others_fill_is_told_once(world: AgentWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """The node's own report has newer figures of the same."""
    parts = part("train", granted=8192, used=4000), part("ml/other", granted=4096, used=11_000)
    world.script["objects"][0]["metadata"]["annotations"] |= written(*parts, gpus={0: GpuUse(15_000)})
    world.has()
    assert world.why(fresh(CAUSES["memory that others fill"][0])) == 0
    out = capsys.readouterr().out
    assert "GPU 0 has only 4,360 MiB left for the 8,192 MiB that the pod was granted: ml/other" in out
    assert "Others left" not in out


MISSING = "the right to get pods/proxy in the namespace gpushare is missing"


@pytest.mark.parametrize(
    ("histories", "forbidden", "told"),
    [
        (
            (),
            False,
            "the agent of node node-a has nothing of it: it is older than this command",
        ),
        ((history(),), True, MISSING),
    ],
)
def test_without_an_answer_the_rest_is_told_and_what_is_missing(
    world: AgentWorld,
    capsys: pytest.CaptureFixture[str],
    histories: tuple[NodeHistory, ...],
    forbidden: bool,  # noqa: FBT001
    told: str,
) -> None:
    assert world.why(*histories, forbidden=forbidden) == 0
    out, err = capsys.readouterr()
    *rest, last = out.splitlines()
    assert (rest, err) == (PLACE, "")
    assert last.startswith(f"The explanation is incomplete: {told}")
    assert ("an administrator grants all rights" in last) is forbidden


def test_a_silent_agent_is_told(world: AgentWorld, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.inspect("why", "train") == 0
    assert "The explanation is incomplete: the agent of node node-a does not answer: " in (
        out := capsys.readouterr().out
    )
    assert "error trying to reach service" in out
    assert "rights" not in out


def test_a_pod_that_waits_or_asks_for_no_gpu_is_not_looked_for(
    world: AgentWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world.has(pod("waits", 99), pod("plain", on="node-a"), pod("done", 8, on="node-a", idx=0, phase="Succeeded"))
    for name in ("waits", "plain", "done"):
        assert world.inspect("why", name) == 0
    assert "incomplete" not in capsys.readouterr().out
    assert not any("/proxy/" in path for _, path in world.calls)
