"""Completion: the words, and the scripts in their real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.cli.commands import COMMANDS
from plimsoll.cli.completion import FILES, NO_FILES, candidates
from tests.unit.cli.test_fit import ENVIRON

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.unit.cli.conftest import FakeKubectl

NAMES = "inferenceserver.plimsoll.dev/llama-8b\ninferenceserver.plimsoll.dev/llama-70b\n"


def names(words: Sequence[str]) -> list[str]:
    assert not {"llama-8b", "json"} & set(words)
    return ["llama-8b"]


def only_words(*typed: str) -> list[str]:
    return [word for word, _ in candidates(typed, names)[0]]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("",), [*COMMANDS]),
        (("ver",), ["verify", "version"]),
        (("explain", ""), ["llama-8b"]),
        (("explain", "-n", "team", "--context=x", ""), ["llama-8b"]),
        (("explain", "llama-8b", ""), []),
        (("explain", "-o", "json", "l"), ["llama-8b"]),
        (("explain", "-o", "j"), ["json"]),
        (("explain", "--out"), ["--output"]),
        (("status", "--on"), ["--once"]),
        (("status", "--once", "ll"), ["llama-8b"]),
        (("fit", "--engine-"), ["--engine-version", "--engine-arg"]),
        (("completion", "z"), ["zsh"]),
        (("help", "to"), ["top"]),
        (("nonsense", ""), []),
    ],
)
def test_words(typed: tuple[str, ...], expected: list[str]) -> None:
    assert only_words(*typed) == expected


def test_the_cluster_that_was_chosen_is_asked() -> None:
    asked: list[Sequence[str]] = []

    def ask(words: Sequence[str]) -> list[str]:
        asked.append(words)
        return []

    candidates(("top", "-n", "team", "--pods", "--context=prod", "-A", ""), ask)
    assert asked == [["-n", "team", "--context=prod"]]


@pytest.mark.parametrize(
    ("typed", "directive"),
    [
        (("fit", ""), FILES),
        (("render", "-f", ""), FILES),
        (("explain", ""), NO_FILES),
        (("explain", "--kubeconfig", ""), FILES),
    ],
)
def test_files_where_files_may_be(typed: tuple[str, ...], directive: int) -> None:
    assert candidates(typed, names)[1] == directive


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_every_command_is_offered(name: str, plimsoll: Any) -> None:
    offered = {word for word in only_words(name, "--") if word != "--help"}
    text = plimsoll("help", name).out if name != "fit" else ""
    assert all(flag in text for flag in offered) or name == "fit"
    assert "--help" in only_words(name, "--h")


def test_kubectl_gets_its_own_form(plimsoll: Any, kubectl: FakeKubectl) -> None:
    kubectl.answers("--output=name", out=NAMES)
    outcome = plimsoll("__complete", "explain", "llama-")
    assert outcome.out == "llama-8b\nllama-70b\n:4\n"
    assert plimsoll("__complete", "ver").out.splitlines()[0].startswith("verify\t")


def test_a_cluster_that_is_away_completes_nothing(plimsoll: Any, kubectl: FakeKubectl) -> None:
    kubectl.answers("get", err="Unable to connect to the server: x")
    outcome = plimsoll("__complete", "explain", "")
    assert (outcome.code, outcome.out, outcome.err) == (0, ":0\n", "")


@pytest.fixture
def path(tmp_path: Path, kubectl: FakeKubectl) -> dict[str, str]:
    """An environment with `plimsoll` as a program and a kubectl that knows two servers."""
    kubectl.answers("--output=name", out=NAMES)
    program = tmp_path / "bin" / "plimsoll"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m plimsoll.cli "$@"\n')
    program.chmod(0o755)
    return {**ENVIRON, "PATH": os.environ["PATH"]}


def bash(line: str, env: dict[str, str]) -> list[str]:
    """What bash offers at the end of the line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        "source <(plimsoll completion bash)\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        "complete -p plimsoll | grep -q -- '-F _plimsoll' || exit 9\n"
        '_plimsoll; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [word for word in done.stdout.splitlines() if word]


def test_bash_really(path: dict[str, str], tmp_path: Path) -> None:
    assert bash("plimsoll stat", path) == ["status"]
    assert bash("plimsoll ", path) == [*COMMANDS]
    assert bash("plimsoll explain ", path) == ["llama-8b", "llama-70b"]
    assert bash("plimsoll explain llama-8b --mod", path) == ["--model"]
    (tmp_path / "server.yaml").write_text("")
    assert bash(f"plimsoll render -f {tmp_path}/serv", path) == [f"{tmp_path}/server.yaml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(shell: str, path: dict[str, str], plimsoll: Any) -> None:
    """Syntax, by the shell itself where there is one; that it asks the program, in any case."""
    script = plimsoll("completion", shell).out
    assert "__complete" in script
    assert "kubectl-plimsoll" in script
    program = shutil.which(shell)
    if program is not None:
        done = subprocess.run(
            [program, "-n"], input=script, env=path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_other_shells_are_refused(plimsoll: Any) -> None:
    outcome = plimsoll("completion", "tcsh")
    assert outcome.code == 2
    assert "bash" in outcome.err
