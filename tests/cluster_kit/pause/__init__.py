"""The pause image, compiled and packed by hand: a cluster needs it before any image can be built or pulled."""

import hashlib
import io
import json
import tarfile
import tempfile
from pathlib import Path

from ..cache import cache_root  # noqa: TID252 - one package
from ..process import run  # noqa: TID252

REFERENCE = "localhost/plimsoll-pause:1"
SOURCE = Path(__file__).with_name("pause.c")


def pause_image() -> Path:
    """Return the image as a docker archive, compiling it when the cache has none. Raises KitError."""
    key = hashlib.sha256(SOURCE.read_bytes() + REFERENCE.encode()).hexdigest()[:12]
    archive = cache_root() / "pause" / key / "pause.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        program = Path(folder) / "pause"
        run("gcc", "-static", "-Os", "-s", "-o", program, SOURCE)
        fresh = Path(folder) / "pause.tar"
        write_docker_archive(fresh, REFERENCE, {"pause": program.read_bytes()}, ["/pause"])
        fresh.replace(archive)
    return archive


def write_docker_archive(
    path: Path, reference: str, files: dict[str, bytes], entrypoint: list[str]
) -> None:
    """Write an image of one layer as ``docker save`` would.

    Args:
        path: the archive to write.
        reference: name and tag of the image.
        files: path inside the image -> content, all executable.
        entrypoint: the command.
    """
    layer = _tar(files, mode=0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    content = {
        name: config,
        f"{digest}/layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    path.write_bytes(_tar(content, mode=0o644))


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()
