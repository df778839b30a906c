"""Builders: complete objects, the same pod in both, nothing that an operator upgrade would change."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.objects import (
    Pin,
    Stamp,
    deployment,
    first_difference,
    request_hash,
    scaled,
    service,
    sizing_key,
    sizing_pod,
)
from plimsoll.controller.objects.pod import literal, model_path
from plimsoll.controller.objects.workload import startup_seconds
from plimsoll.core.request import SizingRequest
from tests.unit.controller.builders import (
    CONTEXT,
    GPU_LABEL,
    LLAMACPP,
    NAMESPACE,
    PRODUCT,
    UID,
    server,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PIN = Pin(GPU_LABEL, PRODUCT)
STAMP = Stamp(409600, 256, 131072, 8192, 16 * 10**9, None, PIN)

BUSY: dict[str, Any] = {
    "accelerator": {"count": 2, "products": [PRODUCT]},
    "template": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "schedulerName": "bin-packer",
        "runtimeClassName": "nvidia",
        "priorityClassName": "serving",
        "imagePullSecrets": [{"name": "pull"}],
        "labels": {"team": "search"},
        "annotations": {"note": "x"},
        "sharedMemory": {"sizeLimit": "8Gi"},
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 2000},
        "resources": {"requests": {"cpu": "4", "memory": "32Gi"}, "limits": {"memory": "64Gi"}},
    },
}


def _pod_spec(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    if name == "sizing pod":
        found: dict[str, Any] = sizing_pod(server(**spec), CONTEXT)["spec"]
    else:
        found = deployment(server(**spec), STAMP, CONTEXT)["spec"]["template"]["spec"]
    return found


PODS = pytest.mark.parametrize("pod", ["sizing pod", "server pod"])
SPECS = pytest.mark.parametrize("spec", [{}, BUSY], ids=["defaults", "busy"])


@PODS
@SPECS
def test_no_pod_holds_a_token_or_chooses_its_own_devices(pod: str, spec: dict[str, Any]) -> None:
    found = _pod_spec(pod, spec)
    assert found["automountServiceAccountToken"] is False
    assert found["enableServiceLinks"] is False
    assert "serviceAccountName" not in found
    assert "NVIDIA_VISIBLE_DEVICES" not in json.dumps(found)


@PODS
@SPECS
def test_every_container_asks_for_the_same_devices(pod: str, spec: dict[str, Any]) -> None:
    found = _pod_spec(pod, spec)
    count = str(spec.get("accelerator", {}).get("count", 1))
    containers = [*found["initContainers"], *found["containers"]]
    assert len(containers) == 2
    for container in containers:
        for kind in ("requests", "limits"):
            assert container["resources"][kind]["nvidia.com/gpu"] == count


def _is_restricted(pod: dict[str, Any]) -> list[str]:
    """What Pod Security restricted objects to (policy of Kubernetes 1.37, the fields we render)."""
    found = []
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image",
               "persistentVolumeClaim", "projected", "secret", "name"}  # fmt: skip
    found += [f"volume {v['name']}" for v in pod["volumes"] if set(v) - allowed]
    for container in [*pod["initContainers"], *pod["containers"]]:
        context, name = container["securityContext"], container["name"]
        pod_context = pod["securityContext"]
        if not context.get("runAsNonRoot", pod_context.get("runAsNonRoot")):
            found.append(f"{name} runAsNonRoot")
        if context.get("runAsUser") == 0:
            found.append(f"{name} runAsUser")
        if context.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name} allowPrivilegeEscalation")
        if context.get("capabilities") != {"drop": ["ALL"]}:
            found.append(f"{name} capabilities")
        profile = context.get("seccompProfile", pod_context.get("seccompProfile"))
        if profile != {"type": "RuntimeDefault"}:
            found.append(f"{name} seccomp")
    return found


def test_pod_security() -> None:
    """Sizing pods are always restricted; server pods when the user says whom the engine runs as."""
    assert _is_restricted(_pod_spec("sizing pod", {})) == []
    assert _is_restricted(_pod_spec("sizing pod", BUSY)) == []
    assert _is_restricted(_pod_spec("server pod", BUSY)) == []
    assert _is_restricted(_pod_spec("server pod", {})) == [
        "server runAsNonRoot",
        "server capabilities",
    ]


def test_sizer_runs_as_the_user_who_may_read_the_model() -> None:
    (sizer,) = _pod_spec("sizing pod", {})["initContainers"]
    assert (
        sizer["securityContext"]["runAsUser"],
        sizer["securityContext"]["readOnlyRootFilesystem"],
    ) == (65532, True)
    (sizer,) = _pod_spec("sizing pod", BUSY)["initContainers"]
    assert sizer["securityContext"]["runAsUser"] == 1000
    assert _pod_spec("sizing pod", BUSY)["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": 2000,
        "fsGroupChangePolicy": "OnRootMismatch",
    }


@SPECS
def test_sizing_pod_lands_where_the_server_will(spec: dict[str, Any]) -> None:
    """Volumes and every scheduling field are the server's; only the pin comes later."""
    sizing, serving = _pod_spec("sizing pod", spec), _pod_spec("server pod", spec)
    for field in ("volumes", "nodeSelector", "tolerations", "topologySpreadConstraints",
                  "schedulerName", "runtimeClassName", "priorityClassName", "imagePullSecrets",
                  "securityContext"):  # fmt: skip
        assert sizing.get(field) == serving.get(field), field
    assert (
        sizing["containers"][0]["resources"]["limits"].items()
        >= serving["containers"][0]["resources"]["limits"].items()
    )
    assert (
        sizing["initContainers"][0]["volumeMounts"] == serving["initContainers"][0]["volumeMounts"]
    )


