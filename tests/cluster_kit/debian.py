"""The container runtime from Debian packages, unpacked into the cache and never installed: no service starts."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .cache import Log, build_lock, cache_root
from .errors import KitError
from .process import run

# The programs of a node, and every library of theirs beyond libc: a host without iptables has none of them.
PACKAGES = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libseccomp2",
    "libxtables12",
)
# Names under which the one program of the iptables package is called; Debian links them at installation only.
_IPTABLES = tuple(
    f"{family}{suffix}"
    for family in ("iptables", "ip6tables")
    for suffix in ("", "-save", "-restore")
)
# What the kit uses and does not unpack: name of the program, or path of the file -> package to install.
PREREQUISITES = {
    "/usr/include/stdio.h": "libc6-dev",  # gcc only recommends it
    "apt-get": "apt (the kit unpacks Debian packages; use Debian 12 or newer, or a derivative)",
    "dpkg": "dpkg",
    "gcc": "gcc",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "unshare": "util-linux",
}


@dataclass(frozen=True, slots=True)
class Runtime:
    """The unpacked packages.

    Attributes:
        root: the folder that stands for ``/``.
    """

    root: Path

    @property
    def cni(self) -> Path:
        """Folder of the network plugins."""
        return self.root / "usr/lib/cni"

    def environment(self) -> Mapping[str, str]:
        """Return the environment in which the unpacked programs find each other and their libraries."""
        folders = [self.root / "links", self.root / "usr/sbin", self.root / "usr/bin"]
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        host = os.environ.get("PATH", os.defpath)
        # A pyenv or user folder in front must not hide the tools of the system that the kubelet calls.
        return {
            "PATH": os.pathsep.join([*map(str, folders), host, "/usr/sbin:/usr/bin:/sbin:/bin"]),
            "LD_LIBRARY_PATH": str(libraries),
            "XTABLES_LIBDIR": str(libraries / "xtables"),
            "LANG": "C.UTF-8",
        }


def present(tool: str) -> bool:
    """Return whether a program is on the PATH, or a file at its absolute path."""
    return Path(tool).exists() if tool.startswith("/") else shutil.which(tool) is not None


def prerequisites() -> None:
    """Check that the few tools of the host are there. Raises KitError naming all that are missing."""
    missing = {tool: package for tool, package in PREREQUISITES.items() if not present(tool)}
    if missing:
        names = ", ".join(missing)
        raise KitError(
            f"missing programs: {names}; install: {', '.join(sorted(set(missing.values())))}"
        )


def unpack_runtime(log: Log) -> Runtime:
    """Return the unpacked packages of a node, downloading them first when the cache has none. Raises KitError."""
    return Runtime(unpack_packages("runtime", PACKAGES, log))


def unpack_packages(name: str, packages: tuple[str, ...], log: Log) -> Path:
    """Return the folder that holds the files of these Debian packages, as they would lie below ``/``.

    Raises:
        KitError: apt cannot download one; with its words.
    """
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    root = cache_root() / "debian" / f"{name}-{key}"
    if root.is_dir():
        return root
    with build_lock(root.with_suffix(".lock"), log):
        if not root.is_dir():
            log(f"downloading Debian packages: {', '.join(packages)}")
            _unpack(root, packages, log)
    return root


def _unpack(root: Path, packages: tuple[str, ...], log: Log) -> None:
    fresh = root.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    downloads = fresh / "downloads"
    downloads.mkdir(parents=True)
    try:
        _download(downloads, packages)
    except KitError:
        log("refreshing apt's package lists")
        run("apt-get", "update", timeout=600)
        _download(downloads, packages)
    for package in sorted(downloads.glob("*.deb")):
        run("dpkg", "-x", package, fresh)
    shutil.rmtree(downloads)
    if (fresh / "usr/sbin/xtables-nft-multi").exists():
        (fresh / "links").mkdir()
        for link in _IPTABLES:
            (fresh / "links" / link).symlink_to("../usr/sbin/xtables-nft-multi")
    fresh.replace(root)


def _download(folder: Path, packages: tuple[str, ...]) -> None:
    """Download into ``folder``; as root, because apt's own user cannot write below a home folder."""
    script = 'cd "$0" && exec apt-get -q -o APT::Sandbox::User=root download "$@"'
    run("sh", "-c", script, folder, *packages, timeout=600)
