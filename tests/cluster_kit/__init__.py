"""A real Kubernetes on one machine, for tests and the demo: ``python -m tests.cluster_kit up``."""

import os

from .clean import leftovers
from .cluster import Cluster
from .errors import BusyError, KitError
from .node import Node

# Pods run as other users and read what the cache and the kubelet hold: a careful root's 077 would lock them out.
os.umask(0o022)

__all__ = ["BusyError", "Cluster", "KitError", "Node", "leftovers"]
