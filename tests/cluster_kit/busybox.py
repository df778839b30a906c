"""A small image with a shell and network tools, for the kit's own tests: Debian's busybox, nothing built."""

import tempfile
from pathlib import Path

from .cache import Log, cache_root
from .debian import unpack_packages
from .pause import write_docker_archive

REFERENCE = "localhost/plimsoll-busybox:1"
# Not busybox-static: there every tool that takes a host's address crashes in the static resolver.
_PACKAGES = ("busybox", "libc6")
_LIBRARIES = "lib/x86_64-linux-gnu"
_FILES = {
    "busybox": "bin/busybox",
    "bin/sh": "bin/busybox",
    "lib64/ld-linux-x86-64.so.2": f"{_LIBRARIES}/ld-linux-x86-64.so.2",
    f"{_LIBRARIES}/libc.so.6": f"{_LIBRARIES}/libc.so.6",
    f"{_LIBRARIES}/libresolv.so.2": f"{_LIBRARIES}/libresolv.so.2",
}


def busybox_image(log: Log) -> Path:
    """Return the image as a docker archive, made when the cache has none; ``/busybox`` is its entrypoint."""
    archive = cache_root() / "busybox" / "busybox-2.tar"
    if not archive.exists():
        root = unpack_packages("busybox", _PACKAGES, log)
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            fresh = Path(folder) / archive.name
            files = {inside: (root / outside).read_bytes() for inside, outside in _FILES.items()}
            write_docker_archive(fresh, REFERENCE, files, ["/busybox"])
            fresh.replace(archive)
    return archive
