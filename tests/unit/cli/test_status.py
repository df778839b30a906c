"""How far a rollout is, on screens that the local cluster's objects give."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.cli import status
from plimsoll.cli.status import Clock, exit_code, follow
from plimsoll.cli.status_view import changes, document, overview, text
from plimsoll.cli.style import Style
from tests.unit.cli.conftest import CLUSTER, DATA, golden, pods, server

if TYPE_CHECKING:
    from tests.unit.cli.conftest import FakeKubectl

#: One server in the middle of a rollout, and the same after its model was gone.
ROLLOUT: dict[str, Any] = json.loads((DATA / "rollout.json").read_text())


def middle() -> dict[str, Any]:
    return document(ROLLOUT["server"], ROLLOUT["pods"], ROLLOUT["deployment"])


def with_condition(kind: str, value: str, reason: str, message: str = "m") -> dict[str, Any]:
    raw = server()
    conditions = raw["status"]["conditions"]
    conditions[:] = [c for c in conditions if c["type"] not in {kind, "Ready"}]
    conditions.append({"type": kind, "status": value, "reason": reason, "message": message})
    return raw


def test_the_screen_of_a_rollout() -> None:
    golden("status-rollout.txt", "\n".join(text(middle(), Style())) + "\n")


def test_the_screen_of_a_failure() -> None:
    answer = document(ROLLOUT["failed"], (), None)
    assert answer["state"] == "Failed"
    lines = list(text(answer, Style()))
    golden("status-failed.txt", "\n".join(lines) + "\n")
    assert sum("it does not exist" in line for line in lines) == 1  # said once, not three times


def test_old_and_new_pods_are_told_by_their_template() -> None:
    rows = {pod["template"]: pod for pod in middle()["pods"]}
    assert rows["new"]["state"] == "Loading"
    assert (rows["old"]["state"], rows["old"]["engineTokens"]) == ("Ready", 24576)


def test_several_kinds_of_gpu_have_a_line_each() -> None:
    kinds = [
        {"product": "L40S", "maxTotalTokenNum": 100_000, "kvCacheBytes": 1 << 30, "pods": 2, "ready": 1},
        {"product": "A100", "mig": "1g.10gb", "maxTotalTokenNum": 9, "pods": 0, "ready": 0},
    ]  # fmt: skip
    raw = server()
    raw["status"]["classes"] = kinds
    answer = document(raw, (), None)
    assert answer["classes"] == kinds
    lines = list(text(answer, Style()))
    at = next(number for number, line in enumerate(lines) if line.startswith("GPU "))
    assert [line.split() for line in lines[at : at + 3]] == [
        ["GPU", "TOKENS", "POOL", "PODS", "READY"],
        ["L40S", "100,000", "1.00", "GiB", "2", "1"],
        ["A100", "1g.10gb", "9", "-", "0", "0"],
    ]
    raw["status"]["classes"] = kinds[:1]
    assert not any(line.startswith("GPU ") for line in text(document(raw, (), None), Style()))


@pytest.mark.parametrize(
    ("raw", "state", "code"),
    [
        (server(), "Ready", 0),
        (with_condition("Stalled", "True", "ModelNotFound"), "Failed", 1),
        (with_condition("RolledOut", "False", "Paused"), "WaitsForYou", 4),
        (with_condition("RolledOut", "False", "Progressing"), "Progressing", 4),
        (server() | {"status": {}}, "Progressing", 4),
    ],
)
def test_states_and_exit_codes(raw: dict[str, Any], state: str, code: int) -> None:
    answer = document(raw, (), None)
    assert (answer["state"], exit_code([answer])) == (state, code)


def test_a_spec_that_was_not_looked_at_is_not_ready() -> None:
    raw = server()
    raw["metadata"]["generation"] += 1
    answer = document(raw, (), None)
    assert (answer["state"], answer["observed"]) == ("Progressing", False)
    assert "The newest spec was not looked at yet." in list(text(answer, Style()))


def test_one_that_failed_is_told_before_one_that_waits() -> None:
    failed = document(ROLLOUT["failed"], (), None)
    assert exit_code([middle(), failed, document(server(), (), None)]) == 1


def test_changes_are_lines_and_nothing_is_repeated() -> None:
    before, now = middle(), middle()
    assert list(changes(before, now)) == []
    now["pods"][0]["state"] = "Ready"
    gone = now["pods"].pop()
    now["steps"][4] |= {"status": "True", "reason": "Complete", "message": "all\nof them"}
    assert list(changes(before, now)) == [
        "RolledOut=True Complete: all?of them",
        f"pod {now['pods'][0]['name']} (new) on node-a: Ready",
        f"pod {gone['name']}: gone",
    ]
    first = list(changes(None, before))
    assert len(first) == len(before["steps"]) + len(before["beside"]) + len(before["pods"])


def test_it_is_followed_until_it_is_settled() -> None:
    looks = iter([[middle()], [middle()], [document(server(), (), None)]])
    shown: list[Any] = []
    slept: list[float] = []
    clock = Clock(lambda: float(len(slept)), slept.append)
    assert follow(lambda: next(looks), shown.append, clock, None) == 0
    assert (len(shown), len(slept)) == (3, 2)


def test_a_timeout_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []
    clock = Clock(lambda: float(len(slept)), slept.append)
    assert follow(lambda: [middle()], lambda _: None, clock, 3.0) == 4
    assert len(slept) == 3
    assert "not Ready after 3 s" in capsys.readouterr().err


def test_a_pipe_gets_lines(kubectl: FakeKubectl, plimsoll: Any) -> None:
    kubectl.answers("deployments.apps", out={"items": []})
    kubectl.answers("pods", out={"items": pods("smollm2")})
    kubectl.answers("get", out=server())
    outcome = plimsoll("status", "smollm2", "-n", "demo")
    assert outcome.code == 0
    assert "Ready=True Ready: Serving with 24576 tokens" in outcome.out
    assert "\x1b" not in outcome.out
    document = plimsoll("status", "smollm2", "-o", "json").json()
    assert (document["schema"], document["done"]) == ("plimsoll.dev/status.v1", 8)


def test_a_terminal_is_drawn_over(
    kubectl: FakeKubectl, plimsoll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [document(server(), (), None), middle()]
    monkeypatch.setattr(status, "_look", lambda *_: iter([looks.pop()]))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("time.sleep", lambda _: None)
    outcome = plimsoll("status", "smollm2")
    assert outcome.code == 0
    rows = len(list(text(middle(), Style())))
    assert f"\x1b[{rows}A\x1b[J" in outcome.out
    assert kubectl.calls() == []


def test_all_servers_one_a_line(kubectl: FakeKubectl, plimsoll: Any) -> None:
    items = [*deepcopy(CLUSTER["servers"]).values(), ROLLOUT["failed"]]
    kubectl.answers("--all-namespaces", out={"items": items})
    outcome = plimsoll("status", "-A", "--once")
    assert outcome.code == 1
    assert "ModelReady: ModelNotFound" in outcome.out
    assert len(outcome.out.splitlines()) == 4
    narrow = list(overview([middle()], Style(width=40)))
    assert all(len(line) < 40 for line in narrow)
    kubectl.answers("get", out={"items": []})
    assert "-A looks in all namespaces" in plimsoll("status").out


@pytest.mark.parametrize("words", [("smollm2", "-A"), ("--timeout", "soon"), ("--timeout", "0s")])
def test_bad_words(words: tuple[str, ...], plimsoll: Any, kubectl: FakeKubectl) -> None:
    assert plimsoll("status", *words).code == 2
    assert kubectl.calls() == []
