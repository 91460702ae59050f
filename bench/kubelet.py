"""The kubelet's side of one agent: real sockets, a clock, and as little in between as possible."""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Self

import grpc

from bench.wire import Caller
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import podresources_pb2 as pods
from gpu_device_plugin.model.contract.variables import LIMITS
from gpu_device_plugin.testing.kubelet import kubelet_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from google.protobuf.message import Message

_SERVICE = "v1beta1.DevicePlugin"
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class Plugin:
    """One registered resource: a connection for calls, and one for the stream of lists."""

    def __init__(self, socket: Path) -> None:
        self.lists: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        """Every list as it came, with the moment (monotonic seconds)."""
        self._calls = Caller(socket, _SERVICE)
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self.call("GetDevicePluginOptions")
        threading.Thread(target=self._listen, daemon=True).start()

    def call(self, method: str, request: Message | None = None) -> float:
        """Return how many ms one call took. Bytes are made before the clock starts, and not looked at afterwards."""
        return self._calls.call(method, b"" if request is None else request.SerializeToString())[0] * 1000

    def stop_calling(self) -> None:
        """Close the connection for calls: it does not know how to end one politely when the agent wants to stop."""
        self._calls.close()

    def close(self) -> None:
        """Hang up."""
        self.stop_calling()
        self._channel.close()

    def _listen(self) -> None:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(f"/{_SERVICE}/ListAndWatch")
        with contextlib.suppress(grpc.RpcError, ValueError):  # the agent stopped, or we hung up
            for message in stream(b"", wait_for_ready=True):
                self.lists.put((time.monotonic(), message))


class Kubelet:
    """Registration, PodResources and the checkpoint of one node, in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "device-plugins"
        self.pod_resources = root / "pod-resources.sock"
        self.registered: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
        """(monotonic seconds, resource) for every registration that was answered."""
        self.plugins: dict[str, Plugin] = {}
        self._held: dict[str, kubelet_files.Grant] = {}
        shutil.rmtree(root, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=_OPTIONS)
        self._serve("v1beta1.Registration", "Register", self._register)
        self._serve("v1.PodResourcesLister", "List", self._list)
        self._server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        self._server.add_insecure_port(f"unix:{self.pod_resources}")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for plugin in self.plugins.values():
            plugin.close()
        self._server.stop(None).wait()

    def hold(self, pod_uid: str, resource: str, device_ids: Sequence[str], enforcement: str = "") -> None:
        """Let PodResources show that a pod has these devices, and that the answer named this means of limits."""
        answer = pb.ContainerAllocateResponse(envs={LIMITS: enforcement} if enforcement else {})
        self._held[pod_uid] = kubelet_files.Grant(pod_uid, "main", resource, {-1: tuple(device_ids)}, answer)

    def drop(self, pod_uid: str) -> None:
        """Let the devices of a pod be free again."""
        del self._held[pod_uid]

    def write_checkpoint(self, resources: Sequence[str]) -> None:
        """Write down who has what, as the kubelet does after an allocation."""
        path = self.directory / kubelet_files.CHECKPOINT
        kubelet_files.write_checkpoint(path, self._held.values(), dict.fromkeys(resources, ()))

    def _serve(self, service: str, method: str, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
        handlers = {method: handler}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _register(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        asked = pb.RegisterRequest.FromString(request)
        # As the kubelet does, dial back before answering.
        self.plugins[asked.resource_name] = Plugin(self.directory / asked.endpoint)
        self.registered.put((time.monotonic(), asked.resource_name))
        return b""

    def _list(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        return pods.ListPodResourcesResponse(
            pod_resources=[
                pods.PodResources(
                    name=uid,
                    namespace="default",
                    containers=[
                        pods.ContainerResources(
                            name=entry.container,
                            devices=[
                                pods.ContainerDevices(resource_name=entry.resource, device_ids=[name])
                                for name in entry.devices[-1]
                            ],
                        )
                    ],
                )
                for uid, entry in tuple(self._held.items())
            ]
        ).SerializeToString()
