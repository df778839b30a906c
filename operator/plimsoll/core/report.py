"""The answer that a sizing pod hands to the operator: its termination message.

The message crosses a trust boundary: whoever may write a server's pod may try to forge it. So
``decode`` trusts nothing. It checks the size, the form, who is speaking (pod UID and request hash),
and that the numbers add up; only then do they reach a Deployment.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from plimsoll.core.engines.base import Pinned
from plimsoll.core.errors import ResultInvalid
from plimsoll.core.plausible import Claim, check, token_limit
from plimsoll.core.records import dataclass
from plimsoll.core.strict import MAX_BYTES, MAX_DEVICES, MAX_TEXT, Reader, parse
from plimsoll.core.terms import (
    RESERVE_TERMS,
    Budget,
    CudaMemory,
    DeviceClass,
    read_budget,
    read_class,
    read_cuda,
)

__all__ = [
    "CONFIDENCES", "END", "RESERVE_TERMS", "SCHEMA", "TOKEN_MEANINGS", "Budget", "CudaMemory", "DeviceClass",
    "Failure", "Report", "decode", "encode", "is_model_file", "token_limit",
]  # fmt: skip

SCHEMA: Final = "plimsoll.dev/report.v1"
END: Final = "plimsoll"

TOKEN_MEANINGS: Final = (
    "AllLayersFull", "FullAttentionPool", "ConcurrencyTimesContext", "BlocksPerGroup", "Ceiling",
)  # fmt: skip
CONFIDENCES: Final = ("exact", "calibrated", "estimated")

_MAX_SEQUENCES: Final = 1 << 20
_MAX_FILE: Final = 255
_PART: Final = re.compile(r"[A-Za-z0-9._-]+")
_REASON: Final = re.compile(r"[A-Z][A-Za-z]{1,63}")


@dataclass(frozen=True, slots=True)
class Report:
    """A sizing that succeeded. Units: bytes and tokens.

    ``model_file`` is the file that was sized, relative to the model folder; None for whole folders.
    ``pinned`` holds what becomes flags where that is more, or other, than tokens, sequences, context
    and prefill; None where it is those four. ``cuda`` is what CUDA itself said, where it was asked.
    """

    pod_uid: str
    request_hash: str
    model_digest: str
    device_class: DeviceClass
    driver: str
    devices: tuple[str, ...]
    rank: int
    budget: Budget
    kv_bytes_per_rank: int
    fixed_pools: int
    granule: int
    max_total_token_num: int
    token_meaning: str
    max_sequences: int
    context_length: int
    prefill_tokens: int
    confidence: str
    model_file: str | None = None
    pinned: Pinned | None = None
    cuda: CudaMemory | None = None

    def all_pinned(self) -> Pinned:
        """What ``Engine.pinned_args`` and ``pinned_env`` take: ``pinned``, else the four numbers."""
        return self.pinned or Pinned(
            max_total_token_num=self.max_total_token_num,
            max_sequences=self.max_sequences,
            context_length=self.context_length,
            prefill_tokens=self.prefill_tokens,
        )

    def claim(self) -> Claim:
        """The numbers that must agree."""
        return Claim(
            kv=self.budget.kv,
            fixed_pools=self.fixed_pools,
            cell=self.kv_bytes_per_rank,
            granule=self.granule,
            tokens=self.max_total_token_num,
            meaning=self.token_meaning,
            context_length=self.context_length,
            prefill_tokens=self.prefill_tokens,
            pinned=self.pinned,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A sizing that ended in a refusal. ``exit_code`` is not in the message."""

    pod_uid: str
    request_hash: str
    model_digest: str | None
    device_class: DeviceClass | None
    driver: str | None
    devices: tuple[str, ...]
    rank: int
    reason: str
    message: str
    field: str | None
    file: str | None
    exit_code: int | None = None


