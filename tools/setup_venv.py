"""Make the project's Python environment from a hash-locked requirements file: setup_venv.py FOLDER LOCK.

Runs under any bare Python 3.11 or newer (`python3 -I`), before anything is installed. The folder's name carries the
lock's hash, so a changed lock makes a new environment beside the old one and a finished one is never touched.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

HEARTBEAT_SECONDS = 10


def main() -> int:
    """Create the environment named on the command line unless it is complete."""
    folder, lock = Path(sys.argv[1]), Path(sys.argv[2])
    done = folder / ".done"
    if done.exists():
        done.touch()
        return 0
    began = time.monotonic()
    print(f"[  0.0 s] Python environment: {folder}", flush=True)
    if importlib.util.find_spec("ensurepip") is None:  # Debian ships it in a package of its own
        print("[  0.0 s] apt-get install python3-venv", flush=True)
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "python3-venv"], check=True)
    shutil.rmtree(folder, ignore_errors=True)  # a half-made one from an interrupted run
    venv.create(folder, with_pip=True, symlinks=True)
    command = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "-r",
        str(lock),
    ]
    stop = threading.Event()
    threading.Thread(target=_heartbeat, args=(began, stop), daemon=True).start()
    try:
        subprocess.run(command, check=True)
    finally:
        stop.set()
    done.touch()
    print(f"[{time.monotonic() - began:5.1f} s] Python environment ready", flush=True)
    return 0


def _heartbeat(began: float, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        print(f"[{time.monotonic() - began:5.1f} s] ... installing Python packages", flush=True)


if __name__ == "__main__":
    sys.exit(main())
