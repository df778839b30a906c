"""Puts the sizer into a folder that a container of another image can run it from.

``copy FOLDER`` leaves there the packages that sizing needs, as source, and a ``__main__.py``::

    python3 -I FOLDER size

Standard library and NVML's single-file binding only, and nothing beyond Python 3.10: it must run on whatever Python
an engine's image has. About 2 MiB.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from plimsoll.core.errors import MeasurementFailed

PARTS: Final = ("core", "checkpoint", "sizer")
_BINDING: Final = "pynvml"
_MAIN: Final = """\
import sys

from plimsoll.sizer.__main__ import main

sys.exit(main())
"""


def copy_to(folder: Path) -> None:
    """Copy the sizer into a folder, made if needed. What an interrupted run left is overwritten.

    Args:
        folder: Where to; readable by the user that will run it.

    Raises:
        MeasurementFailed: The folder cannot be written, or this installation has no NVML binding.
    """
    package = Path(__file__).parents[1]
    binding = find_spec(_BINDING)
    if binding is None or binding.origin is None:
        raise MeasurementFailed(f"the sizer's image has no {_BINDING}: it is not complete")
    try:
        for part in PARTS:
            # Contents alone: modes of an image's files are no use in a folder that others must read.
            shutil.copytree(
                package / part,
                folder / "plimsoll" / part,
                ignore=shutil.ignore_patterns("__pycache__"),
                copy_function=shutil.copyfile,
                dirs_exist_ok=True,
            )
        shutil.copyfile(package / "__init__.py", folder / "plimsoll" / "__init__.py")
        shutil.copyfile(binding.origin, folder / f"{_BINDING}.py")
        (folder / "__main__.py").write_text(_MAIN, encoding="utf-8")
    except OSError as error:
        raise MeasurementFailed(
            f"cannot copy the sizer to {folder}: {error}; the pod must mount a writable emptyDir there",
            file=str(folder),
        ) from error
