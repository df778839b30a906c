"""What the operator makes of the samples, without a cluster: `python -m tests.render_samples`.

One sample for each engine, on a card that suits it. The numbers are `fit`'s, with weights computed from the sizes of
the published config.json. The output is committed beside the samples, so that a reader sees the pod template; a test
holds it current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from plimsoll.controller.crd import parse, sizing_request
from plimsoll.controller.objects import BuildContext, Pin, Stamp, deployment
from plimsoll.core.budget import fit
from plimsoll.core.device import Device
from plimsoll.core.units import parse_size

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer

SAMPLES = Path(__file__).resolve().parents[1] / "manifests" / "samples"
FOLDER = SAMPLES / "rendered"
HEADER = """\
# Made by `python -m tests.render_samples` from ../{name}.yaml: the Deployment that the operator writes for
# {what}. For reading; the operator makes its own with the number of your GPU.
"""
# https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct: config.json
LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct: config.json
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
# https://huggingface.co/Qwen/Qwen3-8B and Qwen3-4B: config.json
QWEN3_8B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_4B = QWEN3_8B | {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "tie_word_embeddings": True,
}
# https://huggingface.co/mistralai/Mistral-7B-Instruct-v0.3: config.json
MISTRAL_7B = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32768,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def _card(product: str, total: str, nvml_total: str) -> Device:
    free = parse_size(total)
    return Device(product, total=free, nvml_total=parse_size(nvml_total), free=free)


H100 = _card("NVIDIA H100 80GB HBM3", "79.19GiB", "79.65GiB")
L4 = _card("NVIDIA L4", "22.03GiB", "22.49GiB")
LABELS = {H100.product: "NVIDIA-H100-80GB-HBM3", L4.product: "NVIDIA-L4"}
# Sample -> the config of its model, and the card: one for each engine.
RENDERED = {
    "lightllm-llama-8b": (LLAMA_8B, H100),
    "llamacpp-qwen3-4b": (QWEN3_4B, L4),
    "sglang-llama-70b": (LLAMA_70B, H100),
    "tensorrtllm-llama-8b": (LLAMA_8B, H100),
    "tgi-mistral-7b": (MISTRAL_7B, H100),
    "vllm-qwen3-8b": (QWEN3_8B, H100),
}
CONTEXT = BuildContext("ghcr.io/plimsoll-dev/sizer:0.1.0", "IfNotPresent")


def servers(name: str) -> list[InferenceServer]:
    """The servers of a sample, as the API server would hand them to the operator."""
    bodies = yaml.safe_load_all((SAMPLES / f"{name}.yaml").read_text())
    found = []
    for body in bodies:
        if body["kind"] == "InferenceServer":
            body["metadata"] |= {
                "namespace": "default",
                "uid": "00000000-0000-0000-0000-000000000000",
                "generation": 1,
            }
            found.append(parse(body))
    return found


def render(name: str = "lightllm-llama-8b") -> dict[str, Any]:
    """The Deployment of the sample."""
    (server,) = servers(name)
    config, card = RENDERED[name]
    answer = fit(config, None, card, sizing_request(server))
    assert answer.budget is not None
    assert answer.allocation is not None
    pinned, chosen = answer.pinned(), answer.allocation.pinned
    stamp = Stamp(
        max_total_token_num=pinned.max_total_token_num,
        max_sequences=pinned.max_sequences,
        context_length=pinned.context_length,
        prefill_tokens=pinned.prefill_tokens,
        weight_bytes=answer.budget.weights * server.spec.tensor,
        model_file=server.spec.model.file,
        pin=Pin("nvidia.com/gpu.product", LABELS[card.product]),
        pinned=chosen.to_mapping() if chosen else None,
        kv_bytes=chosen.kv_cache_bytes if chosen else None,
        gpu={
            "product": card.product,
            "totalBytes": card.nvml_total,
            "mig": card.mig,
            "sharing": card.sharing,
            "count": server.spec.accelerator.count,
        },
        model_digest="sha256:" + "0" * 64,
    )
    return deployment(server, stamp, CONTEXT)


def text(name: str) -> str:
    """The file's text."""
    (server,), (_, card) = servers(name), RENDERED[name]
    cards = server.spec.accelerator.count
    what = f"{cards} x {card.product}" if cards > 1 else f"one {card.product}"
    head = HEADER.format(name=name, what=what)
    return head + yaml.safe_dump(render(name), sort_keys=False, width=120)


def main() -> int:
    """Write the rendered samples."""
    FOLDER.mkdir(exist_ok=True)
    for name in RENDERED:
        (FOLDER / f"{name}.yaml").write_text(text(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
