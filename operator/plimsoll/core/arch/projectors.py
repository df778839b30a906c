"""What leads from a tower into the text model, in the notation of ``towers``.

``t`` is the text model's width, ``v`` and ``a`` those of its vision and audio towers; other names
are fields of the wrapper's config. Source: the shapes of transformers 5.24.0's models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LLAVA: Final = """
linear_1 t v*#vision_feature_layer:1 +b?multimodal_projector_bias:1
linear_2 t t +b?multimodal_projector_bias:1
"""
_NEXT: Final = "=image_newline t\n" + _LLAVA
_MISTRAL3: Final = """
norm v
merging_layer v v*m*m
linear_1 t v*#vision_feature_layer:1 +b?multimodal_projector_bias
linear_2 t t +b?multimodal_projector_bias
"""
_GEMMA3: Final = """
=mm_input_projection_weight v t
mm_soft_emb_norm v
"""
_IDEFICS3: Final = "proj t v*scale_factor:2*scale_factor:2"
_IDEFICS2: Final = """
h = t
q = perceiver.resampler_n_heads * perceiver.resampler_head_dim
k = perceiver.num_key_value_heads * perceiver.resampler_head_dim
modality_projection.{gate,up}_proj text.w v
modality_projection.down_proj t text.w
=latents perceiver.resampler_n_latents h
@perceiver.resampler_depth layers.*.{latents,context,post}_norm h
@perceiver.resampler_depth layers.*.self_attn.q_proj q h
@perceiver.resampler_depth layers.*.self_attn.{k,v}_proj k h
@perceiver.resampler_depth layers.*.self_attn.o_proj h q
@perceiver.resampler_depth layers.*.mlp.{gate,up}_proj 4*h h
@perceiver.resampler_depth layers.*.mlp.down_proj h 4*h
norm h
"""
_INTERNVL: Final = """
wide = v / (downsample_ratio * downsample_ratio)
layer_norm wide +b
linear_1 t wide +b
linear_2 t t +b
"""
_QFORMER: Final = """
h = qformer.hidden_size
e = qformer.encoder_hidden_size
w = qformer.intermediate_size
N = qformer.num_hidden_layers
every = qformer.cross_attention_frequency
C = (N + every - 1) / every
qformer.layernorm h +b
@N qformer.layers.*.attention.{query,key,value,output} h h +b
@N qformer.layers.*.attention.LayerNorm h +b
@C qformer.layers.*.crossattention.{query,output} h h +b
@C qformer.layers.*.crossattention.{key,value} h e +b
@C qformer.layers.*.crossattention.LayerNorm h +b
@N qformer.layers.*.query.intermediate w h +b
@N qformer.layers.*.query.output h w +b
@N qformer.layers.*.query.LayerNorm h +b
"""
_BLIP2: Final = f"""
{_QFORMER.replace("qformer.encoder_hidden_size", "v")}
=query_tokens num_query_tokens h
language_projection t h +b
"""
_INSTRUCT: Final = f"""
{_BLIP2}
qformer.word_embeddings qformer.vocab_size h
qformer.position_embeddings qformer.max_position_embeddings h
@N qformer.layers.*.text.intermediate w h +b
@N qformer.layers.*.text.output h w +b
@N qformer.layers.*.text.LayerNorm h +b
"""
_GRANITE_SPEECH: Final = f"""
{_QFORMER}
=query window_size:15/downsample_rate:5 h
linear t h +b
"""
_MINICPM: Final = """
mlp.0.pre_norm 4*v +b
mlp.0.linear_1 4*v 4*v +b
mlp.0.linear_2 t 4*v +b
"""
_SAM_UP: Final = """
n = vision.output_channels:256
conv_upsampler1 2*n n 3 3
conv_upsampler2 t 2*n 3 3
multimodal_projector t t +b
"""
_MUSE: Final = """
fc1 projector_hidden_size out_hidden_size
fc2 projector_hidden_size projector_hidden_size
vision_projection t projector_hidden_size
"""
_ARIA: Final = """
n = 256
=query n v
cross_attn.{q,k,v}_proj v v
cross_attn.in_proj 3*v v +b
cross_attn.{out_proj,linear} v v +b
{layer_norm,layer_norm_q,layer_norm_kv} v +b
linear_in t v
linear_out t t
"""
_ERNIE: Final = """
wide = v * vision.spatial_merge_size * vision.spatial_merge_size
spatial.fc{1,2} wide wide +b
spatial.ln wide +b
temporal.fc1 wide wide*vision.temporal_merge_size +b
temporal.fc2 wide wide +b
temporal.ln wide +b
mlp t wide +b
after_norm t
"""
_JANUS: Final = """
P = vision.projection_dim
Q = vq.projection_dim
B = vq.num_embeddings
E = vq.embed_dim
aligner.fc1 P v +b
@vision.depth-1 aligner.hidden.* P P +b
generation_embeddings B E
generation_aligner.fc1 Q E +b
@vq.num_hidden_layers-1 generation_aligner.hidden.* Q Q +b
generation_head.proj_out vq.image_token_embed_dim Q +b
generation_head.vision_head B Q +b
"""
_MOLMO2: Final = """
h = adapter.hidden_size
q = adapter.num_attention_heads * adapter.head_dim
two = 2 * v
pooling.q_proj q two +b?adapter.attention_bias
pooling.{k,v}_proj adapter.num_key_value_heads*adapter.head_dim two +b?adapter.attention_bias
pooling.o_proj h q +b?adapter.attention_bias
{gate,up}_proj adapter.intermediate_size h +b?adapter.mlp_bias
down_proj adapter.text_hidden_size adapter.intermediate_size
"""
_KOSMOS: Final = """
=latent_query latent_query_num:64 t
dense t v +b
x_attn.{q,k,v,out}_proj t t +b
"""
_PHI4: Final = """
=global_img_feature_extensor v
=sub_img_feature_extensor v
img_projection_up t v +b
img_projection_down t t +b
{speech,vision_speech}.up_proj t a +b
{speech,vision_speech}.down_proj t t +b
"""
_EVOLLA: Final = """
e = protein_encoder.hidden_size:1280
n = protein_encoder.num_hidden_layers:33
side = resampler_dim_head * resampler_heads
wide = e * resampler_ff_mult
word_embeddings protein_encoder.vocab_size:446 e
vit n e protein_encoder.intermediate_size:5120
emb_layer_norm_after e +b
=latents resampler_num_latents e
@resampler_depth resampler.*.{norm_media,norm_latents,norm} e +b
@resampler_depth resampler.*.{to_q,to_k,to_v} side e
@resampler_depth resampler.*.to_out e side
@resampler_depth resampler.*.fc1 wide e
@resampler_depth resampler.*.fc2 e wide
norm t +b
protein_projector t e +b
"""
_IDEFICS: Final = """
e = v
q = perceiver.resampler_n_heads * perceiver.resampler_head_dim
wide = 4 * v
head = perceiver.resampler_head_dim
?use_resampler =latents perceiver.resampler_n_latents e
?use_resampler @perceiver.resampler_depth blocks.*.{context,latents,mlp}_layer_norm e +b
?use_resampler ?perceiver.qk_layer_norms_perceiver @perceiver.resampler_depth blocks.*.{q,k}_norm head +b
?use_resampler @perceiver.resampler_depth blocks.*.{q,k,v}_proj q e
?use_resampler @perceiver.resampler_depth blocks.*.output_proj e q
?use_resampler @perceiver.resampler_depth blocks.*.mlp.fc wide e
?use_resampler @perceiver.resampler_depth blocks.*.mlp.c_proj e wide
?use_resampler layer_norm e +b
"""
_GRANITE4: Final = """
h = qformer.hidden_size
w = qformer.intermediate_size
N = #deepstack_layer_map + 4
M = N * qformer.num_hidden_layers
=image_newline t
@N {norm,qformer.layernorm} v +b
@N =query 16 v
@N =image_positions 64 v
@N out_linear t v +b
@M qformer.layers.*.attention.{query,key,value,output} h h +b
@M qformer.layers.*.crossattention.{query,output} h h +b
@M qformer.layers.*.crossattention.{key,value} h qformer.encoder_hidden_size +b
@M qformer.layers.*.{attention,crossattention,query}.LayerNorm h +b
@M qformer.layers.*.query.intermediate w h +b
@M qformer.layers.*.query.output h w +b
"""
_PLAIN2: Final = "linear_1 t v +b\nlinear_2 t t +b"

#: model_type of a wrapper -> the tensors between its towers and its text model.
PROJECTORS: Final[Mapping[str, str]] = {
    "llava": _LLAVA,
    "llava_next": _NEXT,
    "llava_next_video": _NEXT,
    "llava_onevision": _NEXT,
    "video_llava": _LLAVA,
    "fast_vlm": _LLAVA,
    "nemo_speechlm": (
        "projector t asr.d +b\n=silence audio.d\nspeakers.proj 192 audio.d +b\nspeakers.up 1536 192 3 +b\n"
        "speakers.dense 192 192 +b\nspeakers.out 8 192 +b"
    ),
    "unlimited_ocr": "=image_newline t\n=view_separator t\nprojector t encoder.d+1024 +b",
    "deepseek_ocr2": "=view_separator t\nprojector t encoder.d +b",
    "vibevoice": (
        "=latent_{scaling,bias}_factor 1\nlinear_1 t audio.d +b\nlinear_2 t t +b\nact t\n"
        "semantic.linear_1 t semantic.d +b\nsemantic.linear_2 t t +b\nsemantic.act t"
    ),
    "vibevoice_asr": (
        "acoustic.linear_1 t acoustic.d +b\nacoustic.linear_2 t t +b\nacoustic.norm t\n"
        "semantic.linear_1 t semantic.d +b\nsemantic.linear_2 t t +b\nsemantic.norm t"
    ),
    "vipllava": (
        "wide = v * #vision_feature_layers:5\nprojector_layernorm wide +b\nlinear_1 t wide +b\nlinear_2 t t +b"
    ),
    "paligemma": "linear projection_dim v +b",
    "gemma3": _GEMMA3,
    "shieldgemma2": _GEMMA3,
    "gemma4": "?v embedding_projection t v\n?a embed_audio t audio.output_proj_dims:1536",
    "gemma4_unified": (
        "?vision.mm_embed_dim projection t vision.mm_embed_dim\n"
        "?audio.audio_embed_dim audio t audio.audio_embed_dim"
    ),
    "gemma3n": (
        "?v embed_vision vision.vocab_size v\n?v embed_vision.{hard,soft}_norm v\n?v embed_vision.projection t v\n"
        "?a embed_audio audio.vocab_size a\n?a embed_audio.{hard,soft}_norm a\n?a embed_audio.projection t a"
    ),
    "granite4_vision": _GRANITE4,
    "diffusion_gemma": "?v embedding_projection t v",
    "mistral3": _MISTRAL3,
    "lighton_ocr": _MISTRAL3,
    "mistral_large4": _MISTRAL3,
    "idefics2": _IDEFICS2,
    "idefics3": _IDEFICS3,
    "smolvlm": _IDEFICS3,
    "internvl": _INTERNVL,
    "qianfan_ocr": _INTERNVL,
    "aya_vision": (
        "wide = v * downsample_factor * downsample_factor\nlayernorm wide +b\n"
        "!alignment_intermediate_size middle = t\n?alignment_intermediate_size middle = alignment_intermediate_size\n"
        "linear_1 middle wide +b\nlinear_2 t middle/2 +b"
    ),
    "cohere2_vision": (
        "linear_1 alignment_intermediate_size v*downsample_factor*downsample_factor +b\n"
        "linear_2 t alignment_intermediate_size/2 +b"
    ),
    "blip-2": _BLIP2,
    "instructblip": _INSTRUCT,
    "instructblipvideo": _INSTRUCT,
    "qwen2_audio": "linear t a +b",
    "voxtral": "linear_1 t audio.w\nlinear_2 t t",
    "voxtral_realtime": "linear_1 t a*downsample_factor\nlinear_2 t t",
    "audioflamingo3": "linear_1 t a +b?projector_bias\nlinear_2 t t +b?projector_bias",
    "musicflamingo": "linear_1 t a +b?projector_bias\nlinear_2 t t +b?projector_bias",
    "glmasr": "linear_1 2*t audio.w +b\nlinear_2 t 2*t +b",
    "moss_transcribe_diarize": "linear_1 t 4*a +b?projector_bias:1\nlinear_2 t t +b?projector_bias:1\nnorm t +b",
    "qwen3_asr": "linear_1 a a +b\nlinear_2 audio.out:3584 a +b",
    "omniasr": "projector t a +b",
    "granite_speech": _GRANITE_SPEECH,
    "granite_speech_plus": _GRANITE_SPEECH,
    "fun_asr_nano": (
        "P = adaptor.projector_hidden_size:2048\nlinear_1 P a +b\nlinear_2 t P +b\n"
        "vit adaptor.num_hidden_layers:2 t adaptor.intermediate_size:256"
    ),
    "got_ocr2": _SAM_UP,
    "pp_chart2table": _SAM_UP,
    "deepseek_vl": _PLAIN2,
    "deepseek_vl_hybrid": (
        "=high_res_vision_alpha 1\nneck.conv1 256 high.d 1 1\nneck.conv2 256 256 3 3\nneck.layer_norm{1,2} 256 +b\n"
        "proj.conv1 512 256 3 3\nproj.conv2 1024 512 3 3\n"
        "vision_proj t/2 v +b\nhigh_res_vision_proj t/2 1024 +b\naligner t t +b"
    ),
    "paddleocr_vl": (
        "wide = v * vision.spatial_merge_size * vision.spatial_merge_size\npre_norm v +b\n"
        "linear_1 wide wide +b\nlinear_2 t wide +b"
    ),
    "cosmos3_edge": (
        "wide = v * vision.spatial_merge_size * vision.spatial_merge_size\nnorm v +b\n"
        "linear_fc1 projector_hidden_size wide +b\nlinear_fc2 t projector_hidden_size +b"
    ),
    "minicpm_ocr": _MINICPM,
    "minicpmv4_6": _MINICPM,
    "minicpmv4_7": _MINICPM,
    "lfm2_vl": (
        "wide = v * downsample_factor:2 * downsample_factor:2\nP = projector_hidden_size:2560\n"
        "?projector_use_layernorm:1 layer_norm wide +b\nlinear_1 P wide +b?projector_bias:1\n"
        "linear_2 t P +b?projector_bias:1"
    ),
    "lfm3_vl": (
        "wide = v * vision.m * vision.m\nP = projector_hidden_size:4096\nlayer_norm v +b\n"
        "linear_1 P wide +b?projector_bias:1\nlinear_2 t P +b?projector_bias:1"
    ),
    "video_llama_3": "readout.0 t v +b\nreadout.2 t t +b",
    "muse_glimmer": _MUSE,
    "muse_spark": _MUSE,
    "aria": _ARIA,
    "ernie4_5_vl_moe": _ERNIE,
    "janus": _JANUS,
    "molmo2": _MOLMO2,
    "kosmos-2": _KOSMOS,
    "kosmos-2.5": _KOSMOS.replace(":64", ":2048"),
    "kimi_k25": "pre_norm v +b\nin_proj 4*v 4*v +b\nout_proj t 4*v +b",
    "minimax_m3_vl": (
        "P = projector_hidden_size\nlinear_1 P v +b\nlinear_2 t P +b\nmerge_linear_1 P 4*t +b\nmerge_linear_2 t P +b"
    ),
    "mllama": ("multi_modal_projector t vision.vision_output_dim:7680 +b"),
    "llama4": "linear_1 t vision.vision_output_dim:7680",
    "step3p7": "projector t 4*v +b?projector_bias",
    "ovis2": "visual_embeddings_table vision.vocab_size d",
    "fuyu": "vision_embed_tokens t patch_size:30*patch_size:30*num_channels:3 +b",
    "git": "visual_projection d v +b\nlayer_norm d +b",
    "evolla": _EVOLLA,
    "idefics": _IDEFICS,
    "nemotron_h_omni": (
        "layer_norm 4*v\nlinear_1 projector_hidden_size 4*v\nlinear_2 t projector_hidden_size"
    ),
    "hyperclovax_vision_v2": "projector t vision.out +b",
    "phi4_multimodal": _PHI4,
}
