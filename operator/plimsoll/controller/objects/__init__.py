"""Builders of the child objects: pure functions from an ``InferenceServer`` to complete dicts.

Nothing here calls the API, reads a clock or looks at what exists. Each builder returns the whole
object that Plimsoll wants, ready for server-side apply; :mod:`.diff` says how a live object differs.
"""

from plimsoll.controller.objects.context import BuildContext, Pin, Stamp, Turns
from plimsoll.controller.objects.diff import first_difference
from plimsoll.controller.objects.hashes import sizing_key
from plimsoll.controller.objects.service import service
from plimsoll.controller.objects.sizing_pod import request_hash, sizing_pod
from plimsoll.controller.objects.versions import inputs_hash
from plimsoll.controller.objects.workload import deployment, scaled

__all__ = [
    "BuildContext",
    "Pin",
    "Stamp",
    "Turns",
    "deployment",
    "first_difference",
    "inputs_hash",
    "request_hash",
    "scaled",
    "service",
    "sizing_key",
    "sizing_pod",
]
