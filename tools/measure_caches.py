"""Measure what transformers caches for a model, on the meta device: no weights, no GPU, no download.

    python tools/measure_caches.py config.json ...        one record each, as JSON lines
    python tools/measure_caches.py --types OUT.json [NAME ...]    these model types, else every one that
                                                                  generates text, at their default configs

Run it in an environment of its own: ``pip install transformers==5.24.0 torch``. Shapes come from forward
passes at two lengths below and two above the largest window; bytes per token are differences, never a
formula. A control-flow question on a meta tensor is answered as for an unpadded prompt, and routing
finds no token for any expert, which changes no cache.
"""

# ruff: noqa: SLF001 - configs and models of many classes, switched as their loaders do

from __future__ import annotations

import json
import re
import signal
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers
from measure_prompts import RECIPES, inputs_for
from measure_shapes import cache_of, measure, watch_caches
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

MAPPINGS = {
    "causal": "CAUSAL_LM",
    "image_text": "IMAGE_TEXT_TO_TEXT",
    "multimodal": "MULTIMODAL_LM",
    "seq2seq": "SEQ_TO_SEQ_CAUSAL_LM",
    "speech": "SPEECH_SEQ_2_SEQ",
}
SHORT = (8, 16)
BEYOND = (256, 512)
NEAR = (64, 128)  # no window: nothing changes further on, and Mamba 1 goes token by token
SECONDS = 420
WINDOW = re.compile(r"window|chunk|^local_attention$")
NO_WINDOW = re.compile(
    r"pattern|max_window_layers|use_|every|chunk_size_feed|mamba|ssm|gla|audio|pretrain"
)
ELSEWHERE = re.compile("vision|audio|encoder|image|patch")
WIDEST = 600_000


def largest_window(config: Any) -> dict[str, list[int]]:
    """Fields of the decoder's config that name a window -> their values."""
    found: dict[str, set[int]] = defaultdict(set)

    def walk(values: Any) -> None:
        for key, value in values.items() if isinstance(values, dict) else ():
            if ELSEWHERE.search(str(key)):
                continue
            if WINDOW.search(str(key)) and not NO_WINDOW.search(str(key)):
                items = value if isinstance(value, list) else [value]
                found[str(key)] |= {
                    item for item in items if type(item) is int and 0 < item < WIDEST
                }
            walk(value)

    walk(config.to_dict())
    return {key: sorted(values) for key, values in found.items() if values}


def parameters(model: torch.nn.Module) -> dict[str, Any]:
    """Parameters, tied ones once, by part and dtype."""
    parts: dict[str, int] = defaultdict(int)
    kinds: dict[str, int] = defaultdict(int)
    experts = 0
    for name, value in model.named_parameters():
        parts[".".join(name.split(".")[:2])] += value.numel()
        kinds[str(value.dtype).removeprefix("torch.")] += value.numel()
        experts += value.numel() if re.search(r"\.experts\.", name) else 0
    twice = sum(v.numel() for _, v in model.named_parameters(remove_duplicate=False))
    total = sum(parts.values())
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        embedding = None
    tied = head is not None and getattr(head, "weight", 0) is getattr(embedding, "weight", 1)
    return {
        "params": total,
        "params_counting_tied_twice": twice,
        "params_by_dtype": dict(kinds),
        "params_by_part": dict(sorted(parts.items(), key=lambda item: -item[1])),
        "expert_params": experts,
        "tied_output": tied,
    }


def class_for(config: Any) -> tuple[str, str]:
    """(mapping, class name) of the model that generates text."""
    tables = {
        key: getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES")
        for key, name in MAPPINGS.items()
    }
    order = list(MAPPINGS)
    if getattr(config, "is_encoder_decoder", False) or config.model_type in {"whisper", "trocr"}:
        order = ["seq2seq", "speech", "image_text", "multimodal", "causal"]
    elif hasattr(config, "text_config"):
        order = ["image_text", "multimodal", "seq2seq", "speech", "causal"]
    named = (config.architectures or [None])[0]
    for mapping in order:
        found = tables[mapping].get(config.model_type)
        names = [found] if isinstance(found, str) else list(found or [])
        if named in names:
            return mapping, named
    for mapping in order:
        found = tables[mapping].get(config.model_type)
        if found:
            return mapping, found if isinstance(found, str) else found[0]
    raise KeyError(f"no class generates text for {config.model_type}")


EXTRA_TYPES = {"shieldgemma2": "ShieldGemma2ForImageClassification"}


def config_from(values: dict[str, Any]) -> Any:
    """A config object from a parsed config.json."""
    values = dict(values)
    model_type = values.pop("model_type")
    values.pop("quantization_config", None)
    values.pop("auto_map", None)
    text = values.get("text_config")
    rope = text.get("rope_parameters") if isinstance(text, dict) else None
    if isinstance(rope, dict) and "mrope_section" in rope and "xdrope_section" in rope:
        rope = {key: value for key, value in rope.items() if key != "mrope_section"}
        values["text_config"] = text | {"rope_parameters": rope}
    for part in (values, *(item for item in values.values() if isinstance(item, dict))):
        if isinstance(part.get("time_step_limit"), list):
            part["time_step_limit"] = tuple(float(limit) for limit in part["time_step_limit"])
    config = CONFIG_MAPPING[model_type].from_dict(values)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if not hasattr(config, key):
            setattr(config, key, None)
    return config


