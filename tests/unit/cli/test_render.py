"""`render -f`: the operator's own plan, without a cluster."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from plimsoll.cli.yaml_text import to_yaml
from plimsoll.controller.objects import BuildContext, sizing_pod
from plimsoll.controller.observed import observe_from
from plimsoll.controller.steps.acceptance import accept
from tests.render_samples import LLAMA_8B, RENDERED, SAMPLES
from tests.render_samples import render as rendered_sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import FakeKubectl

SOURCE = SAMPLES / "lightllm-llama-8b.yaml"
SERVER: dict[str, Any] = yaml.safe_load(SOURCE.read_text())
GPU = ("--gpu-name", "NVIDIA H100 80GB HBM3", "--gpu-total", "79.19GiB", "--nvml-total", "79.65GiB")
# llama.cpp's sample names a file, which a config cannot stand in for.
FROM_CONFIG = sorted(name for name in RENDERED if not name.startswith("llamacpp"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.yaml"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(tmp_path)


def with_spec(**changes: Any) -> dict[str, Any]:
    return {**SERVER, "spec": {**SERVER["spec"], **changes}}


def _pod(deployment: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def kinds(text: str) -> list[str]:
    return [document["kind"] for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize("name", FROM_CONFIG)
def test_with_a_gpu_it_is_the_operators_deployment(
    plimsoll: Any, tmp_path: Path, name: str
) -> None:
    """The same object as tests.render_samples builds by hand from fit and the builders."""
    (tmp_path / "config.json").write_text(json.dumps(RENDERED[name][0]))
    words = (*GPU, "--model", str(tmp_path))
    outcome = plimsoll("render", "-f", str(SAMPLES / f"{name}.yaml"), *words)
    assert (outcome.code, outcome.err) == (0, "")
    pod, deployment, service = yaml.safe_load_all(outcome.out)
    found, expected = (_pod(x) for x in (deployment, rendered_sample(name)))
    assert found["affinity"] == expected["affinity"]
    (one,), (other,) = found["containers"], expected["containers"]
    for container in (one, other):
        del container["startupProbe"]  # by the bytes of all ranks
    assert one == other
    guard = {entry["name"] for entry in found["initContainers"][0]["env"]}
    assert guard >= {"PLIMSOLL_STAMPED_TOKENS", "PLIMSOLL_STAMPED_CLASS", "PLIMSOLL_STAMPED_MODEL"}
    assert (pod["kind"], service["kind"]) == ("Pod", "Service")
    assert re.match(r"# [0-9]{5,} tokens on NVIDIA H100 80GB HBM3 \(estimated\)\n", outcome.out)


def test_without_a_number_it_says_so(plimsoll: Any) -> None:
    outcome = plimsoll("render", "-f", str(SOURCE), "-n", "team")
    assert kinds(outcome.out) == ["Pod", "Deployment", "Service"]
    pod, deployment, _ = yaml.safe_load_all(outcome.out)
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max_total_token_num=<measured>" in args
    assert "--tokenizer_mode=fast" in args
    assert "$(" not in " ".join(args)
    assert "# The number is not known before a GPU was measured" in outcome.out
    assert {pod["metadata"]["namespace"], deployment["metadata"]["namespace"]} == {"team"}
    body = {**SERVER, "metadata": pod["metadata"]["ownerReferences"][0] | {"namespace": "team"}}
    server = observe_from(body).server
    assert server is not None
    context = BuildContext("ghcr.io/plimsoll-dev/sizer:0.1.0", "IfNotPresent")
    assert pod == sizing_pod(server, context)


def test_with_tokens_it_is_as_fixed(plimsoll: Any) -> None:
    outcome = plimsoll("render", "-f", str(SOURCE), "--tokens", "200000", "-o", "json")
    document = outcome.json()
    (one,) = document["servers"]
    assert (document["schema"], one["mode"]) == ("plimsoll.dev/render.v1", "Fixed")
    assert [found["kind"] for found in one["objects"]] == ["Deployment", "Service"]
    args = one["objects"][0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max_total_token_num=200000" in args


@pytest.mark.parametrize(
    ("kubelet", "marks"), [("1.36", "fileKeyRef"), ("1.34", ". /plimsoll/env")]
)
def test_in_pod_shows_how_values_reach_the_engine(
    plimsoll: Any, file: Path, kubelet: str, marks: str
) -> None:
    file.write_text(yaml.safe_dump(with_spec(sizing={"mode": "InPod"})))
    outcome = plimsoll("render", "-f", str(file), "--kubelet", kubelet)
    assert kinds(outcome.out) == ["Deployment", "Service"]
    assert marks in outcome.out
    assert "# Mode InPod: spec.sizing.mode says so" in outcome.out


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"type": "LightLLM", "image": "x:v1.2.0", "args": ["--max_total_token_num=5"]}},
        {"engine": {"type": "NoSuch", "image": "x"}},
        {"sizing": {"kvCacheDType": "nvfp4"}},
        {"accelerator": {"count": 2}, "parallelism": {"tensor": 3}},
        {"replica": 2},
    ],
)
def test_refusals_are_those_of_the_operator(
    plimsoll: Any, file: Path, spec: dict[str, Any]
) -> None:
    body = with_spec(**spec)
    file.write_text(json.dumps(body))
    body["metadata"] |= {"namespace": "default", "uid": "u"}
    expected = accept(observe_from(body))
    assert expected.status == "False"
    outcome = plimsoll("render", "-f", str(file), "-o", "json")
    (one,) = outcome.json()["servers"]
    assert outcome.code == 2
    assert (one["error"]["reason"], one["error"]["message"]) == (expected.reason, expected.message)
    assert f"plimsoll: {expected.reason}: " in outcome.err
    assert one["objects"] == []


def test_what_does_not_fit_is_exit_1(plimsoll: Any, model: str) -> None:
    words = ("--gpu-name", "NVIDIA H100 80GB HBM3", "--gpu-total", "12GiB", "--model", model)
    outcome = plimsoll("render", "-f", str(SOURCE), *words)
    assert outcome.code == 1
    assert "WeightsDoNotFit" in outcome.err
    wrong = plimsoll("render", "-f", str(SOURCE), "--gpu", "T4", "--model", model)
    assert wrong.code != 0
    assert "objects" not in wrong.out


def test_a_gpu_that_is_not_allowed(plimsoll: Any, model: str) -> None:
    outcome = plimsoll("render", "-f", str(SOURCE), "--gpu", "H200", "--model", model)
    assert outcome.code == 2
    assert "the GPU is NVIDIA-H200, and spec.accelerator.products allows" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ("--gpu", "H100-80GB"),
        ("--model", "/nowhere"),
        ("--tokens", "5", "--gpu", "T4"),
        ("--tokens", "0"),
        ("--kubelet", "2"),
    ],
)
def test_bad_flags(plimsoll: Any, words: tuple[str, ...]) -> None:
    assert plimsoll("render", "-f", str(SOURCE), *words).code == 2


def test_several_servers_and_other_objects(plimsoll: Any, file: Path) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    bad = {**SERVER, "metadata": {"name": "UPPER"}}
    documents = [SERVER, other, {"kind": "List", "items": [SERVER, bad]}]
    file.write_text(yaml.safe_dump_all(documents))
    outcome = plimsoll("render", "-f", str(file), "-o", "json")
    assert outcome.code == 2  # one of three
    names = [one["name"] for one in outcome.json()["servers"]]
    assert names == ["llama-8b", "llama-8b", "UPPER"]
    assert "1 other objects" in outcome.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "is no YAML"),
        ("kind: Pod\n", "no InferenceServer but Pod"),
        ("- 1\n", "no object"),
        ("", "no InferenceServer but nothing"),
        (json.dumps({k: v for k, v in SERVER.items() if k != "metadata"}), "no metadata.name"),
    ],
)
def test_files_that_are_none(plimsoll: Any, file: Path, content: str, words: str) -> None:
    file.write_text(content)
    outcome = plimsoll("render", "-f", str(file))
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_no_such_file(plimsoll: Any, file: Path) -> None:
    outcome = plimsoll("render", "-f", str(file))
    assert (outcome.code, "No such file" in outcome.err) == (2, True)


def test_standard_input(plimsoll: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(SOURCE.read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert plimsoll("render", "-f", "-").code == 0


def test_without_pyyaml_kubectl_reads_yaml(
    plimsoll: Any, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real kubectl, without any cluster: it converts a file by itself."""
    expected = plimsoll("render", "-f", str(SOURCE)).out
    monkeypatch.setitem(sys.modules, "yaml", None)
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 - kubectl lies beside this Python
    assert shutil.which("kubectl", path=folder)
    monkeypatch.setenv("PATH", folder)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    file.write_text(f"{SOURCE.read_text()}\n---\n{SOURCE.read_text()}")
    outcome = plimsoll("render", "-f", str(file))
    assert (outcome.code, outcome.err) == (0, "")
    documents = [document for document in yaml.safe_load_all(outcome.out) if document]
    assert documents == 2 * [document for document in yaml.safe_load_all(expected) if document]


