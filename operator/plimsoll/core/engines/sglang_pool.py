"""How SGLang's memory on one rank is split: by its own rule, and by what Plimsoll writes. Bytes.

Source of the rule: ``srt/mem_cache/kv_cache_configurator.py`` and ``srt/model_executor/pool_configurator.py``
of 0.5.23. The reserve is a table of start values; SGLang measures nothing of it.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from plimsoll.core.engines import sglang_cells as cellsof
from plimsoll.core.engines import sglang_defaults as defaults
from plimsoll.core.engines.base import Allocation, Pinned, Situation
from plimsoll.core.engines.peaks import activation, logits_peak
from plimsoll.core.engines.settle import Attempt, Wish, settle
from plimsoll.core.engines.values import share
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.engines.versions import parse_release
from plimsoll.core.records import dataclass, replace
from plimsoll.core.units import GIB, MIB, ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.engines.sglang_cells import Cells, Settings
    from plimsoll.core.errors import DoesNotFit
    from plimsoll.core.request import SizingRequest

_DEFAULT_REQUESTS: Final = 256
_MOST_GRAPHS: Final = 256
_DEFAULT_CONTEXT: Final = 4096
_SAFETY_PERCENT: Final = 1
_REQUESTS_RANGE: Final = (2048, 4096)  # SGLang's own limits when none is stated
_REQUESTS_PER_POOL: Final = 512
_ROW_EXTRA: Final = 4  # columns of the request table beyond the context
_TOWERLESS: Final = frozenset({"language-only", "language-model-only"})


@dataclass(frozen=True, slots=True)
class Terms:
    """Start values of what must live in the rest of the memory. Source: research on engines, 6.2."""

    preinit: tuple[int, int, int]  # hundredths of a GiB for 1, 2, 4 and more ranks
    activation: int  # in tenths of the estimate
    workspace: int  # flashinfer's default, SGLANG_FLASHINFER_WORKSPACE_SIZE
    graph_row: int
    prefill_graph: int
    latent_graphs: int
    fragmentation_permille: int


TABLE: Final = Terms((51, 153, 155), 10, 384 * MIB, 2 * MIB, 8 * MIB, 1536 * MIB, 25)
WIDEST: Final = Terms((90, 192, 194), 20, 512 * MIB, 4 * MIB, 16 * MIB, 3072 * MIB, 40)


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's memory under one set of flags."""

    s: Situation
    settings: Settings
    cells: Cells

    @property
    def cell(self) -> int:
        """Bytes of one token of ``max_total_num_tokens``."""
        return self.cells.combined(self.settings.ratio)

    @property
    def page(self) -> int:
        """Tokens per page."""
        values = self.settings.values
        backends = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")
        named = tuple(values[name] or "" for name in backends if name in values)
        stated = self.settings.number("page-size")
        return max(1, defaults.page_tokens(self.s.spec, stated, named, self.s.device.product))

    @property
    def multimodal(self) -> int:
        """Bytes that this release takes off the budget for models that see or hear."""
        values = self.settings.values
        if not self.s.spec.modalities or values.keys() & _TOWERLESS:
            return 0
        size = self.settings.release.multimodal
        if values.get("mm-feature-transport") in {"cuda_ipc", "cuda_vmm"}:
            size += defaults.FEATURE_CACHE
        return size * MIB

    # -- what SGLang would do -------------------------------------------------------------------

    def engine(self) -> Allocation:
        """Its own budget under the given flags."""
        fraction, notes = self._fraction()
        s = self.s
        after = s.free_after_init
        slack = ceil(after * (1 - fraction))
        # Nobody has seen the multimodal reservation in a log of unknown version; known releases say.
        known = parse_release(s.request.engine_version) is not None
        encoder = self.multimodal if known else 0
        reserve = {"encoder": encoder, "extra": s.request.extra_reserve}
        kv = after - s.weights - sum(reserve.values()) - slack
        allocation = self._pool(reserve, slack, kv, self._wanted_context())
        exact = "mem-fraction-static" in self.settings.values and not (
            s.spec.states or self.settings.speculative
        )
        return replace(
            allocation,
            notes=notes,
            error=self._engine_error(allocation, fraction),
            confidence="calibrated" if exact else "estimated",
        )

    def _fraction(self) -> tuple[Fraction, tuple[str, ...]]:
        values, request = self.settings.values, self.s.request
        stated = values.get("mem-fraction-static")
        if "mem-fraction-static" in values:
            share(stated or "", "--mem-fraction-static")
            return Fraction(stated or "0"), ()
        memory = self.s.device.nvml_total // MIB
        release = self.settings.release
        chunk, graphs = defaults.card_defaults(release, memory, request.tensor)
        stated_chunk = values.get("chunked-prefill-size") or ""
        prefill = request.prefill_tokens or chunk
        if request.cuda_graph_max_batch is not None:
            graphs = request.cuda_graph_max_batch
        elif request.max_concurrent_requests is not None:
            graphs = min(graphs, request.max_concurrent_requests)
        load = defaults.Load(
            tensor=request.tensor,
            pipeline=request.pipeline or 1,
            chunk=None if stated_chunk.startswith("-") else prefill,
            graphs=graphs if request.cuda_graphs else 0,
            latent=self.s.spec.latent,
            attention_groups=self.settings.groups,
            speculative=self.settings.speculative is not None,
        )
        fraction = defaults.automatic_fraction(release, memory, load, self.s.spec)
        return fraction, (f"--mem-fraction-static is SGLang's own choice, {float(fraction):.3f}",)

    def _engine_error(self, a: Allocation, fraction: Fraction) -> DoesNotFit | None:
        minimum = 1 - Fraction(self.s.free_after_init - self.s.weights, self.s.free_after_init)
        if a.tokens is None:
            return None
        if a.tokens <= 0 or a.kv <= 0:
            need = (
                f"SGLang would refuse to start: at --mem-fraction-static {float(fraction):.3f} nothing is "
                f"left for the cache (more than {float(minimum):.3f} is needed)"
            )
            return does_not_fit(
                self.s, {**a.reserve, "extra": a.safety}, tokens=0, need=need,
                field="--mem-fraction-static",
            )  # fmt: skip
        return self._window_error(a)

    # -- what Plimsoll writes ---------------------------------------------------------------------

    def auto(self) -> Allocation:
        """The table of terms, less 1 %; a defaulted context is lowered first, then the chunk."""
        small = self.s.device_total < 35 * GIB
        chunk = 4096 if small else 8192
        wish = Wish(self._wanted_context(), self.s.request.prefill_tokens or chunk)
        return settle(self.s, wish, self._attempt)

    def _attempt(self, context: int, prefill: int) -> Attempt:
        s = self.s
        prefill = ceil_div(prefill, self.page) * self.page  # SGLang asserts whole pages
        sequences = s.request.max_concurrent_requests or _DEFAULT_REQUESTS
        reserve = self._reserve(context, prefill, sequences)
        left = s.free_after_init - s.weights - sum(reserve.values())
        safety = ceil_div(max(left, 0) * _SAFETY_PERCENT, 100)
        if s.spec.states:  # the state pool grows with the fraction, which is rounded up
            safety = max(safety, ceil_div(s.free_after_init, 1000))
        allocation = self._pool(reserve, safety, left - safety, context)
        fraction = self._pinned_fraction(reserve, safety)
        allocation = replace(
            allocation,
            prefill_tokens=prefill,
            error=None,
            pinned=Pinned(
                max_total_token_num=allocation.tokens,
                max_sequences=allocation.sequences,
                context_length=context,
                prefill_tokens=prefill,
                memory_fraction=f"{fraction / 1000:.3f}",
                block_tokens=self.page,
                graph_batch=graph_batch(s.request, sequences) if s.request.cuda_graphs else 0,
            ),
        )
        if allocation.tokens is None:
            need = (
                "" if allocation.kv > 0 and allocation.sequences > 0 else "one request has no room"
            )
        elif allocation.tokens < context + self.page:
            need = f"one request of {context} needs {context + self.page}"
        elif self._window_error(allocation) is not None:
            need = f"a window of {self.cells.window} needs as many in the windowed layers"
        else:
            need = ""
        return Attempt(allocation, need, "spec.sizing.contextLength")

    def _pinned_fraction(self, reserve: Mapping[str, int], safety: int) -> int:
        """``mem-fraction-static`` in thousandths: the profile must allow the number.

        The cap does the rest, so the fraction may be generous; where a state pool grows with it,
        it is as small as it can be.
        """
        s = self.s
        kept = sum(reserve.values()) - self.multimodal
        least = ceil(1000 * (1 - Fraction(kept + safety, s.free_after_init)))
        most = floor(1000 * (1 - Fraction(kept, s.free_after_init)))
        wanted = least if s.spec.states else max(least, most)
        return min(max(wanted, 1), 999)

    def _reserve(self, context: int, prefill: int, sequences: int) -> dict[str, int]:
        """Named terms in bytes, all of which must fit beside weights and pools."""
        s, terms = self.s, WIDEST if self.s.wide else TABLE
        peak = activation(s.spec, tensor=s.request.tensor, tokens=prefill, sequences=sequences)
        graphs = 0
        if s.request.cuda_graphs:
            graphs = terms.graph_row * graph_batch(s.request, sequences)
            sizes = terms.prefill_graph * defaults.prefill_graph_sizes(prefill)
            graphs += terms.latent_graphs if s.spec.latent else sizes
        encoder = 0
        if s.spec.modalities:
            encoder = (100 + defaults.FEATURE_CACHE) * MIB + 2 * prefill * s.spec.hidden
        return {
            "activation": peak * terms.activation // 10,
            "workspace": terms.workspace,
            "requestTables": (sequences + 1) * (context + _ROW_EXTRA) * 4,
            "graphs": graphs,
            "encoder": encoder,
            "fragmentation": max(
                ceil_div(s.device_total * terms.fragmentation_permille, 1000),
                logits_peak(s.spec, sequences),
            ),
            "extra": s.request.extra_reserve,
        }

    # -- both -----------------------------------------------------------------------------------

    def _wanted_context(self) -> int:
        limit = self.s.spec.context_length
        wanted = self.s.request.context_length or limit or _DEFAULT_CONTEXT
        return min(wanted, limit) if limit else wanted

    def _pool(self, reserve: Mapping[str, int], safety: int, kv: int, context: int) -> Allocation:
        """Tokens of a pool of ``kv`` bytes, after the states have taken their share."""
        request = self.s.request
        slots, fixed = self._state_slots(kv)
        tokens: int | None = None
        if self.cell:
            tokens = max(0, kv - fixed) // self.cell // self.page * self.page
            if request.max_total_token_num is not None:
                tokens = min(tokens, request.max_total_token_num) // self.page * self.page
        sequences = self._sequences(tokens, slots, context)
        stored = bool(self.cells.full and self.cells.windowed)
        return Allocation(
            reserve=reserve,
            safety=safety,
            kv=kv,
            fixed_pools=fixed,
            granule=self.page,
            tokens=tokens,
            sequences=sequences,
            context_length=context,
            prefill_tokens=request.prefill_tokens or self._card_chunk(),
            largest_request=context if tokens is None else max(0, min(context, tokens - 1)),
            meaning="FullAttentionPool" if stored or self.s.spec.states else None,
            concurrency=self._concurrency(tokens, slots),
            block_tokens=self.page,
            blocks=None if tokens is None else tokens // self.page,
        )

    def _card_chunk(self) -> int:
        memory = self.s.device.nvml_total // MIB
        return defaults.card_defaults(self.settings.release, memory, self.s.request.tensor)[0]

    def _state_slots(self, kv: int) -> tuple[int | None, int]:
        """State slots, and the bytes of their pool, one padding slot included."""
        size = cellsof.state_bytes(self.s.spec, self.s.request, self.settings)
        if not size:
            return None, 0
        stated = self.settings.number("max-mamba-cache-size")
        running = self.s.request.max_concurrent_requests
        if stated is not None:
            slots = stated // self.settings.groups
        elif not self.settings.prefixes and running is not None:
            slots = max(1, running // self.settings.groups)
        else:
            part = max(0, kv) * self.settings.state_ratio / (1 + self.settings.state_ratio)
            slots = max(0, (floor(part) - size) // size)
        return slots, (slots + 1) * size

    def _sequences(self, tokens: int | None, slots: int | None, context: int) -> int:
        running = self.s.request.max_concurrent_requests
        limits = []
        if running is not None:
            limits.append(max(1, running // self.settings.groups))
        elif self.s.request.mode != "Engine":
            limits.append(_DEFAULT_REQUESTS)
        elif tokens is not None:
            low, high = _REQUESTS_RANGE
            limits.append(max(min(tokens * _REQUESTS_PER_POOL // context, high), low))
        if tokens is not None:
            limits.append(tokens // 2)
        if slots is not None:
            limits.append(slots // cellsof.slots_per_request(self.settings))
        return min(limits, default=_DEFAULT_REQUESTS)

    def _concurrency(self, tokens: int | None, slots: int | None) -> float | None:
        """Requests of the stated context: by full pool, windowed pool and state slots."""
        context = self.s.request.context_length or self.s.spec.context_length
        if context is None:
            return None
        limits = []
        if tokens is not None:
            limits.append(tokens / context)
            if self.cells.full and self.cells.windowed:
                held = min(context, self.cells.window + self.page)
                limits.append(float(tokens * self.settings.ratio / held))
        if slots is not None:
            limits.append(float(slots // cellsof.slots_per_request(self.settings)))
        return min(limits, default=None)

    def _window_error(self, a: Allocation) -> DoesNotFit | None:
        """SGLang refuses a windowed pool that could never admit one request."""
        if not (self.cells.windowed and self.cells.full) or a.tokens is None:
            return None
        held = floor(a.tokens * self.settings.ratio) // self.page * self.page
        if held > self.cells.window + self.page:
            return None
        return does_not_fit(
            self.s, a.reserve, tokens=held,
            need=f"the windowed layers need more than {self.cells.window + self.page}",
            field="--swa-full-tokens-ratio",
        )  # fmt: skip


def graph_batch(request: SizingRequest, sequences: int | None) -> int:
    """Largest decode graph: as stated, else the running requests, at most 256."""
    if request.cuda_graph_max_batch is not None:
        return request.cuda_graph_max_batch
    return min(sequences or _DEFAULT_REQUESTS, _MOST_GRAPHS)
