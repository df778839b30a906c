"""Fixtures and hooks for every suite."""

from tests.cluster_kit.fixtures import (
    api_cluster,
    gpu_cluster,
    pytest_collection_modifyitems,
    pytest_runtest_setup,
)

__all__ = ["api_cluster", "gpu_cluster", "pytest_collection_modifyitems", "pytest_runtest_setup"]
