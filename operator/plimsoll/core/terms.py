"""The parts of a report that describe memory: the class of the devices, and where every byte goes.

Each is written and read back here; the readers trust nothing, see ``plimsoll.core.report``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.errors import ResultInvalid
from plimsoll.core.records import dataclass
from plimsoll.core.strict import MAX_DEVICES, MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.strict import Reader

#: Terms of the reserve, in the order in which people read them (design: a sum of named terms).
RESERVE_TERMS: Final = (
    "nonTorch", "activation", "workspace", "requestTables", "graphs",
    "draft", "encoder", "lora", "fragmentation", "extra",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What makes two devices interchangeable for a number. Bytes as NVML reports them."""

    product: str
    total_bytes: int
    mig: str | None
    sharing: str | None
    count: int

    def to_dict(self) -> dict[str, Any]:
        """JSON keys of the report."""
        return {
            "product": self.product,
            "totalBytes": self.total_bytes,
            "mig": self.mig,
            "sharing": self.sharing,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class Budget:
    """Where every byte of one rank's device goes.

    ``kv = free_after_init - weights - sum(reserve) - safety``, exact in integers; ``kv`` may be
    negative when nothing fits. All values are bytes.
    """

    device_total: int
    device_free: int
    free_after_init: int
    weights: int
    reserve: Mapping[str, int]
    safety: int
    kv: int

    def to_dict(self) -> dict[str, Any]:
        """JSON keys of the report and of ``fit.v1``."""
        return {
            "deviceTotal": self.device_total,
            "deviceFree": self.device_free,
            "freeAfterInit": self.free_after_init,
            "weights": self.weights,
            "reserve": {term: self.reserve[term] for term in RESERVE_TERMS if term in self.reserve},
            "safety": self.safety,
            "kv": self.kv,
        }


def read_class(reader: Reader) -> DeviceClass:
    """A class of devices; every key present.

    Raises:
        ResultInvalid: A key or a value is not as it must be.
    """
    reader.keys(frozenset({"product", "totalBytes", "mig", "sharing", "count"}))
    return DeviceClass(
        product=reader.text("product"),
        total_bytes=reader.integer("totalBytes", 1),
        mig=reader.text_or_none("mig"),
        sharing=reader.text_or_none("sharing"),
        count=reader.integer("count", 1, MAX_DEVICES),
    )


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """One device as CUDA sees it, in bytes.

    Attributes:
        total_bytes: Memory of the device: T exactly, where NVML gives it within some MiB.
        free_bytes: Free beside the context of the process that asked.
    """

    total_bytes: int
    free_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """JSON keys of the report."""
        return {"totalBytes": self.total_bytes, "freeBytes": self.free_bytes}


def read_cuda(reader: Reader, budget: Budget) -> CudaMemory:
    """What CUDA said, for a budget that rests on it.

    Raises:
        ResultInvalid: A key or a value is not as it must be, or the budget has more memory than that.
    """
    reader.keys(frozenset({"totalBytes", "freeBytes"}))
    found = CudaMemory(reader.integer("totalBytes", 1), reader.integer("freeBytes"))
    if not max(found.free_bytes, budget.device_total) <= found.total_bytes:
        raise ResultInvalid(
            "the result has more memory than CUDA sees on the device", field="cuda.totalBytes"
        )
    return found


def read_budget(reader: Reader) -> Budget:
    """A budget with room for a pool, whose terms add up.

    Raises:
        ResultInvalid: A key or a value is not as it must be, or the sum is wrong.
    """
    reader.keys(
        frozenset(
            {"deviceTotal", "deviceFree", "freeAfterInit", "weights", "reserve", "safety", "kv"}
        )
    )
    terms = reader.child("reserve")
    unknown = sorted(terms.document.keys() - set(RESERVE_TERMS))
    if unknown:
        raise ResultInvalid(
            f"the result has the unknown reserve term {unknown[0][:MAX_TEXT]!r}",
            field="budget.reserve",
        )
    budget = Budget(
        device_total=reader.integer("deviceTotal", 1),
        device_free=reader.integer("deviceFree", 1),
        free_after_init=reader.integer("freeAfterInit", 1),
        weights=reader.integer("weights", 1),
        reserve={term: terms.integer(term) for term in terms.document},
        safety=reader.integer("safety"),
        kv=reader.integer("kv", 1),
    )
    if not budget.free_after_init <= budget.device_free <= budget.device_total:
        raise ResultInvalid(
            "the result has more free memory than memory", field="budget.deviceFree"
        )
    left = budget.free_after_init - budget.weights - sum(budget.reserve.values()) - budget.safety
    if left != budget.kv:
        raise ResultInvalid(
            f"the result does not add up: kv is {budget.kv}, its terms leave {left}",
            field="budget.kv",
        )
    return budget
