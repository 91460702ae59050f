"""JupyterHub's kubespawner makes notebooks by the profiles of the example, and its culler ends those not in use."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT
from tests.deploy.manifests import Json
from tests.platforms.world import PLATFORMS, Platform, needed, platform
from tests.ports import free_ports

TOKEN = "of-this-very-test"  # noqa: S105
CONFIG = """
exec(compile(open({example!r}).read(), {example!r}, "exec"))
c.JupyterHub.hub_port, c.JupyterHub.port, c.JupyterHub.ip = {hub}, {proxy}, "127.0.0.1"
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.ConfigurableHTTPProxy.command = [{program!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.KubeSpawner.namespace, c.KubeSpawner.port = "default", {notebook}
c.JupyterHub.services[0]["command"][-1:] = ["--timeout=4", "--cull-every=1"]
c.JupyterHub.services.append({{"name": "test", "api_token": {token!r}}})
c.JupyterHub.load_roles.append({{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers"]}})
"""
"""The example, on this machine; its culler does not wait for an hour."""


class _Notebook(BaseHTTPRequestHandler):
    """What answers in a notebook's pod."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, Callable[..., Json]]]:
    program, proxy = needed("jupyterhub", "configurable-http-proxy")
    home = tmp_path_factory.mktemp("jupyterhub")
    ports = dict(zip(("hub", "proxy", "api"), free_ports(3), strict=True))
    notebooks = ThreadingHTTPServer(("127.0.0.1", 0), _Notebook)
    threading.Thread(target=notebooks.serve_forever, daemon=True).start()
    with platform(home) as running:
        running.node("a", gpus=1)
        example = str(PLATFORMS / "jupyterhub_config.py")
        file = home / "config.py"
        told = {"example": example, "program": proxy, "token": TOKEN, "notebook": notebooks.server_port, **ports}
        file.write_text(CONFIG.format(**told), encoding="utf-8")
        kubeconfig = str(running.kubectl.kubeconfig)
        with running.running("hub", program, f"--config={file}", KUBECONFIG=kubeconfig):

            def ask(method: str, path: str, body: object = None) -> Json:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{ports['hub']}/hub/api{path}",
                    None if body is None else json.dumps(body).encode(),
                    {"Authorization": f"token {TOKEN}"},
                    method=method,
                )
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                    return dict(json.loads(answer.read() or b"{}"))

            def up() -> bool:
                try:
                    return bool(ask("GET", "/"))
                except OSError:
                    return False

            running.until(up, "the hub answers")
            yield running, ask
    notebooks.shutdown()
    notebooks.server_close()


def notebook(world: Platform) -> Json:
    """Return the pod of the one notebook, as soon as it has a node."""

    def placed() -> list[Json]:
        return [pod for pod in world.pods() if "nodeName" in pod["spec"]]

    (found,) = world.until(placed, "the notebook has a node")
    return dict(found)


def test_a_notebook_has_what_its_profile_says_until_nobody_uses_it(
    hub: tuple[Platform, Callable[..., Json]],
) -> None:
    """Our policies admit the pods of both profiles, and the only GPU is free again for the second."""
    world, ask = hub
    ask("POST", "/users/ada")
    ask("POST", "/users/ada/server", {"profile": "gpu-4"})
    pod = notebook(world)
    (main,) = pod["spec"]["containers"]
    assert main["resources"]["limits"]["aliyun.com/gpu-mem"] == "4"
    assert pod["metadata"]["annotations"][MEMORY_LIMIT] == "12"
    assert (pod["spec"]["schedulerName"], pod["spec"]["runtimeClassName"]) == ("gpushare-scheduler", "nvidia")
    assert world.place(pod) == ("a", "0")
    world.until(lambda: not world.pods(), "the culler ends the notebook")
    world.until(lambda: ask("GET", "/users/ada")["server"] is None, "the hub has noticed")
    ask("POST", "/users/ada/server", {"profile": "gpu"})
    assert world.place(notebook(world)) == ("a", "0")
