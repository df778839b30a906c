"""The server that the load consists of, and its children as Plimsoll renders them, for all to write."""

from __future__ import annotations

from typing import Any

from plimsoll.controller.crd import parse
from plimsoll.controller.objects import BuildContext, Stamp, deployment, service

IMAGE = "localhost/plimsoll-sizer:bench"
TOKENS = 400_000


def server(**spec: Any) -> dict[str, Any]:  # noqa: ANN401
    """An InferenceServer in mode Fixed with no replicas, so that no node is needed."""
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {},
        "spec": {
            "model": {
                "source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "llama-8b"}}
            },
            "engine": {"type": "LightLLM", "image": "ghcr.io/modeltc/lightllm:v1.2.0"},
            "sizing": {
                "mode": "Fixed",
                "maxTotalTokenNum": TOKENS,
                "contextLength": 32768,
                "prefillTokens": 8192,
                "maxConcurrentRequests": 128,
            },
            "replicas": 0,
            **spec,
        },
    }


def children() -> dict[str, Any]:
    """The Deployment and the Service of that server; whoever applies them puts names and owners in."""
    named = server()
    named["metadata"] = {"name": "s", "namespace": "n", "uid": "u", "generation": 1}
    parsed = parse(named)
    context = BuildContext(IMAGE, "IfNotPresent")
    stamp = Stamp(TOKENS, 128, 32768, 8192)
    return {"deployment": deployment(parsed, stamp, context), "service": service(parsed)}