def test_sizing_pod() -> None:
    pod = sizing_pod(server(**BUSY), CONTEXT)
    fingerprint = request_hash(server(**BUSY), CONTEXT)
    meta = pod["metadata"]
    assert re.fullmatch(r"[0-9a-f]{40}", fingerprint)
    assert meta["name"] == f"llama-sz-{fingerprint[:7]}"
    assert meta["namespace"] == NAMESPACE
    assert meta["labels"] == {
        "team": "search",
        "plimsoll.dev/sizing-for": "llama",
        "app.kubernetes.io/managed-by": "plimsoll",
    }
    assert meta["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert meta["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "plimsoll.dev/v1alpha1", "kind": "InferenceServer", "name": "llama",
            "uid": UID, "controller": True, "blockOwnerDeletion": True,
        }
    ]  # fmt: skip
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["activeDeadlineSeconds"] == 900
    (sizer,), (done,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert (sizer["name"], sizer["args"], done["name"], done["args"]) == (
        "sizer",
        ["size"],
        "done",
        ["done"],
    )
    assert sizer["image"] == done["image"] == CONTEXT.sizer_image
    env = {e["name"]: e.get("value") for e in sizer["env"]}
    assert SizingRequest.from_json(str(env["PLIMSOLL_REQUEST"])) == sizing_request(server(**BUSY))
    assert env["PLIMSOLL_REQUEST_HASH"] == fingerprint
    assert env["PLIMSOLL_MODEL_PATH"] == "/models/llama-8b"
    assert env["PLIMSOLL_DEVICE_COUNT"] == "2"
    assert "PLIMSOLL_STAMPED_TOKENS" not in env
    (uid,) = (e["valueFrom"] for e in sizer["env"] if e["name"] == "PLIMSOLL_POD_UID")
    assert uid["fieldRef"]["fieldPath"] == "metadata.uid"


def test_longest_name_still_fits_a_hostname() -> None:
    assert len(sizing_pod(server("n" * 52), CONTEXT)["metadata"]["name"]) == 63


def test_deployment() -> None:
    made = deployment(server(replicas=3), STAMP, CONTEXT)
    spec = made["spec"]
    assert made["metadata"]["name"] == "llama"
    assert made["metadata"]["ownerReferences"][0]["uid"] == UID
    assert spec["replicas"] == 3
    assert spec["selector"] == {"matchLabels": {"plimsoll.dev/server": "llama"}}
    assert spec["template"]["metadata"]["labels"].items() >= spec["selector"]["matchLabels"].items()
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    assert spec["progressDeadlineSeconds"] == 2 * 660 + 600
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 305
    (sizer,), (engine,) = pod["initContainers"], pod["containers"]
    assert (sizer["name"], sizer["args"]) == ("sizer", ["guard"])
    assert {"name": "PLIMSOLL_STAMPED_TOKENS", "value": "409600"} in sizer["env"]
    assert {"name": "PLIMSOLL_REQUEST_HASH", "value": sizing_key(server())} in sizer["env"]
    assert engine["ports"][0]["containerPort"] == 8000
    # 295 s of the drain time: the engine has ten for ending.
    assert "time.monotonic()+290\n" in engine["lifecycle"]["preStop"]["exec"]["command"][3]
    assert engine["readinessProbe"]["httpGet"] == engine["startupProbe"]["httpGet"]
    assert (
        engine["startupProbe"]["failureThreshold"] * engine["startupProbe"]["periodSeconds"] >= 600
    )
    assert engine["terminationMessagePolicy"] == "FallbackToLogsOnError"
    mounts = {m["mountPath"]: m for m in engine["volumeMounts"]}
    assert mounts["/models"]["readOnly"] is True
    assert mounts["/dev/shm"]["name"] == "shm"
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert "emptyDir" in volumes["plimsoll"]
    assert {"name": "plimsoll", "mountPath": "/plimsoll"} in sizer["volumeMounts"]


def test_server_arguments() -> None:
    """What is served, then the user's, then the pinned numbers, each exactly once."""
    args = _pod_spec(
        "server pod",
        {"engine": {"type": "LightLLM", "image": "x:v1.2.0", "args": ["--mode", "$(HOME)"]}},
    )["containers"][0]["args"]
    assert args.count("--max_total_token_num=409600") == 1
    assert (
        args.index("--model_dir=/models/llama-8b")
        < args.index("--mode")
        < args.index("--max_total_token_num=409600")
    )
    assert args[args.index("--mode") + 1] == "$$(HOME)"


def test_llama_cpp_serves_exactly_the_file_that_was_sized() -> None:
    stamp = replace(STAMP, model_file="a.gguf", max_total_token_num=24576, max_sequences=3)
    made = deployment(server(engine=LLAMACPP), stamp, CONTEXT)
    text = " ".join(made["spec"]["template"]["spec"]["containers"][0]["args"])
    assert "--model /models/llama-8b/a.gguf" in text
    assert "--ctx-size 24576 --parallel 3" in text


def test_command_and_environment_of_the_user() -> None:
    engine = {
        "type": "LightLLM", "image": "x:v1.2.0", "command": ["run", "$(X)"],
        "env": [
            {"name": "A", "value": "$(B)"},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    }  # fmt: skip
    container = _pod_spec("server pod", {"engine": engine})["containers"][0]
    assert container["command"] == ["run", "$$(X)"]
    assert container["env"] == [
        {"name": "A", "value": "$$(B)"},
        {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]


def kubelet_expands(text: str, variables: Mapping[str, str]) -> str:
    """third_party/forked/golang/expansion/expand.go of Kubernetes."""
    out, i = "", 0
    while i < len(text):
        if text[i] == "$" and i + 1 < len(text):
            after = text[i + 1]
            if after == "$":
                out, i = out + "$", i + 2
                continue
            close = text.find(")", i + 2)
            if after == "(" and close >= 0:
                name = text[i + 2 : close]
                out += variables.get(name, f"$({name})")
                i = close + 1
                continue
            if after == "(":
                out, i = out + "$(", i + 2
                continue
            out, i = out + "$" + after, i + 2
            continue
        out, i = out + text[i], i + 1
    return out


@given(st.text(alphabet="$()HOMEab ", max_size=30))
def test_user_text_reaches_the_process_unchanged(text: str) -> None:
    assert kubelet_expands(literal(text), {"HOME": "/root"}) == text


def test_literal_touches_only_what_the_kubelet_would() -> None:
    assert literal("$(HOME) costs 5$ or $x") == "$$(HOME) costs 5$ or $x"


@pytest.mark.parametrize(
    ("weight_bytes", "seconds"),
    [
        (None, 1800),
        (0, 600),
        (15 * 10**9, 600),
        (107_500_000_000, 1200),
        (200 * 10**9, 1800),
        (10**15, 1800),
    ],
)
def test_startup_budget(weight_bytes: int | None, seconds: int) -> None:
    assert startup_seconds(server(), weight_bytes) == seconds
    assert startup_seconds(server(probes={"startupSeconds": 42}), weight_bytes) == 42


def test_service() -> None:
    made = service(
        server(
            service={
                "port": 8081,
                "type": "NodePort",
                "annotations": {"a": "b"},
                "labels": {"c": "d"},
            }
        )
    )
    assert made["metadata"]["name"] == "llama"
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["metadata"]["labels"].items() >= {"c": "d", "plimsoll.dev/server": "llama"}.items()
    assert made["spec"] == {
        "type": "NodePort",
        "selector": {"plimsoll.dev/server": "llama"},
        "ports": [{"name": "http", "port": 8081, "targetPort": "http", "protocol": "TCP"}],
    }


def test_scaled_changes_the_replicas_and_nothing_else() -> None:
    live = stored(deployment(server(), STAMP, CONTEXT))
    made = scaled(live, 4)
    assert first_difference({**made, "spec": {**made["spec"], "replicas": 1}}, live) is None
    assert made["spec"]["replicas"] == 4
    assert {"status"}.isdisjoint(made)
    assert {"uid", "resourceVersion", "managedFields", "generation"}.isdisjoint(made["metadata"])


def test_model_path() -> None:
    assert model_path(server().spec.model) == "/models/llama-8b"
    plain = server(model={"source": {"persistentVolumeClaim": {"claimName": "models"}}})
    assert model_path(plain.spec.model) == "/models"
