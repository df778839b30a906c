"""vLLM: pages of fixed bytes, a share of the whole card, and a pool that can be pinned in bytes.

The engine measures its own peak and takes the rest of ``utilization * T``; see vllm_pool for the law,
vllm_blocks for the cut into blocks, vllm_reserve for the terms and their calibration. Plimsoll pins the
bytes (``--kv-cache-memory-bytes``, per GPU) and every flag on which the reserve depends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from plimsoll.core import dtypes
from plimsoll.core.engines import vllm_blocks as blocksof
from plimsoll.core.engines import vllm_cells as cellsof
from plimsoll.core.engines import vllm_releases as releases
from plimsoll.core.engines import vllm_reserve as reserveof
from plimsoll.core.engines.common import Common
from plimsoll.core.engines.owned import adopt_owned
from plimsoll.core.engines.versions import is_cpu_build, parse_release
from plimsoll.core.engines.vllm_flags import FLAGS
from plimsoll.core.engines.vllm_pool import Rank
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import replace
from plimsoll.core.weights import ShardRules, shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.base import Allocation, Pinned, Situation
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest, RankWeights

_VOCAB_MULTIPLE: Final = 64
#: Its Marlin kernels round MXFP4 experts up so (``fused_moe/oracle/mxfp4.py``).
_FP4_PADDING: Final = (256, 128)
_WORDS: Final[Mapping[str, str]] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_CAPTURE: Final = "--cudagraph-capture-sizes="


class VLLM(Common):
    """See the module's first lines."""

    flags: ClassVar[FlagTable] = FLAGS
    pipelines: ClassVar[bool] = True
    type: ClassVar[str] = "VLLM"
    default_port: ClassVar[int] = 8000
    health_path: ClassVar[str] = "/health"
    default_command: ClassVar[tuple[str, ...]] = ("vllm", "serve")
    formats: ClassVar[frozenset[str]] = frozenset({"safetensors", "pytorch"})
    kv_dtypes: ClassVar[Mapping[str, str]] = cellsof.KV_DTYPES
    token_meaning: ClassVar[str] = "AllLayersFull"  # noqa: S105 - not a secret
    confidence: ClassVar[str] = "estimated"

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """See Engine."""
        engine_mode = request.mode == "Engine"
        notes = _version_notes(request.engine_version, pins=not engine_mode)
        parsed = FLAGS.parse(request.engine_args, owned=engine_mode)
        values = parsed.values
        if engine_mode:
            unset = {"max-model-len"} if values.get("max-model-len") == "auto" else set()
            owned = {flag: text for flag, text in values.items() if flag not in unset}
            request = adopt_owned(FLAGS, request, owned, releases.whole)
        stated = values.get("dtype")
        if stated is not None and stated != "auto":
            given = dtypes.compute(stated, "--dtype")
            if request.dtype != "auto" and dtypes.canonical(request.dtype, "dtype") != given:
                raise BadArgument(
                    f"--dtype={given} contradicts dtype {request.dtype}; give one of them",
                    field="engineArgs",
                    value=given,
                )
            request = replace(request, dtype=given)
        if "enforce-eager" in values:
            request = replace(request, cuda_graphs=False)
        if "no-enable-prefix-caching" in values:
            request = replace(request, prefix_caching=False)
        if "speculative-config" in values:
            notes.append("the draft model is counted as a tenth of the weights; it may be larger")
        notes += FLAGS.doubts(parsed, request.engine_env)
        return request, tuple(notes)

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """See Engine."""
        values = FLAGS.parse(request.engine_args).values
        args: list[str] = []

        def pin(flag: str, value: object) -> None:
            if value is not None and flag not in values:
                args.append(f"--{flag}={value}")

        pin("kv-cache-memory-bytes", pinned.kv_cache_bytes)
        pin("gpu-memory-utilization", pinned.memory_fraction)
        pin("max-model-len", pinned.context_length)
        pin("max-num-batched-tokens", pinned.prefill_tokens)
        pin("max-num-seqs", pinned.max_sequences)
        if pinned.block_tokens is not None:
            pin("block-size", blocksof.written(pinned.block_tokens, request.engine_version))
        pin("kv-cache-dtype", cellsof.kv_word(request))
        pin("dtype", _dtype_word(request))
        graphs = pinned.graph_batch or 0
        if graphs and request.cuda_graphs:
            args.append(_CAPTURE + ",".join(map(str, releases.capture_sizes(graphs))))
        elif not request.cuda_graphs and "enforce-eager" not in values:
            args.append("--enforce-eager")
        if request.prefix_caching is False and "no-enable-prefix-caching" not in values:
            args.append("--no-enable-prefix-caching")
        if request.state_dtype is not None:
            pin("mamba-ssm-cache-dtype", _WORDS[dtypes.compute(request.state_dtype, "stateDType")])
        return args

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """See Engine."""
        args = [
            f"--model={model_path}",
            f"--served-model-name={served_name}",
            f"--host={host}",
            f"--port={port}",
            f"--tensor-parallel-size={request.tensor}",
        ]
        return args + ([f"--pipeline-parallel-size={request.pipeline}"] if request.pipeline else [])

    def argv(self, args: Sequence[str]) -> list[str]:
        """See Engine. The list of graph sizes is several words for argparse."""
        words: list[str] = []
        for arg in args:
            if arg.startswith(_CAPTURE):
                words += [_CAPTURE[:-1], *arg.removeprefix(_CAPTURE).split(",")]
            else:
                words.append(arg)
        return words

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """See Engine. A CPU build makes no CUDA context."""
        del wide  # the same in all releases that were seen
        if is_cpu_build(request.engine_version):
            return 0
        return reserveof.preinit(request.tensor * (request.pipeline or 1))

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """See Engine. Divided, and replicated where there are fewer heads than ranks."""
        return cellsof.rank_heads(spec, spec.kv_heads, tensor)

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Every layer in full; what windows save depends on the length, see vllm_blocks."""
        return cellsof.cell(spec, request)

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine."""
        return cellsof.state(spec, request)

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
            retie=True,
            fp4_padding=_FP4_PADDING,
        )
        return shard(manifest, spec, rules)

    def allocate(self, situation: Situation) -> Allocation:
        """See Engine. An unknown version: the least pool of all known ones."""
        known = releases.release_of(situation.request.engine_version)
        rows = releases.RELEASES if known is None else (known,)
        engine_mode = situation.request.mode == "Engine"
        found = [
            rank.engine() if engine_mode else rank.auto()
            for rank in (Rank(situation, row) for row in rows)
        ]
        least = min(found, key=lambda a: (a.error is None, a.kv, a.tokens or 0))
        return least if known is not None else replace(least, confidence="estimated")


def _dtype_word(request: SizingRequest) -> str:
    return "auto" if request.dtype == "auto" else _WORDS[dtypes.compute(request.dtype, "dtype")]


def _version_notes(version: str | None, *, pins: bool) -> list[str]:
    """A note where the version is unknown.

    Raises:
        Unsupported: Too old to pin bytes.
    """
    parsed = parse_release(version)
    if pins and parsed is not None and parsed < releases.PINS_SINCE:
        raise Unsupported(
            f"vLLM {version} cannot pin its pool in bytes; use 0.10.2 or newer",
            reason="UnsupportedEngineVersion",
            field="spec.engine.version",
            value=version,
        )
    if releases.release_of(version) is not None:
        return []
    return [
        f"vLLM version {version or '(none given)'} is not known here; the widest reserve is used"
    ]


if TYPE_CHECKING:
    from plimsoll.core.engines.base import Engine

    _: Engine = VLLM()
