"""A device plugin that offers fake GPUs to the kubelet of its node, as a program: see :func:`main`.

It runs inside the node's mount namespace, where /var/lib/kubelet is that node's own. Messages are generated from the
kubelet's ``api.proto``; the services are declared here by their names, so that no generated service code is needed.
"""

import argparse
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

RESOURCE = "nvidia.com/gpu"
LIBRARY_IN_CONTAINER = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
STATE_IN_CONTAINER = "/run/plimsoll-fake-nvml"
# Fixed by the kubelet, whatever its --root-dir says.
PLUGINS = Path("/var/lib/kubelet/device-plugins")
ENDPOINT = "plimsoll-fake-gpu.sock"
MESSAGES = "deviceplugin_pb2"
API_VERSION = "v1beta1"


class Plugin:
    """Answers the kubelet.

    Args:
        messages: the module generated from ``api.proto``.
        uuids: the devices it offers, in order.
        library: the fake ``libnvidia-ml.so.1`` on the node.
        state: the folder on the node that holds ``devices.conf``.
    """

    def __init__(self, messages: Any, uuids: list[str], library: str, state: str) -> None:
        self._messages = messages
        self._uuids = uuids
        self._library = library
        self._state = state

    def options(self, _request: Any, _context: Any) -> Any:
        """Want neither a call before each start nor a say in the choice of devices."""
        return self._messages.DevicePluginOptions()

    def list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """Offer all devices as healthy for as long as the kubelet listens."""
        devices = [self._messages.Device(ID=uuid, health="Healthy") for uuid in self._uuids]
        yield self._messages.ListAndWatchResponse(devices=devices)
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()

    def allocate(self, request: Any, _context: Any) -> Any:
        """Give each container the library, the numbers (read-only) and the list of its own devices."""
        answer = self._messages.AllocateResponse()
        for one in request.container_requests:
            ids = list(one.devices_ids)
            print("allocate", *ids, flush=True)
            mounts = [
                self._messages.Mount(container_path=inside, host_path=outside, read_only=True)
                for inside, outside in (
                    (LIBRARY_IN_CONTAINER, self._library),
                    (STATE_IN_CONTAINER, self._state),
                )
            ]
            response = self._messages.ContainerAllocateResponse(
                envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}, mounts=mounts
            )
            answer.container_responses.append(response)
        return answer

    def handlers(self) -> Any:
        """Return the gRPC handlers of the service ``v1beta1.DevicePlugin``."""
        pb = self._messages
        table = {
            "GetDevicePluginOptions": (grpc.unary_unary_rpc_method_handler, self.options, pb.Empty),
            "ListAndWatch": (grpc.unary_stream_rpc_method_handler, self.list_and_watch, pb.Empty),
            "Allocate": (grpc.unary_unary_rpc_method_handler, self.allocate, pb.AllocateRequest),
        }
        methods = {
            name: make(
                method,
                request_deserializer=kind.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (make, method, kind) in table.items()
        }
        return grpc.method_handlers_generic_handler(f"{API_VERSION}.DevicePlugin", methods)


def register(messages: Any) -> None:
    """Tell the kubelet about the plugin's socket. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix://{PLUGINS}/kubelet.sock") as channel:
        call = channel.unary_unary(
            f"/{API_VERSION}.Registration/Register",
            request_serializer=messages.RegisterRequest.SerializeToString,
            response_deserializer=messages.Empty.FromString,
        )
        request = messages.RegisterRequest(
            version=API_VERSION,
            endpoint=ENDPOINT,
            resource_name=RESOURCE,
            options=messages.DevicePluginOptions(),
        )
        call(request, timeout=5)
    print("registered", flush=True)


def serve(plugin: Plugin, messages: Any) -> None:
    """Serve and register, again each time that a kubelet starts: a new one empties the folder of sockets."""
    kubelet, own = PLUGINS / "kubelet.sock", PLUGINS / ENDPOINT
    while True:
        while not kubelet.exists():
            time.sleep(0.05)
        born = _inode(kubelet)
        own.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((plugin.handlers(),))
        server.add_insecure_port(f"unix://{own}")
        server.start()
        try:
            register(messages)
        except grpc.RpcError as error:
            print(f"registration failed, trying again: {error}", flush=True)
            born = -1
            time.sleep(0.5)
        while _inode(kubelet) == born and own.exists():
            time.sleep(0.5)
        server.stop(grace=None)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def main() -> None:
    """Run the plugin until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", required=True, help="folder of the generated module")
    parser.add_argument("--library", required=True, help="the fake libnvidia-ml.so.1")
    parser.add_argument("--state", required=True, help="folder with devices.conf")
    parser.add_argument("uuids", nargs="+")
    given = parser.parse_args()
    sys.path.insert(0, given.messages)
    messages = importlib.import_module(MESSAGES)
    serve(Plugin(messages, given.uuids, given.library, given.state), messages)


if __name__ == "__main__":
    main()
