"""Go programs of others: where go keeps its caches, and how its commands are run."""

import os
import shutil
import tempfile
from pathlib import Path

from .cache import Log, cache_root
from .errors import KitError
from .images.host import run
from .progress import Progress


def go_environment() -> dict[str, str]:
    """Return the environment of every go command: all of its caches are below ours."""
    folder = cache_root() / "go"
    return {
        **os.environ,
        "GOCACHE": str(folder / "build"),
        "GOMODCACHE": str(folder / "mod"),
        "GOFLAGS": "-buildvcs=false",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }


def go(folder: Path, *arguments: str, log: Log) -> None:
    """Run go with its temporary files below ``folder``: a killed one leaves them behind. Raises KitError."""
    if shutil.which("go") is None:
        raise KitError("go: not found; install Go 1.26 or newer (https://go.dev/dl)")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".go-tmp.") as temporary:
        env = {**go_environment(), "GOTMPDIR": temporary}
        verb = " ".join(arguments[: 2 if arguments[0] == "mod" else 1])
        run(["go", *arguments], what=f"go {verb}", log=log, cwd=folder, env=env)


def module_folder(module: str, version: str, log: Log | None = None) -> Path:
    """Return a Go module's unpacked folder, downloading it when absent. Raises KitError."""
    folder = cache_root() / "go" / "mod" / f"{module}@{version}"
    if not folder.is_dir():
        go(cache_root(), "mod", "download", f"{module}@{version}", log=log or Progress())
    return folder
