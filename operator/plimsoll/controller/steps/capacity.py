"""``status.capacity``: a sizing result as it is stored, and read back as the stamp of a template.

The operator remembers nothing. What the Deployment needs is read from here on every pass, so a
restart, or a Deployment that somebody deleted, costs no new measurement.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import MAX_TOKENS
from plimsoll.controller.crd.types import FIXED
from plimsoll.controller.objects import Pin, Stamp, sizing_key
from plimsoll.controller.objects.names import HOSTNAME_LABEL
from plimsoll.controller.status import seconds_since
from plimsoll.core.engines.base import Pinned
from plimsoll.core.errors import ResultInvalid
from plimsoll.core.plausible import Claim, check
from plimsoll.core.report import is_model_file

# What makes two devices the same kind, as the sizer reports it.
_CLASS_KEYS: Final = ("product", "totalBytes", "mig", "sharing", "count")
# The meaning of a number of tokens that all have one size.
_ONE_SIZE: Final = "AllLayersFull"
# In place of a sizing key: the answer is shown, and answers no question any more.
STALE: Final = "stale"
# Seconds for which a node counts as new, and for which its label is waited for.
NEW_NODE: Final = 600.0
LABEL_PATIENCE: Final = 20.0
# More than the schema admits as spec.sizing.onOutOfMemory.maxSteps were not ours.
MAX_STEPS: Final = 16

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.core.report import DeviceClass, Report

MEASURED: Final = "Measured"
IN_POD: Final = "InPod"
ENGINES_OWN: Final = "Engine"
MEASURED_SOURCES: Final = frozenset({MEASURED, IN_POD, ENGINES_OWN})
USER_PROVIDED: Final = "UserProvided"


def measured(
    server: InferenceServer, report: Report, *, node: Mapping[str, Any], request_hash: str, at: str
) -> dict[str, Any]:
    """A result of the sizing pod, in full.

    Args:
        server: the resource that was sized.
        report: the checked result.
        node: the node it was measured on.
        request_hash: the question as the pod was asked it.
        at: when the sizer ended, RFC 3339.
    """
    pin = pin_of(server, node)
    return _without_nothing(
        {
            "kvCacheBytes": report.budget.kv,
            "maxTotalTokenNum": report.max_total_token_num,
            "tokenMeaning": report.token_meaning,
            "maxSequences": report.max_sequences,
            "contextLength": report.context_length,
            "prefillTokens": report.prefill_tokens,
            "pinned": report.pinned.to_mapping() if report.pinned else None,
            **_blocks(report),
            "bytesPerToken": report.kv_bytes_per_rank,
            "fixedPools": report.fixed_pools,
            "granule": report.granule,
            "concurrencyAtContext": _concurrency(report),
            "source": MEASURED,
            "confidence": report.confidence,
            "predictedTokens": report.max_total_token_num,
            "breakdown": report.budget.to_dict(),
            "gpu": _gpu(report.device_class, report.budget.device_free, report.driver),
            "node": node["metadata"]["name"],
            "pinnedLabel": {"key": pin.key, "value": pin.value},
            "requestHash": request_hash,
            "sizingKey": sizing_key(server),
            "modelDigest": report.model_digest,
            "modelFile": report.model_file,
            "measuredAt": at,
        }
    )


def user_provided(server: InferenceServer) -> dict[str, Any]:
    """The user's own number (mode Fixed): nothing was measured, so nothing else is claimed."""
    sizing = server.spec.sizing
    return _without_nothing(
        {
            "maxTotalTokenNum": sizing.max_total_token_num,
            "kvCacheBytes": sizing.kv_cache_bytes,
            "maxSequences": sizing.max_concurrent_requests,
            "contextLength": sizing.context_length,
            "prefillTokens": sizing.prefill_tokens,
            "source": USER_PROVIDED,
            "sizingKey": sizing_key(server),
        }
    )


