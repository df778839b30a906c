"""``status.classes``: a number for each kind of GPU, where each server measures its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.survey import guard_outcome, survey
from plimsoll.core.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed

# The schema admits no more kinds.
MOST_CLASSES: Final = 16

# While these of ``status.capacity`` are what they were, a number of a kind that no server runs on
# at present is still its number.
_QUESTION: Final = ("source", "sizingKey", "modelDigest", "shrinkSteps")


def classes(
    observed: Observed,
    server: InferenceServer,
    fingerprint: str | None,
    capacity: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """One entry for each kind that servers of this template measured, in the order of preference.

    A kind that no server runs on any more keeps its number, with no pods, until the question
    changes: it is what the next server on it will find.

    Args:
        observed: pods with their reports, what nodes are known, and the status as it stands.
        server: its products are in the order of preference.
        fingerprint: the inputs hash of the template.
        capacity: what ``status.capacity`` is to hold.
    """
    before = {_key(entry): entry for entry in observed.status.get("classes") or ()}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for pod, report in reports(survey(observed, fingerprint).current):
        fresh = _entry(observed, server, pod, report)
        known = found.get(_key(fresh))
        entry = fresh if known is None or _tokens(fresh) < _tokens(known) else known
        label = fresh.get("label") or (known or before.get(_key(fresh)) or {}).get("label")
        counts = {key: (known or {}).get(key, 0) + fresh[key] for key in ("pods", "ready")}
        found[_key(fresh)] = {**entry, **({"label": label} if label else {}), **counts}
    if _same_question(observed.status.get("capacity") or {}, capacity or {}):
        gone = {key: {**entry, "pods": 0, "ready": 0} for key, entry in before.items()}
        found = {**gone, **found}
    # What is used is listed, whatever is forgotten; then the order is that of the products.
    used = sorted(found.values(), key=lambda entry: (not entry["pods"], _place(server, entry)))
    return sorted(used[:MOST_CLASSES], key=lambda entry: _place(server, entry))


def kinds(observed: Observed) -> frozenset[str]:
    """The kinds of GPU, by name, that servers of this resource run on, as far as it is known."""
    told = observed.status.get("classes") or ()
    used = (kind_name(entry) for entry in told if entry.get("pods") != 0)
    met = (_named(report) for _, report in reports(observed.server_pods))
    return frozenset({*used, *met})


def kind_name(entry: Mapping[str, Any]) -> str:
    """What an entry is called: the product, and the profile of a slice."""
    mig = entry.get("mig")
    return f"{entry.get('product')} {mig}" if mig else str(entry.get("product"))


def spoken(entries: Iterable[Mapping[str, Any]]) -> str:
    """The kinds that are in use, in words: empty where there are not several."""
    used = [entry for entry in entries if entry["pods"]]
    return ", ".join(
        f"{entry['maxTotalTokenNum']} tokens on {kind_name(entry)} "
        f"({entry['pods']} server{'s' if entry['pods'] > 1 else ''})"
        for entry in used
        if len(used) > 1
    )


def reports(pods: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], Report]]:
    """The pods whose sizers have an answer, with it."""
    pairs = ((pod, guard_outcome(pod)) for pod in pods)
    return [(pod, outcome) for pod, outcome in pairs if isinstance(outcome, Report)]


def node_of(observed: Observed, pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod's node with its labels, as far as anybody has read them."""
    name = podstate.node_name(pod)
    if observed.node is not None and observed.node["metadata"]["name"] == name:
        return observed.node
    views = observed.landscape.nodes if observed.landscape is not None else ()
    labels = next((dict(view.labels) for view in views if view.name == name), {})
    return {"metadata": {"name": name or "", "labels": labels}}


def _entry(
    observed: Observed, server: InferenceServer, pod: dict[str, Any], report: Report
) -> dict[str, Any]:
    labels = node_of(observed, pod)["metadata"].get("labels") or {}
    keys = server.spec.accelerator.class_label_keys
    label = next(({"key": key, "value": labels[key]} for key in keys if labels.get(key)), None)
    values = {
        "product": report.device_class.product,
        "mig": report.device_class.mig,
        "label": label,
        "totalBytes": report.device_class.total_bytes,
        "driver": report.driver,
        "maxTotalTokenNum": report.max_total_token_num,
        "kvCacheBytes": report.budget.kv,
        "pods": 1,
        "ready": int(podstate.is_ready(pod)),
    }
    return {key: value for key, value in values.items() if value is not None}


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry.get("product")), str(entry.get("mig") or "")


def _named(report: Report) -> str:
    return kind_name({"product": report.device_class.product, "mig": report.device_class.mig})


def _tokens(entry: Mapping[str, Any]) -> int:
    return int(entry["maxTotalTokenNum"])


def _place(server: InferenceServer, entry: Mapping[str, Any]) -> tuple[int, tuple[str, str]]:
    """Where a kind stands among the products: by its label, else by its name as a label has it."""
    products = server.spec.accelerator.products
    label = (entry.get("label") or {}).get("value")
    names = (label, str(entry.get("product")).replace(" ", "-"))
    place = next((products.index(name) for name in names if name in products), len(products))
    return place, _key(entry)


def _same_question(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return bool(after) and all(before.get(key) == after.get(key) for key in _QUESTION)
