"""The project's images as archives, each kept under a hash of everything that goes into it."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.cluster_kit.cache import build_lock
from tests.cluster_kit.errors import KitError

from . import sbom
from .base import SUITE, base_archive, base_key, packages_of
from .host import SOURCE_DATE_EPOCH, Log, finished, prerequisites, readable, run, step, sweep
from .wheels import native_arch, project_folder, site_folder, site_key

ROOT = Path(__file__).resolve().parents[3]
ENGINE = Path(__file__).resolve().parent / "llamacpp"
STANDIN = Path(__file__).resolve().parent / "standin"
CONTEXT = Path(
    "build/context"
)  # what the root Dockerfile copies from, relative to the build's root
KEPT_ARCHIVES = 2  # per image: the newest, and the one that a running command may still be loading
PUBLIC_BASE = "docker.io/library/python:3.11-slim-bookworm"  # the Dockerfile's default
RECIPE = 2  # raise it when the code below changes what is in an image


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an image says of its making: the commit, and its time in seconds (SOURCE_DATE_EPOCH).

    The default is the work tree as it is; its content is what names the archive.
    """

    revision: str = "local"
    epoch: int = SOURCE_DATE_EPOCH


LOCAL = Stamp()


@dataclass(frozen=True, slots=True)
class Target:
    """One image: its full name, Dockerfile, stage in it, and the locked packages beside the code, if any."""

    image: str
    dockerfile: Path
    lock: Path | None = None
    stage: str | None = None

    @property
    def project(self) -> bool:
        """Whether the image carries this project's own code."""
        return self.stage is not None


TARGETS = {
    "operator": Target(
        "ghcr.io/plimsoll-dev/operator:0.1.0",
        ROOT / "Dockerfile",
        ROOT / "requirements" / "operator.txt",
        "operator",
    ),
    "sizer": Target(
        "ghcr.io/plimsoll-dev/sizer:0.1.0",
        ROOT / "Dockerfile",
        ROOT / "requirements" / "sizer.txt",
        "sizer",
    ),
    "llamacpp": Target(
        "localhost/plimsoll-demo-llamacpp:0.1.0", ENGINE / "Dockerfile", ENGINE / "requirements.txt"
    ),
    "standin": Target("localhost/plimsoll-standin:0.1.0", STANDIN / "Dockerfile"),
}
DEFAULT_TARGETS = ("operator", "sizer", "llamacpp", "standin")


