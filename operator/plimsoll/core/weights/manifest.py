"""What the files hold: tensors counted by role, layer and kind.

A model may have 200,000 tensors, almost all of them experts that differ by their number alone. So
names are reduced to roles as soon as they are read: ``model.layers.7.mlp.experts.31.w1.weight`` is
one more tensor of the role ``model.layers.*.mlp.experts.*.w1.weight`` in layer 7.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from plimsoll.core.errors import BadModel
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec

#: ``Part.layer`` of a tensor outside of any numbered list.
NO_LAYER: Final = -1
_MAX_DIGITS: Final = 9  # a longer number is no layer, and int() of a hostile one takes long


class TensorKind(NamedTuple):
    """What a header says of a tensor beside its name; ``size`` is bytes on disk.

    Many tensors of a model are of one kind. Readers share the object.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int


class Part(NamedTuple):
    """What tensors have in common that are treated alike.

    ``role`` is the name with ``*`` in the place of numbers between dots, ``layer`` the first of those
    numbers that is not an expert's (``NO_LAYER`` without one).
    """

    role: str
    layer: int
    kind: TensorKind


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors of one checkpoint, as counts. Format: safetensors, pytorch, gguf or computed.

    Attributes:
        parts: How many tensors there are of each role, layer and kind.
        format: How they are stored.
        notes: What could not be read, for people.
    """

    parts: Mapping[Part, int]
    format: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, tensors: Mapping[str, TensorKind], form: str, notes: tuple[str, ...] = ()
    ) -> Manifest:
        """From tensors by name."""
        return cls(Counter(Part(*role_of(n), kind) for n, kind in tensors.items()), form, notes)

    @property
    def total(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(part.kind.size * count for part, count in self.parts.items())

    @property
    def count(self) -> int:
        """How many tensors there are."""
        return sum(self.parts.values())


def role_of(name: str) -> tuple[str, int]:
    """Role and layer of a tensor's name."""
    layer = NO_LAYER
    pieces = name.split(".")
    for index, piece in enumerate(pieces):
        if piece.isdecimal() and piece.isascii() and len(piece) <= _MAX_DIGITS:
            if layer == NO_LAYER and pieces[index - 1 : index] != ["experts"]:
                layer = int(piece)
            pieces[index] = "*"
    return ".".join(pieces), layer


# The decoder's layers, under the names that Llama, GPT-2, Falcon, GGUF and T5 give them. Encoders and
# towers count their own layers.
_DECODER: Final = re.compile(
    r"(?:^|\.)(?:layers|h|blk|blocks?|layer)\.\*\.",
)
_OTHER_STACK: Final = re.compile(
    r"(?:^|[._])(?:encoder|vision|visual|vit|audio|speech|image|tower|resampler|perceiver|qformer|"
    r"talker|code2wav|token2wav|tts|mtp|vpm|apm|abstractor|projector|connector|adapter|prenet|postnet)",
)


def is_decoder_layer(role: str) -> bool:
    """Whether a role belongs to a numbered layer of the text decoder."""
    found = _DECODER.search(role)
    # Only what stands before the number says whose layers they are: `layers.*.encoder_attn` is a part.
    return found is not None and not _OTHER_STACK.search(role[: found.start() + 1])


def check_complete(manifest: Manifest, spec: ModelSpec) -> None:
    """Refuse weights that cannot belong to this config.

    Raises:
        BadModel: Layers are missing, or the embedding has another width than the config.
    """
    roles: dict[str, bool] = {}
    named: set[int] = set()
    for role, layer, kind in manifest.parts:
        if role not in roles:
            roles[role] = is_decoder_layer(role)
        if roles[role]:
            named.add(layer)
        # An embedding that is quantised is stored in another shape.
        plain = kind.dtype in {"F32", "F16", "BF16"} and len(kind.shape) == 2  # noqa: PLR2004
        if role == "model.embed_tokens.weight" and plain and kind.shape[1] != spec.hidden:
            raise _foreign(role, kind, spec)
    missing = [index for index in range(spec.layers) if index not in named]
    # Names of another kind than those known here say nothing about what is missing.
    if named and missing and spec.encoder is None:
        raise BadModel(
            f"the weights lack layer {missing[0]} of {spec.layers}; the download may be incomplete",
            reason="WeightsUnreadable",
            field="num_hidden_layers",
            value=spec.layers,
        )


def _foreign(role: str, kind: TensorKind, spec: ModelSpec) -> BadModel:
    return BadModel(
        f"{role[-80:]} has the shape {list(kind.shape)!r:.64}, config.json says hidden_size "
        f"{spec.hidden}; the two do not belong together",
        reason="WeightsUnreadable",
        field="hidden_size",
        value=spec.hidden,
    )
