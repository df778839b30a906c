"""What the image builder asks of the host: programs, killable long steps with progress, finished-or-absent folders."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster_kit.errors import KitError

Log = Callable[[str], None]

# Each program with the Debian package that brings it. None of these packages starts a service.
PROGRAMS = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "tar": "tar",
}
HEARTBEAT_SECONDS = 10.0
# The clock of every file in an image (2026-01-01), so that equal inputs make equal images.
SOURCE_DATE_EPOCH = 1767225600


def prerequisites(log: Log = print) -> None:
    """Install buildah and debootstrap with apt-get when they are missing; does nothing when they are there.

    Raises:
        KitError: not root, or no apt-get to install them with.
    """
    if os.geteuid() != 0:
        raise KitError("images are built as root (mounts and chroot): run this command with sudo")
    missing = sorted(
        {package for program, package in PROGRAMS.items() if not shutil.which(program)}
    )
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise KitError(f"install {', '.join(missing)} with this machine's package manager")
    install_packages(missing, log)


def install_packages(packages: Sequence[str], log: Log) -> None:
    """Install Debian packages. Downloads can be interrupted; dpkg then ends first, as a killed one would need repair.

    Raises:
        KitError: apt-get failed.
    """
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    names = " ".join(packages)
    log(f"apt-get install {names}")
    # On a machine that has just booted, its own updates may hold the lock for minutes.
    apt = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600")
    install = [*apt, "install", "--no-install-recommends", *packages]
    run([*apt, "update"], what="apt-get update", log=log, env=env)
    run([*install, "--download-only"], what=f"download of {names}", log=log, env=env)
    run(install, what=f"apt-get install {names}", log=log, env=env, patient=True)


def run(
    argv: Sequence[object],
    *,
    what: str,
    log: Log,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    isolated: bool = False,
    heartbeat: float = HEARTBEAT_SECONDS,
    patient: bool = False,
) -> str:
    """Run one tool (``argv``: strings and paths) and return what it printed; progress every ``heartbeat`` seconds.

    ``isolated`` gives it mount and process namespaces of its own: whatever it mounted or started ends with it, even
    when it is killed half way. An exception here (Ctrl-C) kills it, and so does the death of this process;
    ``patient`` lets it end by itself first.

    Raises:
        KitError: it is missing or failed; with its last words.
    """
    command = [str(word) for word in argv]
    if not shutil.which(command[0]):
        raise KitError(f"{command[0]}: no such program; run `make prerequisites`")
    mortal = shutil.which("setpriv") and not patient
    prefix = ["setpriv", "--pdeathsig", "KILL", "--"] if mortal else []
    if isolated:
        prefix += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    with tempfile.TemporaryFile("w+b") as output:
        process = subprocess.Popen(
            prefix + command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=dict(env) if env is not None else None,
        )
        try:
            _wait(process, what, log, heartbeat)
        except BaseException:
            if patient:
                log(f"  interrupted: {what} ends first")
                _outlast(process, what, log, heartbeat)
            _kill(process)
            raise
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise KitError(f"{what}: exit {process.returncode}: {text.strip()[-2000:]}")
    return text


def _wait(process: subprocess.Popen[bytes], what: str, log: Log, heartbeat: float) -> None:
    began = time.monotonic()
    while True:
        try:
            process.wait(timeout=heartbeat)
        except subprocess.TimeoutExpired:
            log(f"  {what} ... {time.monotonic() - began:.0f} s")
        else:
            return


def _outlast(process: subprocess.Popen[bytes], what: str, log: Log, heartbeat: float) -> None:
    """Wait for its end whatever more signals say."""
    while process.returncode is None:
        with suppress(KeyboardInterrupt, SystemExit):
            _wait(process, what, log, heartbeat)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the tool's whole session: its group, and with `unshare --kill-child` its process namespace."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def step(what: str, log: Log) -> Iterator[None]:
    """Announce a long step and say how long it took."""
    began = time.monotonic()
    log(f"  {what}")
    yield
    log(f"  {what}: done in {time.monotonic() - began:.1f} s")


@contextmanager
def finished(target: Path) -> Iterator[Path]:
    """Give a scratch folder beside ``target`` and rename it there at the end: ``target`` is complete or absent.

    A single file is made as ``<scratch>/<target.name>`` and then moved alone.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
        alone = scratch / target.name
        if alone.is_file():
            alone.replace(target)
        else:
            scratch.chmod(0o755)
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove scratch folders that a killed builder left; call it only while holding the builders' lock."""
    for scratch in folder.glob(".*"):
        if scratch.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)


def readable(folder: Path) -> None:
    """Let every user read ``folder``: images run as a user without a name, and umask differs between hosts."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            execute = 0o111 if path.is_dir() or path.stat().st_mode & 0o100 else 0
            path.chmod(0o644 | execute)
