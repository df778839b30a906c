"""What the operator makes of the LightLLM sample on an H100, without a cluster: `python -m tests.render_samples`.

The number is `fit`'s for Llama-3.1-8B (sizes of its published config.json) on a card with 79.19 GiB, as CUDA reports
an H100. The output is committed beside the sample, so that a reader sees the pod template; a test holds it current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from plimsoll.controller.crd import parse, sizing_request
from plimsoll.controller.objects import BuildContext, Pin, Stamp, deployment
from plimsoll.core.budget import fit
from plimsoll.core.device import Device
from plimsoll.core.units import parse_size

SAMPLES = Path(__file__).resolve().parents[1] / "manifests" / "samples"
SOURCE = SAMPLES / "lightllm-llama-8b.yaml"
TARGET = SAMPLES / "rendered" / "lightllm-llama-8b.yaml"
HEADER = """\
# Made by `python -m tests.render_samples` from ../lightllm-llama-8b.yaml: the Deployment that the operator writes for
# an H100 with 79.19 GiB free. For reading; the operator makes its own with the number of your GPU.
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
_TOTAL = parse_size("79.19GiB")
H100 = Device("NVIDIA H100 80GB HBM3", total=_TOTAL, nvml_total=parse_size("79.65GiB"), free=_TOTAL)


def render() -> dict[str, Any]:
    """The Deployment of the sample."""
    body = yaml.safe_load(SOURCE.read_text())
    body["metadata"] |= {"namespace": "default", "uid": "00000000-0000-0000-0000-000000000000"}
    body["metadata"]["generation"] = 1
    server = parse(body)
    answer = fit(LLAMA_8B, None, H100, sizing_request(server))
    assert answer.budget is not None
    assert answer.allocation is not None
    pinned, chosen = answer.pinned(), answer.allocation.pinned
    stamp = Stamp(
        max_total_token_num=pinned.max_total_token_num,
        max_sequences=pinned.max_sequences,
        context_length=pinned.context_length,
        prefill_tokens=pinned.prefill_tokens,
        weight_bytes=answer.budget.weights,
        pin=Pin("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        pinned=chosen.to_mapping() if chosen else None,
        gpu={
            "product": H100.product,
            "totalBytes": H100.nvml_total,
            "mig": H100.mig,
            "sharing": H100.sharing,
            "count": H100.count,
        },
        model_digest="sha256:" + "0" * 64,
    )
    context = BuildContext("ghcr.io/plimsoll-dev/sizer:0.1.0", "IfNotPresent")
    return deployment(server, stamp, context)


def text() -> str:
    """The file's text."""
    return HEADER + yaml.safe_dump(render(), sort_keys=False, width=120)


def main() -> int:
    """Write the rendered sample."""
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