def encode(outcome: Report | Failure) -> str:
    """Write the termination message: compact JSON of at most 2,048 bytes.

    The message of a failure is shortened to fit.

    Raises:
        ValueError: A report is longer than the limit (a programming error: its parts are bounded).
    """
    if isinstance(outcome, Report):
        text = _dump(_report_document(outcome))
        if len(text.encode()) > MAX_BYTES:
            raise ValueError(f"the report has {len(text.encode())} bytes, more than {MAX_BYTES}")
        return text
    message, field, file = (_clean(t) for t in (outcome.message, outcome.field, outcome.file))
    devices = outcome.devices
    while True:
        text = _dump(_failure_document(outcome, devices, message or "", field, file))
        excess = len(text.encode()) - MAX_BYTES
        if excess <= 0:
            return text
        # Shorten what people can do without, in this order: the message's tail, the device list.
        if message and len(message) > MAX_TEXT:
            message = message[: max(MAX_TEXT, len(message) - excess - 3)].rstrip(".") + "..."
            message = message if len(message) > MAX_TEXT + 3 else message[:MAX_TEXT]
        elif devices:
            devices = devices[:-1]
        else:
            raise ValueError(f"the failure has {excess} bytes too many even without its message")


def decode(text: str, *, pod_uid: str, request_hash: str) -> Report | Failure:
    """Read a termination message without trusting it.

    Args:
        text: The message as Kubernetes reports it.
        pod_uid: UID of the pod that was asked; the message must repeat it.
        request_hash: Hash of the question; the message must repeat it.

    Returns:
        What the sizer found, or why it refused.

    Raises:
        ResultInvalid: Whatever is wrong with the message; never anything else.
    """
    document = parse(text, f'"end":"{END}"}}')
    reader = Reader(document, "")
    failed = "error" in document
    if failed:
        reader.keys(_FAILURE_KEYS)
    else:
        reader.keys(_REPORT_KEYS, _OPTIONAL_KEYS)
    if reader.text("schema", 64) != SCHEMA or reader.text("end", 16) != END:
        raise ResultInvalid(
            f"the result's schema or end marker is wrong; wanted {SCHEMA}", field="schema"
        )
    if reader.text("podUID") != pod_uid:
        raise ResultInvalid(
            "the result names another pod than the one that was asked", field="podUID"
        )
    if reader.text("requestHash") != request_hash:
        raise ResultInvalid(
            "the result answers another question than the one asked", field="requestHash"
        )
    return _read_failure(reader) if failed else _read_report(reader)


_HEAD_KEYS: Final = (
    "schema",
    "podUID",
    "requestHash",
    "modelDigest",
    "class",
    "driver",
    "devices",
    "rank",
)
_REPORT_KEYS: Final = frozenset(
    (
        *_HEAD_KEYS,
        *("budget", "perToken", "fixedPools", "granule", "maxTotalTokenNum", "tokenMeaning"),
        *("maxSequences", "contextLength", "prefillTokens", "modelFile", "confidence", "end"),
    )
)
_OPTIONAL_KEYS: Final = frozenset({"pinned", "cuda"})
_FAILURE_KEYS: Final = frozenset((*_HEAD_KEYS, "error", "end"))


def _report_document(report: Report) -> dict[str, Any]:
    pinned = {} if report.pinned is None else {"pinned": report.pinned.to_mapping()}
    return {
        "schema": SCHEMA,
        "podUID": report.pod_uid,
        "requestHash": report.request_hash,
        "modelDigest": report.model_digest,
        "class": report.device_class.to_dict(),
        "driver": report.driver,
        "devices": list(report.devices),
        "rank": report.rank,
        "budget": report.budget.to_dict(),
        "perToken": {"kvBytesPerRank": report.kv_bytes_per_rank},
        "fixedPools": report.fixed_pools,
        "granule": report.granule,
        "maxTotalTokenNum": report.max_total_token_num,
        "tokenMeaning": report.token_meaning,
        "maxSequences": report.max_sequences,
        "contextLength": report.context_length,
        "prefillTokens": report.prefill_tokens,
        **pinned,
        **({} if report.cuda is None else {"cuda": report.cuda.to_dict()}),
        "modelFile": report.model_file,
        "confidence": report.confidence,
        "end": END,
    }


