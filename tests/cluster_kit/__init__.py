"""A real Kubernetes on one machine, for tests and the demo: ``python -m tests.cluster_kit up``."""

from .clean import leftovers
from .cluster import Cluster
from .errors import BusyError, KitError
from .node import Node

__all__ = ["BusyError", "Cluster", "KitError", "Node", "leftovers"]
