"""The tensors of a checkpoint, and how many of their bytes each rank holds.

Bytes come from tensor headers, never from file sizes. An engine casts plain floating-point tensors
to its compute dtype while loading; quantised ones stay as they are.
"""

from __future__ import annotations

from plimsoll.core.weights.computed import HEADER_DTYPES, computed
from plimsoll.core.weights.manifest import Manifest, Part, TensorKind, check_complete, role_of
from plimsoll.core.weights.sharding import RankWeights, ShardRules, shard

__all__ = [
    "HEADER_DTYPES", "Manifest", "Part", "RankWeights", "ShardRules", "TensorKind", "check_complete",
    "computed", "role_of", "shard",
]  # fmt: skip