def test_without_pyyaml_and_kubectl_it_says_what_is_missing(
    plimsoll: Any, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = plimsoll("render", "-f", str(SOURCE))
    assert outcome.code == 2
    assert "YAML needs PyYAML (pip install pyyaml)" in outcome.err
    assert kubectl.calls() == []


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_sample_can_be_rendered(sample: Path, plimsoll: Any) -> None:
    if "kind: InferenceServer" in sample.read_text():
        outcome = plimsoll("render", "-f", str(sample))
        assert outcome.code == 0, outcome.err
        assert "Deployment" in kinds(outcome.out)


@pytest.mark.parametrize(
    "value",
    [
        {
            "a": "no",
            "b": "1e3",
            "c": "0x1",
            "d": "a: b",
            "e": "",
            "f": "x #y",
            "g": "-",
            "h": "null",
        },
        {"list": [[1, [2, {"x": []}]], {}, {"a": {"b": [{"c": None, "d": True}]}}], "yes": "Yes"},
        [
            "a\nb\t\u2028",
            1.5,
            -3,
            "--flag=v",
            "12:30",
            "1_000",
            "~",
            "=",
            "http://x:80/y?z",
            "a\\b'\"",
        ],
    ],
)
def test_yaml_is_read_back_as_it_was(value: Any) -> None:
    assert yaml.safe_load(to_yaml(value)) == value
