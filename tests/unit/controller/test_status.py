"""Conditions: one of each type, since when, and the one sentence that sums them up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from plimsoll.controller.observed import observe_from
from plimsoll.controller.status import (
    LADDER,
    Condition,
    merged,
    one_sentence,
    pressing,
    same_status,
    sentence,
    summary,
    timestamp,
    with_foreign_conditions,
    written,
)
from tests.unit.controller.builders import NOW, body

OK = dict.fromkeys(LADDER, ("True", "Fine"))

SUMMARIES: list[tuple[str, dict[str, tuple[str, str]], str]] = [
    ("all true", {}, "True Ready"),
    ("a cause", {"Sized": ("False", "WeightsDoNotFit")}, "False WeightsDoNotFit"),
    (
        "the first of two causes",
        {"CapacityAvailable": ("False", "Unschedulable"), "Sized": ("False", "NVMLUnavailable")},
        "False Unschedulable",
    ),
    (
        "a crash says more than that the rollout is not done",
        {"RolledOut": ("False", "Progressing"), "Available": ("False", "CrashLoop")},
        "False CrashLoop",
    ),
    (
        "a rollout that is not done says more than that nothing is ready",
        {"RolledOut": ("False", "Progressing"), "Available": ("False", "NoReadyReplicas")},
        "False Progressing",
    ),
    (
        "while it is measured, that is how far we are",
        {
            "ModelReady": ("Unknown", "Checking"),
            "Sized": ("Unknown", "SizingRunning"),
            "RolledOut": ("False", "WaitingForSizing"),
        },
        "Unknown SizingRunning",
    ),
    (
        "a cause goes before everything unknown",
        {"Accepted": ("Unknown", "Asked"), "ModelReady": ("False", "VolumePending")},
        "False VolumePending",
    ),
]


@pytest.mark.parametrize(
    ("found", "wanted"), [row[1:] for row in SUMMARIES], ids=[row[0] for row in SUMMARIES]
)
def test_summary(found: dict[str, tuple[str, str]], wanted: str) -> None:
    ladder = [Condition(kind, *pair, f"About {kind}.") for kind, pair in (OK | found).items()]
    ready = summary(ladder, "Send requests.")
    assert f"{ready.status} {ready.reason}" == wanted
    assert ready.message.startswith("About" if found else "Send")


def test_a_later_word_replaces_an_earlier_one_and_the_order_is_for_reading() -> None:
    found = merged(
        [
            Condition("Sized", "Unknown", "A", "a"),
            Condition("Accepted", "True", "B", "b"),
            Condition("Sized", "False", "C", "c"),
        ]
    )
    assert [(c.type, c.reason) for c in found] == [("Accepted", "B"), ("Sized", "C")]


def test_since_when() -> None:
    """The time of the transition survives another reason, not another status."""
    first = observe_from(body())
    conditions = written(first, [Condition("Sized", "False", "A", "a.")], NOW)
    second = observe_from(body(generation=2, status={"conditions": conditions}))
    later = NOW + timedelta(hours=1)
    (same,) = written(second, [Condition("Sized", "False", "B", "b.")], later)
    assert same == {
        "type": "Sized",
        "status": "False",
        "reason": "B",
        "message": "b.",
        "observedGeneration": 2,
        "lastTransitionTime": timestamp(NOW),
    }
    (other,) = written(second, [Condition("Sized", "True", "B", "b.")], later)
    assert other["lastTransitionTime"] == "2026-12-01T13:00:00Z"


def test_messages_are_one_line_of_bounded_length() -> None:
    (made,) = written(
        observe_from(body()), [Condition("Sized", "False", "A", "x\n  y" * 1000)], NOW
    )
    assert made["message"].startswith("x yx y")
    assert len(made["message"]) == 1024
    assert made["message"].endswith(".")


def test_sentence() -> None:
    assert sentence("two\n lines..") == "Two lines."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the weights lack layer 0", "The weights lack layer 0."),
        ("spec.engine.port must be given", "Field spec.engine.port must be given."),
        ("--x=1 is odd", "Argument --x=1 is odd."),
        ("config.json is no JSON", "File config.json is no JSON."),
        ("/models/x does not exist", "Path /models/x does not exist."),
        ("cuMemAlloc failed", "Cause: cuMemAlloc failed."),
        ("NVML says no", "NVML says no."),
        ("140.00 GiB are too much", "Cause: 140.00 GiB are too much."),
        ('pods "x" is forbidden', 'Pods "x" is forbidden.'),
    ],
)
def test_a_first_sentence_begins_with_a_capital_letter_and_changes_no_name(
    text: str, wanted: str
) -> None:
    assert sentence(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("It broke. Mend it; Plimsoll waits.", "It broke; mend it; Plimsoll waits."),
        ("No node. GPU is short. Plimsoll waits.", "No node; GPU is short; Plimsoll waits."),
        ("2 Insufficient nvidia.com/gpu. preemption: 0/2.", "2 Insufficient nvidia.com/gpu; preemption: 0/2."),
    ],
)  # fmt: skip
def test_one_sentence(text: str, wanted: str) -> None:
    assert one_sentence(text) == wanted


def test_statuses_are_the_same_in_any_order_and_beside_the_conditions_of_others() -> None:
    ready, sized = ({"type": kind, "status": "True"} for kind in ("Ready", "Sized"))
    foreign = {"type": "Audited", "status": "True"}
    pods = [{"name": "a"}, {"name": "b"}]
    ours = {"ready": "1/1", "conditions": [sized, ready], "pods": pods}
    live = {"ready": "1/1", "conditions": [foreign, ready, sized], "pods": pods[::-1]}
    assert same_status(ours, live)
    assert not same_status(ours, {**live, "conditions": [ready]})
    assert not same_status(ours, {**live, "replicas": 7})
    assert not same_status(ours, {**live, "pods": [{"name": "a"}, {"name": "b", "node": "n"}]})
    stale = {"type": "Reconciling", "status": "True"}
    assert not same_status(ours, {**live, "conditions": [ready, sized, stale]})
    assert with_foreign_conditions(ours, live)["conditions"] == [sized, ready, foreign]


def told(reason: str, status: str = "False", **more: object) -> dict[str, object]:
    condition = {"type": "RolledOut", "status": status, "reason": reason, "message": "So."}
    return {"ready": "0/1", "conditions": [condition], **more}


@pytest.mark.parametrize(
    ("name", "after", "is_pressing"),
    [
        ("the same", told("Progressing"), False),
        ("counts", told("Progressing", ready="1/2", replicas=2, pods=[{"name": "p"}]), False),
        ("another not-yet", told("WaitingForTermination"), False),
        ("the pod that answers", told("Progressing", sizing={"podUID": "u"}), False),
        ("a cause", told("ReplicaCreateFailed"), True),
        ("a turn", told("Complete", "True"), True),
        ("a number", told("Progressing", capacity={"maxTotalTokenNum": 1}), True),
        ("an answer to another spec", told("Progressing", observedGeneration=2), True),
        ("a failed try", told("Progressing", sizing={"attempts": 1}), True),
        ("a condition that is gone", {"ready": "0/1", "conditions": []}, True),
    ],
)
def test_what_cannot_wait(name: str, after: dict[str, object], *, is_pressing: bool) -> None:
    assert pressing(told("Progressing"), after) is is_pressing, name
    assert pressing({}, told("Progressing"))  # the first word


@pytest.mark.parametrize(
    ("kind", "before", "is_pressing"),
    [
        ("CapacityAvailable", "Unknown", False),
        ("ModelReady", "Unknown", False),
        ("CapacityAvailable", "False", True),  # a GPU was found at last
        ("Available", "False", False),
        ("CapacityVerified", "False", False),
        ("Sized", "Unknown", True),
    ],
)
def test_a_step_on_the_way_can_wait(kind: str, before: str, *, is_pressing: bool) -> None:
    def said(status: str) -> dict[str, object]:
        condition = {"type": kind, "status": status, "reason": status, "message": "So."}
        return {"conditions": [condition]}

    assert pressing(said(before), said("True")) is is_pressing


def test_what_the_engine_says_can_wait_where_it_is_as_it_should_be() -> None:
    def said(status: str, tokens: int) -> dict[str, object]:
        verified = {
            "type": "CapacityVerified",
            "status": status,
            "reason": status,
            "message": "So.",
        }
        return {
            "capacity": {"maxTotalTokenNum": 9, "engineReportedTokens": tokens},
            "conditions": [verified],
        }

    nothing = {"capacity": {"maxTotalTokenNum": 9}, "conditions": []}
    assert not pressing(nothing, said("True", 9))
    assert pressing(nothing, said("False", 5))
    assert pressing(said("True", 9), said("False", 5))
