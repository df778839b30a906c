"""What transformers' config classes say of a model_type: default sizes and class names."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.defaults import ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping

#: model_type -> type whose config class transformers uses for it.
_SAME_CLASS: Final = {"gpt-sw3": "gpt2"}

#: model_type -> class, of families whose code is in the checkpoint and not in transformers.
_OWN: Final[Mapping[str, str]] = {
    "NVLM_D": "NVLM_D",
    "PanguEmbedded": "PanguEmbeddedForCausalLM",
    "PanguProMoE": "PanguProMoEForCausalLM",
    "TeleFLM": "TeleFLMForCausalLM",
    "Dream": "DreamModel",
    "Yi": "YiForCausalLM",
    "aquila": "AquilaForCausalLM",
    "arctic": "ArcticForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "bailing_moe": "BailingMoeForCausalLM",
    "bailing_moe_linear": "BailingMoeLinearV2ForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM",
    "btlm": "BTLMLMHeadModel",
    "chatglm": "ChatGLMModel",
    "codeshell": "CodeShellForCausalLM",
    "deci": "DeciLMForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_vl_v2": "DeepseekVLV2ForCausalLM",
    "dots_ocr": "DotsOCRForCausalLM",
    "grok-1": "Grok1ForCausalLM",
    "h2ovl_chat": "H2OVLChatModel",
    "hf_olmo": "OLMoForCausalLM",
    "hunyuan": "HunYuanForCausalLM",
    "hymba": "HymbaForCausalLM",
    "internlm": "InternLMForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internvl_chat": "InternVLChatModel",
    "jais": "JAISLMHeadModel",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "llava_llama": "LlavaLlamaForCausalLM",
    "llava_mistral": "LlavaMistralForCausalLM",
    "llava_qwen": "LlavaQwenForCausalLM",
    "llada2_moe": "LLaDA2MoeModelLM",
    "mimo": "MiMoForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minicpmo": "MiniCPMO",
    "minicpmv": "MiniCPMV",
    "minimax_m1": "MiniMaxM1ForCausalLM",
    "minimax_text_01": "MiniMaxText01ForCausalLM",
    "minimax_vl_01": "MiniMaxVL01ForConditionalGeneration",
    "nemotron-nas": "DeciLMForCausalLM",
    "openelm": "OpenELMForCausalLM",
    "orion": "OrionForCausalLM",
    "phi-msft": "PhiForCausalLM",
    "phi3_v": "Phi3VForCausalLM",
    "phi4mm": "Phi4MMForCausalLM",
    "phi3small": "Phi3SmallForCausalLM",
    "plamo": "PlamoForCausalLM",
    "qwen": "QWenLMHeadModel",
    "sdar": "SDARForCausalLM",
    "sdar_moe": "SDARMoeForCausalLM",
    "skywork": "SkyworkForCausalLM",
    "skywork_chat": "SkyworkChatModel",
    "solar": "SolarForCausalLM",
    "stablelm_epoch": "StableLMEpochForCausalLM",
    "step1": "Step1ForCausalLM",
    "step3_text": "Step3TextForCausalLM",
    "step3_vl": "Step3VLForConditionalGeneration",
    "step3p5": "Step3p5ForCausalLM",
    "telechat": "TelechatForCausalLM",
    "telechat3": "TeleChat3ForCausalLM",
    "xverse": "XverseForCausalLM",
    "zhinao": "ZhinaoForCausalLM",
}

#: Classes whose published configs carry the model_type of another family (Grok 2 says ``git``).
MISTYPED: Final[Mapping[str, str]] = {"Grok1ForCausalLM": "grok-1"}


@cache
def defaults_of(model_type: str) -> Mapping[str, Any]:
    """Default values of the config class for that model_type; empty when there is no such class."""
    model_type = _SAME_CLASS.get(model_type, model_type)
    start = ROWS.find(f"\n{model_type}\t") if model_type else -1
    if start < 0:
        return {}
    start += len(model_type) + 2
    row: dict[str, Any] = json.loads(ROWS[start : ROWS.index("\n", start)])
    return row


def class_of(model_type: str) -> str | None:
    """Name of the class that generates text with such a config."""
    name = defaults_of(model_type).get("#class")
    return name if isinstance(name, str) else _OWN.get(model_type)


def type_of(class_name: str) -> str | None:
    """The model_type of a class, for configs that name only ``architectures``.

    Several types may share a class; the one that is called like the class wins.
    """
    if not class_name.isidentifier():
        return None
    found = re.findall(rf'^(\S+)\t.*"#class":"{class_name}"', ROWS, re.MULTILINE)
    found += [name for name, named in _OWN.items() if named == class_name]
    alike = [
        name
        for name in found
        if class_name.lower().startswith(name.replace("_", "").replace("-", ""))
    ]
    return max(alike, key=len) if alike else found[0] if found else None
