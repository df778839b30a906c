"""``plimsoll``, which is also ``kubectl plimsoll``: finds the command and says no in one way.

Exit codes: 0 done (it fits, it is Ready, the numbers agree); 1 the answer is no (it does not fit, the rollout
failed, the engine differs); 2 bad input; 3 unsupported; 4 not known yet (no engine has told, not Ready in time);
5 the cluster could not be asked; 130 interrupted. A refusal is one line on standard error that names the field and
the file; with ``-o json`` it is also a JSON object on standard output.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["fit"] or not words or words[0].startswith("-"):
        return _fit(words)
    return _command(words)


def _fit(words: list[str]) -> int:
    """``fit``, which must start fast, and what its parser says of no command and of --help."""
    from plimsoll.cli import fit, render  # noqa: PLC0415 - entry() comes first
    from plimsoll.core.errors import PlimsollError  # noqa: PLC0415 - as above

    if words and words[0] in {"-h", "--help"}:
        return _command(["help"])
    try:
        return fit.run(words)
    except PlimsollError as error:
        print(render.error_line(error), file=sys.stderr)
        if fit.wanted_format(words) == "json":
            print(render.error_json(error))
        return error.exit_code


def _command(words: list[str]) -> int:
    from plimsoll.cli import dispatch  # noqa: PLC0415 - fit does without

    try:
        return dispatch.run(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # for example `| head`
        sys.stderr.close()
        return 0


def entry() -> NoReturn:
    """Run as a program.

    Without the collector of cycles: looking for garbage while modules load is a sixth of a start.
    """
    gc.disable()
    sys.exit(main())


def complete() -> NoReturn:
    """``kubectl_complete-plimsoll``: what kubectl runs for the words after ``kubectl plimsoll``."""
    sys.exit(main(["__complete", *sys.argv[1:]]))


if __name__ == "__main__":
    entry()
