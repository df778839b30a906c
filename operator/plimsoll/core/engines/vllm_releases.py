"""What vLLM decides by itself, by release and card: data, and the formulas that read it.

Sources: ``engine/arg_utils.py``, ``worker/gpu_worker.py``, ``v1/core`` of 0.33.0; research on 0.8.5, 0.10.2,
0.11.0, 0.15.0, 0.19.0 and 0.21.0. A row holds from the release it was read in until the next row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.flags import words
from plimsoll.core.engines.versions import is_cpu_build, parse_release
from plimsoll.core.errors import BadArgument
from plimsoll.core.records import dataclass
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Release:
    """How one range of releases behaves.

    Attributes:
        since: First release of the range.
        utilization: Default of ``--gpu-memory-utilization``.
        era: Row of the constants of the reserve.
        batches: Batches in flight whose tokens a window keeps beside its own.
        state_blocks: Blocks per request in each group of recurrent states.
        features: graphsInside (the estimate of the graphs is taken off the pool), concurrency (the log
            prints requests of the longest length times that length, before: blocks / groups *
            block), nullBlock (the start check needs one block more than one request), measured (public
            start-up lines of default settings calibrate the reserve), whole (prompts are not cut up to
            32,768 tokens, so that the batch is as long as the longest request).
    """

    since: tuple[int, int]
    utilization: str
    era: str
    batches: int
    state_blocks: int
    features: frozenset[str]


_NEWER: Final = "graphsInside concurrency"
RELEASES: Final = (
    Release((0, 0), "0.9", "0.0", 1, 1, words("whole")),
    Release((0, 9), "0.9", "0.10", 1, 1, words("")),
    Release((0, 10), "0.9", "0.10", 1, 1, words("measured")),
    Release((0, 11), "0.9", "0.11", 1, 1, words("measured")),
    Release((0, 17), "0.9", "0.17", 1, 1, words("measured")),
    Release((0, 18), "0.9", "0.18", 1, 1, words("measured")),
    Release((0, 20), "0.9", "0.18", 1, 1, words("")),
    Release((0, 21), "0.92", "0.18", 1, 2, words(_NEWER)),
    Release((0, 32), "0.92", "0.18", 1, 2, words(_NEWER + " nullBlock")),
    Release((0, 33), "0.92", "0.18", 2, 2, words(_NEWER + " nullBlock")),
)
#: Last minor release that was read; later ones are unknown.
NEWEST: Final = (0, 33)
#: The first with ``--kv-cache-memory-bytes`` as it is used here.
PINS_SINCE: Final = (0, 10, 2)

#: Memory of at least so much, in GiB: batched tokens, sequences of an online server.
_CARDS: Final = ((160, 16384, 1024), (70, 8192, 1024), (0, 2048, 256))
SMALL: Final = _CARDS[-1][1:]
#: Cards of the last row whatever their memory, by a part of their name.
_SMALL_CARDS: Final = ("A100", "GB10")
WHOLE_PROMPTS: Final = 32768
_CPU: Final = (2048, 128)

#: Tokens of the largest picture or clip of models that may not cut it: they raise the batch to it.
_WHOLE_ITEMS: Final[Mapping[str, int]] = {"gemma4": 2496}
#: Tokens of the largest picture of models that take pictures of any size.
LARGEST_ITEMS: Final[Mapping[str, int]] = {
    "qwen2_vl": 16384, "qwen2_5_vl": 16384, "qwen3_vl": 16384, "qwen3_vl_moe": 16384,
    "qwen3_5": 16384, "qwen3_5_moe": 16384, "glm4v": 6084, "glm4v_moe": 6084,
}  # fmt: skip

#: Largest graph and steps between graphs: 1, 2, 4, then by 8 up to 256, then by 16.
MOST_GRAPHS: Final = 512
_STEP_CHANGE: Final = 256

_NUMBER: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?([kKmMgGtT])?", re.ASCII)
_SUFFIX: Final = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


def whole(text: str | None, flag: str) -> int:
    """A number as vLLM's parser reads it: 1k is 1,000 and 1K is 1,024; decimals only before k, m, g, t.

    Raises:
        BadArgument: Not such a number.
    """
    match = _NUMBER.fullmatch(text or "")
    suffix = (match[3] or "") if match else ""
    if match is None or (match[2] is not None and (not suffix or suffix.isupper())):
        raise BadArgument(
            f"--{flag} needs a whole number, not {(text or '')[:32]!r}",
            field=f"--{flag}",
            value=text,
        )
    places = match[2] or ""
    scale: int = 10 ** len(places)
    return int(match[1] + places) * _SUFFIX[suffix] // scale


def release_of(version: str | None) -> Release | None:
    """The row of a version; None when the version is unknown."""
    parsed = parse_release(version)
    if parsed is None or parsed[:2] > NEWEST:
        return None
    return max((row for row in RELEASES if row.since <= parsed[:2]), key=lambda row: row.since)


def card_defaults(version: str | None, product: str, total: int, ranks: int) -> tuple[int, int]:
    """Tokens per batch and sequences that an online server takes on this card.

    Args:
        version: A CPU build scales with the ranks.
        product: Name of the card.
        total: Memory as CUDA sees it, in bytes.
        ranks: Tensor times pipeline ranks.
    """
    if is_cpu_build(version):
        return _CPU[0] * ranks, _CPU[1] * ranks
    small = any(name in product.upper() for name in _SMALL_CARDS)
    for least, tokens, sequences in _CARDS:
        if total >= least * GIB and not (small and least < _CARDS[0][0] and least):
            return tokens, sequences
    return SMALL


def whole_item(spec: ModelSpec) -> int:
    """Tokens that one batch must hold because a picture is not cut; 0 for most models."""
    sees = bool(spec.modalities)
    return max(
        (n for key, n in _WHOLE_ITEMS.items() if sees and spec.family.startswith(key)), default=0
    )


def largest_item(spec: ModelSpec) -> int:
    """Tokens of the largest picture, where it can exceed a batch."""
    matches = [key for key in LARGEST_ITEMS if spec.family.startswith(key)]
    return max((LARGEST_ITEMS[key] for key in matches), default=whole_item(spec))


def capture_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes of the graphs up to the largest, as vLLM chooses them."""
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest, _STEP_CHANGE) + 1, 8)
    sizes += range(_STEP_CHANGE + 16, largest + 1, 16)
    if largest and largest not in sizes:
        sizes.append(largest)
    return tuple(sizes)


def largest_graph(sequences: int, tokens: int) -> int:
    """The bound that vLLM takes itself: two rows per sequence, at most 512, at most one batch."""
    return min(2 * sequences, MOST_GRAPHS, tokens)
