"""Audio towers, as lists of tensors in the notation of ``towers``.

Source: the shapes of transformers 5.24.0's models on the meta device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONVS: Final = """
conv1 d num_mel_bins:128 3 +b
conv2 d d 3 +b
"""
_WHISPER: Final = f"""
{_CONVS}
embed_positions max_source_positions d
vit L d w bias=qvo
layer_norm d +b
"""
_OMNI25: Final = f"""
{_CONVS}
audio_bos_eos_token 2 out:3584
vit L d w bias=qvo
ln_post d +b
proj out:3584 d +b
"""
_OMNI3: Final = """
h = downsample_hidden_size
bins = (((num_mel_bins:128+1)/2+1)/2+1)/2
conv2d1 h 1 3 3 +b
conv2d{2,3} h h 3 3 +b
conv_out d h*bins
vit L d w
ln_post d +b
"""
_REALTIME: Final = f"""
{_CONVS}
vit L d w norm=rms bias=qvo mlp=gated down=+b q=H*head_dim
norm d
"""
_OMNIASR: Final = """
subsampling.conv_layers.0.conv conv_dim 1 10 +b?conv_bias
subsampling.conv_layers.rest.conv conv_dim conv_dim 16
?conv_bias =subsampling.conv_layers.rest.conv.bias 6 conv_dim
=subsampling.conv_layers.layer_norm 14 conv_dim
subsampling.layer_norm conv_dim +b
subsampling.projection d conv_dim +b
encode_positions.conv d d/num_conv_pos_embedding_groups num_conv_pos_embeddings +b
vit L d w
layer_norm d +b
"""
_GRANITE: Final = """
h = hidden_dim
wide = h * conv_expansion_factor
!dim_head side = h / H
?dim_head side = dim_head
inner = side * H
input_linear h input_dim +b
@L layers.*.{ff1,ff2}.pre_norm h +b
@L layers.*.{ff1,ff2}.up_proj h*feedforward_mult h +b
@L layers.*.{ff1,ff2}.down_proj h h*feedforward_mult +b
@L layers.*.attn.pre_norm h +b
@L layers.*.attn.to_q inner h
@L layers.*.attn.to_kv 2*inner h
@L layers.*.attn.to_out h inner +b
@L layers.*.attn.rel_pos_emb 2*max_pos_emb+1 side
@L layers.*.conv.norm h +b
@L layers.*.conv.up_conv 2*wide h 1 +b
@L layers.*.conv.depth_conv wide 1 conv_kernel_size
@L layers.*.conv.batch_norm wide +b
@L layers.*.conv.down_conv h wide 1 +b
@L layers.*.post_norm h +b
out output_dim:42 h +b
out_mid h output_dim:42 +b
"""
_FUN: Final = """
e = num_mel_bins:80 * num_stacked_frames
layers.0.self_attn.{q,k,v}_proj d e
@L-1 layers.*.self_attn.{q,k,v}_proj d d
@L =layers.*.self_attn.{q,k,v}_proj.bias d
@L layers.*.self_attn.o_proj d d +b
@L layers.*.self_attn.fsmn d 1 fsmn_kernel_size
@L layers.*.mlp.fc1 w d +b
@L layers.*.mlp.fc2 d w +b
layers.0.input_layernorm e +b
@L-1 layers.*.input_layernorm d +b
@L layers.*.post_attention_layernorm d +b
{final,timestamp}_layernorm d +b
"""
_PHI4: Final = """
n = nemo_conv_channels
bins = ((input_size+1)/2+1)/2
bins = (bins+1)/2
encoder.embed.conv.{0,1,2} n 1 3 3 +b
encoder.embed.pointwise.{1,2} n n 1 1 +b
encoder.embed.out d n*bins +b
encoder.relative_attention_bias 2*bias_max_distance H
@num_blocks encoders.*.{in,out}.layer_norm d +b
@num_blocks encoders.*.{in,out}.gate_up_proj 2*w d +b
@num_blocks encoders.*.{in,out}.down_proj d w +b
@num_blocks encoders.*.self_attn.{q,k,v,o}_proj d d +b
@num_blocks encoders.*.{conv,att,last}.layer_norm d +b
@num_blocks =encoders.*.conv.glu.b{1,2} ext_pw_out_channel
@num_blocks encoders.*.conv.glu 2*ext_pw_out_channel d 1 +b
@num_blocks encoders.*.conv.dw d 1 kernel_size +b
@num_blocks encoders.*.conv.pw depthwise_separable_out_channel d 1 +b
@num_blocks encoders.*.conv.ext ext_pw_out_channel d 1 +b
"""
_INKLING: Final = """
embed_audio_tokens n_mel_bins*mel_vocab_size text.d
norm text.d
"""
_DOTS3: Final = """
h = downsample_hidden_size
bins = (((feature_size+1)/2+1)/2+1)/2
conv_stem.convs.0 h 1 3 3 +b
conv_stem.convs.{1,2} h h 3 3 +b
conv_stem.conv_out d h*bins
vit L d w norm=rms bias=qvo mlp=gated+b
layer_norm d
adapter.norm d +b
adapter.fc1 adapter_out_dim d +b
adapter.fc2 adapter_out_dim adapter_out_dim +b
"""
_NEMOTRON: Final = """
embedder subsampling_factor*num_mel_bins:128 d
input_layer_norm d +b
vit L d w bias=o
layer_norm d +b
"""
_GEMMA4: Final = """
first = subsampling_conv_channels
layer0.conv first 1 3 3
layer0.norm first
layer1.conv 32 first 3 3
layer1.norm 32
input_proj d 32*32
@L layers.*.{feed_forward1,feed_forward2}.ffw_1 4*d d
@L layers.*.{feed_forward1,feed_forward2}.ffw_2 d 4*d
@L layers.*.{feed_forward1,feed_forward2}.{pre,post}_layer_norm d
@L =layers.*.self_attn.per_dim_scale d/H
@L layers.*.self_attn.{q,k,v,post,relative_k}_proj d d
@L layers.*.lconv1d.linear_start 2*d d
@L layers.*.lconv1d.linear_end d d
@L layers.*.lconv1d.depthwise d 1 conv_kernel_size
@L layers.*.lconv1d.{pre,conv}_norm d
@L layers.*.{norm_pre_attn,norm_post_attn,norm_out} d
output_proj output_proj_dims:1536 d +b
"""
_GEMMA3N: Final = """
N = conf_num_hidden_layers
first = sscp_conv_channel_size
conv_0.conv first 1 3 3
conv_0.norm first
conv_1.conv 32 first 3 3
conv_1.norm 32
input_proj d 32*input_feat_size/4
@N conformer.*.{start,end}.ffw_1 4*d d
@N conformer.*.{start,end}.ffw_2 d 4*d
@N conformer.*.{start,end}.{pre,post}_layer_norm d
@N =conformer.*.attention.per_dim_scale d/conf_num_attention_heads
@N conformer.*.attention.{q,k,v,post,pos}_proj d d
@N conformer.*.lconv1d.linear_start 2*d d
@N conformer.*.lconv1d.linear_end d d
@N conformer.*.lconv1d.depthwise d 1 conf_conv_kernel_size
@N conformer.*.{pre_attn,post_attn,pre_conv,conv,last}_norm d
"""
_DIFFUSION: Final = """
d = text.d
latent = audio.d
noisy_images_proj d latent
cond_proj d d
timestep_proj.fc1 d frequency_embedding_size
timestep_proj.fc2 d d
@L layers.*.{gate,up}_proj w d
@L layers.*.down_proj d w
@L layers.*.norm d
@L layers.*.linear 3*d d
final_layer.linear_1 2*d d
final_layer.linear_2 latent d
"""

#: model_type of a tower's config -> its tensors.
AUDIO: Final[Mapping[str, str]] = {
    "qwen2_audio_encoder": _WHISPER,
    "voxtral_encoder": _WHISPER,
    "audioflamingo3_encoder": _WHISPER,
    "moss_transcribe_diarize_audio": _WHISPER,
    "glmasr_encoder": (
        "!num_key_value_heads k = d\n?num_key_value_heads k = num_key_value_heads*d/H\n"
        f"{_CONVS}\nvit L d w bias=qvo kv=k\nnorm d +b"
    ),
    "qwen2_5_omni_audio_encoder": _OMNI25,
    "qwen3_omni_moe_audio_encoder": f"{_OMNI3}\nproj1 d d +b\nproj2 out:3584 d +b",
    "qwen3_asr_encoder": _OMNI3,
    "voxtral_realtime_encoder": _REALTIME,
    "omniasr_audio": _OMNIASR,
    "granite_speech_encoder": _GRANITE,
    "granite_speech_plus_encoder": _GRANITE,
    "fun_asr_nano_encoder": _FUN,
    "phi4_multimodal_audio": _PHI4,
    "inkling_audio": _INKLING,
    "dots3_note_audio_encoder": _DOTS3,
    "gemma4_audio": _GEMMA4,
    "gemma3n_audio": _GEMMA3N,
    "gemma4_unified_audio": "",
    "vibevoice_diffusion": _DIFFUSION,
    "nemotron3_5_transcribe_asr_audio": (
        _NEMOTRON + "@L layers.*.{q,k}_norm d/H +b\nasr_norm d +b\nspeaker_norm 8 +b"
    ),
    "nemotron3_diarization_audio": _NEMOTRON,
    "nemotron3_5_transcribe_word_timestamp": (
        "upsampler d d upsampling_factor +b\n{input_layer,layer}_norm d +b\nvit L d w bias=o\n"
        "@L layers.*.{q,k}_norm d/H +b\nhead vocab_size d +b"
    ),
}
