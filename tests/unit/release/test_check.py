"""Steps: all run, each with its time and what to do; the parts that need no image."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cluster_kit.errors import KitError
from tests.release import check
from tests.release.check import (
    STEPS,
    Context,
    Outcome,
    Step,
    definition,
    program,
    run_steps,
    small_enough,
)

ROOT = Path(__file__).resolve().parents[3]
CONTEXT = Context(final=False, checkov=Path("checkov"))


def step(name: str, *problems: str, notes: tuple[str, ...] = ()) -> Step:
    return Step(name, f"mend {name}", lambda _: Outcome(list(problems), list(notes)))


def test_all_steps_run_and_the_failed_ones_say_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [step("one", "it is bad"), step("two", notes=("seen",)), step("three")]
    assert run_steps(steps, CONTEXT) == 1
    assert re.sub(r"\d\.\d s", "T", capsys.readouterr().out).splitlines() == [
        "FAIL  one             T",
        "      it is bad",
        "   -> mend one",
        "ok    two             T",
        "      seen",
        "ok    three           T",
        "release-check: 3 steps in 0 s, failed: one",
    ]


def test_nothing_bad_is_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_steps([step("one")], CONTEXT) == 0
    assert capsys.readouterr().out.endswith("1 steps in 0 s, all passed\n")


@pytest.mark.parametrize("error", [KitError("no git"), FileNotFoundError("no git")])
def test_a_step_that_breaks_fails_and_the_next_runs(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(_: Context) -> Outcome:
        raise error

    assert run_steps([Step("one", "mend", breaks), step("two")], CONTEXT) == 1
    out = capsys.readouterr().out
    assert "      no git\n" in out
    assert "ok    two" in out


def test_a_programs_last_words_are_the_problem_and_progress_is_left_out() -> None:
    failing = program(sys.executable, "-c", "print(*range(99), sep='\\n'); exit(3)")
    assert failing.problems[0] == "69"
    assert failing.problems[-1].endswith("exit 3")
    fine = program(sys.executable, "-c", "print('[  0.1 s] step\\nresult')")
    assert fine == Outcome([], ["result"])


@pytest.mark.parametrize(("own", "fits"), [(50_000_000, True), (50_000_001, False)])
def test_an_image_has_a_size_limit(own: int, *, fits: bool) -> None:
    row: dict[str, str | int] = {"image": "x/sizer:1", "bytes": 120_000_000, "ownBytes": own}
    outcome = small_enough("sizer", row)
    assert (outcome.problems == []) is fits
    assert "120.0 MB, 50.0 MB above its base" in (outcome.problems + outcome.notes)[0]


def test_the_definition_is_found_among_the_manifests() -> None:
    text = (ROOT / check.DEFINITION).read_text()
    assert definition(text)["metadata"]["name"] == "inferenceservers.plimsoll.dev"
    with pytest.raises(KitError, match="0 CustomResourceDefinitions"):
        definition("kind: Pod\n---\n")


@pytest.mark.parametrize(
    ("accepted", "problems", "notes"),
    [
        ({}, ["v1.a: the field is gone"], ["compared with v0.1.0"]),
        (
            {"v1.a: the field is gone": "nobody had it"},
            [],
            ["compared with v0.1.0", "accepted: v1.a: the field is gone (nobody had it)"],
        ),
    ],
)
def test_a_break_of_the_definition_fails_unless_it_was_decided(
    accepted: dict[str, str], problems: list[str], notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*_: object) -> list[str]:
        return ["v1.a: the field is gone"]

    def git(*words: str) -> str:
        return "v0.1.0" if words[0] == "describe" else (ROOT / check.DEFINITION).read_text()

    monkeypatch.setattr(check, "findings", found)
    monkeypatch.setattr(check, "git", git)
    monkeypatch.setattr(check, "ACCEPTED", accepted)
    assert check.compatible(CONTEXT) == Outcome(problems, notes)


def test_without_a_tag_the_first_chart_is_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*_: str) -> str:
        raise KitError("no names found")

    monkeypatch.setattr(check, "git", git)
    monkeypatch.setattr(check, "first_commit", lambda _: "f" * 40)
    assert check.base_reference() == "f" * 40


def test_only_files_that_making_them_again_changes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    (tmp_path / "dirty").write_text("before and after")

    def git(*_: str) -> str:
        return "dirty\ngone" + ("\nnew" if made else "")

    def make(*words: str) -> Outcome:
        made.append(words[-1])
        (tmp_path / "new").write_text(words[-1])
        return Outcome([])

    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "git", git)
    monkeypatch.setattr(check, "program", make)
    assert check.generated(CONTEXT).problems == ["written anew: new"]
    assert made == list(check.GENERATORS)
    assert check.generated(CONTEXT).problems == []


def test_targets_that_write_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in check.GENERATORS:
        assert re.search(rf"(?m)^{target}:", makefile)


def test_every_step_is_named_once_and_documented() -> None:
    names = [one.name for one in STEPS]
    assert len(names) == len(set(names))
    page = (ROOT / "docs" / "versioning.md").read_text()
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("final", [False, True])
def test_the_final_flag_reaches_the_changelog(
    monkeypatch: pytest.MonkeyPatch, *, final: bool
) -> None:
    seen: list[dict[str, bool]] = []

    def ask(*_: object, **given: bool) -> list[str]:
        seen.append(given)
        return []

    monkeypatch.setattr(check, "changelog_problems", ask)
    check.changelog(Context(final=final, checkov=Path()))
    assert json.dumps(seen) == json.dumps([{"final": final}])
