"""LightLLM: one number, taken at its word.

LightLLM allocates exactly the tokens it is told and crashes when they are too many, and no public
start-up log calibrates the reserve. So the first number is the smaller of two: the table of terms
less 5 %, and what its own fraction of 0.9 would leave. It is always an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from plimsoll.core import dtypes
from plimsoll.core.engines import lightllm_cells
from plimsoll.core.engines.base import Allocation, Pinned, Situation
from plimsoll.core.engines.common import Common
from plimsoll.core.engines.lightllm_cells import KV_TYPE_SINCE, KV_TYPES, compute_dtype, kv_type_of
from plimsoll.core.engines.lightllm_flags import FLAGS
from plimsoll.core.engines.lightllm_reserve import (
    DEFAULT_REQUESTS,
    LENGTH_MARGIN,
    graph_batch,
    preinit,
    reserve_of,
    tables,
)
from plimsoll.core.engines.settle import Attempt, Wish, settle
from plimsoll.core.engines.values import count, share
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.engines.versions import parse_version
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import replace
from plimsoll.core.units import GIB, ceil_div
from plimsoll.core.weights import ShardRules, shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest, RankWeights

_KNOWN_VERSIONS: Final = frozenset({(1, 0), (1, 1), (1, 2)})
_OLDEST: Final = (1, 0)  # older ones lack flags that must be pinned (chunked_prefill_size)

_DEFAULT_CONTEXT: Final = 16384  # LightLLM's own, when config.json states no length
_LARGE_CARD: Final = 40 * GIB
_PREFILL_LARGE: Final = 8192
_PREFILL_SMALL: Final = 2048
_PREFILL_OWN: Final = 16384  # LightLLM's own batch_max_tokens
_HTTP_MARGIN: Final = 36  # its front end limits a request to size - 36
_FRACTION_PERCENT: Final = 10  # 1 - the fraction of 0.9 that it shipped until 1.1
_SHIPPED_FRACTION: Final = "0.8"  # since 1.2
_OLDER_FRACTION: Final = "0.9"
_NEWER_FRACTION_SINCE: Final = (1, 2)
_SAFETY_PERCENT: Final = 5

#: Families whose classes replicate KV heads over more ranks; the others assert kv_heads % tp == 0.
_REPLICATES: Final = ("qwen2", "qwen3")


class LightLLM(Common):
    """See the module's first lines."""

    flags: ClassVar[FlagTable] = FLAGS
    type: ClassVar[str] = "LightLLM"
    default_port: ClassVar[int] = 8000
    health_path: ClassVar[str] = "/health"
    default_command: ClassVar[tuple[str, ...]] = ("python", "-m", "lightllm.server.api_server")
    formats: ClassVar[frozenset[str]] = frozenset({"safetensors", "pytorch"})
    kv_dtypes: ClassVar[Mapping[str, str]] = KV_TYPES
    token_meaning: ClassVar[str] = "AllLayersFull"  # noqa: S105 - not a secret; windows are ignored

    # No public start-up log calibrates it: never called exact.
    confidence: ClassVar[str] = "estimated"

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """See Engine."""
        notes = _version_notes(request.engine_version)
        parsed = FLAGS.parse(request.engine_args)
        if "data-type" in parsed.values:
            given = dtypes.compute(parsed.values["data-type"] or "", "--data_type")
            if request.dtype != "auto" and dtypes.canonical(request.dtype, "dtype") != given:
                raise BadArgument(
                    f"--data_type={given} contradicts dtype {request.dtype}; give one of them",
                    field="engineArgs",
                    value=given,
                )
            request = replace(request, dtype=given)
        if "disable-cudagraph" in parsed.values:
            request = replace(request, cuda_graphs=False)
        notes += FLAGS.doubts(parsed, request.engine_env)
        return request, tuple(notes)

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """See Engine."""
        args = [f"--max_total_token_num={pinned.max_total_token_num}"]
        if pinned.prefill_tokens is not None:
            args += [
                f"--batch_max_tokens={pinned.prefill_tokens}",
                f"--chunked_prefill_size={max(1, pinned.prefill_tokens // 2)}",
            ]
        if pinned.max_sequences is not None:
            args.append(f"--running_max_req_size={pinned.max_sequences}")
        if pinned.context_length is not None:
            args.append(f"--max_req_total_len={pinned.context_length}")
        parsed = FLAGS.parse(request.engine_args).values
        if request.cuda_graphs and "disable-cudagraph" not in parsed:
            args.append(f"--graph_max_batch_size={graph_batch(request, pinned.max_sequences)}")
        elif "disable-cudagraph" not in parsed:
            args.append("--disable_cudagraph")
        if request.dtype != "auto" and "data-type" not in parsed:
            args.append(f"--data_type={dtypes.canonical(request.dtype, 'dtype')}")
        kv_type = kv_type_of(request)
        version = parse_version(request.engine_version)
        if version is None or version >= KV_TYPE_SINCE:
            args.append(f"--llm_kv_type={kv_type}")
        # Unused beside a number, and pinned so that nobody has to know that.
        args.append(f"--mem_fraction={_SHIPPED_FRACTION}")
        if pinned.state_dtype is not None:
            args.append(f"--linear_att_ssm_data_type={pinned.state_dtype}")
        return args

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """See Engine."""
        return [
            f"--model_dir={model_path}",
            f"--model_name={served_name}",
            f"--host={host}",
            f"--port={port}",
            f"--tp={request.tensor}",
        ]

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """See Engine."""
        return preinit(request.tensor, wide=wide)

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """See Engine."""
        even = spec.kv_heads % tensor == 0 or spec.latent
        replicated = spec.family.startswith(_REPLICATES) and tensor % spec.kv_heads == 0
        if spec.heads % tensor or not (even or replicated):
            raise Unsupported(
                f"LightLLM cannot split {spec.heads} heads and {spec.kv_heads} KV heads of {spec.architecture} "
                f"over {tensor} ranks; use a number of GPUs that divides them",
                reason="UnsupportedParallelism",
                field="spec.parallelism.tensor",
                value=tensor,
            )
        return max(1, spec.kv_heads // tensor)

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Windows are ignored: every layer keeps every token."""
        return lightllm_cells.cell(self, spec, request)

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine."""
        return lightllm_cells.state(spec, request)

    def rank_weights(
        self, spec: ModelSpec, manifest: Manifest, request: SizingRequest
    ) -> RankWeights:
        """See Engine. The vocabulary is split evenly, without padding."""
        rules = ShardRules(
            tensor=request.tensor,
            rank_kv_heads=1 if spec.latent else self.rank_kv_heads(spec, request.tensor),
            compute=compute_dtype(spec, request),
        )
        return shard(manifest, spec, rules)

    def allocate(self, situation: Situation) -> Allocation:
        """See Engine. Lowers a defaulted context first, then a defaulted prefill batch."""
        _check_supported(situation.spec)
        if situation.request.mode == "Engine":
            return _predict(situation)
        request = situation.request
        limit = situation.spec.context_length
        wanted = min(request.context_length or limit or _DEFAULT_CONTEXT, limit or 1 << 40)
        small = situation.device_total < _LARGE_CARD
        batch = request.prefill_tokens or (_PREFILL_SMALL if small else _PREFILL_LARGE)

        def attempt(context: int, prefill: int) -> Attempt:
            allocation = _attempt(situation, context, prefill)
            tokens = allocation.tokens or 0
            if tokens <= prefill:
                need = f"LightLLM needs more than one prefill batch of {prefill}"
                return Attempt(allocation, need, "spec.sizing.prefillTokens")
            short = tokens < context + LENGTH_MARGIN
            need = f"one request of {context} needs {context + LENGTH_MARGIN}" if short else ""
            return Attempt(allocation, need, "spec.sizing.contextLength")

        return settle(situation, Wish(wanted, batch), attempt)


def _attempt(s: Situation, context: int, prefill: int) -> Allocation:
    """The budget with this context and prefill batch, feasible or not."""
    requests = s.request.max_concurrent_requests or DEFAULT_REQUESTS
    reserve = reserve_of(s, requests, context, prefill)
    left = s.free_after_init - s.weights - sum(reserve.values())
    # Two laws, the smaller number wins: the table less 5 %, or a tenth of the card kept free. The
    # difference is caution and not need, so it is booked as safety.
    tenth = ceil_div(s.device_total * _FRACTION_PERCENT, 100)
    safety = max(ceil_div(max(left, 0) * _SAFETY_PERCENT, 100), tenth - sum(reserve.values()))
    kv = left - safety
    states = (requests + 1) * lightllm_cells.state(s.spec, s.request)
    tokens = max(0, (kv - states) // s.cell)
    if s.request.max_total_token_num is not None:
        tokens = min(tokens, s.request.max_total_token_num)
    return Allocation(
        reserve=reserve,
        safety=safety,
        kv=kv,
        fixed_pools=states,
        granule=1,
        tokens=tokens,
        sequences=requests,
        context_length=context,
        prefill_tokens=prefill,
        largest_request=max(0, min(context, tokens - _HTTP_MARGIN)),
        pinned=Pinned(
            max_total_token_num=tokens,
            max_sequences=requests,
            context_length=context,
            prefill_tokens=prefill,
            state_dtype=lightllm_cells.state_word(s.request) if states else None,
        ),
    )


def _check_supported(spec: ModelSpec) -> None:
    """Refuse what LightLLM has no memory manager for.

    Raises:
        Unsupported: Models whose cache does not grow, and encoder-decoders.
    """
    if spec.encoder is not None or not spec.caches:
        raise Unsupported(
            f"LightLLM does not serve {spec.architecture} ({spec.attention}); use another engine",
            field="model_type",
            value=spec.family,
        )


def _predict(s: Situation) -> Allocation:
    """What LightLLM takes by itself: free memory less a share of the total, over the cell.

    Free is read after weights, request tables and state pools are allocated, and before workspace,
    graphs and prefill: those must live in the ``(1 - fraction)`` of the card that stays unused.
    Source: ``MemoryManager.profile_size``, main of August 2026.
    """
    values = FLAGS.parse(s.request.engine_args, owned=True).values
    version = parse_version(s.request.engine_version)
    newer = version is None or version >= _NEWER_FRACTION_SINCE
    fraction = share(
        values.get("mem-fraction") or (_SHIPPED_FRACTION if newer else _OLDER_FRACTION)
    )
    requests = count(values, "running-max-req-size", DEFAULT_REQUESTS)
    limit = s.spec.context_length
    stated = count(
        values, "max-req-total-len", s.request.context_length or limit or _DEFAULT_CONTEXT
    )
    context = min(stated, limit or stated)
    batch = count(values, "batch-max-tokens", _PREFILL_OWN)
    held = tables(s.spec, requests, context, batch)
    states = (requests + 1) * lightllm_cells.state(s.spec, s.request)
    unused = s.device_total - int(s.device_total * fraction)
    kv = s.free_after_init - s.weights - held - unused
    tokens = max(0, (kv - states) // s.cell)
    given = values.get("max-total-token-num")
    if given is not None:
        tokens = count(values, "max-total-token-num", 0)
    error = None
    if tokens <= batch or tokens < context + LENGTH_MARGIN:
        need = f"it needs more than {batch} (batch_max_tokens) and {context + LENGTH_MARGIN} (one request)"
        error = does_not_fit(
            s, {"requestTables": held}, tokens=tokens, need=need, field="--max_req_total_len"
        )
    return Allocation(
        reserve={"requestTables": held},
        safety=unused,
        kv=kv,
        fixed_pools=states,
        granule=1,
        tokens=0 if error else tokens,
        sequences=requests,
        context_length=context,
        prefill_tokens=batch,
        largest_request=max(0, min(context, tokens - _HTTP_MARGIN)),
        error=error,
    )


def _version_notes(version: str | None) -> list[str]:
    parsed = parse_version(version)
    if parsed is not None and parsed < _OLDEST:
        raise Unsupported(
            f"LightLLM {version} lacks flags that must be pinned; use 1.0 or newer",
            reason="UnsupportedEngineVersion",
            field="spec.engine.version",
            value=version,
        )
    if parsed in _KNOWN_VERSIONS:
        return []
    return [
        f"LightLLM version {version or '(none given)'} is not known here; the widest reserve is used"
    ]


if TYPE_CHECKING:
    from plimsoll.core.engines.base import Engine

    _: Engine = LightLLM()
