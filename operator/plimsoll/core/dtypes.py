"""Element types: one spelling each, and how many bytes their elements take."""

from __future__ import annotations

from typing import Final

from plimsoll.core.errors import BadArgument
from plimsoll.core.units import ceil_div

#: Canonical name -> (elements per block, bytes per block). Block formats: llama.cpp's ggml types.
SIZES: Final[dict[str, tuple[int, int]]] = {
    "bf16": (1, 2), "fp16": (1, 2), "fp32": (1, 4), "fp64": (1, 8),
    "fp8": (1, 1), "int8": (1, 1), "int4": (2, 1),
    "mxfp8": (32, 33), "nvfp4": (16, 9),  # with one byte of scale per 32 and per 16 elements
    "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22),
    "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
}  # fmt: skip

#: What a model can compute in; the others only store.
COMPUTE: Final = frozenset({"bf16", "fp16", "fp32"})

#: Other spellings: of config.json, of command lines, of safetensors headers.
ALIASES: Final[dict[str, str]] = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16",
    "float32": "fp32", "float": "fp32", "f32": "fp32", "float64": "fp64", "f64": "fp64",
    "fp4_e2m1": "nvfp4", "fp4_mx_block16": "nvfp4", "fp8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "int8kv": "int8", "int4kv": "int4", "fp8kv_sph": "fp8", "fp8kv_spt": "fp8",
    # As elements; scales and packed rows are what the engine adds to them.
    "fp8_inc": "fp8", "fp8_ds_mla": "fp8", "nvfp4_ds_mla": "nvfp4", "fp8_per_token_head": "fp8",
    "int8_per_token_head": "int8", "int4_per_token_head": "int4", "fp8kv_dsa": "fp8",
}  # fmt: skip

#: safetensors header dtype -> bits per element.
SAFETENSORS_BITS: Final[dict[str, int]] = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
#: Header dtypes that an engine casts to its compute dtype while loading; quantised ones stay.
CAST_ON_LOAD: Final = frozenset({"F64", "F32", "F16", "BF16"})

#: GGUF type number -> (name, elements per block, bytes per block).
GGUF_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


def canonical(name: str, field: str) -> str:
    """One spelling for a dtype.

    Raises:
        BadArgument: A dtype that nobody here knows; names the field.
    """
    lowered = name.lower().removeprefix("torch.")
    lowered = ALIASES.get(lowered, lowered)
    if lowered not in SIZES:
        raise BadArgument(
            f"{field} {name[:64]!r} is not a dtype known here; use one of {', '.join(sorted(SIZES))}",
            field=field,
            value=name,
        )
    return lowered


def compute(name: str, field: str) -> str:
    """One spelling for a dtype to compute in.

    Raises:
        BadArgument: Unknown, or a dtype for storage only; names the field.
    """
    dtype = canonical(name, field)
    if dtype not in COMPUTE:
        raise BadArgument(
            f"{field} {name[:64]!r} is no dtype to compute in; use bf16, fp16 or fp32 "
            "(a quantised model keeps its weights as they are)",
            field=field,
            value=name,
        )
    return dtype


def bytes_of(elements: int, dtype: str) -> int:
    """Bytes of that many elements of a canonical dtype, rounded up to whole blocks."""
    block, size = SIZES[dtype]
    return ceil_div(elements, block) * size
