"""The table of readers: which module reads which model_type. A new family is one module and one row."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from plimsoll.core.arch.classes import class_of, defaults_of
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.unread import not_understood, unread_fields
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.core.arch.spec import ModelSpec

    Reader = Callable[[Fields, str, str], ModelSpec]

#: module of this package -> the model types that it reads.
_MODULES: Final[Mapping[str, str]] = {
    "llama": (
        "apertus apertus1p5_text arcee bitnet cohere cohere2 cohere_compass_text cosmos3_edge_text cwm "
        "diffllama emu3_text_model ernie4_5 exaone exaone4 gemma glm glm4 glm4v_text glm_ocr_text "
        "granite granite4_vision_text granite_docling_text granite_swa helium hunyuan_v1_dense "
        "hunyuan_vl_text hyperclovax internlm3 iquestcoder llama ministral ministral3 mistral "
        "muse_glimmer_text nanochat olmo olmo2 olmo3 paddleocr_vl_text phi3 seed_oss smollm3"
    ),
    "qwen": (
        "qwen2 qwen2_5_omni_text qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe "
        "qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text"
    ),
    "gemma": "gemma2 gemma3_text vaultgemma",
    "gemma4": "diffusion_gemma_text gemma3n_text gemma4_text gemma4_unified_text",
    "moe": (
        "afmoe aria_text beam dots1 ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4v_moe_text "
        "gpt_oss granitemoe granitemoe_swa granitemoeshared hy_v3 kolibri1 mellum minimax_m2 mixtral "
        "olmoe phimoe sarvam_moe solar_open"
    ),
    "moe_own": (
        "cohere2_moe doge ernie4_5_vl_moe_text hunyuan_v1_moe jetmoe laguna llama4_text "
        "mimo_v2_flash muse_spark_text"
    ),
    "dbrx": "dbrx",
    "lara": "lara_mini",
    "delta": "olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text",
    "kda": "bailing_hybrid glm5_next_text kimi_linear",
    "latent": (
        "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 hy_v4_vl_text "
        "kimi_k2 longcat_flash minicpm3 mistral4 sarvam_mla youtu"
    ),
    "latent_own": "dots3_note_text mistral_large4_text",
    "gpt": (
        "RefinedWeb RefinedWebModel biogpt bloom codegen cpmant ctrl falcon gpt-sw3 gpt2 gpt_bigcode gpt_neo "
        "gpt_neox gpt_neox_japanese gptj imagegpt jais2 modernbert-decoder mpt nemotron openai-gpt opt "
        "persimmon phi reformer stablelm starcoder2 xglm xlm"
    ),
    "bert": (
        "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert "
        "roberta roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
    ),
    "bart": (
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100 marian mbart mvp nllb-moe "
        "pegasus pegasus_x plbart pp_formulanet_text trocr"
    ),
    "bailing_linear": "bailing_moe_linear",
    "codebooks": "dia musicgen musicgen_melody",
    "encdec_wrappers": (
        "encoder-decoder florence2 pp_formulanet speech-encoder-decoder vision-encoder-decoder"
    ),
    "mamba": "falcon_mamba mamba mamba2",
    "mamba_hybrids": "bamba falcon_h1 granitemoehybrid jamba",
    "nemotron_h": "nemotron_h",
    "zamba": "zamba zamba2",
    "deepseek_v4": "deepseek_v4",
    "loops": "dory hrm_text",
    "minimax_m3": "minimax_m3_vl_text",
    "recurrent": "minimax recurrent_gemma rwkv xlstm",
    "short_conv": "lfm2 lfm2_moe lfm3 zaya",
    "inkling": "inkling2_loop_text inkling2_text inkling_text",
    "moonshine": "canary cohere_asr moonshine moonshine_streaming",
    "pix2struct": "pix2struct",
    "prophetnet": "prophetnet",
    "t5": "longt5 mt5 pop2piano switch_transformers t5 udop umt5",
    "t5gemma": "t5gemma t5gemma2",
    "whisper": "seamless_m4t seamless_m4t_v2 speech_to_text speecht5 whisper",
    "wrappers": (
        "apertus1p5 aria audioflamingo3 aya_vision blip blip-2 chameleon cohere2_vision cohere_compass cosmos3_edge "
        "cosmos3_omni deepseek_ocr2 deepseek_vl deepseek_vl_hybrid diffusion_gemma dots3_note emu3 "
        "ernie4_5_vl_moe exaone4_5 fast_vlm evolla fun_asr_nano fuyu gemma3 gemma3n gemma4 gemma4_unified glm46v glm4v "
        "glm4v_moe git glm5_next glm_ocr glmasr glmga got_ocr2 granite4_vision granite_docling granite_speech "
        "granite_speech_plus hunyuan_vl hy_v4_vl hyperclovax_vision_v2 idefics idefics2 idefics3 inkling2 "
        "inkling2_loop inkling_mm_model instructblip instructblipvideo internvl janus kimi_k25 kosmos-2 "
        "kosmos-2.5 kyutai_speech_to_text lfm2_vl lfm3_vl lighton_ocr llama4 llava "
        "llava_next llava_next_video llava_onevision "
        "minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral3 mistral_large4 mllama molmo2 "
        "moss_transcribe_diarize muse_glimmer muse_spark musicflamingo nemo_speechlm nemotron_h_omni omniasr "
        "ovis2 paddleocr_vl paligemma perception_lm phi4_multimodal pp_chart2table qianfan_ocr qwen2_5_omni "
        "qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_5_moe qwen3_asr qwen3_omni_moe "
        "qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen4_exp shieldgemma2 smolvlm step3p7 unlimited_ocr "
        "vibevoice vibevoice_asr video_llama_3 video_llava vipllava voxtral voxtral_realtime"
    ),
    "custom": (
        "Dream PanguEmbedded PanguProMoE TeleFLM Yi aquila arctic baichuan bailing_moe bailing_moe_v2 btlm "
        "chatglm codeshell deepseek grok-1 hf_olmo internlm internlm2 jais llada2_moe mimo minicpm orion "
        "phi-msft phi3small plamo qwen sdar sdar_moe skywork solar stablelm_epoch step1 telechat telechat3 xverse "
        "zhinao"
    ),
    "custom_wrappers": (
        "NVLM_D deepseek_vl_v2 dots_ocr h2ovl_chat internvl_chat kimi_vl llava_llama llava_mistral "
        "llava_qwen minicpmo minicpmv minimax_vl_01 phi3_v phi4mm skywork_chat step3_vl"
    ),
    "hunyuan": "hunyuan",
    "hymba": "hymba",
    "minimax_text": "minimax_m1 minimax_text_01",
    "per_layer": "deci nemotron-nas openelm",
    "step3": "step3_text step3p5",
    "wrappers_text": (
        "blip_text_model deepseek_ocr2_text kosmos_2_5_text_model kosmos_2_text_model mllama_text_model "
        "molmo2_text moshi unlimited_ocr_text voxtral_realtime_text"
    ),
}

#: model_type -> module.
FAMILIES: Final[Mapping[str, str]] = {
    model_type: module for module, types in _MODULES.items() for model_type in types.split()
}

#: Class names of families that transformers has no class for.
_CLASSES: Final[Mapping[str, str]] = {}

#: Encoder-decoders for which transformers also has a class of the decoder alone.
_WHOLE: Final = frozenset({
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "mbart", "mvp", "pegasus", "plbart",
    "prophetnet", "whisper",
})  # fmt: skip


def architecture_of(model_type: str) -> str:
    """The class name that such a model's config usually carries."""
    if model_type == "marian":
        return "MarianMTModel"
    named = class_of(model_type) or _CLASSES.get(model_type, model_type)
    if model_type in _WHOLE:
        return named.replace("ForCausalLM", "ForConditionalGeneration")
    return named


def read_as(
    model_type: str,
    values: Mapping[str, Any],
    *,
    notes: list[str] | None = None,
    path: str = "",
) -> ModelSpec:
    """Read a config object as that model_type. Wrappers use it for the text model inside.

    Raises:
        BadModel: A field of the wrong type or out of range.
        KeyError: The type is not in the table.
    """
    module = import_module(f"plimsoll.core.arch.{FAMILIES[model_type]}")
    reader = cast("Reader", module.read)
    defaults = {key: value for key, value in defaults_of(model_type).items() if key[0] != "#"}
    fields = Fields(values, notes if notes is not None else [], defaults, path=path)
    spec = reader(fields, model_type, architecture_of(model_type))
    for key in unread_fields(model_type, values, fields.seen):
        fields.notes.append(not_understood(path, key))
    return replace(spec, notes=tuple(fields.notes))
