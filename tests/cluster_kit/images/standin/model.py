"""What an engine reads of a model folder: shapes, bytes of the weights, bytes of a token."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

DTYPE_BYTES = {"float32": 4, "float": 4, "fp32": 4}  # all others that a server computes in have two


class ModelError(RuntimeError):
    """A folder that no engine can load, in its words."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model folder.

    Attributes:
        architecture: first of ``architectures``.
        layers: with a cache.
        kv_heads: per layer, of the whole model.
        head_dim: numbers per head, or the width of a latent cache (then ``latent``).
        latent: one row per token and layer instead of keys and values by head.
        context: longest sequence by config.json; 0 when it states none.
        weights: bytes of the tensors of the whole model.
        wide: whether the model computes in four bytes.
    """

    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    latent: bool
    context: int
    weights: int
    wide: bool

    def cell(self, tensor: int, element: float | None = None) -> int:
        """Bytes of one token on one rank; ``element`` bytes a number, or as the model computes."""
        size = element or (4 if self.wide else 2)
        if self.latent:
            return int(self.layers * self.head_dim * size)
        return int(2 * self.layers * max(1, self.kv_heads // tensor) * self.head_dim * size)


def element_bytes(args: argparse.Namespace, one_byte: tuple[str, ...]) -> int | None:
    """Bytes of one number of the cache as vLLM's and SGLang's flags say; None: as the model computes.

    Args:
        args: with ``kv_cache_dtype`` and ``dtype``.
        one_byte: how the names of one-byte caches begin.
    """
    if args.kv_cache_dtype.startswith(one_byte):
        return 1
    return 4 if args.dtype == "float32" else None


def read_model(folder: str) -> Model:
    """Read ``config.json`` and the sizes of the weight files; no weight is read.

    Raises:
        ModelError: no config.json, one without shapes, or no weights.
    """
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"Can't load the configuration of '{folder}': {error}") from None
    config |= config.get("text_config") or {}
    try:
        shape = _shape(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}/config.json: cannot find the model's shape: {error}") from None
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return Model(
        architecture=(config.get("architectures") or ["LlamaForCausalLM"])[0],
        context=int(config.get("max_position_embeddings") or 0),
        weights=_weights(path),
        wide=dtype in DTYPE_BYTES,
        **shape,
    )


def _shape(config: dict[str, Any]) -> dict[str, Any]:
    layers = int(config.get("num_hidden_layers") or config["n_layer"])
    heads = int(config.get("num_attention_heads") or config["n_head"])
    if config.get("kv_lora_rank"):
        width = int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])
        return {"layers": layers, "kv_heads": 1, "head_dim": width, "latent": True}
    width = config.get("head_dim") or int(config.get("hidden_size") or config["n_embd"]) // heads
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return {"layers": layers, "kv_heads": kv_heads, "head_dim": int(width), "latent": False}


def _weights(folder: Path) -> int:
    """Bytes of the tensors: safetensors without their headers, else whole files. Sparse files count in full."""
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.gguf"):
        files = sorted(folder.glob(pattern))
        if files:
            return sum(_tensor_bytes(file) for file in files)
    raise ModelError(f"Cannot find any model weights with `{folder}`")


def _tensor_bytes(file: Path) -> int:
    size = file.stat().st_size
    if file.suffix != ".safetensors":
        return size
    with file.open("rb") as opened:
        head = opened.read(8)
    return max(0, size - 8 - struct.unpack("<Q", head)[0]) if len(head) == 8 else 0
