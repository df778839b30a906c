"""Make the project's Python environment from a hash-locked requirements file: setup_venv.py FOLDER LOCK.

Runs under any bare Python 3.11 or newer (`python3 -I`), before anything is installed. The folder's name carries the
lock's hash, so a changed lock makes a new environment beside the old one and a finished one is never touched.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEARTBEAT_SECONDS = 10
BEGAN = time.monotonic()
PIP = ("--disable-pip-version-check", "--no-input", "--require-hashes", "--only-binary", ":all:")


def main() -> int:
    """Create the environment named on the command line unless it is complete; 1 failed, 130 interrupted."""
    folder, lock = Path(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with us
    try:
        make(folder, lock)
    except KeyboardInterrupt:
        say("interrupted; the next run starts this step anew")
        return 130
    except subprocess.CalledProcessError as error:
        say(f"{' '.join(map(str, error.cmd[:4]))} ...: exit {error.returncode}")
        return 1
    return 0


def make(folder: Path, lock: Path) -> None:
    """Create the environment; a second process waits for the first and finds it done."""
    done = folder / ".done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        if not done.exists():
            say(f"Python environment: {folder}")
            if importlib.util.find_spec("ensurepip") is None:
                install_venv_package()
            shutil.rmtree(folder, ignore_errors=True)  # a half-made one from an interrupted run
            with alive("making the Python environment"):
                subprocess.run([sys.executable, "-I", "-m", "venv", folder], check=True)
            with alive("installing Python packages"):
                pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PIP]
                subprocess.run([*pip, "-r", lock], check=True)
            say("Python environment ready")
        done.touch()


def install_venv_package() -> None:
    """Install what Debian ships apart from its Python. An interrupt waits: a killed dpkg would need repair."""
    if os.geteuid() != 0:
        raise SystemExit("error: this Python has no venv: sudo apt-get install python3-venv")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ("-qq", "-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0")
    install = ("install", "-y", "--no-install-recommends", "python3-venv")
    for words in (("update",), (*install, "--download-only"), install):
        with alive(f"apt-get {' '.join(words)}"):
            argv = ["apt-get", *quiet, *words]
            process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, process_group=0)
            finish(process, patient=words == install)


def finish(process: subprocess.Popen[bytes], *, patient: bool) -> None:
    """Wait; on an interrupt end the process, or with ``patient`` let it end by itself first."""
    try:
        process.wait()
    except KeyboardInterrupt:
        if patient:
            say("interrupted: dpkg finishes first")
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        else:
            process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def say(text: str) -> None:
    """Print one line with the time since the start."""
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


@contextmanager
def alive(what: str) -> Iterator[None]:
    """Announce a step and repeat it until it ends, so that a long one is never silent."""
    say(what)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            say(f"... {what}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
