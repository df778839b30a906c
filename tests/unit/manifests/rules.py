"""What the CEL rules of crd.yaml refuse, each with its message, and what the reader refuses as well."""

from __future__ import annotations

from typing import Any

from tests.unit.manifests.samples import minimal, put

ENV = "spec.engine.env"
CLAIM = "spec.model.source.persistentVolumeClaim"
RESOURCES = "spec.template.resources"
KEYS = "may not set plimsoll.dev/ keys or app.kubernetes.io/managed-by, which Plimsoll sets itself"
LABEL_KEY = "every key must be a label key such as example.com/team"
RELATIVE = 'must be a relative path without ".."'
NO_DOLLAR = 'may not hold "$", a backslash or control characters'
TAKEN_MOUNT = "may not be / and may not lie in /dev, /etc, /plimsoll, /proc, /sys or /var/run"
TAKEN_ENV = (
    "may not be NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES or PLIMSOLL_*, "
    "which the device plugin and Plimsoll set"
)
ONE_VALUE = "must have exactly one of value and valueFrom"
NAME = (
    "metadata.name must be a DNS label that starts with a letter and has at most 52 characters, "
    "so that the names derived from it fit"
)
TENSOR = (
    "parallelism.tensor must equal accelerator.count: tensor parallelism is the only kind yet, "
    "so other devices would idle; leave it out to follow the count"
)
REFERENCE = {"secretKeyRef": {"name": "s", "key": "k"}}
DTYPES = (
    "the engine does not know this kvCacheDType: LightLLM knows auto, bf16, fp16, fp32, fp8, int8, int4; "
    "VLLM knows auto, bf16, fp16, fp8, nvfp4; SGLang knows auto, bf16, fp16, fp8, mxfp8, nvfp4; "
    "TGI knows auto, bf16, fp16, fp8; TensorRTLLM knows auto, bf16, fp16, fp8, nvfp4; "
    "LlamaCpp knows auto, bf16, fp16, fp32, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
)
ONE_NUMBER = (
    "mode Fixed needs maxTotalTokenNum, the number to serve with, or kvCacheBytes, but not both"
)
NOT_FIXED = "kvCacheBytes is the number of mode Fixed; leave it out, or set mode to Fixed"
TOKENS_ONLY = (
    "engines LightLLM, SGLang and LlamaCpp take tokens and no bytes; "
    "set sizing.maxTotalTokenNum instead"
)
BYTES_ONLY = "engine VLLM takes bytes, so in sizing.mode Fixed sizing.kvCacheBytes is needed"
NO_NUMBER = (
    "engines TGI and TensorRTLLM take a share of the free memory and no number, "
    "so sizing.mode may not be Fixed; leave it out"
)
STATES = "stateDType is told to engines LightLLM and VLLM only; leave it out"
PREFIXES = "prefixCaching false is told to engines VLLM and SGLang only; leave it out"
ROLLING = (
    "maxSurge and maxUnavailable need strategy RollingUpdate; "
    "leave them out to let the free GPUs decide"
)
FIXED_TOKENS = {"mode": "Fixed", "maxTotalTokenNum": 1}
FIXED_BYTES = {"mode": "Fixed", "kvCacheBytes": "1Gi"}
ABOVE_0 = "must be a quantity above 0, such as 2Gi"
AT_LEAST_0 = "must be a quantity of at least 0, such as 500m or 16Gi"

