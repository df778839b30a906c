"""Install the Debian packages that the kit and the image builder call: `python -m tests.cluster_kit.prerequisites`.

One apt-get for everything that is missing, nothing at all when nothing is. None of these packages starts a service.
"""

import os
import shutil
import sys

from .debian import PREREQUISITES
from .errors import KitError
from .images.host import PROGRAMS, run
from .progress import Progress


def install(log: Progress) -> None:
    """Install what is missing. Raises KitError: not root, no apt-get, or apt-get failed."""
    wanted = {
        program: package.split(" ")[0] for program, package in PREREQUISITES.items()
    } | PROGRAMS
    missing = sorted({package for program, package in wanted.items() if not shutil.which(program)})
    if not missing:
        return
    if os.geteuid() != 0:
        raise KitError(f"not root: install {', '.join(missing)} first, or run this with sudo")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], what="apt-get update", log=log, env=env)
    argv = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
    run(argv, what=f"apt-get install {' '.join(missing)}", log=log, env=env)


def main() -> int:
    """Return 0, or 1 with one line that says what is missing."""
    log = Progress()
    try:
        install(log)
    except KitError as error:
        log(str(error))
        return 1
    if shutil.which("go") is None:
        log("go: not found; install Go 1.26 or newer (Kubernetes is built from its Go module)")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
