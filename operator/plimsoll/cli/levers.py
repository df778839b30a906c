"""What would raise a server's number: settings that its engine has, each with what it would give.

From the status alone the arithmetic goes so far: a size that only the model's files tell is left as it is, and
the answer is called ``about``, or ``up to`` where the term may shrink less. With the model's files
(:func:`exact`) the whole arithmetic is run again for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.fits import SINGLE_DEVICE
from plimsoll.core.catalogue import CATALOGUE
from plimsoll.core.records import dataclass, field, replace
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.controller.crd.types import InferenceServer

ABOUT: Final = "about"
UP_TO: Final = "up to"
EXACT: Final = "exact"

_ONE_SIZE: Final = "AllLayersFull"
_SLOT_STEP: Final = 256  # llama.cpp rounds each slot's context to a multiple of this
_LARGER: Final = 1.2  # a GPU that is worth a line has so much more memory
_GPUS: Final = 2
_WORTH: Final = 100  # a change of less than 1/100 of the number is none
#: Where 16-bit values are stored in fewer: name of the dtype, bytes of 32 values.
_SMALLER: Final[Mapping[str, tuple[str, int]]] = {
    "LightLLM": ("fp8", 32), "VLLM": ("fp8", 32), "SGLang": ("fp8", 32), "TGI": ("fp8", 32),
    "TensorRTLLM": ("fp8", 32), "LlamaCpp": ("q8_0", 34),
}  # fmt: skip
_SIXTEEN_BITS: Final = frozenset({"auto", "bf16", "fp16"})


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing to set.

    Attributes:
        setting: as it is written, below spec.
        tokens: what the number becomes; None: no arithmetic tells.
        basis: ``exact``, ``about`` or ``up to``.
        why: a clause.
        request: fields of the sizing request that it changes.
        gpu: name in the catalogue, where it is another GPU.
    """

    setting: str
    tokens: int | None
    basis: str
    why: str
    request: Mapping[str, Any] = field(default_factory=dict)
    gpu: str | None = None

    def document(self) -> dict[str, Any]:
        """For -o json."""
        return {
            "setting": self.setting,
            "tokens": self.tokens,
            "basis": self.basis,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class _Pool:
    """The stored pool and what one more byte of it is worth."""

    kv: int
    cell: int
    fixed: int
    granule: int
    tokens: int

    def holds(self, kv: float, cell: float | None = None) -> int:
        room = (kv - self.fixed) // (cell or self.cell)
        return max(0, int(room) // self.granule * self.granule)


def levers(server: InferenceServer, capacity: Mapping[str, Any]) -> list[Lever]:
    """What can be done, the largest effect first.

    Args:
        server: the resource.
        capacity: ``status.capacity`` of a measured number.
    """
    if not capacity.get("breakdown") or not capacity.get("bytesPerToken"):
        return []
    pool = _Pool(
        capacity["breakdown"]["kv"],
        capacity["bytesPerToken"],
        capacity.get("fixedPools", 0),
        capacity.get("granule", 1),
        capacity["maxTotalTokenNum"],
    )
    found = [lever for make in _MAKERS for lever in make(server, capacity, pool)]
    if capacity.get("tokenMeaning") != _ONE_SIZE:  # tokens of several sizes: no division tells
        found = [replace(lever, tokens=None) for lever in found]
    else:
        found = [x for x in found if x.tokens is None or _is_worth(x.tokens, pool.tokens)]
    return sorted(found, key=lambda lever: -(lever.tokens or 0))


def _is_worth(tokens: int, before: int) -> bool:
    return (tokens - before) * _WORTH >= before


def _cap(server: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    most = server.spec.sizing.max_total_token_num
    if most is not None and capacity["maxTotalTokenNum"] >= most // pool.granule * pool.granule:
        why = "the number is capped; the pool would hold more"
        change = {"max_total_token_num": None}
        yield Lever("sizing.maxTotalTokenNum: (left out)", pool.holds(pool.kv), ABOUT, why, change)


def _dtype(server: InferenceServer, _c: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    engine, now = server.spec.engine.type, server.spec.sizing.kv_cache_dtype
    if now in _SIXTEEN_BITS:
        name, size = _SMALLER[engine]
        tokens = pool.holds(pool.kv, pool.cell * size / 64)
        why = "half the bytes a token, if it holds 16-bit values now; costs accuracy"
        yield Lever(f"sizing.kvCacheDType: {name}", tokens, ABOUT, why, {"kv_cache_dtype": name})


def _slots(server: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    """llama.cpp hands out whole slots: what is left over may be one more of a shorter context."""
    if server.spec.engine.type != "LlamaCpp" or server.spec.sizing.max_concurrent_requests:
        return
    room, slots = (pool.kv - pool.fixed) // pool.cell, capacity["maxTotalTokenNum"] // pool.granule
    context = room // (slots + 1) // _SLOT_STEP * _SLOT_STEP
    if context > 0 and slots > 0:
        why = f"{slots + 1} slots instead of {slots}: whole slots fill the pool better"
        change = {"context_length": context}
        tokens = (slots + 1) * context
        yield Lever(f"sizing.contextLength: {context}", tokens, ABOUT, why, change)


def _prefill(_s: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    activation = capacity["breakdown"]["reserve"].get("activation", 0)
    now = capacity.get("prefillTokens", 0)
    if now > 1 and activation:
        why = f"activations ({format_bytes(activation)}) grow with it; long prompts take more steps"
        tokens, half = pool.holds(pool.kv + activation / 2), now // 2
        yield Lever(f"sizing.prefillTokens: {half}", tokens, UP_TO, why, {"prefill_tokens": half})


def _requests(_s: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    reserve, now = capacity["breakdown"]["reserve"], capacity.get("maxSequences", 0)
    size = reserve.get("graphs", 0) + reserve.get("requestTables", 0)
    if now > 1 and size:
        half = now // 2
        why = f"graphs and request tables ({format_bytes(size)}) grow with it"
        change = {"max_concurrent_requests": half}
        tokens = pool.holds(pool.kv + size / 2)
        yield Lever(f"sizing.maxConcurrentRequests: {half}", tokens, UP_TO, why, change)


def _extra(server: InferenceServer, _c: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    size = server.spec.sizing.extra_reserve
    if size:
        why = f"{format_bytes(size)} are kept free because the resource says so"
        tokens = pool.holds(pool.kv + size)
        yield Lever("sizing.extraReserve: 0", tokens, ABOUT, why, {"extra_reserve": 0})


def _learned(_s: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    learned = capacity.get("learned")
    if learned:
        why = (
            f"{format_bytes(learned['bytes'])} are kept free because server {learned['from']} ran out of "
            "memory; worth it only if that had another cause"
        )
        tokens = pool.holds(pool.kv + learned["bytes"])
        yield Lever("ConfigMap plimsoll-learned: (deleted)", tokens, ABOUT, why)


def _others(_s: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    terms = capacity["breakdown"]
    held = terms["deviceTotal"] - terms["deviceFree"]
    if held > 0:
        why = f"{format_bytes(held)} of the device were in use before; see what else runs on it"
        yield Lever("a device of its own", pool.holds(pool.kv + held), ABOUT, why)


def _version(server: InferenceServer, _c: Mapping[str, Any], _p: _Pool) -> Iterator[Lever]:
    if server.spec.engine.version is None:
        why = "the release is unknown, so the widest reserve is kept"
        yield Lever("engine.version: (the release in the image)", None, ABOUT, why)


def _tensor(server: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    if server.spec.engine.type in SINGLE_DEVICE:
        return
    count = 2 * server.spec.tensor
    why = "half the weights and half of each token a GPU, if the heads can be split so"
    kv = pool.kv + capacity["breakdown"]["weights"] / 2
    tokens = pool.holds(kv, pool.cell / 2)
    yield Lever(f"accelerator.count: {count}", tokens, UP_TO, why, {"tensor": count})


def _gpus(server: InferenceServer, capacity: Mapping[str, Any], pool: _Pool) -> Iterator[Lever]:
    gpu, terms = capacity.get("gpu") or {}, capacity["breakdown"]
    if server.spec.accelerator.memory_budget is not None:
        why = "the server may use no more of the shared device"
        yield Lever("accelerator.memoryBudget: (more)", None, ABOUT, why)
        return
    total = terms["deviceTotal"]
    if gpu.get("mig") or gpu.get("sharing"):
        return
    larger = [row for row in CATALOGUE if row.total >= total * _LARGER]
    for row in larger[:_GPUS]:
        growing = terms["safety"] + terms["reserve"].get("fragmentation", 0)
        kv = pool.kv + row.total - total - growing * (row.total / total - 1)
        why = f"{format_bytes(row.total)} of memory"
        yield Lever(f"GPU {row.name}", pool.holds(kv), ABOUT, why, gpu=row.name)


_Maker = Callable[["InferenceServer", "Mapping[str, Any]", _Pool], "Iterator[Lever]"]
_MAKERS: Final[tuple[_Maker, ...]] = (
    _cap, _dtype, _slots, _prefill, _requests, _extra, _learned, _others, _version, _tensor, _gpus,
)  # fmt: skip


def without_effect(server: InferenceServer, capacity: Mapping[str, Any]) -> str | None:
    """What people try first and what changes little or nothing: a shorter context. None: it may."""
    terms = capacity.get("breakdown")
    if not terms or capacity.get("tokenMeaning") != _ONE_SIZE:
        return None
    if server.spec.engine.type == "LlamaCpp":
        return None
    tables = terms["reserve"].get("requestTables", 0)
    if tables:
        most = tables // max(1, capacity["bytesPerToken"])
        return (
            f"A shorter contextLength gives at most {most:,} tokens (its request tables, "
            f"{format_bytes(tables)}): the pool holds tokens, whoever asks for them."
        )
    return (
        "A shorter contextLength does not change it: the pool holds tokens, whoever asks for them."
    )
