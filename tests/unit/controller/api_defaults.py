"""What an API server makes of a Deployment that we render: its defaults, and what it drops.

tests/contract/test_foreign_fields.py holds this against a real one.
"""

from __future__ import annotations

import copy
from typing import Any

_POD: dict[str, Any] = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
}
_CONTAINER: dict[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_PROBE: dict[str, Any] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_SOURCES: dict[str, dict[str, Any]] = {
    "fieldRef": {"apiVersion": "v1"},
    "fileKeyRef": {"optional": False},
    "resourceFieldRef": {"divisor": "0"},
}
_FILES = {"configMap", "secret", "downwardAPI", "projected"}
_HANDLERS: dict[str, dict[str, Any]] = {
    "httpGet": {"path": "/", "scheme": "HTTP"},
    "grpc": {"service": ""},
}


def defaulted(obj: dict[str, Any]) -> dict[str, Any]:
    """The Deployment as the API server stores it; the identity is made up."""
    found: dict[str, Any] = _without_nothing(copy.deepcopy(obj))
    found["metadata"] |= {"uid": "uid-of-Deployment", "resourceVersion": "7"}
    found["spec"].setdefault("revisionHistoryLimit", 10)
    pod = found["spec"]["template"]["spec"]
    _fill(pod, _POD)
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        _default_container(container)
    for volume in pod.get("volumes", ()):
        if set(volume) == {"name"}:
            volume["emptyDir"] = {}
        for kind in _FILES & set(volume):
            _fill(volume[kind], {"defaultMode": 420})
    return found


def _default_container(container: dict[str, Any]) -> None:
    _fill(container, _CONTAINER)
    for port in container.get("ports", ()):
        _fill(port, {"protocol": "TCP"})
    for entry in container.get("env", ()):
        for kind, defaults in _SOURCES.items():
            if kind in entry.get("valueFrom", {}):
                _fill(entry["valueFrom"][kind], defaults)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind in container:
            _fill(container[kind], _PROBE)
            for handler, defaults in _HANDLERS.items():
                if handler in container[kind]:
                    _fill(container[kind][handler], defaults)


def _fill(obj: dict[str, Any], defaults: dict[str, Any]) -> None:
    for key, value in defaults.items():
        obj.setdefault(key, copy.deepcopy(value))


def _without_nothing(value: Any) -> Any:  # any JSON value
    """Without empty texts and lists, which most fields of the API drop."""
    if isinstance(value, dict):
        plain = {key: _without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item not in ("", [], None)}
    if isinstance(value, list):
        return [_without_nothing(item) for item in value]
    return value
