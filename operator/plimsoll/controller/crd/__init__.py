"""Reads an ``InferenceServer`` as the API server hands it out into typed, checked values.

The schema and the CEL rules of ``manifests/crd.yaml`` say the same and answer first, at admission.
This reader keeps the operator safe where they are older, newer or switched off, and it fills in the
*effective* values: defaults whose absence has a meaning and which the schema therefore leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.fields import (
    ENV_NAME,
    EXTENDED_RESOURCE,
    LABEL_KEY,
    LABEL_VALUE,
    PLAIN,
    SUBDOMAIN,
    Fields,
    InvalidSpec,
    invalid,
    optional_quantity,
)
from plimsoll.controller.crd.fits import check_engine_fits
from plimsoll.controller.crd.rollout import DAY, parse_rollout
from plimsoll.controller.crd.sizing import KV_CACHE_DTYPES, MAX_TOKENS, parse_sizing
from plimsoll.controller.crd.template import parse_template, user_metadata
from plimsoll.controller.crd.types import (
    API_VERSION,
    AUTO,
    ENGINE,
    FIXED,
    GROUP,
    INPOD,
    KIND,
    PLURAL,
    STAMPED,
    VERSION,
    Accelerator,
    Engine,
    InferenceServer,
    Model,
    Probes,
    Rollout,
    Service,
    Sizing,
    Spec,
    Template,
)
from plimsoll.core.request import SizingRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "API_VERSION", "AUTO", "ENGINE", "FIXED", "GROUP", "INPOD", "KIND", "KV_CACHE_DTYPES", "MAX_TOKENS",
    "PLURAL", "STAMPED", "VERSION",
    "Accelerator", "Engine", "InferenceServer", "InvalidSpec", "Model", "Probes", "Rollout",
    "Service", "Sizing", "Spec", "Template", "image_version", "parse", "sizing_request",
]  # fmt: skip

PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")

# The sizing pod is called `<name>-sz-<7 hex>` and a pod's hostname ends at 63 characters.
MAX_NAME: Final = 52
NAME: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
MAX_DEVICES: Final = 64
MAX_ENV_VALUE: Final = 4096

DEFAULT_RESOURCE: Final = "nvidia.com/gpu"
DEFAULT_CLASS_LABELS: Final = ("nvidia.com/gpu.product",)
DEFAULT_MOUNT: Final = "/models"

# A mount here would hide the devices, the kernel's files or the sizer's own volume.
_TAKEN_MOUNTS: Final = ("/dev", "/etc", "/plimsoll", "/proc", "/sys", "/var/run")

_SERVED_NAME: Final = r"[A-Za-z0-9][-A-Za-z0-9._/:@+]*"
_VERSION: Final = r"[A-Za-z0-9][-A-Za-z0-9._+]*"
# The sizer repeats it in its report, which admits no more.
_FILE: Final = r"[-A-Za-z0-9._/]+"
_IMAGE: Final = r"[^\s\x00-\x1f\x7f$]+"


def parse(body: Mapping[str, Any]) -> InferenceServer:
    """The typed form of one object from the API server.

    Args:
        body: the whole object: metadata, spec and (when it has one) status.

    Raises:
        InvalidSpec: a field is missing, unknown, of the wrong kind or out of bounds; the message
            and ``field`` carry its full path.
    """
    root = Fields.of("", body)
    metadata = root.child("metadata")
    name = metadata.text(
        "name",
        MAX_NAME,
        NAME,
        need="a DNS label that starts with a letter (child names are derived from it)",
    )
    return InferenceServer(
        name=name,
        namespace=metadata.text("namespace", 63),
        uid=metadata.text("uid", 128),
        generation=metadata.integer("generation", 0, 2**63 - 1, default=0),
        deleting=metadata.has("deletionTimestamp"),
        spec=_spec(root.child("spec", _SPEC_FIELDS), name),
        status=root.child("status").values,
    )


def sizing_request(server: InferenceServer) -> SizingRequest:
    """The question that fit, the sizer and the controller all answer from.

    It holds every input of the arithmetic that the resource gives, and nothing about where the pod
    runs: the devices are measured where it does.
    """
    spec, sizing = server.spec, server.spec.sizing
    return SizingRequest(
        engine_type=spec.engine.type,
        engine_version=spec.engine.version,
        engine_args=spec.engine.args,
        engine_env=tuple(entry["name"] for entry in spec.engine.env),
        tensor=spec.tensor,
        kv_cache_dtype=sizing.kv_cache_dtype,
        context_length=sizing.context_length,
        prefill_tokens=sizing.prefill_tokens,
        max_concurrent_requests=sizing.max_concurrent_requests,
        cuda_graphs=sizing.cuda_graphs,
        cuda_graph_max_batch=sizing.cuda_graph_max_batch,
        extra_reserve=sizing.extra_reserve,
        max_total_token_num=sizing.max_total_token_num,
        min_total_token_num=sizing.min_total_token_num,
        model_file=spec.model.file,
        state_dtype=sizing.state_dtype,
        memory_budget=spec.accelerator.memory_budget,
        mode=ENGINE if sizing.mode == ENGINE else None,
        # Unset where it says what the engine does anyway: a new key would change every hash.
        prefix_caching=None if sizing.prefix_caching else False,
    )


def image_version(image: str) -> str | None:
    """The engine version that an image reference tells: its tag without a leading ``v``.

    A reference by digest alone, or without a tag, tells none. The first colon may belong to the
    registry's port, so only the last path segment is looked at.
    """
    repository = image.partition("@")[0]
    tag = repository.rpartition("/")[2].partition(":")[2]
    if len(tag) > 1 and tag[0] == "v" and tag[1].isdigit():
        tag = tag[1:]
    return tag or None


_ENGINE_FIELDS: Final = frozenset({
    "type", "image", "imagePullPolicy", "version", "command", "args", "env", "port",
})  # fmt: skip
_ACCELERATOR_FIELDS: Final = frozenset({
    "resource", "count", "products", "classLabelKeys", "memoryBudget",
})  # fmt: skip
_SPEC_FIELDS: Final = frozenset({
    "model", "engine", "accelerator", "parallelism", "replicas", "sizing", "rollout", "probes",
    "service", "template",
})  # fmt: skip


def _spec(spec: Fields, name: str) -> Spec:
    engine = _engine(spec.child("engine", _ENGINE_FIELDS))
    accelerator = _accelerator(spec.child("accelerator", _ACCELERATOR_FIELDS))
    probes = spec.child("probes", {"startupSeconds"})
    found = Spec(
        model=_model(spec.child("model", {"source", "file", "servedName", "mountPath"}), name),
        engine=engine,
        accelerator=accelerator,
        tensor=_tensor(spec.child("parallelism", {"tensor"}), accelerator.count),
        replicas=spec.integer("replicas", 0, 10_000, default=1),
        sizing=parse_sizing(spec, engine.type),
        rollout=parse_rollout(spec),
        probes=Probes(startup_seconds=probes.integer("startupSeconds", 1, DAY)),
        service=_service(spec.child("service", {"port", "type", "annotations", "labels"})),
        template=parse_template(spec.child("template")),
    )
    check_engine_fits(found)
    return found


def _model(model: Fields, name: str) -> Model:
    source = model.child("source", {"persistentVolumeClaim"})
    if not source.has("persistentVolumeClaim"):
        raise invalid(source.path, None, "given: exactly one source, persistentVolumeClaim")
    claim = source.child("persistentVolumeClaim", {"claimName", "subPath"})
    return Model(
        claim_name=claim.text("claimName", 253, SUBDOMAIN, need="the name of a volume claim"),
        sub_path=_relative(
            claim,
            "subPath",
            512,
            PLAIN,
            'a relative path without "..", "$", a backslash or control characters',
        ),
        file=_relative(
            model,
            "file",
            255,
            _FILE,
            'a relative path without "..", of letters, digits and - . _ /',
        ),
        served_name=model.text(
            "servedName",
            253,
            _SERVED_NAME,
            need="a model name that begins with a letter or digit, without blanks",
            default=name,
        ),
        mount_path=_mount_path(model),
    )


def _relative(parent: Fields, field: str, limit: int, pattern: str, need: str) -> str | None:
    value = parent.text(field, limit, pattern, need=need, default=None)
    if value is not None and (value.startswith("/") or ".." in value.split("/")):
        raise invalid(parent.at(field), value, need)
    return value


def _mount_path(model: Fields) -> str:
    need = (
        'an absolute path without ":", "$" or "..", other than / and outside '
        f"{', '.join(_TAKEN_MOUNTS)}"
    )
    value = model.text("mountPath", 512, PLAIN, need=need, default=DEFAULT_MOUNT)
    parts = value.split("/")
    inside = any(value == taken or value.startswith(f"{taken}/") for taken in _TAKEN_MOUNTS)
    if not value.startswith("/") or not any(parts) or ".." in parts or ":" in value or inside:
        raise invalid(model.at("mountPath"), value, need)
    return value


def _engine(engine: Fields) -> Engine:
    image = engine.text("image", 512, _IMAGE, need="an image reference")
    return Engine(
        type=engine.choice("type", KV_CACHE_DTYPES),
        image=image,
        image_pull_policy=engine.choice("imagePullPolicy", PULL_POLICIES, "IfNotPresent"),
        version=engine.text(
            "version", 128, _VERSION, need="a version such as 1.2.0", default=image_version(image)
        ),
        command=engine.texts("command", 16, 1024),
        args=engine.texts("args", 128, 1024),
        env=_env(engine),
        port=engine.integer("port", 1, 65_535),
    )


def _env(engine: Fields) -> tuple[Mapping[str, Any], ...]:
    """The user's environment; device visibility and Plimsoll's own names are not theirs to set."""
    entries: dict[str, Mapping[str, Any]] = {}
    for entry in engine.items("env", 64, {"name", "value", "valueFrom"}):
        name = entry.text("name", 253, ENV_NAME, need="the name of an environment variable")
        if name in {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} or name.startswith(
            "PLIMSOLL_"
        ):
            raise invalid(
                entry.at("name"),
                name,
                "none of NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES and PLIMSOLL_*, which the "
                "device plugin and Plimsoll set",
            )
        if name in entries:
            raise invalid(entry.at("name"), name, "unique in env")
        if entry.has("value") == entry.has("valueFrom"):
            raise invalid(entry.path, name, "given exactly one of value and valueFrom")
        entries[name] = {"name": name, **_env_value(entry)}
    return tuple(entries.values())


def _env_value(entry: Fields) -> dict[str, Any]:
    if entry.has("value"):
        value = entry.values["value"]
        if not isinstance(value, str) or len(value) > MAX_ENV_VALUE:
            raise invalid(entry.at("value"), value, f"a text of at most {MAX_ENV_VALUE} characters")
        return {"value": value}
    source = entry.child("valueFrom", {"secretKeyRef"})
    if not source.has("secretKeyRef"):
        raise invalid(source.at("secretKeyRef"), None, "given")
    ref = source.child("secretKeyRef", {"name", "key", "optional"})
    secret: dict[str, Any] = {
        "name": ref.text("name", 253, SUBDOMAIN, need="the name of a Secret"),
        "key": ref.text("key", 253, r"[-._a-zA-Z0-9]+", need="a key of the Secret"),
    }
    if ref.has("optional"):
        secret["optional"] = ref.flag("optional", default=False)
    return {"valueFrom": {"secretKeyRef": secret}}


def _accelerator(accelerator: Fields) -> Accelerator:
    keys = accelerator.texts("classLabelKeys", 8, 317, LABEL_KEY, need="a node label's key")
    if not accelerator.has("classLabelKeys"):
        keys = DEFAULT_CLASS_LABELS
    products = accelerator.texts("products", 16, 63, LABEL_VALUE, need="a node label's value")
    if products and not keys:
        raise invalid(
            accelerator.at("classLabelKeys"), [], "given at least one key where products are given"
        )
    return Accelerator(
        resource=accelerator.text(
            "resource",
            317,
            EXTENDED_RESOURCE,
            need="an extended resource such as nvidia.com/gpu",
            default=DEFAULT_RESOURCE,
        ),
        count=accelerator.integer("count", 1, MAX_DEVICES, default=1),
        products=products,
        class_label_keys=keys,
        memory_budget=optional_quantity(accelerator, "memoryBudget"),
    )


def _tensor(parallelism: Fields, count: int) -> int:
    """The number of ranks: as tensor parallelism is the only kind yet, fewer would idle devices."""
    tensor = parallelism.integer("tensor", 1, MAX_DEVICES, default=count)
    if tensor != count:
        raise invalid(
            parallelism.at("tensor"), tensor, f"equal to spec.accelerator.count, which is {count}"
        )
    return tensor


def _service(service: Fields) -> Service:
    return Service(
        port=service.integer("port", 1, 65_535, default=80),
        type=service.choice("type", SERVICE_TYPES, "ClusterIP"),
        annotations=user_metadata(service, "annotations"),
        labels=user_metadata(service, "labels"),
    )
