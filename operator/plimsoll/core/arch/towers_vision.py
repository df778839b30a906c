"""Vision towers, as lists of tensors in the notation of ``towers``.

Source: the shapes of transformers 5.24.0's models on the meta device. Names are shortened where
several towers share a layout; a checkpoint's own headers always win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIP: Final = """
side = image_size / p
=class_embedding d
patch_embedding d c p p
position_embedding side*side+1 d
{pre,post}_layernorm d +b
vit L d w
"""
_HEAD: Final = """
?vision_use_head:1 =head.probe 1 1 d
?vision_use_head:1 head.in_proj 3*d d +b
?vision_use_head:1 head.out_proj d d +b
?vision_use_head:1 head.layernorm d +b
?vision_use_head:1 head.mlp.fc1 w d +b
?vision_use_head:1 head.mlp.fc2 d w +b
"""
_SIGLIP_BODY: Final = """
side = image_size / p
patch_embedding d c p p +b
position_embedding side*side d
vit L d w
post_layernorm d +b
"""
_SIGLIP2_BODY: Final = """
patch_embedding d c*p*p +b
position_embedding num_patches d
vit L d w
post_layernorm d +b
"""
_MERGE_ATTENTION: Final = """
vit_merger.self_attn.{q,k,v,out}_proj d d +b
vit_merger.layer_norm1 d +b
vit_merger.pre_norm 4*d +b
vit_merger.linear_1 4*w 4*d +b
vit_merger.linear_2 d 4*w +b
"""
_QWEN2: Final = """
e = embed_dim
patch_embed e c temporal_patch_size:2 p p
vit L e e*mlp_ratio:4
merger.ln_q e +b
merger.mlp.0 e*m*m e*m*m +b
merger.mlp.2 hidden_size e*m*m +b
"""
_QWEN25: Final = """
side = d / H
patch_embed d c temporal_patch_size:2 p p
vit L d w norm=rms mlp=gated+b kv=side*num_key_value_heads
merger.ln_q d
merger.mlp.0 d*m*m d*m*m +b
merger.mlp.2 out d*m*m +b
"""
_QWEN3: Final = """
patch_embed d c temporal_patch_size:2 p p +b
pos_embed num_position_embeddings d
vit L d w
merger.norm d +b
merger.linear_fc1 d*m*m d*m*m +b
merger.linear_fc2 out d*m*m +b
@#deepstack_visual_indexes deepstack_merger_list.*.norm d*m*m +b
@#deepstack_visual_indexes deepstack_merger_list.*.linear_fc1 d*m*m d*m*m +b
@#deepstack_visual_indexes deepstack_merger_list.*.linear_fc2 out d*m*m +b
"""
_INTERNVL: Final = """
side = image_size / p
=cls_token 1 1 d
patch_embeddings d c p p +b
?use_absolute_position_embeddings:1 =position_embeddings 1 side*side+1 d
vit L d w bias=o+qkv?attention_bias norm=rms?norm_type=rms_norm scale
?use_qk_norm @L layers.*.attention.{q,k}_norm d
!use_mean_pooling:1 layernorm d +b
"""
_SAM: Final = """
side = image_size / p
global = #global_attn_indexes
?use_abs_pos:1 =pos_embed 1 side side d
patch_embed d c p p +b
vit L d inner bias=o+qkv?qkv_bias:1
?use_rel_pos:1 @global =rel_pos_full.*.{h,w} 2*side-1 d/H
?use_rel_pos:1 @L-global =rel_pos_window.*.{h,w} 2*window_size-1 d/H
neck.conv1 neck d 1 1
neck.conv2 neck neck 3 3
neck.layer_norm{1,2} neck +b
"""
_SAM_STATED: Final = f"""
inner = mlp_dim
neck = output_channels:256
{_SAM}
"""
_SAM_RATIO: Final = f"""
neck = output_channels:256
!mlp_dim inner = d*mlp_ratio:4
?mlp_dim inner = mlp_dim
{_SAM}
"""
_GLM_MERGER: Final = """
merger.proj out out
merger.post_projection_norm out +b
merger.{gate,up}_proj middle out
merger.down_proj out middle
downsample out d m m +b
post_layernorm d
"""
_GLM4V: Final = f"""
side = image_size / p
middle = w
position_embedding side*side d
patch_embed d c temporal_patch_size:2 p p +b
vit L d out norm=rms bias=qkv?attention_bias mlp=gated
post_conv_layernorm d
{_GLM_MERGER}
"""
_GLM_OCR_BODY: Final = f"""
patch_embed d c temporal_patch_size:2 p p +b
vit L d w norm=rms bias=qkvo?attention_bias mlp=gated+b?attention_bias head=d/H
{_GLM_MERGER}
"""
_PIXTRAL: Final = """
patch_conv d c p p
ln_pre d
vit L d w norm=rms bias= mlp=gated
"""
_BLIP: Final = """
side = image_size / p
=class_embedding 1 1 d
=position_embedding 1 side*side+1 d
patch_embedding d 3 p p +b
vit L d w bias=o+qkv?qkv_bias:1
post_layernorm d +b
"""
_MUSE: Final = """
patch_embedding d 3*patch_temporal:2*p*p
position_embedding_table pos_emb_height*pos_emb_width d
ln_{pre,post} d +b
vit L d w
"""
_MLLAMA: Final = """
side = image_size / p
ratios = max_aspect_ratio_id:8 + 1
area = (side*side+1) * d
=class_embedding d
patch_embedding d c p p
=gated_positional_embedding.gate 1
=gated_positional_embedding.embedding side*side+1 d
gated_positional_embedding.tile_embedding ratios max_num_tiles*area
=pre_tile_positional_embedding.gate 1
pre_tile_positional_embedding.embedding ratios max_num_tiles*d
=post_tile_positional_embedding.gate 1
post_tile_positional_embedding.embedding ratios max_num_tiles*d
layernorm_{pre,post} d +b
vit L d w bias= name=transformer.layers
vit num_global_layers d w bias= name=global_transformer.layers
@num_global_layers =global_transformer.layers.*.gate_{attn,ffn} 1
"""
_LLAMA4: Final = """
side = image_size / p
=class_embedding d
=positional_embedding_vlm side*side+1 d
patch_embedding d c*p*p
layernorm_{pre,post} d +b
vit L d w
vision_adapter.mlp.fc1 projector_input_dim w
vision_adapter.mlp.fc2 projector_output_dim:4096 projector_output_dim:4096
"""
_GEMMA4: Final = """
=position_embedding_table 2 position_embedding_size d
input_proj d 3*p*p
vit L d w norm=rms bias= mlp=gated q=H*head_dim kv=num_key_value_heads*head_dim head=head_dim
@L layers.*.layer_norm{3,4} d
?standardize =std_{bias,scale} d
"""
_STEP: Final = """
side = image_size / p
patch_embedding d c p p
position_embedding side*side d
pre_layernorm d +b
vit L d d*mlp_ratio scale
downsampler1 2*d d 3 3 +b
downsampler2 4*d 2*d 3 3 +b
"""
_ERNIE: Final = """
patch_embed d c*p*p
vit L d w
ln d +b
"""
_KIMI: Final = """
patch_embed d 3 p p +b
=pos_emb pos_emb_height pos_emb_width d
vit L d w
final_layernorm d +b
"""
_KOSMOS25: Final = """
patch_projection d patch_embed_hidden_size +b
{row,column}_embedder max_num_patches d
vit L d w norm=rms bias= mlp=gated q=H*head_dim
layernorm d
"""
_MINIMAX3: Final = """
patch_embedding d c temporal_patch_size:2 p p
pre_layernorm d +b
vit L d w
"""
_OVIS2: Final = """
side = image_size / p
patch_embedding d c p p +b
position_embedding side*side d
{rms,embeddings_rms}_norm d
vit L d w norm=rms bias=qkvo?qkv_bias mlp=gated+b?mlp_bias
head_linear vocab_size-num_visual_indicator_tokens d*hidden_stride*hidden_stride
head_norm vocab_size-num_visual_indicator_tokens +b
"""
_INKLING2: Final = """
=class_embedding d
=cls_position_embedding d
patch_embedding d c*p*p
position_embedding posemb_grid_size*posemb_grid_size d
pre_layernorm d +b
!intermediate_size inner = d*mlp_ratio
?intermediate_size inner = intermediate_size
vit L d inner scale
merger.linear_1 projection_hidden_dim d*m*m +b?projector_bias
merger.linear_2 text_hidden_size projection_hidden_dim +b?projector_bias
"""
_LFM3: Final = """
conv = L/2 + 1
patch_embed d c*temporal_patch_size*p*p
embedding_norm d
@conv layers.*.conv.in_proj 3*d d
@conv layers.*.conv.spatial_conv d 1 3 3
@conv layers.*.conv.out_proj d d
@L-conv layers.*.self_attn.{q,out}_proj d d
@L-conv layers.*.self_attn.{k,v}_proj num_key_value_heads*d/H d
@L-conv layers.*.self_attn.{q,k}_norm d/H
@L layers.*.feed_forward.w{1,3} w d
@L layers.*.feed_forward.w2 d w
@L layers.*.{operator,ffn}_norm d
"""
_HY4: Final = """
image_side = max_image_size / p
patch_embedding d c p p +b
position_embedding image_side*image_side+1 d
vit L d w
=patch_merger.image_newline out
patch_merger.proj_conv d*m*m d m m +b
patch_merger.proj_out out d*m*m 1 1 +b
patch_merger.before_rms d
"""
_MOLMO2: Final = """
=positional_embedding num_position_embeddings:729 d
patch_embedding d c*p*p +b
vit L d w bias=qkvo?attention_bias q=H*head_dim kv=num_key_value_heads*head_dim
"""
_RADIO: Final = """
side = max_img_size / p
=position_embedding 1 side*side d
=cls_register_token num_cls_tokens+num_registers d
patch_projection d c*p*p
?video_temporal_patch_size video_patch_projection d c*p*p*video_temporal_patch_size
vit L d d*mlp_ratio scale
"""
_DOCLING: Final = f"""
{_SIGLIP_BODY}
wide = d * scale_factor * scale_factor
near = d * scale_factor * scale_factor / 4
connector.ln_in d +b
connector.coarse.projection out wide
connector.fine.projection out near
@#deepstack_visual_indexes:3 connector.coarse.mergers.*.layer_norm wide +b
@#deepstack_visual_indexes:3 connector.coarse.mergers.*.linear_1 out wide +b
@#deepstack_visual_indexes:3 connector.coarse.mergers.*.linear_2 out out +b
@#deepstack_visual_indexes:3 connector.fine.mergers.*.layer_norm near +b
@#deepstack_visual_indexes:3 connector.fine.mergers.*.linear_1 out near +b
@#deepstack_visual_indexes:3 connector.fine.mergers.*.linear_2 out out +b
connector.ln_{{mid,out}} out +b
connector.mlp_fc2 out out
"""

_HUNYUAN: Final = """
image_side = max_image_size / p
patch_embedding d c p p +b
position_embedding image_side*image_side+1 d
vit L d w
=patch_merger.image_newline 4*d
=patch_merger.image_{begin,end,sep} text.d
patch_merger.proj_conv 2*d d m m +b
patch_merger.proj_out 4*d 2*d 1 1 +b
patch_merger.mlp text.d 4*d +b
patch_merger.before_rms d
patch_merger.after_rms text.d
"""

#: model_type of a tower's config -> its tensors.
VISION: Final[Mapping[str, str]] = {
    "clip_vision_model": _CLIP,
    "git_vision_model": _CLIP,
    "kosmos_2_vision_model": _CLIP,
    "idefics_vision": _CLIP,
    "siglip_vision_model": _SIGLIP_BODY + _HEAD,
    "siglip2_vision_model": _SIGLIP2_BODY + _HEAD,
    "cosmos3_edge_vision": _SIGLIP2_BODY,
    "idefics2_vision": _SIGLIP_BODY,
    "idefics3_vision": _SIGLIP_BODY,
    "smolvlm_vision": _SIGLIP_BODY,
    "paddleocr_vl_vision": _SIGLIP_BODY,
    "janus_vision_model": _SIGLIP_BODY.replace("w\n", "d*mlp_ratio bias=o+qkv?attention_bias\n", 1),
    "video_llama_3_vision": "patch_embedding d c p p +b\nvit L d w\npost_layernorm d +b",
    "phi4_multimodal_vision": _SIGLIP_BODY + _HEAD,
    "minicpm_ocr_vision": _SIGLIP_BODY + _MERGE_ATTENTION,
    "minicpmv4_6_vision": _SIGLIP_BODY + _MERGE_ATTENTION,
    "minicpmv4_7_vision": _SIGLIP_BODY + _MERGE_ATTENTION,
    "granite_docling_vision": _DOCLING,
    "pixtral": _PIXTRAL,
    "qwen2_vl_vision": _QWEN2,
    "qwen2_5_vl_vision": _QWEN25.replace("num_key_value_heads", "H"),
    "qwen2_5_omni_vision_encoder": _QWEN25.replace("num_key_value_heads", "H"),
    "exaone4_5_vision": _QWEN25,
    "qwen3_vl_vision": _QWEN3,
    "qwen3_vl_moe_vision": _QWEN3,
    "qwen3_omni_moe_vision_encoder": _QWEN3,
    "qwen3_5_vision": _QWEN3,
    "qwen3_5_moe_vision": _QWEN3,
    "qwen4_exp_vision": _QWEN3,
    "cohere_compass_vision": _QWEN3,
    "internvl_vision": _INTERNVL,
    "qianfan_ocr_vision": _INTERNVL,
    "got_ocr2_vision": _SAM_STATED,
    "pp_chart2table_vision": _SAM_STATED,
    "sam_vision_model": _SAM_RATIO,
    "glm4v_vision": _GLM4V,
    "glm4v_moe_vision": _GLM4V,
    "glm_ocr_vision": "middle = out*c\n" + _GLM_OCR_BODY,
    "glm5_next_vision": "middle = projection_intermediate_size\n" + _GLM_OCR_BODY,
    "blip_vision_model": _BLIP,
    "blip_2_vision_model": _BLIP,
    "instructblip_vision_model": _BLIP,
    "instructblipvideo_vision_model": _BLIP,
    "muse_glimmer_vision": _MUSE,
    "muse_spark_vision": _MUSE,
    "mllama_vision_model": _MLLAMA,
    "llama4_vision_model": _LLAMA4,
    "gemma4_vision": _GEMMA4,
    "gemma4_unified_vision": (
        "wide = patch_size*pooling_kernel_size\nwide = 3*wide*wide\n=pos_embedding mm_posemb_size 2 mm_embed_dim\n"
        "patch_ln1 wide +b\npatch_dense mm_embed_dim wide +b\n{patch_ln2,pos_norm} mm_embed_dim +b"
    ),
    "step3p5_vision": _STEP,
    "ernie4_5_vl_moe_vision": _ERNIE,
    "kimi_k25_vision": _KIMI,
    "kosmos_2_5_vision_model": _KOSMOS25,
    "minimax_m3_vl_vision": _MINIMAX3,
    "ovis2_vision": _OVIS2,
    "inkling2_vision": _INKLING2,
    "lfm3_vl_vision": _LFM3,
    "hy_v4_vl_vision": _HY4,
    "hunyuan_vl_vision": _HUNYUAN,
    "unlimited_ocr_vision_encoder": _CLIP.replace("patch_embedding d c p p\n", "").replace(
        "{pre,post}", "pre"
    ),
    "unlimited_ocr_sam_vision_model": _SAM_STATED
    + "proj.conv1 2*neck neck 3 3\nproj.conv2 4*neck 2*neck 3 3",
    "deepseek_ocr2_sam_vision_model": _SAM_RATIO
    + "proj.conv1 2*neck neck 3 3\nproj.conv2 896 2*neck 3 3",
    "deepseek_ocr2_encoder": (
        "vit L d w norm=rms bias=qkv mlp=gated kv=num_key_value_heads*d/H\nnorm d\n"
        "query_768_resolution 144 d\nquery_1024_resolution 256 d"
    ),
    "molmo2_vision": _MOLMO2,
    "radio": _RADIO,
}
