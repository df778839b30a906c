"""Panels about servers: the fleet, and the chosen ones in detail."""

from __future__ import annotations

from tools.dashboard.primitives import WHICH, Panel, counts, of, stat

HELD = f"plimsoll_server_budget_tokens{{{WHICH}}} * plimsoll_server_ready_replicas{{{WHICH}}}"
INFO = f"plimsoll_server_info{{{WHICH}}}"

FLEET = (
    stat("Servers", "InferenceServers.", (f"count(plimsoll_server_info{{{WHICH}}})", "")),
    stat(
        "Ready",
        "InferenceServers with condition Ready.",
        (f'sum(plimsoll_server_condition{{condition="Ready", {WHICH}}})', ""),
    ),
    stat(
        "Pods ready",
        "Server pods that are ready, and those that are wanted.",
        (f"sum(plimsoll_server_ready_replicas{{{WHICH}}})", "ready"),
        (f"sum(plimsoll_server_desired_replicas{{{WHICH}}})", "wanted"),
    ),
    stat(
        "Tokens held",
        "KV-cache tokens of all ready pods together.",
        (
            f"sum({HELD})",
            "",
        ),
    ),
    stat(
        "Largest drift",
        "How far an engine's own number is from the one that it was told; more than 5 % is wrong.",
        (f"max(abs(plimsoll_server_capacity_drift_ratio{{{WHICH}}}))", ""),
        unit="percentunit",
        bad=0.05,
    ),
    stat(
        "Waiting for a GPU",
        "Servers for which no GPU was found.",
        (f"count(plimsoll_server_gpu_wait_seconds{{{WHICH}}} > 0) or vector(0)", ""),
        bad=1,
    ),
    stat(
        "Degraded",
        "Servers with fewer tokens than they could have, or not on every GPU.",
        (f'sum(plimsoll_server_condition{{condition="Degraded", {WHICH}}})', ""),
        bad=1,
    ),
    stat(
        "Stalled",
        "Servers that only a person can get going.",
        (f'sum(plimsoll_server_condition{{condition="Stalled", {WHICH}}})', ""),
        bad=1,
    ),
    Panel(
        "table",
        "Servers",
        "One line a server, as in kubectl get isrv.",
        (
            (f"sum by (namespace, name, reason) (plimsoll_server_status_info{{{WHICH}}})", ""),
            (of("plimsoll_server_ready_replicas"), ""),
            (of("plimsoll_server_desired_replicas"), ""),
            (of("plimsoll_server_budget_tokens"), ""),
            (of("plimsoll_server_capacity_drift_ratio"), ""),
            (
                f"max by (namespace, name, model, engine, gpu, mode) ({INFO})",
                "",
            ),
        ),
        width=16,
        height=8,
    ),
    Panel(
        "timeseries",
        "Servers by status",
        "The reason of condition Ready.",
        ((f"count by (reason) (plimsoll_server_status_info{{{WHICH}}})", "{{reason}}"),),
        height=8,
        stacked=True,
    ),
    Panel(
        "timeseries",
        "Tokens held",
        "KV-cache tokens of the ready pods of each server.",
        (
            (
                f"sum by (namespace, name) ({HELD})",
                "{{namespace}}/{{name}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "timeseries",
        "Wait for a GPU",
        "For how long condition CapacityAvailable has been False.",
        (
            (
                of("plimsoll_server_gpu_wait_seconds"),
                "{{namespace}}/{{name}}",
            ),
        ),
        "s",
    ),
    counts(
        "Failed sizings",
        "By the reason that the conditions show.",
        "plimsoll_sizing_failures_total",
        "reason",
    ),
)

SERVER = (
    Panel(
        "bargauge",
        "Memory of one device",
        "What each part of a device is for; the terms add up to the device.",
        (
            (
                f"max by (namespace, name, term) (plimsoll_server_memory_bytes{{{WHICH}}})",
                "{{name}} {{term}}",
            ),
        ),
        "bytes",
        width=12,
    ),
    Panel(
        "timeseries",
        "Tokens",
        "Computed first, told to the engine, and reported by it.",
        (
            (
                of("plimsoll_server_predicted_tokens"),
                "{{name}} predicted",
            ),
            (
                of("plimsoll_server_budget_tokens"),
                "{{name}} told",
            ),
            (
                of("plimsoll_server_engine_reported_tokens"),
                "{{name}} reported",
            ),
        ),
        width=12,
    ),
    Panel(
        "state-timeline",
        "Conditions",
        "1 while a condition is True.",
        (
            (
                f"max by (namespace, name, condition) (plimsoll_server_condition{{{WHICH}}})",
                "{{name}} {{condition}}",
            ),
        ),
        width=12,
        height=9,
    ),
    Panel(
        "timeseries",
        "Replicas",
        "Wanted and ready.",
        (
            (
                of("plimsoll_server_desired_replicas"),
                "{{name}} wanted",
            ),
            (
                of("plimsoll_server_ready_replicas"),
                "{{name}} ready",
            ),
        ),
        width=6,
        height=9,
    ),
    Panel(
        "stat",
        "KV cache",
        "Of each rank: bytes of the pool, bytes of one token; and how often the pool was made smaller.",
        (
            (
                of("plimsoll_server_kv_cache_bytes"),
                "{{name}} pool",
            ),
            (
                of("plimsoll_server_token_bytes"),
                "{{name}} token",
            ),
        ),
        "bytes",
        width=3,
        height=9,
    ),
    Panel(
        "stat",
        "Shrink steps",
        "How often the pool was made smaller since it was measured.",
        (
            (
                of("plimsoll_server_shrink_steps"),
                "{{name}}",
            ),
        ),
        width=3,
        height=9,
        bad=1,
    ),
)
