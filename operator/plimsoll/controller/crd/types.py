"""The typed form of an ``InferenceServer``: what the rest of the controller reads.

Plain frozen values without behaviour. They are built by :mod:`plimsoll.controller.crd` only, which
has checked every bound, so builders and decisions need no second look. Absent optional values are
``None``; where the resource leaves a value out and absence has a meaning, the *effective* value is
stored (named so below). Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "plimsoll.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceServer"
PLURAL: Final = "inferenceservers"

AUTO: Final = "Auto"
STAMPED: Final = "Stamped"
INPOD: Final = "InPod"
FIXED: Final = "Fixed"
ENGINE: Final = "Engine"

NVML: Final = "NVML"
TORCH: Final = "Torch"

RECREATE: Final = "Recreate"
ROLLING_UPDATE: Final = "RollingUpdate"
ON_SPEC_CHANGE: Final = "OnSpecChange"
WITH_OPERATOR: Final = "WithOperator"


@dataclass(frozen=True, slots=True)
class Model:
    """Where the weights are and how the server names them.

    ``sub_path`` is the model's folder in the volume (``None``: its root), ``file`` is below that
    folder; ``served_name`` is effective.
    """

    claim_name: str
    sub_path: str | None
    file: str | None
    served_name: str
    mount_path: str


@dataclass(frozen=True, slots=True)
class Engine:
    """The LLM server: its image and what the user adds to its command line.

    ``version`` is effective: the given one, else the image's tag; ``None`` where neither tells.
    ``port`` is ``None`` for the engine's own default. ``env`` entries have the shape of a
    container's env, with ``value`` or ``valueFrom.secretKeyRef``.
    """

    type: str
    image: str
    image_pull_policy: str
    version: str | None
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[Mapping[str, Any], ...]
    port: int | None


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The devices of one pod; ``products`` are allowed values of the class label (empty: any).

    ``memory_budget`` is in bytes per device, for devices that are shared; None: all of it.
    """

    resource: str
    count: int
    products: tuple[str, ...]
    class_label_keys: tuple[str, ...]
    memory_budget: int | None


@dataclass(frozen=True, slots=True)
class OnOutOfMemory:
    """What follows an engine that ran out of device memory as it started.

    One step takes ``step_percent`` of the pool, and no less than ``min_step`` bytes of it; after
    ``max_steps`` of them the server is given up.
    """

    shrink: bool
    step_percent: int
    min_step: int
    max_steps: int


@dataclass(frozen=True, slots=True)
class Sizing:
    """How the token number is found.

    ``mode`` is effective (Auto when absent), ``kv_cache_bytes`` and ``extra_reserve`` are bytes,
    ``state_dtype`` is None and ``prefix_caching`` True for the engine's own choice.
    """

    mode: str
    probe: str | None
    max_total_token_num: int | None
    min_total_token_num: int | None
    kv_cache_bytes: int | None
    context_length: int | None
    prefill_tokens: int | None
    max_concurrent_requests: int | None
    cuda_graphs: bool
    cuda_graph_max_batch: int | None
    kv_cache_dtype: str
    state_dtype: str | None
    prefix_caching: bool
    extra_reserve: int
    on_out_of_memory: OnOutOfMemory


@dataclass(frozen=True, slots=True)
class Rollout:
    """How servers are replaced; times in seconds.

    ``strategy`` is None for Auto, ``max_surge`` and ``max_unavailable`` count pods, and an absent
    deadline is derived by the builder.
    """

    strategy: str | None
    paused: bool
    drain_seconds: int
    max_unavailable: int | None
    max_surge: int | None
    progress_deadline_seconds: int | None
    update_policy: str


@dataclass(frozen=True, slots=True)
class Probes:
    """Seconds a server may take to start; ``None``: derived from the bytes of the weights."""

    startup_seconds: int | None


@dataclass(frozen=True, slots=True)
class Service:
    """The Service in front of the server pods."""

    port: int
    type: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Template:
    """The closed list of pod fields a user may set; objects keep their Kubernetes spelling.

    ``shared_memory_size`` is a Quantity; ``resources`` holds ``requests`` and ``limits`` of cpu,
    memory and ephemeral-storage only.
    """

    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    affinity: Mapping[str, Any] | None
    topology_spread_constraints: tuple[Mapping[str, Any], ...]
    scheduler_name: str | None
    runtime_class_name: str | None
    priority_class_name: str | None
    image_pull_secrets: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    shared_memory_size: str
    security_context: Mapping[str, Any]
    resources: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Spec:
    """The whole desired state; ``tensor`` is effective (the accelerator count when absent)."""

    model: Model
    engine: Engine
    accelerator: Accelerator
    tensor: int
    replicas: int
    sizing: Sizing
    rollout: Rollout
    probes: Probes
    service: Service
    template: Template


@dataclass(frozen=True, slots=True)
class InferenceServer:
    """One ``InferenceServer``; ``status`` is the raw status as last read (empty when new)."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool
    spec: Spec
    status: Mapping[str, Any]
