"""Rules of the repository that no linter knows."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = sorted((ROOT / "operator" / "plimsoll").rglob("*.py"))
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 55  # "about 50", docstring included


def test_source_root_is_no_package() -> None:
    """operator/__init__.py would shadow the standard library's operator for every program started here."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(ROOT) not in found


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    if "; do not edit." not in text[:400]:  # written by a tool
        assert len(text.splitlines()) <= MAX_MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_base_installation_needs_nothing() -> None:
    """`plimsoll fit` must run wherever there is a Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []


def test_fit_runs_without_site_packages() -> None:
    """-S hides every installed package: an import of one would fail here."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "plimsoll.cli", "fit", "-", "-o", "json"],
        input='{"model_type": "perceptron9000"}',
        env={"PYTHONPATH": str(ROOT / "operator")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["error"]["reason"] == "UnsupportedArchitecture"


def test_the_lock_has_hashes_and_no_registry() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text, lock
        assert "://" not in text, lock
        assert "--index-url" not in text, lock


def test_product_never_names_torch_at_module_level() -> None:
    for path in PRODUCT:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
                assert not [n for n in names if n.split(".")[0] == "torch"], path
