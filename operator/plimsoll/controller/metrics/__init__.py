"""What the operator exposes at /metrics.

`registry` has the primitives and the text format, `families` the names, `servers` what is read from
statuses, `transitions` what is counted as statuses change, `process` and `lag` the process itself.
"""

from plimsoll.controller.metrics.families import Metrics
from plimsoll.controller.metrics.lag import measure_lag
from plimsoll.controller.metrics.registry import CONTENT_TYPE
from plimsoll.controller.metrics.transitions import turns

__all__ = ["CONTENT_TYPE", "Metrics", "measure_lag", "turns"]
