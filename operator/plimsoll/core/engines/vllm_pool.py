"""One rank's memory under vLLM's law: what it takes by itself, and what Plimsoll pins. Bytes.

Its own law (``v1/worker/gpu_worker.py``)::

    requested = ceil(utilization * T)        refused when less is free before loading
    kv = requested - weights - non-torch - activation peak (- graphs since 0.21)

What is outside ``requested`` - context, NCCL since 0.11, graphs up to 0.20, other tenants - must live in
``(1 - utilization) * T``. Pinned bytes skip all of it, and crash when they are too many.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from plimsoll.core.engines import vllm_blocks as blocksof
from plimsoll.core.engines import vllm_cells as cells
from plimsoll.core.engines import vllm_releases as releases
from plimsoll.core.engines import vllm_reserve as reserveof
from plimsoll.core.engines.base import Allocation, Pinned, Situation, largest
from plimsoll.core.engines.settle import Attempt, Wish, settle
from plimsoll.core.engines.values import share
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.engines.versions import is_cpu_build
from plimsoll.core.engines.vllm_flags import FLAGS
from plimsoll.core.records import dataclass, replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.engines.vllm_blocks import Layout
    from plimsoll.core.engines.vllm_releases import Release
    from plimsoll.core.errors import DoesNotFit

_SAFETY_PERCENT: Final = 3
_FRAGMENTATION_PERMILLE: Final = 25
_WIDE_PERCENT: Final = 150  # what an unlisted flag makes of activation and graphs
_GRAPHS_MOST_PERCENT: Final = 125  # graphs varied by so much around their fit
_CONTEXT_UNSTATED: Final = 2048  # vLLM's own when config.json names no length
_LATENT_BLOCK: Final = 64  # FlashMLA and FlashInfer ask for it
_LOWEST_FRACTION: Final = 1
_POOLING: Final = frozenset({"pooling", "embed", "embedding", "classify", "score", "reward"})


@dataclass(frozen=True)
class Rank:
    """One rank under one set of flags, as one release behaves."""

    s: Situation
    release: Release

    # -- settings -------------------------------------------------------------------------------

    @cached_property
    def values(self) -> Mapping[str, str | None]:
        """The user's flags by canonical name."""
        engine_mode = self.s.request.mode == "Engine"
        return FLAGS.parse(self.s.request.engine_args, owned=engine_mode).values

    @property
    def limit(self) -> int | None:
        """The model's longest request, in tokens."""
        return self.s.spec.context_length

    def wanted_context(self) -> int:
        """Longest request that is asked for."""
        wanted = self.s.request.context_length or self.limit or _CONTEXT_UNSTATED
        return min(wanted, self.limit) if self.limit else wanted

    def batch(self, context: int) -> tuple[int, int]:
        """Tokens per batch and sequences, as vLLM settles them when they are not stated."""
        request, spec = self.s.request, self.s.spec
        ranks = request.tensor * (request.pipeline or 1)
        tokens, sequences = releases.card_defaults(
            request.engine_version, self.s.device.product, self.s.device_total, ranks
        )
        if self.whole(context):  # of a time before cards mattered
            tokens, sequences = max(releases.SMALL[0], context), releases.SMALL[1]
        sequences = request.max_concurrent_requests or sequences
        if request.prefill_tokens is not None:
            return request.prefill_tokens, sequences
        if self._unchunked():
            tokens = max(tokens, context)
        tokens = min(tokens, sequences * context)
        tokens = max(tokens, releases.whole_item(spec))
        if request.max_concurrent_requests is None:
            sequences = min(sequences, tokens)
        return tokens, sequences

    def whole(self, context: int) -> bool:
        """Whether prompts are not cut up, so that one batch must hold the longest of them."""
        return "whole" in self.release.features and context <= releases.WHOLE_PROMPTS

    def _unchunked(self) -> bool:
        stated = (self.values.get("enable-chunked-prefill") or "").lower()
        return "no-enable-chunked-prefill" in self.values or stated == "false"

    def load(self, tokens: int, sequences: int) -> reserveof.Load:
        """What the reserve depends on."""
        request, values = self.s.request, self.values
        pooling = values.get("runner") in _POOLING or values.get("convert") in _POOLING
        return reserveof.Load(
            tensor=request.tensor,
            sequences=0 if pooling else sequences,
            tokens=tokens,
            element=reserveof.element_bytes(cells.compute_dtype(self.s.spec, request)),
            graph=self.graph(tokens, sequences),
            pictures="language-model-only" not in values,
            quantized=reserveof.quantized(
                self.s.spec, self.s.weights, request.tensor * (request.pipeline or 1)
            ),
        )

    def graph(self, tokens: int, sequences: int) -> int:
        """Largest captured batch; 0 without graphs."""
        request = self.s.request
        if not request.cuda_graphs or is_cpu_build(request.engine_version):
            return 0
        stated = (self.values.get("cudagraph-capture-sizes") or "").replace(",", " ").split()
        if stated:
            return max(releases.whole(size, "cudagraph-capture-sizes") for size in stated)
        own = releases.largest_graph(sequences, tokens)
        return request.cuda_graph_max_batch or own

    @cached_property
    def layout(self) -> Layout | None:
        """The cut of the pool."""
        s = self.s
        stated = self.values.get("block-size")
        block = None if not stated else max(1, releases.whole(stated, "block-size"))
        return blocksof.layout(
            s.spec,
            s.request,
            block=blocksof.default_block(s.spec, s.request, block or self._pinned_block()),
            hybrid="disable-hybrid-kv-cache-manager" not in self.values,
        )

    def _pinned_block(self) -> int | None:
        """Latent caches get 64 tokens when we choose, and vLLM's default when it does."""
        ours = self.s.request.mode != "Engine" and not is_cpu_build(self.s.request.engine_version)
        return _LATENT_BLOCK if ours and self.s.spec.latent and not self.s.spec.states else None

    def request_blocks(self, context: int, tokens: int) -> int:
        """Blocks of one request of that length."""
        state_blocks = self.release.state_blocks
        if self.s.request.prefix_caching is False or "no-enable-prefix-caching" in self.values:
            state_blocks = 1
        if self.layout is None:
            return 0
        return self.layout.request_blocks(context, self.release.batches * tokens, state_blocks)

    # -- vLLM's own choice ----------------------------------------------------------------------

    def engine(self) -> Allocation:
        """The pool that vLLM takes under the given flags."""
        s, values = self.s, self.values
        context = self.wanted_context()
        tokens, sequences = self.batch(context)
        load = self.load(tokens, sequences)
        text = values.get("gpu-memory-utilization") or self.release.utilization
        requested = ceil(s.device_total * share(text, "--gpu-memory-utilization"))
        reserve = self._measured(load)
        kv = requested - s.weights - sum(reserve.values())
        error: DoesNotFit | None = None
        if "kv-cache-memory-bytes" in values:
            kv = releases.whole(values["kv-cache-memory-bytes"], "kv-cache-memory-bytes")
        safety = s.free_after_init - s.weights - sum(reserve.values()) - kv
        pool = kv
        if "num-gpu-blocks-override" in values and self.layout is not None:
            blocks = releases.whole(values["num-gpu-blocks-override"], "num-gpu-blocks-override")
            pool = blocks * self.layout.block_bytes
            safety, kv = safety + kv - pool, pool
        if values.get("max-model-len") in {"auto", "-1"}:
            context = self._auto_context(pool, context, tokens)
        allocation = self._allocation(reserve, safety, kv, context, tokens, sequences)
        if requested > s.free_after_init:
            need = f"utilization {text} asks for {requested} bytes and {s.free_after_init} are free"
            error = self._error(allocation, need, "--gpu-memory-utilization")
        elif allocation.blocks is not None:
            needed = self.request_blocks(context, tokens) + int(
                "nullBlock" in self.release.features
            )
            if allocation.blocks < max(1, needed):
                need = f"one request of {context} needs {needed} blocks and there are {max(0, allocation.blocks)}"
                error = self._error(allocation, need, "--max-model-len")
        if error is not None:
            allocation = replace(allocation, tokens=0, largest_request=0, error=error)
        return allocation

    def _measured(self, load: reserveof.Load) -> dict[str, int]:
        """What vLLM measures before it takes the rest; the margin keeps us below its number."""
        s = self.s
        if is_cpu_build(s.request.engine_version):
            return {"extra": s.request.extra_reserve}
        inside = "graphsInside" in self.release.features
        return {
            "nonTorch": reserveof.non_torch(s.spec, self.release, s.request.tensor),
            "activation": reserveof.activation(s.spec, load, self.release) + reserveof.margin(load),
            "graphs": reserveof.graphs(s.spec, load) if inside else 0,
            "draft": self._draft(),
            "extra": s.request.extra_reserve,
        }

    def _draft(self) -> int:
        return reserveof.draft(self.s.weights) if "speculative-config" in self.values else 0

    def _auto_context(self, pool: int, context: int, tokens: int) -> int:
        """``--max-model-len auto``: the longest request that the pool holds."""
        if self.layout is None:
            return context
        blocks = pool // self.layout.block_bytes - int("nullBlock" in self.release.features)
        return largest(1, context, lambda c: self.request_blocks(c, tokens) <= blocks) or context

    # -- what Plimsoll pins ---------------------------------------------------------------------

    def auto(self) -> Allocation:
        """A pool in bytes that is safe to pin."""
        context = self.wanted_context()
        return settle(self.s, Wish(context, self.batch(context)[0]), self._attempt)

    def _attempt(self, context: int, prefill: int) -> Attempt:
        s, cut = self.s, self.layout
        sequences = s.request.max_concurrent_requests or self.batch(context)[1]
        load = self.load(prefill, sequences)
        reserve = self._safe(load)
        left = s.free_after_init - s.weights - sum(reserve.values())
        safety = ceil_div(max(left, 0) * _SAFETY_PERCENT, 100)
        kv = left - safety
        needed = self.request_blocks(context, prefill) + 1  # the null block
        if cut is not None and kv > 0:
            blocks = min(kv // cut.block_bytes, self._most_blocks(context, prefill))
            safety += kv - blocks * cut.block_bytes
            kv = blocks * cut.block_bytes
        allocation = self._allocation(reserve, safety, kv, context, prefill, sequences)
        need = ""
        if self.whole(context) and prefill < context:
            need = f"a release that does not cut prompts up needs batches of {context} tokens"
        elif allocation.blocks is not None and allocation.blocks < needed:
            need = f"one request of {context} needs {needed} blocks"
        elif cut is None and kv <= 0:
            need = "nothing is left beside the weights"
        # vLLM's own check at start is a share of the whole device, also where we may use a part of it.
        whole = s.device.whole_total or s.device_total
        fraction = floor(1000 * s.free_after_init / whole) - 10
        pinned = Pinned(
            max_sequences=sequences,
            context_length=context,
            prefill_tokens=prefill,
            kv_cache_bytes=max(kv, 0),
            memory_fraction=f"{min(max(fraction, _LOWEST_FRACTION), 990) / 1000:.3f}",
            block_tokens=cut.block if cut is not None else None,
            graph_batch=load.graph,
        )
        allocation = replace(allocation, pinned=pinned)
        return Attempt(allocation, need, "spec.sizing.contextLength")

    def _safe(self, load: reserveof.Load) -> dict[str, int]:
        """Upper ends of all terms, graphs and fragmentation included."""
        s = self.s
        if is_cpu_build(s.request.engine_version):
            return {"extra": s.request.extra_reserve}
        percent = _WIDE_PERCENT if s.wide else 100
        peak = reserveof.activation(s.spec, load, self.release) + reserveof.margin(load)
        graphs = reserveof.graphs(s.spec, load) * _GRAPHS_MOST_PERCENT // 100
        rows = 4 * s.spec.vocab * load.sequences
        fragmentation = ceil_div(s.device_total * _FRAGMENTATION_PERMILLE, 1000)
        return {
            "nonTorch": reserveof.non_torch_most(s.request.tensor),
            "activation": peak * percent // 100,
            "graphs": graphs * percent // 100,
            "draft": self._draft(),
            "encoder": reserveof.tower(s.spec, load),
            # Memory of the graphs' pool cannot be used by the sampler.
            "fragmentation": max(fragmentation, rows),
            "extra": s.request.extra_reserve,
        }

    def _most_blocks(self, context: int, prefill: int) -> int:
        """Blocks below the user's upper bound of tokens."""
        bound, cut = self.s.request.max_total_token_num, self.layout
        if bound is None or cut is None or not cut.grows:
            return 1 << 62
        if len(cut.groups) == 1:
            return bound // cut.block
        return bound * max(1, self.request_blocks(context, prefill)) // context

    # -- both -----------------------------------------------------------------------------------

    def _allocation(
        self,
        reserve: Mapping[str, int],
        safety: int,
        kv: int,
        context: int,
        prefill: int,
        sequences: int,
    ) -> Allocation:
        cut = self.layout
        blocks = tokens = concurrency = None
        held = context
        if cut is not None:
            blocks = max(0, kv // cut.block_bytes)
            per_request = max(1, self.request_blocks(context, prefill))
            concurrency = blocks / per_request
            if cut.grows:
                tokens = self._tokens(blocks, per_request, context)
                held = self._longest(blocks, context, prefill)
            sequences = self._sequences(sequences, blocks, prefill)
        grouped = cut is not None and len(cut.groups) > 1
        by_groups = (
            "BlocksPerGroup"
            if "concurrency" not in self.release.features
            else "ConcurrencyTimesContext"
        )
        return Allocation(
            reserve=reserve,
            safety=safety,
            kv=kv,
            fixed_pools=0,
            granule=cut.block if cut is not None else 1,
            tokens=tokens,
            sequences=sequences,
            context_length=context,
            prefill_tokens=prefill,
            largest_request=held,
            meaning=by_groups if grouped else None,
            concurrency=concurrency,
            blocks=blocks,
            block_tokens=None if cut is None else cut.block,
            confidence="calibrated"
            if "measured" in self.release.features and not self.s.wide
            else "estimated",
        )

    def _tokens(self, blocks: int, per_request: int, context: int) -> int:
        """As the log prints it; what we pin for one table is counted in whole blocks."""
        assert self.layout is not None
        cut = self.layout
        if len(cut.groups) == 1 and self.s.request.mode != "Engine":
            return blocks * cut.block
        return blocksof.printed_tokens(cut, self.release, blocks, per_request, context)

    def _longest(self, blocks: int, context: int, prefill: int) -> int:
        """The longest request that the pool holds beside the null block."""
        return largest(1, context, lambda c: self.request_blocks(c, prefill) < blocks) or 0

    def _sequences(self, sequences: int, blocks: int, prefill: int) -> int:
        """Requests at once: each holds at least one block, and its states."""
        return max(0, min(sequences, (blocks - 1) // max(1, self.request_blocks(1, prefill))))

    def _error(self, a: Allocation, need: str, field: str) -> DoesNotFit:
        return does_not_fit(self.s, a.reserve, tokens=a.tokens or 0, need=need, field=field)
