"""What each tensor is, told by the names that checkpoints use.

Engines decide by module; files only have names, and the same few dozen words return in all of them.
Sources: the ``stacked_params_mapping`` and layer classes of vLLM and SGLang (ColumnParallelLinear,
RowParallelLinear, QKVParallelLinear, ReplicatedLinear), LightLLM's weight classes.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple


class Split(Enum):
    """How engines divide a tensor over the ranks of a tensor-parallel group."""

    NOT_LOADED = "not loaded"  # tables that engines compute themselves, adapters
    VOCAB = "vocab"  # rows of the vocabulary
    COLUMN = "column"  # output rows, bias included
    ROW = "row"  # input columns; the bias is added once and stays whole
    KV = "kv"  # follows the KV heads
    QKV = "qkv"  # q, k and v in one matrix
    GROUPS = "groups"  # Mamba 2: heads are divided, groups replicated where there are too few
    WHOLE = "whole"  # on every rank
    UNKNOWN = "unknown"  # whole too, but nobody said so


class Side(Enum):
    """Which part of the model a tensor belongs to."""

    TEXT = "text"
    TOWER = "tower"
    DRAFT = "draft"
    OTHER = "other"  # talkers and vocoders, which text servers do not load


class Placing(NamedTuple):
    """What a role says.

    Attributes:
        split: How it is divided.
        side: The part of the model.
        expert: It belongs to routed experts.
        numbered: Each expert has tensors of its own, with its number in the name.
        edge: ``first`` or ``last`` for what only that pipeline stage holds; empty for layers.
        linear: A matrix that on-the-fly quantisation would replace.
        exact: It keeps its stored dtype: scales, and the few that engines keep in fp32.
    """

    split: Split
    side: Side
    expert: bool
    numbered: bool
    edge: str
    linear: bool
    exact: bool


_NOT_LOADED: Final = re.compile(
    r"rotary_emb\.inv_freq$|rotary_pos_emb\.inv_freq$|rope_freqs\.weight$|\.masked_bias$"
    # The causal mask of GPT-2, GPT-J and GPT-NeoX, which old files hold as a tensor.
    r"|(?:^|\.)(?:attn|attention|self_attention)\.bias$"
    r"|\.lora_[AB]\.|\.lora_embedding|\.lora_magnitude|(?:^|\.)position_ids$|num_batches_tracked$"
)
_OTHER: Final = re.compile(
    r"(?:^|\.)(?:talker|code2wav|token2wav|tts|vocoder|code_predictor|speech_decoder)\."
)
_TOWER: Final = re.compile(
    r"(?:^|\.)(?:\w*(?:vision|visual|audio|image|speech|sound)\w*|vit|vpm|apm|resampler|"
    r"multi_modal_projector|mm_projector|modality_projection|mlp1|connector|aligner|img_projector|"
    r"patch_merger|qformer|perceiver|multi_modal\w*)\."
)
_DRAFT: Final = re.compile(r"(?:^|\.)(?:mtp\w*|nextn\w*|eagle\w*|medusa\w*)\.")
_EMBEDDING: Final = re.compile(
    r"(?:^|\.)(?:embed_tokens(?:_per_layer)?|wte|word_embeddings?|tok_embeddings|embed_in|token_embd|shared|"
    r"embeddings?|embedding\.word_embeddings|tokens_embed)\.(?:weight|\w+)$"
)
_HEAD: Final = re.compile(
    r"(?:^|\.)(?:lm_head|embed_out|output_layer|proj_out|score)\.(?:weight|bias|\w+)$|^(?:output|head)\.\w+$"
)
_LAST: Final = re.compile(
    r"(?:^|\.)(?:norm|final_layernorm|final_layer_norm|ln_f|norm_f|final_norm|output_norm)\.(?:weight|bias)$"
)
_IN_LAYER: Final = re.compile(r"\.\*\.")
_EXPERT: Final = re.compile(
    r"(?:^|\.)(?:experts|expert|local_experts)\.|block_sparse_moe\.(?:input|output)_linear\."
)
_NUMBERED: Final = re.compile(r"(?:^|\.)(?:experts|local_experts)\.\*\.")
_REPLICATED: Final = re.compile(
    r"(?:norm|layernorm|layer_norm|ln_?\w*|rms\w*)\.(?:weight|bias|\w+)$|(?:^|[._])(?:q|k)_?norm"
    # Latent attention's down-projections and the index of sparse attention.
    r"|\.(?:q_a_proj|kv_a_proj\w*|fused_qkv_a_proj\w*|wq_a|wkv_a|f_a_proj|g_a_proj)\.|\.(?:indexer|compressor)\."
    r"|(?:^|\.)(?:gate|router|wg|shared_expert_gate|gate_network|e_score_correction_bias|expert_bias)(?:\.\w+)*$"
    r"|(?:^|\.)(?:wpe|embed_positions|position_embeddings?|pos_embed\w*)\.|layer_scalar$"
    r"|(?:^|\.)(?:per_layer_\w+|altup\w*|laurel)\."
    r"|(?:input_scale|output_scale|k_scale|v_scale|q_scale|weight_shape|weight_scale_2|weight_global_scale|"
    r"input_global_scale|activation_scale)$"
)
# Whole words between dots, a dot or the end behind them; `_`, for stacked experts' parts.
_END: Final = r"(?:[._]|$)"
_QKV: Final = re.compile(
    rf"\.(?:qkv_proj|query_key_value|c_attn|Wqkv|wqkv|W_pack|qkv|attn_qkv|in_proj_qkv|qkv_layer){_END}"
)
_KV: Final = re.compile(
    rf"\.(?:k_proj|v_proj|k|v|key|value|wk|wv|kv_proj|key_value|k_lin|v_lin|key_proj|value_proj){_END}"
)
_GROUPS: Final = re.compile(rf"\.(?:mamba|mixer|mamba2)\.(?:in_proj|conv1d){_END}")
_COLUMN: Final = re.compile(
    rf"\.(?:q_proj|q_b_proj|kv_b_proj|wq_b|wkv_b|gate_proj|up_proj|gate_up_proj|gate_and_up_proj|w1|w3|w13|wq|fc1|"
    rf"fc_in|c_fc|c_fc_0|c_fc_1|dense_h_to_4h|query|q|wi|wi_0|wi_1|linear_fc1|lin1|up|gate_up|g_proj|b_proj|f_b_proj|"
    rf"g_b_proj|in_proj\w*|input_linear|conv1d|q_conv1d|k_conv1d|v_conv1d|dt_proj|A_log|D|dt_bias|sinks?|"
    rf"query_proj|intermediate\.dense|w|v1|x_proj_gate|linear_1|linear_v|gate_linear|z_proj|a_proj){_END}"
)
_ROW: Final = re.compile(
    rf"\.(?:o_proj|down_proj|w2|wo|out_proj|dense|dense_4h_to_h|fc2|fc_out|c_proj|linear_fc2|lin2|o|down|"
    rf"output_linear|x_proj|output\.dense|out_lin|attn_out|linear_2|proj|wo_b|output_proj){_END}"
)
_EXACT: Final = re.compile(
    r"(?:scale\w*|scales|scale_inv|absmax|quant_map|zeros?|zero_point|A_log|\.D|e_score_correction_bias)$"
)
_MATRIX: Final = re.compile(r"(?:\.weight|experts\.\w*proj|experts\.\w*(?:w1|w2|w3|v1))$")


@lru_cache(maxsize=1 << 14)
def placing(role: str) -> Placing:
    """What a tensor of this role is. Bounded: a name is looked at up to 512 characters from its end."""
    role = role[-512:]
    side = _side(role)
    expert = _EXPERT.search(role) is not None and "shared_expert" not in role
    split = _split(role, expert=expert)
    edge = ""
    if not _IN_LAYER.search(role):
        if split is Split.VOCAB:
            edge = "last" if _HEAD.search(role) else "first"
        elif _LAST.search(role):
            edge = "last"
        else:
            edge = "all"
    divided = split in {Split.COLUMN, Split.ROW, Split.KV, Split.QKV, Split.GROUPS}
    return Placing(
        split,
        side,
        expert,
        numbered=expert and _NUMBERED.search(role) is not None,
        edge=edge,
        linear=divided
        and side is not Side.TOWER
        and _MATRIX.search(role) is not None
        and not re.search(r"conv1d|A_log|dt_bias|sinks?", role),
        exact=_EXACT.search(role) is not None,
    )


def _side(role: str) -> Side:
    if _OTHER.search(role):
        return Side.OTHER
    if _TOWER.search(role):
        return Side.TOWER
    return Side.DRAFT if _DRAFT.search(role) else Side.TEXT


def _split(role: str, *, expert: bool) -> Split:
    """By order: what is not loaded, what is replicated, and then how it is divided."""
    for pattern, split in (
        (_NOT_LOADED, Split.NOT_LOADED),
        (_REPLICATED, Split.WHOLE),
        (_EMBEDDING, Split.VOCAB),
        (_HEAD, Split.VOCAB),
        (_QKV, Split.QKV),
        (_KV, Split.KV),
        (_GROUPS, Split.GROUPS),
        (_COLUMN, Split.COLUMN),
        (_ROW, Split.ROW),
    ):
        if pattern.search(role):
            if split is Split.ROW and role.endswith("bias"):
                return Split.WHOLE  # added once, after the sum over ranks
            # Some experts' matrices are called key and value; experts have no KV heads.
            return Split.COLUMN if expert and split is Split.KV else split
    return Split.WHOLE if role.endswith(".bias") else Split.UNKNOWN