# (field that is set, its value, field that the answer names, message of the rule), with engine LightLLM
_ANY_ENGINE: list[tuple[str, object, str, str]] = [
    ("metadata.name", "a" * 53, "metadata.name", NAME),
    ("metadata.name", "7b", "metadata.name", NAME),
    ("metadata.name", "a.b", "metadata.name", NAME),
    ("spec.model.source", {}, "spec.model.source",
     "model.source needs exactly one source; this version knows persistentVolumeClaim"),
    (f"{CLAIM}.subPath", "/abs", f"{CLAIM}.subPath", RELATIVE),
    (f"{CLAIM}.subPath", "a/../..", f"{CLAIM}.subPath", RELATIVE),
    (f"{CLAIM}.subPath", "$(HOME)", f"{CLAIM}.subPath", NO_DOLLAR),
    ("spec.model.file", "..", "spec.model.file", RELATIVE),
    ("spec.model.file", "a b", "spec.model.file", "may hold only letters, digits and - . _ /"),
    ("spec.model.servedName", "--api-key", "spec.model.servedName",
     "must begin with a letter or digit and hold only letters, digits and - . _ / : @ +"),
    ("spec.model.mountPath", "models", "spec.model.mountPath", 'must be an absolute path without ".." and ":"'),
    ("spec.model.mountPath", "/a/../b", "spec.model.mountPath", 'must be an absolute path without ".." and ":"'),
    ("spec.model.mountPath", "/a:b", "spec.model.mountPath", 'must be an absolute path without ".." and ":"'),
    ("spec.model.mountPath", "/$(A)", "spec.model.mountPath", NO_DOLLAR),
    ("spec.model.mountPath", "/", "spec.model.mountPath", TAKEN_MOUNT),
    ("spec.model.mountPath", "/dev/shm", "spec.model.mountPath", TAKEN_MOUNT),
    ("spec.model.mountPath", "/plimsoll", "spec.model.mountPath", TAKEN_MOUNT),
    ("spec.engine.image", "a b", "spec.engine.image", "must be an image reference without blanks"),
    ("spec.engine.version", "v 1", "spec.engine.version", "must be a version such as 1.2.0"),
    (ENV, [{"name": "A=B", "value": "1"}], f"{ENV}[0].name", "must be the name of an environment variable"),
    (ENV, [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], f"{ENV}[0].name", TAKEN_ENV),
    (ENV, [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}], f"{ENV}[0].name", TAKEN_ENV),
    (ENV, [{"name": "PLIMSOLL_TOKENS", "value": "9"}], f"{ENV}[0].name", TAKEN_ENV),
    (ENV, [{"name": "A"}], f"{ENV}[0]", ONE_VALUE),
    (ENV, [{"name": "A", "value": "", "valueFrom": REFERENCE}], f"{ENV}[0]", ONE_VALUE),
    ("spec.accelerator.resource", "cpu", "spec.accelerator.resource",
     "must be an extended resource such as nvidia.com/gpu"),
    ("spec.accelerator.memoryBudget", 0, "spec.accelerator.memoryBudget", ABOVE_0),
    ("spec.accelerator.memoryBudget", "-20Gi", "spec.accelerator.memoryBudget", ABOVE_0),
    ("spec.accelerator.memoryBudget", "half", "spec.accelerator.memoryBudget", ABOVE_0),
    ("spec.accelerator", {"products": ["H100"], "classLabelKeys": []}, "spec.accelerator.classLabelKeys",
     "products are values of the class label, so classLabelKeys needs at least one key"),
    ("spec.parallelism.tensor", 2, "spec.parallelism.tensor", TENSOR),
    ("spec.sizing.kvCacheDType", "q8_0", "spec.sizing.kvCacheDType", DTYPES),
    ("spec.sizing.mode", "Fixed", "spec.sizing.maxTotalTokenNum",
     ONE_NUMBER),
    ("spec.sizing", {"mode": "Fixed", "maxTotalTokenNum": 1, "kvCacheBytes": "1Gi"}, "spec.sizing.maxTotalTokenNum",
     ONE_NUMBER),
    ("spec.sizing.kvCacheBytes", "1Gi", "spec.sizing.kvCacheBytes", NOT_FIXED),
    ("spec.sizing", {"mode": "InPod", "kvCacheBytes": "1Gi"}, "spec.sizing.kvCacheBytes", NOT_FIXED),
    ("spec.sizing", {"minTotalTokenNum": 2, "maxTotalTokenNum": 1}, "spec.sizing.minTotalTokenNum",
     "minTotalTokenNum may not exceed maxTotalTokenNum"),
    ("spec.sizing.extraReserve", "-1Gi", "spec.sizing.extraReserve", "must be a quantity of at least 0, such as 2Gi"),
    ("spec.sizing.extraReserve", -1, "spec.sizing.extraReserve", "must be a quantity of at least 0, such as 2Gi"),
    ("spec.sizing.extraReserve", "2 GB", "spec.sizing.extraReserve", "must be a quantity of at least 0, such as 2Gi"),
    ("spec.sizing.onOutOfMemory.minStep", 0, "spec.sizing.onOutOfMemory.minStep", ABOVE_0),
    ("spec.rollout.maxSurge", 1, "spec.rollout.strategy", ROLLING),
    ("spec.rollout.maxUnavailable", 0, "spec.rollout.strategy", ROLLING),
    ("spec.rollout", {"strategy": "Recreate", "maxSurge": 1}, "spec.rollout.strategy", ROLLING),
    ("spec.rollout", {"strategy": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 0}, "spec.rollout.maxUnavailable",
     "maxSurge and maxUnavailable may not both be 0, or no server could ever be replaced"),
    ("spec.service.labels", {"plimsoll.dev/server": "x"}, "spec.service.labels", KEYS),
    ("spec.service.annotations", {"plimsoll.dev/x": "x"}, "spec.service.annotations", KEYS),
    ("spec.service.annotations", {"a b": "x"}, "spec.service.annotations", LABEL_KEY),
    ("spec.template.labels", {"plimsoll.dev/sizing-for": "x"}, "spec.template.labels", KEYS),
    ("spec.template.labels", {"app.kubernetes.io/managed-by": "Helm"}, "spec.template.labels", KEYS),
    ("spec.template.annotations", {"plimsoll.dev/x": "x"}, "spec.template.annotations", KEYS),
    ("spec.template.nodeSelector", {"-a": "x"}, "spec.template.nodeSelector", LABEL_KEY),
    ("spec.template.sharedMemory.sizeLimit", "0", "spec.template.sharedMemory.sizeLimit", ABOVE_0),
    (f"{RESOURCES}.limits", {"nvidia.com/gpu": 1}, f"{RESOURCES}.limits",
     "may hold only cpu, memory and ephemeral-storage; GPUs come from spec.accelerator"),
    (f"{RESOURCES}.requests", {"cpu": "-1"}, f"{RESOURCES}.requests[cpu]", AT_LEAST_0),
    (f"{RESOURCES}.requests", {"memory": "much"}, f"{RESOURCES}.requests[memory]", AT_LEAST_0),
    (RESOURCES, {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}, f"{RESOURCES}.requests",
     "a request may not exceed its limit"),
]  # fmt: skip