def _failure_document(
    failure: Failure, devices: tuple[str, ...], message: str, field: str | None, file: str | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "podUID": failure.pod_uid,
        "requestHash": failure.request_hash,
        "modelDigest": failure.model_digest,
        "class": failure.device_class.to_dict() if failure.device_class else None,
        "driver": failure.driver,
        "devices": list(devices),
        "rank": failure.rank,
        "error": {"reason": failure.reason, "message": message, "field": field, "file": file},
        "end": END,
    }


def _dump(document: dict[str, Any]) -> str:
    # ASCII escapes: a lone surrogate from a file name must not make the message unwritable.
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _clean(text: str | None) -> str | None:
    """One printable line: what decode accepts and what a condition may show."""
    if text is None:
        return None
    return "".join(c if c.isprintable() else " " for c in text)[:MAX_BYTES]


def _read_report(reader: Reader) -> Report:
    per_token = reader.child("perToken")
    per_token.keys(frozenset({"kvBytesPerRank"}))
    budget = read_budget(reader.child("budget"))
    report = Report(
        pod_uid=reader.text("podUID"),
        request_hash=reader.text("requestHash"),
        model_digest=reader.text("modelDigest"),
        device_class=read_class(reader.child("class")),
        driver=reader.text("driver"),
        devices=reader.texts("devices"),
        rank=reader.integer("rank", 0, MAX_DEVICES),
        budget=budget,
        kv_bytes_per_rank=per_token.integer("kvBytesPerRank", 1),
        fixed_pools=reader.integer("fixedPools"),
        granule=reader.integer("granule", 1),
        max_total_token_num=reader.integer("maxTotalTokenNum", 1),
        token_meaning=reader.choice("tokenMeaning", TOKEN_MEANINGS),
        max_sequences=reader.integer("maxSequences", 1, _MAX_SEQUENCES),
        context_length=reader.integer("contextLength", 1),
        prefill_tokens=reader.integer("prefillTokens", 1),
        confidence=reader.choice("confidence", CONFIDENCES),
        model_file=_read_model_file(reader),
        pinned=Pinned.from_mapping(reader.child("pinned").document)
        if "pinned" in reader.document
        else None,
        cuda=read_cuda(reader.child("cuda"), budget) if "cuda" in reader.document else None,
    )
    check(report.claim())
    return report


def is_model_file(name: str) -> bool:
    """Whether a name may become part of a command line: relative, plain, without ``..``."""
    parts = name.split("/")
    return len(name) <= _MAX_FILE and all(
        _PART.fullmatch(p) and p not in {".", ".."} for p in parts
    )


def _read_model_file(reader: Reader) -> str | None:
    name = reader.text_or_none("modelFile", _MAX_FILE)
    if name is not None and not is_model_file(name):
        raise ResultInvalid(
            "the result's modelFile is not a plain relative path", field="modelFile"
        )
    return name


def _read_failure(reader: Reader) -> Failure:
    error = reader.child("error")
    error.keys(frozenset({"reason", "message", "field", "file"}))
    reason = error.text("reason")
    if not _REASON.fullmatch(reason):
        raise ResultInvalid(
            "the result's error.reason is not a CamelCase word", field="error.reason"
        )
    return Failure(
        pod_uid=reader.text("podUID"),
        request_hash=reader.text("requestHash"),
        model_digest=reader.text_or_none("modelDigest"),
        device_class=None
        if reader.document["class"] is None
        else read_class(reader.child("class")),
        driver=reader.text_or_none("driver"),
        devices=reader.texts("devices"),
        rank=reader.integer("rank", 0, MAX_DEVICES),
        reason=reason,
        message=error.text("message", MAX_BYTES),
        field=error.text_or_none("field", MAX_BYTES),
        file=error.text_or_none("file", MAX_BYTES),
    )
