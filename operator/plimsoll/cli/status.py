"""``plimsoll status [NAME]``: a rollout as it happens."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli import status_view
from plimsoll.cli.kubectl import Kubectl
from plimsoll.cli.parsing import Parser, add_cluster, add_output, command
from plimsoll.cli.status_view import DONE, FAILED, GOING, SCHEMA, WAITS
from plimsoll.cli.style import Style, style_of, write
from plimsoll.core.errors import BadArgument
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


SECONDS_BETWEEN: Final = 1.0
READY, NO, NOT_YET = 0, 1, 4
_SELECTOR: Final = "plimsoll.dev/server"
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

Answers = list[dict[str, Any]]


def parser() -> Parser:
    """The command line."""
    found = command(
        "status",
        "Follows a rollout until the server is Ready: its steps, and its old and new pods. On a terminal the\n"
        "view is drawn anew; elsewhere each change is a line. Without a name: all servers, one a line.\n"
        "Exit code 0: Ready; 1: it failed and will not go on by itself (condition Stalled);\n"
        "4: not Ready yet (with --once, at the end of --timeout, or because the rollout is paused).",
        """
status llama-8b
status llama-8b --timeout 15m    # in a script: waits, exit code tells
status -A --once
""",
    )
    found.add_argument("name", nargs="?", metavar="NAME", help="of the InferenceServer")
    found.add_argument("--once", action="store_true", help="look once and do not wait")
    found.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="wait so long at most: 90s, 15m, 1h"
    )
    add_output(found, "json")
    add_cluster(found, everywhere=True)
    return found


def run(words: list[str]) -> int:
    """Look, and look again until it is settled."""
    chosen = parser().parse_args(words)
    if chosen.name and chosen.all_namespaces:
        raise BadArgument("one server has one namespace; use -n, or leave out NAME", field="-A")
    kubectl = Kubectl.of(chosen)

    def look() -> Answers:
        return list(_look(kubectl, chosen.name))

    if chosen.output == "json":
        answers = look()
        one = answers[0] if chosen.name else {"schema": SCHEMA, "servers": answers}
        print(json.dumps(one, indent=2))
        return exit_code(answers)
    style = style_of(sys.stdout)
    live = sys.stdout.isatty()
    if chosen.once or not (live or chosen.name or chosen.timeout):
        answers = look()
        write(_lines(answers, style, one=bool(chosen.name)))
        return exit_code(answers)
    show = _redraw(style, one=bool(chosen.name)) if live else _tell(named=bool(chosen.name))
    return follow(look, show, Clock(time.monotonic, time.sleep), chosen.timeout)


@dataclass(frozen=True, slots=True)
class Clock:
    """Monotonic seconds, and waiting."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


def follow(
    look: Callable[[], Answers],
    show: Callable[[Answers], None],
    clock: Clock,
    timeout: float | None,
) -> int:
    """Look and show until all servers are settled, or time is over.

    Args:
        look: the servers now.
        show: to people.
        clock: tests have their own.
        timeout: seconds; None: for ever.

    Returns:
        The exit code.
    """
    start = clock.now()
    while True:
        answers = look()
        show(answers)
        if all(answer["state"] != GOING for answer in answers):
            return exit_code(answers)
        if timeout is not None and clock.now() - start + SECONDS_BETWEEN > timeout:
            print(f"not Ready after {timeout:g} s", file=sys.stderr)
            return exit_code(answers)
        clock.sleep(SECONDS_BETWEEN)


def exit_code(answers: Sequence[dict[str, Any]]) -> int:
    """1 where one has failed, else 4 where one is not Ready, else 0."""
    states = {answer["state"] for answer in answers}
    if FAILED in states:
        return NO
    return NOT_YET if states & {GOING, WAITS} else READY


def _look(kubectl: Kubectl, name: str | None) -> Iterator[dict[str, Any]]:
    if name is None:
        for raw in kubectl.servers():
            yield status_view.document(raw, (), None)
        return
    raw = kubectl.server(name)
    within = kubectl.within(raw["metadata"]["namespace"])
    pods = within.items("pods", f"--selector={_SELECTOR}={name}")
    field = f"--field-selector=metadata.name={name}"
    deployments = within.items("deployments.apps", field)
    yield status_view.document(raw, pods, deployments[0] if deployments else None)


def _lines(answers: Answers, style: Style, *, one: bool) -> Iterator[str]:
    if one:
        yield from status_view.text(answers[0], style)
    elif answers:
        yield from status_view.overview(answers, style)
    else:
        yield "There are no InferenceServers here; -A looks in all namespaces."


def _redraw(style: Style, *, one: bool) -> Callable[[Answers], None]:
    """Shows on a terminal: over what was shown before."""
    shown: list[str] = []

    def show(answers: Answers) -> None:
        lines = list(_lines(answers, style, one=one))
        if lines != shown:
            up = f"\x1b[{_rows(shown, style.width)}A\x1b[J" if shown else ""
            sys.stdout.write(up + "".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
            shown[:] = lines

    return show


def _rows(lines: Sequence[str], width: int) -> int:
    """Rows of the terminal that the lines take."""
    sizes = (len(_ESCAPE.sub("", line)) for line in lines)
    return sum(max(1, -(-size // width)) if width else 1 for size in sizes)


def _tell(*, named: bool) -> Callable[[Answers], None]:
    """Shows in a log: what has changed, one line each."""
    before: dict[tuple[str, str], dict[str, Any]] = {}

    def show(answers: Answers) -> None:
        for answer in answers:
            key = (answer["namespace"], answer["name"])
            whose = "" if named else f"{key[0]}/{key[1]} "
            at = time.strftime("%H:%M:%S")
            for line in status_view.changes(before.get(key), answer):
                print(f"{at} {whose}{line}", flush=True)
            before[key] = answer

    return show


_UNITS: Final = {"s": 1, "m": 60, "h": 3600}


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 10**6):
        raise BadArgument(
            f"--timeout {text[:16]!r} is no time; write 90s, 15m or 1h", field="--timeout"
        )
    return float(int(number) * _UNITS[unit])


__all__ = ["DONE", "Clock", "exit_code", "follow", "parser", "run"]
