"""Models that see or hear: a text model inside, with towers and a projector around it.

The text model is read by its own family's reader, so the caches are those of the text model alone.
A nested config may be absent, or name no sizes: then the class's defaults hold, and where the class
decides only when it is made, ``#default`` of ``defaults`` has the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch import registry, wrappers_text
from plimsoll.core.arch.classes import defaults_of
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.projectors import PROJECTORS
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.arch.towers import Missing, Scope, tensors
from plimsoll.core.arch.towers_audio import AUDIO
from plimsoll.core.arch.towers_own import DECISIVE, OWN, PUBLISHED, TIMM
from plimsoll.core.arch.towers_vision import VISION
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec

#: Key of a nested config -> its name in layouts.
PARTS: Final[Mapping[str, str]] = {
    "vision_config": "vision",
    "high_res_vision_config": "high",
    "vq_config": "vq",
    "audio_config": "audio",
    "encoder_config": "audio",
    "qformer_config": "qformer",
    "projector_config": "qformer",
    "perceiver_config": "perceiver",
    "protein_encoder_config": "protein_encoder",
    "adapter_config": "adapter",
    "adaptor_config": "adaptor",
    "acoustic_tokenizer_encoder_config": "acoustic",
    "semantic_tokenizer_encoder_config": "semantic",
    "semantic_model_config": "semantic",
    "diffusion_head_config": "diffusion",
    "codec_config": "codec",
    "word_timestamp_config": "words",
}
_AUDIO: Final = frozenset({"audio", "acoustic", "semantic", "diffusion", "codec", "words"})
_TEXT_KEYS: Final = ("text_config", "llm_config", "language_config")
_SECOND: Final = frozenset({"high", "semantic", "diffusion", "vq", "codec", "words"})
#: Parts that a projector's layout reads; they have no tensors of their own.
_SIZES_ONLY: Final = frozenset({
    "blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer", "idefics2_perceiver",
    "idefics_perciever", "molmo2_adapter", "",
})  # fmt: skip
#: Fields beside the nested configs that look like sizes of a cache and are none.
_OF_ROTATION: Final[Mapping[str, tuple[str, ...]]] = {"musicflamingo": ("head_dim",)}
_NO_CONFIG: Final = frozenset({"fuyu"})  # no tower, hence no config of one: patches go straight in

#: Wrappers whose class fills a nested config that leaves sizes out from its own default for it.
_FILLED: Final = frozenset({"glmasr", "voxtral", "voxtral_realtime"})
#: Wrappers of a whole text model with a head of its own, which alone decides.
_WHOLE_TEXT: Final = frozenset(
    {"blip-2", "instructblip", "instructblipvideo", "kosmos-2", "kosmos-2.5"}
)
#: Wrappers that also tie the head where only the text config says so.
_TIED_BY_TEXT: Final = frozenset({
    "fast_vlm", "glm4v", "glm4v_moe", "glm_ocr", "hunyuan_vl", "llava",
    "llava_next_video", "llava_onevision", "minimax_m3_vl", "paddleocr_vl", "shieldgemma2", "vibevoice",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """A nested config and the model_type that it is read as."""

    model_type: str
    fields: Fields


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a wrapper's config.

    Raises:
        BadModel: A field of the wrong type or out of range.
        Unsupported: The text model inside is of a type that is not known.
    """
    if "thinker_config" in defaults_of(family).get("#default", {}):
        # The talker and the vocoder are models of their own, which text servers do not load.
        inner = part_of(fields, family, "thinker_config")
        if inner is not None:
            spec = read(inner.fields, inner.model_type, architecture)
            return replace(spec, dtype=spec.dtype or fields.dtype())
    if family in wrappers_text.FLAT:
        text = Part(family, fields)
        spec = wrappers_text.read(fields, family, architecture)
    else:
        text = text_of(fields, family)
        spec = registry.read_as(
            text.model_type, text.fields.values, notes=fields.notes, path=text.fields.path
        )
    parts = parts_of(fields, family)
    tied = fields.flag("tie_word_embeddings", default=False)
    if family in _TIED_BY_TEXT:
        tied = tied or spec.tied
    if family in _WHOLE_TEXT:
        tied = spec.tied
    if family == "evolla":  # has the field, and a head of its own whatever it says
        tied = False
    fields.seen.update(_OF_ROTATION.get(family, ()))
    if text.fields is not fields:
        # Many files repeat sizes of the text model beside it.
        same = text.fields.get
        fields.seen.update(key for key, value in fields.values.items() if same(key) == value)
    spec = replace(
        tie(spec, tied=tied),
        family=text.model_type,
        architecture=architecture,
        dtype=spec.dtype or fields.dtype(),
        modalities=modalities_of(parts, family),
    )
    towers = around(fields, family, {**parts, "text": text}, spec)
    return replace(spec, tensors=(*spec.tensors, *towers), notes=tuple(fields.notes))


