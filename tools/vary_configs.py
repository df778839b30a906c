"""Make random valid changes to the default config of every model type and measure them.

    python tools/vary_configs.py OUT.jsonl [MODEL_TYPE ...]

Runs in the environment of ``measure_caches.py``. A change that transformers refuses is dropped and
another one is tried. Each record holds the changed fields only, so absent fields are tested too.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import measure_caches
import torch
import transformers
from measure_shapes import watch_caches

WANTED, TRIES = 3, 14
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
          "num_decoder_layers", "num_encoder_layers")  # fmt: skip
#: field -> values that may replace the default's.
CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(LAYERS, (3, 4, 5, 6, 7, 9, 12)),
    "num_key_value_heads": (1, 2, 4, 8), "num_kv_heads": (1, 2, 4), "head_dim": (32, 64, 96, 128, 256),
    "d_kv": (32, 64, 128), "kv_channels": (64, 128), "attention_head_dim": (64, 128, 160),
    "num_global_key_value_heads": (1, 2, 4), "global_head_dim": (128, 256),
    "num_attention_heads": (8, 16, 24, 32), "n_head": (8, 16), "n_heads": (8, 16), "num_heads": (8, 16),
    "decoder_attention_heads": (4, 8, 16), "hidden_size": (512, 1024, 1536, 2048),
    "d_model": (512, 1024), "n_embd": (512, 1024), "intermediate_size": (512, 1536, 4096),
    "ffn_dim": (512, 2048), "d_ff": (512, 2048), "decoder_ffn_dim": (512, 2048),
    "sliding_window": (17, 32, 100, 256), "attention_chunk_size": (64, 128), "local_attention": (32, 64),
    "attention_window_size": (32, 100), "sliding_window_pattern": (2, 3, 5), "max_window_layers": (1, 2, 4),
    "use_sliding_window": (True, False), "global_attn_every_n_layers": (2, 3),
    "tie_word_embeddings": (True, False), "vocab_size": (300_032, 280_064),
    "kv_lora_rank": (64, 256, 512), "qk_rope_head_dim": (32, 64), "qk_nope_head_dim": (64, 128),
    "v_head_dim": (64, 128), "q_lora_rank": (256, 1024), "index_head_dim": (64, 128), "index_n_heads": (8, 32),
    "first_k_dense_replace": (0, 1, 2), "num_dense_layers": (0, 1, 2),
    "num_experts": (4, 8, 16), "num_local_experts": (4, 8), "n_routed_experts": (8, 16, 32),
    "n_shared_experts": (1, 2), "moe_intermediate_size": (128, 256, 768), "num_experts_per_tok": (1, 2),
    "shared_expert_intermediate_size": (128, 512), "decoder_sparse_step": (1, 2), "num_kv_shared_layers": (0, 1, 2),
    "mamba_d_state": (16, 64, 128), "mamba_d_conv": (3, 4), "mamba_n_groups": (1, 2), "mamba_expand": (1, 2, 4),
    "ssm_state_size": (32, 64), "state_size": (8, 16, 64), "conv_kernel": (3, 4), "expand": (1, 2),
    "n_groups": (1, 2, 4),
    "mamba_num_heads": (16, 64), "mamba_head_dim": (32, 64), "linear_num_value_heads": (16, 32, 64),
    "linear_num_key_heads": (8, 16), "linear_key_head_dim": (64, 128), "linear_value_head_dim": (64, 128),
    "linear_conv_kernel_dim": (3, 4), "full_attention_interval": (2, 3), "conv_L_cache": (3, 4, 5),
    "lru_width": (512, 1024), "conv1d_width": (3, 4), "attn_layer_period": (2, 3), "attn_layer_offset": (0, 1),
    "num_key_value_heads_swa": (2, 4), "multi_query": (True, False), "new_decoder_architecture": (True, False),
    "attention_bias": (True, False), "mlp_bias": (True, False), "qkv_bias": (True, False),
    "attention_k_eq_v": (True, False), "use_qk_norm": (True, False), "qk_layernorm": (True, False),
    "interleave_moe_layer_step": (1, 2), "no_rope_layer_interval": (2, 3), "word_embed_proj_dim": (256,),
    "max_position_embeddings": (8192,), "max_source_positions": (300, 1500), "window_size": (32, 64),
}  # fmt: skip
#: Lists with one entry a layer and the words that they may hold: cut or drawn anew for the layers.
SIZES = {"hidden_size", "num_attention_heads", "d_model", "n_embd"}


def variant(base: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Some fields of a config changed, with the layer count always among them."""
    changes: dict[str, Any] = {}
    present = [key for key in CHOICES if key in base and key not in LAYERS]
    for key in dice.sample(present, min(len(present), dice.randint(2, 6))):
        changes[key] = dice.choice(CHOICES[key])
    count = dice.choice(CHOICES["n_layer"])
    for key in LAYERS:
        if key in base:
            changes[key] = (
                count
                if key in {"num_hidden_layers", "n_layer", "n_layers"}
                else dice.choice(CHOICES[key])
            )
    for key, value in base.items():
        if (
            isinstance(value, list)
            and len(value) == base.get("num_hidden_layers")
            and key not in changes
        ):
            way = dice.randrange(4)  # drawn anew, cut, or left to the class
            if way < 2:  # noqa: PLR2004
                changes[key] = [dice.choice(value) for _ in range(count)] if way else value[:count]
    return changes


