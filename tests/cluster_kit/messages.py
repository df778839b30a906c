"""Generates the device plugin's message classes from the very ``api.proto`` that the kubelet was built with."""

import hashlib
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from .build import VERSION
from .cache import Log, cache_root
from .device_plugin import MESSAGES
from .golang import module_folder
from .process import run


def plugin_messages(log: Log | None = None) -> Path:
    """Return the folder with the generated module, generating it when the cache has none. Raises KitError."""
    release = "v0." + VERSION.removeprefix("v1.")
    # Generated code refuses to run under an older protobuf than it was generated with.
    kind = f"{release} {metadata.version('protobuf')}"
    key = hashlib.sha256(kind.encode()).hexdigest()[:12]
    folder = cache_root() / "deviceplugin" / key
    module = folder / f"{MESSAGES}.py"
    if module.exists():
        return folder
    proto = module_folder("k8s.io/kubelet", release, log)
    proto /= "pkg/apis/deviceplugin/v1beta1/api.proto"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        source = Path(work) / "deviceplugin.proto"
        shutil.copyfile(proto, source)
        run(sys.executable, "-m", "grpc_tools.protoc", f"-I{work}", f"--python_out={work}", source)
        (Path(work) / module.name).replace(module)
    return folder
