"""``plimsoll``: size a model without a cluster.

Exit codes: 0 fits, 1 does not fit, 2 bad input, 3 unsupported. A refusal is one line on standard error that
names the field and the file; with ``-o json`` it is also a JSON object on standard output.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from plimsoll.cli import fit, render  # noqa: PLC0415 - entry() comes first
    from plimsoll.core.errors import PlimsollError  # noqa: PLC0415 - as above

    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return fit.run(words)
    except PlimsollError as error:
        print(render.error_line(error), file=sys.stderr)
        if fit.wanted_format(words) == "json":
            print(render.error_json(error))
        return error.exit_code


def entry() -> NoReturn:
    """Run as a program.

    Without the collector of cycles: looking for garbage while modules load is a sixth of a start.
    """
    gc.disable()
    sys.exit(main())


if __name__ == "__main__":
    entry()
