"""SGLang: a share of what was free before the weights.

``budget = F2 - (1 - f) * F1`` with F1 free before the weights and F2 = F1 - W after them, so ``f`` is no
share of the card. Graphs, activations, the request table and workspaces must live in the rest,
``(1 - f) * F1``. ``--max-total-tokens`` only caps: a number that is too large does no harm, a rest
that is too small does. Checked on public start-up logs: without a draft model the memory left after
the pool equals that product (23 starts on RTX 3090 within 0.07 GiB).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from plimsoll.core import dtypes
from plimsoll.core.engines import sglang_cells as cellsof
from plimsoll.core.engines import sglang_defaults as defaults
from plimsoll.core.engines.common import Common
from plimsoll.core.engines.owned import adopt_owned
from plimsoll.core.engines.peaks import by_ranks, cells_of_heads
from plimsoll.core.engines.sglang_flags import FLAGS
from plimsoll.core.engines.sglang_pool import TABLE, WIDEST, Rank, graph_batch
from plimsoll.core.engines.versions import parse_release
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import replace
from plimsoll.core.weights import ShardRules, shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.base import Allocation, Pinned, Situation
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest, RankWeights

_VOCAB_MULTIPLE: Final = 64
_WORDS: Final[Mapping[str, str]] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class SGLang(Common):
    """See the module's first lines."""

    flags: ClassVar[FlagTable] = FLAGS
    pipelines: ClassVar[bool] = True
    type: ClassVar[str] = "SGLang"
    default_port: ClassVar[int] = 30000
    health_path: ClassVar[str] = "/health"
    default_command: ClassVar[tuple[str, ...]] = ("python3", "-m", "sglang.launch_server")
    formats: ClassVar[frozenset[str]] = frozenset({"safetensors", "pytorch"})
    kv_dtypes: ClassVar[Mapping[str, str]] = cellsof.KV_DTYPES
    token_meaning: ClassVar[str] = "AllLayersFull"  # noqa: S105 - not a secret
    confidence: ClassVar[str] = "estimated"

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """See Engine."""
        notes = _version_notes(request.engine_version)
        engine_mode = request.mode == "Engine"
        parsed = FLAGS.parse(request.engine_args, owned=engine_mode)
        if engine_mode:
            request = adopt_owned(FLAGS, request, parsed.values, cellsof.whole)
        stated = parsed.values.get("dtype")
        if stated is not None and stated != "auto":
            given = dtypes.compute(stated, "--dtype")
            if request.dtype != "auto" and dtypes.canonical(request.dtype, "dtype") != given:
                raise BadArgument(
                    f"--dtype={given} contradicts dtype {request.dtype}; give one of them",
                    field="engineArgs",
                    value=given,
                )
            request = replace(request, dtype=given)
        if parsed.values.keys() & {"disable-cuda-graph", "disable-decode-cuda-graph"}:
            request = replace(request, cuda_graphs=False)
        if "speculative-algorithm" in parsed.values:
            notes.append("the draft model's weights are not counted; give them with --weights")
        notes += FLAGS.doubts(parsed, request.engine_env)
        return request, tuple(notes)

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """See Engine."""
        values = FLAGS.parse(request.engine_args).values
        args: list[str] = []

        def pin(flag: str, value: object) -> None:
            if value is not None and flag not in values:
                args.append(f"--{flag}={value}")

        pin("mem-fraction-static", pinned.memory_fraction)
        pin("max-total-tokens", pinned.max_total_token_num)
        pin("chunked-prefill-size", pinned.prefill_tokens)
        pin("max-prefill-tokens", pinned.prefill_tokens)
        pin("max-running-requests", pinned.max_sequences)
        pin("context-length", pinned.context_length)
        pin("page-size", pinned.block_tokens)
        pin("kv-cache-dtype", cellsof.kv_word(request))
        pin("swa-full-tokens-ratio", "0.8")
        pin("mamba-full-memory-ratio", "0.9")
        if request.dtype != "auto":
            pin("dtype", _WORDS[dtypes.compute(request.dtype, "dtype")])
        flag = defaults.release_of(request.engine_version).graph_flag
        stated = values.keys() & {"disable-cuda-graph", "disable-decode-cuda-graph"}
        if not request.cuda_graphs or stated:
            args += [] if stated else ["--disable-cuda-graph"]
        elif flag is not None:
            pin(flag, pinned.graph_batch or graph_batch(request, pinned.max_sequences))
        if request.prefix_caching is False and "disable-radix-cache" not in values:
            args.append("--disable-radix-cache")
        return args

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """See Engine."""
        args = [
            f"--model-path={model_path}",
            f"--served-model-name={served_name}",
            f"--host={host}",
            f"--port={port}",
            f"--tp-size={request.tensor}",
        ]
        return args + ([f"--pp-size={request.pipeline}"] if request.pipeline else [])

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """See Engine."""
        ranks = request.tensor * (request.pipeline or 1)
        return by_ranks((WIDEST if wide else TABLE).preinit, ranks)

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """See Engine. Divided, and replicated where there are fewer heads than ranks."""
        return cells_of_heads(spec.kv_heads, tensor)

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Where windows have a pool of their own: full layers + ratio * windowed layers."""
        settings = cellsof.settings_of(spec, request)
        return cellsof.cells(spec, settings, request.tensor).combined(settings.ratio)

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine."""
        return cellsof.state_bytes(spec, request, cellsof.settings_of(spec, request))

    def rank_weights(
        self, spec: ModelSpec, manifest: Manifest, request: SizingRequest
    ) -> RankWeights:
        """See Engine."""
        rules = ShardRules(
            tensor=request.tensor,
            rank_kv_heads=1 if spec.latent else self.rank_kv_heads(spec, request.tensor),
            compute=cellsof.compute_dtype(spec, request),
            pipeline=request.pipeline or 1,
            vocab_multiple=_VOCAB_MULTIPLE,
            latent_split=spec.latent,
        )
        return shard(manifest, spec, rules)

    def allocate(self, situation: Situation) -> Allocation:
        """See Engine."""
        settings = cellsof.settings_of(situation.spec, situation.request, situation.device.product)
        cells = cellsof.cells(situation.spec, settings, situation.request.tensor)
        rank = Rank(situation, settings, cells)
        return rank.engine() if situation.request.mode == "Engine" else rank.auto()


def _version_notes(version: str | None) -> list[str]:
    parsed = parse_release(version)
    if parsed is not None and parsed < defaults.OLDEST:
        raise Unsupported(
            f"SGLang {version} is older than anything known here; use 0.4 or newer",
            reason="UnsupportedEngineVersion",
            field="spec.engine.version",
            value=version,
        )
    if parsed in defaults.KNOWN:
        return []
    return [
        f"SGLang version {version or '(none given)'} is not known here; the widest reserve is used"
    ]


if TYPE_CHECKING:
    from plimsoll.core.engines.base import Engine

    _: Engine = SGLang()
