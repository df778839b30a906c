"""Pod templates as an operator of each render version made them: tests/data/templates/v<version>-<name>.json.

Those of version 1 are of commit 95ccd03, and those of a version that was released are never written
again: they are what running servers hold. While the latest version is not released,
``python -m tests.unit.controller.golden_templates`` writes its files anew.

A file has the resource, the stored capacity (or, where each pod measures its own, the stamp), the
operator's settings and the template.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.controller.crd import parse
from plimsoll.controller.objects import BuildContext, Stamp, deployment, sizing_pod
from plimsoll.controller.objects.context import FILE_KEY_REF, WRAPPER
from plimsoll.controller.objects.versions import version_of
from plimsoll.controller.observed import observe_from
from plimsoll.controller.plan import plan
from plimsoll.controller.steps.capacity import stamp_of
from plimsoll.core.engines.base import Pinned
from tests.unit.controller.builders import CONTEXT, NOW, REPORT, body, born, ended, node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer

FOLDER = Path(__file__).parents[2] / "data" / "templates"
Golden = dict[str, Any]


def golden() -> dict[str, Golden]:
    """Every file by its name, as ``v1-lightllm``."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("v*.json"))}


def render_version(name: str) -> int:
    """The version that the name of a file tells."""
    return int(name.partition("-")[0].removeprefix("v"))


def server_of(found: Golden) -> InferenceServer:
    """The typed form of its resource."""
    return parse(found["resource"])


def stamp_in(found: Golden) -> Stamp:
    """What it was rendered with."""
    if "stamp" in found:
        return Stamp(**found["stamp"])
    return stamp_of(server_of(found), found["capacity"])


def rendered(found: Golden, context: BuildContext, *, live: bool = True) -> dict[str, Any]:
    """The template that is rendered today, beside the golden one as the live one."""
    there = {"spec": {"template": found["template"]}} if live else None
    made = deployment(server_of(found), stamp_in(found), context, there)
    template: dict[str, Any] = json.loads(json.dumps(made["spec"]["template"]))
    return template


def as_deployed(found: Golden) -> dict[str, Any]:
    """The Deployment around the golden template, as its own operator applied it."""
    context = BuildContext(**found["context"])
    there = {"spec": {"template": found["template"]}}
    made = deployment(server_of(found), stamp_in(found), context, there)
    made["spec"] = {**made["spec"], "template": copy.deepcopy(found["template"])}
    return made


def _measured(
    resource: dict[str, Any], pinned: Mapping[str, Any] | None = None, **numbers: Any
) -> dict[str, Any]:
    """The capacity that a sizing pod's report leads to."""
    report = replace(
        REPORT,
        pinned=Pinned(
            max_total_token_num=REPORT.max_total_token_num,
            context_length=REPORT.context_length,
            prefill_tokens=REPORT.prefill_tokens,
            max_sequences=numbers.get("max_sequences", REPORT.max_sequences),
            **(pinned or {}),
        ),
        **numbers,
    )
    pod = ended(born(sizing_pod(parse(resource), CONTEXT)), report)
    status = plan(observe_from(resource, pods=[pod], node=node()), CONTEXT, NOW).status
    assert status is not None
    found: dict[str, Any] = status["capacity"]
    return found


def _write(name: str, resource: dict[str, Any], **rest: Any) -> None:
    context = {"sizer_image": CONTEXT.sizer_image, "sizer_pull_policy": CONTEXT.sizer_pull_policy}
    made = {"resource": resource, "context": context, **rest}
    made["template"] = rendered({**made, "template": {}}, CONTEXT, live=False)
    text = json.dumps(made, indent=1, sort_keys=True)
    (FOLDER / f"v{version_of(made['template'])}-{name}.json").write_text(text + "\n")


def several_kinds() -> dict[str, Any]:
    """Three kinds of GPU under two labels, beside what the user asks of nodes himself."""
    zones = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}
    spot = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [zones]}]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5, "preference": {"matchExpressions": [spot]}}
        ],
    }
    products = ["NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"]
    keys = ["nvidia.com/gpu.product", "cloud.example/gpu"]
    return body(
        accelerator={"products": products, "classLabelKeys": keys},
        template={"affinity": {"nodeAffinity": affinity}},
    )


def write_latest() -> None:
    """Render the files of the newest version that each resource has, most for those of version 1."""
    light, llama = (golden()[f"v1-{name}"]["resource"] for name in ("lightllm", "llamacpp"))
    _write("lightllm", light, capacity=_measured(light))
    _write("llamacpp", llama, capacity=_measured(llama, model_file="llama.gguf", max_sequences=4))
    # An engine whose numbers stand in its environment too.
    engine = {"type": "TGI", "image": "ghcr.io/huggingface/text-generation-inference:3.3.7"}
    share = {"kv_cache_bytes": REPORT.budget.kv, "memory_fraction": "0.875"}
    _write("tgi", body(engine=engine), capacity=_measured(body(engine=engine), share))
    light, llama = ({**raw, "spec": {**raw["spec"]}} for raw in (light, llama))
    light["spec"]["sizing"] = {"mode": "InPod", "extraReserve": "1Gi"}
    llama["spec"]["sizing"] = {"mode": "InPod"}
    source = llama["spec"]["model"]["source"]
    llama["spec"]["model"] = {"source": source, "file": "llama.gguf"}
    _write("inpod-file-key-ref", light, stamp={"transport": FILE_KEY_REF, "remeasures": True})
    _write("inpod-wrapper", llama, stamp={"transport": WRAPPER, "extra_reserve": 1 << 30})
    _write("several-kinds", several_kinds(), stamp={"transport": WRAPPER})


if __name__ == "__main__":
    write_latest()
