"""The loop: change, run, keep what ends in another way than any input before."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from plimsoll.core.errors import PlimsollError
from tests.fuzz.mutate import of_bytes, of_json

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

SLOW = 2.0
_KEPT = 2000


@dataclass(slots=True)
class Outcome:
    """What a round found.

    Attributes:
        executions: Inputs that were run.
        accepted: Those that were read without a refusal.
        ends: Distinct ways to end: a refusal's reason, field and first words, or being read.
        crashes: Inputs with the traceback of whatever else was raised, or with the seconds they took.
    """

    executions: int = 0
    accepted: int = 0
    ends: set[str] = field(default_factory=set)
    crashes: list[tuple[bytes, str]] = field(default_factory=list)


def fuzz(target: Target, seconds: float, seed: int, *, most: int | None = None) -> Outcome:
    """Run one target for so long, or so often; the seeds themselves first.

    An input that ends in a way not seen before joins the seeds, so that later changes start from
    what came far.
    """
    random = Random(seed)
    pool: list[Any] = list(target.seeds)
    outcome = Outcome()
    end = time.monotonic() + seconds
    waiting = list(target.seeds)[:200]
    while time.monotonic() < end and (most is None or outcome.executions < most):
        if waiting:
            item = waiting.pop()
        elif target.keys:
            item = of_json(random.choice(pool), random, target.keys)
        else:
            item = of_bytes(random.choice(pool), random, target.seeds)
        way = _run(target, item, outcome)
        if way not in outcome.ends:
            outcome.ends.add(way)
            if len(pool) < _KEPT:
                pool.append(item)
        if len(outcome.crashes) > 20:
            break
    return outcome


def _run(target: Target, item: Any, outcome: Outcome) -> str:
    outcome.executions += 1
    start = time.process_time()
    try:
        target.run(item)
    except PlimsollError as error:
        way = f"{error.reason} {error.field} {error.message[:40]}"
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        way = traceback.format_exc(limit=-1)
        if way not in outcome.ends:  # one of each place
            outcome.crashes.append((_as_bytes(item), traceback.format_exc()))
    else:
        way = "read"
        outcome.accepted += 1
    seconds = time.process_time() - start
    if seconds > SLOW:
        outcome.crashes.append((_as_bytes(item), f"it took {seconds:.1f} s"))
    return way


def _as_bytes(item: Any) -> bytes:
    return item if isinstance(item, bytes) else json.dumps(item).encode()
