"""The frame of the kit's commands: one line for what failed, one exit code for each ending."""

import signal
from collections.abc import Callable

from .cache import Log
from .errors import KitError


def end_like_ctrl_c(*more: signal.Signals) -> None:
    """Let SIGTERM, and ``more``, end this process like Ctrl-C; a script's background jobs start with SIGINT ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, *more):
        signal.signal(number, signal.default_int_handler)


def exit_code(work: Callable[[], None], log: Log, prefix: str = "") -> int:
    """Return 0, 1 with one line that says what failed, or 130 when interrupted."""
    end_like_ctrl_c()
    try:
        work()
    except KitError as error:
        log(f"{prefix}{error}")
        return 1
    except KeyboardInterrupt:
        log("interrupted")
        return 130
    return 0
