"""Build the operator and the sizer twice from nothing and compare: ``python -m tests.cluster_kit.images.reproduce``.

The two builds share nothing but the downloaded wheels, which are checked by hash: each makes its own base, unpacks,
byte-compiles and layers anew, and the second differs in umask, time zone, hash seed, folder and order. Equal means
equal image ids and equal archives, byte for byte. What differs is named, file by file. ``--out`` keeps the archives of
the first build.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.errors import KitError
from tests.cluster_kit.progress import Progress

from .build import LOCAL, Stamp
from .host import Log, step

SHOWN = 20  # differing files that are named


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What must not show in an image."""

    targets: tuple[str, ...]
    umask: int
    environment: tuple[tuple[str, str], ...]


FIRST = Surroundings(("operator", "sizer"), 0o022, (("TZ", "UTC"), ("PYTHONHASHSEED", "1")))
SECOND = Surroundings(
    ("sizer", "operator"), 0o077, (("TZ", "Pacific/Chatham"), ("PYTHONHASHSEED", "2"))
)


@dataclass(frozen=True, slots=True)
class Made:
    """One image: its archive and the two names of its content (SHA-256 in hex)."""

    archive: Path
    image_id: str
    archive_digest: str


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when both builds are equal, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_kit.images.reproduce")
    parser.add_argument("--cache", type=Path, default=cache_root(), metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the archives here")
    parser.add_argument("--revision", default=LOCAL.revision, metavar="COMMIT")
    parser.add_argument("--epoch", type=int, default=LOCAL.epoch, metavar="SECONDS")
    given = parser.parse_args(argv)
    log = Progress()
    with tempfile.TemporaryDirectory(prefix="plimsoll-twice-") as scratch:
        try:
            stamp = Stamp(given.revision, given.epoch)
            one, other = (
                build(Path(scratch) / name, given.cache.absolute(), around, stamp, log)
                for name, around in (("one", FIRST), ("second-and-elsewhere", SECOND))
            )
        except KitError as error:
            log(f"images: {error}")
            return 1
        if [one[name].archive.name for name in one] != [other[name].archive.name for name in one]:
            log("images: a source changed between the two builds: run this again")
            return 1
        equal = True
        for name in FIRST.targets:
            equal &= compare(name, one[name], other[name])
            if given.out:
                given.out.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(one[name].archive, given.out / f"{name}.tar")
    return 0 if equal else 1


def build(
    folder: Path, cache: Path, around: Surroundings, stamp: Stamp, log: Log
) -> dict[str, Made]:
    """Build in an empty cache, which sees the wheels of the other one.

    Raises:
        KitError: the build failed; its words are on standard error.
    """
    folder.mkdir()
    folder.chmod(0o755)
    wheels = cache / "pip"
    wheels.mkdir(parents=True, exist_ok=True)
    (folder / "pip").symlink_to(wheels)
    command = [sys.executable, "-m", "tests.cluster_kit.images", *around.targets, "--json"]
    told = ["--cache", str(folder), "--revision", stamp.revision, "--epoch", str(stamp.epoch)]
    with step(f"build with umask {around.umask:03o}, {dict(around.environment)}", log):
        done = subprocess.run(
            [*command, *told],
            env={**os.environ, **dict(around.environment)},
            umask=around.umask,
            stdout=subprocess.PIPE,
            check=False,
        )
    if done.returncode:
        raise KitError(f"the build in {folder}: exit {done.returncode}")
    return {name: made(Path(row["archive"])) for name, row in json.loads(done.stdout).items()}


def made(archive: Path) -> Made:
    """Read the image's id and hash the archive."""
    with tarfile.open(archive) as tar, archive.open("rb") as file:
        (image,) = json.load(_member(tar, "manifest.json"))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Made(archive, image["Config"].removesuffix(".json"), digest)


def compare(name: str, one: Made, other: Made) -> bool:
    """Print whether two builds of an image are equal, and what is not."""
    for what, first, second in (
        ("image id", one.image_id, other.image_id),
        ("archive", one.archive_digest, other.archive_digest),
    ):
        verdict = "same twice" if first == second else f"DIFFERS from {second}"
        print(f"{name:<9} {what:<9} sha256:{first}  {verdict}")
    equal = (one.image_id, one.archive_digest) == (other.image_id, other.archive_digest)
    if not equal:
        for line in differences(one.archive, other.archive):
            print(f"  {line}")
    return equal


def differences(one: Path, other: Path) -> list[str]:
    """Name the files, modes and settings in which two archives differ; the first few."""
    with tarfile.open(one) as first, tarfile.open(other) as second:
        found = dict(_contents(first)), dict(_contents(second))
    names = sorted(found[0].keys() | found[1].keys())
    lines = [
        f"{name}: {found[0].get(name, 'absent')} | {found[1].get(name, 'absent')}"
        for name in names
        if found[0].get(name) != found[1].get(name)
    ]
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more


def _contents(archive: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    """Yield each file of each layer with its kind, mode, owner, time and a hash; and the configuration."""
    (image,) = json.load(_member(archive, "manifest.json"))
    yield "configuration", _member(archive, image["Config"]).read().decode()
    for number, layer in enumerate(image["Layers"]):
        with tarfile.open(fileobj=_member(archive, layer)) as tar:
            for item in tar:
                content = tar.extractfile(item) if item.isreg() else None
                digest = hashlib.sha256(content.read()).hexdigest()[:12] if content else "-"
                facts = (item.type.decode(), f"{item.mode:o}", item.uid, item.gid, item.mtime)
                told = " ".join(map(str, (*facts, item.linkname, digest)))
                yield f"layer {number}: {item.name}", told


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    assert file is not None, name
    return file


if __name__ == "__main__":
    sys.exit(main())