def candidate(name: str, dice: random.Random) -> dict[str, Any]:
    """A whole config that names only what it changes."""
    recipe = measure_caches.RECIPES.get(name, {})
    config = measure_caches.config_from({"model_type": name} | recipe)
    text = getattr(config, "text_config", None)
    if text is None:
        return {"model_type": name} | recipe | variant(config.to_dict(), dice)
    inner = (
        {"model_type": text.model_type}
        | recipe.get("text_config", {})
        | variant(text.to_dict(), dice)
    )
    return {"model_type": name} | recipe | {"text_config": inner}


def measured(name: str, dice: random.Random) -> list[dict[str, Any]]:
    """Up to WANTED records of one model type."""
    found: list[dict[str, Any]] = []
    for _ in range(TRIES):
        try:
            values = json.loads(
                json.dumps(candidate(name, dice), default=str).replace("Infinity", '"inf"')
            )
        except Exception as error:  # noqa: BLE001
            print(name, type(error).__name__, str(error)[:100])
            return found
        record = measure_caches.guarded(json.loads(json.dumps(values)))
        if "measured" in record and "whole_model_failed" not in record:
            sums, rows = record["measured"], record["engine"]
            found.append({
                "name": f"{name} {len(found) + 1}", "config": values,
                "all_full": sums["kv_bytes_per_token_while_all_windows_fill"] if "indexer_layers" in rows
                else rows["expected_bytes_per_token_all_layers_full"],
                "windows_honoured": sums["kv_bytes_per_token"] if "indexer_layers" in rows
                else rows["expected_bytes_per_token_windows_honoured"],
                "window": sums["window_capped_bytes_per_seq"], "state": sums["state_bytes_per_seq_as_stored"],
                "cross": sums.get("cross_kv_bytes_per_encoder_token", 0), "params": record["params"]["params"],
                "tied": None,
            })  # fmt: skip
        if len(found) == WANTED:
            break
    return found


def main() -> None:
    """See the module's docstring."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    watch_caches()
    path = Path(sys.argv[1])
    done = path.read_text().splitlines() if path.exists() else []
    seen = {json.loads(line)["config"]["model_type"] for line in done}
    for name in sys.argv[2:] or measure_caches.every_type():
        if name in seen:
            continue
        with path.open("a") as out:
            for record in measured(name, random.Random(f"plimsoll {name}")):  # noqa: S311
                out.write(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
