"""What the arithmetic needs to know of a model, whatever its config.json called it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from plimsoll.core.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts part of the layers that have one.

    Attributes:
        count: Routed experts per layer.
        per_token: Experts that each token visits.
        intermediate: Width of one expert's feed-forward part.
        shared_intermediate: Width of the part that every token visits; 0 when there is none.
        layers: Indices of the layers that have experts; the others are dense.
    """

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep the same thing for every token.

    Attributes:
        layers: Caches of this kind. A looped model has more of them than layers, a model whose
            layers share caches fewer.
        kv_heads: Rows of keys and of values per token; 1 for a latent cache.
        key_dim: Elements of one row of keys; of a latent cache, the compressed part.
        value_dim: Elements of one row of values; of a latent cache, the positional part.
        window: Tokens that these layers look back; None when they keep every token.
        chunked: The window is a chunk with fixed borders (Llama 4), which some engines keep in full.
        latent: One compressed row serves all heads, so no rank holds less than all of it.
        index_dim: Elements of the index key of sparse attention; 0 when there is none.
        index_layers: How many of these caches hold index keys.
        stride: Tokens that share one stored row (compressed attention); 1 almost everywhere.
    """

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    chunked: bool = False
    latent: bool = False
    index_dim: int = 0
    index_layers: int = 0
    stride: int = 1

    @property
    def row(self) -> int:
        """Elements that one of these layers keeps per stored token, index keys apart."""
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class StateGroup:
    """Layers that keep a state per sequence, however long it is.

    Attributes:
        kind: mamba, mamba2, delta, kda, lightning, conv, rglru, rwkv or another family's own word.
        layers: Layers of this kind.
        conv_channels: Channels of the short convolution; 0 without one.
        conv_kernel: Columns of its kernel; an engine keeps one fewer.
        recurrent: Elements of the recurrent state.
        heads: Heads over which tensor parallelism divides the state; 0 when it is not divided.
        reference_columns: Columns that transformers keeps where that is not the kernel.
        conv_dtype: ``model`` or a canonical dtype, as transformers keeps it.
        recurrent_dtype: The same for the recurrent state.
        stated_dtype: Dtype that the config demands for the recurrent state (``mamba_ssm_dtype``).
        groups: Groups of Mamba 2, replicated when they do not divide over the ranks.
        group_channels: Channels of the convolution that belong to one group.
    """

    kind: str
    layers: int
    conv_channels: int = 0
    conv_kernel: int = 0
    recurrent: int = 0
    heads: int = 0
    reference_columns: int | None = None
    conv_dtype: str = "model"
    recurrent_dtype: str = "fp32"
    stated_dtype: str | None = None
    groups: int = 0
    group_channels: int = 0

    @property
    def columns(self) -> int:
        """Columns of the convolution that transformers keeps."""
        return self.conv_kernel if self.reference_columns is None else self.reference_columns


@dataclass(frozen=True, slots=True)
class Encoder:
    """The encoder side of an encoder-decoder, as far as it is cached for the decoder.

    Attributes:
        cross_elements: Elements per encoder position over all decoder layers, keys and values.
        positions: Fixed number of positions (Whisper: 1,500); None when it is free.
    """

    cross_elements: int
    positions: int | None = None


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors of one name pattern and shape, for weights that are computed from the config.

    Attributes:
        name: As Hugging Face writes it; ``*`` stands for the layer's index.
        shape: Elements along each axis. Experts of one layer are one stacked tensor.
        indices: Values of ``*``; None for a single tensor.
        dtype: Canonical dtype where it is not the compute dtype.
    """

    name: str
    shape: tuple[int, ...]
    indices: tuple[int, ...] | None = None
    dtype: str | None = None

    @property
    def count(self) -> int:
        """How many tensors these are."""
        return 1 if self.indices is None else len(self.indices)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One text model, with what hangs on it.

    ``heads``, ``kv_heads``, ``key_dim`` and ``value_dim`` are those of its most usual attention;
    ``caches`` has the truth layer by layer.

    Attributes:
        family: The config's model_type, for example ``qwen2``; of a wrapper, its text model's.
        architecture: Class name as transformers writes it, for example ``Qwen2ForCausalLM``.
        layers: Number of decoder layers.
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
        caches: What each token keeps, by kind of layer; empty where nothing grows with length.
        states: What each sequence keeps, by kind of layer.
        encoder: The cached encoder side, if there is one.
        experts: The mixture of experts, if any.
        tensors: The weights as the config implies them.
        modalities: What it reads beside text: ``vision``, ``audio``.
        draft_layers: Layers for multi-token prediction in the files, loaded only with speculation.
        quantization: The config's quantisation block, as it stands; None without one.
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
    caches: tuple[CacheGroup, ...] = ()
    states: tuple[StateGroup, ...] = ()
    encoder: Encoder | None = None
    experts: Experts | None = None
    tensors: tuple[TensorGroup, ...] = ()
    modalities: frozenset[str] = frozenset()
    draft_layers: int = 0
    quantization: Mapping[str, Any] | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Elements of all tensors that the config implies."""
        return sum(prod(group.shape) * group.count for group in self.tensors)

    @property
    def windowed(self) -> tuple[CacheGroup, ...]:
        """The groups that look back a limited number of tokens."""
        return tuple(group for group in self.caches if group.window is not None)

    @property
    def latent(self) -> bool:
        """Whether any layer keeps a latent cache."""
        return any(group.latent for group in self.caches)

    @property
    def attention(self) -> str:
        """Kind of attention, by the names of ``fit.v1``."""
        mamba = any(group.kind.startswith("mamba") for group in self.states)
        indexed = any(group.index_dim for group in self.caches)
        kinds = (  # the first that holds
            (self.encoder is not None, "EncoderDecoder"),
            (not self.caches and mamba, "StateSpace"),
            (not self.caches, "Linear"),
            (bool(self.states), "Hybrid"),
            (self.latent and indexed, "SparseMLA"),
            (self.latent, "MLA"),
            (bool(self.windowed), "Window"),
            (self.kv_heads == self.heads, "MHA"),
            (self.kv_heads == 1, "MQA"),
        )
        return next((name for holds, name in kinds if holds), "GQA")

    def noting(self, *notes: str) -> ModelSpec:
        """The same model with further notes."""
        return replace(self, notes=(*self.notes, *notes))
