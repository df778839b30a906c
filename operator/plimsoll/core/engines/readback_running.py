"""How many requests an engine works on at the moment, by its own word. Data, and one reader.

Source: the research on engines, sections 1.7, 2.7, 3.7, 4 and 5; llama.cpp's server, tools/server/README.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_TEXT: Final = 4 << 20
_MOST: Final = 1 << 20  # requests
_SLOTS: Final = "is_processing"

#: Engine -> path, and the gauge there. llama.cpp has its gauges only when asked, its slots by default:
#: a JSON list of objects.
RUNNING: Final[Mapping[str, tuple[str, str]]] = {
    "LightLLM": ("/metrics", "lightllm_num_running_reqs"),
    "SGLang": ("/metrics", "sglang:num_running_reqs"),
    "VLLM": ("/metrics", "vllm:num_requests_running"),
    "TGI": ("/metrics", "tgi_batch_current_size"),
    "TensorRTLLM": ("/prometheus/metrics", "num_requests_running"),
    "LlamaCpp": ("/slots", _SLOTS),
}
_VALUE: Final = r"(?:\{[^}\n]{0,2000}\})? ([0-9]{1,7})(?:\.0{1,6})?\r?$"
_BUSY: Final = re.compile(rf'"{_SLOTS}" {{0,4}}: {{0,4}}(true|false)', re.ASCII)


def read_running(engine: str, body: str) -> int | None:
    """Requests that run, summed over an engine's processes; None where the text does not say.

    Args:
        engine: Name of the engine table; an unknown one says nothing.
        body: What the engine answered on the path of ``RUNNING``.
    """
    name = RUNNING[engine][1] if engine in RUNNING else ""
    if name == _SLOTS:
        found = [int(word == "true") for word in _BUSY.findall(body[:_MAX_TEXT])]
    elif name:
        # TensorRT-LLM writes its names with and without its own prefix.
        gauge = rf"^(?:trtllm_)?{re.escape(name)}{_VALUE}"
        found = [
            int(value) for value in re.findall(gauge, body[:_MAX_TEXT], re.MULTILINE | re.ASCII)
        ]
    else:
        found = []
    total = sum(found)
    return total if found and total <= _MOST else None
