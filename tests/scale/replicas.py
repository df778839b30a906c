"""How many servers there are by every object's word, and who wrote those numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster.world import wait
from tests.scale.writes import HPA, KEDA, OPERATOR, Write, replicas_owners, writes

if TYPE_CHECKING:
    from tests.scale.world import Space

SCALE = "inferenceservers/scale"
# What an operator has to do for a server; nothing else may be written in its name.
_OPERATORS = frozenset({"deployments", "inferenceservers/status", "pods", "services"})


def numbers(space: Space) -> tuple[int, int, int, int]:
    """Replicas: of the resource's spec, of its Deployment's, there, ready."""
    server, child = space.server(), space.deployment()
    status = server.get("status", {})
    return (
        server["spec"]["replicas"],
        child["spec"]["replicas"] if child else -1,
        status.get("replicas", -1),
        status.get("readyReplicas", -1),
    )


def await_replicas(space: Space, count: int, seconds: float = 30) -> None:
    """Until so many are wanted, there and ready, by every object's word."""
    wait(
        lambda: numbers(space) == (count,) * 4,
        seconds,
        f"{count} replicas",
        lambda: (numbers(space), space.explain(), told(space)),
    )


def template(space: Space) -> Any:
    """The Deployment's pod template, for comparisons."""
    child = space.deployment()
    assert child is not None
    return child["spec"]["template"]


def told(space: Space) -> list[str]:
    """Every write, for whoever reads a failure."""
    return [str(write) for write in writes(space.scale.cluster, space.namespace)]


def of(found: list[Write], who: str, what: str, *verbs: str) -> list[Write]:
    """The writes of one client to one kind."""
    return [w for w in found if (w.who, w.what) == (who, what) and (not verbs or w.verb in verbs)]


def check_no_fight(space: Space) -> list[Write]:
    """Only the operator writes the Deployment; of the server, autoscalers write the scale; returns all writes."""
    found = writes(space.scale.cluster, space.namespace)
    assert {w.who for w in found if w.what == "deployments"} == {OPERATOR}, told(space)
    assert {w.what for w in found if w.who == OPERATOR} <= _OPERATORS, told(space)
    own = {w.what for w in found if w.who in {HPA, KEDA}}
    others = {what for what in own if what.partition("/")[0] not in _AUTOSCALERS}
    assert others <= {SCALE}, told(space)
    child = space.deployment()
    assert child is not None
    assert replicas_owners(child) == {"plimsoll"}
    return found


# Kinds that autoscalers keep about themselves.
_AUTOSCALERS = frozenset({"horizontalpodautoscalers", "scaledobjects"})
