"""``python -m plimsoll.sizer size|guard|copy FOLDER|done|--version``.

======  =====================================================================================
exit    meaning (the controller turns it into a condition; design table in docs/architecture.md)
======  =====================================================================================
0       sized; copied; ``done``; ``guard`` that lets the server start, see :mod:`plimsoll.sizer.guard`
1       does not fit
2       bad model input
3       unsupported architecture, engine version or layout
4       NVML, torch or CUDA failed; worth a retry
5       deadline, wrong call, anything else; worth a retry
10      guard: too little memory for what was stamped
11      guard: another class of device or another model than stamped
======  =====================================================================================

``done`` is what the sizing pod's main container runs: nothing. It must not depend on anything.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plimsoll import __version__

if TYPE_CHECKING:
    from typing import Literal

USAGE = "usage: python -m plimsoll.sizer size|guard|copy FOLDER|done|--version"
EXIT_OTHER = 5


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    match arguments:
        case ["done"]:
            return 0
        case ["--version"]:
            sys.stdout.write(f"plimsoll-size {__version__}\n")
            return 0
        case ["size" | "guard" as mode]:
            return _run(mode)
        case ["copy", folder]:
            return _copy(folder)
        case _:
            sys.stderr.write(f"{USAGE}; got {arguments!r}\n")
            return EXIT_OTHER


def _run(mode: Literal["size", "guard"]) -> int:
    try:
        # Imported here so that done and --version load nothing that could fail or take time.
        from plimsoll.sizer.run import run  # noqa: PLC0415

        return run(mode)
    except Exception:  # noqa: BLE001 - Python would exit with 1, which means "does not fit"
        import traceback  # noqa: PLC0415 - only here

        traceback.print_exc()
        return 0 if mode == "guard" else EXIT_OTHER


def _copy(folder: str) -> int:
    from pathlib import Path  # noqa: PLC0415 - as above

    from plimsoll.core.errors import PlimsollError  # noqa: PLC0415
    from plimsoll.sizer.bundle import copy_to  # noqa: PLC0415

    try:
        copy_to(Path(folder))
    except PlimsollError as error:
        sys.stderr.write(f"{error.reason}: {error.message}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
