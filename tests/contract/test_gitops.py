"""What tools for GitOps make of statuses as the operator writes them: Argo CD's health check, kstatus.

The health check is taken from the documentation and run by the interpreter that Argo CD itself uses.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import plan
from tests.cluster_kit.gotools import go_tool
from tests.unit.controller.builders import CONTEXT, NOW, body, node
from tests.unit.controller.plan_worlds import converged, refuses, serving, sized_status, sizing

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "gitops.md"
KEY = "resource.customizations.health.plimsoll.dev_InferenceServer"
OWNED: dict[str, Any] = {
    "engine": {"type": "LightLLM", "image": "a/b:v1.2.0", "args": ["--max_total_token_num=5"]}
}
PAUSED: dict[str, Any] = {"rollout": {"paused": True}}


def _told(world: Observed) -> dict[str, Any]:
    """The resource with the status that a pass over this world writes."""
    made = plan(world, CONTEXT, NOW)
    return {**world.raw, "status": made.status if made.status is not None else world.raw["status"]}


def _degraded() -> dict[str, Any]:
    found = _told(serving(ready=False))
    trouble = {
        "type": "Degraded",
        "status": "True",
        "reason": "OutOfMemoryBackoff",
        "message": "M.",
    }
    found["status"] = {**found["status"], "conditions": [*found["status"]["conditions"], trouble]}
    return found


def _edited() -> dict[str, Any]:
    found = _told(converged())
    return {**found, "metadata": {**found["metadata"], "generation": 2}}


# World -> Argo CD's health, kstatus's status, words of Argo CD's message.
WORLDS = {
    "no operator yet": (body(), "Progressing", "InProgress", "Waiting for the operator"),
    "sizing": (_told(observe_from(body(), pods=[sizing()], node=node())),
               "Progressing", "InProgress", "The sizing pod has not started yet"),
    "does not fit": (_told(observe_from(body(), pods=[refuses("WeightsDoNotFit", "it does not fit", 1)], node=node())),
                     "Degraded", "Failed", "WeightsDoNotFit: It does not fit"),
    "refused flag": (_told(observe_from(body(**OWNED))), "Degraded", "Failed", "FlagNotAllowed: "),
    "paused": (_told(observe_from(body(status=sized_status(**PAUSED), **PAUSED), node=node())),
               "Suspended", "InProgress", "spec.rollout.paused is true"),
    "starting": (_told(serving(ready=False)), "Progressing", "InProgress", "Replicas"),
    "in trouble": (_degraded(), "Progressing", "InProgress", "OutOfMemoryBackoff: M."),
    "serving": (_told(converged()), "Healthy", "Current", "Serving with"),
    "edited since": (_edited(), "Progressing", "InProgress", "Waiting for the operator"),
}  # fmt: skip


def _lua(value: object) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"[{_lua(k)}]={_lua(v)}" for k, v in value.items()) + "}"
        case list():
            return "{" + ",".join(map(_lua, value)) + "}"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
    return repr(value)


def _check() -> str:
    (text,) = [t for t in re.findall(r"(?ms)^```yaml\n(.*?)^```", PAGE.read_text()) if KEY in t]
    return str(yaml.safe_load(text)["data"][KEY])


@pytest.mark.parametrize("name", WORLDS)
def test_the_health_check_of_the_documentation(name: str, tmp_path: Path) -> None:
    resource, health, _, words = WORLDS[name]
    program = (
        f"obj = {_lua(resource)}\nlocal function check()\n{_check()}\nend\n"
        "local found = check()\nprint(found.status)\nprint(found.message)\n"
    )
    (tmp_path / "check.lua").write_text(program)
    command = [go_tool("glua"), tmp_path / "check.lua"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, message = done.stdout.splitlines()
    assert status == health
    assert words in message


def kstatus(resource: Mapping[str, Any]) -> str:
    """Its rules for a kind that it does not know: ``pkg/kstatus/status`` of kubernetes-sigs/cli-utils."""
    status = resource.get("status") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if status.get("observedGeneration", 0) != resource["metadata"]["generation"]:
        return "InProgress"
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


@pytest.mark.parametrize("name", WORLDS)
def test_kstatus_sees_the_same(name: str) -> None:
    resource, _, status, _ = WORLDS[name]
    assert kstatus(resource) == status
