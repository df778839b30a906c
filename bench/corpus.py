"""The corpus of observed engine starts (tests/data/capacity_observations.jsonl) as questions for ``fit``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core import fit
from plimsoll.core.arch import ModelSpec, read_spec
from plimsoll.core.catalogue import find_gpu
from plimsoll.core.device import Device
from plimsoll.core.errors import BadArgument, PlimsollError
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from plimsoll.core.answer import Fit

DATA: Final = Path(__file__).parents[1] / "tests" / "data"

#: Names in the corpus that the catalogue spells otherwise. Without a size in the name, the one that
#: holds the printed weights.
_CARDS: Final = {
    "NVIDIA H100": "H100-80GB", "NVIDIA H200": "H200", "NVIDIA L4": "L4", "NVIDIA Tesla T4": "T4",
    "NVIDIA T4": "T4", "NVIDIA RTX 3090": "RTX-3090", "NVIDIA RTX 4090": "RTX-4090",
    "NVIDIA RTX A5000": "RTX-A5000", "NVIDIA A100": "A100-80GB", "NVIDIA A100-80GB": "A100-80GB",
}  # fmt: skip
_FLAGS: Final = {
    "gpu_memory_utilization": "gpu-memory-utilization",
    "max_model_len": "max-model-len",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "block_size": "block-size",
}


@dataclass(frozen=True)
class Observation:
    """One line, with the config of its model."""

    line: dict[str, Any]
    config: dict[str, Any] | None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the line holds
        return self.line.get(name)

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks."""
        return int(self.line.get("tp") or 1)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return int(self.line.get("pp") or 1)

    @property
    def repository(self) -> str:
        """Where the line comes from, without path and commit."""
        return str(self.line["source"]).split(",")[0].split("#")[0].split(" pull request")[0]

    @property
    def total(self) -> int | None:
        """Memory of the card as CUDA sees it, in bytes: printed, else the catalogue's."""
        if self.line.get("gpu_memory_gib"):
            return int(self.line["gpu_memory_gib"] * GIB)
        name = str(self.line.get("gpu") or "")
        try:
            return find_gpu(_CARDS.get(name, name)).total if name else None
        except BadArgument:
            return None

    def spec(self) -> ModelSpec | None:
        """The model; None where no config is known or no reader for it."""
        return None if self.config is None else _spec(json.dumps(self.config))

    def geometry(self) -> tuple[object, ...]:
        """What derivatives and fine-tunes of one model share."""
        spec = self.spec()
        if spec is None:
            return (self.line["model"],)
        return (spec.layers, spec.hidden, spec.heads, spec.kv_heads)

    def arguments(self) -> tuple[str, ...]:
        """The flags that the line states, in vLLM's spelling."""
        args = [f"--{flag}={self.line[key]}" for key, flag in _FLAGS.items() if self.line.get(key)]
        return (*args, "--enforce-eager") if self.line.get("enforce_eager") else tuple(args)

    def ask(self, mode: str) -> Fit | None:
        """What Plimsoll answers; None where the line lacks what a question needs."""
        total, weights = self.total, self.line.get("weights_gib_per_gpu")
        if self.spec() is None or total is None or weights is None or self.config is None:
            return None
        before = self.line.get("free_gib_before_load")
        flags = self.arguments() if mode == "Engine" else ()
        request = SizingRequest(
            engine_type="VLLM",
            engine_version=self.line.get("engine_version"),
            engine_args=flags,
            tensor=self.tensor,
            pipeline=self.stages if self.stages > 1 else None,
            dtype=self.line.get("dtype") or "auto",
            kv_cache_dtype=self.line.get("kv_cache_dtype") or "auto",
            mode=mode,
        )
        if mode == "Auto":
            request = _absorbed(request, self.line)
        after = int(before * GIB) if before else None
        device = Device(str(self.line.get("gpu") or ""), total, total, total, after)
        return fit(self.config, None, device, request, weights=[int(weights * GIB)])


def _absorbed(request: SizingRequest, line: dict[str, Any]) -> SizingRequest:
    return replace(
        request,
        context_length=line.get("max_model_len"),
        max_concurrent_requests=line.get("max_num_seqs"),
        prefill_tokens=line.get("max_num_batched_tokens"),
        cuda_graphs=not line.get("enforce_eager"),
    )


@cache
def _spec(config: str) -> ModelSpec | None:
    try:
        return read_spec(json.loads(config))
    except PlimsollError:
        return None


@cache
def observations(engine: str = "vllm") -> tuple[Observation, ...]:
    """All lines of one engine."""
    configs = json.loads((DATA / "model_configs.json").read_text())
    lines = (DATA / "capacity_observations.jsonl").read_text().splitlines()
    return tuple(
        Observation(line, configs.get(line["model"], {}).get("config"))
        for line in map(json.loads, lines)
        if line["engine"] == engine
    )
