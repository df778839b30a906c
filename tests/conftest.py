"""Fixtures and hooks for every suite."""

from hypothesis import settings

from tests.cluster_kit.distribution import pytest_xdist_make_scheduler
from tests.cluster_kit.fixtures import (
    api_cluster,
    gpu_cluster,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_setup,
    pytest_unconfigure,
)

__all__ = [
    "api_cluster",
    "gpu_cluster",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_setup",
    "pytest_unconfigure",
    "pytest_xdist_make_scheduler",
]

# The machines are noisy: an example that takes long is no failure. The rest stays as hypothesis chose it.
settings.register_profile("plimsoll", settings(), deadline=None)
settings.load_profile("plimsoll")