def text_of(fields: Fields, family: str) -> Part:
    """The text model's config: nested, or flat beside the wrapper's own fields.

    Raises:
        BadModel: Not an object.
        Unsupported: A type without a reader, or one that is a wrapper itself.
    """
    key = next((key for key in _TEXT_KEYS if fields.values.get(key) is not None), _TEXT_KEYS[0])
    flat = fields.values.get(key) is None and fields.states("num_hidden_layers")
    if flat:
        # Qwen2-VL and others published their first configs so.
        values = {name: value for name, value in fields.values.items() if name not in PARTS}
        fields.seen.update(values)
        part = part_of(replace(fields, values={}), family, _TEXT_KEYS[0])
        inner = part.model_type if part else ""
        found = Part(inner, Fields(values, fields.notes, _plain_defaults(inner), path=fields.path))
    else:
        part = part_of(fields, family, key, usual_key=_TEXT_KEYS[0])
        if part is None:
            raise fields.wrong(key, "the text model's config")
        found = part
    module = registry.FAMILIES.get(found.model_type)
    if module is None or module == "wrappers":
        raise Unsupported(
            f"{fields.path}{key}.model_type {found.model_type!r:.80} is not supported as a text model",
            field=f"{fields.path}{key}.model_type",
            value=found.model_type,
        )
    return found


def part_of(fields: Fields, family: str, key: str, usual_key: str | None = None) -> Part | None:
    """A nested config with the type that it is read as; None where the model has no such part.

    Raises:
        BadModel: Not an object, or a model_type that is no word.
    """
    row = defaults_of(family)
    usual: Mapping[str, Any] = row.get("#default", {}).get(usual_key or key, {})
    fixed: str | None = row.get("#sub", {}).get(usual_key or key)
    value = fields.get(key)
    if value is not None and not isinstance(value, dict):
        raise fields.wrong(key, "an object")
    if value is None and not usual:
        return None
    values = dict(usual) if value is None else value
    if value is not None and family in _FILLED:
        values = {**usual, **value}
    nested = Fields(values, fields.notes, path=f"{fields.path}{key}.")
    model_type = fixed or nested.text("model_type") or usual.get("model_type") or ""
    return Part(model_type, replace(nested, defaults=_plain_defaults(model_type)))


def _plain_defaults(model_type: str) -> Mapping[str, Any]:
    return {key: value for key, value in defaults_of(model_type).items() if key[0] != "#"}


def parts_of(fields: Fields, family: str) -> dict[str, Part]:
    """All parts beside the text model, by their names in layouts."""
    usual = defaults_of(family).get("#default", {})
    found = {}
    for key, name in PARTS.items():
        if key in usual or fields.values.get(key) is not None:
            part = part_of(fields, family, key)
            if part is not None:
                found[name] = part
    return found


