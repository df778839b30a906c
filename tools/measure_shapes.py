"""What one forward pass leaves in a cache, and how each tensor follows the lengths."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch
import transformers
from measure_prompts import PromptMode, ScalarMode
from transformers.cache_utils import DynamicCache

ENCODER = (64, 192)
DEPTH = 8


def tensors_in(value: Any, path: str = "", depth: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor in an object graph, by path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if depth > DEPTH or value is None or isinstance(value, str | int | float | bool | torch.dtype):
        return {}
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        if isinstance(value, transformers.PretrainedConfig):
            return {}
        items = [(key, item) for key, item in vars(value).items() if "cumulative" not in key]
    found: dict[str, torch.Tensor] = {}
    for key, item in items:
        found |= tensors_in(item, f"{path}.{key}" if path else key, depth + 1)
    return found


def state_on_modules(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that modules keep beside parameters and buffers (RecurrentGemma's states)."""
    found = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if (
                isinstance(value, torch.Tensor)
                and "state" in key
                and not isinstance(value, torch.nn.Parameter)
            ):
                found[f"{name}.{key}"] = value
    return found


OUTPUTS = (
    "cache",
    "past_key_values",
    "cache_params",
    "state",
    "past_buckets_states",
    "mems",
    "rnn_state",
)


#: Caches made during a forward pass, for models that do not return theirs.
CREATED: list[Any] = []


def watch_caches() -> None:
    """Remember every cache that is made."""
    usual = DynamicCache.__init__

    def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
        usual(self, *args, **kwargs)
        CREATED.append(self)

    DynamicCache.__init__ = remembering


def cache_of(model: Any, inputs: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of everything that one forward pass leaves behind."""
    CREATED.clear()
    with torch.no_grad(), PromptMode(), ScalarMode():
        output = model(**inputs)
    found: dict[str, torch.Tensor] = {}
    for key in OUTPUTS:
        value = output.get(key) if hasattr(output, "get") else getattr(output, key, None)
        if value is not None:
            found |= tensors_in(value, "cache" if key in OUTPUTS[:3] else key)
    if not found:
        found |= {k: v for cache in CREATED for k, v in tensors_in(cache, "cache").items()}
    found |= {f"module.{key}": value for key, value in state_on_modules(model).items()}
    shapes, seen = {}, set()
    for key, value in found.items():
        if value.dtype.is_floating_point and id(value) not in seen:
            seen.add(id(value))  # DeepSeek V4 keeps one tensor as keys and as values
            shapes[key] = (tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return shapes


def numel(shape: tuple[int, ...]) -> int:
    """Elements of a shape."""
    total = 1
    for size in shape:
        total *= size
    return total


SIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


def classify(sizes: list[int], lengths: tuple[int, ...], cross: int) -> tuple[str, Any]:
    """The kind of one tensor and its elements per token (or encoder position)."""
    low, high = sizes[1] - sizes[0], sizes[3] - sizes[2]
    if cross:
        return "cross", cross // (ENCODER[1] - ENCODER[0])
    if high:
        amount = high / (lengths[3] - lengths[2])
        return "grows", int(amount) if amount == int(amount) else amount
    if sizes[3] != sizes[0]:
        return "window", low // (lengths[1] - lengths[0])
    return "fixed", None


def measure(run: Any, lengths: tuple[int, ...], *, crossed: bool) -> dict[str, Any]:
    """Classify every cached tensor by how it follows the lengths; sums in bytes at 16 bits.

    Args:
        run: (decoder length, encoder length) -> path -> shape and dtype.
        lengths: Two below and two above the largest window.
        crossed: Whether the encoder's length counts too.
    """
    passes = [run(length, ENCODER[0]) for length in lengths]
    other = run(lengths[-1], ENCODER[1]) if crossed else passes[-1]
    totals: dict[str, int] = defaultdict(int)
    rows: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for path, (shape, dtype) in passes[-1].items():
        sizes = [numel(p[path][0]) if path in p else 0 for p in passes]
        cross = numel(other[path][0]) - sizes[-1] if path in other else 0
        kind, amount = classify(sizes, lengths, cross)
        if kind == "cross":
            totals["cross"] += 2 * amount
        elif kind == "fixed":
            totals["state"] += 2 * sizes[3]
            totals["stored"] += SIZE[dtype] * sizes[3]
        else:
            totals["filling"] += 2 * (sizes[1] - sizes[0])
            totals[kind] += 2 * (sizes[3] - sizes[2] if kind == "grows" else sizes[3])
        number = re.search(r"layers\.(\d+)\.", path)
        general = re.sub(r"\.\d+\.", ".#.", path, count=1)
        rows[kind, general, shape, dtype, amount].append(number.group(1) if number else "")
    record: dict[str, Any] = {
        "lengths": list(lengths),
        "kv_bytes_per_token": totals["grows"] / (lengths[3] - lengths[2]),
        "kv_bytes_per_token_while_all_windows_fill": totals["filling"] / (lengths[1] - lengths[0]),
        "window_capped_bytes_per_seq": totals["window"],
        "state_bytes_per_seq": totals["state"],
        "state_bytes_per_seq_as_stored": totals["stored"],
    }
    if crossed:
        record["encoder_lengths"] = list(ENCODER)
    if totals["cross"]:
        record["cross_kv_bytes_per_encoder_token"] = totals["cross"]
    record["tensors"] = [
        {"kind": kind, "tensor": name, "shape": list(shape), "dtype": dtype, "count": len(layers),
         "layers": spans(layers), "elements_per_token": amount}
        for (kind, name, shape, dtype, amount), layers in rows.items()
    ]  # fmt: skip
    return {key: int(v) if isinstance(v, float) and v == int(v) else v for key, v in record.items()}


def spans(numbers: list[str]) -> str:
    """Layer numbers as ``0-2,4``."""
    values = sorted({int(number) for number in numbers if number})
    parts: list[list[int]] = []
    for value in values:
        if parts and parts[-1][1] == value - 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
