"""How a server goes: it stops being an endpoint, finishes what it works on, and only then ends.

The kubelet runs the preStop hook before it sends SIGTERM, and both share the pod's grace period.
Some engines drop their requests at SIGTERM, so where an engine says how many requests run, the hook
waits for that to come to nothing. Whatever goes wrong there, the server is stopped as ever: a hook
that fails costs its waiting, never the stop.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects.pod import literal
from plimsoll.core.engines.readback_running import RUNNING

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer

# Seconds between "no longer an endpoint" and SIGTERM; clients follow endpoints with a delay.
PRE_STOP_SECONDS: Final = 5
# Of the grace period, left to the engine for ending after SIGTERM.
ENDING_SECONDS: Final = 10
# Images of these engines are Python's; llama.cpp's has neither Python nor a way to ask.
_PYTHON: Final = frozenset({"LightLLM", "VLLM", "SGLang", "TGI", "TensorRTLLM"})

# Two answers in a row without requests, because one may have just been accepted.
_WAIT: Final = """\
import re,time,urllib.request as u
end=time.monotonic()+{seconds}
idle=0
while idle<2 and time.monotonic()<end:
    try: body=u.urlopen("http://127.0.0.1:{port}{path}",timeout=3).read(1<<22).decode("utf-8","replace")
    except OSError: break
    found=re.findall(r"(?m)^(?:trtllm_)?{gauge}(?:\\{{[^}}]*\\}})? ([0-9.]+)",body)
    if not found: break
    idle=idle+1 if sum(map(float,found))==0 else 0
    time.sleep(1)
"""


def grace_seconds(server: InferenceServer) -> int:
    """The pod's grace period, hook included."""
    return server.spec.rollout.drain_seconds + PRE_STOP_SECONDS


def sleeping() -> dict[str, Any]:
    """Give clients time to learn that the pod is no endpoint any more."""
    return {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}}


def draining(server: InferenceServer, port: int) -> dict[str, Any]:
    """As :func:`sleeping`, then wait for the running requests where the engine tells their number.

    Args:
        server: its ``drainSeconds`` bounds the waiting.
        port: where the engine listens.
    """
    engine = server.spec.engine.type
    seconds = server.spec.rollout.drain_seconds - ENDING_SECONDS
    if engine not in _PYTHON or seconds <= 0:
        return sleeping()
    path, gauge = RUNNING[engine]
    program = _WAIT.format(seconds=seconds, port=port, path=path, gauge=re.escape(gauge))
    script = f'sleep {PRE_STOP_SECONDS}; python3 -I -c "$0" || true'
    return {
        "preStop": {"exec": {"command": [literal(w) for w in ("/bin/sh", "-c", script, program)]}}
    }
