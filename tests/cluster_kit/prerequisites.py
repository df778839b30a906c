"""Install the Debian packages that the kit and the image builder call: `python -m tests.cluster_kit.prerequisites`.

One apt-get for everything that is missing, nothing at all when nothing is. None of these packages starts a service.
"""

import os
import sys

from .command import exit_code
from .debian import PREREQUISITES, present
from .errors import KitError
from .images.host import PROGRAMS, install_packages
from .progress import Progress


def install(log: Progress) -> None:
    """Install what is missing. Raises KitError: not root, no apt-get, or apt-get failed."""
    wanted = {
        program: package.split(" ")[0] for program, package in PREREQUISITES.items()
    } | PROGRAMS
    missing = sorted({package for program, package in wanted.items() if not present(program)})
    if not missing:
        return
    if os.geteuid() != 0:
        raise KitError(f"not root: install {', '.join(missing)} first, or run this with sudo")
    install_packages(missing, log)


def main() -> int:
    """Return 0, or 1 with one line that says what is missing, or 130 when interrupted."""
    log = Progress()
    return exit_code(lambda: install(log), log)


if __name__ == "__main__":
    sys.exit(main())
