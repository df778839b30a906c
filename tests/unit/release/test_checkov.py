"""Waivers have reasons and uses, and a failed check without one fails."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.cluster_kit.errors import KitError
from tests.release.checkov import CONFIG, Failed, Result, judge, parse, read_waivers, summary

FAILED = Failed("CKV_K8S_43", "Image should use digest", "a.yaml", "Deployment.x")


def report(kind: str, *failed: dict[str, str], errors: int = 0) -> dict[str, Any]:
    return {
        "check_type": kind,
        "results": {"failed_checks": list(failed), "parsing_errors": ["/bad.yaml"] * errors},
        "summary": {"passed": 3, "parsing_errors": errors},
    }


def test_reports_of_every_framework_are_read() -> None:
    item = {
        "check_id": FAILED.check,
        "check_name": FAILED.name,
        "file_path": "/a.yaml",
        "resource": FAILED.resource,
    }
    both = [report("kubernetes", item), report("dockerfile")]
    assert parse(both) == Result(Counter(kubernetes=3, dockerfile=3), (FAILED,))
    assert parse(report("kubernetes", item)).failed == (FAILED,)


def test_a_file_that_cannot_be_read_is_no_pass() -> None:
    with pytest.raises(KitError, match=r"could not read \['/bad\.yaml'\]"):
        parse(report("kubernetes", errors=1))


@pytest.mark.parametrize(
    ("failed", "waivers", "words"),
    [
        ((), (), None),
        ((FAILED,), ("CKV_K8S_43",), None),
        ((FAILED,), (), "FAILED CKV_K8S_43 Image should use digest: Deployment.x in a.yaml"),
        ((), ("CKV_K8S_1",), "CKV_K8S_1: nothing fails it now; take it out of .checkov.yaml"),
    ],
)
def test_failures_need_waivers_and_waivers_failures(
    failed: tuple[Failed, ...], waivers: tuple[str, ...], words: str | None
) -> None:
    found = judge(Result(Counter(kubernetes=1), failed), waivers)
    assert found == ([words] if words else [])


def test_nothing_scanned_is_no_pass() -> None:
    assert judge(Result(Counter(), ()), ()) == ["no check passed: nothing was scanned"]


def test_the_summary_counts_and_gives_the_reasons() -> None:
    other = Failed("CKV_K8S_1", "x", "a", "b")
    result = Result(Counter(kubernetes=5, dockerfile=2), (FAILED, FAILED, other))
    assert summary(result, {"CKV_K8S_43": "why"}) == [
        "passed 7 (2 dockerfile, 5 kubernetes), failed 1, waived 2",
        "  CKV_K8S_43 x2: why",
    ]


def test_a_waiver_without_a_reason_is_refused() -> None:
    with pytest.raises(KitError, match="no reason for CKV_K8S_2; write it behind a #"):
        read_waivers("skip-check:\n  - CKV_K8S_1  # since\n  - CKV_K8S_2\n")


def test_the_projects_own_waivers_are_few_and_have_reasons() -> None:
    waivers = read_waivers(CONFIG.read_text())
    assert 0 < len(waivers) <= 6
    assert len(waivers) == CONFIG.read_text().count("- CKV")
    assert all(len(reason) > 30 for reason in waivers.values())
