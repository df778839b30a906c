"""The step "accepted": may this resource be served at all?

Each check is one small function: what it is about is its name, what is wrong is what it returns.
CRD schema and CEL rules have refused most mistakes at admission; what is left cannot be told there,
such as an abbreviated flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from plimsoll.controller.crd import ENGINE, sizing_request
from plimsoll.controller.status import ACCEPTED, FALSE, TRUE, Condition, sentence
from plimsoll.core.engines import lookup
from plimsoll.core.errors import BadArgument, PlimsollError

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed

Check = Callable[["Observed"], Condition | None]


def spec_can_be_read(observed: Observed) -> Condition | None:
    """The spec has a form that this operator knows."""
    return None if observed.invalid is None else _refused(observed.invalid)


def no_foreign_object_has_our_names(observed: Observed) -> Condition | None:
    """Nothing that is not ours sits under a child's name; it would never be touched."""
    if not observed.conflicts:
        return None
    return Condition(ACCEPTED, FALSE, "Conflict", observed.conflicts[0])


def engine_is_known(observed: Observed) -> Condition | None:
    """There is arithmetic for this engine."""
    return _engine_error(observed, lambda server: lookup(server.spec.engine.type))


def arguments_are_allowed(observed: Observed) -> Condition | None:
    """No argument or environment name is one that Plimsoll itself must set.

    In mode Engine it sets none of them.
    """
    if observed.server is not None and observed.server.spec.sizing.mode == ENGINE:
        return None
    return _engine_error(
        observed,
        lambda server: lookup(server.spec.engine.type).check_args(
            server.spec.engine.args, [str(entry["name"]) for entry in server.spec.engine.env]
        ),
    )


def arguments_make_sense(observed: Observed) -> Condition | None:
    """Sizing flags agree with the spec, and the engine's version is one that we can pin."""
    return _engine_error(
        observed, lambda server: lookup(server.spec.engine.type).adopt(sizing_request(server))
    )


CHECKS: Final[tuple[Check, ...]] = (
    spec_can_be_read,
    no_foreign_object_has_our_names,
    engine_is_known,
    arguments_are_allowed,
    arguments_make_sense,
)


def accept(observed: Observed) -> Condition:
    """The first objection, or acceptance."""
    for check in CHECKS:
        objection = check(observed)
        if objection is not None:
            return objection
    assert observed.server is not None
    return Condition(
        ACCEPTED, TRUE, "Valid", f"The resource is valid. {_security(observed.server)}"
    )


def _security(server: InferenceServer) -> str:
    """Which Pod Security level the server pods pass; the namespace must allow it."""
    if "runAsUser" in server.spec.template.security_context:
        return "Server pods pass Pod Security restricted."
    return (
        "Server pods pass Pod Security baseline; set spec.template.securityContext.runAsUser for "
        "restricted."
    )


def _engine_error(observed: Observed, ask: Callable[[InferenceServer], object]) -> Condition | None:
    assert observed.server is not None  # spec_can_be_read comes first
    try:
        ask(observed.server)
    except PlimsollError as error:
        return _refused(error)
    return None


def _refused(error: PlimsollError) -> Condition:
    reason = "InvalidSpec" if isinstance(error, BadArgument) else error.reason
    return Condition(ACCEPTED, FALSE, reason, sentence(error.message))
