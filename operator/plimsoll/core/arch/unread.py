"""Fields of a config that look like memory and that nothing here has read.

A new kind of cache comes as a new field long before anybody writes a reader for it. Such a field
must not be passed over in silence: the result is marked as an estimate and the field is named.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.classes import defaults_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

#: Words in the names of fields that say what a layer keeps, how many layers or heads there are, or
#: which of them share.
_MEMORY: Final = re.compile(
    r"window|cache|(?:^|_)kv(?:_|$)|qkv|(?:^|_)heads?(?:_|$)|(?:^|_)layers?(?:_|$)|state|share|latent|lora"
    r"|index|compress|conv|mamba|ssm|recurr|expert|mtp|nextn|loop|hybrid|pattern|linear_attn|attn_type"
    r"|block_type|block_config|attention_type|retention|memory|(?:^|_)mem_|cross_attention|use_cla|use_mla"
)

#: Fields with such words that change no size: switches of training and of other programs, constants
#: of norms and routers, numbers of special tokens. A text: it takes 2 ms to compile, and most configs need neither this
#: nor the last one.
_NEUTRAL: Final = (
    r"use_cache|cache_implementation|cache_dir|output_(?:hidden_states|router_logits|attentions)"
    r"|.*layer_?norm.*|.*_norm_eps|layerdrop|.*_layerdrop|layer_scale.*|layers_to_transform"
    r"|.*_token_(?:id|index|ids|indices)|.*_index(?:es)?_?token.*|(?:bos|eos|pad|unk|mask|ignore|image|video|audio)_index"
    r"|(?:prune|pruned|mask)_heads|head_mask|head_dropout|.*_dropout(?:_.*)?|initializer.*|init_.*|.*_init(?:_.*)?"
    r"|router_.*|.*_router_.*|.*expert.*(?:dropout|jitter|weights?|scal(?:e|ing).*|bias.*|capacity|parallel.*|backend|dtype)"
    r"|norm_(?:topk|expert).*|ep_size|expert_(?:selection|model).*|.*_checkpointing.*|rope_.*|.*_rope_.*|no_rope_layers|no_rope_layer_interval"
    r"|num_labels|label2id|id2label|.*_lr_.*|activation_sparsity_pattern|order_of_interleaved_layers|layer_switch|shared_moe_mode|use_mtp|_sliding_window_pattern|cla_share_factor|quantization_config|compression_config"
    r"|architectures|auto_map|model_type|transformers_version|pretraining_tp|fused?_.*|use_fused.*|.*_kernel_impl"
    r"|max_window_layers|use_sliding_window|.*_impl(?:ementation)?|lm_head_(?:bias|scale|multiplier)|.*multiplier.*"
    r"|vision_feature_layer|mm_.*|unfreeze.*|tune_.*|freeze.*|.*_path|seq_classif.*|classifier.*|tie_.*"
)


def unread_fields(
    model_type: str, values: Mapping[str, Any], seen: AbstractSet[str]
) -> Iterator[str]:
    """Names of fields with a value that look like memory, in the order of the file.

    Left out are fields that a reader has asked for, that transformers' class of that type has too,
    or that are known to be neutral. A value of null, false, 0 or nothing says nothing.
    """
    row = defaults_of(model_type)
    known = row.keys() | row.get("#alias", {}).keys() | row.get("#sub", {}).keys()
    for key, value in values.items():
        if not value or key in seen or key in known:
            continue
        if _MEMORY.search(key) and not re.fullmatch(_NEUTRAL, key):
            yield key


def not_understood(path: str, key: str) -> str:
    """The note about such a field."""
    return f"config has the field {path}{key[:64]}, which is not understood"


def betraying(keys: Iterator[str]) -> str | None:
    """The first of these fields that speaks of another kind of model than plain attention."""
    return next((key for key in keys if re.search(_OTHER_KIND, key)), None)


_OTHER_KIND: Final = (
    r"state|share|latent|lora|(?:^|_)index|compress|conv|mamba|ssm|recurr|loop|hybrid|linear_attn|attn_type"
    r"|block_type|block_config|attention_type|retention|memory|use_cla|use_mla|mem_len|cross_attention|kv_(?!heads)|cache|pattern"
    r"|window|layer_list|per_layer|other_setting"
)
