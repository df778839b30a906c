"""``plimsoll fit PATH``: the arithmetic of the cluster on any machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from plimsoll.checkpoint import Checkpoint, fit_checkpoint, parse_config, read_checkpoint
from plimsoll.checkpoint.reader import MAX_CONFIG
from plimsoll.cli import options, render
from plimsoll.cli.smallest import what_would_fit
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

_STDIN: Final = "-"


def run(words: Sequence[str]) -> int:
    """Parse, compute, print; return the exit code.

    Raises:
        PlimsollError: For everything that ends in exit code 2 or 3.
    """
    chosen = options.parser().parse_args(words)
    settings = options.settings_of(chosen)
    device, notes = options.device_of(chosen, settings)
    checkpoint = _checkpoint(chosen.path)
    answer = fit_checkpoint(checkpoint, device, settings, weights=chosen.weights or None)
    if answer.error is not None:
        notes = (*notes, *what_would_fit(checkpoint, answer, weights=chosen.weights or None))
    answer = replace(answer, warnings=(*answer.warnings, *notes))
    print(render.render(answer, chosen.output), end="")
    if answer.error is not None:
        print(render.error_line(answer.error), file=sys.stderr)
    return answer.exit_code


def wanted_format(words: Sequence[str]) -> str:
    """The format asked for, as far as it can be told when the arguments do not parse."""
    scout = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    scout.add_argument("-o", "--output", default="text")
    try:
        return str(scout.parse_known_args(list(words))[0].output)
    except argparse.ArgumentError:
        return "text"


def _checkpoint(path: str) -> Checkpoint:
    from pathlib import Path  # noqa: PLC0415 - a start without files need not load it

    if path != _STDIN:
        return read_checkpoint(Path(path), require_weights=False)
    data = sys.stdin.buffer.read(MAX_CONFIG + 1)
    return Checkpoint(parse_config(data, "-"), None, ((_STDIN, data),), "config", Path(_STDIN))
