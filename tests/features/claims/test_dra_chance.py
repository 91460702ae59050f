"""Whatever happens to agent, kubelet, API server and pods, no share of a GPU is given to two claims or pods."""

import random
from collections import Counter

import pytest

from gpu_device_plugin.features.claims.contract import DRIVER, parse_device_name
from gpu_device_plugin.features.claims.dra_driver import UNKNOWN
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.node.rules.serving_mode import ServingMode
from gpu_device_plugin.testing.pod_specs import Pod
from tests.builders import Json
from tests.cluster_double.troubles import Answer
from tests.features.claims.dra_harness import Claims, claims
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE
from tests.node.harness import T4, gpus_of, pod
from tests.scheduler_double.dra_scheduler import exactly

STEPS = 40
"""Of each seed: six seeds make 240."""
SHARES = 14


class World:
    """A node and the claims and pods that ran on it."""

    def __init__(self, here: Claims, chance: random.Random) -> None:
        self.here = here
        self.chance = chance
        self.started: dict[str, dict[str, str]] = {}
        """The variables of the pods with claims that run."""
        self.pods: dict[str, Pod] = {}
        """Those with devices of the plugin that run."""
        self.numbers = iter(range(1000))
        self.given = 0
        self.faults = 0
        self.sizes: dict[str, int] = {}
        """The shares of each GPU and MIG instance that was there."""

    async def step(self) -> None:
        """Let one thing happen, as chance chooses."""
        calm = (self.run, self.run, self.run, self.end_claim, self.end_pod)
        rough = (
            *(self.kill_agent, self.restart_kubelet, self.lose_sockets, self.lose_slices, self.lose_cdi),
            *(self.api_troubles, self.break_gpu, self.change_over, self.damage_file, self.end_while_agent_is_down),
        )
        if self.chance.random() < 0.6:
            await self.chance.choice(calm)()
        else:
            self.faults += 1
            await self.chance.choice(rough)()
        self.check()

    # --- What people do -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run a pod that asks in the way that the node serves."""
        agent = self.here.node.agent
        assert agent is not None
        serving = agent.server.serving
        await self.here.node.until(
            lambda: (
                bool(serving.value.waits)
                or (
                    serving.value.mode is ServingMode.DRA
                    and not self.here.dra.unmet()
                    and self.here.kubelet.reaches(DRIVER)
                )
                or (serving.value.mode is ServingMode.DEVICE_PLUGIN and not agent.registration.unmet())
            )
        )
        await (self.run_claim() if serving.value.mode is ServingMode.DRA else self.run_pod())

    def wish(self) -> Json:
        """Return what the next claim asks for."""
        return (
            exactly("whole-gpu")
            if self.chance.random() < 0.3
            else exactly(memory=f"{self.chance.randint(1, SHARES)}Gi")
        )

    async def run_claim(self) -> None:
        name = f"c{next(self.numbers)}"
        self.here.wish(name, self.wish())
        if self.here.allocate(name):
            self.here.api.delete("pods", name)
            self.here.api.delete("resourceclaims", name)
            return
        started = await self.here.kubelet.start_pod(name)
        if started.error:  # the kubelet would go on trying; this owner deletes the pod
            await self.gone(name)
        else:
            self.started[name] = started.environ
            self.given += 1

    async def end_claim(self) -> None:
        if self.started:
            await self.gone(self.chance.choice(sorted(self.started)))

    async def gone(self, name: str) -> None:
        """End a pod and its claim; a claim stays allocated for as long as it cannot be unprepared."""
        if await self.here.kubelet.end_pod(name):
            return
        self.started.pop(name, None)
        self.here.api.delete("pods", name)
        self.here.api.delete("resourceclaims", name)

    async def run_pod(self) -> None:
        mem = self.here.node.healthy(MEM)
        count = self.here.node.healthy(COUNT)
        name = f"p{next(self.numbers)}"
        if count and self.chance.random() < 0.3:
            made = await self.here.run(pod(name, count=1))
        elif mem:
            made = await self.here.run(pod(name, mem=self.chance.randint(1, min(mem, SHARES))))
        else:
            return
        if made.phase != "Failed":
            self.pods[name] = made
            self.given += 1

    async def end_pod(self) -> None:
        if self.pods:
            made = self.pods.pop(self.chance.choice(sorted(self.pods)))
            self.here.node.kubelet.finish(made)
            self.here.api.patch("pods", made.name, {"status": {"phase": "Succeeded"}}, subresource="status")

    # --- What goes wrong ----------------------------------------------------------------------------------------------

    async def kill_agent(self) -> None:
        await self.here.node.stop_agent()
        await self.resume()

    async def resume(self) -> None:
        self.here.launch()
        agent = self.here.node.agent
        assert agent is not None
        await self.here.node.until(
            lambda: bool(agent.server.serving.version) or not agent.config.value.shares.any_listed
        )
        await self.settled()

    async def settled(self) -> None:
        agent = self.here.node.agent
        assert agent is not None
        if agent.server.serving.value.mode is ServingMode.DRA:
            await self.here.node.until(
                lambda: (
                    agent.server.serving.value.mode is not ServingMode.DRA
                    or not agent.config.value.shares.any_listed  # a damaged file is adopted once its GPU is known
                    or (not self.here.dra.loop.unmet() and self.here.kubelet.reaches(DRIVER))
                )
            )

    async def end_while_agent_is_down(self) -> None:
        await self.here.node.stop_agent()
        if self.started:
            await self.gone(self.chance.choice(sorted(self.started)))
        await self.resume()

    async def restart_kubelet(self) -> None:
        await self.here.kubelet.stop()
        await self.here.node.kubelet.restart()
        await self.here.kubelet.start()
        await self.settled()

    async def lose_sockets(self) -> None:
        for path in (*self.here.kubelet.registry.glob("*.sock"), *self.here.kubelet.plugins.glob("*/*.sock")):
            path.unlink()

    async def lose_slices(self) -> None:
        for found in self.here.api.all("resourceslices"):
            self.here.api.delete("resourceslices", found["metadata"]["name"])

    async def lose_cdi(self) -> None:
        """A reboot empties /run; the agent starts after it."""
        for path in self.here.kubelet.cdi.iterdir():
            path.unlink()
        await self.kill_agent()

    async def damage_file(self) -> None:
        await self.here.node.stop_agent()
        folder = self.here.kubelet.plugins / DRIVER / "claims"
        if folder.exists() and (found := sorted(folder.iterdir())):
            self.chance.choice(found).write_text(self.chance.choice(["", "{}", "\0" * 9]))
        await self.resume()

    async def api_troubles(self) -> None:
        resource = self.chance.choice(["resourceclaims", "resourceslices", "pods", "nodes", "resourceclaims/status"])
        self.here.api.fail(Answer(self.chance.choice([409, 429, 500, 503])), resources=[resource], times=3)
        if self.chance.random() < 0.3:
            self.here.api.reset_connections()

    async def break_gpu(self) -> None:
        self.here.node.hardware(*(T4 | ({"lost": True} if self.chance.random() < 0.3 else {}) for _ in range(2)))

    async def change_over(self) -> None:
        mode = self.chance.choice(list(ServingMode))
        self.here.label(mode)
        agent = self.here.node.agent
        assert agent is not None
        serving = agent.server.serving
        await self.here.node.until(
            lambda: serving.value.mode is mode or (bool(serving.value.waits) and UNKNOWN not in serving.value.waits)
        )

    # --- What must be so ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No share is given twice, no GPU is given whole beside another use, and containers see what is theirs."""
        shares: Counter[str] = Counter()
        whole: Counter[str] = Counter()
        for name, environ in self.started.items():
            results = self.here.api.get("resourceclaims", name)["status"]["allocation"]["devices"]["results"]
            (uuid,) = environ["NVIDIA_VISIBLE_DEVICES"].split(",")
            assert parse_device_name(results[0]["device"]) == uuid
            if "GPUSHARE_MEMORY_LIMIT_MIB" in environ:
                shares[uuid] += int(environ["GPUSHARE_MEMORY_LIMIT_MIB"]) // 1024
            else:
                whole[uuid] += 1
        for made in self.pods.values():
            (memory, count) = (gpus_of(made, MEM), gpus_of(made, COUNT))
            for uuid in memory:
                shares[uuid] += sum(len(c.devices.get(MEM, ())) for c in made.containers)
            whole.update(count)
        agent = self.here.node.agent
        assert agent is not None
        # Of an instance that exists no more, an agent that started afterwards knows no shares.
        self.sizes |= {each.gpu.uuid: len(each.shares) for each in agent.state.node.shares.gpus if each.shares}
        assert all(used <= self.sizes[uuid] for uuid, used in shares.items()), shares
        assert all(used <= 1 for used in whole.values()), whole
        assert not shares.keys() & whole.keys()
        held = [one.device_ids for one in self.here.dra.claims.prepared.value.values()]
        assert len(frozenset().union(*held)) == sum(map(len, held))


