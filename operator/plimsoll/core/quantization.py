"""How a checkpoint's weights are quantised, by the block that its config carries.

Each tool writes its own (``quantization_config``, ``compression_config``, ``hf_quant_config.json``).
Headers decide tensor by tensor where they are at hand; this block does where weights are computed.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.errors import BadModel
from plimsoll.core.records import dataclass, field, replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_KEYS: Final = ("quantization_config", "compression_config")
_MAX_GROUP, _MAX_SKIPPED = 1 << 16, 1 << 14
_MAX_PATTERNS: Final = 64
_BITS: Final = frozenset({1, 2, 3, 4, 5, 6, 8, 16})
_FLOAT_BITS, _BYTE, _WORD = 16, 8, 32
_NF4_BLOCK: Final = 64  # elements of one absmax; its own 8 bits and an fp32 for each 256 if nested


@dataclass(frozen=True, slots=True)
class Layout:
    """How one quantised matrix is stored.

    Attributes:
        bits: Bits of one weight.
        group: Weights of one row that share a scale; None: one scale for a row, or fewer.
        scale_bits: Bits of one scale.
        zero_bits: Bits of the zero point beside each scale; 0 without.
        block: Rows and columns of a block with one scale, instead of ``group``.
        index_bits: Bits of the group's number that GPTQ stores for each column.
    """

    bits: int
    group: int | None = None
    scale_bits: int = _FLOAT_BITS
    zero_bits: int = 0
    block: tuple[int, int] | None = None
    index_bits: int = 0

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of a matrix ``[..., out, in]`` with its scales."""
        *outer, rows, columns = shape
        matrices = prod(outer)
        if self.block is not None:
            scales = ceil_div(rows, self.block[0]) * ceil_div(columns, self.block[1])
        else:
            scales = rows * (ceil_div(columns, self.group) if self.group else 1)
        bits = rows * columns * self.bits + scales * (self.scale_bits + self.zero_bits)
        return matrices * ceil_div(bits + columns * self.index_bits, _BYTE)


