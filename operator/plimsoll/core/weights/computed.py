"""The weights that a config implies, for when no files are at hand."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.quantization import Quantization, parse_quantization
from plimsoll.core.weights.manifest import NO_LAYER, Manifest, Part, TensorKind, role_of
from plimsoll.core.weights.roles import placing

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec, TensorGroup

#: Canonical dtype -> its name in a safetensors header.
HEADER_DTYPES: Final = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def computed(spec: ModelSpec, compute: str) -> Manifest:
    """The tensors that a model of this shape has, quantised as its config says.

    Args:
        spec: The model.
        compute: Canonical dtype of the tensors that are not quantised.

    Raises:
        BadModel: A quantisation block that makes no sense.
    """
    scheme = parse_quantization(spec.quantization)
    parts: Counter[Part] = Counter()
    for group in spec.tensors:
        role, first = role_of(group.name.replace("*", "0"))
        plain = _plain(group, compute)
        packed = _packed(group, role, scheme)
        for index in (first,) if group.indices is None else group.indices:
            kept = packed is None or scheme is None or scheme.keeps(_module(role, index))
            parts[Part(role, index, plain if packed is None or kept else packed)] += 1
    return Manifest(parts, "computed", scheme.notes if scheme else ())


def _plain(group: TensorGroup, compute: str) -> TensorKind:
    dtype = group.dtype or compute
    size = dtypes.bytes_of(prod(group.shape), dtype)
    return TensorKind(HEADER_DTYPES.get(dtype, "BF16"), group.shape, size)


def _packed(group: TensorGroup, role: str, scheme: Quantization | None) -> TensorKind | None:
    """The quantised form; None for what no tool quantises."""
    if scheme is None or scheme.layout is None or len(group.shape) < 2:  # noqa: PLR2004
        return None
    place = placing(role)
    if not place.linear or (scheme.experts_only and not place.expert):
        return None
    bits = scheme.layout.bits
    return TensorKind(f"Q{bits}", group.shape, scheme.layout.size(group.shape))


def _module(role: str, layer: int) -> str:
    """The module's name in its layer, as lists of modules write it."""
    module = role.removesuffix(".weight")
    return module if layer == NO_LAYER else module.replace("*", str(layer), 1)
