"""Servers that measure in their own pod: what the engine is started with, by each transport.

The env file is written by the sizer's own writer. What a kubelet does with it is done here as the
kubelet does it; what the shell does with it is done by the machine's /bin/sh.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.objects import Stamp, deployment, inpod, sizing_key
from plimsoll.controller.objects.context import FILE_KEY_REF, WRAPPER
from plimsoll.core.engines import lookup
from plimsoll.core.engines.base import Pinned
from plimsoll.core.engines.inpod import inpod_arguments
from plimsoll.sizer.emit import write_env
from tests.unit.controller.builders import CONTEXT, server
from tests.unit.controller.test_objects import kubelet_expands

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.controller.crd.types import InferenceServer

PINNED = Pinned(
    max_total_token_num=457142,
    max_sequences=300,
    context_length=8192,
    prefill_tokens=2048,
    kv_cache_bytes=60 << 30,
    memory_fraction="0.953",
    block_tokens=16,
    graph_batch=200,
)
IMAGES = {
    "LightLLM": "x:v1.2.0",
    "VLLM": "x:v0.33.0",
    "SGLang": "x:v0.5.12",
    "TGI": "x:3.3.7",
    "TensorRTLLM": "x:1.2.1",
    "LlamaCpp": "x:b9000",
}
# Stands for the engine: says what it was started with, and ends as an engine that was told so.
TELL = "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ)])); sys.exit(7)"
# Everything that a shell or a kubelet could take for something else.
USER = ["--chat-template", 'it\'s $(HOME) $HOME `id` "x" ; exit 3 # $$ \\ *', "two\nlines"]

ENGINES = pytest.mark.parametrize("engine", IMAGES)


def spec_of(engine: str, **more: Any) -> dict[str, Any]:
    model = {"source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "llama-8b"}}}
    if engine == "LlamaCpp":
        model["file"] = "a.gguf"  # type: ignore[assignment]
    return {
        "model": model,
        "engine": {"type": engine, "image": IMAGES[engine], **more},
        "sizing": {"mode": "InPod"},
    }


def container_of(wanted: InferenceServer, stamp: Stamp) -> dict[str, Any]:
    """The server container."""
    (found,) = deployment(wanted, stamp, CONTEXT)["spec"]["template"]["spec"]["containers"]
    return dict(found)


@dataclass
class Started:
    """What the engine sees."""

    argv: list[str]
    env: dict[str, str]
    code: int


def start(container: dict[str, Any], file: Path) -> Started:
    """Environment and words as the kubelet makes them, and the process that they start."""
    keys = dict(line.split("=", 1) for line in file.read_text().splitlines())
    env: dict[str, str] = {}
    for entry in container["env"]:
        if "value" in entry:
            env[entry["name"]] = kubelet_expands(entry["value"], env)
        else:
            reference = entry["valueFrom"]["fileKeyRef"]
            assert (reference["volumeName"], reference["path"]) == ("plimsoll", "env")
            env[entry["name"]] = keys[reference["key"]].strip("'")
    words = [kubelet_expands(w, env) for w in (*container["command"], *container["args"])]
    words = [word.replace("/plimsoll/env", str(file)) for word in words]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    argv, seen = json.loads(done.stdout)
    return Started(argv, seen, done.returncode)


@ENGINES
@pytest.mark.parametrize("transport", [FILE_KEY_REF, WRAPPER])
def test_the_engine_is_started_as_with_a_stamped_number(
    engine: str, transport: str, tmp_path: Path
) -> None:
    """The same words in the same order, the same variables, and the engine's own exit code."""
    spec = spec_of(
        engine,
        command=[sys.executable, "-I", "-c", TELL],
        args=USER,
        env=[{"name": "MINE", "value": "$(HOME) 'x'"}],
    )
    wanted = server(**spec)
    kind, request = lookup(engine), sizing_request(wanted)
    found = inpod_arguments(kind, PINNED, request)
    write_env(tmp_path / "env", {"PLIMSOLL_TOKENS": "1", **found.values})

    started = start(container_of(wanted, Stamp(transport=transport)), tmp_path / "env")
    stamped = container_of(wanted, Stamp(pinned=PINNED.to_mapping()))
    expected = [kubelet_expands(word, {}) for word in stamped["args"]]
    assert started.argv == _as_in_a_pod(expected)
    assert started.argv[started.argv.index(USER[0]) :][: len(USER)] == USER
    for name, value in kind.pinned_env(PINNED, request).items():
        assert started.env[name] == value
    assert started.env["MINE"] == "$(HOME) 'x'"
    assert started.code == 7