class DividedWorld(World):
    """The same with a GPU that is divided into MIG instances, again and again, whoever holds them."""

    def wish(self) -> Json:
        return self.chance.choice(
            [
                *(exactly("mig"), exactly("mig", profile="2g.20gb"), exactly("whole-gpu")),
                *(exactly(memory=f"{self.chance.randint(1, 9)}Gi"), exactly(memory=f"{self.chance.randint(1, 19)}Gi")),
            ]
        )

    async def break_gpu(self) -> None:
        """Divide the GPU anew, or change how its instances are given; an instance that comes back has its old UUID."""
        if self.chance.random() < 0.5:
            mig = self.chance.choice(["1g.10gb*7", "2g.20gb*2/1g.10gb*3", "2g.20gb/1g.10gb*2", "3g.40gb*2", []])
            self.here.node.hardware({"model": "H100", "mig": mig}, T4)
        else:
            labels = {"gpu-device-plugin/mig": self.chance.choice([*MigMode, MigMode.WHOLE, MigMode.SHARE])}
            self.here.api.patch("nodes", NODE, {"metadata": {"labels": labels}})

    async def damage_file(self) -> None:
        await super().damage_file() if self.chance.random() < 0.5 else await self.break_gpu()

    async def lose_cdi(self) -> None:
        await super().lose_cdi() if self.chance.random() < 0.5 else await self.break_gpu()


@pytest.mark.chance
async def test_whatever_happens_nothing_is_given_twice(chance_seed: int) -> None:
    chance = random.Random(chance_seed)  # noqa: S311
    async with claims([T4, T4]) as here:
        world = World(here, chance)
        await here.start()
        here.label("dra")
        for _ in range(STEPS):
            await world.step()
        assert world.given
        assert world.faults >= 8


@pytest.mark.chance
async def test_whatever_becomes_of_mig_instances_none_is_given_twice(chance_seed: int) -> None:
    chance = random.Random(chance_seed)  # noqa: S311
    async with claims([{"model": "H100", "mig": "1g.10gb*7"}, T4]) as here:
        world = DividedWorld(here, chance)
        await here.start(mig="share")
        here.label("dra")
        for _ in range(4):
            await world.run_claim()
            world.check()
        for _ in range(STEPS):
            await world.step()
        assert world.given
        assert world.faults