def answer_in(server: InferenceServer, status: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stored result, if it answers the question that the resource asks now."""
    capacity = believable(status)
    if server.spec.sizing.mode == FIXED or capacity is None:
        return None
    if capacity["source"] not in MEASURED_SOURCES:
        return None
    return capacity if capacity.get("sizingKey") == sizing_key(server) else None


def believable(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """``status.capacity`` if it is one that we could have written.

    The status is where the answer is kept, and so an input: whoever may write it could stamp an
    absurd number into the server's arguments. What does not add up is measured again.
    """
    capacity = status.get("capacity")
    try:
        return capacity if isinstance(capacity, dict) and _adds_up(capacity) else None
    except (KeyError, TypeError, AttributeError, ValueError, ResultInvalid):
        return None


def _adds_up(capacity: dict[str, Any]) -> bool:
    """The checks of the sizer's report, on what was kept of it."""
    if capacity["source"] == USER_PROVIDED:
        return _is_the_users(capacity)
    tokens = capacity["maxTotalTokenNum"]
    if not 0 < tokens <= MAX_TOKENS or capacity["source"] not in MEASURED_SOURCES:
        return False
    terms, pin, file = capacity["breakdown"], capacity["pinnedLabel"], capacity.get("modelFile")
    reserve = sum(terms["reserve"].values())
    sizes = (*terms["reserve"].values(), terms["weights"], terms["safety"], capacity["fixedPools"])
    check(_claim(capacity))
    return bool(
        min(sizes) >= 0
        and 0 < terms["kv"] == capacity["kvCacheBytes"]
        and terms["kv"] == terms["freeAfterInit"] - terms["weights"] - reserve - terms["safety"]
        and terms["freeAfterInit"] <= terms["deviceFree"] <= terms["deviceTotal"]
        and capacity["granule"] > 0 < capacity["bytesPerToken"]
        and 0 <= capacity.get("shrinkSteps", 0) <= MAX_STEPS
        and pin["key"]
        and pin["value"]
        and (file is None or is_model_file(file))
    )


def _claim(capacity: Mapping[str, Any]) -> Claim:
    return Claim(
        kv=capacity["breakdown"]["kv"],
        fixed_pools=capacity["fixedPools"],
        cell=max(1, capacity["bytesPerToken"]),
        granule=max(1, capacity["granule"]),
        tokens=capacity["maxTotalTokenNum"],
        meaning=capacity["tokenMeaning"],
        context_length=capacity["contextLength"],
        prefill_tokens=capacity["prefillTokens"],
        pinned=Pinned.from_mapping(capacity["pinned"]) if "pinned" in capacity else None,
    )


def _is_the_users(capacity: Mapping[str, Any]) -> bool:
    numbers = [capacity[key] for key in ("maxTotalTokenNum", "kvCacheBytes") if key in capacity]
    return (
        len(numbers) == 1 and numbers[0] > 0 and capacity.get("maxTotalTokenNum", 1) <= MAX_TOKENS
    )


def stamp_of(server: InferenceServer, capacity: Mapping[str, Any]) -> Stamp:
    """What a stored result puts into the pod template."""
    weights = (capacity.get("breakdown") or {}).get("weights")
    pin, gpu = capacity.get("pinnedLabel"), capacity.get("gpu")
    pinned = capacity.get("pinned")
    if pinned is None and capacity["source"] == USER_PROVIDED and "kvCacheBytes" in capacity:
        pinned = Pinned(
            max_sequences=capacity.get("maxSequences"),
            context_length=capacity.get("contextLength"),
            prefill_tokens=capacity.get("prefillTokens"),
            kv_cache_bytes=capacity["kvCacheBytes"],
        ).to_mapping()
    return Stamp(
        max_total_token_num=capacity.get("maxTotalTokenNum"),
        max_sequences=capacity.get("maxSequences"),
        context_length=capacity.get("contextLength"),
        prefill_tokens=capacity.get("prefillTokens"),
        # The budget is one rank's; the volume has to deliver all of them.
        weight_bytes=weights * server.spec.tensor if weights is not None else None,
        model_file=capacity.get("modelFile"),
        pin=Pin(pin["key"], pin["value"]) if pin else None,
        pinned=pinned,
        kv_bytes=(pinned or {}).get("kvCacheBytes"),
        gpu={key: gpu.get(key) for key in _CLASS_KEYS} if gpu else None,
        model_digest=capacity.get("modelDigest"),
    )


def pin_of(server: InferenceServer, node: Mapping[str, Any]) -> Pin:
    """The label that keeps the number on this node's kind of GPU, else on this very node."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    for key in server.spec.accelerator.class_label_keys:
        if labels.get(key):
            return Pin(key, labels[key])
    return Pin(HOSTNAME_LABEL, labels.get(HOSTNAME_LABEL) or metadata["name"])


def awaits_labels(
    server: InferenceServer, node: Mapping[str, Any], ended_at: str, now: datetime
) -> bool:
    """Whether the label of a node that has just come may still follow.

    A device plugin offers the GPU some seconds before GPU feature discovery names it. A number that
    was pinned in between would be kept to this very node.

    Args:
        server: names the labels.
        node: what was measured.
        ended_at: when the sizer ended, RFC 3339.
        now: the time, in UTC.
    """
    metadata = node["metadata"]
    keys, born = server.spec.accelerator.class_label_keys, metadata.get("creationTimestamp")
    if not keys or not born or pin_of(server, node).key != HOSTNAME_LABEL:
        return False
    return (
        seconds_since(str(born), now) < NEW_NODE and seconds_since(ended_at, now) < LABEL_PATIENCE
    )


def repinned(
    server: InferenceServer, capacity: dict[str, Any], node: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The result with a pin that fits today's ``classLabelKeys``.

    The stored pin stays as long as its key is still wanted, whatever happens to the node's labels:
    another pin is another template, and so a rollout. A hostname gives way once the node has a
    class label and the server wants more than one replica.
    """
    key = capacity["pinnedLabel"]["key"]
    if key in server.spec.accelerator.class_label_keys:
        return capacity
    if key == HOSTNAME_LABEL and server.spec.replicas <= 1:
        return capacity
    if node is None or node["metadata"]["name"] != capacity.get("node"):
        return capacity
    pin = pin_of(server, node)
    return {**capacity, "pinnedLabel": {"key": pin.key, "value": pin.value}}


def is_unpinnable(server: InferenceServer, capacity: Mapping[str, Any]) -> bool:
    """Whether several replicas would all have to run on the one node that was measured."""
    pin = capacity.get("pinnedLabel") or {}
    return server.spec.replicas > 1 and pin.get("key") == HOSTNAME_LABEL


def _blocks(report: Report) -> dict[str, int]:
    """Blocks of the pool, where the engine has them and one size of token leads to their number."""
    size = report.pinned.block_tokens if report.pinned is not None else None
    if size is None or report.token_meaning != _ONE_SIZE:
        return {}
    return {"blocks": report.max_total_token_num // size, "blockTokens": size}


def _concurrency(report: Report) -> dict[str, Any]:
    requests = Decimal(report.max_total_token_num) / report.context_length
    rounded = min(requests, Decimal(report.max_sequences)).quantize(Decimal("0.01"))
    return {"context": report.context_length, "requests": str(rounded)}


def _gpu(device: DeviceClass, free: int, driver: str) -> dict[str, Any]:
    return {
        "product": device.product,
        "totalBytes": device.total_bytes,
        "freeBytes": free,
        "driver": driver,
        "mig": device.mig,
        "sharing": device.sharing,
        "count": device.count,
    }


def _without_nothing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Unset keys are left out at every level: the schema has no nulls."""
    return {
        key: _without_nothing(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
