"""What an engine can be told: refusals of values that a field allows and the engine has no place for.

Such a value would be dropped without a word, and the status would say something that is not so.
The tables are held against the engines themselves by a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller.crd.fields import invalid
from plimsoll.controller.crd.types import FIXED

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import Sizing, Spec

# Engines whose split over several devices cannot be sized yet, and those that serve one named file.
SINGLE_DEVICE: Final = frozenset({"LlamaCpp"})
ONE_FILE: Final = frozenset({"LlamaCpp"})
# In what unit an engine's command line takes the size of its pool. The others take a share of the
# memory that they find free, which no number of the user's stands for.
TAKES_TOKENS: Final = frozenset({"LightLLM", "SGLang", "LlamaCpp"})
TAKES_BYTES: Final = frozenset({"VLLM"})
# Engines that are told the dtype of recurrent states, and those that are told to keep no prefixes.
TAKES_STATE_DTYPE: Final = frozenset({"LightLLM", "VLLM"})
TAKES_PREFIX_CACHING: Final = frozenset({"VLLM", "SGLang"})


def check_engine_fits(spec: Spec) -> None:
    """Refuses what this engine cannot do, whatever each field allows by itself.

    Raises:
        InvalidSpec: names the field and what to do.
    """
    name = spec.engine.type
    if name in SINGLE_DEVICE and spec.accelerator.count != 1:
        need = f"1 with engine {name}, whose split over several devices cannot be sized yet"
        raise invalid("spec.accelerator.count", spec.accelerator.count, need)
    if name in ONE_FILE and spec.sizing.mode == FIXED and spec.model.file is None:
        need = (
            f"given: engine {name} serves one file, and in sizing.mode Fixed nothing looks for it"
        )
        raise invalid("spec.model.file", None, need)
    _check_pool(name, spec.sizing)
    if name not in TAKES_STATE_DTYPE and spec.sizing.state_dtype is not None:
        need = f"auto with engine {name}, which is not told the dtype of its states"
        raise invalid("spec.sizing.stateDType", spec.sizing.state_dtype, need)
    if name not in TAKES_PREFIX_CACHING and not spec.sizing.prefix_caching:
        need = f"true or left out with engine {name}, which is not told to keep no prefixes"
        raise invalid("spec.sizing.prefixCaching", value=False, need=need)


def _check_pool(engine: str, sizing: Sizing) -> None:
    if engine in TAKES_TOKENS and sizing.kv_cache_bytes is not None:
        need = (
            f"left out with engine {engine}, which takes tokens: set spec.sizing.maxTotalTokenNum"
        )
        raise invalid("spec.sizing.kvCacheBytes", sizing.kv_cache_bytes, need)
    if sizing.mode != FIXED or engine in TAKES_TOKENS:
        return
    if engine not in TAKES_BYTES:
        need = (
            f"left out with engine {engine}, which takes a share of the free memory and no number"
        )
        raise invalid("spec.sizing.mode", sizing.mode, need)
    if sizing.kv_cache_bytes is None:
        need = f"given in spec.sizing.mode Fixed: engine {engine} takes bytes, not tokens"
        raise invalid("spec.sizing.kvCacheBytes", None, need)