def build(config: Any, name: str) -> Any:
    """The model on the meta device, in bf16."""
    cls = getattr(transformers, name)
    for sub in [
        config,
        *(getattr(config, key, None) for key in getattr(config, "sub_configs", {})),
    ]:
        if sub is not None:
            sub._attn_implementation = "eager"
            sub._experts_implementation = "eager"
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = cls(config)
    finally:
        torch.set_default_dtype(old)
    model.tie_weights()
    for module in model.modules():
        if type(module).__name__ == "JetMoeParallelExperts":
            module.forward = lambda x, _, width=module.output_size: x.new_empty(x.shape[0], width)
    return model.eval()


def record_of(values: dict[str, Any]) -> dict[str, Any]:
    """One record: what is cached, the parameters, what engines store; or ``failed``.

    A wrapper that does not run without an image is measured by its text part.
    """
    config = config_from(values)
    extra = EXTRA_TYPES.get(config.model_type)
    mapping, name = ("image_text", extra) if extra else class_for(config)
    written = json.dumps(config.to_dict(), default=str).replace("Infinity", '"inf"')
    crossed = bool(getattr(config, "is_encoder_decoder", False)) or config.model_type == "mllama"
    if getattr(config, "is_decoder", None) is False and not crossed:
        config.is_decoder = True
    record: dict[str, Any] = {
        "model_type": config.model_type, "mapping": mapping, "class": name, "config": json.loads(written),
    }  # fmt: skip
    model = build(config, name)
    record["params"] = parameters(model)
    windows = largest_window(config)
    top = max((v for vs in windows.values() for v in vs), default=0)
    lengths = (*SHORT, *(top + more for more in (BEYOND if top else NEAR)))
    try:
        measured = measured_by(model, config, lengths, crossed=crossed)
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {str(error)[:300]} ({where(error)})"
        text = getattr(config, "get_text_config", lambda **_: config)(decoder=True)
        if text is config:
            return record | {"failed": reason}
        record |= {
            "whole_model_failed": reason,
            "whole_params": record["params"],
            "mapping": "text_part",
        }
        try:
            measured = measured_by(build(text, class_for(text)[1]), text, lengths, crossed=False)
        except Exception as second:  # noqa: BLE001
            return record | {
                "failed": f"{reason} | text part: {type(second).__name__}: {str(second)[:300]}"
            }
    measured["windows_in_config"] = windows
    return record | {"measured": measured, "engine": engine(config, measured)}


def measured_by(
    model: Any, config: Any, lengths: tuple[int, ...], *, crossed: bool
) -> dict[str, Any]:
    """Forward passes of one model.

    Raises:
        ValueError: Nothing is cached.
    """
    found = measure(
        lambda length, encoder: cache_of(model, inputs_for(config, length, encoder)),
        lengths,
        crossed=crossed,
    )
    if not found["tensors"]:
        raise ValueError("no cache came back")
    return found


def where(error: BaseException) -> str:
    """File and line at which an error arose."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""


def engine(config: Any, measured: dict[str, Any]) -> dict[str, Any]:
    """What engines store per token where that can be told from the shapes."""
    full = measured["kv_bytes_per_token_while_all_windows_fill"]
    honoured = measured["kv_bytes_per_token"]
    record: dict[str, Any] = {}
    if config.model_type == "falcon" and config.new_decoder_architecture:
        # transformers repeats the keys for all query heads before it caches them; engines do not
        full = full * config.num_kv_heads // config.num_attention_heads
        honoured = full
    indexed = [r for r in measured["tensors"] if r["tensor"].endswith("indexer_keys")]
    for row in indexed:
        # engines on CUDA keep an index key as fp8 with one fp32 scale for each 128
        wide = row["elements_per_token"]
        saved = row["count"] * (2 * wide - (wide + 4 * (wide // 128)))
        full, honoured = full - saved, honoured - saved
        record["indexer_layers"] = record.get("indexer_layers", 0) + row["count"]
    return record | {
        "expected_bytes_per_token_all_layers_full": full,
        "expected_bytes_per_token_windows_honoured": honoured,
    }


def every_type() -> list[str]:
    """Every model type for which transformers has a class that generates text."""
    names: list[str] = []
    for part in MAPPINGS.values():
        names += [
            n
            for n in getattr(modeling_auto, f"MODEL_FOR_{part}_MAPPING_NAMES")
            if n in CONFIG_MAPPING_NAMES
        ]
    return sorted(set(names) | set(EXTRA_TYPES))


class TooSlowError(Exception):
    """A model took longer than allowed."""


def guarded(values: dict[str, Any]) -> dict[str, Any]:
    """``record_of`` within the time allowed, errors as records."""

    def stop(*_: Any) -> None:
        raise TooSlowError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return record_of(values)
    except Exception as error:  # noqa: BLE001
        return {
            "model_type": values.get("model_type"),
            "failed": f"{type(error).__name__}: {str(error)[:300]} ({where(error)})",
        }
    finally:
        signal.alarm(0)


def main() -> None:
    """See the module's docstring."""
    warnings.filterwarnings("ignore")
    watch_caches()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1] == "--types":
        path = Path(sys.argv[2])
        done = json.loads(path.read_text()) if path.exists() else {}
        for name in sys.argv[3:] or every_type():
            if name not in done:
                done[name] = guarded({"model_type": name} | RECIPES.get(name, {}))
                path.with_suffix(".part").write_text(json.dumps(done))
                path.with_suffix(".part").replace(path)
        return
    for name in sys.argv[1:]:
        print(json.dumps(guarded(json.loads(Path(name).read_text()))), flush=True)


if __name__ == "__main__":
    main()
