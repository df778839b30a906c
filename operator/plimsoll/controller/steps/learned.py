"""Never the same crash twice: what one server needed, the next of its kind leaves free at once.

A server whose engine ran out of device memory, and serves with a smaller pool, has shown what the
computed reserve lacks. Its namespace remembers that (see ``objects.learned_map``), and a later *fresh*
measurement of the same case gives its pool that much less. It is explained in the condition, it is
capped, it only ever takes from a pool, and it changes no answer that stands: nothing is restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import EventNote, Remember
from plimsoll.controller.objects.learned_map import (
    LEARNED_MAP,
    Case,
    Entry,
    Malformed,
    learned_map,
    manager_of,
    read_entry,
)
from plimsoll.controller.objects.names import SIZER
from plimsoll.controller.status import READY, TRUE, previous, timestamp
from plimsoll.controller.steps import capacity as capacities
from plimsoll.controller.steps import podstate, shrink
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.sizing import Sizing
    from plimsoll.controller.steps.survey import Survey

# The most that is taken from a pool unseen, in percent of the device's memory.
MOST_PERCENT: Final = 10
# Cases that a namespace remembers; the map stays small.
MOST_ENTRIES: Final = 64


def is_wanted(observed: Observed) -> bool:
    """Whether the map matters to this pass: as a result is read, and as a shrunk server serves."""
    server = observed.server
    if server is None or not server.spec.sizing.on_out_of_memory.shrink:
        return False
    return _is_answering(observed, server) or _is_news(observed)


def _is_answering(observed: Observed, server: InferenceServer) -> bool:
    if capacities.answer_in(server, observed.status) is not None:
        return False
    ends = (podstate.terminated(podstate.container(p, SIZER)) for p in observed.sizing_pods)
    return any(end.get("exitCode") == 0 for end in ends)


def _is_news(observed: Observed) -> bool:
    """Whether a shrunk server serves and its status does not say so yet."""
    ready = previous(observed.status, READY)
    said = (ready.get("status"), ready.get("observedGeneration")) == (TRUE, observed.generation)
    if said or not (observed.status.get("capacity") or {}).get("shrinkSteps"):
        return False
    return any(podstate.is_ready(pod) for pod in observed.server_pods)


def case_of(server: InferenceServer, capacity: Mapping[str, Any]) -> Case:
    """The case of a measured capacity."""
    gpu = capacity["gpu"]
    return Case(
        engine=server.spec.engine.type,
        version=server.spec.engine.version or server.spec.engine.image,
        model_digest=capacity["modelDigest"],
        product=gpu["product"],
        total_bytes=gpu["totalBytes"],
        mig=gpu.get("mig"),
        sharing=gpu.get("sharing"),
        count=gpu["count"],
    )


def applied(
    observed: Observed, server: InferenceServer, capacity: dict[str, Any]
) -> tuple[dict[str, Any], tuple[EventNote, ...]]:
    """A fresh result less what was learned of its case, and what is to be said of a broken entry.

    A pool that would fall below what the user asks for at least is left as it was measured: that
    the server cannot run so is for its engine to say.
    """
    case = case_of(server, capacity)
    text = (observed.learned or {}).get(case.key)
    if text is None or not server.spec.sizing.on_out_of_memory.shrink:
        return capacity, ()
    try:
        entry = read_entry(text, case)
    except Malformed as error:
        note = (
            f"Key {case.key} of ConfigMap {LEARNED_MAP} is no entry of Plimsoll: {error}. It is not "
            "used; delete the key."
        )
        return capacity, (EventNote("Warning", "LearnedReserveIgnored", note),)
    size = min(entry.extra_bytes, _most(server, capacity))
    smaller = shrink.reduced(server, capacity, size)
    if smaller is None:
        return capacity, ()
    learned = {"bytes": size, "from": entry.learned_from, "at": entry.at}
    return {**smaller, "learned": learned}, ()


def _most(server: InferenceServer, capacity: Mapping[str, Any]) -> int:
    """Bytes that may be taken unseen: a share of the device, and no more than all steps would."""
    terms = capacity["breakdown"]
    left = int(terms["kv"])
    for _ in range(server.spec.sizing.on_out_of_memory.max_steps):
        left -= shrink.step_bytes(server, left)
    return min(int(terms["deviceTotal"]) * MOST_PERCENT // 100, int(terms["kv"]) - max(left, 0))


def told(capacity: Mapping[str, Any]) -> str:
    """What the pool lacks because of what was learned, as the end of a sentence; else nothing."""
    learned = capacity.get("learned")
    if not learned:
        return ""
    return (
        f", less {learned['bytes'] / GIB:.2f} GiB that server {learned['from']} was found to need "
        f"on {learned['at'][:10]} (ConfigMap {LEARNED_MAP})"
    )


def lesson(observed: Observed, sizing: Sizing, pods: Survey, now: datetime) -> tuple[Remember, ...]:
    """What is to be remembered, once a server serves with a pool that was made smaller.

    Args:
        observed: the world; without ``learned`` nothing is written.
        sizing: the number; while it is not stamped, the pods carry another.
        pods: the server pods, by the template that carries it.
        now: the time, in UTC.
    """
    server, capacity = observed.server, sizing.capacity
    if observed.learned is None or server is None or capacity is None or sizing.stamp is None:
        return ()
    shrinks = server.spec.sizing.on_out_of_memory.shrink
    if not (capacity.get("shrinkSteps") and pods.ready_current and shrinks):
        return ()
    # Steps that a guard took for a stranger's memory are not among these bytes.
    extra = capacity["breakdown"]["reserve"].get("extra", 0) - server.spec.sizing.extra_reserve
    case = case_of(server, capacity)
    if extra <= _known(observed.learned, case) or _is_full(observed.learned, case):
        return ()
    why = (
        f"the engine ran out of device memory as it started and serves with {extra / GIB:.2f} GiB "
        "more left free"
    )
    entry = Entry(case, extra, server.name, timestamp(now), why)
    return (Remember(learned_map(server.namespace, entry), manager_of(entry), why),)


def _known(entries: Mapping[str, str], case: Case) -> int:
    """Bytes that are remembered of the case; 0 where nothing is, or nothing that can be read."""
    try:
        return read_entry(entries.get(case.key, ""), case).extra_bytes
    except Malformed:
        return 0


def _is_full(entries: Mapping[str, str], case: Case) -> bool:
    return case.key not in entries and len(entries) >= MOST_ENTRIES
