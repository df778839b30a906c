"""A small image with a shell and network tools, for the kit's own tests: Debian's busybox, nothing built."""

import tempfile
from pathlib import Path

from .cache import Log, cache_root
from .debian import unpack_packages
from .pause import write_docker_archive

REFERENCE = "localhost/plimsoll-busybox:1"


def busybox_image(log: Log) -> Path:
    """Return the image as a docker archive, made when the cache has none; ``/busybox`` is its entrypoint."""
    archive = cache_root() / "busybox" / "busybox.tar"
    if not archive.exists():
        program = unpack_packages("busybox", ("busybox-static",), log) / "bin/busybox"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            fresh = Path(folder) / archive.name
            files = {"busybox": program.read_bytes(), "bin/sh": program.read_bytes()}
            write_docker_archive(fresh, REFERENCE, files, ["/busybox"])
            fresh.replace(archive)
    return archive
