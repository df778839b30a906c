"""Nodes that come and go under servers, by the real scheduler and the real Karpenter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster_kit.gpus import L40S

if TYPE_CHECKING:
    from tests.scale.world import Scale, Space


def test_kwok_plays_the_kubelet_and_the_sizer(scale: Scale, space: Space) -> None:
    names = scale.add_nodes(L40S)
    try:
        space.apply()
        live = space.wait_ready()
        assert live["status"]["capacity"]["maxTotalTokenNum"] == L40S.tokens
    finally:
        scale.remove_nodes(names)
