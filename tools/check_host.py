"""Say at once what this machine lacks and `make` cannot install: check_host.py, before minutes are spent.

Runs under any Python 3, so that an old one can be told that it is too old.
"""

import os
import re
import shutil
import subprocess
import sys

PYTHON = (3, 11)
GO = (1, 26)


def problems() -> "list[str]":
    """Return one sentence for each thing that is missing."""
    found = []
    if sys.platform != "linux":
        found.append("not Linux: the local cluster needs its namespaces and cgroups")
    if sys.version_info[:2] < PYTHON:
        have, need = ".".join(map(str, sys.version_info[:2])), ".".join(map(str, PYTHON))
        found.append(f"Python {have}: {need} or newer is needed; `make PYTHON=python{need} ...`")
    if os.geteuid() != 0:
        found.append(
            "not root: the local cluster makes namespaces and mounts; run this as root or with "
            '`sudo env "PATH=$PATH" make ...`. `make unit` and `make check` need no root'
        )
    return found + go_problems()


def go_problems() -> "list[str]":
    """Return what is wrong with Go, which builds Kubernetes from its module."""
    what = "install Go {}.{} or newer (https://go.dev/dl) and put its bin folder on the PATH"
    if shutil.which("go") is None:
        return ["go: not found; " + what.format(*GO)]
    asked = ["go", "env", "GOVERSION"]
    told = subprocess.run(asked, stdout=subprocess.PIPE, check=False).stdout.decode().strip()
    number = re.match(r"go(\d+)\.(\d+)", told)
    if number and (int(number[1]), int(number[2])) < GO:
        return [f"{shutil.which('go')} is {told}: " + what.format(*GO)]
    return []


if __name__ == "__main__":
    lines = problems()
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(2 if lines else 0)
