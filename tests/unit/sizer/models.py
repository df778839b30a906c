"""Small made models: a Llama of any size whose weight files hold true headers and no data (sparse)."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, INNER = 2, 4, 2, 16, 256, 128
HIDDEN = HEADS * HEAD_DIM
CONTEXT = 8192

#: Bytes of KV cache per token in bf16 or f16: keys and values.
KV_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2


def config(**changes: Any) -> dict[str, Any]:
    """A config.json of a tiny Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        **changes,
    }


def shapes() -> dict[str, list[int]]:
    """Every tensor of that Llama under the names of transformers."""
    tensors = {
        "model.embed_tokens.weight": [VOCAB, HIDDEN],
        "model.norm.weight": [HIDDEN],
        "lm_head.weight": [VOCAB, HIDDEN],
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": [HIDDEN, HIDDEN],
            f"{prefix}.self_attn.k_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
            f"{prefix}.self_attn.v_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
            f"{prefix}.self_attn.o_proj.weight": [HIDDEN, HIDDEN],
            f"{prefix}.mlp.gate_proj.weight": [INNER, HIDDEN],
            f"{prefix}.mlp.up_proj.weight": [INNER, HIDDEN],
            f"{prefix}.mlp.down_proj.weight": [HIDDEN, INNER],
            f"{prefix}.input_layernorm.weight": [HIDDEN],
            f"{prefix}.post_attention_layernorm.weight": [HIDDEN],
        }
    return tensors


def write_shard(path: Path, tensors: dict[str, list[int]]) -> int:
    """One safetensors file in bf16: a true header, then a hole of the right length. Returns data bytes."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def safetensors_folder(folder: Path, *, shards: int = 1, **changes: Any) -> Path:
    """A model folder as Hugging Face lays it out; further keywords change config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(**changes)))
    tensors = list(shapes().items())
    if shards == 1:
        write_shard(folder / "model.safetensors", dict(tensors))
        return folder
    places: dict[str, str] = {}
    total = 0
    for index in range(shards):
        name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(tensors[index::shards])
        total += write_shard(folder / name, part)
        places |= dict.fromkeys(part, name)
    index_document = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_document))
    return folder


def gguf_folder(folder: Path, name: str = "tiny.gguf") -> Path:
    """A folder with one GGUF file of that Llama in f16."""
    import gguf  # noqa: PLC0415 - brings numpy; most tests need neither
    import numpy as np  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(folder / name), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"<{i}>" for i in range(VOCAB)])
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, HIDDEN), np.float16))
    writer.add_tensor("output_norm.weight", np.zeros(HIDDEN, np.float32))
    writer.add_tensor("output.weight", np.zeros((VOCAB, HIDDEN), np.float16))
    kv = KV_HEADS * HEAD_DIM
    for layer in range(LAYERS):
        for part, shape in {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():
            writer.add_tensor(f"blk.{layer}.{part}.weight", np.zeros(shape, np.float16))
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{part}.weight", np.zeros(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder
