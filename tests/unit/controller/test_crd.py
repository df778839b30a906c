"""The reader of an InferenceServer: effective values, and a refusal with its path for everything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.crd import (
    InvalidSpec,
    image_version,
    parse,
    sizing_request,
)
from plimsoll.controller.crd.types import OnOutOfMemory, Rollout
from plimsoll.core.request import SizingRequest
from tests.unit.manifests.samples import FULL_SPEC, IN_BYTES, full, minimal, put, schema, walk

GIB = 1 << 30


def refused(body: dict[str, Any]) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        parse(body)
    return caught.value


def test_defaults_and_effective_values_of_the_least_spec() -> None:
    server = parse(minimal())
    spec = server.spec
    assert (server.name, server.namespace, server.uid, server.generation) == (
        "llama-8b",
        "team",
        "u-1",
        3,
    )
    assert not server.deleting
    assert server.status == {}
    assert (spec.model.served_name, spec.model.mount_path) == ("llama-8b", "/models")
    assert (spec.model.file, spec.model.sub_path) == (None, None)
    assert (spec.engine.version, spec.engine.image_pull_policy, spec.engine.port) == (
        "1.2.0",
        "IfNotPresent",
        None,
    )
    assert (spec.accelerator.resource, spec.accelerator.count) == ("nvidia.com/gpu", 1)
    assert spec.accelerator.class_label_keys == ("nvidia.com/gpu.product",)
    assert (spec.tensor, spec.replicas, spec.sizing.mode) == (1, 1, "Auto")
    assert (spec.sizing.cuda_graphs, spec.sizing.kv_cache_dtype, spec.sizing.extra_reserve) == (
        True,
        "auto",
        0,
    )
    sizing, rollout = spec.sizing, spec.rollout
    assert (sizing.probe, sizing.kv_cache_bytes, sizing.state_dtype) == (None, None, None)
    assert sizing.prefix_caching
    assert sizing.on_out_of_memory == OnOutOfMemory(
        shrink=True, step_percent=5, min_step=GIB, max_steps=3
    )
    assert spec.accelerator.memory_budget is None
    assert (rollout.drain_seconds, rollout.progress_deadline_seconds) == (300, None)
    assert (rollout.strategy, rollout.max_surge, rollout.max_unavailable) == (None, None, None)
    assert (rollout.paused, rollout.update_policy) == (False, "OnSpecChange")
    assert (spec.service.port, spec.service.type, spec.probes.startup_seconds) == (
        80,
        "ClusterIP",
        None,
    )
    assert spec.template.shared_memory_size == "2Gi"
    assert spec.template.affinity is None


def test_every_field_is_read() -> None:
    spec = parse(full()).spec
    model, engine, sizing, template = spec.model, spec.engine, spec.sizing, spec.template
    assert (model.claim_name, model.sub_path, model.file) == (
        "models",
        "Llama-3.1/8B",
        "model.gguf",
    )
    assert (model.served_name, model.mount_path) == ("meta-llama/Llama-3.1-8B", "/mnt/models")
    assert (engine.type, engine.image, engine.version) == (
        "LightLLM",
        FULL_SPEC["engine"]["image"],
        "1.2.0+cpu",
    )
    assert (engine.image_pull_policy, engine.port) == ("Always", 9000)
    assert (engine.command, engine.args) == (
        ("python", "-m", "lightllm.server.api_server"),
        ("--nccl_port", "4"),
    )
    assert list(engine.env) == FULL_SPEC["engine"]["env"]
    assert (spec.accelerator.resource, spec.accelerator.count, spec.tensor) == (
        "example.com/gpu",
        2,
        2,
    )
    assert spec.accelerator.products == ("NVIDIA-H100-80GB-HBM3",)
    assert spec.accelerator.class_label_keys == ("cloud.example/gpu", "nvidia.com/gpu.product")
    assert (sizing.mode, sizing.max_total_token_num, sizing.min_total_token_num) == (
        "Fixed",
        100000,
        50000,
    )
    assert (sizing.context_length, sizing.prefill_tokens, sizing.max_concurrent_requests) == (
        8192,
        2048,
        64,
    )
    assert (sizing.cuda_graphs, sizing.cuda_graph_max_batch) == (False, 32)
    assert (sizing.kv_cache_dtype, sizing.extra_reserve) == ("fp16", 3 * GIB // 2)
    assert (spec.replicas, spec.probes.startup_seconds) == (3, 120)
    assert (sizing.probe, sizing.state_dtype) == ("Torch", "bf16")
    assert not parse(full(IN_BYTES)).spec.sizing.prefix_caching
    assert sizing.on_out_of_memory == OnOutOfMemory(
        shrink=False, step_percent=10, min_step=GIB // 2, max_steps=5
    )
    assert spec.accelerator.memory_budget == 20 * GIB
    assert spec.rollout == Rollout(
        strategy="RollingUpdate",
        paused=True,
        drain_seconds=10,
        max_unavailable=2,
        max_surge=1,
        progress_deadline_seconds=900,
        update_policy="WithOperator",
    )
    assert (spec.service.port, spec.service.type, spec.service.labels) == (
        8080,
        "NodePort",
        {"team": "a"},
    )
    assert spec.service.annotations == {"example.com/a": "any text, really"}
    given = FULL_SPEC["template"]
    assert (template.node_selector, template.affinity) == (given["nodeSelector"], given["affinity"])
    assert list(template.tolerations) == given["tolerations"]
    assert list(template.topology_spread_constraints) == given["topologySpreadConstraints"]
    names = (template.scheduler_name, template.runtime_class_name, template.priority_class_name)
    assert names == ("volcano", "nvidia", "high")
    assert template.image_pull_secrets == ("pull",)
    assert (template.labels, template.annotations) == (given["labels"], given["annotations"])
    assert (template.shared_memory_size, template.security_context) == (
        "8Gi",
        given["securityContext"],
    )
    assert template.resources == {
        "requests": {"cpu": "500m", "memory": "16Gi", "ephemeral-storage": "1000"},
        "limits": {"cpu": "8", "memory": "32Gi"},
    }


def test_sizing_request_carries_every_input_of_the_arithmetic() -> None:
    assert sizing_request(parse(full())) == SizingRequest(
        engine_type="LightLLM",
        engine_version="1.2.0+cpu",
        engine_args=("--nccl_port", "4"),
        engine_env=("A", "B"),
        tensor=2,
        kv_cache_dtype="fp16",
        context_length=8192,
        prefill_tokens=2048,
        max_concurrent_requests=64,
        cuda_graphs=False,
        cuda_graph_max_batch=32,
        extra_reserve=3 * GIB // 2,
        max_total_token_num=100000,
        min_total_token_num=50000,
        model_file="model.gguf",
        state_dtype="bf16",
        prefix_caching=None,
        memory_budget=20 * GIB,
    )


def test_sizing_request_says_when_prefixes_are_not_kept() -> None:
    assert sizing_request(parse(full(IN_BYTES))).prefix_caching is False


def test_a_pool_in_bytes_is_read() -> None:
    sizing = parse(full(IN_BYTES)).spec.sizing
    assert (sizing.mode, sizing.max_total_token_num, sizing.kv_cache_bytes) == (
        "Fixed",
        None,
        8 * GIB,
    )


@pytest.mark.parametrize("mode", ["Stamped", "InPod"])
def test_a_given_mode_is_read(mode: str) -> None:
    assert parse(put(minimal(), "spec.sizing.mode", mode)).spec.sizing.mode == mode


def test_the_engines_own_choice_has_two_spellings_and_one_meaning() -> None:
    body = minimal()
    put(body, "spec.sizing", {"stateDType": "auto", "prefixCaching": True})
    assert parse(body) == parse(minimal())
    assert sizing_request(parse(body)) == sizing_request(parse(minimal()))


@pytest.mark.parametrize(
    "rollout",
    [
        {"strategy": "Recreate"},
        {"strategy": "RollingUpdate"},
        {"strategy": "RollingUpdate", "maxSurge": 0},
        {"strategy": "RollingUpdate", "maxUnavailable": 0},
        {"strategy": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 1},
        {"strategy": "RollingUpdate", "maxSurge": 1, "maxUnavailable": 0},
    ],
)
def test_these_rollouts_are_admitted(rollout: dict[str, Any]) -> None:
    found = parse(put(minimal(), "spec.rollout", rollout)).spec.rollout
    assert (found.strategy, found.max_surge, found.max_unavailable) == (
        rollout["strategy"],
        rollout.get("maxSurge"),
        rollout.get("maxUnavailable"),
    )


@pytest.mark.parametrize("body", [minimal(), full()])
def test_sizing_request_survives_its_json(body: dict[str, Any]) -> None:
    request = sizing_request(parse(body))
    assert SizingRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("ghcr.io/modeltc/lightllm:v1.2.0", "1.2.0"),
        ("lightllm:1.2.0", "1.2.0"),
        ("lightllm", None),
        ("localhost:5000/lightllm", None),
        ("localhost:5000/lightllm:v1", "1"),
        ("lightllm@sha256:abc", None),
        ("localhost:5000/lightllm:v1.2.0@sha256:abc", "1.2.0"),
        ("llama:server-b4567", "server-b4567"),
        ("llama:vulkan", "vulkan"),
        ("llama:v", "v"),
    ],
)
def test_version_from_the_image(image: str, version: str | None) -> None:
    assert image_version(image) == version
    assert parse(put(minimal(), "spec.engine.image", image)).spec.engine.version == version


def test_tensor_follows_the_count_when_absent() -> None:
    assert parse(put(minimal(), "spec.accelerator.count", 4)).spec.tensor == 4


def test_a_deleted_object_is_read_as_such() -> None:
    assert parse(put(minimal(), "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")).deleting


def test_null_counts_as_absent() -> None:
    body = minimal()
    for path in ("spec.sizing.mode", "spec.engine.args", "spec.template", "spec.parallelism", "spec.replicas",
                 "spec.sizing.extraReserve", "spec.template.sharedMemory.sizeLimit", "spec.futureField"):  # fmt: skip
        if path != "spec.template.sharedMemory.sizeLimit":
            put(body, path, None)
    assert parse(body) == parse(minimal())
    assert parse(put(minimal(), "spec.template.sharedMemory.sizeLimit", None)) == parse(minimal())


def test_a_whole_float_is_an_integer_as_for_the_api_server() -> None:
    assert parse(put(minimal(), "spec.replicas", 2.0)).spec.replicas == 2


NAMES = (
    "metadata.name must be a DNS label that starts with a letter (child names are derived from it)"
)

REFUSALS: list[tuple[str, object, str, str]] = [
    ("metadata.name", "a" * 53, "metadata.name", "of 1 to 52 characters"),
    ("metadata.name", "7b", "metadata.name", NAMES),
    ("metadata.name", "a.b", "metadata.name", NAMES),
    ("metadata.uid", None, "metadata.uid", "must be given"),
    ("spec", [], "spec", "must be an object"),
    ("spec.model", None, "spec.model.source", "exactly one source"),
    ("spec.model.source", {}, "spec.model.source", "exactly one source"),
    ("spec.model.source.hostPath", {"path": "/"}, "spec.model.source.hostPath", "is not known"),
    ("spec.model.source.persistentVolumeClaim.claimName", "A_b", "spec.model.source.persistentVolumeClaim.claimName",
     "the name of a volume claim"),
    ("spec.model.source.persistentVolumeClaim.subPath", "../x", "spec.model.source.persistentVolumeClaim.subPath",
     "a relative path"),
    ("spec.model.file", "/etc/passwd", "spec.model.file", "a relative path"),
    ("spec.model.file", "a/../../b", "spec.model.file", "a relative path"),
    ("spec.model.file", "$(PLIMSOLL_TOKENS)", "spec.model.file", "a relative path"),
    ("spec.model.file", "a\nb", "spec.model.file", "a relative path"),
    ("spec.model.servedName", "--trust-remote-code", "spec.model.servedName", "begins with a letter or digit"),
    ("spec.model.mountPath", "models", "spec.model.mountPath", "an absolute path"),
    ("spec.model.mountPath", "/a/../b", "spec.model.mountPath", "an absolute path"),
    ("spec.model.mountPath", "/a:b", "spec.model.mountPath", "an absolute path"),
    ("spec.model.mountPath", "//", "spec.model.mountPath", "other than /"),
    ("spec.model.mountPath", "/plimsoll", "spec.model.mountPath", "outside"),
    ("spec.model.mountPath", "/dev/shm", "spec.model.mountPath", "outside"),
    ("spec.engine.type", "Ollama", "spec.engine.type",
     "one of LightLLM, VLLM, SGLang, TGI, TensorRTLLM, LlamaCpp; it is 'Ollama'"),
    ("spec.engine.type", None, "spec.engine.type", "one of"),
    ("spec.engine.image", "", "spec.engine.image", "an image reference"),
    ("spec.engine.image", "a b", "spec.engine.image", "an image reference"),
    ("spec.engine.port", 65536, "spec.engine.port", "from 1 to 65535"),
    ("spec.engine.args", "--x", "spec.engine.args", "must be a list"),
    ("spec.engine.args", ["x"] * 129, "spec.engine.args", "at most 128 items; it is 129"),
    ("spec.engine.args", ["x", "y" * 1025], "spec.engine.args[1]", "1 to 1024 characters"),
    ("spec.engine.args", [5], "spec.engine.args[0]", "a text"),
    ("spec.engine.env", [{"name": "PLIMSOLL_TOKENS", "value": "1"}], "spec.engine.env[0].name", "none of"),
    ("spec.engine.env", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "spec.engine.env[0].name", "none of"),
    ("spec.engine.env", [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}], "spec.engine.env[0].name", "none of"),
    ("spec.engine.env", [{"name": "A=B", "value": "0"}], "spec.engine.env[0].name", "environment variable"),
    ("spec.engine.env", [{"name": "A"}], "spec.engine.env[0]", "exactly one of value and valueFrom"),
    ("spec.engine.env", [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
     "spec.engine.env[0]", "exactly one of value and valueFrom"),
    ("spec.engine.env", [{"name": "A", "value": "1"}] * 2, "spec.engine.env[1].name", "unique"),
    ("spec.engine.env", [{"name": "A", "value": 1}], "spec.engine.env[0].value", "a text"),
    ("spec.engine.env", [{"name": "A", "valueFrom": {"fieldRef": {}}}], "spec.engine.env[0].valueFrom.fieldRef",
     "is not known"),
    ("spec.engine.env", [{"name": "A", "valueFrom": {}}], "spec.engine.env[0].valueFrom.secretKeyRef", "given"),
    ("spec.engine.env", [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
     "spec.engine.env[0].valueFrom.secretKeyRef.key", "given"),
    ("spec.accelerator.resource", "cpu", "spec.accelerator.resource", "an extended resource"),
    ("spec.accelerator.count", 0, "spec.accelerator.count", "from 1 to 64"),
    ("spec.accelerator.count", True, "spec.accelerator.count", "a whole number"),
    ("spec.accelerator.count", 1.5, "spec.accelerator.count", "a whole number"),
    ("spec.accelerator.count", float("nan"), "spec.accelerator.count", "a whole number"),
    ("spec.accelerator", {"products": ["a"], "classLabelKeys": []}, "spec.accelerator.classLabelKeys", "at least one"),
    ("spec.parallelism.tensor", 2, "spec.parallelism.tensor", "equal to spec.accelerator.count, which is 1"),
    ("spec.parallelism.pipeline", 2, "spec.parallelism.pipeline", "is not known"),
    ("spec.replicas", -1, "spec.replicas", "from 0 to 10000"),
    ("spec.replicas", "1", "spec.replicas", "a whole number"),
    ("spec.sizing.mode", "Auto", "spec.sizing.mode", "one of Stamped, InPod, Fixed"),
    ("spec.sizing.mode", "Fixed", "spec.sizing.maxTotalTokenNum", "given when spec.sizing.mode is Fixed"),
    ("spec.sizing", {"minTotalTokenNum": 5, "maxTotalTokenNum": 4}, "spec.sizing.minTotalTokenNum", "at most"),
    ("spec.sizing.maxTotalTokenNum", 10**30, "spec.sizing.maxTotalTokenNum", "from 1 to"),
    ("spec.sizing.cudaGraphs.enabled", "yes", "spec.sizing.cudaGraphs.enabled", "true or false"),
    ("spec.sizing.kvCacheDType", "int2", "spec.sizing.kvCacheDType", "one of auto"),
    ("spec.sizing.extraReserve", "-1Gi", "spec.sizing.extraReserve", "a Kubernetes quantity of at least 0"),
    ("spec.sizing.extraReserve", "1 Gi", "spec.sizing.extraReserve", "a Kubernetes quantity"),
    ("spec.sizing.extraReserve", [], "spec.sizing.extraReserve", "a Kubernetes quantity"),
    ("spec.sizing.extraReserve", False, "spec.sizing.extraReserve", "a Kubernetes quantity"),
    ("spec.sizing.tokens", 1, "spec.sizing.tokens", "is not known to this version of the operator"),
    ("spec.sizing", {"mode": "Fixed", "maxTotalTokenNum": 1, "kvCacheBytes": 1}, "spec.sizing.maxTotalTokenNum",
     "(or spec.sizing.kvCacheBytes, but not both)"),
    ("spec.sizing.kvCacheBytes", "1Gi", "spec.sizing.kvCacheBytes", "left out unless spec.sizing.mode is Fixed"),
    ("spec.sizing", {"mode": "Fixed", "kvCacheBytes": "0"}, "spec.sizing.kvCacheBytes", "of at least 1"),
    ("spec.sizing", {"mode": "Fixed", "kvCacheBytes": "1Gi"}, "spec.sizing.kvCacheBytes",
     "left out with engine LightLLM, which takes tokens: set spec.sizing.maxTotalTokenNum"),
    ("spec.sizing.probe", "CUDA", "spec.sizing.probe", "one of NVML, Torch"),
    ("spec.sizing.stateDType", "int8", "spec.sizing.stateDType", "one of auto, bf16, fp16, fp32"),
    ("spec.sizing.prefixCaching", False, "spec.sizing.prefixCaching",
     "true or left out with engine LightLLM, which is not told to keep no prefixes; it is False"),
    ("spec.sizing.prefixCaching", "no", "spec.sizing.prefixCaching", "true or false"),
    ("spec.sizing.onOutOfMemory.action", "Grow", "spec.sizing.onOutOfMemory.action", "one of Shrink, None"),
    ("spec.sizing.onOutOfMemory.stepPercent", 51, "spec.sizing.onOutOfMemory.stepPercent", "from 1 to 50"),
    ("spec.sizing.onOutOfMemory.minStep", "0", "spec.sizing.onOutOfMemory.minStep", "of at least 1"),
    ("spec.sizing.onOutOfMemory.maxSteps", 17, "spec.sizing.onOutOfMemory.maxSteps", "from 0 to 16"),
    ("spec.accelerator.memoryBudget", 0, "spec.accelerator.memoryBudget", "of at least 1, such as 2Gi; it is 0"),
    ("spec.rollout.strategy", "Auto", "spec.rollout.strategy", "one of Recreate, RollingUpdate"),
    ("spec.rollout.paused", "no", "spec.rollout.paused", "true or false"),
    ("spec.rollout.updatePolicy", "Never", "spec.rollout.updatePolicy", "one of OnSpecChange, WithOperator"),
    ("spec.rollout.maxSurge", 1, "spec.rollout.strategy",
     "RollingUpdate where maxSurge or maxUnavailable is given; leave those out"),
    ("spec.rollout", {"strategy": "Recreate", "maxUnavailable": 1}, "spec.rollout.strategy", "it is 'Recreate'"),
    ("spec.rollout", {"strategy": "RollingUpdate", "maxUnavailable": "25%"}, "spec.rollout.maxUnavailable",
     "a whole number"),
    ("spec.rollout", {"strategy": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 0}, "spec.rollout.maxUnavailable",
     "at least 1 where maxSurge is 0, or no server could ever be replaced"),
    ("spec.rollout.drainSeconds", 86401, "spec.rollout.drainSeconds", "from 0 to 86400"),
    ("spec.service.type", "ExternalName", "spec.service.type", "one of ClusterIP"),
    ("spec.service.labels", {"plimsoll.dev/server": "x"}, "spec.service.labels[plimsoll.dev/server]", "no plimsoll"),
    ("spec.template.labels", {"plimsoll.dev/server": "x"}, "spec.template.labels[plimsoll.dev/server]", "no plimsoll"),
    ("spec.template.labels", {"app.kubernetes.io/managed-by": "x"},
     "spec.template.labels[app.kubernetes.io/managed-by]", "not app.kubernetes.io/managed-by"),
    ("spec.template.annotations", {"plimsoll.dev/x": "x"}, "spec.template.annotations[plimsoll.dev/x]", "no plimsoll"),
    ("spec.template.annotations", {"a b": "x"}, "spec.template.annotations[a b]", "a label key"),
    ("spec.template.annotations", {"a": 5}, "spec.template.annotations[a]", "a text"),
    ("spec.template.labels", {"a": "b c"}, "spec.template.labels[a]", "a label value"),
    ("spec.template.labels", {f"k{n}": "v" for n in range(33)}, "spec.template.labels", "at most 32 entries"),
    ("spec.template.hostNetwork", True, "spec.template.hostNetwork", "is not known"),
    ("spec.template.serviceAccountName", "x", "spec.template.serviceAccountName", "is not known"),
    ("spec.template.affinity.hostAffinity", {}, "spec.template.affinity.hostAffinity", "is not known"),
    ("spec.template.tolerations", [{"image": "x"}], "spec.template.tolerations[0].image", "is not known"),
    ("spec.template.topologySpreadConstraints", ["x"], "spec.template.topologySpreadConstraints[0]", "an object"),
    ("spec.template.imagePullSecrets", ["x"], "spec.template.imagePullSecrets[0]", "an object"),
    ("spec.template.sharedMemory.sizeLimit", "0", "spec.template.sharedMemory.sizeLimit", "of at least 1"),
    ("spec.template.securityContext.privileged", True, "spec.template.securityContext.privileged", "is not known"),
    ("spec.template.securityContext.runAsUser", 0, "spec.template.securityContext.runAsUser", "from 1 to"),
    ("spec.template.securityContext.supplementalGroups", [-1], "spec.template.securityContext.supplementalGroups[0]",
     "from 0 to"),
    ("spec.template.resources.limits", {"nvidia.com/gpu": 1},
     "spec.template.resources.limits[nvidia.com/gpu]", "GPUs come from spec.accelerator"),
    ("spec.template.resources.requests", {"cpu": "-1"}, "spec.template.resources.requests[cpu]", "a Kubernetes"),
    ("spec.template.resources", {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
     "spec.template.resources.requests[memory]", "at most 1Gi"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "field", "words"), REFUSALS)
def test_refusals_name_the_field(path: str, value: object, field: str, words: str) -> None:
    error = refused(put(minimal(), path, value))
    assert error.field == field
    assert error.message.startswith(f"{field} ")
    assert words in error.message
    assert error.reason == "InvalidSpec"
    assert len(error.message) < 600


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec.accelerator.count": 2}, "spec.accelerator.count"),
        ({"spec.sizing": {"mode": "Fixed", "maxTotalTokenNum": 1}}, "spec.model.file"),
        ({"spec.sizing.kvCacheDType": "int8"}, "spec.sizing.kvCacheDType"),
    ],
)
def test_what_llama_cpp_cannot_do_and_lightllm_can(changes: dict[str, object], field: str) -> None:
    body = minimal()
    for path, value in changes.items():
        put(body, path, value)
    parse(body)
    assert refused(put(body, "spec.engine.type", "LlamaCpp")).field == field


@pytest.mark.parametrize(
    ("engine", "pool", "field", "words"),
    [
        ("VLLM", {"maxTotalTokenNum": 1}, "spec.sizing.kvCacheBytes", "engine VLLM takes bytes, not tokens"),
        ("VLLM", {"kvCacheBytes": "1Gi"}, None, ""),
        ("SGLang", {"maxTotalTokenNum": 1}, None, ""),
        ("SGLang", {"kvCacheBytes": "1Gi"}, "spec.sizing.kvCacheBytes", "set spec.sizing.maxTotalTokenNum"),
        ("LlamaCpp", {"kvCacheBytes": "1Gi"}, "spec.sizing.kvCacheBytes", "engine LlamaCpp, which takes tokens"),
        ("TGI", {"maxTotalTokenNum": 1}, "spec.sizing.mode", "takes a share of the free memory and no number"),
        ("TensorRTLLM", {"kvCacheBytes": "1Gi"}, "spec.sizing.mode", "left out with engine TensorRTLLM"),
    ],
)  # fmt: skip
def test_a_fixed_pool_has_the_engines_unit(
    engine: str, pool: dict[str, Any], field: str | None, words: str
) -> None:
    body = put(put(minimal(), "spec.engine.type", engine), "spec.model.file", "m.gguf")
    error = refusal(put(body, "spec.sizing", {"mode": "Fixed", **pool}))
    assert (error and error.field) == field
    assert words in (error.message if error else "")


@pytest.mark.parametrize(
    ("request_", "limit", "fits"),
    [("2", "1500m", False), ("1500m", 2, True), ("1", "1000m", True), ("9E", "9E", False)],
)
def test_cpus_are_compared_in_parts(request_: str, limit: object, *, fits: bool) -> None:
    """Whole CPUs, rounded up, would let 2 pass for 1500m, which the pod's API then refuses."""
    resources = {"requests": {"cpu": request_}, "limits": {"cpu": limit}}
    error = refusal(put(minimal(), "spec.template.resources", resources))
    assert (error is None) is fits


def test_a_huge_value_does_not_flood_the_message() -> None:
    assert len(refused(put(minimal(), "spec.engine.type", "x" * 100_000)).message) < 200


PATHS = [path.replace("[*]", ".cpu") for path, _ in walk(schema()["properties"]["spec"], "spec")]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(path=st.sampled_from(PATHS), value=JSON)
def test_whatever_stands_in_a_field_is_read_or_refused_by_name(path: str, value: object) -> None:
    error = refusal(put(full(), path.replace("env[0].valueFrom", "env[1].valueFrom"), value))
    assert error is None or str(error.field).startswith("spec")


def refusal(body: dict[str, Any]) -> InvalidSpec | None:
    try:
        parse(body)
    except InvalidSpec as error:
        return error
    return None
