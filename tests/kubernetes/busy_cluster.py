"""A cluster in which pods come, are bound, change and go at random, and in which the API server is in trouble."""

import random
from collections.abc import Callable, Mapping

from tests.builders import container, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer, Garbage, Hang, Reset, Slow, Trouble

NODE = "n"


class BusyCluster:
    """Does one thing after the other, always in the same order for one seed."""

    def __init__(self, server: ApiServer, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.server = server
        self.bound: list[str] = []
        """The pods that were bound to `NODE`, in order."""
        self._born = 0

    def happen(self) -> None:
        """Let something happen to one pod."""
        self.random.choice(
            [self._create, self._create, self._bind, self._bind, self._bind, self._annotate, self._delete]
        )()

    def disturb(self, *more: Callable[[], object]) -> None:
        """Let the server have a trouble, or get over all of them; `more` are further troubles."""
        server = self.server
        troubles: list[Trouble] = [Answer(500), Answer(429, retry_after_s=0), Hang(), Reset(), Slow(0.02), Garbage()]
        actions: list[Callable[[], object]] = [
            lambda: server.fail(self.random.choice(troubles), times=self.random.randint(1, 3)),
            server.reads.close,
            server.reset_connections,
            server.black_hole,
            server.heal,
            *more,
        ]
        self.random.choice(actions)()

    def _create(self) -> None:
        self._born += 1
        self.server.add(pod(f"p{self._born}", container(mem=1), uid=f"u{self._born}"))

    def _bind(self) -> None:
        free = [found for found in self.server.all("pods") if not found["spec"].get("nodeName")]
        if free:
            name = self.random.choice(free)["metadata"]["name"]
            node = self.random.choice([NODE, NODE, "elsewhere"])
            self.server.bind(name, node)
            if node == NODE:
                self.bound.append(name)

    def _annotate(self) -> None:
        if pods := self.server.all("pods"):
            value = str(self.random.random())
            name = self.random.choice(pods)["metadata"]["name"]
            self.server.patch("pods", name, {"metadata": {"annotations": {"a": value}}})

    def _delete(self) -> None:
        if pods := self.server.all("pods"):
            self.server.delete("pods", self.random.choice(pods)["metadata"]["name"])

    def truth(self, node: str = "") -> Mapping[str, str]:
        """Return what is written on the pods of a node, of all pods without one, by their names."""
        return {
            found["metadata"]["name"]: found["metadata"].get("annotations", {}).get("a", "")
            for found in self.server.all("pods")
            if not node or found["spec"].get("nodeName") == node
        }
