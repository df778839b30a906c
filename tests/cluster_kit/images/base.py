"""The base of the local images: Debian's own Python from debootstrap, since no container registry is needed here.

It stands in for the Dockerfile's public default (docker.io/library/python:3.11-slim-bookworm): same Debian, same
Python series, `python` and `python3` on the PATH.
"""

import hashlib
import os
import re
import shutil
import stat
import tarfile
from pathlib import Path

from tests.cluster_kit.errors import KitError

from .host import SOURCE_DATE_EPOCH, Log, finished, run, step

SUITE = "bookworm"
PUBLIC_MIRROR = "http://deb.debian.org/debian"
# libgomp1 is for the demo engine: llama.cpp's threads.
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libgomp1")
# Nothing in a server or an init container reads these. /dev is the runtime's.
STRIPPED = (
    "dev",
    "run",
    "tmp",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/aarch64-linux-gnu/gconv",
    "usr/share/doc",
    "usr/share/i18n",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "var/cache",
    "var/lib/apt/lists",
    "var/log",
)
RECIPE = 3  # raise it when the code below changes what is in the base


def base_key() -> str:
    """Return 12 hex digits that change whenever this recipe does (Debian's point releases do not change it)."""
    recipe = repr((RECIPE, SUITE, PACKAGES, STRIPPED, SOURCE_DATE_EPOCH, os.uname().machine))
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def base_archive(folder: Path, log: Log) -> Path:
    """Return the tar of the root file system, built once per recipe: about 50 s and 90 MB.

    Raises:
        KitError: debootstrap or tar failed.
    """
    archive = folder / f"base-{base_key()}.tar"
    if archive.exists():
        return archive
    with finished(archive) as scratch, step(f"debootstrap {SUITE} base (about 50 s)", log):
        root = scratch / "root"
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            SUITE,
            root,
        ]
        run([*command, *_mirror(log)], what="debootstrap", log=log, isolated=True)
        _strip(root)
        neutralise(root)
        # By hash, never by time: tar and buildah rewrite times, and a root that is read-only could not repair them.
        compileall = ("python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
        run(
            ["chroot", root, *compileall, "/usr/lib/python3.11"],
            what="compile the standard library",
            log=log,
            isolated=True,
        )
        order = ("--sort=name", f"--mtime=@{SOURCE_DATE_EPOCH}", "--numeric-owner")
        run(["tar", *order, "-C", root, "-cf", scratch / archive.name, "."], what="tar", log=log)
    return archive


def neutralise(root: Path) -> None:
    """Take out what tells of the machine that built it: its name, its resolver, its mirror, the day.

    The two files stay, empty: a runtime mounts its own over them, and a read-only root could not make them.
    """
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).write_bytes(b"")
        (root / name).chmod(0o644)  # debootstrap copies this host's, mode and all
    (root / "etc/apt/sources.list").write_text(f"deb {PUBLIC_MIRROR} {SUITE} main\n")
    shadow = root / "etc/shadow"
    days = SOURCE_DATE_EPOCH // 86_400
    shadow.write_text(re.sub(r"(?m)^([^:\n]+:[^:\n]*:)\d+:", rf"\g<1>{days}:", shadow.read_text()))


def packages_of(archive: Path) -> str:
    """Return dpkg's own list of what is installed in a base archive.

    Raises:
        KitError: it has none.
    """
    with tarfile.open(archive) as tar:
        try:
            file = tar.extractfile("./var/lib/dpkg/status")
        except KeyError:
            file = None
        if file is None:
            raise KitError(f"{archive.name}: no dpkg status in it; remove it and build again")
        return file.read().decode()


def _mirror(log: Log) -> list[str]:
    """Return the mirror that this machine's apt uses for the suite; empty (debootstrap's own default) if none."""
    if not shutil.which("apt-get"):
        return []
    wanted = ("Created-By: Packages", f"Codename: {SUITE}", "Component: main")
    text = run(
        ["apt-get", "indextargets", "--format", "$(SITE)", *wanted], what="apt sources", log=log
    )
    return text.split()[:1]


def _strip(root: Path) -> None:
    for name in STRIPPED:
        folder = root / name
        if folder.is_dir():
            shutil.rmtree(folder)
    for name, mode in {
        "dev": 0o755,
        "run": 0o755,
        "tmp": 0o1777,
        "var/log": 0o755,
        "var/cache": 0o755,
    }.items():
        (root / name).mkdir(parents=True)
        (root / name).chmod(mode)
    for cached in (root / "usr/lib").rglob("__pycache__"):
        shutil.rmtree(cached)
    # Containers run without privilege escalation; a set-user-id file would be the only thing left to misuse.
    for path in root.rglob("*"):
        bits = path.lstat().st_mode
        if stat.S_ISREG(bits) and bits & 0o6000:
            path.chmod(stat.S_IMODE(bits) & 0o777)
    (root / "usr/bin/python").symlink_to("python3")