def modalities_of(parts: Mapping[str, Part], family: str) -> frozenset[str]:
    """What the model reads beside text."""
    found = {"audio" for name in parts if name in _AUDIO}
    if family in _NO_CONFIG or not parts.keys().isdisjoint({"vision", "vq"}):
        found.add("vision")
    return frozenset(found)


def tie(spec: ModelSpec, *, tied: bool) -> ModelSpec:
    """The text model with the wrapper's word on whether the head is the embedding."""
    if spec.tied == tied:
        return spec
    rest = tuple(group for group in spec.tensors if group.name != "lm_head.weight")
    head = () if tied else (TensorGroup("lm_head.weight", (spec.vocab, spec.hidden)),)
    return replace(spec, tied=tied, tensors=(*rest, *head))


def around(
    fields: Fields, family: str, parts: Mapping[str, Part], spec: ModelSpec
) -> list[TensorGroup]:
    """Towers and projector. A part whose sizes or layout are not known becomes a note.

    Raises:
        BadModel: A field of the wrong type or out of range.
    """
    near = {name: part.fields for name, part in parts.items()}
    near["wrapper"] = fields
    groups: list[TensorGroup] = []
    for name, part in parts.items():
        if name == "text":
            continue
        prefix = "audio_tower." if name in _AUDIO else "vision_tower."
        if name in _SECOND:
            prefix += f"{name}."
        groups += _tower(part, near, prefix)
        if family == "video_llava":  # a second tower of the same shape, for videos
            groups += _tower(part, near, f"{prefix}video.")
    if family in PROJECTORS:
        scope = Scope(fields, near, {"t": spec.hidden})
        for short, name in (("v", "vision"), ("a", "audio")):
            width = _width(parts.get(name), near)
            if width is not None:
                scope.named[short] = width
        groups += _listed(PROJECTORS[family], scope, "multi_modal_projector.")
    return groups


def _tower(part: Part, near: dict[str, Fields], prefix: str) -> list[TensorGroup]:
    """One tower. Some are made of several, each with a config inside the tower's."""
    name, fields = part.model_type, part.fields
    layout = VISION.get(name) or AUDIO.get(name)
    if layout is not None:
        return _listed(layout, Scope(fields, near), prefix)
    if name in OWN:
        scope = Scope(fields, near)
        try:
            return _listed(OWN[name](scope), scope, prefix)
        except Missing as error:
            return _uncounted(fields, str(error), prefix)
    size = TIMM.get(fields.text("architecture") or "") if name == "timm_wrapper" else None
    if size is not None:
        return [TensorGroup(f"{prefix}weight", (size,))]
    if name in PUBLISHED:
        other = [key for key in DECISIVE if fields.get(key) != fields.defaults.get(key)]
        if other:
            fields.notes.append(
                f"{fields.path}{other[0]} is unusual; the usual weights are counted"
            )
        return [TensorGroup(f"{prefix}weight", (PUBLISHED[name],))]
    groups: list[TensorGroup] = []
    inner = defaults_of(name).get("#default", {})
    for key in inner:
        found = part_of(fields, name, key)
        if found is not None and found.model_type:
            near[key.removesuffix("_config")] = found.fields
            groups += _tower(found, near, f"{prefix}{key.removesuffix('_config')}.")
    if not inner and name not in _SIZES_ONLY:
        fields.notes.append(f"{fields.path}model_type {name!r:.64}: its weights are not counted")
    return groups


def _width(part: Part | None, near: Mapping[str, Fields]) -> float | None:
    if part is None:
        return None
    try:
        return Scope(part.fields, near).number("d")
    except Missing:
        return None


def _listed(layout: str, scope: Scope, prefix: str) -> list[TensorGroup]:
    try:
        return list(tensors(layout, scope, prefix))
    except Missing as error:
        return _uncounted(scope.own, str(error), prefix)


def _uncounted(fields: Fields, missing: str, prefix: str) -> list[TensorGroup]:
    fields.notes.append(f"config names no {missing}; the weights of {prefix[:-1]} are not counted")
    return []
