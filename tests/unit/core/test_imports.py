"""core and checkpoint must load anywhere: nothing but the standard library, and no I/O machinery."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import plimsoll
from plimsoll import core
from plimsoll.core import budget

#: The source tree, whether or not it is installed.
ENVIRON = os.environ | {"PYTHONPATH": str(Path(plimsoll.__file__).parents[1])}
PROBE = """
import sys
before = set(sys.modules)
import {module}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
foreign = sorted(loaded - set(sys.stdlib_module_names) - {{"plimsoll"}})
forbidden = sorted(loaded & set({forbidden!r}))
print(foreign, forbidden)
"""
#: A pure domain has no business with these; `json` and `re` are fine.
NO_IO = (
    "asyncio",
    "logging",
    "socket",
    "subprocess",
    "threading",
    "time",
    "datetime",
    "random",
    "urllib",
    "http",
)


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("plimsoll.core.budget", NO_IO),
        ("plimsoll.core.report", NO_IO),
        ("plimsoll.core.request", NO_IO),
        ("plimsoll.checkpoint", ("asyncio", "logging", "socket", "subprocess", "pickle", "http")),
        ("plimsoll.cli.__main__", ("asyncio", "logging", "socket", "http")),
    ],
)
def test_only_the_standard_library_is_loaded(module: str, forbidden: tuple[str, ...]) -> None:
    code = PROBE.format(module=module, forbidden=forbidden)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRON
    )
    assert done.stdout.strip() == "[] []"


def test_fit_is_where_the_documentation_says() -> None:
    assert core.fit is budget.fit
    with pytest.raises(AttributeError):
        _ = core.absent


def test_the_package_itself_is_free() -> None:
    code = "import sys, plimsoll; print(plimsoll.__version__, [m for m in sys.modules if 'plimsoll' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRON
    )
    assert done.stdout.strip() == "0.1.0 ['plimsoll']"
