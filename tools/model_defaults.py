"""Print ``core/arch/defaults.py``: the values that transformers' config classes give absent fields.

Run it in an environment of its own: ``pip install transformers==5.24.0 torch``, then
``python tools/model_defaults.py > operator/plimsoll/core/arch/defaults.py``.
Only facts are taken: names of fields and their default values.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

# Fields that change neither a cache nor the shape of a weight.
NEUTRAL = re.compile(
    r"dropout|dropuot|drop_path|droprate|_act$|^act_|activation|initializer|init_std|init_|_init|eps$|_eps|epsilon|"
    r"token_id|token_index|token$|_tokens_id|rope_theta|rope_scaling|rope_parameters|rotary_pct|rope_local|theta|"
    r"^id2label|^label2id|problem_type|return_dict|output_|use_cache|transformers_version|architectures|"
    r"is_encoder_decoder|chunk_size_feed|router_.*coef|_loss|aux_|_coef|scaling_factor|jitter|logit|softcap|"
    r"_multiplier$|norm_topk|routed_scaling|temperature|seed|beam|length_penalty|forced_|begin_suppress|suppress|"
    r"pretraining_tp|gradient|mask_(time|feature)|apply_spec|num_mel|classifier|summary_|tie_encoder|task_specific|"
    r"^dtype$|image_mean|image_std|interpolat|do_|generation|sampling_rate|codebook_loss|time_step_|_scale$|scale_",
)
KEPT = {
    "tie_word_embeddings", "activation_function", "summary_tokens", "rope_type", "num_mel_bins", "scale_factor",
}  # fmt: skip
CLASSES = (
    "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ",
    "CAUSAL_IMAGE_MODELING",
)  # fmt: skip
MAX_TEXT = 64


def class_names() -> dict[str, str]:
    """model_type -> name of the class that generates text."""
    names: dict[str, str] = {}
    for part in CLASSES:
        table = getattr(modeling_auto, f"MODEL_FOR_{part}_MAPPING_NAMES")
        for model_type, stated in table.items():
            name = stated if isinstance(stated, str) else stated[0]
            if model_type not in names or wraps(model_type, part):
                names[model_type] = name
    return names


def wraps(model_type: str, part: str) -> bool:
    """Whether the class that reads images is the usual one: such types also have one for text alone."""
    return part == "IMAGE_TEXT_TO_TEXT" and "text_config" in getattr(
        CONFIG_MAPPING[model_type], "sub_configs", {}
    )


def nested(cls: Any) -> dict[str, Any]:
    """The nested configs that a config without any gets, some of them only in ``__post_init__``."""
    try:
        config = cls()
    except Exception:  # noqa: BLE001 - a class whose defaults its own checks refuse has none to tell
        return {}
    return {
        key: value for key, value in vars(config).items() if isinstance(value, PreTrainedConfig)
    }


def differing(config: Any) -> dict[str, Any]:
    """What of a nested config is not its own class's default."""
    usual = vars(type(config)())
    return {
        field.name: plainly(value)
        for field in dataclasses.fields(config)
        if (value := vars(config).get(field.name)) != usual.get(field.name)
        and (field.name in KEPT or not NEUTRAL.search(field.name))
        and plain(value)
    }


def telling(values: dict[str, Any]) -> dict[str, Any]:
    """What a wrapper's class states of a nested config, without the fields that matter to no size."""
    return {
        key: plainly(value)
        for key, value in values.items()
        if (key in KEPT or not NEUTRAL.search(key)) and plain(value)
    }


def plainly(value: Any) -> Any:
    """As JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def plain(value: Any) -> bool:
    """Whether a default is worth keeping: a number, a word, a short list or a flat object."""
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return len(value) < MAX_TEXT
    if isinstance(value, list | tuple):
        return len(value) <= MAX_TEXT and all(plain(item) for item in value)
    return isinstance(value, dict) and len(value) <= 16 and all(plain(v) for v in value.values())  # noqa: PLR2004


def defaults(cls: Any, names: dict[str, str]) -> dict[str, Any]:
    """One config class as data; ``#class`` and ``#sub`` describe it."""
    document: dict[str, Any] = {}
    model_type = cls.model_type
    if model_type in names:
        document["#class"] = names[model_type]
    subs = {
        key: sub.model_type
        for key, sub in getattr(cls, "sub_configs", {}).items()
        if hasattr(sub, "model_type")
    }
    if subs:
        document["#sub"] = subs
    given = {key: sub.init_kwargs for key, sub in getattr(cls, "sub_configs_defaults", {}).items()}
    made = {
        k: {"model_type": v.model_type, **telling(given.get(k) or {}), **differing(v)}
        for k, v in nested(cls).items()
    }
    if made:
        document["#default"] = made
    aliases = {k: v for k, v in getattr(cls, "attribute_map", {}).items() if not NEUTRAL.search(k)}
    if aliases:
        document["#alias"] = aliases
    for field in dataclasses.fields(cls):
        if field.name in subs or (NEUTRAL.search(field.name) and field.name not in KEPT):
            continue
        value = field.default
        if value is dataclasses.MISSING:
            value = (
                field.default_factory()
                if field.default_factory is not dataclasses.MISSING
                else None
            )
        if plain(value):
            document[field.name] = plainly(value)
    return document


def main() -> None:
    """Print the module."""
    names = class_names()
    wanted = set(names) & set(CONFIG_MAPPING_NAMES)
    rows: dict[str, dict[str, Any]] = {}
    stack = [CONFIG_MAPPING[name] for name in sorted(wanted)]
    while stack:
        cls = stack.pop(0)
        model_type = cls.model_type
        if model_type in rows or not dataclasses.is_dataclass(cls):
            continue
        rows[model_type] = defaults(cls, names)
        stack += [
            sub for sub in getattr(cls, "sub_configs", {}).values() if hasattr(sub, "model_type")
        ]
        stack += [type(config) for config in nested(cls).values()]
    print('"""Values of transformers\' config classes for fields that a config.json leaves out.')
    print()
    print(
        f"Written by tools/model_defaults.py from transformers {transformers.__version__}; do not edit."
    )
    print(
        "One line a type, its JSON parsed when asked for: as a dict the table would cost each start 50 ms."
    )
    print(
        "``#class`` is the class that generates text, ``#sub`` the types of nested objects, ``#default``"
    )
    print(
        'the nested objects of a config without any, ``#alias`` other names that the class takes for a field."""'
    )
    print()
    print("from __future__ import annotations")
    print()
    print("from typing import Final")
    print()
    print('ROWS: Final = r"""')
    for name in sorted(rows):
        print(name, json.dumps(rows[name], separators=(",", ":"), sort_keys=True), sep="\t")
    print('"""')


if __name__ == "__main__":
    main()
