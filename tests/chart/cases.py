"""Values by which the chart's own defaults are left, one at a time; tests/chart uses them in several ways."""

from __future__ import annotations

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4
ALLOWED = {"admission": {"engineImages": {"enabled": True, "allowedPrefixes": ["ghcr.io/"]}}}
EGRESS = {"networkPolicy": {"egress": {"enabled": True}}}
NAMESPACED = {"watch": {"namespaces": ["team-a", "team-b"]}}

# Path: another value, and what must be set beside it to have an effect.
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "image.registry": ("registry.internal:5000/mirror", {}),
    "image.pullPolicy": ("Always", {}),
    "image.operator.repository": ("me/operator", {}),
    "image.operator.tag": ("9.9.9", {}),
    "image.operator.digest": (DIGEST, {}),
    "image.sizer.repository": ("me/sizer", {}),
    "image.sizer.tag": ("9.9.9", {}),
    "image.sizer.digest": (DIGEST, {}),
    "imagePullSecrets": ([{"name": "mirror"}], {}),
    "replicas": (2, {}),
    "watch.namespaces": (["team-a"], {}),
    "crds.enabled": (False, {}),
    "crds.keep": (False, {}),
    "rbac.nodes": (False, {}),
    "rbac.podsOfAllNamespaces": (True, NAMESPACED),
    "rbac.aggregate": (False, {}),
    "serviceAccount.create": (False, {}),
    "serviceAccount.name": ("mine", {}),
    "serviceAccount.annotations": ({"example.com/role": "x"}, {}),
    "settings.logLevel": ("DEBUG", {}),
    "settings.logFormat": ("text", {}),
    "settings.learn": (False, {}),
    "settings.resyncSeconds": (1000000, {}),
    "resources": ({"limits": {"memory": "1Gi"}}, {}),
    "runAsUser": (None, {}),
    "priorityClassName": ("system-cluster-critical", {}),
    "nodeSelector": ({"pool": "system"}, {}),
    "tolerations": ([{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}], {}),
    "affinity": ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, {}),
    "commonLabels": ({"team": "serving"}, {}),
    "podLabels": ({"team": "serving"}, {}),
    "podAnnotations": ({"example.com/note": "x"}, {}),
    "networkPolicy.enabled": (False, {}),
    "networkPolicy.ingress.from": ([], {}),
    "networkPolicy.egress.enabled": (True, {}),
    "networkPolicy.egress.apiServerCIDRs": (["10.0.0.0/8"], EGRESS),
    "networkPolicy.egress.apiServerPorts": ([443], EGRESS),
    "monitoring.serviceMonitor.enabled": (True, {}),
    "monitoring.serviceMonitor.interval": (
        "1m",
        {"monitoring": {"serviceMonitor": {"enabled": True}}},
    ),
    "monitoring.serviceMonitor.labels": (
        {"release": "prometheus"},
        {"monitoring": {"serviceMonitor": {"enabled": True}}},
    ),
    "monitoring.podMonitor.enabled": (True, {}),
    "monitoring.podMonitor.interval": ("1m", {"monitoring": {"podMonitor": {"enabled": True}}}),
    "monitoring.podMonitor.labels": (
        {"release": "prometheus"},
        {"monitoring": {"podMonitor": {"enabled": True}}},
    ),
    "monitoring.prometheusRule.enabled": (True, {}),
    "monitoring.prometheusRule.labels": (
        {"release": "prometheus"},
        {"monitoring": {"prometheusRule": {"enabled": True}}},
    ),
    "monitoring.dashboards.enabled": (True, {}),
    "monitoring.dashboards.labels": (
        {"grafana": "yes"},
        {"monitoring": {"dashboards": {"enabled": True}}},
    ),
    "monitoring.dashboards.annotations": (
        {"grafana_folder": "LLM"},
        {"monitoring": {"dashboards": {"enabled": True}}},
    ),
    "admission.statusWriters.enabled": (True, {}),
    "admission.statusWriters.extraUsers": (
        ["system:serviceaccount:velero:velero"],
        {"admission": {"statusWriters": {"enabled": True}}},
    ),
    "admission.engineImages.enabled": (
        True,
        {"admission": {"engineImages": {"allowedPrefixes": ["ghcr.io/"]}}},
    ),
    "admission.engineImages.allowedPrefixes": (["ghcr.io/modeltc/"], ALLOWED),
}

# Everything that can be on at once.
EVERYTHING: dict[str, Any] = {
    **ALLOWED,
    **EGRESS,
    "replicas": 3,
    "commonLabels": {"team": "serving"},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "admission": {**ALLOWED["admission"], "statusWriters": {"enabled": True}},
}

# Both modes, with little and with much.
MODES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "namespaced": {**NAMESPACED},
    "namespaced-everything": {**EVERYTHING, **NAMESPACED, "rbac": {"podsOfAllNamespaces": True}},
}


def nest(path: str, value: object) -> dict[str, Any]:
    """A value at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both, as Helm merges values: maps by key, the rest replaced."""
    found = dict(base)
    for key, value in over.items():
        old = found.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            found[key] = merged(old, value)
        else:
            found[key] = value
    return found
