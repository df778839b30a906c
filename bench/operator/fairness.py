"""What a tenant's burst does to another tenant."""

from __future__ import annotations

from typing import Any

from bench.operator.contenders import running
from bench.operator.lab import TENANTS, Lab, say


def fairness(lab: Lab, who: str, number: int, seconds: float = 20) -> dict[str, Any]:
    """Tenant A creates so many at once while tenant B creates one a second."""
    with running(lab, who) as one:
        streams = [(TENANTS[0], number, 0.0), (TENANTS[1], round(seconds), 1.0)]
        crowd, single = lab.load(streams, settle=False)
        one.quiet()
        lab.clean()
    say(f"{who:9} tenant B at 1 CR/s during a burst of {number}: {single['childLagMs']} ms")
    return {"who": who, "n": number, "burst": crowd, "other": single}