@dataclass(frozen=True, slots=True)
class Quantization:
    """One config's block.

    Attributes:
        method: ``awq``, ``gptq``, ``fp8``, ``compressed-tensors``, ``modelopt``, ``mxfp4`` and others.
        layout: Of the quantised matrices; None when the block does not say (each its own).
        skipped: Modules that stay in 16 bits: names, parts of names.
        patterns: The same as patterns with ``*``.
        experts_only: Only experts are quantised (MXFP4).
        kv_dtype: Dtype of the cache that the file states; None without.
        notes: What was not understood, for people.
    """

    method: str
    layout: Layout | None
    skipped: frozenset[str] = field(default_factory=frozenset)
    patterns: tuple[str, ...] = ()
    experts_only: bool = False
    kv_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def keeps(self, module: str) -> bool:
        """Whether this module stays in 16 bits. ``module``: a tensor's name without ``.weight``."""
        if any(fnmatchcase(module, pattern) for pattern in self.patterns):
            return True
        return bool(self.skipped) and not self.skipped.isdisjoint(_runs(module))


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The raw block of a config, of its text part where only that has one; None without.

    Raises:
        BadModel: A block that is no object.
    """
    # Wrappers: some keep the block beside the text model's sizes.
    nested = config.get("text_config"), config.get("llm_config"), config.get("language_config")
    for place in (config, *nested):
        if not isinstance(place, dict):
            continue
        for key in _KEYS:
            block = place.get(key)
            if block is None:
                continue
            if not isinstance(block, dict):
                raise _bad(key, block, "an object")
            # compressed-tensors once wrote its block one level deeper.
            inner = block.get("quantization_config")
            if block:
                return inner if isinstance(inner, dict) and inner else block
    return None


def parse_quantization(block: Mapping[str, Any] | None) -> Quantization | None:
    """Read a block of any tool; None without one.

    Raises:
        BadModel: A number or list of the wrong type or out of range.
    """
    if not block:
        return None
    inner = block.get("quantization")
    if isinstance(inner, dict):  # hf_quant_config.json
        block = inner | {"quant_method": "modelopt"}
    method = block.get("quant_method") or block.get("method")
    if not isinstance(method, str):
        if isinstance(block.get("quant_algo"), str):
            method = "modelopt"
        else:
            method = "compressed-tensors" if "config_groups" in block else "unknown"
    method = method.lower().replace("_", "-")[:32]
    reader = _LAYOUTS.get(method)
    layout = reader(block) if reader else None
    skipped, patterns, notes = _skipped(block)
    if layout is None:
        notes = (
            *notes,
            f"quantisation {method!r} is not known; weights are taken as not quantised",
        )
    return Quantization(
        method,
        layout,
        skipped,
        patterns,
        experts_only=method == "mxfp4",
        kv_dtype=_kv_dtype(block),
        notes=notes,
    )


def _integers(block: Mapping[str, Any]) -> Layout:
    """AWQ and its kind: packed integers with a scale and a zero point for each group."""
    bits = _number(block, ("bits", "w_bit"), 4)
    return Layout(bits, _group(block, ("group_size", "q_group_size"), 128), zero_bits=bits)


def _gptq(block: Mapping[str, Any]) -> Layout:
    """As AWQ, and the group of each input row as an int32."""
    return replace(_integers(block), index_bits=_WORD)


def _fp8(block: Mapping[str, Any]) -> Layout:
    return Layout(_BYTE, scale_bits=_WORD, block=_block(block))


def _int8(block: Mapping[str, Any]) -> Layout:
    del block
    return Layout(_BYTE, scale_bits=_WORD)


def _mxfp4(block: Mapping[str, Any]) -> Layout:
    del block
    return Layout(4, 32, scale_bits=_BYTE)


def _bitsandbytes(block: Mapping[str, Any]) -> Layout:
    if block.get("load_in_4bit") or block.get("_load_in_4bit"):
        nested = bool(block.get("bnb_4bit_use_double_quant"))
        return Layout(4, _NF4_BLOCK, scale_bits=_BYTE if nested else _WORD)
    return Layout(_BYTE, scale_bits=_WORD)


def _schemes(block: Mapping[str, Any]) -> Layout | None:
    return _grouped(block) or _algorithm(block)


def _grouped(block: Mapping[str, Any]) -> Layout | None:
    """``config_groups`` of compressed-tensors and newer modelopt: the widest of its groups."""
    groups = block.get("config_groups")
    if groups is None:
        return None
    if not isinstance(groups, dict):
        raise _bad("quantization_config.config_groups", groups, "an object")
    found: list[Layout] = []
    for group in list(groups.values())[:_MAX_PATTERNS]:
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            bits = _number(weights, ("num_bits",), _BYTE)
            size = _group(weights, ("group_size",), None)
            small = weights.get("type") == "float" and bits == 4  # noqa: PLR2004 - nvfp4: fp8 scales
            symmetric = weights.get("symmetric", True) is not False
            scale = _BYTE if small else _FLOAT_BITS if size else _WORD
            found.append(Layout(bits, size, scale, 0 if symmetric else bits, _block_of(weights)))
    return max(found, key=lambda layout: layout.bits, default=None)


def _algorithm(block: Mapping[str, Any]) -> Layout | None:
    """``quant_algo`` of modelopt, by the start of its name; fp8 where there is none."""
    name = block.get("quant_algo")
    name = name.upper() if isinstance(name, str) else "FP8"
    for starts, bits, usual, scale_bits in _ALGORITHMS:
        if name.startswith(starts):
            return Layout(bits, _group(block, ("group_size",), usual), scale_bits)
    return None


def _quark(block: Mapping[str, Any]) -> Layout | None:
    whole = block.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    if isinstance(weight, list):
        weight = weight[0] if weight else None
    if not isinstance(weight, dict):
        return None
    bits = _bits_in(weight.get("dtype"))
    small = bits is not None and bits < _BYTE
    group = _group(weight, ("group_size",), None)
    return Layout(bits, group, scale_bits=_BYTE if small and group else _WORD) if bits else None


def _by_word(block: Mapping[str, Any]) -> Layout | None:
    """Tools whose block only names a type somewhere: the first word with a number of bits."""
    inner = block.get("quant_config")
    if isinstance(inner, dict) and isinstance(inner.get("weight_quant_params"), dict):  # hqq
        inner = inner["weight_quant_params"]
        return Layout(
            _number(inner, ("nbits",), 4), _group(inner, ("group_size",), 64), zero_bits=16
        )
    for key in ("weights", "quant_type", "bits", "forward_dtype"):
        value = block.get(key)
        bits = _bits_in(value) if isinstance(value, str) else None
        if (
            bits is None
            and isinstance(value, int)
            and not isinstance(value, bool)
            and value in _BITS
        ):
            bits = value
        if bits is not None:
            return Layout(bits, _group(block, ("group_size",), 128))
    return None


def _bits_in(word: object) -> int | None:
    """4 of ``int4``, 8 of ``fp8_e4m3``."""
    if not isinstance(word, str):
        return None
    lowered = word[:64].lower()
    for bits in sorted(_BITS, reverse=True):
        if any(f"{kind}{bits}" in lowered for kind in ("int", "fp", "float", "mx_fp")):
            return bits
    return None


def _skipped(block: Mapping[str, Any]) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """Names, patterns and notes of the modules that stay as they are."""
    names: set[str] = set()
    patterns: list[str] = []
    odd = 0
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "exclude", "ignored_layers",
                "llm_int8_skip_modules", "ignored_modules"):  # fmt: skip
        entries = block.get(key)
        if entries is None:
            continue
        if not isinstance(entries, list) or len(entries) > _MAX_SKIPPED:
            raise _bad(
                f"quantization_config.{key}", entries, f"a list of at most {_MAX_SKIPPED} names"
            )
        for entry in entries:
            if not isinstance(entry, str):
                raise _bad(f"quantization_config.{key}", entry, "a list of names")
            pattern = _pattern(entry)
            if pattern is None:
                odd += 1
            elif "*" not in pattern:
                names.add(pattern)
            elif pattern not in patterns:
                patterns.append(pattern)
    odd += max(0, len(patterns) - _MAX_PATTERNS)
    notes = (
        f"quantization_config names {odd} modules to leave out by patterns that are not understood",
    )
    return frozenset(names), tuple(patterns[:_MAX_PATTERNS]), notes if odd else ()


def _pattern(entry: str) -> str | None:
    """A pattern with ``*``, or a plain name. None: a regular expression beyond ``.*`` and ``^$``.

    A stranger's regular expression is never compiled: some take longer than the universe has left.
    """
    if not entry.startswith("re:"):
        return entry[:256] if "[" not in entry and "?" not in entry else None
    text = entry[3:259]
    open_end = not text.endswith("$")
    text = text.removeprefix("^").removesuffix("$").replace("\\.", "\0").replace(".*", "*")
    if any(mark in text for mark in "\\()[]{}|+?^$"):
        return None
    text = text.replace("\0", ".")
    return text + "*" if open_end and not text.endswith("*") else text


def _runs(module: str) -> Iterator[str]:
    """Every run of the name's pieces: ``a.b.c`` gives a, a.b, a.b.c, b, b.c, c."""
    pieces = module.split(".")[:16]
    for start in range(len(pieces)):
        for end in range(start + 1, len(pieces) + 1):
            yield ".".join(pieces[start:end])


