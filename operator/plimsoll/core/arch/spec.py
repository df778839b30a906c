"""What the arithmetic needs to know of a model, whatever its config.json called it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts part of the layers that have one.

    Attributes:
        count: Routed experts per layer.
        per_token: Experts that each token visits.
        intermediate: Width of one expert's feed-forward part.
        shared_intermediate: Width of the expert that every token visits; 0 when there is none.
        layers: Indices of the layers that have experts; the others are dense.
    """

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only transformer.

    Attributes:
        family: Row of the family table, for example ``qwen2``.
        architecture: Class name as transformers writes it, for example ``Qwen2ForCausalLM``.
        layers: Number of layers, each with a cache.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads.
        key_dim: Width of one key head.
        value_dim: Width of one value head.
        intermediate: Width of the dense feed-forward part.
        vocab: Rows of the embedding.
        context_length: Longest request the model was made for, in tokens; None when not stated.
        dtype: Dtype that the config names, normalised; None when it names none.
        tied: Whether the head shares the embedding's weights.
        window: Tokens that a windowed layer looks back; None without windowed layers.
        windowed_layers: How many layers are windowed.
        qkv_bias: Whether the q, k and v projections have biases.
        o_bias: Whether the output projection has one.
        mlp_bias: Whether the feed-forward projections have them.
        qk_norm: Whether q and k are normed per head.
        experts: The mixture of experts, if any.
        notes: Values that were not stated and how they were filled in; each becomes a warning.
    """

    family: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    intermediate: int
    vocab: int
    context_length: int | None
    dtype: str | None
    tied: bool
    window: int | None = None
    windowed_layers: int = 0
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> str:
        """Kind of attention, by the names of ``fit.v1``."""
        if self.windowed_layers:
            return "Window"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"