def build_images(
    cache: Path, targets: Sequence[str] = DEFAULT_TARGETS, log: Log = print, stamp: Stamp = LOCAL
) -> dict[str, Path]:
    """Return a docker archive for each target, building only what changed.

    An unchanged image costs a hash over its inputs (milliseconds); changed product code a few seconds; an empty
    ``cache`` a debootstrap and the downloads, about a minute and a half.

    Raises:
        KitError: an unknown target, or a tool failed; nothing half-made is left.
    """
    unknown = sorted(set(targets) - TARGETS.keys())
    if unknown:
        raise KitError(f"no such image: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    folder = cache / "images"
    sources = {name: read_sources(TARGETS[name]) for name in targets}
    found = {name: folder / archive_name(name, content, stamp) for name, content in sources.items()}
    if not all(path.exists() for path in found.values()):
        prerequisites(log)
        folder.mkdir(parents=True, exist_ok=True)
        with build_lock(folder / "lock", log):
            sweep(folder)
            for name, archive in found.items():
                if not archive.exists():
                    _Build(cache, log, stamp).make(name, archive, sources[name])
    for path in found.values():
        os.utime(path)  # the newest ones are kept
    return found


def archive_name(name: str, sources: Mapping[str, bytes], stamp: Stamp = LOCAL) -> str:
    """Return the file name of the archive that these sources make on today's base and locked packages."""
    target = TARGETS[name]
    packages = site_key(target.lock) if target.lock else ""
    digest = hashlib.sha256(repr((RECIPE, base_key(), packages, stamp)).encode())
    digest.update(Path(sbom.__file__).read_bytes())
    digest.update(target.dockerfile.read_bytes())
    for path, content in sources.items():
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return f"{name}-{digest.hexdigest()[:16]}.tar"


def read_sources(target: Target) -> dict[str, bytes]:
    """Return the code that goes into an image, by its path in the project (or in the engine's folder)."""
    if target.dockerfile.parent == STANDIN:
        return standin_sources()
    if not target.project:
        return {"llama_server.py": (ENGINE / "llama_server.py").read_bytes()}
    package = ROOT / "operator" / "plimsoll"
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files += [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted(files)}


def standin_sources() -> dict[str, bytes]:
    """Return the stand-in engine's code by its path in the image: the package, and the engines' own commands."""
    files = {f"app/standin/{path.name}": path for path in STANDIN.glob("*.py")}
    commands = STANDIN / "commands"
    for path in commands.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            files[f"app/{path.relative_to(commands)}"] = path
    files["app/standin/flags.json"] = ROOT / "tests" / "data" / "engine_flags.json"
    return {name: path.read_bytes() for name, path in sorted(files.items())}


def prepare_context(
    cache: Path,
    folder: Path,
    log: Log = print,
    archs: Sequence[str] = ("amd64", "arm64"),
    stamp: Stamp = LOCAL,
) -> None:
    """Fill ``folder`` (the Dockerfile's ``build/context``) for any builder: needs neither root nor buildah.

    Raises:
        KitError: pip or hatchling failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with build_lock(cache / "images" / "lock", log), finished(folder) as scratch:
        for arch in archs:
            context = _Context(scratch, arch, PUBLIC_BASE, debian=None)
            for name in ("operator", "sizer"):
                _Build(cache, log, stamp).fill(context, name, read_sources(TARGETS[name]))


@dataclass(frozen=True, slots=True)
class _Context:
    """What the root Dockerfile copies from: ``app``, and for a processor ``lib-<stage>`` and ``doc-<stage>``."""

    folder: Path
    arch: str
    base: str
    debian: str | None  # the base's dpkg status, where it is known


@dataclass(frozen=True, slots=True)
class _Build:
    """One run of the builder; the caller holds the lock."""

    cache: Path
    log: Log
    stamp: Stamp

    def make(self, name: str, archive: Path, sources: Mapping[str, bytes]) -> None:
        """Build one image into ``archive``."""
        folder, target, log = archive.parent, TARGETS[name], self.log
        with finished(archive) as scratch, step(f"image {target.image}", log):
            root = base_archive(folder, log)
            context = scratch / "context"
            if target.project:
                base = f"debian:{SUITE}"
                filled = _Context(context / CONTEXT, native_arch(), base, packages_of(root))
                self.fill(filled, name, sources)
            else:
                self._fill_engine(context, name, sources)
            with _storage(folder, scratch, log) as buildah:
                base = _base_image(buildah, root, scratch)
                stage = ["--target", target.stage] if target.stage else []
                options = ["-f", target.dockerfile, *self._arguments(target, base), *stage]
                # Cached by content, a change of code repeats one COPY; but layers carry the time of their making.
                cached = "--layers" if self.stamp == LOCAL else "--no-cache"
                epoch = f"--timestamp={self.stamp.epoch}"
                buildah("bud", *_BUD, cached, epoch, *options, "-t", target.image, context)
                archived = f"docker-archive:{scratch / archive.name}:{target.image}"
                buildah("push", "--quiet", target.image, archived)
                buildah("rmi", "--prune")
        _forget(folder, name, archive)

    def fill(self, context: _Context, name: str, sources: Mapping[str, bytes]) -> None:
        """Lay out what the root Dockerfile copies for one stage."""
        target = TARGETS[name]
        assert target.lock is not None, name
        own = context.folder / context.arch
        own.mkdir(parents=True, exist_ok=True)
        site = site_folder(name, target.lock, self.cache, self.log, context.arch)
        project = project_folder(sources, self.cache, self.log)
        _link(site.folder, own / f"lib-{name}")
        if not (context.folder / "app").exists():
            _link(project, context.folder / "app")
        contents = sbom.Contents(
            target.image,
            context.arch,
            site.folder,
            site.digests,
            project,
            context.base,
            context.debian,
        )
        document = own / f"doc-{name}" / sbom.NAME
        document.parent.mkdir()
        document.write_bytes(sbom.document(contents, self.stamp.epoch))
        readable(document.parent)

    def _fill_engine(self, context: Path, name: str, sources: Mapping[str, bytes]) -> None:
        context.mkdir()
        target = TARGETS[name]
        if target.lock:
            _link(site_folder(name, target.lock, self.cache, self.log).folder, context / "lib")
        for file, content in sources.items():
            (context / file).parent.mkdir(parents=True, exist_ok=True)
            (context / file).write_bytes(content)
            (context / file).chmod(0o755)
        for path in context.rglob("*"):
            if path.is_dir():
                path.chmod(0o755)  # a strict umask would shut the image's user out

    def _arguments(self, target: Target, base: str) -> list[str]:
        """Return the build arguments, as `--build-arg` options."""
        made = datetime.fromtimestamp(self.stamp.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        given = {"BASE": base}
        if target.project:
            version = target.image.rpartition(":")[2]
            given |= {"VERSION": version, "REVISION": self.stamp.revision, "CREATED": made}
        return [word for key, value in given.items() for word in ("--build-arg", f"{key}={value}")]


_BUD = (
    "--isolation=chroot",
    "--pull-never",
    "--identity-label=false",
)


class _Buildah:
    """buildah with storage of its own, away from the host's containers."""

    def __init__(self, root: Path, driver: str, runroot: Path, log: Log) -> None:
        self._command = [
            "buildah",
            "--root",
            root,
            "--runroot",
            runroot,
            "--storage-driver",
            driver,
        ]
        self._log = log
        # Not in /var/tmp, where a killed buildah would leave them.
        temporary = runroot.with_name("buildah-tmp")
        temporary.mkdir()
        self._env = {**os.environ, "TMPDIR": str(temporary)}

    def __call__(self, *words: object) -> str:
        command, what = [*self._command, *words], f"buildah {words[0]}"
        if words[0] in {"bud", "push"}:  # seconds each: together they would be a long silence
            self._log(f"  {what}")
        return run(command, what=what, log=self._log, env=self._env, isolated=True)


@contextmanager
def _storage(folder: Path, scratch: Path, log: Log) -> Iterator[_Buildah]:
    """Open the layer store; one that a killed build left behind is not trusted but made anew (ten seconds)."""
    driver = _driver(scratch, log)
    root = folder / f"storage-{driver}"
    unfinished = folder / "storage-unfinished"
    if unfinished.exists():
        log("  the last build was interrupted: starting from an empty layer store")
        for old in folder.glob("storage-*/"):
            shutil.rmtree(old)
    unfinished.touch()
    yield _Buildah(root, driver, scratch / "run", log)
    unfinished.unlink()


def _driver(scratch: Path, log: Log) -> str:
    """Return overlay where the kernel and this file system allow it (half a second a build), else vfs (six)."""
    lower, upper, work, merged = (scratch / name for name in ("lower", "upper", "work", "merged"))
    for path in (lower, upper, work, merged):
        path.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, merged]
    try:
        run(mount, what="try an overlay mount", log=log, isolated=True)
    except KitError:
        return "vfs"
    return "overlay"


def _base_image(buildah: _Buildah, root: Path, scratch: Path) -> str:
    """Return the name of the base in the layer store, imported there once from the tar ``root``."""
    name = f"localhost/plimsoll-base:{base_key()}"
    if name in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return name
    context = scratch / "base"
    context.mkdir()
    os.link(root, context / "root.tar")
    (context / "Dockerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["python3"]\n')
    buildah("bud", *_BUD, f"--timestamp={SOURCE_DATE_EPOCH}", "-t", name, context)
    return name


def _link(source: Path, target: Path) -> None:
    """Copy a tree by hard links where possible: thousands of files, never changed afterwards."""

    def link_or_copy(one: str, other: str) -> str:
        try:
            os.link(one, other)
        except OSError:  # another file system
            shutil.copy2(one, other)
        return other

    shutil.copytree(source, target, copy_function=link_or_copy)


def _forget(folder: Path, name: str, newest: Path) -> None:
    """Remove archives of earlier inputs beyond the last few."""
    old = sorted(
        (path for path in folder.glob(f"{name}-*.tar") if path != newest),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for path in old[KEPT_ARCHIVES - 1 :]:
        path.unlink(missing_ok=True)
