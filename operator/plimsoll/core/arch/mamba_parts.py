"""Mamba's two generations: what a layer keeps per sequence, and its weights.

Mamba 1 keeps a state of ``width * d_state`` and convolves the inner width; Mamba 2 keeps
``heads * head_dim * d_state`` and convolves B and C of its groups too. Sources: transformers'
``modeling_mamba.py`` and ``modeling_mamba2.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.fields import MAX_DIM
from plimsoll.core.arch.spec import StateGroup, TensorGroup
from plimsoll.core.records import dataclass
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields

Indices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Sizes of the first generation.

    Attributes:
        hidden: Width of the residual stream.
        width: Inner width.
        state: Columns of the state.
        kernel: Columns of the convolution.
        rank: Width of the step size's bottleneck.
        conv_bias: The convolution has a bias.
        bias: The projections in and out have biases.
        norms: There are norms on the step size, B and C (Jamba).
        heads: Heads of Zamba, whose parts of the weights are stacked; 1 otherwise.
    """

    hidden: int
    width: int
    state: int
    kernel: int
    rank: int
    conv_bias: bool
    bias: bool
    norms: bool = False
    heads: int = 1

    def group(self, layers: int) -> StateGroup:
        """What so many layers keep."""
        return StateGroup(
            "mamba",
            layers,
            conv_channels=self.width,
            conv_kernel=self.kernel,
            recurrent=self.width * self.state,
            heads=self.width,
        )

    def tensors(self, prefix: str, indices: Indices) -> Iterator[TensorGroup]:
        """Weights under their usual names."""
        width, state = self.width, self.state
        yield TensorGroup(f"{prefix}.A_log", (width, state), indices)
        yield TensorGroup(f"{prefix}.D", (width,), indices)
        yield TensorGroup(f"{prefix}.conv1d.weight", (width, 1, self.kernel), indices)
        if self.conv_bias:
            yield TensorGroup(f"{prefix}.conv1d.bias", (width,), indices)
        yield from linear(f"{prefix}.in_proj", 2 * width, self.hidden, indices, bias=self.bias)
        # Zamba's heads have their own small projections: as many rows, each from a part of the width.
        rows = (self.rank + 2 * state) * self.heads
        yield from linear(f"{prefix}.x_proj", rows, max(1, width // self.heads), indices)
        yield from linear(f"{prefix}.dt_proj", width, self.rank, indices, bias=True)
        yield from linear(f"{prefix}.out_proj", self.hidden, width, indices, bias=self.bias)
        if self.norms:
            yield from norm(f"{prefix}.dt_layernorm", self.rank, indices)
            yield from norm(f"{prefix}.b_layernorm", state, indices)
            yield from norm(f"{prefix}.c_layernorm", state, indices)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of the second generation.

    Attributes:
        hidden: Width of the residual stream.
        width: Inner width.
        heads: Heads.
        size: Width of one head.
        groups: Groups of B and C.
        state: Columns of the state.
        kernel: Columns of the convolution.
        conv_bias: The convolution has a bias.
        bias: The projection in has a bias.
        out_bias: The projection out has one.
        gated_norm: There is a norm before the projection out.
        dtype: Dtype that the config demands for the state.
    """

    hidden: int
    width: int
    heads: int
    size: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    gated_norm: bool = True
    dtype: str | None = None

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.width + 2 * self.groups * self.state

    def group(self, layers: int) -> StateGroup:
        """What so many layers keep."""
        return StateGroup(
            "mamba2",
            layers,
            conv_channels=self.channels,
            conv_kernel=self.kernel,
            recurrent=self.heads * self.size * self.state,
            heads=self.heads,
            stated_dtype=self.dtype,
            groups=self.groups,
            group_channels=2 * self.state,
        )

    def tensors(self, prefix: str, indices: Indices) -> Iterator[TensorGroup]:
        """Weights under their usual names."""
        for name in ("dt_bias", "A_log", "D"):
            yield TensorGroup(f"{prefix}.{name}", (self.heads,), indices)
        yield TensorGroup(f"{prefix}.conv1d.weight", (self.channels, 1, self.kernel), indices)
        if self.conv_bias:
            yield TensorGroup(f"{prefix}.conv1d.bias", (self.channels,), indices)
        rows = self.width + self.channels + self.heads
        yield from linear(f"{prefix}.in_proj", rows, self.hidden, indices, bias=self.bias)
        if self.gated_norm:
            yield from norm(f"{prefix}.norm", self.width, indices)
        yield from linear(
            f"{prefix}.out_proj", self.hidden, self.width, indices, bias=self.out_bias
        )


def step_rank(fields: Fields, key: str, hidden: int) -> int:
    """The bottleneck of the step size; ``auto`` and nothing mean a sixteenth of the hidden size.

    Raises:
        BadModel: Neither a width nor ``auto``.
    """
    value = fields.get(key)
    if value is None or value == "auto":
        fields.seen.add(key)
        return ceil_div(hidden, 16)
    return fields.integer(key, MAX_DIM)


def inner(fields: Fields, key: str, hidden: int) -> int:
    """Inner width: a multiple of the hidden size, which may be broken.

    Raises:
        BadModel: The multiple is not a number, or leaves nothing.
    """
    width = int(fields.number(key, 1024, default=2) * hidden)
    if not 1 <= width <= MAX_DIM:
        raise fields.wrong(key, "a multiple of the hidden size")
    return width


def mamba2_of(
    fields: Fields, hidden: int, *, width: int | None = None, head_key: str = "mamba_d_head"
) -> Mamba2:
    """Bamba's words: ``mamba_n_heads``, ``mamba_d_head`` (``auto``), ``mamba_d_state`` ...

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    width = width or inner(fields, "mamba_expand", hidden)
    heads = fields.integer("mamba_n_heads", MAX_DIM)
    stated = fields.get(head_key)
    automatic = stated is None or stated == "auto"
    size = max(1, width // heads) if automatic else fields.integer(head_key, MAX_DIM)
    bias = fields.flag("mamba_proj_bias", default=False)
    return Mamba2(
        hidden=hidden,
        width=width,
        heads=heads,
        size=size,
        groups=fields.integer("mamba_n_groups", MAX_DIM),
        state=fields.integer("mamba_d_state", MAX_DIM),
        kernel=fields.integer("mamba_d_conv", MAX_DIM),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=bias,
        out_bias=bias,
        dtype=fields.dtype_under("mamba_ssm_cache_dtype") or fields.dtype_under("mamba_ssm_dtype"),
    )