def _as_in_a_pod(words: list[str]) -> list[str]:
    """VLLM's list of graph sizes is given by its largest there (see core.engines.inpod)."""
    sizes = "--cudagraph-capture-sizes"
    if not any(word.startswith(sizes) for word in words):
        return words
    spot = next(i for i, word in enumerate(words) if word.startswith(sizes))
    rest = words[spot + 1 :]
    found = [words[spot].partition("=")[2], *rest]
    largest = [item for item in found if item][-1].rpartition(",")[2]
    return [*words[:spot], f"--max-cudagraph-capture-size={largest}"]


@pytest.mark.parametrize(
    "value", ["a b", "$HOME", "$(id)", "`id`", 'say "x"', "back\\slash", "*", "#x"]
)
def test_the_shell_takes_a_value_as_it_is(value: str, tmp_path: Path) -> None:
    wanted = server(**spec_of("TGI", command=[sys.executable, "-I", "-c", TELL]))
    found = inpod_arguments(lookup("TGI"), PINNED, sizing_request(wanted))
    write_env(tmp_path / "env", dict.fromkeys(found.values, value))
    started = start(container_of(wanted, Stamp(transport=WRAPPER)), tmp_path / "env")
    assert f"--max-total-tokens={value}" in started.argv
    assert started.env["TGI_WIGGLE_ROOM"] == value


def test_the_shell_starts_nothing_without_a_value(tmp_path: Path) -> None:
    """An engine with an empty argument would choose a number of its own."""
    wanted = server(**spec_of("TGI", command=[sys.executable, "-I", "-c", TELL]))
    container = container_of(wanted, Stamp(transport=WRAPPER))
    found = inpod_arguments(lookup("TGI"), PINNED, sizing_request(wanted)).values
    for missing in found:
        values = {key: value for key, value in found.items() if key != missing}
        write_env(tmp_path / "env", values)
        with pytest.raises(AssertionError, match=missing):
            start(container, tmp_path / "env")
    (tmp_path / "env").write_text("")
    with pytest.raises(AssertionError, match="PLIMSOLL_"):
        start(container, tmp_path / "env")


@ENGINES
def test_the_sizer_is_told_what_to_write(engine: str) -> None:
    """Its keys are exactly those that the engine's container refers to."""
    wanted = server(**spec_of(engine))
    stamp = Stamp(transport=FILE_KEY_REF, extra_reserve=5 << 30)
    (sizer,) = deployment(wanted, stamp, CONTEXT)["spec"]["template"]["spec"]["initContainers"]
    env = {entry["name"]: entry.get("value") for entry in sizer["env"]}
    assert sizer["args"] == ["size"]
    assert env["PLIMSOLL_REQUEST_HASH"] == sizing_key(wanted)
    assert json.loads(str(env["PLIMSOLL_REQUEST"]))["extraReserve"] == 5 << 30
    assert not {name for name in env if name.startswith("PLIMSOLL_STAMPED")}
    told = inpod_arguments(lookup(engine), PINNED, sizing_request(wanted))
    assert env["PLIMSOLL_ARGS"] == " ".join(told.flags)
    assert env.get("PLIMSOLL_ENVS") == (" ".join(told.env_names) or None)
    references = {
        entry["valueFrom"]["fileKeyRef"]["key"]
        for entry in inpod.env(wanted, FILE_KEY_REF)
        if "valueFrom" in entry
    }
    assert references == {*told.values}


def test_only_the_wrapper_sees_the_file_and_may_not_write_it() -> None:
    wanted = server(**spec_of("LightLLM"))
    plain = container_of(wanted, Stamp(transport=FILE_KEY_REF))
    assert "/plimsoll" not in {mount["mountPath"] for mount in plain["volumeMounts"]}
    (mount,) = (
        mount
        for mount in container_of(wanted, Stamp(transport=WRAPPER))["volumeMounts"]
        if mount["mountPath"] == "/plimsoll"
    )
    assert mount == {"name": "plimsoll", "mountPath": "/plimsoll", "readOnly": True}


def test_an_engine_is_measured_again_only_where_the_kubelet_can() -> None:
    wanted = server(**spec_of("LightLLM"))
    again = container_of(wanted, Stamp(transport=FILE_KEY_REF, remeasures=True))
    assert again["restartPolicy"] == "Always"
    assert again["restartPolicyRules"] == [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    ]
    plain = container_of(wanted, Stamp(transport=FILE_KEY_REF))
    assert {"restartPolicy", "restartPolicyRules"}.isdisjoint(plain)


def test_the_engines_own_command_is_wrapped_where_the_user_gives_none() -> None:
    container = container_of(server(**spec_of("LightLLM")), Stamp(transport=WRAPPER))
    assert container["command"][:2] == ["/bin/sh", "-c"]
    assert container["args"][:3] == ["python", "-m", "lightllm.server.api_server"]