def _kv_dtype(block: Mapping[str, Any]) -> str | None:
    """Dtype that the cache should have, by the file."""
    scheme = block.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme.get("num_bits") == _BYTE:
        return "fp8" if scheme.get("type", "float") == "float" else "int8"
    word = block.get("kv_cache_quant_algo")
    if isinstance(word, str) and word.upper() in {"FP8", "INT8"}:
        return word.lower()
    return None


def _number(block: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    for key in keys:
        value = block.get(key)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value not in _BITS:
                raise _bad(f"quantization_config.{key}", value, "a number of bits, 1 to 8 or 16")
            return value
    return default


def _group(block: Mapping[str, Any], keys: tuple[str, ...], default: int | None) -> int | None:
    """Group size; None for -1 and 0, which mean whole rows."""
    for key in keys:
        value = block.get(key)
        if value is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not -1 <= value <= _MAX_GROUP:
                raise _bad(f"quantization_config.{key}", value, f"-1 or 1 to {_MAX_GROUP}")
            return value if value > 0 else None
    return default


def _block(block: Mapping[str, Any]) -> tuple[int, int] | None:
    value = block.get("weight_block_size")
    return None if value is None else _pair("quantization_config.weight_block_size", value)


def _block_of(weights: Mapping[str, Any]) -> tuple[int, int] | None:
    value = weights.get("block_structure")
    return _pair("block_structure", value) if isinstance(value, list) else None


def _pair(name: str, value: object) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:  # noqa: PLR2004 - rows and columns
        rows, columns = value
        if all(type(n) is int and 0 < n <= _MAX_GROUP for n in value):
            return rows, columns
    raise _bad(name, value, f"two numbers from 1 to {_MAX_GROUP}")


def _bad(name: str, value: object, wanted: str) -> BadModel:
    return BadModel(
        f"{name} is {repr(value)[:64]}; it must be {wanted}",
        reason="ConfigUnreadable",
        field=name,
        value=value,
    )


#: Start of ``quant_algo``, bits, group and bits of a scale. Mixed precision: the wider of the two.
_ALGORITHMS: Final = (
    (("MIXED",), _BYTE, None, _WORD),
    (("NVFP4", "FP4"), 4, 16, _BYTE),
    (("W4A16", "INT4", "W4A8"), 4, 128, _FLOAT_BITS),
    (("MXFP4",), 4, 32, _BYTE),
    (("MXFP8",), _BYTE, 32, _BYTE),
    (("FP8", "INT8", "W8A8", "W8A16"), _BYTE, None, _WORD),
)
_LAYOUTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Layout | None]]] = {
    **dict.fromkeys(
        ("awq", "auto-round", "intel/auto-round", "awq-marlin", "moe-wna16"), _integers
    ),
    **dict.fromkeys(("gptq", "gptq-v2", "gptq-marlin"), _gptq),
    **dict.fromkeys(("fp8", "fbgemm-fp8", "finegrained-fp8"), _fp8),
    **dict.fromkeys(("compressed-tensors", "modelopt", "modelopt-fp4", "modelopt-mixed"), _schemes),
    **dict.fromkeys(("eetq", "experts-int8", "w8a8-int8", "int8"), _int8),
    **dict.fromkeys(("hqq", "torchao", "quanto", "higgs", "fp-quant"), _by_word),
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
    "quark": _quark,
    "bitsandbytes": _bitsandbytes,
}
