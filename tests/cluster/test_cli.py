"""`kubectl plimsoll` against a server that is real: every command that asks a cluster, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster.world import NODE_A, SMOL
from tests.demo.install import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.world import Tenant


class Cli:
    """The program, as kubectl finds it: `kubectl-plimsoll` on PATH, KUBECONFIG set."""

    def __init__(self, tenant: Tenant, folder: Path) -> None:
        self._tenant = tenant
        for name, function in (
            ("kubectl-plimsoll", "main"),
            ("kubectl_complete-plimsoll", "complete"),
        ):
            plugin = folder / name
            start = (
                f"import sys; from plimsoll.cli.__main__ import {function}; sys.exit({function}())"
            )
            plugin.write_text(f"#!{sys.executable}\n{start}\n")
            plugin.chmod(0o755)
        path = f"{folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # noqa: PTH120
        self._env = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(tenant.world.cluster.kubeconfig),
        }

    def __call__(self, *words: str, code: int = 0) -> str:
        return self.kubectl("plimsoll", *words, "-n", self._tenant.namespace, code=code)

    def kubectl(self, *words: str, code: int = 0) -> str:
        argv = ["kubectl", *words]
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*words, "-o", "json"))
        return found


def test_the_plugin_against_a_real_server(tenant: Tenant, tmp_path: Path) -> None:
    tenant.apply(node=NODE_A)
    cli = Cli(tenant, tmp_path)
    assert "Ready=True Ready" in cli("status", "smollm2", "--timeout", "2m")
    number = tenant.argument("--ctx-size")
    assert cli.json("status", "smollm2")["done"] >= 7  # the engine's word may be a moment later

    explained = cli.json("explain", "smollm2")
    assert explained["number"]["maxTotalTokenNum"] == number
    assert explained["terms"][-1]["bytes"] == explained["number"]["kvCacheBytes"]
    files = str(tenant.world.models / SMOL)
    exact = cli.json("explain", "smollm2", "--model", files)
    assert {lever["basis"] for lever in exact["levers"]} == {"exact"}
    assert not any("other files" in note for note in exact["notes"])
    assert f"{number:,} tokens" in cli("explain", "smollm2")

    (pod,) = cli.json("verify", "smollm2")["pods"]
    assert (pod["engineTokens"], pod["matches"]) == (number, True)
    (top,) = cli.json("top")["servers"]
    assert (top["budgetTokens"], top["podsTold"], top["basis"]) == (number, 1, "Slots")
    assert "smollm2" in cli("top", "--pods")
    assert "InferenceServer v1alpha1" in cli("version")
    words = ("plimsoll", "explain", "-n", tenant.namespace, "smo")
    assert cli.kubectl("__complete", *words).splitlines()[0] == "smollm2"
    cli("explain", "smolm", code=2)
    _render_says_what_the_cluster_has(tenant, cli, tmp_path)


def _render_says_what_the_cluster_has(tenant: Tenant, cli: Cli, tmp_path: Path) -> None:
    """The template of the live Deployment, from the resource and the size of the GPU alone."""
    raw = tenant.server()
    live = tenant.deployment()
    assert live is not None
    manifest = tmp_path / "server.json"
    kept = {key: raw[key] for key in ("apiVersion", "kind", "spec")}
    manifest.write_text(json.dumps(kept | {"metadata": {"name": "smollm2"}}))
    gpu, terms = raw["status"]["capacity"]["gpu"], raw["status"]["capacity"]["breakdown"]
    words = (
        f"--gpu-name={gpu['product']}",
        f"--gpu-total={terms['deviceTotal']}",
        f"--nvml-total={gpu['totalBytes']}",
        f"--model={tenant.world.models / SMOL}",
    )
    sizer = live["spec"]["template"]["metadata"]["annotations"]["plimsoll.dev/sizer-image"]
    text = cli("render", "-f", str(manifest), *words, "--sizer-image", sizer)
    rendered = next(d for d in yaml.safe_load_all(text) if d and d["kind"] == "Deployment")
    hashes = [d["spec"]["template"]["metadata"]["annotations"] for d in (rendered, live)]
    assert hashes[0] == hashes[1]  # inputs-hash: everything that is rendered into the template
