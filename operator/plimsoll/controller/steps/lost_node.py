"""A number that is kept to one node by its hostname, and the node is gone for good.

Where no label tells the kind of a node's GPU, a number holds on that node only. A cluster that
takes nodes away and adds others never brings the hostname back: the servers would wait for ever.
Measuring again is safe then, for nothing runs with the number and nothing can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects.names import HOSTNAME_LABEL
from plimsoll.controller.steps import hints, podstate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.objects import Stamp
    from plimsoll.controller.observed import Observed

# Seconds for which a server has waited in vain. A node that only restarts keeps its Node object, so
# this is for one that somebody deletes and registers anew.
PATIENCE: Final = 30.0


def lost_node(
    observed: Observed, capacity: Mapping[str, Any], stamp: Stamp, now: datetime
) -> str | None:
    """The node that the number was kept to, where it is gone and no server has a node; else None.

    Args:
        observed: the world; without a picture of the nodes nothing is concluded.
        capacity: the number.
        stamp: what the template carries of it.
        now: for how long servers have waited.
    """
    if stamp.pin is None or stamp.pin.key != HOSTNAME_LABEL or observed.landscape is None:
        return None
    if observed.nodes_refused or observed.node is not None:
        return None
    if any(node.labels.get(HOSTNAME_LABEL) == stamp.pin.value for node in observed.landscape.nodes):
        return None
    live = [pod for pod in observed.server_pods if not podstate.is_finished(pod)]
    if any(podstate.node_name(pod) is not None for pod in live):
        return None
    waiting = hints.waiting_pods(observed)
    if not any(podstate.age(pod, now) >= PATIENCE for pod in waiting):
        return None
    return str(capacity.get("node"))