# As above, with the engine before it.
_BY_ENGINE: list[tuple[str, str, object, str, str]] = [
    ("LlamaCpp", "spec.accelerator.count", 2, "spec.accelerator.count",
     "engine LlamaCpp needs accelerator.count 1: a model split over several of its devices cannot be sized yet"),
    ("LlamaCpp", "spec.sizing", FIXED_TOKENS, "spec.model.file",
     "engine LlamaCpp serves one file, and in sizing.mode Fixed nothing looks for it, so model.file is needed"),
    ("LlamaCpp", "spec.sizing.kvCacheDType", "int8", "spec.sizing.kvCacheDType", DTYPES),
    ("VLLM", "spec.sizing.kvCacheDType", "fp32", "spec.sizing.kvCacheDType", DTYPES),
    ("SGLang", "spec.sizing.kvCacheDType", "q8_0", "spec.sizing.kvCacheDType", DTYPES),
    ("TGI", "spec.sizing.kvCacheDType", "nvfp4", "spec.sizing.kvCacheDType", DTYPES),
    ("TensorRTLLM", "spec.sizing.kvCacheDType", "mxfp8", "spec.sizing.kvCacheDType", DTYPES),
    ("VLLM", "spec.sizing", FIXED_TOKENS, "spec.sizing.kvCacheBytes", BYTES_ONLY),
    ("SGLang", "spec.sizing.stateDType", "fp32", "spec.sizing.stateDType", STATES),
    ("TGI", "spec.sizing.stateDType", "bf16", "spec.sizing.stateDType", STATES),
    ("TensorRTLLM", "spec.sizing.stateDType", "fp16", "spec.sizing.stateDType", STATES),
    ("LlamaCpp", "spec.sizing.stateDType", "fp32", "spec.sizing.stateDType", STATES),
    ("LightLLM", "spec.sizing.prefixCaching", False, "spec.sizing.prefixCaching", PREFIXES),
    ("TGI", "spec.sizing.prefixCaching", False, "spec.sizing.prefixCaching", PREFIXES),
    ("TensorRTLLM", "spec.sizing.prefixCaching", False, "spec.sizing.prefixCaching", PREFIXES),
    ("LlamaCpp", "spec.sizing.prefixCaching", False, "spec.sizing.prefixCaching", PREFIXES),
    ("TGI", "spec.sizing", FIXED_TOKENS, "spec.sizing.mode", NO_NUMBER),
    ("TGI", "spec.sizing", FIXED_BYTES, "spec.sizing.mode", NO_NUMBER),
    ("TensorRTLLM", "spec.sizing", FIXED_TOKENS, "spec.sizing.mode", NO_NUMBER),
    ("TensorRTLLM", "spec.sizing", FIXED_BYTES, "spec.sizing.mode", NO_NUMBER),
    ("LightLLM", "spec.sizing", FIXED_BYTES, "spec.sizing.kvCacheBytes", TOKENS_ONLY),
    ("SGLang", "spec.sizing", FIXED_BYTES, "spec.sizing.kvCacheBytes", TOKENS_ONLY),
]  # fmt: skip
RULES = [("LightLLM", *row) for row in _ANY_ENGINE] + _BY_ENGINE


def case(engine: str, path: str, value: object) -> dict[str, Any]:
    """The least server of that engine with one field set."""
    return put(put(minimal(), "spec.engine.type", engine), path, value)
