"""How late the event loop is: what one long computation takes from everybody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PERIOD_SECONDS: Final = 0.5


async def measure_lag(
    observe: Callable[[float], None],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Sleep again and again, and tell by how many seconds each awakening was late. Never returns.

    Args:
        observe: takes the seconds.
        clock: monotonic seconds.
        sleep: seconds to wait; an argument for tests.
    """
    while True:
        due = clock() + PERIOD_SECONDS
        await sleep(PERIOD_SECONDS)
        observe(max(0.0, clock() - due))
