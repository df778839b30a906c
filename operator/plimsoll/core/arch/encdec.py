"""What all encoder-decoders share: stacks of layers, and the two caches of a decoder.

A decoder layer keeps keys and values of its own tokens, which grow, and keys and values of the
encoder's output, made once for each request: ``Encoder.cross_elements`` per encoder position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import embeddings, gated_mlp, linear, norm, plain_mlp
from plimsoll.core.arch.classes import defaults_of
from plimsoll.core.arch.fields import MAX_CONTEXT
from plimsoll.core.arch.spec import CacheGroup, Encoder, ModelSpec, TensorGroup
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.blocks import Indices
    from plimsoll.core.arch.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack of equal layers, an encoder's or a decoder's. Widths in elements.

    Attributes:
        prefix: Name before ``.layers``.
        layers: Layers.
        hidden: Width of the residual stream.
        ffn: Width of the feed-forward part.
        inner: Width of all query heads; 0 means ``hidden``.
        kv_inner: Width of all key heads; 0 means ``inner``.
        cross_kv_inner: The same of cross attention; 0 means ``kv_inner``.
        source: Width of what cross attention reads; 0 in an encoder, which has none.
        bias: Whether attention has biases.
        key_bias: Whether the key projection has one too (Whisper's has not).
        out_bias: Whether the output projection has one too (Moonshine's has not).
        mlp_bias: Whether the feed-forward part has biases.
        norm_bias: Layer norms with a bias; RMS norms have none.
        gated: A gate beside the up-projection.
        norms: Norms per layer; 0 means one for each part.
        norm: A norm after the last layer.
        head_norms: Norms of queries and keys over one head of this width; 0 for none.
    """

    prefix: str
    layers: int
    hidden: int
    ffn: int
    inner: int = 0
    kv_inner: int = 0
    cross_kv_inner: int = 0
    source: int = 0
    bias: bool = True
    key_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    gated: bool = False
    norms: int = 0
    norm: bool = True
    head_norms: int = 0

    def tensors(self, *, mlp: bool = True) -> Iterator[TensorGroup]:
        """All its layers; without the feed-forward parts when the caller has its own."""
        every = tuple(range(self.layers))
        layer = f"{self.prefix}.layers.*"
        yield from self._attention(f"{layer}.self_attn", every)
        if self.source:
            yield from self._attention(f"{layer}.cross_attn", every, source=self.source)
        if mlp:
            yield from self.feed_forward(every)
        for index in range(self.norms or (3 if self.source else 2)):
            yield from norm(f"{layer}.norm_{index}", self.hidden, every, bias=self.norm_bias)
        if self.norm:
            yield from norm(f"{self.prefix}.norm", self.hidden, bias=self.norm_bias)

    def feed_forward(self, indices: tuple[int, ...]) -> Iterator[TensorGroup]:
        """The dense feed-forward part of these layers."""
        build = gated_mlp if self.gated else plain_mlp
        yield from build(
            f"{self.prefix}.layers.*.mlp",
            indices,
            hidden=self.hidden,
            width=self.ffn,
            bias=self.mlp_bias,
        )

    def bare(self) -> Stack:
        """The same with RMS norms, a gate, and no biases at all."""
        return replace(self, bias=False, mlp_bias=False, norm_bias=False, gated=True)

    def _attention(
        self, prefix: str, indices: Indices, *, source: int = 0
    ) -> Iterator[TensorGroup]:
        inner = self.inner or self.hidden
        keys = self.kv_inner or inner
        if source:
            keys = self.cross_kv_inner or keys
        read = source or self.hidden
        yield from linear(f"{prefix}.q_proj", inner, self.hidden, indices, bias=self.bias)
        yield from linear(f"{prefix}.k_proj", keys, read, indices, bias=self.bias and self.key_bias)
        yield from linear(f"{prefix}.v_proj", keys, read, indices, bias=self.bias)
        yield from linear(
            f"{prefix}.o_proj", self.hidden, inner, indices, bias=self.bias and self.out_bias
        )
        if self.head_norms:
            yield from norm(f"{prefix}.q_norm", self.head_norms, indices)
            yield from norm(f"{prefix}.k_norm", self.head_norms, indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Sizes of a decoder's attention."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    cross_kv_heads: int
    cross_head_dim: int

    @property
    def caches(self) -> tuple[CacheGroup, ...]:
        """What a decoder token keeps."""
        return (CacheGroup(self.layers, self.kv_heads, self.head_dim, self.head_dim),)

    @property
    def cross_elements(self) -> int:
        """Elements that an encoder position keeps over all decoder layers."""
        return 2 * self.layers * self.cross_kv_heads * self.cross_head_dim


def attention_of(layers: int, heads: int, head_dim: int, kv_heads: int | None = None) -> Attention:
    """Cross attention with the heads of self attention, as nearly all have it."""
    kv_heads = kv_heads or heads
    return Attention(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        cross_kv_heads=kv_heads,
        cross_head_dim=head_dim,
    )


def spec_of(  # noqa: PLR0913 - the keywords are the spec's own
    fields: Fields,
    names: tuple[str, str],
    attention: Attention,
    *,
    hidden: int,
    ffn: int,
    vocab: int,
    context: str | None = "max_position_embeddings",
    tied: bool = True,
    encoder: bool = True,
) -> ModelSpec:
    """The decoder as a ModelSpec, without tensors; ``names`` are family and architecture."""
    return ModelSpec(
        family=names[0],
        architecture=names[1],
        layers=attention.layers,
        hidden=hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        key_dim=attention.head_dim,
        value_dim=attention.head_dim,
        intermediate=ffn,
        vocab=vocab,
        context_length=fields.optional(context, MAX_CONTEXT, quiet=True) if context else None,
        dtype=fields.dtype(),
        tied=tied,
        caches=attention.caches,
        encoder=Encoder(attention.cross_elements) if encoder else None,
    )


def decoder_only(fields: Fields) -> bool:
    """Whether the file asks for the decoder alone: ``BartForCausalLM`` and its like."""
    classes = fields.get("architectures")
    named = classes[0] if isinstance(classes, list) and classes else None
    if isinstance(named, str) and named.endswith("ForCausalLM"):
        return True
    stated = fields.values.get("is_encoder_decoder")
    fields.seen.add("is_encoder_decoder")
    return stated is False and named is None


def causal(spec: ModelSpec) -> ModelSpec:
    """The same as a decoder alone; its class is called so."""
    name = spec.architecture.replace("ForConditionalGeneration", "ForCausalLM")
    name = name.replace("MarianMTModel", "MarianForCausalLM")
    return replace(spec, architecture=name, encoder=None)


def head_size(fields: Fields, key: str, hidden: int, heads: int) -> int:
    """``hidden / heads``.

    Raises:
        BadModel: The heads do not divide the width.
    """
    if hidden % heads:
        raise fields.wrong(key, f"a divisor of the width, {hidden}")
    return hidden // heads


def shared_embeddings(
    vocab: int, hidden: int, *, tied: bool, encoder: bool = True
) -> Iterator[TensorGroup]:
    """One table for encoder, decoder and head; untied, transformers makes four of them."""
    if tied or not encoder:
        yield from embeddings(vocab, hidden, tied=tied)
        return
    yield TensorGroup("model.shared.weight", (vocab, hidden))
    yield TensorGroup("model.encoder.embed_tokens.weight", (vocab, hidden))
    yield TensorGroup("model.decoder.embed_tokens.weight", (vocab, hidden))
    yield TensorGroup("lm_head.weight", (vocab, hidden))


def or_default(fields: Fields, key: str, most: int, default: int) -> int:
    """A size of an encoder's front end, where nothing but its own weights hangs on it."""
    value = fields.optional(key, most, quiet=True)
    return default if value is None else value


def nested(fields: Fields, key: str, model_type: str) -> Fields:
    """A nested object with the defaults of that type."""
    defaults = {name: value for name, value in defaults_of(model_type).items() if name[0] != "#"}
    return fields.child(key, defaults)
