"""What a release consists of, in one folder with SHA256SUMS: ``make release-artifacts``.

The chart, install.yaml and crd.yaml, the command line's wheel, both images for this machine's processor (built twice
and compared), their bills of materials, their digests. The same commit makes the same bytes; signing comes after
(docs/versioning.md).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chart.rendering import CHART, ROOT, HelmRefusedError, helm
from tests.cluster_kit.errors import KitError
from tests.cluster_kit.images import sbom
from tests.cluster_kit.images.build import TARGETS
from tests.cluster_kit.images.reproduce import made
from tests.cluster_kit.images.wheels import native_arch
from tests.release.versions import project_version

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMS = "SHA256SUMS"
IMAGES = ("operator", "sizer")


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 1 with a sentence."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.artifacts", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument(
        "--dirty", action="store_true", help="also of a work tree that differs from its commit"
    )
    given = parser.parse_args(argv)
    out: Path = given.out.absolute()
    try:
        make(out, dirty=given.dirty)
    except (KitError, HelmRefusedError) as error:
        sys.stderr.write(f"release-artifacts: {error}\n")
        return 1
    sys.stdout.write(f"{(out / SUMS).read_text()}{out / SUMS}\n")
    return 0


def make(out: Path, *, dirty: bool) -> None:
    """Fill an empty folder.

    Raises:
        KitError: the work tree is not its commit and ``dirty`` is false, or a step failed.
        HelmRefusedError: the chart cannot be packaged.
    """
    if not dirty and git("status", "--porcelain"):
        raise KitError("the work tree differs from its commit: commit first, or give --dirty")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    epoch = int(git("log", "-1", "--format=%ct"))
    package_chart(out, epoch)
    for name in ("install.yaml", "crd.yaml"):
        shutil.copy(ROOT / "manifests" / name, out)
    build_wheel(out, epoch)
    package_images(out, git("rev-parse", "HEAD"), epoch)
    (out / SUMS).write_text(sums(out))


def git(*words: str) -> str:
    """Return what git says of this repository.

    Raises:
        KitError: it failed.
    """
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KitError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.rstrip()


def package_chart(out: Path, epoch: int) -> None:
    """Write the chart's archive as Helm packages it, but with one time for all files, in one order."""
    helm("helm4", "package", CHART, "--destination", out)
    (archive,) = out.glob("*.tgz")
    archive.write_bytes(normalised(archive.read_bytes(), epoch))


def normalised(archive: bytes, epoch: int) -> bytes:
    """Return a .tar.gz with the same files, whatever the time and the order in which it was made."""
    unpacked = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=unpacked, mode="w", format=tarfile.USTAR_FORMAT) as new,
    ):
        for item in sorted((one for one in old if one.isreg()), key=lambda one: one.name):
            plain = tarfile.TarInfo(item.name)
            plain.size, plain.mode, plain.mtime = item.size, 0o644, epoch
            new.addfile(plain, old.extractfile(item))
    return gzip.compress(unpacked.getvalue(), mtime=0)


def build_wheel(out: Path, epoch: int) -> None:
    """Build the wheel of ``plimsoll`` from the work tree.

    Raises:
        KitError: hatchling failed.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KitError(f"wheel: {done.stderr.strip()[-1000:]}")


def package_images(out: Path, revision: str, epoch: int) -> None:
    """Write both images, their bills of materials and ``images.json`` with their digests.

    Raises:
        KitError: a build failed, or two builds differ.
    """
    version, arch = project_version(ROOT), native_arch()
    told = {}
    with tempfile.TemporaryDirectory(prefix="plimsoll-release-") as folder:
        command = [sys.executable, "-m", "tests.cluster_kit.images.reproduce", "--out", folder]
        stamp = ["--revision", revision, "--epoch", str(epoch)]
        if subprocess.run([*command, *stamp], cwd=ROOT, check=False).returncode:
            raise KitError("the images are not the same twice; what differs stands above")
        for name in IMAGES:
            archive = Path(folder) / f"{name}.tar"
            image = made(archive)
            (out / f"{name}.cdx.json").write_bytes(bill_of(archive))
            told[TARGETS[name].image] = {"arch": arch, "id": f"sha256:{image.image_id}"}
            shutil.move(archive, out / f"plimsoll-{name}-{version}-linux-{arch}.tar")
    document = {"revision": revision, "epoch": epoch, "images": told}
    (out / "images.json").write_text(json.dumps(document, indent=2) + "\n")


def bill_of(archive: Path) -> bytes:
    """Return the bill of materials in an image: the last layer holds it.

    Raises:
        KitError: it does not.
    """
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        (image,) = json.load(manifest)
        with tarfile.open(fileobj=tar.extractfile(image["Layers"][-1])) as layer:
            for item in layer:
                if item.name.endswith(f"/{sbom.NAME}"):
                    content = layer.extractfile(item)
                    assert content is not None
                    return content.read()
    raise KitError(f"{archive.name}: no {sbom.NAME} in its last layer")


def sums(folder: Path) -> str:
    """Return the lines that `sha256sum --check` reads, for every file but the sums themselves."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != SUMS:
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
